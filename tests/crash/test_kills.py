"""Kill writers by SIGKILL at random moments; `make kills N=2000` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.errors import DataError
from tests.crash.kills import Oracle, forked, run_kills


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kills_of_forked_writers(tmp_path: Path, seed: int) -> None:
    total = run_kills(str(tmp_path), 15, seed=seed)
    assert total.kills == 15 and total.records > 0


@pytest.mark.slow
def test_kills_of_fresh_processes(tmp_path: Path) -> None:
    total = run_kills(str(tmp_path), 4, seed=99, fresh_every=2)
    assert total.kills == 4


def test_a_few_kills(tmp_path: Path) -> None:
    assert run_kills(str(tmp_path), 3, seed=50).kills == 3


def test_a_lost_batch_is_noticed(tmp_path: Path) -> None:
    """The oracle itself: the last acknowledged batch is cut off, and the oracle must find this."""
    oracle = Oracle()
    for seed in range(1, 20):
        oracle.heard(forked(f"{tmp_path}/d", seed, 0.05), seed)
        oracle.check(f"{tmp_path}/d")
        if oracle.acked:
            break
    last = [path for path in sorted((tmp_path / "d" / "users-0").glob("*.log")) if path.stat().st_size][-1]
    with last.open("r+b") as file:
        file.truncate(0)
    oracle.acked = oracle.begun
    with pytest.raises((AssertionError, DataError)):
        oracle.check(f"{tmp_path}/d")
