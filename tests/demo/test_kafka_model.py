"""The model of Kafka's rule leaves the records that Kafka left, also where Kafka loses a value."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import pytest

from lastword.demo.kafka_model import (
    KafkaCleaner,
    ModelBatch,
    ModelSegment,
    lost,
    plain_bytes,
    read_model,
)
from lastword.files import DEFAULT
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.records.record import CREATE_TIME, RawRecord
from tests.golden import loader, test_compact
from tests.support.exhaustive import stride

T = 1_700_000_000_000
ROUNDS = sorted({(name, number) for name, number, _ in test_compact.ROUNDS})


Segments = tuple[ModelSegment, ...]


def record(offset: int, key: bytes | None, value: bytes | None = b"v") -> RawRecord:
    return RawRecord(offset, T, CREATE_TIME, key, value)


def segment(*records: RawRecord, mtime_ms: int = T) -> ModelSegment:
    """Return a segment with each record as its own batch."""
    return ModelSegment(
        records[0].offset, tuple(ModelBatch((record,), record.offset) for record in records), mtime_ms
    )


def offsets(segments: tuple[ModelSegment, ...]) -> list[int]:
    return [record.offset for part in segments for record in part.records]


def model_of(name: str, stage: str, target: Path) -> tuple[tuple[ModelSegment, ...], int, int | None]:
    """Return the partition of a golden case, the end of a round over closed segments, and its checkpoint."""
    root = loader.case(name).unpack(target, stage) / stage
    view = PartitionView.load(DirectorySegments(DEFAULT, str(root / f"{name}-0")))
    bases = [segment.base_offset for segment in view.segments]
    limit = max(base for base in bases if base <= view.stable_offset)
    return read_model(view), limit, test_compact.first_dirty(root, name)


@cache
def kept_by_kafka(name: str, number: int) -> frozenset[int]:
    lines = test_compact.data_of(loader.case(name).expected(f"round{number}-after"))
    return frozenset(line["offset"] for line in lines)


def cleaned_by_the_model(name: str, number: int, root: Path) -> tuple[Segments, Segments]:
    """Clean a golden case as Kafka did in a round; return the segments before and after."""
    case = loader.case(name)
    segments, limit, first_dirty = model_of(name, f"round{number}-before", root)
    after, rounds = KafkaCleaner().clean(
        segments,
        limit,
        first_dirty=first_dirty or 0,
        now_ms=test_compact.moment(case, number),
        delete_retention_ms=int(case.config["delete.retention.ms"]),
    )
    assert len(rounds) == ((first_dirty or 0) < limit)
    return segments, after


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), ROUNDS[:: stride(3)])
def test_the_model_keeps_what_kafka_kept(name: str, number: int, tmp_path: Path) -> None:
    _, after = cleaned_by_the_model(name, number, tmp_path)
    assert set(offsets(after)) == kept_by_kafka(name, number)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_model_loses_the_value_that_kafka_lost(number: int, tmp_path: Path) -> None:
    """Two keys of one MD5: Kafka lost a live value in its first round and another in its third."""
    segments, after = cleaned_by_the_model("md5-collision", number, tmp_path)
    gone = lost(segments, after)
    expected = {1: [0], 2: [], 3: [2]}[number]
    assert [record.offset for record in gone] == expected
    assert not set(expected) & kept_by_kafka("md5-collision", number)
    for record in gone:
        assert record.key is not None
        digest = hashlib.md5(record.key).digest()
        twins = {r.key for part in segments for r in part.records if r.key is not None} - {record.key}
        assert [hashlib.md5(key).digest() for key in twins].count(digest) == 1


def test_a_full_map_takes_more_rounds_each_from_offset_0() -> None:
    """6B.11: With a map of one key, each pass removes what it can and advances by at least one offset.

    Here: The cleaner of lastword takes more passes over the log, but still one rewrite.

    Keys 0, 1, 0, 1, 0 and a map for one key: each round removes one more record.
    """
    log = (segment(*(record(n, b"%d" % (n % 2)) for n in range(5))),)
    cleaner = KafkaCleaner(map_bytes=2 * 24, load_factor=0.75)
    left, dirty = log, 2
    seen = []
    while dirty < 5:
        left, done = cleaner.clean_once(left, 5, first_dirty=dirty, now_ms=T, delete_retention_ms=0)
        seen.append((dirty, offsets(left)))
        dirty = done.next_dirty
    assert seen == [(2, [1, 2, 3, 4]), (3, [2, 3, 4]), (4, [3, 4])]
    after, rounds = cleaner.clean(log, 5, now_ms=T, delete_retention_ms=0)
    assert offsets(after) == [3, 4] and len(rounds) == 5


def test_a_known_key_stops_a_full_map_too() -> None:
    log = (segment(*(record(n, b"same") for n in range(3))),)
    cleaner = KafkaCleaner(2 * 24, 0.75)
    _, done = cleaner.clean_once(log, 3, first_dirty=0, now_ms=T, delete_retention_ms=0)
    assert (done.next_dirty, len(cleaner.map)) == (1, 1)


def test_a_tombstone_goes_when_its_time_has_passed() -> None:
    log = (segment(record(0, b"a"), record(1, b"a", None), record(2, b"b")),)
    cleaner = KafkaCleaner(1 << 10)
    first, _ = cleaner.clean_once(log, 3, first_dirty=0, now_ms=T, delete_retention_ms=100)
    assert offsets(first) == [1, 2]
    assert [batch.horizon_ms for batch in first[0].batches] == [T + 100, None]
    early, _ = cleaner.clean_once(first, 3, first_dirty=0, now_ms=T + 99, delete_retention_ms=100)
    late, _ = cleaner.clean_once(first, 3, first_dirty=0, now_ms=T + 100, delete_retention_ms=100)
    assert offsets(early) == [1, 2] and offsets(late) == [2]


def test_the_clock_of_a_tombstone_behind_the_map_starts_too() -> None:
    """Kafka's fault: the older value is still there; when the map reaches it, both are removed together."""
    log = (segment(record(0, b"a"), record(1, b"b"), record(2, b"c"), record(3, b"a", None)),)
    cleaner = KafkaCleaner(2 * 24, 0.75)
    after, done = cleaner.clean_once(log, 4, first_dirty=0, now_ms=T, delete_retention_ms=100)
    assert done.next_dirty == 1 and offsets(after) == [0, 1, 2, 3]
    assert after[0].batches[3].horizon_ms == T + 100


