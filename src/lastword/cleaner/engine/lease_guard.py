"""Leases in a cleaning: which tombstones may go, and the last check before they do.

A tombstone at or above the floor of the live leases is not due, whatever its horizon says. Leases are taken
and released while a cleaning scans and rewrites. So right before a swap that drops tombstones the cleaning
notes the highest of their offsets, durably, and reads the leases again. A lease below it stops the cleaning
there: this group and those above it are not published, and a later cleaning uses the new floor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.cleaner.engine.throttle import Stopped
from lastword.cleaner.policy import plan as codes
from lastword.cleaner.policy.plan import Reason
from lastword.clock import Clock
from lastword.files import Files
from lastword.partition import leases, removal_log
from lastword.partition.leases import LEASE, MAY_GO, Leases, TombstoneFacts, held_by
from lastword.units import format_time
from lastword.wire import DELETE_HORIZON_BIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lastword.cleaner.engine.cleaning import ScanResult
    from lastword.cleaner.policy.groups import SegmentGroup
    from lastword.records.chunk import Chunk

NONE_DROPPED = -1


class LeaseCame(Stopped):
    """A reader has taken a lease below a tombstone that was about to go."""


def highest_due(scan: ScanResult, group: SegmentGroup, now_ms: int, floor: int) -> int:
    """Return the highest offset of a tombstone that a group drops for its age; `NONE_DROPPED`: none.

    The offset may be too high: a superseded tombstone counts too if the horizon of its batch has passed. It
    is never too low, and a lease never keeps that tombstone. Reads only the last segment that has one.
    """
    dead = scan.resolution.dead
    for number in range(group.last, group.first - 1, -1):
        source, facts = scan.sources[number], scan.resolution.segments[number]
        if facts.due_tombstones and facts.base_offset < floor:
            highest = NONE_DROPPED
            for chunk in source.chunk_reader(verify=True):
                offsets = _held_by(MAY_GO, chunk, now_ms, floor, old_due=True)
                offsets = offsets[dead.mask(offsets)]
                highest = max(highest, int(offsets.max()) if offsets.size else NONE_DROPPED)
            if highest != NONE_DROPPED:
                return highest
    return NONE_DROPPED


def held_back(scan: ScanResult, now_ms: int) -> NDArray[np.int64]:
    """Return the offsets of live tombstones that only a lease keeps. Reads segments that may have any."""
    import numpy as np

    dead, floor = scan.resolution.dead, scan.leases.floor
    parts = [np.empty(0, np.int64)]
    for source, segment in zip(scan.sources, scan.resolution.segments, strict=True):
        if segment.tombstones and segment.next_offset > floor:
            for chunk in source.chunk_reader(verify=True):
                offsets = _held_by(LEASE, chunk, now_ms, floor, old_due=False)
                parts.append(offsets[~dead.mask(offsets)])
    return np.concatenate(parts)


def reason(held: Leases, offsets: NDArray[np.int64]) -> Reason | None:
    """Return why the tombstones at these offsets stay; None if there are none."""
    lowest = held.lowest
    if lowest is None or not offsets.size:
        return None
    waiting = "1 tombstone waits" if offsets.size == 1 else f"{offsets.size} tombstones wait"
    lapses = format_time(lowest.lapses_ms)
    return Reason(codes.LEASE, f"{lowest.name} is at {lowest.position}, lapses {lapses}: {waiting}")


def _held_by(reason: int, chunk: Chunk, now_ms: int, floor: int, *, old_due: bool) -> NDArray[np.int64]:
    """Return the offsets of the tombstones of a chunk that this reason keeps.

    `old_due`: tombstones of magic 0 and 1 count as due; these formats have no delete horizon.
    """
    import numpy as np

    from lastword.kernels import table as fields
    from lastword.records.columns import decode_columns

    old = (chunk.table[:, fields.MAGIC] < 2) & old_due
    has_horizon = ((chunk.table[:, fields.ATTRIBUTES] & DELETE_HORIZON_BIT) != 0) | old
    horizon_ms = np.where(old, now_ms, chunk.table[:, fields.BASE_TIMESTAMP])
    if not (has_horizon & (horizon_ms <= now_ms) & chunk.data_rows()).any():
        return np.empty(0, np.int64)
    columns = decode_columns(chunk)
    row = columns.row
    held = held_by(TombstoneFacts(columns.offset, horizon_ms[row], has_horizon[row]), now_ms, floor)
    wanted = (columns.value_length < 0) & (columns.key_length >= 0) & (held == reason)
    return np.ascontiguousarray(columns.offset[wanted])


def check(files: Files, directory: str, clock: Clock, dropped_tombstone: int) -> None:
    """Note that a swap drops tombstones up to this offset, then check the leases again.

    To be called right before the swap; `NONE_DROPPED`: the swap drops none. The order protects readers: a
    reader that takes a lease later reads the note, and a lease that was taken before is found here.

    Raises:
        LeaseCame: This group must not be published.
    """
    if dropped_tombstone == NONE_DROPPED:
        return
    if leases.load(files, directory, clock.now_ms()).floor > dropped_tombstone:
        removal_log.note_dropped(files, directory, dropped_tombstone)
        if leases.load(files, directory, clock.now_ms()).floor > dropped_tombstone:
            return
    raise LeaseCame
