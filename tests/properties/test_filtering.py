"""6M: batches after some of their records are removed. Numbers about messages of magic 0 and 1 are in
`tests/formats`. `tests/kernels/test_repack.py` compares the kernels with their naive twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lastword.errors import CorruptBatchError
from lastword.records import formats
from lastword.records.batch import BatchBuilder, BatchHeader
from lastword.records.record import RawRecord
from lastword.segment import Segment
from lastword.segment.indexes import TimeEntry
from lastword.segment.scan import headers
from lastword.testing.unsynced import UNSYNCED
from tests.cleaner.support import plan, rewrite_all, write_segment
from tests.properties.support import FORMS, T, batch, entry, header_of, records_of


@pytest.fixture(autouse=True)
def each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the joining of batches (`cleaner/test_joining.py`): these are properties of one batch."""
    monkeypatch.setattr("lastword.cleaner.engine.output.BATCH_BYTES", 0)


NEWER = 100
"""Base offset of the batch whose records supersede the others."""


def newer(*keys: bytes, offset: int = NEWER, timestamp: int = T + 99) -> bytes:
    builder = BatchBuilder()
    for key in keys:
        builder.append(timestamp, key, b"new")
    return builder.build(offset)


def cut(root: Path, *batches: bytes) -> list[tuple[BatchHeader, list[RawRecord], bytes]]:
    """Return header, records and bytes of each batch after one round."""
    segment = write_segment(root / "s", 0, batches)
    ((_, new),) = rewrite_all([segment], root / "o")
    return left(new)


def left(segment: Segment) -> list[tuple[BatchHeader, list[RawRecord], bytes]]:
    batches = []
    for header in segment.headers():
        data = segment.read_batch(header)
        formats.check_crc(data, header, segment.file, 0)
        batches.append((header, list(formats.read_records(data, header, segment.file, position=0)), data))
    return batches


def test_6M_124_the_leader_epoch_stays(tmp_path: Path) -> None:
    """6M.124: Filtering keeps the partition leader epoch."""
    (first, kept, _), _ = cut(tmp_path, batch(0, b"a", b"b", epoch=67), newer(b"k0"))
    assert first.leader_epoch == 67 and [r.offset for r in kept] == [1]


@pytest.mark.parametrize("log_append", [False, True])
@pytest.mark.parametrize("codec", [0, 1, 4])
def test_6M_125_an_emptied_batch_that_must_stay(tmp_path: Path, codec: int, log_append: bool) -> None:
    """6M.125: A batch that must stay, but whose records are all removed, becomes a header of 61 bytes with
    the same offsets, sequences, largest timestamp, timestamp type and transactional flag.

    The batch must stay because it is the last batch of its producer.
    """
    producer = {"producer_id": 23, "producer_epoch": 5, "base_sequence": 10}
    full = batch(3, b"a", b"b", codec=codec, epoch=67, timestamp_type=int(log_append), **producer)
    before = header_of(full)
    (empty, none, data), _ = cut(tmp_path, full, newer(b"k3", b"k4"))
    assert len(data) == 61 and none == [] and (empty.count, empty.codec) == (0, 0)
    same = ("base_offset", "last_offset", "last_sequence", "base_sequence", "producer_id", "producer_epoch")
    for name in (*same, "max_timestamp", "log_append", "leader_epoch", "transactional", "control"):
        assert getattr(empty, name) == getattr(before, name), name
    assert empty.base_timestamp == -1 and empty.delete_horizon_ms is None


def test_6M_126_an_empty_batch_that_must_stay_stays(tmp_path: Path) -> None:
    """6M.126: An empty batch that must stay keeps its 61 bytes, and counts no record as read."""
    producer = {"producer_id": 23, "producer_epoch": 5, "base_sequence": 10}
    batches = cut(tmp_path, batch(3, b"a", **producer), newer(b"k3", b"x"))
    data = batches[0][2]
    assert len(data) == 61 and batches[0][1] == []
    second = write_segment(tmp_path / "t", 0, [data for _, _, data in batches] + [newer(b"x", offset=500)])
    ((facts, new),) = rewrite_all([second], tmp_path / "o2")
    assert left(new)[0][2] == data
    assert (facts.records_read, facts.records_kept) == (3, 2)


def test_6M_127_an_empty_batch_that_need_not_stay_goes(tmp_path: Path) -> None:
    """6M.127: An empty batch that need not stay is dropped.

    The log has a newer batch of its producer.
    """
    producer = {"producer_id": 23, "producer_epoch": 5}
    batches = cut(tmp_path, batch(3, b"a", base_sequence=10, **producer), newer(b"k3", b"x"))
    kept = [data for _, _, data in batches]
    later = batch(200, b"a", base_sequence=11, **producer)
    second = write_segment(tmp_path / "t", 0, [*kept, later, newer(b"x", offset=500)])
    ((_, new),) = rewrite_all([second], tmp_path / "o2")
    assert [(h.base_offset, h.count) for h, _, _ in left(new)] == [(100, 1), (200, 1), (500, 1)]


