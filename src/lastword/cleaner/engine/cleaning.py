"""One cleaning of one partition: `clean`. Scan the log, rewrite the groups with garbage, give them to a sink.

    liveness   which records are dead          `liveness.FullScan`        reads the whole log below the limit
                                               `liveness.KeptAccounts`    reads only new segments
                                               `sharded.ShardedScan`      the files of a job on many machines
    sink       what becomes of the rewrite     `sinks.Publisher`          certified segments, swapped in
                                               `sinks.Collector`          the same, published later, elsewhere
                                               `sinks.CountingSink`       bytes alone: the dry run
    context    where and how it runs; no part of it changes the result

A cleaning that fails or is killed at any point leaves a log that holds the newest value of every key. The
docstring of `lastword.cleaner` lists the cases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from lastword.cleaner.engine.report import BuiltGroup, ScanStats, TombstonesWaiting
from lastword.cleaner.engine.throttle import DriveBudget, PacedHandle, PacedStored, Stopped
from lastword.cleaner.engine.transactions import TransactionFacts
from lastword.cleaner.policy.groups import OutputLimits, SegmentGroup
from lastword.cleaner.policy.plan import Plan, Reason
from lastword.clock import Clock
from lastword.errors import LastwordError
from lastword.files import Files, Handle
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.leases import Leases
from lastword.segment.segment import Segment
from lastword.segment.stored import StoredSegment
from lastword.values import Progress, ProgressLike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lastword.resolve import Resolution
    from lastword.resolve.survivors import Survivors


T = TypeVar("T")


class CleanableLog(Protocol):
    """What a cleaning reads: an open log, a view of it, or the segments of a job."""

    @property
    def topic(self) -> str:
        """Return the topic."""

    @property
    def partition(self) -> int:
        """Return the number of the partition."""

    @property
    def directory(self) -> str:
        """Return the directory of the partition."""

    @property
    def store(self) -> DirectorySegments:
        """Return the store of the log's segments."""

    @property
    def log_start(self) -> int:
        """Return the first offset that can be read."""

    @property
    def segments(self) -> Sequence[Segment]:
        """Return all segments, ascending."""


