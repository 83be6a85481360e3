"""A simulated partition: segments as arrays of rows of an `OverwriteTrace`, with the cleaner's statistics.

`simulate` appends to it, calls the cleaner's own functions to choose a rewrite, and applies the rewrite,
which is a mask over an array. Row numbers stand for offsets. Parts of a real log that move no bytes are left
out: indexes, checksums, recompression, batch headers that stay after their records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword.accounts import PartitionAccount, SegmentAccount
from lastword.config import TopicConfig
from lastword.tools.overwrites import OverwriteTrace
from lastword.units import NEVER

Ints = NDArray[np.int64]

SEEN_RATIO = 4  # the average of the death rate has a time constant of a quarter of the segment's age


@dataclass(slots=True)
class SimulatedSegment:
    """A closed segment.

    `rows` are the rows that it still contains. The other fields are as in `accounts.SegmentAccount`;
    `dead_before` and `rated_at` are from the last update of its death rate.
    """

    rows: Ints
    base_offset: int
    next_offset: int
    size_bytes: int
    largest_ms: int
    written_at: int
    rated_at: int
    dead_bytes: int = 0
    dead_records: int = 0
    blocked_bytes: int = 0
    garbage_age: float = 0.0
    garbage_age_at: int = 0
    death_rate: float = -1.0
    dead_before: int = 0
    oldest_dead_ms: int = -1
    tombstones_without_horizon: int = 0
    known: SegmentAccount | None = None  # its account, until something changes

    # The interface of a segment that strategy `kafka` uses:

    @property
    def size(self) -> int:
        """Return the bytes of the segment."""
        return self.size_bytes

    @property
    def largest_timestamp(self) -> int:
        """Return the largest timestamp."""
        return self.largest_ms

    @property
    def mtime_ms(self) -> int:
        """Return the time of the last write."""
        return self.largest_ms

    @property
    def live_bytes(self) -> int:
        """Return the bytes of live rows."""
        return self.size_bytes - self.dead_bytes

    @property
    def max_timestamp(self) -> int:
        """Return the largest timestamp, as of a batch."""
        return self.largest_ms

    def position_of(self, offset: int) -> int:
        """Return the position of an offset: the start or the end."""
        return 0 if offset <= self.base_offset else self.size_bytes

    def headers(self) -> Iterator[SimulatedSegment]:
        """Yield the segment as its only batch."""
        yield self


class SimulatedLog:
    """One simulated partition.

    A segment is closed (`close`) before its keys are read (`scan`): between both is min.compaction.lag.ms,
    or with strategy `kafka` the time up to the next cleaning.
    """

    def __init__(self, topic: str, partition: int, trace: OverwriteTrace, config: TopicConfig) -> None:
        self.topic = topic
        self.partition = partition
        self.trace = trace
        self.config = config
        self.segments: list[SimulatedSegment] = []
        self.scanned = 0  # number of segments whose keys were read
        self.closed_rows = 0
        self.closed_bytes = 0
        self.first_dirty = 0
        self.ends = closings(
            trace, config.segment_bytes, min(config.segment_ms, config.max_compaction_lag_ms)
        )
        self._deletes = bool(trace.tombstone.any())  # otherwise copies are not needed
        self._copies = np.zeros(int(trace.key.max(initial=-1)) + 1 if self._deletes else 0, np.int32)
        self._present = np.zeros(len(trace), bool)
        self._dead = np.zeros(len(trace), bool)
        self._tombstones = np.zeros(0, np.int64)  # rows of live tombstones in scanned segments
        self._since_ms = np.full(len(trace) if self._deletes else 0, NEVER)
        self._accounts: tuple[SegmentAccount, ...] | None = None

    # ---------------------------------------------------------------- growing

    def close(self, end: int, write_clock: int) -> None:
        """Close the active segment: the rows after the last closed segment, up to `end`."""
        rows = np.arange(self.closed_rows, end)
        size = int(self.trace.size_bytes[rows].sum())
        largest = int(self.trace.time_ms[end - 1])
        self.segments.append(
            SimulatedSegment(
                rows,
                self.closed_rows,
                end,
                size,
                largest,
                write_clock,
                write_clock,
                garbage_age_at=write_clock,
            )
        )
        self.closed_rows = end
        self.closed_bytes += size

    def scan(self, count: int, write_clock: int, now_ms: int) -> int:
        """Read the keys of the first `count` segments that were not read yet; return their bytes."""
        scanned = 0
        for segment in self.segments[self.scanned : count]:
            rows = segment.rows
            self._present[rows] = True
            if self._deletes:
                np.add.at(self._copies, self.trace.key[rows], 1)
                self._tombstones = np.concatenate((self._tombstones, rows[self.trace.tombstone[rows]]))
            self.scanned += 1
            superseded = self.trace.previous[rows]
            superseded = superseded[superseded >= 0]
            self._mark_dead(
                superseded[self._present[superseded] & ~self._dead[superseded]], write_clock, now_ms
            )
            scanned += segment.size_bytes
        return scanned

    def scan_ripe(self, write_clock: int, now_ms: int) -> int:
        """Read the keys of all closed segments that min.compaction.lag.ms allows; return the bytes read."""
        youngest = now_ms - self.config.min_compaction_lag_ms
        count = self.scanned
        while count < len(self.segments) and self.segments[count].largest_ms <= youngest:
            count += 1
        if count == self.scanned:
            return 0
        scanned = self.scan(count, write_clock, now_ms)
        for segment in self.segments[:count]:
            _rate(segment, write_clock)
        self._accounts = None
        return scanned

    def expire_tombstones(self, write_clock: int, now_ms: int) -> None:
        """Start the clock of each tombstone without older copies of its key, and drop those that are due."""
        if not self._deletes:
            return
        rows = self._live_tombstones()
        alone = self._copies[self.trace.key[rows]] == 1
        unmarked = rows[alone & (self._since_ms[rows] == NEVER)]
        self._since_ms[unmarked] = now_ms
        self._mark_dead(self._due(rows[alone], now_ms), write_clock, now_ms)
        blocked = rows[~alone]
        sums = self._by_segment(blocked, self.trace.size_bytes[blocked])
        for segment, size in zip(self.segments, sums.tolist(), strict=False):
            if segment.blocked_bytes != size:
                segment.blocked_bytes, segment.known = int(size), None
        self._accounts = None

    def expire_tombstones_as_kafka(self, write_clock: int, now_ms: int) -> None:
        """Apply Kafka's rule to tombstones.

        The first cleaning of a tombstone starts its clock; a cleaning when it is due drops it.
        """
        if not self._deletes:
            return
        self._mark_dead(self._due(self._live_tombstones(), now_ms), write_clock, now_ms)
        unmarked = self._live_tombstones()
        unmarked = unmarked[self._since_ms[unmarked] == NEVER]
        self._since_ms[unmarked] = now_ms
        counts = self._by_segment(unmarked, np.ones(unmarked.size))
        for segment, count in zip(self.segments, counts.tolist(), strict=False):
            segment.tombstones_without_horizon = int(count)

    def _live_tombstones(self) -> Ints:
        self._tombstones = self._tombstones[~self._dead[self._tombstones]]
        return self._tombstones

    def _due(self, rows: Ints, now_ms: int) -> Ints:
        since = self._since_ms[rows]
        return rows[(since != NEVER) & (since <= now_ms - self.config.delete_retention_ms)]

    def _mark_dead(self, rows: Ints, write_clock: int, now_ms: int) -> None:
        if not rows.size:
            return
        self._dead[rows] = True
        sizes = self._by_segment(rows, self.trace.size_bytes[rows]).astype(np.int64)
        counts = self._by_segment(rows, np.ones(rows.size)).astype(np.int64)
        for index in np.flatnonzero(counts).tolist():
            segment = self.segments[index]
            segment.garbage_age += segment.dead_bytes * (write_clock - segment.garbage_age_at)
            segment.garbage_age_at = write_clock
            segment.dead_bytes += int(sizes[index])
            segment.dead_records += int(counts[index])
            segment.known = None
            if segment.oldest_dead_ms < 0:
                segment.oldest_dead_ms = now_ms

    def _by_segment(self, rows: Ints, weights: NDArray[Any]) -> NDArray[Any]:
        bases = np.array([segment.base_offset for segment in self.segments[: self.scanned]], np.int64)
        return np.bincount(np.searchsorted(bases, rows, "right") - 1, weights=weights, minlength=bases.size)

    # ---------------------------------------------------------------- shrinking

    def rewrite(self, first: int, last: int, files: int | None, write_clock: int) -> tuple[int, int]:
        """Rewrite segments `first` to `last` without their dead rows; return the bytes read and written.

        Args:
            first: Index of the first segment.
            last: Index of the last segment.
            files: The number of new segments, of equal size. None: as many as the rows fill.
            write_clock: Bytes appended to the drive so far.
        """
        old = self.segments[first : last + 1]
        rows = np.concatenate([segment.rows for segment in old])
        dead = self._dead[rows]
        removed, rows = rows[dead], rows[~dead]
        self._present[removed] = False
        if self._deletes:
            np.subtract.at(self._copies, self.trace.key[removed], 1)
        bytes_below = np.cumsum(self.trace.size_bytes[rows])
        written = int(bytes_below[-1]) if rows.size else 0
        count = max(-(-written // self.config.segment_bytes), 1) if files is None else files
        cuts = np.unique(np.searchsorted(bytes_below, written * np.arange(1, count) / count))
        cuts = cuts[(cuts > 0) & (cuts < rows.size)]
        bases = [old[0].base_offset, *rows[cuts].tolist()]
        new = []
        for base, end, part in zip(
            bases, [*bases[1:], old[-1].next_offset], np.split(rows, cuts), strict=False
        ):
            size = int(self.trace.size_bytes[part].sum())
            largest = int(self.trace.time_ms[part[-1]]) if part.size else old[-1].largest_ms
            new.append(
                SimulatedSegment(
                    part, base, end, size, largest, write_clock, write_clock, garbage_age_at=write_clock
                )
            )
        self.segments[first : last + 1] = new
        self._accounts = None
        self.scanned += len(new) - len(old)
        read = sum(segment.size_bytes for segment in old)
        self.closed_bytes += written - read
        return read, written

    # ---------------------------------------------------------------- statistics

    def active(self, rows: int) -> SimulatedSegment:
        """Return the active segment of a log of `rows` rows."""
        held = np.arange(self.closed_rows, rows)
        size = int(self.trace.size_bytes[held].sum())
        largest = int(self.trace.time_ms[rows - 1]) if rows else 0
        return SimulatedSegment(held, self.closed_rows, rows, size, largest, 0, 0)

    def account(self, drive: str, active_bytes: int, strategy: str) -> PartitionAccount:
        """Return the statistics of the partition."""
        if self._accounts is None:
            self._accounts = tuple(_account(segment) for segment in self.segments[: self.scanned])
        below = self._accounts
        return PartitionAccount(
            topic=self.topic,
            partition=self.partition,
            drive=drive,
            segments=below,
            total_bytes=self.closed_bytes + active_bytes,
            limit=below[-1].next_offset if below else 0,
            segment_bytes=self.config.segment_bytes,
            min_cleanable_dirty_ratio=self.config.min_cleanable_dirty_ratio,
            max_compaction_lag_ms=self.config.max_compaction_lag_ms,
            strategy=strategy,
        )


def closings(trace: OverwriteTrace, segment_bytes: int, segment_ms: int) -> list[int]:
    """Return the end row of each closed segment; the rows after the last are the active segment."""
    bytes_below = np.concatenate(([0], np.cumsum(trace.size_bytes)))
    times, ends, first = trace.time_ms, [], 0
    while first < len(trace):
        full = int(np.searchsorted(bytes_below, bytes_below[first] + segment_bytes, "right")) - 1
        last_ms = min(int(times[first]) + segment_ms, NEVER)
        end = max(min(full, int(np.searchsorted(times, last_ms, "right"))), first + 1)
        if end >= len(trace):
            break
        ends.append(end)
        first = end
    return ends


def group_by_source_size(
    segments: Sequence[SimulatedSegment], segment_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yield the groups of Kafka's cleaner: neighbours whose sources, uncleaned, fit one segment."""
    first, size = 0, 0
    for index, segment in enumerate(segments):
        if index > first and size + segment.size_bytes > segment_bytes:
            yield first, index - 1
            first, size = index, 0
        size += segment.size_bytes
    if segments:
        yield first, len(segments) - 1