def test_segments_at_or_above_the_limit_are_left_alone() -> None:
    log = (segment(record(0, b"a")), segment(record(1, b"a")), segment(record(2, b"a")))
    after, rounds = KafkaCleaner(1 << 10).clean(log, 2, now_ms=T, delete_retention_ms=0)
    assert offsets(after) == [1, 2] and [model_round.next_dirty for model_round in rounds] == [2]


def test_an_empty_dirty_range_is_no_round() -> None:
    log = (segment(record(0, b"a")),)
    after, rounds = KafkaCleaner(1 << 10).clean(log, 1, first_dirty=1, now_ms=T, delete_retention_ms=0)
    assert after == log and rounds == []


def test_records_without_a_key_go_and_aborted_ones_say_nothing() -> None:
    log = (
        ModelSegment(
            0,
            (
                ModelBatch((record(0, b"a"), record(1, None)), 1),
                ModelBatch((record(2, b"a"),), 2, aborted=True),
                ModelBatch((), 3, control=True),
            ),
        ),
    )
    after, (done,) = KafkaCleaner(1 << 10).clean(log, 4, now_ms=T, delete_retention_ms=0)
    assert offsets(after) == [0]
    assert (done.map_messages, done.kept) == (4, 1)


def test_sizes_are_those_of_the_bytes() -> None:
    from lastword.records.batch import BatchBuilder

    rows = [
        RawRecord(7, T, CREATE_TIME, b"k" * 70, b"v" * 300, (("h", None), ("i", b"x"))),
        RawRecord(9, T - 80, CREATE_TIME, None, None),
    ]
    builder = BatchBuilder()
    for row in rows:
        builder.append(row.timestamp, row.key, row.value, row.headers, offset_delta=row.offset - 7)
    assert plain_bytes(rows) == len(builder.build(7))
