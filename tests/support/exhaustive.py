"""The size of an exhaustive proof: a sample, or every case in `make exhaustive`."""

from __future__ import annotations

import os


def stride(sampled: int) -> int:
    """Return the step between two cases: `sampled`, or 1 where LASTWORD_EXHAUSTIVE is set."""
    return 1 if os.environ.get("LASTWORD_EXHAUSTIVE") else sampled


def third(examples: int) -> int:
    """Return a third of the examples of a property, or all where LASTWORD_EXHAUSTIVE is set."""
    return examples // stride(3)