def _account(segment: SimulatedSegment) -> SegmentAccount:
    if segment.known is None:
        segment.known = _compute_account(segment)
    return segment.known


def _compute_account(segment: SimulatedSegment) -> SegmentAccount:
    return SegmentAccount(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size_bytes,
        records=segment.rows.size,
        dead_records=segment.dead_records,
        dead_bytes=segment.dead_bytes,
        blocked_tombstone_bytes=segment.blocked_bytes,
        garbage_age=segment.garbage_age,
        garbage_age_at=segment.garbage_age_at,
        written_at=segment.written_at,
        death_rate=max(segment.death_rate, 0.0),
        oldest_dead_ms=segment.oldest_dead_ms,
    )


def _rate(segment: SimulatedSegment, write_clock: int) -> None:
    """Update the recent death rate, an average with a time constant of a quarter of the segment's age."""
    elapsed = write_clock - segment.rated_at
    if elapsed <= 0:
        return
    seen = (segment.dead_bytes - segment.dead_before) / elapsed
    if segment.death_rate < 0:
        segment.death_rate = seen
    else:
        age = max(write_clock - segment.written_at, 1)
        segment.death_rate += -np.expm1(-SEEN_RATIO * elapsed / age) * (seen - segment.death_rate)
    segment.dead_before, segment.rated_at, segment.known = segment.dead_bytes, write_clock, None
