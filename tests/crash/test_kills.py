"""Kill writers by SIGKILL at random moments; `make kills N=2000` runs more."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

import pytest

from lastword.api import transaction
from lastword.api.transaction import Committer
from lastword.errors import DataError
from lastword.partition import PartitionLog, PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.records.batch import read_records
from tests.crash.kills import Oracle, forked, run_kills
from tests.crash.transaction_kills import run_kills as run_transaction_kills
from tests.fakes.hasty import HastyFiles
from tests.support.exhaustive import stride


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4)[:: stride(2)])
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
    """The oracle itself: the newest batch with a value is cut off, and the oracle must find this.

    A cleaning may remove a tombstone, and a segment may have nothing else: its loss is none.
    """
    oracle = Oracle()
    for seed in range(1, 40):
        oracle.heard(forked(f"{tmp_path}/d", seed, 0.05), seed)
        oracle.check(f"{tmp_path}/d")
        view = PartitionView.load(DirectorySegments(HastyFiles(), f"{tmp_path}/d/users-0"))
        with_value = [
            segment.file
            for segment, header, data in view.batches(view.log_start)
            if any(record.value for record in read_records(data, header, segment.file, position=0))
        ]
        if with_value:
            break
    oracle.acked = view.log_end
    os.truncate(with_value[-1], 0)
    with pytest.raises((AssertionError, DataError)):
        oracle.check(f"{tmp_path}/d")


@pytest.mark.slow
def test_kills_of_transactions(tmp_path: Path) -> None:
    total = run_transaction_kills(str(tmp_path / "data"), 4, seed=7)
    assert total.kills == total.recovered == 4 and total.transactions


@pytest.mark.slow
def test_a_lost_transaction_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: an opening that aborts what was decided loses it."""
    real, markers = Committer._end, count()

    def killed(self: Committer, log: PartitionLog, marker: bytes) -> None:
        if next(markers):  # the first one is in the log
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, log, marker)

    monkeypatch.setattr(transaction, "newest_states", lambda dirs: {})
    monkeypatch.setattr(Committer, "_end", killed)
    with pytest.raises(AssertionError, match="half of a transaction"):
        run_transaction_kills(str(tmp_path / "data"), 2, seed=7)
