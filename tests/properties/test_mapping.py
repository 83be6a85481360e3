"""6B: the records that a map pass covers. Kafka's passes are tested on the model of its rule. Our own
cleaner always covers the whole log below the limit: in one pass or, with a small map, in several passes,
each over a part of the keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.demo.kafka_model import KafkaCleaner, ModelBatch, ModelSegment
from lastword.records.record import CREATE_TIME, RawRecord
from lastword.resolve import resolve
from tests.build import LogBuilder
from tests.cleaner.transactional import Producer, committed
from tests.properties.strategies import by_strategy
from tests.properties.support import T, batch
from tests.resolve.support import MemorySegment


def records(*keys: int, first: int = 0) -> tuple[ModelBatch, ...]:
    return tuple(
        ModelBatch((RawRecord(first + n, T, CREATE_TIME, b"%d" % key, b"v"),), first + n)
        for n, key in enumerate(keys)
    )


def mapped(cleaner: KafkaCleaner, keys: range) -> dict[int, int]:
    return {key: cleaner.map.get(b"%d" % key) for key in keys}


@pytest.mark.parametrize(("start", "end"), [(0, 10), (10, 20), (0, 30), (13, 27), (20, 40)])
def test_6B_8_a_range_maps_its_keys_and_no_others(start: int, end: int) -> None:
    """6B.8: Mapping the range [start, end) maps exactly the keys of its records, with their offsets. The
    latest offset is end - 1, and end - start records are counted. Ranges may begin and end at segment
    boundaries.
    """
    log = [ModelSegment(base, records(*range(base, base + 10), first=base)) for base in range(0, 40, 10)]
    whole = [segment for segment in log if segment.base_offset < end]
    limit = end if end % 10 == 0 else whole[-1].base_offset
    cleaner = KafkaCleaner(1 << 12)
    _, done = cleaner.clean_once(log, limit, first_dirty=start, now_ms=T, delete_retention_ms=0)
    assert mapped(cleaner, range(start, limit)) == {key: key for key in range(start, limit)}
    assert (cleaner.map.get(b"%d" % (start - 1)), cleaner.map.get(b"%d" % limit)) == (-1, -1)
    assert (cleaner.map.latest_offset, done.next_dirty) == (limit - 1, limit)
    assert done.map_messages == limit - start


def test_6B_9_offsets_far_apart_in_one_segment() -> None:
    """6B.9: Offsets as far apart as 0 and 7,206,178 in one segment are both mapped."""
    far = 7_206_178
    two = (*records(0), *records(1, first=far))
    cleaner = KafkaCleaner(1 << 10)
    cleaner.clean_once([ModelSegment(0, two)], far + 1, first_dirty=0, now_ms=T, delete_retention_ms=0)
    assert (cleaner.map.get(b"0"), cleaner.map.get(b"1"), cleaner.map.latest_offset) == (0, far, far)
    data = batch(0, b"v") + batch(far, b"v")
    ours = resolve([MemorySegment(data, 0, far + 1)], map_bytes=1 << 16, salt=b"s", now_ms=None)
    assert (ours.distinct_keys, ours.segments[0].dead_records) == (2, 0)


def test_6B_10_a_full_map_stops_before_what_does_not_fit() -> None:
    """6B.10: A map with room for two keys that starts at offset 2 maps the keys at 2 and 3 and no others.

    Here: Our own cleaner takes more passes over the log, and still one rewrite.

    Three slots at a load factor of 0.75 have room for two keys. The third record is read, and left for
    another round.
    """
    cleaner = KafkaCleaner(3 * 24, load_factor=0.75)
    log = [ModelSegment(0, records(0, 1, 2, 3, 4))]
    _, done = cleaner.clean_once(log, 5, first_dirty=2, now_ms=T, delete_retention_ms=0)
    assert mapped(cleaner, range(5)) == {0: -1, 1: -1, 2: 2, 3: 3, 4: -1}
    assert (len(cleaner.map), cleaner.map.latest_offset, done.map_messages) == (2, 3, 3)


@by_strategy
def test_6B_10_11_ours_with_a_small_map_leaves_nothing_for_another_round(
    tmp_path: Path, strategy: str
) -> None:
    """6B.10: A map with room for two keys that starts at offset 2 maps the keys at 2 and 3 and no others.
    6B.11: With a map of one key, each pass removes what it can and advances by at least one offset.

    Here: Our own cleaner takes more passes over the log, and still one rewrite.
    """
    log = LogBuilder(tmp_path)
    for n in range(3000):
        if n % 100 == 0:
            log.batch([(f"key {k * 7 % 1000}", n) for k in range(n, n + 100)])
    log.clean(strategy=strategy, map_bytes=8 << 10)
    assert log.offsets() == list(range(2000, 3000)) and log.first_dirty == 3000
    log.close()


@by_strategy
def test_6B_12_a_hole_at_the_end_of_a_segment_does_not_stall(tmp_path: Path, strategy: str) -> None:
    """6B.12: A hole in the offsets at the end of a segment does not stall cleaning: the next dirty offset is
    the base of the next segment.

    The segment ends at offset 9, and the next segment begins at 11.
    """
    log = LogBuilder(tmp_path)
    for n in range(10):
        log.put(f"k{n % 3}", n)
    log.close()
    (tmp_path / "users-0" / f"{11:020d}.log").write_bytes(batch(11, b"v"))
    log.clean(strategy=strategy, due=strategy == "kafka")
    assert log.first_dirty == (11 if strategy == "kafka" else 12)
    assert log.offsets() == [7, 8, 9, 11]
    log.close()


@by_strategy
def test_6B_13_nor_do_holes_in_several_segments(tmp_path: Path, strategy: str) -> None:
    """6B.13: Holes in several segments do not stall cleaning: the next dirty offset is the base of the active
    segment.
    """
    directory = tmp_path / "users-0"
    directory.mkdir()
    for base in (0, 10, 20, 30):
        data = b"".join(batch(offset, b"v" * 20) for offset in range(base, base + 7))
        (directory / f"{base:020d}.log").write_bytes(data)
    log = LogBuilder(tmp_path)
    assert log.log.log_end == 37
    log.clean(strategy=strategy, due=strategy == "kafka")
    assert log.first_dirty == (30 if strategy == "kafka" else 37)
    log.close()


def test_6B_14_small_maps_over_transactions_come_to_the_end() -> None:
    """6B.14: Passes with a map of four slots over 20 transactional offsets reach the end.

    Here: Our own cleaner takes more passes over the log, and still one rewrite.

    Four slots have room for three keys in each pass. Records of aborted transactions are not put into the
    map.
    """
    batches = []
    for n in range(20):
        raw_record = RawRecord(n, T, CREATE_TIME, b"%d" % (n % 7), b"v")
        marker = n % 5 == 4
        batches.append(
            ModelBatch(() if marker else (raw_record,), n, aborted=n // 5 % 2 == 1, control=marker)
        )
    cleaner = KafkaCleaner(4 * 24, load_factor=0.75)
    left, rounds = cleaner.clean([ModelSegment(0, tuple(batches))], 20, now_ms=T, delete_retention_ms=0)
    assert [done.next_dirty for done in rounds] == [3, 13, 20]
    # The committed records are 0-3 with keys 0 1 2 3, and 10-13 with keys 3 4 5 6.
    assert [record.offset for record in left[0].records] == [0, 1, 2, 10, 11, 12, 13]


@by_strategy
def test_ours_with_a_small_map_over_transactions(tmp_path: Path, strategy: str) -> None:
    log = LogBuilder(tmp_path)
    for n in range(40):
        producer = Producer(log, n % 3, n)
        producer.put(*((f"key {(n * 31 + k) % 400:020d}", n) for k in range(30)))
        producer.abort() if n % 4 == 3 else producer.commit()
    log.roll()
    before = committed(log)
    round_ = log.clean(strategy=strategy, map_bytes=4 << 10)
    assert committed(log) == before and round_.removed.aborted == 300
    assert log.first_dirty == log.log.log_end
    log.close()
