"""Leases in a round: which tombstones may go, and the last look before they do.

A tombstone at or above the floor of the live leases is not due, whatever its horizon says. Leases come and go
while a round maps and rewrites, so right before a swap that drops tombstones the round notes, durably, how
high they reach, and reads the leases again. One that stands below by now stops the round there: nothing of
this group is published, nor of those above it, and a later round finds the new floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lastword.cleaner.steps import Stopped
from lastword.clock import Clock
from lastword.files import Files
from lastword.partition import leases

if TYPE_CHECKING:
    from lastword.records.chunk import Chunk
    from lastword.resolve import DeadBitmaps, SegmentFacts, SegmentSource

NONE_DROPPED = -1


class LeaseCame(Stopped):
    """A reader has taken a lease below a tombstone that was about to go."""


def highest_due(
    sources: Sequence[SegmentSource],
    facts: Sequence[SegmentFacts],
    dead: DeadBitmaps,
    *,
    now_ms: int,
    due_below: int,
) -> int:
    """The highest offset of a tombstone that is dead for its age in these segments; `NONE_DROPPED` without.

    May name one too high, of a batch with a due one: a tombstone that was replaced. Never one too low, and
    never one at or above `due_below`. Reads the last segment that has any.
    """
    for source, one in zip(reversed(sources), reversed(facts), strict=True):
        if one.due_tombstones and one.base_offset < due_below:
            found = NONE_DROPPED
            for chunk in source.chunk_reader(verify=True):
                found = max(found, _highest_of(chunk, dead, now_ms, due_below))
            if found != NONE_DROPPED:
                return found
    return NONE_DROPPED


def _highest_of(chunk: Chunk, dead: DeadBitmaps, now_ms: int, due_below: int) -> int:
    import numpy as np

    from lastword.kernels import table as fields
    from lastword.records.columns import decode_columns

    attributes, magic = chunk.table[:, fields.ATTRIBUTES], chunk.table[:, fields.MAGIC]
    clocked = (attributes & fields.HORIZON) != 0
    due = (magic < 2) | (clocked & (chunk.table[:, fields.BASE_TIMESTAMP] <= now_ms))
    if not (due & chunk.data_rows()).any():
        return NONE_DROPPED
    columns = decode_columns(chunk)
    asked = (columns.value_length < 0) & (columns.key_length >= 0) & due[columns.row]
    offsets = columns.offset[asked & (columns.offset < due_below)]
    offsets = offsets[dead.mask(np.ascontiguousarray(offsets))]
    return int(offsets.max()) if offsets.size else NONE_DROPPED


def check(files: Files, directory: str, clock: Clock, dropped_tombstone: int) -> None:
    """Right before a swap that drops tombstones up to this offset (`NONE_DROPPED`: none). The order protects
    readers: one that takes a lease later meets the note, one that took it before is met here.

    LeaseCame: this group must not be published.
    """
    if dropped_tombstone == NONE_DROPPED:
        return
    if leases.load(files, directory, clock.now_ms()).floor > dropped_tombstone:
        leases.note_dropped(files, directory, dropped_tombstone)
        if leases.load(files, directory, clock.now_ms()).floor > dropped_tombstone:
            return
    raise LeaseCame
