"""Where the log of one partition may be cut into tasks and micro-batches: behind index entries, and not in
gaps. Names and indexes are looked at, no record.

The view that is cut was made a moment ago, and a cleaning may have swapped files since.
"""

from __future__ import annotations

from lastword.errors import FileVanishedError
from lastword.partition.view import PartitionView
from lastword.segment.segment import Segment
from lastword.spark.snapshot import Chosen

MAX_RELOADS = 100
"""How often files are looked for again. Each time another cleaning must have been published in between."""


def cut_points(chosen: Chosen) -> list[tuple[int, int]]:
    """(offset, bytes before it) where a range may be cut: behind the batch that an index entry points at.

    An entry holds the last offset of its batch, so the next offset begins a batch and nothing is read
    twice. A damaged index can only make ranges uneven, since a range is made of offsets. Files that were
    swapped since the view was made are looked up again.
    """
    for _ in range(MAX_RELOADS):
        try:
            return _cut_points(chosen)
        except FileVanishedError:
            if not chosen.view.files.is_dir(chosen.directory):
                break
            chosen.view.refresh()
    return [(chosen.start, 0), (chosen.end, 0)]  # its one task tells what is gone


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
    """Segments that may hold records with start <= offset < end."""
    found = []
    segments = view.segments
    for i, segment in enumerate(segments):
        following = segments[i + 1].base_offset if i + 1 < len(segments) else None
        if segment.base_offset < end and (following is None or following > start):
            found.append(segment)
    return found


def past_gap(view: PartitionView, offset: int, end: int) -> int:
    """`offset`, or where it lies in a gap that a cleaning left, the gap's end (at most `end`): no task and no
    batch is spent on offsets that no record has."""
    if offset >= end:
        return end
    try:
        for segment in overlapping(view, offset, end):
            for header in segment.headers(segment.position_of(offset)):
                # An older set of compressed messages has its last offset alone in its header.
                return offset if header.magic < 2 else max(offset, min(header.base_offset, end))
    except FileVanishedError:  # swapped meanwhile: then it is read as any other offset
        return offset
    return end
