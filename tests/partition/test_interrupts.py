"""A change of a log that is interrupted (Ctrl-C): the process goes on with the log, or opens it again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lastword.errors import StorageError
from lastword.files import Handle, OsFiles
from lastword.files.real import OsHandle
from lastword.partition import PartitionLog
from lastword.partition.named import Journal, Part, WholeCall
from lastword.testing.unsynced import UNSYNCED
from tests.partition.logs import batch, compacted, fill, indexes_fit, leftovers, make, opened, pair, records


@contextmanager
def interrupted(owner: type, name: str, *, of: Callable[[Any], bool] = lambda _: True) -> Iterator[None]:
    """Raise KeyboardInterrupt behind the first call of a method whose object or path fits."""
    real = getattr(owner, name)
    calls: list[object] = []

    def call(self: Any, *args: Any, **more: Any) -> Any:
        result = real(self, *args, **more)
        if not calls and of(self.path if isinstance(self, Handle) else args[0]):
            calls.append(args)
            raise KeyboardInterrupt
        return result

    setattr(owner, name, call)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        setattr(owner, name, real)


def is_whole(log: PartitionLog) -> bool:
    """Return whether the log has each of its records once, before and after it is opened again."""
    want = [pair(number) for number in range(log.log_end)]
    here = records(log) == want and indexes_fit(log)
    assert log.close()
    again, _ = opened(log.directory, clean=True, recovery_point=log.log_end)
    try:
        return here and records(again) == want and indexes_fit(again)
    finally:
        again.close()


@pytest.mark.parametrize("extension", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("single", [False, True])
def test_an_append_is_taken_back(extension: str, single: bool, tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path))
    fill(log, 2)

    def append() -> None:
        number = log.log_end
        _, key, value = pair(number)
        timestamp = 1_700_000_000_000 + 1000 * number
        if not single or log.append_single(key, value, timestamp, 1 << 20) is None:
            fill(log, 1)

    with interrupted(OsHandle, "append", of=lambda path: path.endswith(extension)):
        while True:
            append()
    for _ in range(9):
        append()
    assert is_whole(log)


def test_a_roll_that_waits_for_the_drive_goes_on(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path))
    fill(log, 3)
    with interrupted(OsHandle, "fsync", of=lambda path: path.endswith(".log")):
        log.roll()
    fill(log, 3)
    log.roll()
    fill(log, 1)
    assert is_whole(log)


def test_a_log_with_half_of_a_new_segment_takes_no_batch(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path))
    fill(log, 3)
    with interrupted(OsFiles, "open_append", of=lambda path: path.endswith("3.index")):
        log.roll()
    with pytest.raises(StorageError, match="interrupted") as refusal:
        fill(log, 1)
    assert "open it again" in refusal.value.remedy
    log.abandon()
    log, _ = opened(log.directory)
    fill(log, 3)
    assert is_whole(log)


def test_a_swap_is_finished(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path))
    fill(log, 20)
    sources = list(log.segments[:2])
    output = compacted(log, sources)
    with interrupted(OsFiles, "rename", of=lambda path: path.endswith(".swap")):
        log.replace(sources, output)
    fill(log, 1)
    assert leftovers(log.directory) == []
    assert records(log)[-1] == pair(20)
    log.abandon()


def test_names_that_were_not_synced_are_synced_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened(make(tmp_path))
    fill(log, 1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def interrupt(self: OsFiles, path: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(OsFiles, "fsync_dir", interrupt)
        log.sync()
    synced: list[str] = []
    monkeypatch.setattr(OsFiles, "fsync_dir", lambda self, path: synced.append(str(path)))
    log.sync()
    assert log.directory in synced
    log.abandon()


def test_a_log_whose_producers_are_not_noted_takes_no_batch(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path))
    fill(log, 1)
    with interrupted(OsHandle, "append"):
        log.append_batch(batch((b"k", b"v"), producer_id=7))
    with pytest.raises(StorageError, match="interrupted"):
        log.append_batch(batch((b"k", b"v"), producer_id=7))
    log.abandon()
    log, _ = opened(log.directory)
    log.append_batch(batch((b"k", b"v"), producer_id=7))
    assert log.log_end == 2
    log.abandon()


def test_a_line_of_a_journal_is_taken_back(tmp_path: Path) -> None:
    """Else the journal ends below its last line, which is cut after the next failed write."""
    directory = make(tmp_path)
    journal = Journal(UNSYNCED, directory, random.Random(1))
    producer = journal.name("loader")
    with interrupted(OsHandle, "append"):
        journal.add(producer, WholeCall(1, {0: Part(1, 0)}), sync=False)
    journal.add(producer, WholeCall(1000, {0: Part(1, 0)}), sync=False)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(5, "planted")))
        journal.add(producer, WholeCall(1001, {0: Part(2, 1)}), sync=False)
    journal.add(producer, WholeCall(1001, {0: Part(2, 1)}), sync=False)
    again = Journal(UNSYNCED, directory, random.Random(1)).producers["loader"]
    assert [call.sequence for call in again.calls] == [1000, 1001]
