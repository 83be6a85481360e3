"""Index files with tails as Kafka leaves them, and with damage. tests/properties has the lookups."""

from __future__ import annotations

from lastword.segment.indexes import IndexBuilder, OffsetEntry, OffsetIndex, TimeEntry, TimeIndex

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
