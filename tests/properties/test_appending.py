"""6U: append, read, roll. Other numbers are in `tests/partition/test_truncate.py` and `test_producers.py`."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import KeyRequiredError, OffsetOutOfRangeError, RecordTooLargeError
from lastword.partition import PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.open import open_log
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.properties.support import (
    CONFIG,
    T,
    batch,
    entry,
    listing,
    offsets,
    opened,
    partition,
    records_of,
    write_segment,
)

HOUR = 3_600_000


def bases(log: Any) -> list[int]:
    return [s.base_offset for s in log.segments]


def test_6U_265_rolling_by_time(tmp_path: Path) -> None:
    """6U.265: The first append to an empty expired segment does not roll; the next one does. The
    timestamps of records decide.
    """
    clock = ManualClock(T)
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_ms=HOUR), clock=clock)
    clock.advance(HOUR + 1)
    log.append_batch(batch(0, b"a", timestamp=-1))  # the empty segment is old, and is not rolled
    assert bases(log) == [0]
    for number in range(1, 5):
        clock.advance(HOUR + 1)
        log.append_batch(batch(0, b"a", timestamp=-1))
        assert len(log.segments) == number + 1
    now = clock.now_ms()
    log.append_batch(
        batch(0, b"a", timestamp=now + HOUR + 1)
    )  # timestamps decide, once the records have timestamps
    before = bases(log)
    log.append_batch(batch(0, b"a", timestamp=now))
    clock.advance(10 * HOUR)
    log.append_batch(batch(0, b"a", timestamp=now))  # an old timestamp never rolls
    assert log.append_batches([]) == []  # nor does an empty append
    assert len(log.segments) <= len(before) + 1
    count = len(log.segments)
    log.append_batch(batch(0, b"a", timestamp=now + 3 * HOUR))
    assert len(log.segments) == count + 1
    log.abandon()


@pytest.mark.parametrize("seed", range(5))
def test_6U_266_jitter_is_taken_off(tmp_path: Path, seed: int) -> None:
    """6U.266: With jitter a segment is not rolled before `segment.ms` minus the jitter, and is rolled after
    that time.

    Each segment has its own random jitter, at most `segment.jitter.ms`.
    """
    config = CONFIG.replace(segment_ms=HOUR, segment_jitter_ms=HOUR // 10)
    log, _ = open_log(UNSYNCED, partition(tmp_path), config, ManualClock(T), rng=random.Random(seed))
    waits = []
    time = T
    for _ in range(3):
        began = time
        log.append_batch(batch(0, b"a", timestamp=time))
        count = len(log.segments)
        while len(log.segments) == count:
            time += HOUR // 100
            log.append_batch(batch(0, b"a", timestamp=time))
        waits.append(time - began)
    assert all(HOUR - HOUR // 10 < wait <= HOUR + HOUR // 100 for wait in waits)
    log.abandon()


def test_6U_267_rolling_by_size(tmp_path: Path) -> None:
    """6U.267: The record that does not fit `segment.bytes` rolls."""
    size = len(batch(0, b"a"))
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_bytes=10 * size))
    log.append_batches([batch(0, b"a")] * 10)
    assert bases(log) == [0]
    log.append_batch(batch(0, b"a"))
    assert bases(log) == [0, 10]
    log.abandon()


def test_6U_268_an_empty_active_segment_is_not_rolled(tmp_path: Path) -> None:
    """6U.268: Rolling an empty active segment at its own base creates it again.

    Here: An empty segment is left as it is; Kafka deletes and creates it.

    If the indexes have no room for an entry, the log rolls once before each batch, not endlessly.
    """
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_index_bytes=4))
    for _ in range(3):
        log.roll()
    assert bases(log) == [0]
    for _ in range(4):
        log.append_batch(batch(0, b"a"))
    assert bases(log) == [0, 1, 2, 3] and offsets(log, 0) == [0, 1, 2, 3]
    log.roll()
    log.roll()
    assert bases(log) == [0, 1, 2, 3, 4]
    log.abandon()


def test_6U_271_a_read_at_a_gap_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    """6U.271: A read at the gap that a truncation left continues in the next segment."""
    segment = write_segment(tmp_path, 0, batch(0, b"a"))
    write_segment(tmp_path, 5, batch(5, b"b", b"c"))
    log, _ = opened(os.path.dirname(segment.file))
    for start in range(1, 6):
        assert offsets(log, start) == [5, 6]
    log.abandon()


@pytest.mark.parametrize("chunk_bytes", [1, 60, 1000])
def test_6U_272_a_batch_is_given_whole_however_large(tmp_path: Path, chunk_bytes: int) -> None:
    """6U.272: A read returns at least one record, however small its limit is.

    Here: A read returns whole batches, and a read of an empty range returns nothing.
    """
    log, _ = opened(partition(tmp_path))
    log.append_batches([batch(0, b"x" * 500), batch(0, b"a"), batch(0, b"y" * 9000)])
    ends = [chunk.next_offset for chunk in log.chunks(0, chunk_bytes=chunk_bytes)]
    assert ends[-1] == 3 and len(ends) >= 2
    assert list(log.chunks(0, 0)) == [] == list(log.chunks(3))
    log.abandon()


def test_6U_273_reads_outside_the_log(tmp_path: Path) -> None:
    """6U.273: A read below the log start or above the log end is an error."""
    with lastword.open(tmp_path, "a") as logs:
        users = logs.create_topic("users")
        for _ in range(5):
            users.append(b"k", b"v")
        users.trim(before=2)
        for offset in (0, 1, 6, 99):
            with pytest.raises(OffsetOutOfRangeError):
                list(users.read(start=offset))
        assert [r.offset for r in users.read(start=2)] == [2, 3, 4]
        assert list(users.read(start=5)) == []


@pytest.mark.parametrize("codec", range(1, 5))
def test_6U_274_an_offset_inside_a_compressed_batch_leads_to_the_batch(tmp_path: Path, codec: int) -> None:
    """6U.274: A read at any offset inside a compressed batch returns that batch."""
    log, _ = opened(partition(tmp_path))
    log.append_batches([batch(0, b"hello", b"there", codec=codec), batch(0, b"alpha", b"beta", codec=codec)])
    assert offsets(log, 0) == [0, 1, 2, 3] == offsets(log, 1)
    assert offsets(log, 2) == offsets(log, 3) == [2, 3]
    log.abandon()


def test_6U_276_a_batch_larger_than_a_segment(tmp_path: Path) -> None:
    """6U.276: An append larger than `segment.bytes` is refused.

    Here: The limit holds for each batch, where Kafka's holds for a whole append. The batches of one append
    can be spread over several segments.
    """
    data = batch(0, b"x" * 50)
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_bytes=len(data) - 1))
    with pytest.raises(RecordTooLargeError, match=r"segment\.bytes"):
        log.append_batch(data)
    log.config = CONFIG.replace(segment_bytes=len(data))
    log.append_batches([data, data, data])
    assert bases(log) == [0, 1, 2] and log.log_end == 3
    log.abandon()


@pytest.mark.parametrize("codec", ["producer", "gzip", "lz4"])
def test_6U_277_a_compacted_topic_takes_no_record_without_a_key(tmp_path: Path, codec: str) -> None:
    """6U.277: A compacted topic refuses records without a key, compressed or not, and accepts records with a
    key.
    """
    with lastword.open(tmp_path, "a") as logs:
        users = logs.create_topic("users", cleanup_policy="compact", compression_type=codec)
        with pytest.raises(KeyRequiredError):
            users.append(None, b"v")
        with pytest.raises(KeyRequiredError):
            users.extend([(b"k", b"v"), (None, b"v"), (b"k", b"v")])
        assert list(users.read()) == []  # the whole call is refused
        users.append(b"k", b"v")
        assert [r.key for r in users.read()] == [b"k"]


def test_6U_278_a_batch_above_max_message_bytes(tmp_path: Path) -> None:
    """6U.278: `max.message.bytes` is enforced for appends, and not for batches that are in the log.

    The limit is for the size of the whole batch; a batch of exactly this size is appended.
    """
    data = batch(0, b"x" * 50)
    log, _ = opened(partition(tmp_path), CONFIG.replace(max_message_bytes=len(data)))
    log.append_batch(data)
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
        log.append_batches([batch(0, b"a"), batch(0, b"x" * 51)])
    assert log.log_end == 1  # the first batch of the call is not appended either
    log.abandon()
    log, _ = opened(log.directory, CONFIG.replace(max_message_bytes=10))
    assert offsets(log, 0) == [0]
    log.abandon()


def test_6U_282_time_index_entries_of_single_appends(tmp_path: Path) -> None:
    """6U.282: Appending n batches of rising timestamps creates n - 1 entries of the time index, with an
    interval of 1 byte.

    Each batch is larger than the interval, so each batch but the first has an entry.
    """
    log, _ = opened(partition(tmp_path), CONFIG.replace(index_interval_bytes=1))
    for number in range(12):
        log.append_batch(batch(0, b"a", timestamp=T + 10 * number))
    assert [e.offset for e in log.active.time_index.entries()] == list(range(1, 12))
    log.abandon()


def test_6U_285_null_key_and_null_value(tmp_path: Path) -> None:
    """6U.285: A record with null key and null value can be appended to a log that is not compacted."""
    with lastword.open(tmp_path, "a") as logs:
        events = logs.create_topic("events", cleanup_policy="delete")
        events.append(None, None)
        assert [(r.offset, r.key, r.value) for r in events.read()] == [(0, None, None)]


MAX_INT = 2**31 - 1


def test_6U_286_splitting_keeps_every_byte(tmp_path: Path) -> None:
    """6U.286: Splitting an overflowed segment keeps every record, and no part overflows.

    The batches are of any magic. A batch that does not fit begins a new part at its first offset.
    """
    data = [
        batch(3, b"a"),
        entry(1, 1, MAX_INT + 2, 2),  # the first offset of the wrapper is found only by decompression
        entry(0, 0, MAX_INT + 9, 2),
        batch(2 * MAX_INT + 20, b"b", b"c", codec=4),
    ]
    segment = write_segment(tmp_path, 2, b"".join(data), indexes=False)
    write_segment(tmp_path, 1 << 40, b"")
    before = offsets(PartitionView.load(DirectorySegments(UNSYNCED, os.path.dirname(segment.file))), 0)
    log, _ = opened(os.path.dirname(segment.file))
    assert bases(log) == [2, MAX_INT + 2, 2 * MAX_INT + 20, 1 << 40]
    assert b"".join(Path(s.file).read_bytes() for s in log.segments) == b"".join(data)
    assert offsets(log, 0) == before
    log.abandon()


def test_6U_287_the_first_batch_overflows_already(tmp_path: Path) -> None:
    """6U.287: If the first batch overflows already, the split gives one segment that starts at that batch.

    Here: An empty segment keeps the old base, so that the offsets from it on do not move to the segment
    before it. In Kafka the old base disappears.
    """
    segment = write_segment(tmp_path, 0, batch(MAX_INT + 1, b"a", b"b"), indexes=False)
    write_segment(tmp_path, 1 << 33, batch(1 << 33, b"c"))
    log, _ = opened(os.path.dirname(segment.file))
    assert bases(log) == [0, MAX_INT + 1, 1 << 33]
    assert offsets(log, 0) == [MAX_INT + 1, MAX_INT + 2, 1 << 33]
    log.abandon()
    log, recovery = opened(os.path.dirname(segment.file), clean=True)
    assert bases(log) == [0, MAX_INT + 1, 1 << 33] and recovery.repaired == ()
    log.abandon()


def test_6U_293_a_segment_begins_at_the_log_end(tmp_path: Path) -> None:
    """6U.293: Rolling to a base below the active segment's is an error.

    Here: A new segment always begins at the log end, so its base cannot be below the active segment's.

    After a truncation into a gap, the log end and the next base are the offset that was requested.
    """
    segment = write_segment(tmp_path, 0, batch(0, b"a") + batch(9, b"b"))
    log, _ = opened(os.path.dirname(segment.file))
    log.truncate_to(5)
    log.roll()
    assert bases(log) == [0, 5] and log.append_batch(batch(0, b"c")).base_offset == 5
    assert [r.offset for r in records_of(Path(log.active.file).read_bytes())] == [5]
    assert names.segment_file(5, names.LOG) in listing(log.directory)
    log.abandon()