@dataclass(frozen=True, slots=True)
class CleanContext:
    """The storage, memory, budget and progress of a cleaning.

    Attributes:
        salt: Secret salt of the key map; None: a new salt.
        scratch: Directory for the map's keys; None: in memory.
        threads: How many it may use: a second one helps from 32 MiB on.
        budget: I/O budget of the drive, for every byte that is read or written.
        progress: Called after each chunk.
        stop: Called after each chunk; once true, the cleaning ends early and its unpublished files are
            removed.
        dry: Nothing is written: damage quarantines nothing, and a sample of the keys gives an estimate.
        divide_from: Bytes of records from which on keys that do not fit the map may take a scratch file;
            None: 4 MiB.
    """

    files: Files
    clock: Clock
    salt: bytes | None = None
    scratch: str | None = None
    threads: int = 1
    budget: DriveBudget | None = None
    progress: ProgressLike | None = None
    stop: Callable[[], bool] | None = None
    dry: bool = False
    divide_from: int | None = None

    def throttled(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return the segments with their I/O taken from the budget; closed ones are opened when read."""
        if self.budget is None:
            return segments
        return [segment.read_through(self.paced(segment.stored), self.paced_file) for segment in segments]

    def paced_file(self, handle: Handle) -> Handle:
        """Return a file with its I/O taken from the budget."""
        return handle if self.budget is None else PacedHandle(handle, self.budget, self.stop)

    def paced(self, stored: StoredSegment) -> StoredSegment:
        """Return a stored segment with its I/O taken from the budget."""
        return stored if self.budget is None else PacedStored(stored, self.budget, self.stop)


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The dead records below the limit, and the groups to rewrite.

    Attributes:
        sources: The segments below the limit, as the rewrite reads them.
        resolution: Counts of each of them, and the dead bitmaps.
        groups: Segments that are rewritten together.
        transactions: Control batches that go, and transactions that are left.
        stats: Totals.
        leases: Leases of readers when the scan decided.
        threads: For the rewrite.
        overlap: A group may be built before the previous group is published.
        reasons: Why these groups were chosen, and how keys that do not fit the map are resolved.
        by_hash: The map had hashes in the place of keys. If the keys of an output are not those that the
            certificate requires, `HashesUnsure` is raised, and the exact map decides.
        survivors: What the rewrite need not read again; None: nothing.
    """

    sources: Sequence[Segment]
    resolution: Resolution
    groups: tuple[SegmentGroup, ...]
    transactions: TransactionFacts
    stats: ScanStats
    leases: Leases
    threads: int = 1
    overlap: bool = True
    reasons: tuple[Reason, ...] = ()
    by_hash: bool = False
    survivors: Survivors | None = None


class Liveness(ABC):
    """Which records of a log are dead. For one cleaning, entered before it and left after it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def unread_bytes(self, segments: Sequence[Segment], plan: Plan) -> int:
        """Return how many bytes the scan will read: the log below the limit."""
        return sum(segment.size for segment in below(segments, plan.limit))

    @abstractmethod
    def scan(
        self, log: CleanableLog, segments: Sequence[Segment], plan: Plan, context: CleanContext, steps: Steps
    ) -> ScanResult | Plan:
        """Find the dead records. Return a plan instead if nothing is rewritten; its first reason says why.

        Args:
            log: The log.
            segments: Segments of the log, with their I/O taken from the budget.
            plan: Up to where.
            context: Storage, memory, budget and progress of the cleaning.
            steps: Progress.
        """

    @abstractmethod
    def highest_due(self, group: SegmentGroup) -> int:
        """Return the highest offset of a tombstone that this group drops for its age; -1: none."""

    def publish(self, group: BuiltGroup, swap: Callable[[], Segment]) -> None:
        """Publish a group by `swap`, which returns the new segment, and account for it."""
        swap()

    @abstractmethod
    def first_dirty(self) -> int:
        """Return the checkpoint to record when every group is published."""

    def waiting(self) -> TombstonesWaiting | None:
        """Return the tombstones that are left; None: as the rewrite counted them."""
        return None

    @abstractmethod
    def held_back(self, scan: ScanResult) -> NDArray[np.int64]:
        """Return the offsets of tombstones that nothing but a lease keeps."""


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """The input of rewriting the groups of a scan. `directory`: that of the partition."""

    store: DirectorySegments
    plan: Plan
    scan: ScanResult
    context: CleanContext
    steps: Steps
    highest_due: Callable[[SegmentGroup], int]


class Sink(ABC, Generic[T]):
    """The use of the groups. `verb`: `clean` or `plan`, for progress."""

    verb = "clean"

    @abstractmethod
    def take(self, rewrite: RewriteInput, liveness: Liveness) -> T:
        """Rewrite every group, lowest offsets first, and return the result."""

    @abstractmethod
    def kept(self, plan: Plan) -> T:
        """Return the result of a cleaning that the scan found not worth it."""

    def stopped(self) -> T:
        """Return the result of a cleaning that was stopped while it scanned: that of an open log alone."""
        raise AssertionError("only a cleaning of an open log is stopped")

    def failed(self) -> None:
        """Count a cleaning of an open log that failed while it scanned."""


def clean(log: CleanableLog, plan: Plan, liveness: Liveness, sink: Sink[T], context: CleanContext) -> T:
    """Clean the log below `plan.limit`, or count what that would do; the sink decides which."""
    segments = context.throttled(log.segments)
    unread_bytes = liveness.unread_bytes(segments, plan)
    steps = Steps(sink.verb, unread_bytes, context.clock, context.progress, context.stop)
    with liveness:
        try:
            scan = liveness.scan(log, segments, plan, context, steps)
        except Stopped:
            return sink.stopped()
        except LastwordError:
            sink.failed()
            raise
        if isinstance(scan, Plan):
            return sink.kept(scan)
        return sink.take(RewriteInput(log.store, plan, scan, context, steps, liveness.highest_due), liveness)


def below(segments: Sequence[Segment], limit: int) -> list[Segment]:
    """Return the segments that a cleaning up to `limit` may take."""
    return [segment for segment in segments if segment.base_offset < limit]


def limits_of(plan: Plan) -> OutputLimits:
    """Return what one output may hold."""
    return OutputLimits(plan.segment_bytes, plan.segment_index_bytes, plan.index_interval_bytes)


class Steps:
    """Report progress and check for a stop, after each chunk.

    Steps are taken by one thread; `check` is safe from several.
    """

    def __init__(
        self,
        verb: str,
        source_bytes: int,
        clock: Clock,
        progress: ProgressLike | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.clock = clock
        self._verb = verb
        self._map_bytes = source_bytes
        self._total_bytes = 2 * source_bytes  # at most: every segment mapped once and rewritten
        self._done_bytes = 0
        self._started = clock.monotonic()
        self._progress = progress
        self._stop = stop
        self._given_up = False

    def mapped(self, done_bytes: int, total_bytes: int) -> None:
        """Count a chunk of the scan; further passes increase the total."""
        self._total_bytes += total_bytes - self._map_bytes
        self._map_bytes = total_bytes
        self.rewritten(done_bytes - self._done_bytes)

    def expect(self, rewrite_bytes: int) -> None:
        """Set the bytes that are left, once they are known."""
        self._total_bytes = self._done_bytes + rewrite_bytes

    def give_up(self) -> None:
        """End all further steps: their result is not needed any more."""
        self._given_up = True

    def check(self) -> None:
        """Raise Stopped if the cleaning is to end."""
        if self._given_up or (self._stop is not None and self._stop()):
            raise Stopped

    def rewritten(self, chunk_bytes: int) -> None:
        """Count a chunk of the rewrite."""
        self.check()
        self._done_bytes += chunk_bytes
        if self._progress is not None:
            seconds = self.clock.monotonic() - self._started
            self._progress(Progress.at(self._verb, self._done_bytes, self._total_bytes, seconds))
