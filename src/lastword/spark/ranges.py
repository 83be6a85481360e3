"""Cutting a log into tasks: offset ranges of about the same number of bytes, from index entries alone.

On a compacted log a span of offsets says little about the work in it: a million offsets may hold ten
records. Bytes do, and the offset index knows them: each entry is (offset, position of its batch), one for
every few KiB. So a range is cut where an entry lies, no record is looked at, and no batch is read twice.

    segment 0                 segment 4711                       offsets   0 ......... 4711 ........... 9000
    |--e--e--e--e--e--e--|--e--e--e--e--e--|                     bytes     0 ......... 1 GB ........... 1.8 GB
             ^           ^          ^                            cut at the last entry that keeps a range in
             bounds
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Records with start <= offset < end; `size_bytes` is what a task reads for them, about."""

    start: int
    end: int
    size_bytes: int


def cut_by_bytes(points: Sequence[tuple[int, int]], limit_bytes: int) -> list[Span]:
    """Spans of at most `limit_bytes`, cut at points; a stretch without a point inside stays whole, however
    long.

    points  (offset, bytes before it), both rising; the first is where the read starts and the last is where
    it ends
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
    """The span in parts of at most `limit_records` offsets, without those that lie in a gap.

    past_gap  the first offset from the given one on that a batch holds, or the span's end
    """
    parts = []
    at = past_gap(span.start)
    while at < span.end:
        until = min(at + limit_records, span.end)
        parts.append(Span(at, until, span.size_bytes * (until - at) // (span.end - span.start)))
        at = past_gap(until)
    return parts


def task_bytes(total_bytes: int, limit_bytes: int, min_partitions: int | None) -> int:
    """How long a span may be, so that no task is too large and there are at least so many of them, about."""
    if not min_partitions:
        return limit_bytes
    return max(1, min(limit_bytes, -(-total_bytes // min_partitions)))
