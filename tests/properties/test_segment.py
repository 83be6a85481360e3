"""6S: one segment, and the ordered set of segments."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lastword.clock import ManualClock
from lastword.errors import CorruptBatchError
from lastword.partition import swap
from lastword.partition.checkpoint_file import EpochEntry
from lastword.partition.segment_store import SegmentSet
from lastword.records.batch import BatchBuilder
from lastword.segment import Segment, build_indexes, names
from lastword.segment.indexes import AbortedTransaction, TransactionIndex
from lastword.segment.recover import inspect
from lastword.segment.stored import SegmentFiles, SegmentId, StoredFacts
from lastword.testing.unsynced import UNSYNCED
from tests.properties.support import (
    CONFIG,
    T,
    batch,
    listing,
    offsets,
    opened,
    partition,
    placed,
    read,
    write_segment,
)
from tests.transactions import end_transaction

MAX_INT = 2**31 - 1


def wide(offset: int, last_delta: int) -> bytes:
    """Build a batch of two records, the second `last_delta` offsets above the first."""
    builder = BatchBuilder()
    builder.append(T, b"a", b"1")
    builder.append(T, b"b", b"2", offset_delta=last_delta)
    return builder.build(offset)


def log_of(root: Path, *batches: bytes, base: int = 0, **more: Any) -> Any:
    """Open a log with one segment of these batches."""
    segment = write_segment(root, base, b"".join(batches))
    return opened(os.path.dirname(segment.file), **more)[0]


@pytest.mark.parametrize("first", [44, 45, 45 + MAX_INT - 5, 45 + MAX_INT - 4])
def test_6S_217_offsets_outside_a_segments_range_in_a_file(tmp_path: Path, first: int) -> None:
    """6S.217: An append with an offset below the base, or more than 2^31 - 1 above it, is an error.

    Here: An append rolls the log; a file with an offset too far above the base is refused with its name.

    An offset below the base is damage like any other.
    """
    segment = write_segment(tmp_path, 45, batch(first, *[b"v"] * 5), indexes=False)

    def look() -> Any:
        return inspect(UNSYNCED, os.path.dirname(segment.file), 45, index_interval_bytes=0)

    if first + 4 - 45 > MAX_INT:
        with pytest.raises(CorruptBatchError) as caught:
            look()
        assert caught.value.code == "offset-overflow"
    else:
        assert (look().damage is None) == (first >= 45)


def test_an_appended_batch_gets_a_segment_that_can_hold_it(tmp_path: Path) -> None:
    log, _ = opened(partition(tmp_path))
    log.append_batch(batch(0, b"a"))
    log.append_batch(wide(0, MAX_INT))
    log.append_batch(batch(0, b"b"))
    assert [s.base_offset for s in log.segments] == [0, 1, MAX_INT + 2]
    assert offsets(log, 0) == [0, 1, MAX_INT + 1, MAX_INT + 2]
    log.abandon()


def test_6S_218_reading_outside_before_and_between(tmp_path: Path) -> None:
    """6S.218: A read of an empty segment, or past its last offset, returns nothing; before the first
    record it starts at the first, and in a gap at the next.
    6U.270: A read at a hole in the offsets returns the next record.
    """
    empty, _ = opened(partition(tmp_path / "empty"))
    assert offsets(empty, 0) == [] and empty.active.position_of(0) == 0 == empty.active.size
    empty.abandon()
    log = log_of(tmp_path, batch(40, b"a", b"b"), batch(50, b"c", b"d"), base=40)
    assert offsets(log, 52) == [] and offsets(log, 60) == []
    assert offsets(log, 41)[0] == 40  # the whole batch that contains 41; readers skip the records below
    assert offsets(log, 0) == [40, 41, 50, 51]
    for start in range(42, 51):
        assert offsets(log, start) == [50, 51]
    log.abandon()


def test_6S_219_truncation_again_and_again(tmp_path: Path) -> None:
    """6S.219: Truncation removes the records from an offset on, and can be repeated."""
    log, _ = opened(partition(tmp_path))
    for left in range(1, 31):
        log.append_batch(batch(0, b"hello"))
        log.append_batch(batch(0, b"hello"))
        log.truncate_to(left)
        assert offsets(log, 0) == list(range(left))
    log.abandon()


def test_6S_220_truncation_inside_a_gap_takes_the_batch_behind_it(tmp_path: Path) -> None:
    """6S.220: Truncation inside a gap removes the batch after the gap."""
    log = log_of(tmp_path, batch(40, b"a", b"b"), batch(50, b"c", b"d"), base=40)
    log.truncate_to(45)
    assert offsets(log, 0) == [40, 41] and log.log_end == 45
    assert log.append_batch(batch(0, b"e")).base_offset == 45
    log.abandon()


def test_6S_221_a_truncated_empty_segment_is_not_full(tmp_path: Path) -> None:
    """6S.221: Truncating an empty segment that was opened again leaves room in its indexes; it rolls only if
    the next offset does not fit.

    In Kafka the trimmed indexes looked full until they were grown again.
    """
    directory = partition(tmp_path)
    log, _ = opened(directory)
    log.append_batches([batch(0, b"a")] * 3)
    assert log.close()
    log, _ = opened(directory, CONFIG.replace(segment_index_bytes=36), clean=True)
    log.truncate_to(0)
    log.append_batch(batch(0, b"a"))
    assert len(log.segments) == 1
    log.append_batch(wide(0, MAX_INT))  # its last offset is too far above base 0
    assert [s.base_offset for s in log.segments] == [0, 1]
    log.abandon()


@pytest.mark.parametrize("timestamp", [T, -1, T + 10_000_000])
def test_6S_222_an_empty_segment_is_not_rolled_by_time(tmp_path: Path, timestamp: int) -> None:
    """6S.222: An empty segment is never rolled by time alone."""
    clock = ManualClock(T)
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_ms=1000), clock=clock)
    clock.advance(10_000_000)
    assert not log.roll_if_due()
    log.append_batch(batch(0, b"a", timestamp=timestamp))
    assert len(log.segments) == 1
    log.abandon()


def test_6S_224_a_full_truncation_resets_the_segments_time(tmp_path: Path) -> None:
    """6S.224: A full truncation resets the segment's time; appending at the original offsets works."""
    clock = ManualClock(T)
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_ms=1000), clock=clock)
    log.append_batch(batch(0, b"a", timestamp=-1))
    clock.advance(2000)
    log.truncate_to(0)
    assert (log.active.size, log.log_end) == (0, 0)
    for _ in range(2):  # without timestamps, the time since the truncation counts
        log.append_batch(batch(0, b"a", timestamp=-1))
    assert len(log.segments) == 1 and offsets(log, 0) == [0, 1]
    clock.advance(1001)
    log.append_batch(batch(0, b"a", timestamp=-1))
    assert [s.base_offset for s in log.segments] == [0, 2]
    log.abandon()


