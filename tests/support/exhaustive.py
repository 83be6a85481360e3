"""The size of an exhaustive proof: a sample, or every case in `make exhaustive`."""

from __future__ import annotations

import os

import pytest

EXHAUSTIVE = bool(os.environ.get("LASTWORD_EXHAUSTIVE"))

only_exhaustive = pytest.mark.skipif(not EXHAUSTIVE, reason="runs in `make exhaustive`, and so at night")
"""For a test that starts another tool for long; CONTRIBUTING has the reason of each."""


def stride(sampled: int) -> int:
    """Return the step between two cases: `sampled`, or 1 where LASTWORD_EXHAUSTIVE is set."""
    return 1 if EXHAUSTIVE else sampled


def few(examples: int) -> int:
    """Return a sixth of the examples of a property, at least 8, or all where LASTWORD_EXHAUSTIVE is set."""
    return examples if EXHAUSTIVE else max(8, examples // 6)