def test_6M_128_a_batch_without_survivors_goes_whole(tmp_path: Path) -> None:
    """6M.128: A batch without live records is dropped whole.

    The dead records are marked before the rewrite, so such a batch is neither decoded nor written.
    """
    batches = cut(tmp_path, batch(0, b"a", b"b"), batch(2, b"c"), newer(b"k0", b"k1"))
    assert [h.base_offset for h, _, _ in batches] == [2, NEWER]


def test_6M_129_gaps_stay(tmp_path: Path) -> None:
    """6M.129: In a batch of magic 2 gaps stay: base and last offset are unchanged. Entries of magic 0 and
    1 get the offsets of what is left.
    """
    builder = BatchBuilder()
    for offset, key in ((0, b"a"), (8, b"b"), (10, b"c")):
        builder.append(T + offset, key, b"v", offset_delta=offset)
    (first, kept, _), _ = cut(tmp_path, builder.build(0), newer(b"a", b"c"))
    assert (first.base_offset, first.last_offset, first.count) == (0, 10, 1)
    assert [(r.offset, r.timestamp) for r in kept] == [(8, T + 8)]
    assert first.max_timestamp == T + 8


def test_6M_130_producers_stay_who_they_are(tmp_path: Path) -> None:
    """6M.130: Producer id, epoch, sequences and the transactional flag survive filtering.

    Each record also keeps its sequence: the base sequence of the batch plus the offset delta of the record.
    """
    producer = {"producer_id": 23, "producer_epoch": 5}
    first_batch = batch(0, b"a", b"b", b"c", base_sequence=2**31 - 2, **producer)
    second_batch = batch(3, b"d", base_sequence=1, **producer)
    (first, kept, _), (second, _, _), _ = cut(tmp_path, first_batch, second_batch, newer(b"k0"))
    for header, before in ((first, header_of(first_batch)), (second, header_of(second_batch))):
        for name in ("producer_id", "producer_epoch", "base_sequence", "last_sequence"):
            assert getattr(header, name) == getattr(before, name)
    assert first.last_sequence == 0
    assert [r.offset - first.base_offset for r in kept] == [1, 2]


@pytest.mark.parametrize(("magic", "codec"), FORMS)
def test_6M_132_133_what_is_left_in_every_form(tmp_path: Path, magic: int, codec: int) -> None:
    """6M.132: After filtering, the counts, offsets and largest timestamps are right for each magic and codec.
    6M.133: The offset of the largest timestamp is the last offset of a batch, or that of an uncompressed
    legacy entry itself.

    There are three entries of three records. The first loses its middle record, the second its last record,
    and the third all records. The time index has the first batch with the largest timestamp.
    """
    source = entry(magic, codec, 0) + entry(magic, codec, 3) + entry(magic, codec, 6)
    segment = write_segment(
        tmp_path / "s", 0, [source, newer(b"k1", b"k5", b"k6", b"k7", b"k8", timestamp=0)]
    )
    ((facts, new),) = rewrite_all([segment], tmp_path / "o", plan(index_interval_bytes=0))
    batches = left(new)
    assert [r.offset for _, rows, _ in batches for r in rows] == [0, 2, 3, 4, *range(NEWER, NEWER + 5)]
    assert (facts.records_read, facts.records_kept) == (14, 9)
    assert [r.key for r in records_of(b"".join(data for _, _, data in batches))][:4] == [
        b"k0",
        b"k2",
        b"k3",
        b"k4",
    ]
    rows = batches[:-1]
    assert all((h.magic, h.codec) == (magic, codec) for h, _, _ in rows)
    if magic < 2 and not codec:
        assert [(h.base_offset, h.last_offset) for h, _, _ in rows] == [(o, o) for o in (0, 2, 3, 4)]
    elif magic == 2:
        assert [(h.base_offset, h.last_offset, h.count) for h, _, _ in rows] == [(0, 2, 2), (3, 5, 2)]
    else:
        assert [h.last_offset for h, _, _ in rows] == [2, 4]
    times = [max(r.timestamp for r in kept) for _, kept, _ in rows]
    assert [h.max_timestamp for h, _, _ in rows] == times
    if magic:
        entries = list(new.time_index.entries())
        reached = {h.max_timestamp: h.last_offset for h, _, _ in rows}
        assert entries[-1] == TimeEntry(max(times), reached[max(times)])


def test_6M_135_the_size_of_the_next_batch(tmp_path: Path) -> None:
    """6M.135: The size of the next batch can be read from the first 17 bytes of its header, even if the
    payload is absent. An impossible magic or size is an error.
    """
    data = batch(0, b"value" * 20)
    path = tmp_path / "x.log"

    def walk(prefix: bytes, end: int) -> list[Any]:
        path.write_bytes(prefix)
        with UNSYNCED.open_read(path) as handle:
            return list(headers(handle, "x.log", 0, end, stop_at_partial_tail=True))

    for size in range(17):
        assert walk(data[:size], size) == []
    header = formats.read_header(data[:61], 0, len(data), "x.log")
    assert header.size == len(data)
    assert walk(data[:61], 61) == []
    for position, value in ((16, 9), (8, 0x80)):
        bad = bytearray(data)
        bad[position] = value
        with pytest.raises(CorruptBatchError) if position == 8 else pytest.raises(Exception, match="magic"):
            walk(bytes(bad), len(bad))
