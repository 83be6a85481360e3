"""The tombstones of one ledger: which are blocked, when each may go, and which are garbage.

A tombstone is *blocked* while a closed segment holds an older record of its key: without the tombstone, that
record would be the newest. When the last older record has left the log, durably, the tombstone's clock
starts: until that moment a reader may have seen the old value. The tombstone is due when
`delete.retention.ms` have passed, and not before the delete horizon of its batch, if it has one. A due
tombstone is garbage: its bit is set, and a later record of the key does not count it again.

Copies of a key are counted up to 255. Beyond, or where copies left with a segment at the front of the log,
the last older copy is gone when every segment up to the tombstone's own was without garbage at some time
since the tombstone was appended.

Clocks are saved with the accounts. A lost clock starts again: later, never earlier. A clock for which there
was no room also starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lastword.accounts.tracking import Tracking
from lastword.partition.leases import LEASE, MAY_GO, NO_FLOOR, TombstoneFacts, held_by
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    from lastword.resolve import SegmentFacts
    from lastword.resolve.facts import Tombstones


class TombstoneClocks:
    """(offset, since) of tombstones that are not blocked, ascending by offset; at most `most` of them."""

    def __init__(self, most: int = 1 << 20) -> None:
        self.offset = np.empty(0, np.int64)
        self.since_ms = np.empty(0, np.int64)
        self._most = most

    def __len__(self) -> int:
        return self.offset.size

    @property
    def memory_bytes(self) -> int:
        """Return the memory of the arrays."""
        return self.offset.nbytes + self.since_ms.nbytes

    def update(self, live: Tombstones, now_ms: int) -> None:
        """Start the clocks of tombstones that are no longer blocked; drop those of removed tombstones."""
        free = live.offset[live.copies == 1][: self._most]
        since_ms = np.full(free.size, now_ms, np.int64)
        if self.offset.size and free.size:
            at = np.minimum(np.searchsorted(self.offset, free), self.offset.size - 1)
            known = self.offset[at] == free
            since_ms[known] = self.since_ms[at[known]]
        self.offset, self.since_ms = free, since_ms

    def held_by(
        self,
        live: Tombstones,
        now_ms: int,
        delete_retention_ms: int,
        *,
        floor: int = NO_FLOOR,
        keep: int = -1,
    ) -> NDArray[np.int64]:
        """Return the reason that keeps each tombstone with a clock (`leases.held_by`).

        Args:
            live: The live tombstones.
            now_ms: The time.
            delete_retention_ms: How long a clock runs.
            floor: The lowest offset that a reader with a lease has yet to read.
            keep: The offset at the log end, if no empty batch could take its place.
        """
        due_ms = self.due_ms(live, delete_retention_ms)
        has_older = live.copies[np.searchsorted(live.offset, self.offset)] > 1
        ends_file = self.offset == keep
        facts = TombstoneFacts(self.offset, due_ms, has_older=has_older, ends_file=ends_file)
        reasons: NDArray[np.int64] = held_by(facts, now_ms, floor)
        return reasons

    def due_ms(self, live: Tombstones, delete_retention_ms: int) -> NDArray[np.int64]:
        """Return when each tombstone is due, in milliseconds since 1970."""
        if not self.offset.size:
            return np.empty(0, np.int64)
        horizon_ms = live.horizon_ms[np.searchsorted(live.offset, self.offset)]
        room_ms = INT64_MAX - np.maximum(self.since_ms, 0)
        due_ms: NDArray[np.int64] = np.maximum(
            self.since_ms + np.minimum(delete_retention_ms, room_ms), horizon_ms
        )
        return due_ms


Clocks = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Offsets of tombstones, and since when each has had no older copy, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How long the known state of tombstones stays valid while the log is unchanged.

    Attributes:
        until_ms: When the next clock ends, in ms since 1970; -1: none runs.
        due_to: Highest offset of a due tombstone; -1: none is due.
        held_from: Lowest offset of a tombstone that only a lease keeps; `NO_FLOOR`: there is none.
    """

    until_ms: int = -1
    due_to: int = -1
    held_from: int = NO_FLOOR

    @property
    def depends_on_leases(self) -> bool:
        """Return whether the validity depends on leases."""
        return self.due_to >= 0 or self.held_from < NO_FLOOR

    def holds(self, now_ms: int, floor: int) -> bool:
        """Return whether the state is valid.

        Args:
            now_ms: The time.
            floor: The lowest offset that a reader with a lease has yet to read now.
        """
        return (self.until_ms < 0 or now_ms < self.until_ms) and self.due_to < floor <= self.held_from


