"""One reading, newest first: it yields what a set of keys finds, and stops where it cannot decide."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import CorruptBatchError
from lastword.partition.moment import Range
from lastword.partition.transactions import Decisions
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder
from lastword.records.columns import raw_records
from lastword.records.formats import build_message
from lastword.records.record import RawRecord
from lastword.resolve import newest_first, parts
from lastword.resolve.newest_first import NewestFirst
from lastword.resolve.parts import OldestFirstNeeded
from lastword.segment.indexes import AbortedTransaction
from lastword.state import newest
from tests.build import LogBuilder
from tests.naive.batches import walk
from tests.naive.columns import decode
from tests.naive.newest_first import take_newest
from tests.naive.pack import Record, encode_batch
from tests.naive.strategies import T, batches
from tests.resolve.support import MemorySegment, colliding_key, segments
from tests.transactions import end_transaction

SALT = b"salt"
BIG = 1 << 20
CONTROL, ABORTED_PRODUCER = 0x20, 5


def read(
    sources: Sequence[MemorySegment],
    first_offset: int = 0,
    map_bytes: int = BIG,
    outcomes: Decisions | None = None,
    *,
    tombstones: bool = True,
    threads: int = 1,
) -> list[list[RawRecord]]:
    """Return the newest records, chunk by chunk."""
    reader = NewestFirst(sources, map_bytes, SALT, outcomes, threads)
    with closing(reader.read(first_offset, tombstones=tombstones)) as chunks:
        return [raw_records(columns, chunk) for chunk, columns in chunks]


def expected(sources: Sequence[MemorySegment], aborted: int | None = None) -> list[Record]:
    """Return the newest records, the newest first. `aborted`: producer id of transactions without effect."""
    records = [
        record
        for source in sources
        for header in walk(source.data)[0]
        if not header.attributes & CONTROL and header.producer_id != aborted
        for record in decode(source.data, header)
    ]
    return take_newest(reversed(records), set())


def fields_of(record: Record | RawRecord) -> tuple[Any, ...]:
    headers = [
        (n.decode("utf-8", "surrogateescape") if isinstance(n, bytes) else n, v) for n, v in record.headers
    ]
    return record.offset, record.timestamp, record.key, record.value, headers


cuts = st.lists(st.integers(1, 12), max_size=4)


@given(batches(most=12), cuts, st.integers(0, 40), st.booleans(), st.integers(1, 2))
def test_like_a_set(log: list[bytes], at: list[int], first: int, tombstones: bool, threads: int) -> None:
    sources = segments(log, at, chunk_bytes=200) if log else []
    chunks = read(sources, first, tombstones=tombstones, threads=threads)
    wanted = [
        record
        for record in expected(sources)
        if record.offset >= first and (tombstones or record.value is not None)
    ]
    found = [record for chunk in chunks for record in reversed(chunk)]
    assert [fields_of(record) for record in found] == [fields_of(record) for record in wanted]


@given(batches(most=12, attribute_choices=(0, 0x10), producers=((5, 2, 9), (6, 2, 9))), cuts)
def test_records_of_aborted_transactions_supersede_nothing(log: list[bytes], at: list[int]) -> None:
    log = [batch for batch in log if walk(batch)[0][0].attributes or walk(batch)[0][0].producer_id != 5]
    sources = segments(log, at, chunk_bytes=200) if log else []
    aborted = Decisions([AbortedTransaction(ABORTED_PRODUCER, 0, 1 << 40, 0)])
    found = [record for chunk in read(sources, outcomes=aborted) for record in reversed(chunk)]
    wanted = expected(sources, ABORTED_PRODUCER)
    assert [fields_of(record) for record in found] == [fields_of(record) for record in wanted]


def test_keys_of_one_hash_are_compared() -> None:
    keys = [colliding_key(SALT, number) for number in range(40)]
    log = [encode_batch([Record(2 * n + i, T, keys[n], b"%d" % i) for i in range(2)]) for n in range(40)]
    found = [record for chunk in read(segments(log, [7, 20])) for record in chunk]
    assert {record.key: record.value for record in found} == dict.fromkeys(keys, b"1") and len(found) == 40


def many(keys: int, records: int) -> list[MemorySegment]:
    log = [
        encode_batch([Record(first + i, T, b"key-%d" % ((first + i) % keys), b"v") for i in range(50)])
        for first in range(0, records, 50)
    ]
    return segments(log, list(range(0, len(log), 20)), chunk_bytes=3000)


def test_the_map_grows_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = many(4000, 6000)
    monkeypatch.setattr(newest_first, "_RECORDS_OF_A_KEY", 100)
    found = [record.offset for chunk in read(sources, map_bytes=160_000) for record in chunk]
    assert sorted(found) == list(range(2000, 6000))
    with pytest.raises(OldestFirstNeeded, match="full"):
        read(sources, map_bytes=80_000)


@pytest.mark.parametrize("odd", ["shorter file", "wrong cut", "records", "magic 1", "order"])
def test_what_is_read_oldest_first(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was yielded before is at `reached` or behind it."""
    sources = many(300, 3000)
    middle = sources[len(sources) // 2]
    error: type[Exception] = OldestFirstNeeded
    if odd == "shorter file":
        middle.data = middle.data[:-10]
    elif odd == "wrong cut":
        monkeypatch.setattr(parts, "PLAIN_PARTS", 1)
        positions = middle.cuts(1)
        monkeypatch.setattr(middle, "cuts", lambda part_bytes: [0, positions[1] + 1, positions[-1]])
    elif odd == "records":
        monkeypatch.setattr(parts, "_MOST_RECORDS", 20)
        monkeypatch.setattr(parts, "_FIRST_RECORDS", 20)
    elif odd == "magic 1":
        middle.data = build_message(1, middle.base_offset, b"key", b"value", T)
        middle.size = len(middle.data)
    else:
        middle.data, middle.size, error = sources[-1].data, sources[-1].size, CorruptBatchError
    reader = NewestFirst(sources, BIG, SALT, None)
    yielded = 0
    with pytest.raises(error), closing(reader.read(0, tombstones=True)) as chunks:
        for _ in chunks:
            yielded += 1
    number, position = reader.reached
    assert bool(yielded) is (odd != "records") and number == (
        len(sources) // 2 + 1 if yielded else len(sources)
    )
    assert position == 0


def test_an_index_entry_inside_a_value_that_is_a_batch() -> None:
    """The part behind the entry is valid up to the end of the segment; the part before it is not."""
    inner = encode_batch([Record(7, T, b"inner", b"v")])
    outer = encode_batch([Record(5, T, b"outer", inner[:-1])])  # the byte behind the value is that of `inner`
    assert outer.endswith(inner)
    first = encode_batch([Record(0, T, b"first", b"v")])
    (source,) = sources = segments([first, outer], [])
    assert [record.key for chunk in read(sources) for record in chunk] == [b"first", b"outer"]
    source.cuts = lambda part_bytes: [0, source.size - len(inner), source.size]
    with pytest.raises(OldestFirstNeeded, match="whole batches"):
        read(sources)


# ---------------------------------------------------------------- over a partition


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogBuilder:
    """Return a log of 900 records over 300 keys, which is read in parts of about 4 KiB."""
    monkeypatch.setattr(parts, "PART_BYTES", 1)
    monkeypatch.setattr(parts, "PLAIN_PARTS", 1)
    log = LogBuilder(tmp_path, segment_bytes=40_000)
    for start in range(0, 900, 10):
        numbers = [7 * n % 300 for n in range(start, start + 10)]
        log.batch([(f"k{n}", None if (n + start) % 13 == 0 else f"{start}".zfill(150)) for n in numbers])
    return log


def rows_of(log: LogBuilder, *, end: int | None = None, map_bytes: int = BIG, ordered: bool = False) -> Any:
    view = PartitionView.load(log.store)
    range_ = Range(view, view.log_start, view.log_end if end is None else end)
    records = newest.newest(range_, tombstones=True, map_bytes=map_bytes, plain=False, ordered=ordered)
    return [(record.offset, record.key, record.value) for record in records]


@pytest.mark.parametrize("end", [None, 455])
@pytest.mark.parametrize("map_bytes", [2048, 8000, BIG])
def test_each_key_once_also_where_two_ways_meet(
    log: LogBuilder, caplog: pytest.LogCaptureFixture, end: int | None, map_bytes: int
) -> None:
    """A part of the keys is found before the map is full; 455 is inside a batch."""
    caplog.set_level(logging.INFO, "lastword.state")
    rows = rows_of(log, end=end, map_bytes=map_bytes)
    assert ("is full" in caplog.text) is (map_bytes < BIG)
    assert rows != sorted(rows) and len(rows) == 300
    assert sorted(rows) == rows_of(log, end=end, map_bytes=map_bytes, ordered=True)


def cut_inside(segment: Any, positions: list[int]) -> list[int]:
    return [*positions[:2], *(position + 1 for position in positions[2:3]), *positions[3:]]


def no_cuts(segment: Any, positions: list[int]) -> list[int]:
    return [0, positions[-1]]


@pytest.mark.parametrize("wrong", [cut_inside, no_cuts])
def test_a_wrong_index(
    log: LogBuilder, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Any, list[int]], list[int]]
) -> None:
    wanted = rows_of(log, ordered=True)
    real = newest.SegmentSlice.cuts
    second = PartitionView.load(log.store).segments[1].base_offset

    def cuts(self: Any, part_bytes: int) -> list[int]:
        positions = real(self, part_bytes)
        return wrong(self, positions) if self.base_offset == second else positions

    monkeypatch.setattr(parts, "MOST_PART_BYTES", 20_000)
    monkeypatch.setattr(newest.SegmentSlice, "cuts", cuts)
    assert sorted(rows_of(log)) == wanted


def test_damage_behind_records_that_were_yielded(log: LogBuilder) -> None:
    path = Path(PartitionView.load(log.store).segments[1].file)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatchError, match="CRC"):
        rows_of(log)


def test_the_outcome_of_a_transaction_is_known_before_its_first_batch_is_read(log: LogBuilder) -> None:
    """The newest records are those of an aborted transaction, which began in an older chunk."""
    for producer, commit in ((2, True), (1, False)):
        for first in range(0, 300, 25):
            builder = BatchBuilder(
                producer_id=producer, producer_epoch=0, base_sequence=first, transactional=True
            )
            for number in range(first, first + 25):
                builder.append(0, b"k%d" % number, (b"%d" % producer).zfill(200))
            log.log.append_batch(builder.build())
        end_transaction(log.log, producer, 0, commit=commit)
    wanted = rows_of(log, ordered=True)
    assert {value[-1:] for _, _, value in wanted} == {b"2"} and len(wanted) == 300
    assert sorted(rows_of(log)) == wanted
