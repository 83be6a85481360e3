"""6P: the offset index. Our index is read as a whole and grows with the log. Kafka's index file has a
fixed size and can be full, trimmed and grown again; our log rolls instead, and index files have only
entries."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from lastword.segment import Segment, names
from lastword.segment.indexes import OffsetEntry, OffsetIndex
from tests.properties.support import T, batch, opened, partition, write_segment

BASE = 45
HUGE = 1 << 30


def index_of(*entries: tuple[int, int], base: int = BASE) -> OffsetIndex:
    data = b"".join(struct.pack(">ii", offset - base, position) for offset, position in entries)
    return OffsetIndex(data, base, HUGE)


def some_entries(count: int) -> list[tuple[int, int]]:
    rng = random.Random(7)
    offsets_, positions = rng.sample(range(BASE + 1, BASE + 500), count), rng.sample(range(1, 9000), count)
    return list(zip(sorted(offsets_), sorted(positions), strict=True))


def index_bytes(segment: Segment) -> bytes:
    return Path(segment.stored.path(names.INDEX)).read_bytes()


@pytest.mark.parametrize(
    "entries",
    [
        [],
        some_entries(40),
        [(BASE + number, number) for number in range(1, 1281)],
        [(BASE, 71), (BASE + 1, 142)],
    ],
    ids=["empty", "gaps", "10 KiB", "base offset"],
)
def test_6P_191_192_193_200_present_and_absent_offsets(entries: list[tuple[int, int]]) -> None:
    """6P.191: A lookup in an empty index returns the base offset at position 0.
    6P.192: A lookup of an offset returns the entry with the greatest offset that is not above it; below
    the first entry, the base offset at position 0.
    6P.193: The first and the last entry of a full index are found.
    6P.200: An entry with the segment's base offset is valid.
    """
    index = index_of(*entries)
    for offset in (0, *range(BASE - 3, BASE + 520), BASE + 1280, 1 << 40):
        below = [entry for entry in entries if entry[0] <= offset]
        assert index.lookup(offset) == OffsetEntry(*(below[-1] if below else (BASE, 0)))
    assert index.last == OffsetEntry(*(entries[-1] if entries else (BASE, 0)))
    assert len(index) == len(entries) and not index.damaged


def test_6P_194_entries_by_number() -> None:
    """6P.194: An entry is read by its number; a number out of range is an error."""
    entries = some_entries(10)
    index = index_of(*entries)
    assert list(index.entries()) == [OffsetEntry(*e) for e in entries]
    assert index.positions() == [position for _, position in entries]
    with pytest.raises(IndexError):
        index.positions()[10]


@pytest.mark.parametrize("offset", [50, 49, 45])
def test_6P_196_offsets_rise(tmp_path: Path, offset: int) -> None:
    """6P.196: An append of an offset that is not higher than the last is an error.

    In an index file, such an entry and all entries after it are not used. Recovery does not write such an
    entry, because a batch whose offset is not higher ends the log.
    """
    index = index_of((50, 100), (offset, 200), (60, 300))
    assert list(index.entries()) == [OffsetEntry(50, 100)] and index.damaged
    data = batch(45, b"a", b"b") + batch(50, b"a") + batch(offset, b"a")
    segment = write_segment(tmp_path, BASE, data)
    assert segment.next_offset == 51 and [e.offset for e in segment.offset_index.entries()] == [50]


def test_6P_197_where_a_fetch_ends(tmp_path: Path) -> None:
    """6P.197: The upper bound of a fetch is the first entry past the requested bytes.

    Here: A read ends at a given offset, and the exact position of this offset is used. Kafka estimates the
    upper bound from the index.
    """
    data = [batch(n, b"x" * n) for n in range(5)]
    segment = write_segment(tmp_path, 0, b"".join(data))
    for offset in range(7):
        assert segment.end_position_of(offset) == sum(map(len, data[:offset]))
    empty = write_segment(tmp_path / "other", 0, b"")
    assert empty.end_position_of(0) == empty.end_position_of(9) == 0


def test_6P_198_entries_survive_closing_and_more_follow(tmp_path: Path) -> None:
    """6P.198: Entries survive closing and opening; an append to a trimmed index fails.

    Here: An index file has only entries, and takes more entries after it is opened.
    """
    directory = partition(tmp_path)
    log, _ = opened(directory)
    for _ in range(5):
        log.append_batch(batch(0, b"a"))
    before, last = index_bytes(log.active), log.active.offset_index.last
    assert log.close()
    log, recovery = opened(directory, clean=True)
    assert index_bytes(log.active) == before and log.active.offset_index.last == last
    assert recovery.repaired == () and len(before) == 4 * 8
    log.append_batch(batch(0, b"a"))
    assert index_bytes(log.active)[:-8] == before
    assert log.active.offset_index.last.offset == 5
    log.abandon()


@pytest.mark.parametrize("offset", range(12))
def test_6P_199_truncation(tmp_path: Path, offset: int) -> None:
    """6P.199: Truncation at an entry removes it and those above; past the end it changes nothing; a full
    truncation leaves no entry. Appending works afterwards.
    6Q.202: Truncation, also to the first offset, empties the index.
    6S.223: After a truncation the largest timestamp and the next offset are computed again.
    """
    log, _ = opened(partition(tmp_path))
    times = [10, 30, 20, 50, 40, 60, 55, 80, 70]
    for time in times:
        log.append_batch(batch(0, b"a", timestamp=T + time))
    entries = list(log.active.offset_index.entries())
    time_entries = list(log.active.time_index.entries())
    assert [e.offset for e in time_entries] == [1, 3, 5, 7]
    assert [e.offset for e in entries] == list(range(1, 9))
    log.truncate_to(offset)
    kept = [e for e in entries if e.offset < offset]
    assert list(log.active.offset_index.entries()) == kept
    assert len(index_bytes(log.active)) == 8 * len(kept)
    assert list(log.active.time_index.entries()) == [e for e in time_entries if e.offset < offset]
    assert log.active.largest_timestamp == (T + max(times[:offset]) if offset else -1)
    assert log.active.next_offset == log.log_end == min(offset, 9)
    log.append_batch(batch(0, b"a"))
    log.append_batch(batch(0, b"a"))
    end = min(offset, 9)
    assert [e.offset for e in log.active.offset_index.entries()] == list(range(1, end + 2))
    log.abandon()


def test_full_truncation(tmp_path: Path) -> None:
    log, _ = opened(partition(tmp_path))
    for _ in range(4):
        log.append_batch(batch(0, b"a"))
    log.truncate_fully_and_start_at(2)
    assert len(log.active.offset_index) == 0 and index_bytes(log.active) == b""
    log.append_batches([batch(0, b"a")] * 3)
    assert [e.offset for e in log.active.offset_index.entries()] == [3, 4]
    log.abandon()
