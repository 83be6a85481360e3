"""Index files with tails as Kafka leaves them, and with damage. tests/properties has the lookups."""

from __future__ import annotations

import importlib
import os
import random
import signal
import struct
import sys
from pathlib import Path

import pytest

from lastword.errors import FileVanishedError
from lastword.files import DEFAULT, OsFiles
from lastword.segment.indexes import (
    LOADED,
    NO_TIMESTAMP,
    IndexBuilder,
    LoadedIndexes,
    OffsetEntry,
    OffsetIndex,
    OffsetSearch,
    TimeEntry,
    TimeIndex,
    TimeSearch,
)

T = 1_700_000_000_000
OFFSETS = bytes.fromhex("00000005000010040000000a0000201e")
TIMES = bytes.fromhex("0000018bcfe56800000000050000018bcfe568090000000a")


def test_zero_tails_of_extended_files() -> None:
    offsets = OffsetIndex(OFFSETS + bytes(4096), 1000, 1 << 20)
    assert len(offsets) == 2 and offsets.zero_tail_bytes == 4096 and not offsets.damaged
    times = TimeIndex(TIMES + bytes(4092), 1000)
    assert len(times) == 2 and times.zero_tail_bytes == 4092 and not times.damaged
    assert len(OffsetIndex(bytes(4096), 0, 1 << 20)) == 0
    assert len(TimeIndex(bytes(4092), 0)) == 0
    assert OffsetIndex(b"", 7, 0).last == OffsetEntry(7, 0)
    assert TimeIndex(b"", 7).last == TimeEntry(-1, 7)


def test_damage_ends_the_entries() -> None:
    beyond = OffsetIndex(OFFSETS, 1000, 8222)
    assert len(beyond) == 1 and beyond.damaged
    assert OffsetIndex(OFFSETS + b"\x01\x02", 1000, 1 << 20).damaged
    assert len(OffsetIndex(b"\xff" * 80, 0, 1 << 20)) == 0


def test_without_timestamps_the_time_index_stays_empty() -> None:
    builder = IndexBuilder(0, 0)
    for number in range(8):
        builder.batch(71 * number, number, -1)
    builder.finish()
    assert builder.time_entries == b"" and len(builder.offset_entries) == 7 * 8


def rising(chance: random.Random, count: int, least: int = 1) -> list[int]:
    """Return numbers that ascend strictly."""
    value, numbers = least - 1, []
    for _ in range(count):
        value += chance.choice([1, 1, 2, 50])
        numbers.append(value)
    return numbers


@pytest.mark.parametrize("tail", [b"", b"\0\0\0\0\1", bytes(4096)])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 300])
def test_an_offset_search_in_the_file_is_like_one_in_memory(tmp_path: Path, count: int, tail: bytes) -> None:
    chance = random.Random(count)
    offsets, positions = rising(chance, count, 0), rising(chance, count)
    path = tmp_path / "00.index"
    path.write_bytes(b"".join(map(struct.Struct(">ii").pack, offsets, positions)) + tail)
    most = max(positions, default=0)
    for log_size in (most + 100, most, most // 2, 0):
        index = OffsetIndex(path.read_bytes(), 1000, log_size)
        search = OffsetSearch.in_file(DEFAULT.open_read(path), 1000, log_size)
        assert (len(search), search.size_bytes, search.last) == (len(index), index.size_bytes, index.last)
        for offset in range(995, 1000 + max(offsets, default=0) + 5):
            assert search.lookup(offset) == index.lookup(offset)
            assert search.around(offset) == index.around(offset)
            assert search.find(offset) == index.find(offset)
        for position in range(most + 5):
            assert search.number_at(position) == index.number_at(position)


@pytest.mark.parametrize("tail", [b"", b"\0\0\0\0\1", bytes(4092)])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 300])
def test_a_time_search_in_the_file_is_like_one_in_memory(tmp_path: Path, count: int, tail: bytes) -> None:
    chance = random.Random(count)
    times, offsets = rising(chance, count), sorted(chance.choices(range(500), k=count))
    path = tmp_path / "00.timeindex"
    path.write_bytes(b"".join(map(struct.Struct(">qi").pack, times, offsets)) + tail)
    index = TimeIndex(path.read_bytes(), 1000)
    search = TimeSearch.in_file(DEFAULT.open_read(path), 1000)
    assert (len(search), search.last) == (len(index), index.last)
    for time in range(-2, max(times, default=0) + 5):
        assert search.lookup(time) == index.lookup(time)


