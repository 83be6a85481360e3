"""When a tombstone may go: the clocks of those that no older copy of their key holds back any more.

A tombstone is *blocked* while a closed segment still holds an older record of its key: if it went first, that
record would be the newest. When the last older copy has left the log, durably, its clock starts, for until
that very moment a reader may have seen the old value. It is due when `delete.retention.ms` have passed, and
not before the delete horizon of its batch, if it has one.

Copies of a key are counted up to 255. Beyond, or where some left with a segment at the front of the log, the
last has gone when every segment up to the tombstone's own was without garbage at some time since it came.

Clocks are saved with the accounts. Lost, they start again: later, never earlier. So do those for which there
was no room.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lastword.partition.leases import NO_FLOOR
from lastword.partition.tombstones import MAY_GO, TombstoneFacts, held_by
from lastword.wire import INT64_MAX


class LiveTombstones(Protocol):
    """Live tombstones, ascending by offset, as `resolve.running` tells of them. `copies` uint8: records of
    the key in closed segments, the tombstone included; 255: that many or more. `horizon_ms` int64, -1: none.
    """

    @property
    def offset(self) -> NDArray[np.int64]: ...
    @property
    def copies(self) -> NDArray[np.uint8]: ...
    @property
    def size_bytes(self) -> NDArray[np.int64]: ...
    @property
    def horizon_ms(self) -> NDArray[np.int64]: ...


class TombstoneClocks:
    """(offset, since) of tombstones that are not blocked, ascending by offset. At most `most` of them."""

    def __init__(
        self,
        offset: NDArray[np.int64] | None = None,
        since_ms: NDArray[np.int64] | None = None,
        *,
        most: int = 1 << 20,
    ) -> None:
        self.offset = np.empty(0, np.int64) if offset is None else offset
        self.since_ms = np.empty(0, np.int64) if since_ms is None else since_ms
        self._most = most

    def __len__(self) -> int:
        return self.offset.size

    @property
    def memory_bytes(self) -> int:
        return self.offset.nbytes + self.since_ms.nbytes

    def update(self, found: LiveTombstones, now_ms: int) -> None:
        """Start the clocks of those that became free, stop those of the ones that are gone."""
        free = found.offset[found.copies == 1][: self._most]
        since_ms = np.full(free.size, now_ms, np.int64)
        if self.offset.size and free.size:
            at = np.minimum(np.searchsorted(self.offset, free), self.offset.size - 1)
            known = self.offset[at] == free
            since_ms[known] = self.since_ms[at[known]]
        self.offset, self.since_ms = free, since_ms

    def due(
        self,
        found: LiveTombstones,
        now_ms: int,
        delete_retention_ms: int,
        *,
        floor: int = NO_FLOOR,
        keep: int = -1,
    ) -> NDArray[np.int64]:
        """Return the offsets of the tombstones that may go now."""
        return self.offset[self.held_by(found, now_ms, delete_retention_ms, floor=floor, keep=keep) == MAY_GO]

    def held_by(
        self,
        found: LiveTombstones,
        now_ms: int,
        delete_retention_ms: int,
        *,
        floor: int = NO_FLOOR,
        keep: int = -1,
    ) -> Any:
        """Return what keeps each tombstone whose clock runs (`partition.tombstones`).

        Args:
            floor: the lowest offset that a reader with a lease has yet to read.
            keep: the offset at the log end, if no empty batch could take its place.
        """
        due_ms = self.due_ms(found, delete_retention_ms)
        has_older = found.copies[np.searchsorted(found.offset, self.offset)] > 1
        ends_file = self.offset == keep
        facts = TombstoneFacts(self.offset, due_ms, has_older=has_older, ends_file=ends_file)
        return held_by(facts, now_ms, floor)

    def first_due(self, found: LiveTombstones, delete_retention_ms: int) -> tuple[int, int]:
        """(offset, ms) of the one that is due first; (-1, -1) if no clock runs."""
        if not self.offset.size:
            return -1, -1
        due_ms = self.due_ms(found, delete_retention_ms)
        first = int(np.argmin(due_ms))
        return int(self.offset[first]), int(due_ms[first])

    def due_ms(self, found: LiveTombstones, delete_retention_ms: int) -> NDArray[np.int64]:
        """When each is due, in milliseconds since 1970."""
        if not self.offset.size:
            return np.empty(0, np.int64)
        horizon_ms = found.horizon_ms[np.searchsorted(found.offset, self.offset)]
        room_ms = INT64_MAX - np.maximum(self.since_ms, 0)
        return np.maximum(self.since_ms + np.minimum(delete_retention_ms, room_ms), horizon_ms)
