"""Join neighbouring small segments of a log that is not compacted: whole batches are copied.

Each commit to a bucket makes a segment, so a partition would have 345,000 a day at four commits a second. A
cleaner joins the segments of a compacted log. Here no record is decided: the segment that is made has the
batches of its sources, with the same bytes, and their entries of the transaction index.

Retention removes whole segments. So a segment that is made spans at most `RETAINED_SHARE` of `retention.ms`
and `retention.bytes`, besides `segment.ms` and `segment.bytes`: records stay longer by that share at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from lastword.config import TopicConfig
from lastword.partition.log import PartitionLog
from lastword.records.batch import BatchHeader
from lastword.records.formats import check_crc
from lastword.segment.append import SegmentAppender
from lastword.segment.indexes import TransactionIndex
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles

FILES_FREE, FILES_FOR_ONE = 64, 3
"""A log may have FILES_FREE small segments, and FILES_FOR_ONE more for each full one, as a compacted log."""
LENGTHS = (64, 48, 32, 24, 16, 12, 8, 4, 2)
"""Lengths of runs that are compared."""
GROWTH = 4
"""A run is preferred if the new segment has at least GROWTH times the bytes of its largest source: then a
byte is copied only into segments that grow by this factor, so a few times in all."""
RETAINED_SHARE = 8
COPY_BYTES = 4 << 20


def most_bytes(config: TopicConfig) -> int:
    """Return the largest size of a segment that is made."""
    if config.deletes and config.retention_bytes >= 0:
        return min(config.segment_bytes, config.retention_bytes // RETAINED_SHARE)
    return config.segment_bytes


def is_crowded(segments: int, size_bytes: int, config: TopicConfig) -> bool:
    """Return whether a log of this many segments and bytes has too many of them."""
    return segments > FILES_FREE + FILES_FOR_ONE * (size_bytes // max(most_bytes(config), 1))


def choose(
    segments: Sequence[Segment], config: TopicConfig, file_cost_bytes: float
) -> tuple[int, int] | None:
    """Return the run of closed segments, [first, end), that costs the least per segment saved.

    The time that a run spans begins with the newest record before it, so the first segment is in none. No log
    of a segment is read.

    Args:
        segments: All segments of the log; the last one is active.
        config: Settings of the topic.
        file_cost_bytes: The cost of making a file, in bytes that are written.

    Returns:
        None if the log is not crowded, or no neighbours fit one segment.
    """
    sums = [0, *accumulate(segment.size for segment in segments)]
    if not is_crowded(len(segments), sums[-1], config):
        return None
    closed = len(segments) - 1
    largest_bytes, longest_ms = most_bytes(config), config.segment_ms
    if config.deletes and config.retention_ms >= 0:
        longest_ms = min(longest_ms, config.retention_ms // RETAINED_SHARE)
    bases = [segment.base_offset for segment in segments]
    times = [s.known_timestamp if s.known_timestamp >= 0 else s.mtime_ms for s in segments]
    best: tuple[tuple[bool, float], int, int] | None = None
    for length in LENGTHS:
        for first in range(1, closed - length + 1):
            end = first + length
            size = sums[end] - sums[first]
            if (
                size <= largest_bytes
                and times[end - 1] - times[first - 1] <= longest_ms
                and bases[end] - 1 - bases[first] <= MAX_RELATIVE_OFFSET
            ):
                # The largest segment is at an end of the run, if older ones are larger.
                grows = GROWTH * max(segments[first].size, segments[end - 1].size) <= size
                price = not grows, (size + file_cost_bytes) / (length - 1)
                if best is None or price < best[0]:
                    best = price, first, end
    return None if best is None else best[1:]


def join(log: PartitionLog) -> int:
    """Join the run of `choose`, if there is one; return the number of its segments, else 0.

    The caller has claimed the partition. On failure the log is as it was.

    Raises:
        CorruptBatchError: A batch of the run is damaged.
    """
    segments = log.segments
    if log.incomplete_commit_offset is not None:
        return 0
    chosen = choose(segments, log.config, log.files.file_cost_bytes)
    if chosen is None:
        return 0
    sources = segments[slice(*chosen)]
    location, stored = log.store.create_output(sources[0].base_offset)
    try:
        log.replace(sources, _copied(sources, stored, log.config.index_interval_bytes))
    finally:
        log.store.discard(location)
    return len(sources)


def _copied(sources: Sequence[Segment], stored: SegmentFiles, index_interval_bytes: int) -> Segment:
    """Return a complete segment with the batches of the sources."""
    appender = SegmentAppender.create(stored, index_interval_bytes=index_interval_bytes)
    try:
        for source in sources:
            part: list[BatchHeader] = []
            for header in source.headers():
                if part and header.end - part[0].position > COPY_BYTES:
                    _copy(source, part, appender)
                    part = []
                part.append(header)
            _copy(source, part, appender)
            for entry in TransactionIndex(source.stored).entries:
                appender.aborted.append(entry)
        appender.finish()
        appender.sync_log()
        appender.sync_indexes()
    finally:
        segment = appender.close()
    return segment


def _copy(source: Segment, part: Sequence[BatchHeader], appender: SegmentAppender) -> None:
    """Append batches of a source, which lie one behind the other."""
    if not part:
        return
    start, end = part[0].position, part[-1].end
    data = source.handle.pread(end - start, start)
    placed = [replace(header, position=header.position - start) for header in part]
    for header in placed:
        check_crc(data, header, source.file, header.position)
    appender.append(data, placed)
