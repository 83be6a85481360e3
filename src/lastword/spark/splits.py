"""Plan a read: choose partitions and offsets, and split them into tasks.

Everything here reads the log without a lock, as recovery would see it.

Ranges are split by bytes, from index entries alone. On a compacted log the number of offsets says little
about the work of a task: a million offsets may hold ten records. The offset index has the bytes: each entry
is (offset, position of its batch), with a few KiB between entries. A range is cut at index entries, so
planning reads no record, and no batch is read twice. Many small partitions share tasks (`share_tasks`).

    segment 0                 segment 4711                       offsets   0 ......... 4711 ........... 9000
    |--e--e--e--e--e--e--|--e--e--e--e--e--|                     bytes     0 ......... 1 GB ........... 1.8 GB
             ^           ^          ^                            cut at the last entry below the limit

A cleaning may have swapped files since the view was loaded.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql.datasource import InputPartition

from lastword.errors import (
    FileVanishedError,
    OffsetOutOfRangeError,
    ReadOvertakenError,
    SparkOptionError,
    UnknownTopicError,
)
from lastword.files import Files
from lastword.keys.manifest import look_up
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.directory_segments import PortableVersion
from lastword.partition.moment import check_answerable
from lastword.partition.view import PartitionView
from lastword.spark.bucket import open_directory
from lastword.spark.options import EARLIEST, LATEST, Bound, ReadOptions, TopicSelection
from lastword.wire import INT64_MAX

# ---------------------------------------------------------------- partitions and offsets


log = logging.getLogger(__name__)
MAX_RELOADS = 100
"""The limit for listing files again. Each time, another cleaning must have been published in between."""

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics of brokers. As in Kafka's consumers, a pattern does not match them; a name does."""


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
        """Return `topic-partition`."""
        return f"{self.topic}-{self.partition}"


def choose(options: ReadOptions, files: Files | None = None) -> list[PartitionRange]:
    """Return every partition to read, in order of topic and number. For a stream: at its start.

    Raises:
        NotALogDirError, UnknownTopicError: The directory or a topic does not exist.
        SparkOptionError: JSON names other partitions than those that are read, or a given start is above the
            end.
        OffsetOutOfRangeError: Records are lost, unless failOnDataLoss is false.
    """
    directory = open_directory(options.path, options.storage, files)
    existing = directory.partitions_by_topic()
    selected = pick(existing, options.selection, options.path)
    for bound_name, bound in (("starting", options.start), ("ending", options.end)):
        _check_named(bound, selected, bound_name)
    ids = {topic: directory.topic_id(topic) for topic in {topic for topic, _ in selected}}
    return [_bounded(directory, topic, number, ids[topic], options) for topic, number in selected]


def pick(existing: dict[str, list[int]], selection: TopicSelection, path: str) -> list[tuple[str, int]]:
    """Return (topic, partition) of each selected partition.

    UnknownTopicError if a named topic or partition is missing. A pattern may match nothing.
    """
    if selection.pattern is not None:
        topics = matching(selection.pattern, existing)
        return [(topic, number) for topic in topics for number in existing[topic]]
    if selection.assigned:
        selected = []
        for topic, numbers in sorted(selection.assigned.items()):
            _require(topic, existing, path)
            missing = sorted(set(numbers) - set(existing[topic]))
            if missing:
                raise UnknownTopicError(
                    f"{topic} in {path} has no partition {', '.join(map(str, missing))}",
                    remedy=f"its partitions: {', '.join(map(str, existing[topic]))}",
                    file=path,
                )
            selected += [(topic, number) for number in numbers]
        return selected
    for topic in selection.topics:
        _require(topic, existing, path)
    return [(topic, number) for topic in sorted(selection.topics) for number in existing[topic]]


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return the topics whose whole name matches the pattern."""
    matches = re.compile(pattern).fullmatch
    return [topic for topic in topics if matches(topic) and topic not in INTERNAL_TOPICS]


def _require(topic: str, existing: Iterable[str], path: str) -> None:
    if topic not in existing:
        raise UnknownTopicError.named(topic, path, existing)


def _check_named(bound: Bound, selected: list[tuple[str, int]], bound_name: str) -> None:
    """Raise SparkOptionError unless JSON names exactly the partitions that are read, as in Kafka's source."""
    given = bound.named()
    if given is None:
        return
    named = {(topic, number) for topic, numbers in given.items() for number in numbers}
    missing, extra = sorted(set(selected) - named), sorted(named - set(selected))
    if missing or extra:
        parts = [f"lacks {_listed(missing)}"] if missing else []
        parts += [f"names {_listed(extra)}, not read here"] if extra else []
        raise SparkOptionError(
            f"the JSON of {bound_name} offsets {' and '.join(parts)}",
            remedy="name exactly the partitions that are read",
        )


