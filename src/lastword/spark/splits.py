"""Split the log of one partition into tasks and micro-batches, by bytes, from index entries alone.

On a compacted log a span of offsets says little about its work: a million offsets may hold ten records. Bytes
do, and the offset index has them: each entry is (offset, position of its batch), one for every few KiB. So a
range is cut at index entries: no record is read for it, and no batch is read twice.

    segment 0                 segment 4711                       offsets   0 ......... 4711 ........... 9000
    |--e--e--e--e--e--e--|--e--e--e--e--e--|                     bytes     0 ......... 1 GB ........... 1.8 GB
             ^           ^          ^                            cut at the last entry that keeps a range in
             bounds

The view was loaded a moment ago, and a cleaning may have swapped files since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lastword.errors import FileVanishedError
from lastword.partition.view import PartitionView
from lastword.segment.segment import Segment
from lastword.spark.snapshot import Chosen

MAX_RELOADS = 100
"""How often files are listed again. Each time another cleaning must have been published in between."""


def cut_points(chosen: Chosen) -> list[tuple[int, int]]:
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


def _cut_points(chosen: Chosen) -> list[tuple[int, int]]:
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
