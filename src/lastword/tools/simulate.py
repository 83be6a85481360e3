"""Simulate the cost of cleaning under given settings, by replaying an overwrite trace.

The cleaner's own functions decide: `choose_drive` for strategy `generational`, `choose` and `group` for
`kafka`, on the statistics of simulated partitions (`SimulatedLog`). `broker` is Kafka's own
cleaner with the choice of `kafka`: it rewrites every segment below the limit, with garbage or without. The
simulation cleans as soon as a cleaning is due, after each closed segment: the most work that a real cleaner
must do.

A simulated partition holds its segments as arrays of rows of an `OverwriteTrace`; row numbers stand for
offsets, and a rewrite is a mask over an array. Parts of a real log that move no bytes are left out: indexes,
checksums, recompression, batch headers that stay after their records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword.accounts import DriveAccount, PartitionAccount, SegmentAccount
from lastword.cleaner.policy.choose import LogState, choose
from lastword.cleaner.policy.generational import choose_drive
from lastword.cleaner.policy.groups import OutputLimits, group
from lastword.cleaner.policy.plan import CleanRequest
from lastword.config import TopicConfig
from lastword.config.tables import DEFAULT_SPACE_TARGET
from lastword.tools.overwrites import OverwriteTrace
from lastword.units import NEVER, format_bytes
from lastword.values import Value

Ints = NDArray[np.int64]

STRATEGIES = ("generational", "kafka", "broker")
CURVE_POINTS = 200

SEEN_RATIO = 4  # the average of the death rate has a time constant of a quarter of the segment's age


@dataclass(slots=True)
class SimulatedSegment:
    """A closed segment.

    `rows` are the rows that the segment still contains. The other fields are as in `accounts.SegmentAccount`;
    `dead_before` and `rated_at` are from the last update of the death rate.
    """

    rows: Ints
    base_offset: int
    next_offset: int
    size_bytes: int
    largest_timestamp: int
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
    account: SegmentAccount | None = None  # until a field changes

    # The interface of a segment that strategy `kafka` uses:

    @property
    def size(self) -> int:
        """Return the bytes of the segment."""
        return self.size_bytes

    @property
    def mtime_ms(self) -> int:
        """Return the time of the last write."""
        return self.largest_timestamp

    @property
    def live_bytes(self) -> int:
        """Return the bytes of live rows."""
        return self.size_bytes - self.dead_bytes

    @property
    def first_timestamp(self) -> int:
        """Return the largest timestamp, as if the segment had one batch."""
        return self.largest_timestamp

    def position_of(self, offset: int) -> int:
        """Return the position of an offset: the start or the end."""
        return 0 if offset <= self.base_offset else self.size_bytes


class SimulatedLog:
    """One simulated partition.

    A segment is closed (`close`) before its keys are read (`scan`): the time between both is
    min.compaction.lag.ms, or with strategy `kafka` the time until the next cleaning.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        trace: OverwriteTrace,
        config: TopicConfig,
        strategy: str = "generational",
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.trace = trace
        self.config = config
        self.strategy = strategy
        self.meter = _Meter()
        self.rows = 0  # appended so far
        self.bytes_below = np.concatenate(([0], np.cumsum(trace.size_bytes)))
        self.live = trace.live_bytes(config.delete_retention_ms)
        self.kept = ""  # reason why the last check rewrote nothing
        self.segments: list[SimulatedSegment] = []
        self.scanned = 0  # number of segments whose keys were read
        self.closed_rows = 0
        self.closed_bytes = 0
        self.first_dirty = 0
        self.ends = closings(
            trace, config.segment_bytes, min(config.segment_ms, config.max_compaction_lag_ms)
        )
        self._deletes = bool(trace.tombstone.any())  # without tombstones, no counts of copies are needed
        self._copies = np.zeros(int(trace.key.max(initial=-1)) + 1 if self._deletes else 0, np.int32)
        self._present = np.zeros(len(trace), bool)
        self._dead = np.zeros(len(trace), bool)
        self._tombstones = np.zeros(0, np.int64)  # rows of live tombstones in scanned segments
        self._since_ms = np.full(len(trace) if self._deletes else 0, NEVER)
        self._accounts: tuple[SegmentAccount, ...] | None = None

    @property
    def appended_bytes(self) -> int:
        """Return the bytes that were appended so far."""
        return int(self.bytes_below[self.rows])

    @property
    def active_bytes(self) -> int:
        """Return the bytes of the active segment."""
        return self.appended_bytes - int(self.bytes_below[self.closed_rows])

    # ---------------------------------------------------------------- growing

    def close(self, end: int, write_clock: int) -> None:
        """Close the active segment: the rows after the last closed segment, up to `end`."""
        rows = np.arange(self.closed_rows, end)
        largest = int(self.trace.time_ms[end - 1])
        segment = self._written(rows, self.closed_rows, end, largest, write_clock)
        self.segments.append(segment)
        self.closed_rows = end
        self.closed_bytes += segment.size_bytes

    def _written(self, rows: Ints, base: int, end: int, largest: int, write_clock: int) -> SimulatedSegment:
        """Return a segment that is written now, without garbage."""
        size = int(self.trace.size_bytes[rows].sum())
        return SimulatedSegment(
            rows, base, end, size, largest, write_clock, write_clock, garbage_age_at=write_clock
        )

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
        while count < len(self.segments) and self.segments[count].largest_timestamp <= youngest:
            count += 1
        if count == self.scanned:
            return 0
        scanned = self.scan(count, write_clock, now_ms)
        for segment in self.segments[:count]:
            _rate(segment, write_clock)
        self._accounts = None
        return scanned

    def expire_tombstones(self, write_clock: int, now_ms: int) -> None:
        """Start the clock of each tombstone without older copies of its key, and drop due tombstones."""
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
                segment.blocked_bytes, segment.account = int(size), None
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
        due: Ints = rows[(since != NEVER) & (since <= now_ms - self.config.delete_retention_ms)]
        return due

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
            segment.account = None
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
            largest = int(self.trace.time_ms[part[-1]]) if part.size else old[-1].largest_timestamp
            new.append(self._written(part, base, end, largest, write_clock))
        self.segments[first : last + 1] = new
        self._accounts = None
        self.scanned += len(new) - len(old)
        read = sum(segment.size_bytes for segment in old)
        self.closed_bytes += written - read
        return read, written

    # ---------------------------------------------------------------- statistics

    def active(self) -> SimulatedSegment:
        """Return the active segment."""
        held = np.arange(self.closed_rows, self.rows)
        largest = int(self.trace.time_ms[self.rows - 1]) if self.rows else 0
        return SimulatedSegment(held, self.closed_rows, self.rows, self.active_bytes, largest, 0, 0)

    def account(self) -> PartitionAccount:
        """Return the statistics of the partition."""
        if self._accounts is None:
            self._accounts = tuple(_account(segment) for segment in self.segments[: self.scanned])
        below = self._accounts
        return PartitionAccount(
            topic=self.topic,
            partition=self.partition,
            drive="",
            segments=below,
            total_bytes=self.closed_bytes + self.active_bytes,
            limit=below[-1].next_offset if below else 0,
            segment_bytes=self.config.segment_bytes,
            min_cleanable_dirty_ratio=self.config.min_cleanable_dirty_ratio,
            max_compaction_lag_ms=self.config.max_compaction_lag_ms,
            strategy=self.strategy,
        )

    def idle(self) -> str:
        """Return why no segment of this partition was rewritten."""
        if len(self.trace) == self.trace.loaded:
            return "nothing was appended since the last cleaning"
        if any(end > self.trace.loaded for end in self.ends):
            return self.kept
        held, full = format_bytes(self.active_bytes), format_bytes(self.config.segment_bytes)
        return (
            f"no segment was closed: the active segment, which is not cleaned, has {held} of "
            f"segment.bytes={full}"
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
    if segment.account is None:
        segment.account = SegmentAccount(
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
    return segment.account


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
    segment.dead_before, segment.rated_at, segment.account = segment.dead_bytes, write_clock, None


# ---------------------------------------------------------------- a replay


@dataclass(frozen=True, slots=True)
class Point(Value):
    """A moment of a simulation: bytes appended, bytes written by cleaning, bytes on disk, live bytes."""

    appended_bytes: int
    written_bytes: int
    size_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Simulation(Value):
    """The cost of a replay, for one partition or (topic "", partition -1) for the drive.

    Attributes:
        settings: The simulated settings; `{}`: the current ones.
        share: Share of the keys in the sample; below 1 all figures are estimates.
        rounds: Rewrites of a run of segments, or of a log.
        read_bytes: Bytes read by scanning keys and by rewriting.
        written_bytes: Bytes written by rewriting.
        write_amplification: `written_bytes` per byte appended.
        read_amplification: `read_bytes` per byte appended.
        space_amplification: Bytes on disk per live byte: the mean over the bytes appended.
        space_amplification_peak: The maximum.
        space_amplification_end: At the end.
        segments: Segments at the end.
        idle: The reason why the last check rewrote nothing; empty if there was a rewrite.
    """

    topic: str
    partition: int
    strategy: str
    settings: dict[str, Any]
    share: float
    records: int
    appended_bytes: int
    rounds: int
    read_bytes: int
    written_bytes: int
    write_amplification: float
    read_amplification: float
    space_amplification: float
    space_amplification_peak: float
    space_amplification_end: float
    segments: int
    idle: str = ""
    curve: tuple[Point, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        name = f"{self.topic}-{self.partition}" if self.topic else "all"
        return (
            f"{name}, {self.strategy}: {self.write_amplification:.2f} bytes written per byte appended; "
            f"{self.space_amplification:.2f} bytes on disk per live byte, "
            f"{self.space_amplification_peak:.2f} at most"
        )


@dataclass(frozen=True, slots=True)
class TracedPartition:
    """One partition to replay."""

    topic: str
    partition: int
    trace: OverwriteTrace
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulation of a drive, and of each of its partitions."""

    drive: Simulation
    partitions: tuple[Simulation, ...]


def simulate(
    parts: Sequence[TracedPartition],
    *,
    strategy: str | None = None,
    space_target: float = DEFAULT_SPACE_TARGET,
    file_cost_bytes: float = 0.0,
    settings: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """Append the records of partitions that share a drive, in order of time, and clean them.

    All partitions are cleaned as if their policy were `compact`.

    Args:
        parts: The partitions.
        strategy: Strategy of all partitions. None: each partition's lastword.strategy.
        space_target: Space limit of the drive, as a multiple of its live data.
        file_cost_bytes: Cost of a swap, in bytes that could be moved meanwhile; 0: not measured.
        settings: The simulated settings, for the result only.
        progress: Receives (closed segments, total segments to close).
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}")
    drive = _Drive(parts, strategy, space_target, file_cost_bytes)
    drive.run(progress)
    return drive.result(settings or {})


class _Meter:
    """Counts of a partition or of the drive, without the loaded rows."""

    def __init__(self) -> None:
        self.rounds = self.read_bytes = self.written_bytes = 0
        self.area = self.live_area = 0.0
        self.peak = self.end = 0.0
        self.curve: list[tuple[int, int, int, int]] = []
        self._last: tuple[int, int, int] | None = None

    def sample(self, appended: int, size: int, live: int) -> None:
        """Add a sample: size and live bytes after `appended` bytes. Both are interpolated between samples."""
        if self._last is not None and appended > self._last[0]:
            step = appended - self._last[0]
            self.area += step * (size / max(live, 1) + self._last[1] / max(self._last[2], 1)) / 2
            self.live_area += step
        self._last = (appended, size, live)
        self.end = size / max(live, 1)
        self.peak = max(self.peak, self.end)
        self.curve.append((appended, self.written_bytes, size, live))

    def simulation(self, *, appended_bytes: int, idle: str, **facts: Any) -> Simulation:
        """Return the result: the counts, beside `facts`, the fields of `Simulation` that are not counted."""
        step = max(len(self.curve) // CURVE_POINTS, 1)
        return Simulation(
            appended_bytes=appended_bytes,
            rounds=self.rounds,
            read_bytes=self.read_bytes,
            written_bytes=self.written_bytes,
            write_amplification=self.written_bytes / max(appended_bytes, 1),
            read_amplification=self.read_bytes / max(appended_bytes, 1),
            space_amplification=self.area / self.live_area if self.live_area else self.end,
            space_amplification_peak=self.peak,
            space_amplification_end=self.end,
            idle="" if self.rounds else idle,
            curve=tuple(Point(*point) for point in self.curve[::-1][::step][::-1]),
            **facts,
        )


class _Drive:
    def __init__(
        self, parts: Sequence[TracedPartition], strategy: str | None, space_target: float, file_cost: float
    ) -> None:
        self.space_target = space_target
        self.file_cost = file_cost
        compact = frozenset({"compact"})
        self.logs = [
            SimulatedLog(
                part.topic,
                part.partition,
                part.trace,
                replace(part.config, cleanup_policy=compact, unread=None),
                strategy or part.config.lastword_strategy,
            )
            for part in parts
        ]
        self.total = _Meter()
        self.loaded = sum(int(log.bytes_below[log.trace.loaded]) for log in self.logs)
        self.write_clock = 0

    # ---------------------------------------------------------------- time

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        events = sorted(
            (int(log.trace.time_ms[end]), index, end)
            for index, log in enumerate(self.logs)
            for end in log.ends
        )
        for number, (now_ms, index, end) in enumerate(events):
            log = self.logs[index]
            self._append_until(now_ms, log, end)
            log.close(end, self.write_clock)
            self._sample_all()
            if log.strategy == "generational":
                self._count(log, read=log.scan_ripe(self.write_clock, now_ms))
                self._generational(now_ms)
            else:
                self._whole_log(log, now_ms)
            self._sample_all()
            if progress is not None:
                progress(number + 1, len(events))
        for log in self.logs:
            log.rows = len(log.trace)
        self.write_clock = sum(log.appended_bytes for log in self.logs)
        self._sample_all()

    def _append_until(self, now_ms: int, closing: SimulatedLog, end: int) -> None:
        for log in self.logs:
            rows = end if log is closing else int(np.searchsorted(log.trace.time_ms, now_ms))
            log.rows = max(log.rows, rows)
        self.write_clock = sum(log.appended_bytes for log in self.logs)

    def _sample_all(self) -> None:
        if self.write_clock < self.loaded:
            return
        size = live = 0
        for log in self.logs:
            held, newest = log.closed_bytes + log.active_bytes, int(log.live[log.rows])
            log.meter.sample(log.appended_bytes, held, newest)
            size, live = size + held, live + newest
        self.total.sample(self.write_clock, size, live)

    # ---------------------------------------------------------------- strategies

    def _generational(self, now_ms: int) -> None:
        logs = [log for log in self.logs if log.strategy == "generational"]
        for log in logs:
            log.expire_tombstones(self.write_clock, now_ms)
        while True:
            accounts = tuple(log.account() for log in self.logs)
            drive = DriveAccount("", self.write_clock, self.space_target, self.file_cost, accounts)
            choice = choose_drive(drive, now_ms)
            run = choice.run
            if run is None:
                for log in logs:
                    log.kept = choice.text
                return
            name = run.topic, run.partition
            log = next(log for log in self.logs if (log.topic, log.partition) == name)
            self._rewrite(log, run.first, run.last, max(run.files_out, 1))
            self._count(log, rounds=1)
            log.expire_tombstones(self.write_clock, now_ms)

    def _whole_log(self, log: SimulatedLog, now_ms: int) -> None:
        config = log.config
        state = LogState(
            log.topic, log.partition, [*log.segments, log.active()], log_start=0, log_end=log.rows
        )
        plan = choose(state, config, CleanRequest(log.first_dirty, due=True, map_bytes=0), now_ms)
        if plan.action != "clean":
            log.kept = plan.reasons[0].text if plan.reasons else ""
            return
        count = sum(segment.base_offset < plan.limit for segment in log.segments)
        dirty = sum(s.size_bytes for s in log.segments[:count] if s.next_offset > log.first_dirty)
        log.scan(count, self.write_clock, now_ms)
        log.expire_tombstones_as_kafka(self.write_clock, now_ms)
        chosen: Iterator[tuple[int, int]]
        if log.strategy == "broker":
            self._count(log, read=dirty)
            chosen = group_by_source_size(log.segments[:count], config.segment_bytes)
        else:
            self._count(log, read=sum(segment.size_bytes for segment in log.segments[:count]))
            limits = OutputLimits(
                config.segment_bytes, config.segment_index_bytes, config.index_interval_bytes
            )
            chosen = ((segments.first, segments.last) for segments in group(log.segments[:count], limits))
        for first, last in reversed(list(chosen)):  # from the end: a rewrite changes the indexes after it
            self._rewrite(log, first, last, 1)
        log.first_dirty = plan.limit
        self._count(log, rounds=1)

    def _rewrite(self, log: SimulatedLog, first: int, last: int, files: int) -> None:
        read, written = log.rewrite(first, last, files, self.write_clock)
        self._count(log, read=read, written=written)

    def _count(self, log: SimulatedLog, *, rounds: int = 0, read: int = 0, written: int = 0) -> None:
        if self.write_clock <= self.loaded:
            return
        for meter in (log.meter, self.total):
            meter.rounds += rounds
            meter.read_bytes += read
            meter.written_bytes += written

    # ---------------------------------------------------------------- result

    def result(self, settings: dict[str, Any]) -> Simulated:
        each = tuple(
            log.meter.simulation(
                topic=log.topic,
                partition=log.partition,
                strategy=log.strategy,
                settings=dict(settings),
                share=log.trace.share,
                records=len(log.trace) - log.trace.loaded,
                appended_bytes=int(log.bytes_below[-1] - log.bytes_below[log.trace.loaded]),
                segments=len(log.segments) + 1,
                idle=log.idle(),
            )
            for log in self.logs
        )
        drive = self.total.simulation(
            topic="",
            partition=-1,
            strategy=", ".join(sorted({log.strategy for log in self.logs})),
            settings=dict(settings),
            share=min((simulation.share for simulation in each), default=1.0),
            records=sum(simulation.records for simulation in each),
            appended_bytes=sum(simulation.appended_bytes for simulation in each),
            segments=sum(simulation.segments for simulation in each),
            idle="; ".join(dict.fromkeys(simulation.idle for simulation in each if simulation.idle)),
        )
        return Simulated(drive, each)
