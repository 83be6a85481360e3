"""Several threads walk large segments after a kill, with the same result as one thread."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from lastword.errors import CorruptBatchError
from lastword.partition import recovery
from lastword.segment import recover
from tests.build import LogBuilder
from tests.support.damage import flip


def killed(root: Path) -> LogBuilder:
    log = LogBuilder(root).topic("users", cleanup_policy=frozenset({"delete"}))
    for number in range(400):
        log.put(number, "v" * 100, producer_id=number % 3, sequence=number // 3)
        if number % 50 == 49 and number < 399:
            log.roll()
    return log.abandon()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Make every walk use kernels and several threads; return the ids of the threads."""
    seen: set[int] = set()
    inspect = recovery.inspect

    def inspected(*arguments: Any, **more: Any) -> Any:
        seen.add(threading.get_ident())
        return inspect(*arguments, **more)

    monkeypatch.setattr(recovery, "inspect", inspected)
    monkeypatch.setattr(recovery, "SIDE_BY_SIDE_BYTES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(recover, "BULK_BYTES", 1)
    monkeypatch.setattr(recover, "LOADING_BYTES", 1)
    return seen


@pytest.mark.parametrize("torn", [0, 3, 77])
def test_the_same_log(tmp_path: Path, threads: set[int], monkeypatch: pytest.MonkeyPatch, torn: int) -> None:
    log = killed(tmp_path / "one")
    last = max(Path(log.directory).glob("*.log"))
    last.write_bytes(last.read_bytes()[: last.stat().st_size - torn])
    for extension in (".index", ".timeindex"):
        next(Path(log.directory).glob(f"*{extension}")).unlink()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    log.reopen()
    assert threads and threading.get_ident() not in threads
    threads.clear()
    monkeypatch.setattr(recovery, "SIDE_BY_SIDE_BYTES", 1 << 40)
    other = LogBuilder(tmp_path / "two").topic("users", cleanup_policy=frozenset({"delete"}))
    other.reopen()
    assert threads == {threading.get_ident()}
    assert log.recovery is not None and other.recovery is not None
    assert log.recovery == other.recovery and log.recovery.walked == 8
    assert log.tree() == other.tree()
    assert log.records() == other.records()


def test_damage_in_the_middle_keeps_it_closed(tmp_path: Path, threads: set[int]) -> None:
    log = killed(tmp_path)
    log.log.sync()
    log.abandon()
    damaged = sorted(Path(log.directory).glob("*.log"))[3]
    flip(damaged, 500)
    with pytest.raises(CorruptBatchError) as caught:
        log.reopen()
    assert caught.value.file == str(damaged) and threads