def _listed(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions)


def _bounded(
    directory: LogDirectory, topic: str, number: int, topic_id: str | None, options: ReadOptions
) -> PartitionRange:
    """Compute start and end of one partition from one listing of its files.

    The view lists the files again if a file vanishes while a time or the last stable offset is read. Then
    both offsets are computed again: with newer files, an end of "latest" from the older files would be
    refused as an end that a cleaning has passed.

    Raises:
        OffsetOutOfRangeError: The range was lost, or its newest values were removed (`moment`). Each task
            checks the second again, in the files that it has opened.
        SparkOptionError: The given start is above the end.
        ReadOvertakenError: Files were replaced MAX_RELOADS times.
    """
    view = directory.view(topic, number)
    for _ in range(MAX_RELOADS):
        listed = view.segment_set
        try:
            range_ = _range_of(view, topic, number, topic_id, options)
            if options.view != "log" and range_.start < range_.end:
                check_answerable(view, range_.end)
        except FileVanishedError:
            view.refresh()
        except (OffsetOutOfRangeError, SparkOptionError):
            if view.segment_set is listed:
                raise
        else:
            if view.segment_set is listed:
                held_back = None if options.view == "log" else view.held_back(range_.end)
                if held_back is not None:
                    log.warning(held_back)
                return range_
    raise ReadOvertakenError.of(f"{topic}-{number}", view.directory)