@pytest.mark.parametrize("interval", [0, 300, 1 << 20])
def test_6S_225_search_by_timestamp(tmp_path: Path, interval: int) -> None:
    """6S.225: A search by timestamp finds a record with or without an index entry. After the last timestamp
    it finds no record, before the first timestamp the first record.
    """
    data = b"".join(placed(batch(0, b"a", timestamp=T + 10 * n), n) for n in range(40))
    segment = write_segment(tmp_path, 0, data, interval=interval)
    size = len(data) // 40
    for number in range(40):
        for target in (10 * number, 10 * number - 3):
            assert segment.position_of_timestamp(T + target) == size * number
    assert segment.position_of_timestamp(T + 391) is None
    assert segment.position_of_timestamp(0) == 0


def test_6S_226_the_next_offset(tmp_path: Path) -> None:
    """6S.226: The next offset of an empty segment is its base, else the last offset + 1."""
    segment = write_segment(tmp_path, 40, b"")
    assert segment.next_offset == 40
    segment = write_segment(tmp_path, 40, batch(50, b"there", b"you"))
    assert segment.next_offset == 52


def test_6S_227_a_suffix_makes_no_index_files(tmp_path: Path) -> None:
    """6S.227: Changing the suffix renames the files that exist and creates none; an index that is created
    later has the new name.

    A swap renames the files that exist; this segment has no transaction index and no time index.
    """
    segment = write_segment(tmp_path, 0, batch(0, b"a") + batch(1, b"b"))
    directory = Path(os.path.dirname(segment.file))
    private = directory / "lastword" / "rewrite-x"
    private.mkdir(parents=True)
    (private / names.segment_file(0, names.LOG)).write_bytes(batch(1, b"b"))
    build_indexes(UNSYNCED, str(private / names.segment_file(0, names.LOG)), 0, index_interval_bytes=0)
    (private / names.segment_file(0, names.TIME_INDEX)).unlink()
    new = swap.publish(
        UNSYNCED, str(directory), [segment], Segment.load(SegmentFiles(UNSYNCED, str(private), 0))
    )
    assert listing(str(directory)) == sorted(names.segment_file(0, e) for e in (names.LOG, names.INDEX))
    assert new.file.endswith(names.LOG) and new.largest_timestamp == T
    log, _ = opened(str(directory), clean=True)  # opening creates the missing index
    assert names.segment_file(0, names.TIME_INDEX) in listing(str(directory))
    assert offsets(log, 0) == [1]
    log.abandon()


