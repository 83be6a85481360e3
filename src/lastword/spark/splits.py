"""Plan a read: the partitions that it covers, the offsets of each, and how they are split into tasks.

Everything here reads the directory without a lock, as recovery would see it.

Splitting goes by bytes, from index entries alone. On a compacted log a span of offsets says little about its
work: a million offsets may hold ten records. Bytes
do, and the offset index has them: each entry is (offset, position of its batch), one for every few KiB. So a
range is cut at index entries: no record is read for it, and no batch is read twice.

    segment 0                 segment 4711                       offsets   0 ......... 4711 ........... 9000
    |--e--e--e--e--e--e--|--e--e--e--e--e--|                     bytes     0 ......... 1 GB ........... 1.8 GB
             ^           ^          ^                            cut at the last entry that keeps a range in
             bounds

The view was loaded a moment ago, and a cleaning may have swapped files since.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql.datasource import InputPartition

from lastword.errors import (
    FileVanishedError,
    OffsetOutOfRangeError,
    ReadOvertakenError,
    SparkOptionError,
    UnknownTopicError,
)
from lastword.files import DEFAULT, Files
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.moment import check_answerable
from lastword.partition.view import PartitionView
from lastword.segment.segment import Segment
from lastword.spark.options import EARLIEST, LATEST, Bound, ReadOptions, TopicSelection

# ---------------------------------------------------------------- partitions and offsets


MAX_RELOADS = 100
"""How often files are listed again. Each time another cleaning must have been published in between."""

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics of brokers. No pattern matches them, as in Kafka's consumers. They can be named."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """One partition of a read: its view when the read was planned, and the offsets start <= offset < end.

    from_end   the read starts at the log end of that moment; a second plan starts elsewhere
    topic_id   id of the topic, if it has one
    """

    topic: str
    partition: int
    directory: str
    view: PartitionView
    start: int
    end: int
    from_end: bool = False
    topic_id: str | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def choose(options: ReadOptions, files: Files = DEFAULT) -> list[PartitionRange]:
    """Return every partition to read, in order of topic and number; for a stream, where it begins.

    Raises:
        NotALogDirError, UnknownTopicError: The directory or a topic does not exist.
        SparkOptionError: JSON names other partitions than those that are read, or a given start is above the
            end.
        OffsetOutOfRangeError: Records are lost, unless failOnDataLoss is false.
    """
    directory = LogDirectory.open(options.path, "r", files)
    found = {topic: directory.partitions(topic) for topic in directory.topics()}
    picked = pick(found, options.selection, options.path)
    for which, bound in (("starting", options.start), ("ending", options.end)):
        _check_named(bound, picked, which)
    ids = {topic: directory.topic_id(topic) for topic, _ in picked}
    return [_bounded(directory, topic, number, ids[topic], options) for topic, number in picked]


def pick(found: dict[str, list[int]], selection: TopicSelection, path: str) -> list[tuple[str, int]]:
    """Return (topic, partition) of each selected partition. UnknownTopicError for a missing one, but not for
    a pattern.
    """
    if selection.pattern is not None:
        topics = matching(selection.pattern, found)
        return [(topic, number) for topic in topics for number in found[topic]]
    if selection.assigned:
        chosen = []
        for topic, numbers in sorted(selection.assigned.items()):
            _require(topic, found, path)
            absent = sorted(set(numbers) - set(found[topic]))
            if absent:
                raise UnknownTopicError(
                    f"{topic} in {path} has no partition {', '.join(map(str, absent))}",
                    remedy=f"its partitions: {', '.join(map(str, found[topic]))}",
                    file=path,
                )
            chosen += [(topic, number) for number in numbers]
        return chosen
    for topic in selection.topics:
        _require(topic, found, path)
    return [(topic, number) for topic in sorted(selection.topics) for number in found[topic]]


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return the topics whose whole name matches the pattern."""
    matches = re.compile(pattern).fullmatch
    return [topic for topic in topics if matches(topic) and topic not in INTERNAL_TOPICS]


def _require(topic: str, found: Iterable[str], path: str) -> None:
    if topic not in found:
        raise UnknownTopicError.named(topic, path, found)


def _check_named(bound: Bound, picked: list[tuple[str, int]], which: str) -> None:
    """SparkOptionError unless JSON names exactly the partitions that are read, as in Kafka's source."""
    given = bound.named()
    if given is None:
        return
    named = {(topic, number) for topic, numbers in given.items() for number in numbers}
    missing, extra = sorted(set(picked) - named), sorted(named - set(picked))
    if missing or extra:
        said = [f"lacks {_listed(missing)}"] if missing else []
        said += [f"names {_listed(extra)}, not read here"] if extra else []
        raise SparkOptionError(
            f"the JSON of {which} offsets {' and '.join(said)}",
            remedy="name exactly the partitions that are read",
        )


def _listed(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions)


