"""6Q: the time index."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lastword.segment import names
from lastword.segment.indexes import TIME_ENTRY_BYTES, IndexBuilder, TimeEntry, TimeIndex
from tests.properties.support import CONFIG, T, batch, opened, partition

BASE = 45


def index_of(*entries: tuple[int, int], base: int = BASE) -> TimeIndex:
    return TimeIndex(b"".join(struct.pack(">qi", t, o - base) for t, o in entries), base)


def test_6Q_201_lookup() -> None:
    """6Q.201: A lookup by time returns the entry with the greatest timestamp that is not above it; below
    the first entry, or in an empty index, -1 and the base offset.
    """
    empty = index_of()
    assert empty.lookup(100) == TimeEntry(-1, BASE)
    index = index_of(*[(n * 10, BASE + n) for n in range(1, 30)])
    assert index.lookup(9) == TimeEntry(-1, BASE)
    assert index.lookup(10) == TimeEntry(10, BASE + 1)
    assert index.lookup(25) == TimeEntry(20, BASE + 2)
    assert index.lookup(30) == TimeEntry(30, BASE + 3)
    assert index.lookup(10_000) == index.last == TimeEntry(290, BASE + 29)


def test_6Q_203_a_slot_is_kept_for_the_last_entry(tmp_path: Path) -> None:
    """6Q.203: An index that is full, with one reserved slot, refuses an entry; a lower offset is an error; a
    valid entry is accepted.

    Here: The log rolls instead.

    With room for five entries, the log rolls at four; the roll writes the fifth.
    """
    room = 5 * TIME_ENTRY_BYTES
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_index_bytes=room))
    for number in range(40):
        log.append_batch(batch(0, b"a", timestamp=T + number))
    closed = [Path(s.stored.path(names.TIME_INDEX)).stat().st_size for s in log.segments[:-1]]
    assert len(closed) > 5 and max(closed) <= room
    for segment in log.segments[:-1]:
        assert segment.time_index.last == TimeEntry(T + segment.next_offset - 1, segment.next_offset - 1)
    log.abandon()


def test_times_rise_and_offsets_do_not_fall() -> None:
    """The writer adds only valid entries. In a file, an invalid entry and those after it are not used."""
    builder = IndexBuilder(0, 0)
    for number, timestamp in enumerate((5, 5, 4, 7, -1, 7, 9)):
        builder.batch(100 * number, number, timestamp)
    builder.finish()
    assert list(struct.iter_unpack(">qi", builder.time_entries)) == [(5, 0), (7, 3), (9, 6)]
    for wrong in ((10, 44), (10, 45), (9, 60)):
        index = index_of((10, 50), wrong, (99, 99))
        assert list(index.entries()) == [TimeEntry(10, 50)] and index.damaged
    assert len(index_of((10, 50), (11, 50))) == 2


@pytest.mark.parametrize(("room", "entries"), [(12 * 3, 2), (12 * 3 + 11, 2), (12 * 8, 7)])
def test_6Q_204_full_is_one_less_than_fits(tmp_path: Path, room: int, entries: int) -> None:
    """6Q.204: An index is full when it has room for only one more entry."""
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_index_bytes=room))
    number = 0
    while len(log.segments) == 1:
        log.append_batch(batch(0, b"a", timestamp=T + number))
        number += 1
    # appends write `entries` entries; the roll before the next batch writes one into the reserved slot
    assert number == min(entries, room // 8) + 2
    log.abandon()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">qi", 10, -1),
        struct.pack(">qiqi", 10, 1, 9, 2),
        struct.pack(">qi", 10, 1) + b"\x01",
        struct.pack(">qi", -5, 1),
    ],
)
def test_6Q_205_what_cannot_be_is_damage(data: bytes) -> None:
    """6Q.205: A last offset below the base, a last timestamp below the first and a length that is no multiple
    of 12 fail the check of an index.

    Here: Such damage is found when the index is read, and is never an error. Lookups use the entries before
    the damage, and check the result in the log.
    """
    assert TimeIndex(data, BASE).damaged
    assert TimeIndex(data, BASE).last in (TimeEntry(-1, BASE), TimeEntry(10, BASE + 1))


def test_6Q_206_the_last_entry() -> None:
    """6Q.206: The last entry of an empty index is -1 and the base offset; each append updates it."""
    index = index_of()
    assert index.last == TimeEntry(-1, BASE)
    for number in range(1, 4):
        index.extend(struct.pack(">qi", 100 * number, number))
        assert index.last == TimeEntry(100 * number, BASE + number)


def test_6Q_207_files_hold_their_entries_only(tmp_path: Path) -> None:
    """6Q.207: Resizing an index to its own size does nothing.
    6U.284: The indexes of a rolled segment are trimmed to their entries, and grow again after a truncation.

    Here: There is nothing to resize: index files have only entries, and grow by entries.

    Here: Index files are never larger than their entries.

    A broker's index file that is extended by zeros is trimmed to its entries when the log is opened to write.
    Before that, a reader ignores the zeros.
    """
    directory = partition(tmp_path)
    log, _ = opened(directory)
    for number in range(5):
        log.append_batch(batch(0, b"a", timestamp=T + number))
    path = Path(log.active.stored.path(names.TIME_INDEX))
    data = path.read_bytes()
    assert len(data) == 4 * TIME_ENTRY_BYTES
    log.abandon()
    path.write_bytes(data + bytes(1200))
    assert TimeIndex(path.read_bytes(), 0).size_bytes == len(data)
    log, _ = opened(directory, clean=True)
    assert path.read_bytes() == data
    log.abandon()


def test_6Q_208_the_layout_of_an_entry() -> None:
    """6Q.208: An entry has 12 bytes: 8 of timestamp and 4 of relative offset."""
    assert TIME_ENTRY_BYTES == 12
    data = bytes.fromhex("0000018bcfe56800000000050000018bcfe568090000000a")
    index = TimeIndex(data, 1000)
    assert list(index.entries()) == [TimeEntry(T, 1005), TimeEntry(T + 9, 1010)]
    assert index.size_bytes == len(data) and not index.damaged
