"""Zeros behind a log whose small appends are synced: when they are written, and that they are no damage."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from lastword.errors import DiskFullError, LastwordError, StorageError
from lastword.files import OsFiles
from lastword.partition import PartitionLog, PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import CurrentView
from lastword.segment import append, names
from lastword.testing.unsynced import UNSYNCED
from lastword.tools.findings import Findings
from lastword.tools.verify import _verify_tail
from tests.fakes import RecordingFiles
from tests.fakes.recording import Call
from tests.partition.logs import NOW, SMALL, batch, build_batch, fill, make, opened, pair, records

LARGE = dataclasses.replace(SMALL, segment_bytes=1 << 20)


def synced(log: PartitionLog, count: int) -> None:
    """Append batches, and sync each of them."""
    for _ in range(count):
        fill(log, 1)
        log.sync()


def zeros_of(log: PartitionLog) -> int:
    """Return the number of bytes behind the log's end, which must be zeros."""
    tail = Path(log.active.file).read_bytes()[log.active.size :]
    assert not tail.strip(b"\0")
    return len(tail)


def view_of(log: PartitionLog, files: Any = None) -> PartitionView:
    return PartitionView.load(DirectorySegments(files or OsFiles(), log.directory))


def test_small_synced_appends_are_written_over_zeros(tmp_path: Path) -> None:
    files = RecordingFiles(OsFiles())
    log, _ = opened(make(tmp_path), files=files, config=LARGE)
    synced(log, 1)
    assert zeros_of(log) == 0, "a single append leaves none"
    synced(log, 1)
    assert zeros_of(log) == append.PAGE_BYTES
    size = Path(log.active.file).stat().st_size
    before = len(files.calls)
    synced(log, 20)
    calls = [c.name for c in files.calls[before:] if c.path == log.active.file and c.changes]
    assert calls == ["pwrite", "fsync"] * 20, "one write and one sync for each append"
    assert Path(log.active.file).stat().st_size == size
    synced(log, 2000)
    assert 0 < zeros_of(log) <= append.ZEROED_BYTES
    assert records(log) == [pair(n) for n in range(2022)]


def test_other_appends_leave_no_zeros(tmp_path: Path) -> None:
    """Unsynced and large appends do not write zeros, and large ones use up those that are there."""
    log, _ = opened(make(tmp_path), config=LARGE)
    fill(log, 10)
    log.sync()
    fill(log, 10)
    assert zeros_of(log) > 0, "the last sync was small"
    log.append_batch(batch((b"large", bytes(append.PAGE_BYTES + 100))))
    assert zeros_of(log) == 0, "it ends behind the zeros"
    log.sync()
    synced(log, 1)
    assert zeros_of(log) == 0, "the last sync was large"
    unsynced, _ = opened(make(tmp_path / "unsynced"), files=UNSYNCED, config=LARGE)
    synced(unsynced, 5)
    assert zeros_of(unsynced) == 0, "a sync that does nothing is not made faster"


def test_no_closed_segment_and_no_closed_log_has_zeros(tmp_path: Path) -> None:
    """A broker trusts a log that was closed cleanly: it would append behind the zeros."""
    directory = make(tmp_path)
    log, _ = opened(directory)
    synced(log, 30)
    assert len(log.segments) > 3
    for segment in log.segments[:-1]:
        assert Path(segment.file).stat().st_size == segment.size
    synced(log, 2)
    file, size = log.active.file, log.active.size
    assert zeros_of(log) > 0 and log.close()
    assert Path(file).stat().st_size == size
    again, recovery = opened(directory, clean=True, recovery_point=32)
    assert recovery.repaired == () and records(again) == [pair(n) for n in range(32)]


def test_the_size_without_zeros_is_synced_before_the_clean_stop(tmp_path: Path) -> None:
    files = RecordingFiles(OsFiles())
    log, _ = opened(make(tmp_path), files=files, config=LARGE)
    synced(log, 3)
    file, before = log.active.file, len(files.calls)
    log.close()
    calls = [c.name for c in files.calls[before:] if c.path == file and c.changes]
    assert calls == ["truncate", "fsync"]


@pytest.mark.parametrize("unsynced", [0, 1, 7])
def test_a_killed_writer_leaves_zeros_that_are_no_damage(tmp_path: Path, unsynced: int) -> None:
    directory = make(tmp_path)
    log, _ = opened(directory, config=LARGE)
    synced(log, 9)
    fill(log, unsynced)
    assert zeros_of(log) > 0
    log.abandon()
    view = view_of(log)
    assert records(view) == [pair(n) for n in range(9 + unsynced)] and view.damage is None
    findings = Findings()
    _verify_tail(OsFiles(), view, findings)
    assert findings.problems == []
    again, recovery = opened(directory, config=LARGE)
    assert [repair.code for repair in recovery.repaired] in ([], ["index"])
    assert recovery.cut_bytes == 0 and zeros_of(again) == 0
    fill(again, 1)
    assert records(again) == [pair(n) for n in range(10 + unsynced)]


def test_a_synced_batch_that_became_zeros_is_damage(tmp_path: Path) -> None:
    directory = make(tmp_path)
    log, _ = opened(directory, config=LARGE)
    synced(log, 9)
    last = list(log.active.headers())[-1]
    log.abandon()
    with Path(log.active.file).open("r+b") as file:
        file.seek(last.position)
        file.write(bytes(last.size))
    with pytest.raises(LastwordError, match="the log ends at offset 8, it was synced up to 9"):
        opened(directory, config=LARGE)
    damage = view_of(log).damage
    assert damage is not None and damage.offset == 8