def test_a_time_entry_above_the_next_one_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "00.timeindex"
    path.write_bytes(b"".join(map(struct.Struct(">qi").pack, (5, 6, 7), (10, 99, 30))))
    search = TimeSearch.in_file(DEFAULT.open_read(path), 1000)
    assert [search.lookup(time) for time in (5, 6, 7)] == [(5, 1010), (-1, 1000), (7, 1030)]


def test_a_file_that_vanished_has_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00.index"
    path.write_bytes(OFFSETS)
    handle = DEFAULT.open_read(path)
    search = OffsetSearch.in_file(handle, 1000, 1 << 20)
    assert search.lookup(1007) == OffsetEntry(1005, 4100)

    def vanished(n: int, position: int) -> bytes:
        raise FileVanishedError("gone")

    monkeypatch.setattr(handle, "pread", vanished)
    assert search.lookup(1007).position == search.last.position == 0
    monkeypatch.setattr(handle, "pread", lambda n, position: b"")
    assert search.lookup(1007).position == search.last.position == 0


def test_a_file_that_vanished_before_its_size_was_read_has_no_entry(tmp_path: Path) -> None:
    """Other files took the only descriptor meanwhile, so the handle had to open its file again."""
    files, names = OsFiles(max_open=1), ("00.index", "other")
    for name in names:
        (tmp_path / name).write_bytes(OFFSETS)
    handle = files.open_read(tmp_path / "00.index")
    other = files.open_read(tmp_path / "other")
    (tmp_path / "00.index").unlink()
    assert len(OffsetSearch.in_file(handle, 1000, 1 << 20)) == 0
    assert TimeSearch.in_file(handle, 1000).last == TimeEntry(NO_TIMESTAMP, 1000)
    other.close()


def test_the_order_is_checked_with_numpy_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("numpy")
    chance = random.Random(3)
    for swapped in (None, 1, 1500, 1999):
        offsets, positions = rising(chance, 2000), rising(chance, 2000)
        if swapped is not None:
            column = chance.choice([offsets, positions])
            column[swapped - 1], column[swapped] = column[swapped], column[swapped - 1]
        data = b"".join(map(struct.Struct(">ii").pack, offsets, positions))
        with_numpy = OffsetIndex(data, 0, 1 << 30)
        with monkeypatch.context() as without:
            without.delitem(sys.modules, "numpy")
            index = OffsetIndex(data, 0, 1 << 30)
        assert list(with_numpy.entries()) == list(index.entries())
        assert len(index) == (2000 if swapped is None else swapped)


def test_the_first_loaded_are_dropped_first() -> None:
    one = OffsetIndex(OFFSETS, 0, 1 << 20)
    loaded = LoadedIndexes(3 * one.memory_bytes)
    kept = [loaded.keep(OffsetIndex(OFFSETS, base, 1 << 20)) for base in range(5)]
    read = kept[2]()
    kept.append(loaded.keep(TimeIndex(TIMES, 5)))
    kept.append(loaded.keep(OffsetIndex(OFFSETS, 6, 1 << 20)))
    assert read is not None and read.last.offset == 12  # a reader has it
    assert [index() is not None for index in kept] == [False, False, True, False, True, True, True]
    del read
    assert kept[2]() is None
    assert 0 < loaded.bytes <= loaded.limit_bytes


def test_a_process_that_forked_meanwhile_loads_indexes() -> None:
    with LOADED._lock:  # as of another thread
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)  # ends the child if it waits for the lock
            LOADED.keep(OffsetIndex(OFFSETS, 0, 1 << 20))
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