def _bounded(
    directory: LogDirectory, topic: str, number: int, topic_id: str | None, options: ReadOptions
) -> PartitionRange:
    """Compute start and end of one partition from one listing of its files.

    The view lists the files again when one of them vanishes while a time or the last stable offset is looked
    up. Then both offsets are computed again: an end of "latest" that belongs to older files would be refused
    as an end that a cleaning has passed.

    Raises:
        OffsetOutOfRangeError: the range was lost, or its newest values are not known any more (`moment`).
            Each task checks the latter again, in the files that it has opened.
        SparkOptionError: a start that was given is above the end.
        ReadOvertakenError: files were replaced again and again.
    """
    view = directory.view(topic, number)
    for _ in range(MAX_RELOADS):
        listed = view.segment_set
        try:
            chosen = _chosen(view, topic, number, topic_id, options)
            if options.view != "log" and chosen.start < chosen.end:
                check_answerable(view, chosen.end)
        except FileVanishedError:
            view.refresh()
        except (OffsetOutOfRangeError, SparkOptionError):
            if view.segment_set is listed:
                raise
        else:
            if view.segment_set is listed:
                return chosen
    raise ReadOvertakenError.of(f"{topic}-{number}", view.directory)


def _chosen(
    view: PartitionView, topic: str, number: int, topic_id: str | None, options: ReadOptions
) -> PartitionRange:
    """Compute start and end of one partition from its view, which may list the files again meanwhile."""
    name = f"{topic}-{number}"
    given = _start_of(view, name, topic, number, options)
    start = view.log_end if given is None else given
    end = _end_of(view, topic, number, options)
    if start < view.log_start:
        if options.fail_on_data_loss:
            raise OffsetOutOfRangeError.below(name, start, view.log_start)
        start = view.log_start
    for offset, what in ((start, "start"), (end, "end")):
        if offset > view.log_end and options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{name}: the {what}, offset {offset}, is above log end {view.log_end}: "
                "the log was truncated or recreated",
                remedy="check the offsets, or set failOnDataLoss to false to read what is there",
                offset=offset,
            )
    start, end = min(start, view.log_end), min(end, view.log_end)
    if start > end:
        _check_order(view, name, given, end, options)
        start = end
    if options.isolation == "read_committed":
        if given is None:
            start = min(start, view.stable_offset)  # undecided records are new when they are decided
        end = max(start, min(end, view.stable_offset))
    return PartitionRange(
        topic, number, view.directory, view, start, end, from_end=given is None, topic_id=topic_id
    )


def _check_order(view: PartitionView, name: str, given: int | None, end: int, options: ReadOptions) -> None:
    """Handle a start above the end: a mistake, a loss, or nothing to read."""
    if end < view.log_start and options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{name}: the end, offset {end}, is below log start {view.log_start}: all of it is gone",
            remedy="take a later end, or set failOnDataLoss to false to read what is there",
            offset=end,
        )
    if given is not None and given > end and end >= view.log_start:
        raise SparkOptionError(
            f"{name}: the read starts at offset {given}, above its end {end}",
            remedy="take an earlier start or a later end",
        )


def _start_of(view: PartitionView, name: str, topic: str, number: int, options: ReadOptions) -> int | None:
    """Return the start offset; None: the log end."""
    at = _timestamp_of(options.start, topic, number)
    if at is None:
        offset = _given_offset(options.start, topic, number)
        return {EARLIEST: view.log_start, LATEST: None}.get(offset, offset)
    found = view.offset_at(at)
    if found is None and options.late_start == "error":
        raise OffsetOutOfRangeError(
            f"{name}: no record is as young as the start time {at}",
            remedy="take an earlier time, or set startingOffsetsByTimestampStrategy to latest",
        )
    return found


def _end_of(view: PartitionView, topic: str, number: int, options: ReadOptions) -> int:
    at = _timestamp_of(options.end, topic, number)
    if at is not None:
        offset = view.offset_at(at)
        return view.log_end if offset is None else offset
    offset = _given_offset(options.end, topic, number)
    return view.log_end if offset == LATEST else offset


def _timestamp_of(bound: Bound, topic: str, number: int) -> int | None:
    if bound.timestamp_ms is not None:
        return bound.timestamp_ms
    return None if bound.timestamps is None else bound.timestamps[topic][number]


def _given_offset(bound: Bound, topic: str, number: int) -> int:
    """Return the given offset, EARLIEST or LATEST."""
    return bound.everywhere if bound.offsets is None else bound.offsets[topic][number]


# ---------------------------------------------------------------- cuts


def cut_points(chosen: PartitionRange) -> list[tuple[int, int]]:
    """Return (offset, bytes before it) for each place where a range may be cut: behind the batch of an index
    entry.

    An entry holds the last offset of its batch, so the next offset begins a batch, and nothing is read twice.
    A damaged index can only make ranges uneven, because a range consists of offsets. Files that were swapped
    since the view was loaded are listed again.
    """
    for _ in range(MAX_RELOADS):
        try:
            return _cut_points(chosen)
        except FileVanishedError:
            if not chosen.view.files.is_dir(chosen.directory):
                break
            chosen.view.refresh()
    return [(chosen.start, 0), (chosen.end, 0)]  # its only task raises the error


