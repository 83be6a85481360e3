"""Index files: the golden vectors, lookups against a linear search, and tails as Kafka leaves them."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from lastword.segment.indexes import IndexBuilder, OffsetEntry, OffsetIndex, TimeEntry, TimeIndex

T = 1_700_000_000_000
OFFSETS = bytes.fromhex("00000005000010040000000a0000201e")
TIMES = bytes.fromhex("0000018bcfe56800000000050000018bcfe568090000000a")


def test_offset_index_golden() -> None:
    index = OffsetIndex(OFFSETS, 1000, 1 << 20)
    assert list(index.entries()) == [OffsetEntry(1005, 4100), OffsetEntry(1010, 8222)]
    assert index.last == OffsetEntry(1010, 8222)
    assert index.lookup(1004) == OffsetEntry(1000, 0)
    assert index.lookup(1005) == index.lookup(1009) == OffsetEntry(1005, 4100)
    assert index.lookup(5000) == OffsetEntry(1010, 8222)


def test_time_index_golden() -> None:
    index = TimeIndex(TIMES, 1000)
    assert list(index.entries()) == [TimeEntry(T, 1005), TimeEntry(T + 9, 1010)]
    assert index.lookup(T - 1) == TimeEntry(-1, 1000)
    assert index.lookup(T) == index.lookup(T + 8) == TimeEntry(T, 1005)
    assert index.lookup(T + 99) == TimeEntry(T + 9, 1010)


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
    falling = OFFSETS + struct.pack(">ii", 9, 9000)
    index = OffsetIndex(falling, 1000, 1 << 20)
    assert len(index) == 2 and index.damaged
    beyond = OffsetIndex(OFFSETS, 1000, 8222)
    assert len(beyond) == 1 and beyond.damaged
    assert OffsetIndex(OFFSETS + b"\x01\x02", 1000, 1 << 20).damaged
    assert TimeIndex(TIMES + struct.pack(">qi", T, 20), 1000).damaged
    assert len(OffsetIndex(b"\xff" * 80, 0, 1 << 20)) == 0


@given(st.lists(st.integers(0, 400), max_size=30), st.integers(0, 3000))
def test_lookup_is_the_linear_search(steps: list[int], wanted: int) -> None:
    offset = position = 0
    entries = []
    for step in steps:
        offset += step + 1
        position += 10 * step + 1
        entries.append((offset, position))
    index = OffsetIndex(b"".join(struct.pack(">ii", *e) for e in entries), 100, 1 << 30)
    naive = max(((o + 100, p) for o, p in entries if o + 100 <= wanted), default=(100, 0))
    assert index.lookup(wanted) == OffsetEntry(*naive)
    half = OffsetIndex(b"", 100, 1 << 30)
    half.extend(b"".join(struct.pack(">ii", *e) for e in entries))
    assert half.lookup(wanted) == index.lookup(wanted)


def test_the_rule_for_entries() -> None:
    """Eight batches of 71 bytes with one timestamp, an entry after more than 100 bytes."""
    builder = IndexBuilder(0, 100)
    for number in range(8):
        builder.batch(71 * number, number, T)
    assert list(struct.iter_unpack(">ii", builder.offset_entries)) == [(2, 142), (4, 284), (6, 426)]
    assert list(struct.iter_unpack(">qi", builder.time_entries)) == [(T, 0)]
    builder.finish()
    assert list(struct.iter_unpack(">qi", builder.time_entries)) == [(T, 0)]


def test_without_timestamps_the_time_index_stays_empty() -> None:
    builder = IndexBuilder(0, 0)
    for number in range(8):
        builder.batch(71 * number, number, -1)
    builder.finish()
    assert builder.time_entries == b"" and len(builder.offset_entries) == 7 * 8