def test_a_reader_finds_what_is_appended_over_zeros(tmp_path: Path) -> None:
    """The size of the file does not change, so it cannot show that the log has grown."""
    log, _ = opened(make(tmp_path), config=LARGE)
    synced(log, 5)
    store = DirectorySegments(OsFiles(), log.directory)
    current = CurrentView(PartitionView.load(store), lambda: PartitionView.load(store))
    sizes = set()
    for number in range(5, 60):
        view = current.get()
        assert current.get() is view and view.is_current(), "nothing was appended"
        assert view.log_end == number and len(records(view)) == number
        synced(log, 1)
        sizes.add(Path(log.active.file).stat().st_size)
        assert not view.is_current()
    assert len(sizes) == 2, "only two of the 55 appends changed the size"


def test_half_of_an_append_over_zeros_changes_no_view(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), config=LARGE)
    synced(log, 5)
    view, position = view_of(log), log.active.size
    fill(log, 1)
    path = Path(log.active.file)
    whole = path.read_bytes()
    end = log.active.size
    for written in range(position, end):
        path.write_bytes(whole[:written] + bytes(len(whole) - written))
        is_whole = not whole[written:end].strip(b"\0")
        assert view.is_current() == (not is_whole)
        assert view_of(log).log_end == (6 if is_whole else 5)
    path.write_bytes(whole)
    assert not view.is_current()


def test_a_view_of_one_moment_outlives_the_zeros(tmp_path: Path) -> None:
    """The file gets shorter when the log is closed; a descriptor that was evicted is opened again."""
    log, _ = opened(make(tmp_path), config=LARGE)
    synced(log, 9)
    files = OsFiles(max_open=1)
    view = view_of(log, files).held(0)
    log.close()
    with files.open_read(log.active.file):
        pass
    assert records(view) == [pair(n) for n in range(9)]


def test_zeros_for_which_there_is_no_room_are_left_out(tmp_path: Path) -> None:
    full: list[Call] = []

    def fail(call: Call) -> LastwordError | None:
        if call.name != "pwrite" or not call.path.endswith(names.LOG):
            return None
        full.append(call)
        return DiskFullError.of("log", "d", append.PAGE_BYTES, 0, call.path)

    log, _ = opened(make(tmp_path), files=RecordingFiles(OsFiles(), fail=fail), config=LARGE)
    synced(log, 5)
    assert len(full) == 4 and zeros_of(log) == 0
    assert records(log) == [pair(n) for n in range(5)]


@pytest.mark.parametrize("again", [False, True])
def test_a_failed_write_over_zeros_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Two batches are written and the write fails behind the second: none of them may be found later."""
    directory = make(tmp_path)
    log, _ = opened(directory, config=LARGE)
    synced(log, 5)
    real, cut = os.pwrite, os.ftruncate

    def pwrite(fd: int, data: Any, position: int) -> int:
        real(fd, data, position)
        raise OSError(errno.EIO, "Input/output error")

    def ftruncate(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", pwrite)
    if again:
        monkeypatch.setattr(os, "ftruncate", ftruncate)
    with pytest.raises(StorageError):
        log.append_batch(batch((b"a", b"1"), (b"b", b"2")))
    monkeypatch.setattr(os, "pwrite", real)
    if again:
        with pytest.raises(StorageError):
            fill(log, 1)
        monkeypatch.setattr(os, "ftruncate", cut)
    assert records(log) == [pair(n) for n in range(5)]
    synced(log, 3)
    assert records(log)[-1] == pair(7)
    log.abandon()
    again_log, recovery = opened(directory, config=LARGE)
    assert recovery.cut_bytes == 0 and records(again_log) == [pair(n) for n in range(8)]


@pytest.mark.parametrize("single", [False, True])
def test_nothing_is_appended_behind_a_torn_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, single: bool
) -> None:
    """The drive is full, and the file cannot be cut back either: the next append must not follow the rest."""
    log, _ = opened(make(tmp_path), config=LARGE)
    fill(log, 1)
    log.append_single(b"key", b"value", NOW, 1 << 20)
    log.sync()
    real, cut = os.pwrite, os.ftruncate

    def pwrite(fd: int, data: Any, position: int) -> int:
        if len(data) < append.PAGE_BYTES:
            return real(fd, data, position)
        real(fd, data[:50], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    def ftruncate(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def one_more() -> None:
        if not single or log.append_single(b"key", b"value", NOW, 1 << 20) is None:
            fill(log, 1)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "ftruncate", ftruncate)
    for _ in range(2):
        with pytest.raises((DiskFullError, StorageError)):
            one_more()
    monkeypatch.setattr(os, "pwrite", real)
    monkeypatch.setattr(os, "ftruncate", cut)
    one_more()
    assert log.log_end == 3 and len(records(view_of(log))) == 3


def test_zeros_do_not_pass_the_largest_size_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker opens no larger file, and neither does recovery."""
    monkeypatch.setattr(names, "MAX_FILE_BYTES", 1000)
    log, _ = opened(make(tmp_path), config=LARGE)
    for _ in range(9):
        synced(log, 1)
        assert Path(log.active.file).stat().st_size <= 1000


def test_a_log_that_is_cut_has_no_zeros(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), config=LARGE)
    synced(log, 9)
    log.truncate_to(4)
    assert zeros_of(log) == 0 and records(log) == [pair(n) for n in range(4)]
    log.append_batch(build_batch(4))
    synced(log, 4)
    assert records(log) == [pair(n) for n in range(9)]