def _range_of(
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
    for offset, bound_name in ((start, "start"), (end, "end")):
        if offset > view.log_end and options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{name}: the {bound_name}, offset {offset}, is above log end {view.log_end}: "
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
            start = min(start, view.stable_offset)  # an open transaction is read when it is decided
        end = max(start, min(end, view.stable_offset))
    return PartitionRange(
        topic, number, view.directory, view, start, end, from_end=given is None, topic_id=topic_id
    )


def _check_order(view: PartitionView, name: str, given: int | None, end: int, options: ReadOptions) -> None:
    """Check a start above the end: a mistake, a loss, or nothing to read."""
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
        given = _given_offset(options.start, topic, number)
        return {EARLIEST: view.log_start, LATEST: None}.get(given, given)
    offset = view.offset_at(at)
    if offset is None and options.late_start == "error":
        raise OffsetOutOfRangeError(
            f"{name}: no record is as young as the start time {at}",
            remedy="take an earlier time, or set startingOffsetsByTimestampStrategy to latest",
        )
    return offset


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


def cut_points(range_: PartitionRange) -> list[tuple[int, int]]:
    """Return (offset, bytes before it) for each offset at which a range may be cut.

    An index entry holds the last offset of its batch, so the next offset begins a batch. A damaged index can
    only make ranges uneven, because a range consists of offsets. Files that were swapped since the view was
    loaded are listed again.
    """
    if range_.view.files.file_cost_bytes:  # as an index has
        return _cut_points_by_size(range_)
    for _ in range(MAX_RELOADS):
        try:
            return _cut_points(range_)
        except FileVanishedError:
            if not range_.view.files.is_dir(range_.directory):
                break
            range_.view.refresh()
    return [(range_.start, 0), (range_.end, 0)]  # one task, which raises the error


def _cut_points(range_: PartitionRange) -> list[tuple[int, int]]:
    points = [(range_.start, 0)]
    before = 0
    for segment in range_.view.segment_set.between(range_.start, range_.end):
        first = segment.position_of(range_.start)
        last = segment.end_position_of(range_.end)
        for entry in segment.offset_index.entries():
            offset, position = entry.offset + 1, before + entry.position - first
            if (
                first < entry.position < last
                and points[-1][0] < offset < range_.end
                and position > points[-1][1]
            ):
                points.append((offset, position))
        before += max(last - first, 0)
        if points[-1][0] < segment.next_offset < range_.end and before > points[-1][1]:
            points.append((segment.next_offset, before))
    points.append((range_.end, max(before, points[-1][1])))
    return points


def _cut_points_by_size(range_: PartitionRange) -> list[tuple[int, int]]:
    """As `cut_points`, from the sizes of segments alone: in a bucket each index costs a request.

    A segment is cut at equal distances of offsets. If its records have gaps, the parts differ in bytes, but
    no part is larger than the segment.
    """
    points = [(range_.start, 0)]
    before = 0
    segments = range_.view.segment_set.between(range_.start, INT64_MAX)
    bases = [segment.base_offset for segment in segments]
    for segment, next_base in zip(segments, [*bases[1:], range_.view.log_end], strict=True):
        first, end = max(segment.base_offset, range_.start), min(next_base, range_.end)
        if first >= end:
            continue
        size_bytes = segment.size * (end - first) // (next_base - segment.base_offset)
        pieces = min(size_bytes // CUT_BYTES + 1, end - first)
        for piece in range(1, pieces + 1):
            offset, position = first + (end - first) * piece // pieces, before + size_bytes * piece // pieces
            if points[-1][0] < offset < range_.end and position > points[-1][1]:
                points.append((offset, position))
        before += size_bytes
    points.append((range_.end, max(before, points[-1][1])))
    return points


CUT_BYTES = 1 << 20
"""The distance of the offsets at which a segment in a bucket may be cut."""


def past_gap(view: PartitionView, offset: int, end: int) -> int:
    """Return `offset`, or the end of the gap (at most `end`) if a cleaning left no record there.

    So no task and no micro-batch covers only a gap.
    """
    if offset >= end:
        return end
    try:
        for segment in view.segment_set.between(offset, end):
            for header in segment.headers(segment.position_of(offset)):
                # The header of an older set of compressed messages has only its last offset.
                return offset if header.magic < 2 else max(offset, min(header.base_offset, end))
    except FileVanishedError:  # swapped meanwhile: the offset is not skipped
        return offset
    return end


@dataclass(frozen=True, slots=True)
class Span:
    """Records with start <= offset < end. `size_bytes`: about the bytes that a task reads for them."""

    start: int
    end: int
    size_bytes: int


def cut_by_bytes(points: Sequence[tuple[int, int]], limit_bytes: int) -> list[Span]:
    """Return spans of at most `limit_bytes`, cut at points. A range without a point inside stays whole.

    Args:
        points: (offset, bytes before it), both rising, from the start of the read to its end.
        limit_bytes: Limit for the bytes of a span.
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
        span: The span.
        limit_records: Limit for the offsets of a part.
        past_gap: Returns the first offset, from the given offset on, that a batch holds, or the span's end.
    """
    parts = []
    at = past_gap(span.start)
    while at < span.end:
        until = min(at + limit_records, span.end)
        parts.append(Span(at, until, span.size_bytes * (until - at) // (span.end - span.start)))
        at = past_gap(until)
    return parts


def task_bytes(total_bytes: int, limit_bytes: int, min_partitions: int | None) -> int:
    """Return the limit for a span's bytes, so that there are about `min_partitions` tasks at least."""
    if not min_partitions:
        return limit_bytes
    return max(1, min(limit_bytes, -(-total_bytes // min_partitions)))


# ---------------------------------------------------------------- tasks


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """The input of one task, or a part of it: the records of one partition with start <= offset < end.

    topic_id   id of the planned topic, if it has one; another topic of that name has other records
    in_stream  the task is part of a micro-batch; records above `end` are in later micro-batches
    version    the segments of the plan, if they are few: the task lists the partition only if one is gone
    found      the offset and key of each newest record below `indexed_to`, from a key index; None: not known
    """

    topic: str
    partition: int
    directory: str
    start: int
    end: int
    topic_id: str | None = None
    in_stream: bool = False
    version: PortableVersion | None = None
    found: tuple[tuple[int, bytes], ...] | None = None
    indexed_to: int = 0

    @classmethod
    def of(cls, range_: PartitionRange, start: int, end: int, *, in_stream: bool = False) -> LogPartition:
        """Return a part of the range."""
        view = range_.view
        version = view.to_portable() if len(view.segment_set) <= MOST_SENT_SEGMENTS else None
        return cls(
            range_.topic, range_.partition, range_.directory, start, end, range_.topic_id, in_stream, version
        )

    @property
    def name(self) -> str:
        """Return `topic-partition`."""
        return f"{self.topic}-{self.partition}"


MOST_SENT_SEGMENTS = 8
"""The segments of a partition travel with its tasks if there are at most this many."""
FEW_TASKS = 16
"""Up to this many parts of partitions are a task each. More parts share tasks, but no fewer than this."""
SHARED_TASK_BYTES = 16 << 20
"""Parts share a task up to about this many bytes. To start a task costs as much as to read a megabyte."""
OPENING_BYTES = 64 << 10
"""What opening a partition costs, as bytes to read."""


@dataclass(frozen=True)
class SharedTask(InputPartition):
    """The input of one task that reads several small parts of partitions, one after another."""

    parts: tuple[LogPartition, ...]


def parts_of(task: InputPartition) -> tuple[LogPartition, ...]:
    """Return the parts that a task reads. Spark passes another type if the plan is empty."""
    if isinstance(task, SharedTask):
        return task.parts
    return (task,) if isinstance(task, LogPartition) else ()


def plan(
    ranges: list[PartitionRange], options: ReadOptions, *, in_stream: bool = False
) -> list[InputPartition]:
    """Return the tasks. With `view` newest or changes, one task reads all records of a partition."""
    parts: list[tuple[LogPartition, int]] = []
    if options.view != "log":
        for range_ in ranges:
            if range_.start < range_.end:
                part = LogPartition.of(range_, range_.start, range_.end, in_stream=in_stream)
                size_bytes = _bytes_between(range_.view, range_.start, range_.end)
                parts.append((part, size_bytes) if in_stream else _indexed(part, range_, size_bytes, options))
        return share_tasks(parts, options)
    points = [(range_, cut_points(range_)) for range_ in ranges if range_.start < range_.end]
    total_bytes = sum(cuts[-1][1] for _, cuts in points)
    limit = task_bytes(total_bytes, options.max_partition_bytes, options.min_partitions)
    for range_, cuts in points:
        for span in cut_by_bytes(cuts, limit):
            spans = [span]
            if options.max_partition_records:
                behind = partial(past_gap, range_.view, end=span.end)
                spans = cut_by_records(span, options.max_partition_records, behind)
            for span in spans:
                part = LogPartition.of(range_, span.start, span.end, in_stream=in_stream)
                parts.append((part, span.size_bytes))
    return share_tasks(parts, options)


def _bytes_between(view: PartitionView, start: int, end: int) -> int:
    return sum(segment.size for segment in view.segment_set.between(start, end)) if start < end else 0


KEY_BYTES = 16 << 10
"""About the bytes that a task reads for a key that a key index has found: some batches, twice."""
MOST_UNINDEXED_BYTES = 64 << 20
"""The log above a key index that a task may have. Its newest records of the keys are held in memory."""


def _indexed(
    part: LogPartition, range_: PartitionRange, size_bytes: int, options: ReadOptions
) -> tuple[LogPartition, int]:
    """Return a part of view newest and its bytes, with the records that the saved key index names.

    Without a change if the option `keys` is not given, if the keys are too many to gain, or if the index ends
    far from the end of the range. In a bucket a key costs as much as the requests of a segment.
    """
    keys, view = options.keys, range_.view
    if keys is None or options.view != "newest" or options.isolation != "read_committed":
        return part, size_bytes
    cost_bytes = view.files.file_cost_bytes
    key_bytes = max(KEY_BYTES, int(cost_bytes))
    segments = view.segment_set.between(range_.start, range_.end)
    if len(keys) * key_bytes > size_bytes + len(segments) * cost_bytes:
        return part, size_bytes
    index = look_up(view, keys)
    if index is None or not range_.start < index[0] <= range_.end:
        return part, size_bytes
    end, offsets = index
    above_bytes = _bytes_between(view, end, range_.end)
    if above_bytes > MOST_UNINDEXED_BYTES:
        return part, size_bytes
    found = tuple(sorted(offsets.items()))
    return replace(part, found=found, indexed_to=end), above_bytes + len(found) * key_bytes


def share_tasks(parts: Sequence[tuple[LogPartition, int]], options: ReadOptions) -> list[InputPartition]:
    """Return a task for each part, or if there are many, for each run of small neighbouring parts.

    The number of tasks then follows the bytes, and not the number of partitions.

    Args:
        parts: Each part with its bytes, in the order of the rows.
        options: A shared task keeps their limits of bytes and offsets, and their least number of tasks.
    """
    least = max(FEW_TASKS, options.min_partitions or 0)
    if len(parts) <= least:
        return [part for part, _ in parts]
    limit_bytes = min(SHARED_TASK_BYTES, options.max_partition_bytes)
    limit_records = options.max_partition_records or INT64_MAX
    tasks = _shared(parts, limit_bytes, limit_records)
    while len(tasks) < least:
        limit_bytes = limit_bytes * 3 // 4
        tasks = _shared(parts, limit_bytes, limit_records)
    return tasks


def _shared(
    parts: Sequence[tuple[LogPartition, int]], limit_bytes: int, limit_records: int
) -> list[InputPartition]:
    tasks: list[InputPartition] = []
    shared: list[LogPartition] = []
    task_bytes = task_records = 0
    for part, size_bytes in parts:
        size_bytes, records = size_bytes + OPENING_BYTES, part.end - part.start
        if shared and (task_bytes + size_bytes > limit_bytes or task_records + records > limit_records):
            tasks.append(_task_of(shared))
            shared, task_bytes, task_records = [], 0, 0
        shared.append(part)
        task_bytes, task_records = task_bytes + size_bytes, task_records + records
    tasks.append(_task_of(shared))
    return tasks


def _task_of(parts: list[LogPartition]) -> InputPartition:
    return parts[0] if len(parts) == 1 else SharedTask(tuple(parts))