@pytest.mark.parametrize("extension", [names.INDEX, names.TIME_INDEX])
@pytest.mark.parametrize("seed", range(5))
def test_6S_228_229_a_nonsense_index(tmp_path: Path, seed: int, extension: str) -> None:
    """6S.228: Recovery rebuilds an offset index with nonsense in it; all records can be read.
    6S.229: Recovery rebuilds a time index with nonsense in it; all timestamps can be found.

    Before recovery, the index causes no wrong position.
    """
    data = [batch(n, b"value-%d" % n, timestamp=T + 10 * n) for n in range(100)]
    segment = write_segment(tmp_path, 0, b"".join(data))
    path = Path(segment.stored.path(extension))
    good = path.read_bytes()
    path.write_bytes(random.Random(seed).randbytes(5 * 12 * 8))
    fresh = Segment.load(SegmentFiles(UNSYNCED, os.path.dirname(segment.file), 0))
    for number in range(100):
        assert fresh.position_of(number) == segment.position_of(number)
        assert fresh.position_of_timestamp(T + 10 * number) == segment.position_of(number)
    log, _ = opened(os.path.dirname(segment.file))
    for number in range(100):
        assert next(read(log, number)).value == b"value-%d" % number
        assert log.offset_at(T + 10 * number) == number
    assert path.read_bytes() == good
    log.abandon()


