"""Processes over one log in a bucket (processes.py), in a small size."""

from __future__ import annotations

import pytest

from tests.bucket.processes import run_kills


@pytest.mark.slow
def test_processes_that_are_killed() -> None:
    """Nothing acknowledged is lost, and no named batch is there twice."""
    total = run_kills(kills=3, seconds=0.8, seed=1, writers=2, cleaners=1, readers=1)
    assert total.kills == 3 and total.batches and total.cleanings and total.reads and not total.errors