def _cut_points(chosen: PartitionRange) -> list[tuple[int, int]]:
    points = [(chosen.start, 0)]
    before = 0
    for segment in overlapping(chosen.view, chosen.start, chosen.end):
        first = segment.position_of(chosen.start) if segment.base_offset < chosen.start else 0
        last = segment.end_position_of(chosen.end)
        for entry in segment.offset_index.entries():
            offset, position = entry.offset + 1, before + entry.position - first
            if (
                first < entry.position < last
                and points[-1][0] < offset < chosen.end
                and position > points[-1][1]
            ):
                points.append((offset, position))
        before += max(last - first, 0)
        if points[-1][0] < segment.next_offset < chosen.end and before > points[-1][1]:
            points.append((segment.next_offset, before))
    points.append((chosen.end, max(before, points[-1][1])))
    return points


def overlapping(view: PartitionView, start: int, end: int) -> list[Segment]:
    """Return the segments that may hold records with start <= offset < end."""
    found = []
    segments = view.segments
    for i, segment in enumerate(segments):
        following = segments[i + 1].base_offset if i + 1 < len(segments) else None
        if segment.base_offset < end and (following is None or following > start):
            found.append(segment)
    return found


def past_gap(view: PartitionView, offset: int, end: int) -> int:
    """Return `offset`, or the end of the gap (at most `end`) if a cleaning left no record there. So no task
    and no batch is spent on a gap.
    """
    if offset >= end:
        return end
    try:
        for segment in overlapping(view, offset, end):
            for header in segment.headers(segment.position_of(offset)):
                # The header of an older set of compressed messages has only its last offset.
                return offset if header.magic < 2 else max(offset, min(header.base_offset, end))
    except FileVanishedError:  # swapped meanwhile: it is read like any other offset
        return offset
    return end


@dataclass(frozen=True, slots=True)
class Span:
    """Records with start <= offset < end. `size_bytes`: about what a task reads for them."""

    start: int
    end: int
    size_bytes: int


def cut_by_bytes(points: Sequence[tuple[int, int]], limit_bytes: int) -> list[Span]:
    """Return spans of at most `limit_bytes`, cut at points. A stretch without a point inside stays whole.

    Args:
        points: (offset, bytes before it), both rising, from the start of the read to its end.
    """
    spans = []
    positions = [position for _, position in points]
    at = 0
    last = len(points) - 1
    while at < last:
        until = bisect_right(positions, positions[at] + limit_bytes, lo=at + 1) - 1
        until = min(max(until, at + 1), last)
        spans.append(Span(points[at][0], points[until][0], positions[until] - positions[at]))
        at = until
    return [span for span in spans if span.end > span.start]


def cut_by_records(span: Span, limit_records: int, past_gap: Callable[[int], int]) -> list[Span]:
    """Split the span into parts of at most `limit_records` offsets, without offsets in a gap.

    Args:
        past_gap: Returns the first offset from the given one on that a batch holds, or the span's end.
    """
    parts = []
    at = past_gap(span.start)
    while at < span.end:
        until = min(at + limit_records, span.end)
        parts.append(Span(at, until, span.size_bytes * (until - at) // (span.end - span.start)))
        at = past_gap(until)
    return parts


def task_bytes(total_bytes: int, limit_bytes: int, min_partitions: int | None) -> int:
    """Return the limit for a span's bytes: no task is too large, and there are about `min_partitions` at
    least.
    """
    if not min_partitions:
        return limit_bytes
    return max(1, min(limit_bytes, -(-total_bytes // min_partitions)))


# ---------------------------------------------------------------- tasks


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """The work of one task: the records of one partition of a log with start <= offset < end.

    topic_id   id of the planned topic, if it has one; another topic of that name has other records
    in_stream  the task is part of a micro-batch; records above `end` are in later micro-batches
    """

    topic: str
    partition: int
    directory: str
    start: int
    end: int
    topic_id: str | None = None
    in_stream: bool = False

    @classmethod
    def of(cls, chosen: PartitionRange, start: int, end: int, *, in_stream: bool = False) -> LogPartition:
        return cls(chosen.topic, chosen.partition, chosen.directory, start, end, chosen.topic_id, in_stream)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def plan(
    chosen: list[PartitionRange], options: ReadOptions, *, in_stream: bool = False
) -> list[InputPartition]:
    """Return the tasks. For the newest record of each key, one task needs all records of a partition."""
    tasks: list[InputPartition] = []
    if options.view != "log":
        for one in chosen:
            if one.start < one.end:
                tasks.append(LogPartition.of(one, one.start, one.end, in_stream=in_stream))
        return tasks
    points = [(one, cut_points(one)) for one in chosen if one.start < one.end]
    total_bytes = sum(found[-1][1] for _, found in points)
    limit = task_bytes(total_bytes, options.max_partition_bytes, options.min_partitions)
    for one, found in points:
        for span in cut_by_bytes(found, limit):
            parts = [span]
            if options.max_partition_records:
                behind = partial(past_gap, one.view, end=span.end)
                parts = cut_by_records(span, options.max_partition_records, behind)
            for part in parts:
                tasks.append(LogPartition.of(one, part.start, part.end, in_stream=in_stream))
    return tasks