def test_6S_230_the_transaction_index_is_built_again(tmp_path: Path) -> None:
    """6S.230: Recovery rebuilds the transaction index with the right first offsets, even if a transaction
    began in an earlier segment.

    The last stable offset is right, too.
    """
    log, _ = opened(partition(tmp_path))
    for producer in (5, 6):
        log.append_batch(
            batch(0, b"a", producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        )
    log.append_batch(batch(0, b"plain"))
    log.roll()
    end_transaction(log, 5, 0, commit=False)
    log.append_batch(batch(0, b"more"))
    end_transaction(log, 6, 0, commit=False)
    path = Path(log.active.stored.path(names.TXN_INDEX))
    good, directory, base = path.read_bytes(), log.directory, log.active.base_offset
    entries = [AbortedTransaction(5, 0, 3, 1), AbortedTransaction(6, 1, 5, 6)]
    assert list(TransactionIndex(SegmentFiles(UNSYNCED, directory, base)).entries) == entries
    log.abandon()
    for damage in (None, b"", b"\xff" * 50, good[:34]):
        path.unlink() if damage is None else path.write_bytes(damage)
        log, _ = opened(directory)
        assert path.read_bytes() == good and log.stable_offset == 6
        log.abandon()


def test_6S_231_leader_epochs_are_found_again(tmp_path: Path) -> None:
    """6S.231: Recovery rebuilds the leader epochs from the batches."""
    rows = [(104, 0), (105, 0), (106, 1), (107, 1), (110, 2), (111, 2)]
    log = log_of(tmp_path, *[batch(o, b"a", epoch=e) for o, e in rows], base=100)
    assert log.epochs.entries == (EpochEntry(0, 104), EpochEntry(1, 106), EpochEntry(2, 110))
    log.abandon()


@pytest.mark.parametrize("first_bad", range(0, 20, 3))
def test_6S_232_damage_from_a_record_on_leaves_those_before_it(tmp_path: Path, first_bad: int) -> None:
    """6S.232: If bytes are damaged from a record on, recovery keeps exactly the records before it.

    Here: Only bytes that were never synced are cut (`tests/partition/test_recovery.py`).
    """
    data = [batch(n, b"value-%d" % n) for n in range(20)]
    whole = b"".join(data)
    start = len(b"".join(data[:first_bad]))
    noise = random.Random(first_bad).randbytes(len(whole) - start)
    segment = write_segment(tmp_path, 0, whole[:start] + noise, indexes=False)
    log, recovery = opened(os.path.dirname(segment.file))
    assert [r.value for r in read(log, 0)] == [b"value-%d" % n for n in range(first_bad)]
    assert log.log_end == first_bad and recovery.cut_bytes == len(noise)
    log.abandon()


def test_6S_235_the_timestamp_of_the_first_batch(tmp_path: Path) -> None:
    """6S.235: The first timestamp of a segment is that of its first batch, or the largest possible number if
    the segment is empty.

    Here: It is -1 for an empty segment.
    """
    log, _ = opened(partition(tmp_path))
    assert log.active.first_timestamp == -1
    for time in (5, 3, 9):
        log.append_batch(batch(0, b"a", timestamp=T + time))
        assert log.active.first_timestamp == T + 5
    log.abandon()


class Fake:
    def __init__(self, base_offset: int, size: int = 0) -> None:
        self.base_offset = base_offset
        self.size = size


def set_of(bases: Iterable[int]) -> SegmentSet:
    return SegmentSet([Fake(b) for b in bases])  # type: ignore[misc]


def bases(segments: Iterable[Any]) -> list[int]:
    return [s.base_offset for s in segments]


def test_6S_236_the_set_of_segments() -> None:
    """6S.236: The set of segments adds, replaces and removes; ranges start at the floor and exclude their
    end; floor, lower and higher neighbours are found.
    """
    segments = set_of([10, 5, 20])
    assert bases(segments) == [5, 10, 20] and len(segments) == 3 and segments.active.base_offset == 20
    assert [segments.floor(o) for o in (4, 5, 9, 10, 19, 20, 99)] == [-1, 0, 0, 1, 1, 2, 2]
    assert bases(segments.starting_at(12)) == [10, 20]  # starts with the segment that contains 12
    assert bases(segments.starting_at(0)) == [5, 10, 20] and bases(segments.starting_at(20)) == [20]
    assert bases(segments.below(10)) == [5] and bases(segments.below(11)) == [5, 10]
    assert bases(segments.below(5)) == []
    more = segments.with_added(Fake(30))  # type: ignore[arg-type]
    assert bases(more) == [5, 10, 20, 30] and bases(segments) == [5, 10, 20]
    fewer = more.with_replaced(more[0:2], [Fake(5)])  # type: ignore[list-item]
    assert bases(fewer) == [5, 20, 30]
    none = set_of([])
    assert len(none) == 0 and none.floor(0) == -1 and none.starting_at(0) == () == none.below(9)


def test_6S_237_sizes_above_four_bytes() -> None:
    """6S.237: The total size of segments is a 64-bit number."""
    many = SegmentSet([Fake(n, MAX_INT) for n in range(100)])  # type: ignore[misc]
    assert many.size == 100 * MAX_INT
    facts = StoredFacts(SegmentId(1, MAX_INT), 0)
    real = SegmentSet([Segment(SegmentFiles(UNSYNCED, "d", n), facts) for n in range(3)])
    assert real.size == 3 * MAX_INT > 2**32
