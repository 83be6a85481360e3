"""A reader without a lock in a directory that others write to."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, FileVanishedError
from lastword.partition import PartitionView, directory_segments
from lastword.partition.directory_segments import DirectorySegments
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.partition.logs import batch, build_batch, fill, make, opened, pair, records


def test_an_empty_directory(tmp_path: Path) -> None:
    view = PartitionView.load(DirectorySegments(UNSYNCED, make(tmp_path)))
    assert (view.log_start, view.log_end, view.segments, view.active) == (0, 0, (), None)
    assert records(view) == []
    with pytest.raises(FileVanishedError):
        PartitionView.load(DirectorySegments(UNSYNCED, str(tmp_path / "other-0")))


def test_a_view_is_a_snapshot_until_it_is_refreshed(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 5)
    views = [PartitionView.load(DirectorySegments(UNSYNCED, log.directory)), log.view()]
    fill(log, 20)
    for view in views:
        assert records(view) == [pair(n) for n in range(5)]
        view.refresh()
        assert records(view) == [pair(n) for n in range(25)]
        assert (view.topic, view.partition) == ("users", 0)


def test_a_log_without_an_index_takes_little_memory(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED, config=TopicConfig(index_interval_bytes=1 << 30))
    log.append_batches([batch((b"k", b"v"))] * 20_000)
    tracemalloc.start()
    try:
        assert PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).log_end == 20_000
        assert tracemalloc.get_traced_memory()[1] < 3 << 20  # all headers take 7 MiB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kept", [1, 2, directory_segments._WALKED])
def test_a_batch_that_is_half_there_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(directory_segments, "_WALKED", kept)
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 6)
    path, size = log.active.file, log.active.size
    log.append_batch(build_batch(6))
    whole = Path(path).read_bytes()
    for end in range(size, len(whole)):
        Path(path).write_bytes(whole[:end])
        view = PartitionView.load(DirectorySegments(UNSYNCED, log.directory))
        assert view.log_end == 6 and view.segments[-1].size == size
        Path(path).write_bytes(whole[:end] + bytes(len(whole) - end))
        assert PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).log_end in (6, 7)
    Path(path).write_bytes(whole)
    assert PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).log_end == 7


def test_damage_with_sound_batches_behind_it_is_an_error_not_an_end(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 6)
    good = Path(log.active.file).read_bytes()
    for field in (8, 16, 70):  # length, magic, a record
        bad = bytearray(good)
        bad[200 + field] ^= 0x55
        Path(log.active.file).write_bytes(bad)
        view = PartitionView.load(DirectorySegments(UNSYNCED, log.directory))
        assert view.log_end == 6
        if field != 70:
            with pytest.raises((CorruptBatchError, Exception)) as caught:
                records(view)
            assert getattr(caught.value, "position", None) == 200
        with pytest.raises(Exception) as caught:
            for _ in view.chunks(0):
                pass
        assert getattr(caught.value, "position", None) == 200


def test_a_closed_segment_that_was_emptied_is_damage(tmp_path: Path) -> None:
    """It looks like one that a cleaning left empty; but its index has entries."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 30)
    closed = log.segments[1]
    log.close()
    Path(closed.file).write_bytes(b"")
    view = PartitionView.load(DirectorySegments(UNSYNCED, log.directory))
    for read in (lambda: records(view), lambda: [*view.chunks(0)]):
        with pytest.raises(CorruptBatchError) as caught:
            read()
        assert (caught.value.code, caught.value.file) == ("emptied", closed.file)


def test_the_log_start_comes_from_the_roots_checkpoint(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 10)
    checkpoint = tmp_path / names.LOG_STARTS
    checkpoint.write_text("0\n2\nother 0 3\nusers 0 4\n")
    assert PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).log_start == 4
    for damaged in ("", "0\n1\nusers 0 99\n", "0\n7\nusers 0 4\n", "1\n0\n", "x", "0\n1\nusers 0 -4\n"):
        checkpoint.write_text(damaged)
        assert PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).log_start == 0


def test_a_segment_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 20)
    view = PartitionView.load(DirectorySegments(UNSYNCED, log.directory))
    path = view.segments[0].file
    copy = path + ".copy"
    Path(copy).write_bytes(Path(path).read_bytes())
    os.rename(copy, path)  # noqa: PTH104
    with pytest.raises(FileVanishedError):
        _ = view.segments[0].handle
    assert records(view) == [pair(n) for n in range(20)]


def test_unknown_names_are_ignored(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 3)
    for name in ("notes.txt", "x.log", "00000000000000000009.checkpoint", "00000000000000000002.log.tmp"):
        Path(log.directory, name).write_bytes(b"?")
    assert records(PartitionView.load(DirectorySegments(UNSYNCED, log.directory))) == [
        pair(n) for n in range(3)
    ]
