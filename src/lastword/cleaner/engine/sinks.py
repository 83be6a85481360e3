"""The sinks of a cleaning: what becomes of the groups that it rewrites.

Publisher   each certified output is swapped in, lowest offsets first, then the checkpoint is recorded
Collector   outputs stay in their private directories; the value can be pickled, and published later
            where the log is open (`Publisher.publish`)
Counter     nothing is written: the exact plan
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lastword.cleaner.engine import lease_guard, report
from lastword.cleaner.engine.build import rewrite_each
from lastword.cleaner.engine.cleaning import Liveness, RewriteInput, Sink
from lastword.cleaner.engine.report import (
    BuiltGroup,
    CleanRound,
    PreparedCleaning,
    ScanStats,
    TombstonesWaiting,
)
from lastword.cleaner.engine.throttle import Stopped
from lastword.cleaner.policy.plan import Plan, Reason
from lastword.errors import BusyError, CorruptFileError, LastwordError
from lastword.partition import removal_log
from lastword.resolve.hash_map import HashesUnsure
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from lastword.partition.directory_segments import DirectorySegments
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.resolve import SegmentFacts


class Publisher(Sink[CleanRound | None]):
    """Swaps each certified group in, then records how far the log is clean.

    The order protects deletes: when a tombstone is removed, older copies below it are removed before it or
    with it.

    Args:
        record_first_dirty: called with the new checkpoint, after the last swap is durable.
        published: base offsets of groups that were swapped in by a process that is gone.
        holds_leases: a lease below a dropped tombstone stops the cleaning; False: its reader is refused.
    """

    def __init__(
        self,
        log: PartitionLog,
        plan: Plan,
        record_first_dirty: Callable[[int], None],
        published: Collection[int] = (),
        *,
        holds_leases: bool = True,
    ) -> None:
        self._log = log
        self._plan = plan
        self._record_first_dirty = record_first_dirty
        self._published = published
        self._holds_leases = holds_leases

    def take(self, rewrite: RewriteInput, liveness: Liveness) -> CleanRound | None:
        """Rewrite each group and publish it."""
        groups = rewrite_each(rewrite)
        return self._publish(
            rewrite.scan.stats, groups, liveness.publish, liveness.first_dirty, liveness.waiting
        )

    def publish(self, prepared: PreparedCleaning) -> CleanRound:
        """Publish what a `Collector` prepared."""
        return self._publish(
            prepared.stats,
            prepared.groups,
            lambda _, swap: swap(),
            lambda: prepared.first_dirty,
            lambda: None,  # in the stats already
        )

    def kept(self, plan: Plan) -> None:
        """Do nothing: nothing is worth a rewrite."""

    def stopped(self) -> CleanRound:
        """Return the report of a cleaning that was stopped while it scanned."""
        return self._report(report.NOTHING_SCANNED, [], "request", 0.0)

    def failed(self) -> None:
        """Count the failure in the metrics."""
        report.count_failure(self._log.directory)

    def _publish(
        self,
        stats: ScanStats,
        groups: Iterable[BuiltGroup],
        publish: Callable[[BuiltGroup, Callable[[], Segment]], object],
        first_dirty: Callable[[], int],
        waiting: Callable[[], TombstonesWaiting | None],
    ) -> CleanRound:
        log = self._log
        done: list[BuiltGroup] = []
        swap_seconds = 0.0
        stopped_by: report.StoppedBy = ""
        try:
            # When this block is left, no group is being built any more.
            with closing(groups) if isinstance(groups, Generator) else nullcontext():
                for group in groups:
                    started = log.clock.monotonic()
                    if not done:  # before the first swap: each published file is covered by a note
                        limit, active_base = self._plan.limit, log.active.base_offset
                        removal_log.note_knowledge(log.files, log.directory, limit, active_base)
                    if self._holds_leases:
                        lease_guard.check(log.files, log.directory, log.clock, group.dropped_tombstone)
                    elif group.dropped_tombstone != lease_guard.NONE_DROPPED:
                        removal_log.note_erased(log.files, log.directory, group.dropped_tombstone)
                    if group.output.base_offset not in self._published:
                        publish(group, partial(swap_group, log, group))
                    log.store.discard(group.output.directory)
                    swap_seconds += log.clock.monotonic() - started
                    done.append(group)
        except lease_guard.LeaseCame:
            stopped_by = "lease"
            log.store.discard_outputs()
        except Stopped:
            stopped_by = "request"
        except HashesUnsure:
            log.store.discard_outputs()
            raise
        except LastwordError:
            self.failed()
            with suppress(LastwordError):  # the first error is the one to report
                log.store.discard_outputs()
            raise
        if not stopped_by:
            self._record_first_dirty(first_dirty())
        left = waiting()
        if left is not None:
            stats = replace(stats, waiting=left)
        return self._report(stats, done, stopped_by, swap_seconds)

    def _report(
        self, stats: ScanStats, done: list[BuiltGroup], stopped_by: report.StoppedBy, swap_seconds: float
    ) -> CleanRound:
        return report.close(
            self._log.directory, self._plan, stats, done, stopped_by=stopped_by, swap_seconds=swap_seconds
        )


def swap_group(log: PartitionLog, built: BuiltGroup) -> Segment:
    """Publish one group, if its sources are the files from which it was built.

    Returns:
        The segment as it is in the log now.
    """
    with log.lock:
        segments = log.segment_set
        old = []
        for source in built.sources:
            index = segments.index_of(source.base_offset)
            segment = segments[index] if index >= 0 else None
            facts = None if segment is None else segment.stored.facts()
            same = facts is not None and facts.id == source.id
            if segment is None or segment.active or not same:
                raise BusyError(
                    f"{source.path} changed while it was cleaned; nothing was published",
                    remedy="clean again",
                    file=source.path,
                )
            old.append(segment)
        return log.replace(old, _output(log.store, built))


def _output(store: DirectorySegments, built: BuiltGroup) -> Segment:
    """Return the certified output of a group; its file is not read."""
    facts = built.output
    output = Segment.load(store.output(facts.directory, facts.base_offset), next_offset=facts.next_offset)
    if output.size != facts.size_bytes:
        raise CorruptFileError(
            f"{output.file} has {output.size} bytes instead of the {facts.size_bytes} that were certified; "
            "nothing was published",
            remedy="clean again",
            file=output.file,
        )
    return output


class Collector(Sink[PreparedCleaning]):
    """Keeps each certified group for a `Publisher` elsewhere. Takes no lock.

    Args:
        view: gets each output in the place of its sources, for the next cleaning by the same accounts.
        staged_in: a location for outputs, if they are not made beside the log.
    """

    def __init__(self, plan: Plan, view: PartitionView | None = None, staged_in: str | None = None) -> None:
        self._plan = plan
        self._view = view
        self._staged_in = staged_in

    def take(self, rewrite: RewriteInput, liveness: Liveness) -> PreparedCleaning:
        """Rewrite each group and return the outputs, unpublished."""
        done: list[BuiltGroup] = []
        with closing(rewrite_each(rewrite, self._staged_in)) as groups:
            for group in groups:
                if self._view is not None:
                    liveness.publish(group, partial(self._replaced, group))
                done.append(group)
        stats, waiting = rewrite.scan.stats, liveness.waiting()
        if waiting is not None:
            stats = replace(stats, waiting=waiting)
        return PreparedCleaning(self._plan, stats, tuple(done), liveness.first_dirty())

    def kept(self, plan: Plan) -> PreparedCleaning:
        """Return a cleaning without groups."""
        return PreparedCleaning(self._plan, report.NOTHING_SCANNED, (), self._plan.start)

    def _replaced(self, group: BuiltGroup) -> Segment:
        assert self._view is not None
        output = _output(self._view.store, group)
        segments = self._view.segment_set
        first = segments.index_of(group.sources[0].base_offset)
        old = segments[first : first + len(group.sources)]
        self._view.segment_set = segments.with_replaced(old, [output])
        return output


class CountingSink(Sink[Plan]):
    """Counts what a rewrite would write, to the byte: the dry run."""

    verb = "plan"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def take(self, rewrite: RewriteInput, liveness: Liveness) -> Plan:
        """Count the bytes of each group."""
        scan = rewrite.scan
        held_back = liveness.held_back(scan)
        written_bytes = sum(written_bytes_of(rewrite))
        facts = scan.resolution.segments
        held = lease_guard.reason(scan.leases, held_back)
        segments = sum(group.count for group in scan.groups)
        source_bytes = sum(group.size_bytes for group in scan.groups)
        read_bytes = scan.stats.read_bytes + source_bytes
        counted = replace(
            self._plan,
            reasons=(*scan.reasons, *self._plan.reasons),
            segments=segments,
            read_bytes=read_bytes,
            write_bytes=written_bytes,
            free_bytes=source_bytes - written_bytes,
            scratch_bytes=scan.stats.scratch_bytes,
        )
        return exact_plan(counted, facts, held, len(held_back))

    def kept(self, plan: Plan) -> Plan:
        """Return the plan that keeps the partition."""
        return plan


def written_bytes_of(rewrite: RewriteInput) -> Iterable[int]:
    """Yield for each group how many bytes its output would take."""
    from lastword.cleaner.engine.rewrite import last_of_producers
    from lastword.cleaner.engine.rewrite import rewrite as rewritten

    scan = rewrite.scan
    producers = last_of_producers(scan.resolution.segments)
    for group in scan.groups:
        yield rewritten(
            group,
            scan.sources,
            scan.resolution,
            rewrite.plan,
            None,
            rewrite.steps.rewritten,
            scan.transactions,
            producers=producers,
        ).size_bytes


def exact_plan(
    counted: Plan, facts: Iterable[SegmentFacts], held: Reason | None = None, held_count: int = 0
) -> Plan:
    """Return a plan whose figures are exact; without segments to rewrite it has the reason why.

    `held`: the lease for which `held_count` tombstones wait.
    """
    counted = replace(counted, exact=True)
    if not counted.segments:
        return counted.only_newest(sum(segment.tombstones for segment in facts), held, held_count)
    return counted if held is None else replace(counted, reasons=(*counted.reasons, held))