class Deletes:
    """Clocks of live tombstones, and the ascending offsets of due ones.

    Attributes:
        ends_old: The log ends with a message of magic 0 or 1.
        saved_clocks: Clocks that were saved without the map; they continue when a scan has found their
            tombstones.
    """

    def __init__(self, tracking: Tracking) -> None:
        self.tracking = tracking
        self.clocks = TombstoneClocks(most=max(tracking.map_bytes // 8 // 16, 1024))
        self.due: NDArray[np.int64] = np.empty(0, np.int64)
        self.ends_old = False
        self.saved_clocks: Clocks | None = None
        self._live: Tombstones | None = None

    def live(self) -> Tombstones:
        """Return the live tombstones of segments in the log, ascending by offset.

        To be called before `clocks` is read: it removes the clocks of tombstones that left the log.
        """
        if self._live is None:
            running = self.tracking.running
            self._live = live = running.tombstones().since(self.tracking.first_offset)
            self._let_go_below(self.tracking.first_offset)
            if self.tracking.exact and (live.copies > 1).any():
                alone = (live.copies > 1) & self.tracking.alone(live.offset)
                running.set_only_copies(live.offset[alone])
                live.copies[alone] = 1
        return self._live

    def _let_go_below(self, offset: int) -> None:
        """Drop due tombstones and clocks of segments that left the log at its front."""
        self.due = self.due[self.due >= offset]
        if len(self.clocks) and int(self.clocks.offset[0]) < offset:
            clocks = copy(self.clocks)
            left = clocks.offset >= offset
            clocks.offset, clocks.since_ms = clocks.offset[left], clocks.since_ms[left]
            self.clocks = clocks

    def touched(self) -> None:
        """Drop the cached live tombstones: the map has changed."""
        self._live = None

    def mark(self, now_ms: int, delete_retention_ms: int, floor: int) -> int:
        """Mark tombstones that may go now as garbage; return how many became so."""
        live, tracking = self.live(), self.tracking
        self._renew(live, now_ms)
        due = self._over(now_ms, delete_retention_ms, floor)
        if due.size:
            tracking.running.mark_due(due)
            self.due = np.union1d(self.due, due)
            self.touched()
            self._renew(self.live(), now_ms)
        return int(due.size)

    def revive(self, floor: int) -> None:
        """Make due tombstones from `floor` on live again: a reader has yet to read them.

        Their clocks stay at their end.
        """
        offset, since_ms = self.running()
        self.tracking.running.revive(self.due[self.due >= floor])
        self.due = self.due[self.due < floor]
        self.touched()
        live = self.live()
        free = np.isin(offset, live.offset[live.copies == 1])
        self.clocks = copy(self.clocks)
        self.clocks.offset, self.clocks.since_ms = offset[free], since_ms[free]

    def _renew(self, live: Tombstones, now_ms: int) -> None:
        """Update the clocks in a copy.

        Another thread may be reading them (`running`): it gets the old ones or the new ones, whole.
        """
        clocks = copy(self.clocks)
        if self.saved_clocks is not None and not len(clocks):
            clocks.offset, clocks.since_ms = self.saved_clocks
        clocks.update(live, now_ms)
        self.clocks, self.saved_clocks = clocks, None

    def _over(self, now_ms: int, delete_retention_ms: int, floor: int) -> NDArray[np.int64]:
        """Return the offsets of tombstones in the log, below `floor`, whose clocks have ended."""
        keep = self.tracking.running.limit - 1 if self.ends_old else -1
        live = self.live()
        held = self.clocks.held_by(live, now_ms, delete_retention_ms, floor=floor, keep=keep)
        over: NDArray[np.int64] = self.clocks.offset[held == MAY_GO]
        return over[over >= self.tracking.first_offset]

    def standing(self, now_ms: int, delete_retention_ms: int) -> Standing:
        """Return how long the state stays valid. Call after `mark`."""
        live = self.live()
        due_ms = self.clocks.due_ms(live, delete_retention_ms)
        later = due_ms[due_ms > now_ms]
        held = self._over(now_ms, delete_retention_ms, NO_FLOOR)
        return Standing(
            int(later.min()) if later.size else -1,
            int(self.due[-1]) if self.due.size else -1,
            int(held[0]) if held.size else NO_FLOOR,
        )

    def running(self) -> Clocks:
        """Return the clocks, ascending by offset; the clock of a due tombstone has ended.

        May be called while another thread holds the ledger.
        """
        clocks = self.clocks
        offset = np.union1d(clocks.offset, self.due)
        since_ms = np.full(offset.size, -(1 << 62), np.int64)
        since_ms[np.searchsorted(offset, clocks.offset)] = clocks.since_ms
        return offset, since_ms

    def held_back(self, now_ms: int, delete_retention_ms: int, floor: int) -> NDArray[np.int64]:
        """Return the offsets from `floor` on whose clocks have ended: a reader with a lease keeps them."""
        if not self.tracking.exact:
            return np.empty(0, np.int64)
        held = self.clocks.held_by(self.live(), now_ms, delete_retention_ms, floor=floor)
        offsets: NDArray[np.int64] = self.clocks.offset[held == LEASE]
        return offsets

    def due_ms(self, offset: int, delete_retention_ms: int) -> int | None:
        """Return when the tombstone at `offset` may go, in ms since 1970; 0: it is garbage already.

        None while no clock runs for it.
        """
        if (self.due == offset).any():
            return 0
        if self.saved_clocks is not None:
            since_ms = dict(zip(*(array.tolist() for array in self.saved_clocks), strict=True)).get(offset)
            return None if since_ms is None else max(since_ms + delete_retention_ms, 0)
        live = self.live()
        at = int(np.searchsorted(self.clocks.offset, offset))
        if at == len(self.clocks) or self.clocks.offset[at] != offset:
            return None
        return int(self.clocks.due_ms(live, delete_retention_ms)[at])

    def next_due(self, delete_retention_ms: int) -> tuple[int, int]:
        """Return (offset, ms) of the tombstone that is due next; (-1, -1) while no clock runs."""
        due_ms = self.clocks.due_ms(self.live(), delete_retention_ms)
        if not due_ms.size:
            return -1, -1
        first = int(np.argmin(due_ms))
        return int(self.clocks.offset[first]), int(due_ms[first])

    def due_between(self, first_offset: int, next_offset: int) -> int:
        """Return the highest offset of a tombstone that a rewrite of this range drops; -1: none."""
        first, end = np.searchsorted(self.due, (first_offset, next_offset)).tolist()
        return int(self.due[end - 1]) if end > first else -1

    def rewritten(self, first_offset: int, next_offset: int) -> None:
        """Forget the due tombstones of a range that was rewritten, durably."""
        first, end = np.searchsorted(self.due, (first_offset, next_offset)).tolist()
        if end > first:
            self.due = np.delete(self.due, slice(first, end))

    def blocked_bytes(self, facts: Sequence[SegmentFacts]) -> list[int]:
        """Return the bytes of blocked tombstones in each segment."""
        if not facts or not self.tracking.exact or not any(segment.tombstones for segment in facts):
            return [0] * len(facts)
        live = self.live()
        held = (live.copies > 1) & (live.offset >= self.tracking.first_offset)
        bases = np.array([segment.base_offset for segment in facts], np.int64)
        at = np.searchsorted(bases, live.offset[held], side="right") - 1
        blocked: list[int] = np.bincount(at, live.size_bytes[held], len(facts)).astype(np.int64).tolist()
        return blocked
