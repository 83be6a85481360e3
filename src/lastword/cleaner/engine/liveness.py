"""Find the dead records of a log: by a scan of all of it, or by accounts that are kept between cleanings.

`FullScan` reads every segment below the limit, with one map of all keys. If the keys do not fit the memory,
the log is read once and its keys are divided over shards in a scratch file, or it is read in several passes:
`resolve.whole` has the choice. `KeptAccounts` scans only segments that are new since the last cleaning; then
the garbage of every segment is known, and only what is rewritten is read. If the keys do not fit the memory,
the accounts hold a sample of them, which is used to choose but decides about no record: a full scan decides,
and still only the chosen run is rewritten. A cleaning of all garbage chooses nothing, so it takes no sample;
the accounts of the log that it leaves are made when they are needed.

Tombstones of kept accounts follow the accounts' clocks, which start when no older copy of the key is left in
any segment. A batch gets Kafka's delete horizon only from a rewrite of a segment without a blocked tombstone,
so that no Kafka that takes over drops a tombstone before the value that it deletes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from lastword.accounts import DriveAccount, PartitionAccount
from lastword.accounts.ledger import Ledger, Watched
from lastword.cleaner.engine import lease_guard, report
from lastword.cleaner.engine.build import threads_for
from lastword.cleaner.engine.cleaning import (
    CleanableLog,
    CleanContext,
    Liveness,
    ScanResult,
    Steps,
    below,
    limits_of,
)
from lastword.cleaner.engine.report import BuiltGroup, TombstonesWaiting
from lastword.cleaner.engine.transactions import TransactionFacts, Transactions, walked
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.generational import Choice, SegmentRun, all_garbage, because, choose_drive
from lastword.cleaner.policy.groups import OutputLimits, SegmentGroup, cut, group, needs_rewrite
from lastword.cleaner.policy.plan import KEYS_IN_PASSES, KEYS_IN_SHARDS, NOT_WORTH_IT, Plan, Reason
from lastword.config.tables import DEFAULT_SURVIVORSHIP_ALPHA
from lastword.errors import CertificateError, FileVanishedError, LastwordError
from lastword.files import Handle
from lastword.partition import leases
from lastword.partition.leases import MAY_GO, Leases, TombstoneFacts, held_by
from lastword.partition.removal_log import make_private
from lastword.segment import names
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lastword.config import TopicConfig
    from lastword.resolve import Resolution, ScratchPlace, SegmentFacts
    from lastword.resolve.survivors import Survivors
    from lastword.resolve.whole import MapPlan


class FullScan(Liveness):
    """Reads every segment below the limit.

    Args:
        run: Run that is rewritten; None: every segment with garbage.
        keys: Distinct keys of the log, if a sample of them did not fit the map; None: not known.
        by_hash: Hashes may decide: every segment with garbage is certified before it is published, and the
            caller cleans again after `HashesUnsure`.
        is_full: A map of all hashes was tried.
    """

    def __init__(
        self,
        run: SegmentRun | None = None,
        keys: int | None = None,
        *,
        by_hash: bool = False,
        is_full: bool = False,
    ) -> None:
        self._run = run
        self._keys = keys
        self._by_hash = by_hash and run is None
        self._is_full = is_full
        self._survivors: Survivors | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._survivors is not None:
            self._survivors.close()

    def scan(
        self, log: CleanableLog, segments: Sequence[Segment], plan: Plan, context: CleanContext, steps: Steps
    ) -> ScanResult:
        """Scan the log, and group the segments with garbage."""
        from lastword.resolve.facts import Rules
        from lastword.resolve.whole import LogResolver

        sources = below(segments, plan.limit)
        transactions = Transactions(segments, plan.limit, plan.now_ms, plan.producer_expiration_ms)
        held = leases.load(context.files, log.directory, plan.now_ms)
        resolver = LogResolver(
            sources,
            scratch_place(log.directory, context, by_hash=self._by_hash),
            steps.mapped,
            context.scratch,
            by_hash=self._by_hash and not self._is_full and not context.dry,
            map_bytes=plan.map_bytes,
            salt=os.urandom(16) if context.salt is None else context.salt,
            rules=Rules.of(plan.now_ms, min(held.floor, segments[-1].next_offset - 1)),
            outcomes=transactions,
            old_due=old_due(sources, plan),
            threads=threads_for(sum(segment.size for segment in sources), context.threads),
        )
        with quarantine.on_damage(context.files, log.directory, plan, dry=context.dry):
            resolution = resolver.run(self._keys)
        self._survivors = resolver.survivors
        facts, map_plan = transactions.facts, resolver.map_plan
        stats = report.scan_stats(plan, resolution)
        stats = replace(stats, read_bytes=stats.read_bytes + resolver.given_up_bytes)
        if map_plan is not None:  # of a dry run those that the cleaning would have
            readings = 1 if map_plan.shards else resolution.passes
            stats = replace(
                stats,
                read_bytes=resolver.given_up_bytes + readings * resolver.source_bytes,
                scratch_bytes=resolution.scratch_bytes or map_plan.scratch_bytes,
            )
        if self._run is None:
            groups = group(resolution.segments, limits_of(plan), facts.segments)
        else:
            groups, resolution, facts = restrict_to_run(resolution, facts, limits_of(plan), self._run)
        self._plan = plan
        self._scan = ScanResult(
            sources,
            resolution,
            groups,
            facts,
            stats,
            held,
            threads_for(stats.bytes, context.threads),
            reasons=() if map_plan is None else (_reason_of(map_plan),),
            by_hash=resolver.used_hashes,
            survivors=resolver.survivors,
        )
        return self._scan

    def highest_due(self, group: SegmentGroup) -> int:
        """Return the highest offset of a tombstone that this group drops for its age; -1: none."""
        return lease_guard.highest_due(self._scan, group, self._plan.now_ms, self._scan.leases.floor)

    def first_dirty(self) -> int:
        """Return the checkpoint to record when every group is published."""
        return self._plan.limit

    def held_back(self, scan: ScanResult) -> NDArray[np.int64]:
        """Return the offsets of tombstones that nothing but a lease keeps."""
        return lease_guard.held_back(scan, self._plan.now_ms)


class KeptAccounts(Liveness):
    """The accounts of each segment's garbage, with the running map of all keys or of a sample.

    Args:
        ledger: The accounts.
        config: Settings of the topic.
        runs: Runs that are rewritten, which do not overlap; None: all garbage.
        space_target: Without `runs`, rewrite what is due if the partition has a drive of its own with this
            space target; None: all garbage.
        alpha: Weight of the survivorship that this cleaning observes.
        refresh: False: the accounts are up to date.
        by_hash: As for `FullScan`: a map of hashes may decide about a log without accounts, if all its
            garbage is rewritten. The accounts stay empty unless the cleaning ends.
    """

    def __init__(
        self,
        ledger: Ledger,
        config: TopicConfig,
        *,
        runs: Sequence[SegmentRun] | None = None,
        space_target: float | None = None,
        alpha: float = DEFAULT_SURVIVORSHIP_ALPHA,
        refresh: bool = True,
        by_hash: bool = False,
    ) -> None:
        self.ledger = ledger
        self._by_hash = by_hash
        self.refreshes = refresh
        self._runs = runs
        self._config = config
        self._space_target = space_target
        self._alpha = alpha
        self._full: FullScan | None = None
        self._plan: Plan | None = None
        self._rewrites = False
        self._unpublished = 0
        self._survivors: Survivors | None = None
        self._facts: Sequence[SegmentFacts] = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._survivors is not None:
            self._survivors.close()
        if isinstance(error, CertificateError):
            self.ledger.discard()
        if self.ledger.by_hash:
            self.ledger.reset("a cleaning by a map of hashes did not end")
        if self._rewrites:
            self.ledger.give_up()

    def unread_bytes(self, segments: Sequence[Segment], plan: Plan) -> int:
        """Return how many bytes the scan will read."""
        if not self.refreshes:
            return 0
        return sum(
            segment.size for segment in segments if self.ledger.limit <= segment.base_offset < plan.limit
        )

    def scan(
        self, log: CleanableLog, segments: Sequence[Segment], plan: Plan, context: CleanContext, steps: Steps
    ) -> ScanResult | Plan:
        """Scan new segments, choose what to rewrite, and group it."""
        from lastword.resolve.whole import may_use_hashes

        ledger = self.ledger
        started = context.clock.monotonic()
        read_bytes = 0
        if self.refreshes:
            threads = threads_for(self.unread_bytes(segments, plan), context.threads)
            scanning = replace(context, threads=threads)
            # A cleaning of all garbage needs no sample to choose by.
            sample = self._runs is not None or self._space_target is not None or context.dry
            tracking, sources = ledger.tracking, below(segments, plan.limit)
            is_whole = self._by_hash and not sample
            by_hash = is_whole and may_use_hashes(sources, tracking.map_bytes, tracking.scratch)
            read_bytes = refresh(
                log, segments, ledger, plan, scanning, steps.mapped, sample=sample, by_hash=by_hash
            )
            self._survivors = tracking.running.survivors
            if self._survivors is not None and ledger.deletes.due.size:  # they still have due tombstones
                self._survivors.close()
                self._survivors = None
        self._plan = plan
        reasons: tuple[Reason, ...] = ()
        if self._runs is None and self._space_target is not None:
            own = account_of(log, self._config, ledger, drive=log.directory)
            drive = DriveAccount(log.directory, ledger.write_clock, self._space_target, 0.0, (own,))
            choice = choose_drive(drive, plan.now_ms)
            if choice.run is None:
                held = leases.load(context.files, log.directory, plan.now_ms)
                return not_worth_it(plan, ledger, choice, held)
            self._runs, reasons = [choice.run], because(choice)
        if not ledger.exact and context.dry:
            own = account_of(log, self._config, ledger, drive=log.directory)
            plan = replace(plan, reasons=(*reasons, *plan.reasons))
            place = scratch_place(log.directory, context, by_hash=self._runs is None)
            return estimated(_with_scratch(plan, segments, ledger, place), own, ledger, self._runs)
        self._rewrites = not context.dry
        if not ledger.exact:
            run = next(iter(self._runs or ()), None)
            keys = ledger.tracking.expected_keys or None
            self._full = FullScan(run, keys, by_hash=self._by_hash, is_full=True)
            whole = replace(context, scratch=ledger.tracking.scratch)
            return self._full.scan(log, segments, plan, whole, steps)
        seconds = context.clock.monotonic() - started
        resolution = ledger.resolution()
        first, expiration_ms = ledger.transactions_from, plan.producer_expiration_ms
        transactions = walked(log.segments, plan.limit, plan.now_ms, expiration_ms, first)
        runs: Sequence[SegmentRun | None] = [None] if self._runs is None else self._runs
        groups = tuple(
            group for run in runs for group in groups_of(resolution, transactions, limits_of(plan), run)
        )
        stats = report.accounted_stats(plan, resolution, groups, read_bytes=read_bytes, seconds=seconds)
        rewrite_bytes = sum(group.size_bytes for group in groups)
        steps.expect(rewrite_bytes)
        resolution, transactions = defer_horizons(ledger, resolution, transactions)
        sources = below(segments, plan.limit)
        if [segment.base_offset for segment in sources] != [
            segment.base_offset for segment in resolution.segments
        ]:
            why = "accounts of other segments than those below the limit"
            if context.dry:  # a cleaning has saved them since the view was made
                raise FileVanishedError(f"{log.directory}: {why}", remedy="plan again", file=log.directory)
            raise AssertionError(why)
        held = leases.load(context.files, log.directory, plan.now_ms) if context.dry else Leases()
        if not context.dry:
            sources = ledger.sources(sources, resolution.dead)
        self._facts = resolution.segments
        self._unpublished = len(groups)
        return ScanResult(
            sources,
            resolution,
            groups,
            transactions,
            stats,
            held,
            threads_for(rewrite_bytes, context.threads),
            overlap=not any(isinstance(source, Watched) for source in sources),
            reasons=reasons,
            by_hash=ledger.by_hash,
            survivors=self._survivors,
        )

    def highest_due(self, group: SegmentGroup) -> int:
        """Return the highest offset of a tombstone that this group drops for its age; -1: none."""
        if self._full is not None:
            return self._full.highest_due(group)
        return self.ledger.deletes.due_between(group.base_offset, self._facts[group.last].next_offset)

    def publish(self, group: BuiltGroup, swap: Callable[[], Segment]) -> None:
        """Publish a group, and replace the entries of its sources in the ledger."""
        self.ledger.invalid = True  # if the swap does not return, it is not known which files are there
        published = swap()
        first, last = group.sources[0].base_offset, group.sources[-1].base_offset
        self.ledger.swapped(first, last, published, self._alpha)
        self.ledger.invalid = False
        self._unpublished -= 1

    def first_dirty(self) -> int:
        """Return the checkpoint to record when every group is published."""
        if self._full is not None and self._runs is None:
            return self._full.first_dirty()
        return self.ledger.first_dirty_for_kafka()

    def waiting(self) -> TombstonesWaiting | None:
        """Return the tombstones that are left; None: as the rewrite counted them."""
        plan, ledger = self._plan, self.ledger
        if ledger.by_hash and not self._unpublished:
            ledger.certified()
        if not ledger.exact or plan is None:
            return None
        # Starts the clocks of those that were freed just now.
        ledger.mark_due(plan.now_ms, plan.delete_retention_ms, floor=0)
        count = sum(segment.tombstones for segment in ledger.facts())
        offset, due_ms = ledger.deletes.next_due(plan.delete_retention_ms)
        return TombstonesWaiting(count, offset, due_ms)

    def held_back(self, scan: ScanResult) -> NDArray[np.int64]:
        """Return the offsets of tombstones that nothing but a lease keeps."""
        assert self._plan is not None
        return held_back(self.ledger, self._plan, scan.leases)


# ---------------------------------------------------------------- scanning


def scratch_place(directory: str, context: CleanContext, *, by_hash: bool) -> ScratchPlace:
    """Return the place for the scratch file of a log; `by_hash` as for `FullScan`."""
    from lastword.resolve.whole import DIVIDE_FROM_BYTES, ScratchPlace

    files = context.files
    return ScratchPlace(
        lambda: _scratch_file(context, directory),
        lambda: files.free_bytes(directory),
        dry=context.dry,
        by_hash=by_hash,
        divide_from=DIVIDE_FROM_BYTES if context.divide_from is None else context.divide_from,
    )


def _reason_of(chosen: MapPlan) -> Reason:
    return Reason(KEYS_IN_SHARDS if chosen.shards else KEYS_IN_PASSES, chosen.text)


@contextmanager
def _scratch_file(context: CleanContext, directory: str) -> Iterator[Handle]:
    """Make an empty file beside the log for one scan, and remove it.

    It is in a private directory of the kind that opening the log and the next cleaning remove, so nothing
    remains of a process that was killed.
    """
    files = context.files
    make_private(files, directory)
    location = f"{directory}/{names.PRIVATE}/{names.SHARDS_PREFIX}{os.urandom(8).hex()}"
    try:
        files.mkdir(location)
        out = files.open_append(f"{location}/keys.data", create=True, exclusive=True)
        with context.paced_file(out) as paced:
            yield paced
    finally:
        with suppress(LastwordError):  # the first error is the one to report; opening removes the rest
            if files.exists(location):
                files.remove_tree(location)


def refresh(
    log: CleanableLog,
    segments: Sequence[Segment],
    ledger: Ledger,
    plan: Plan,
    context: CleanContext,
    progress: Callable[[int, int], None] | None = None,
    *,
    sample: bool = True,
    by_hash: bool = False,
) -> int:
    """Scan the segments that fell below the plan's limit since the last scan; mark due tombstones.

    The ledger fits the log (`Ledger.fit`). `sample`: as for `Ledger.add_segments`. `by_hash`: a rewrite of
    all garbage follows, so a map of hashes may decide about a log without accounts.

    Returns:
        The bytes that were read.
    """
    if ledger.entries and ledger.entries[-1].base_offset >= plan.limit:
        ledger.reset("min.compaction.lag.ms was raised: younger records do not supersede any more")
    transactions = Transactions(log.segments, plan.limit, plan.now_ms, plan.producer_expiration_ms)
    above = sum(segment.size for segment in segments if segment.base_offset >= plan.limit)
    log_end = segments[-1].next_offset if segments else 0
    floor = leases.due_below(context.files, log.directory, log_end, plan.now_ms)
    ledger.hold_back(floor)
    with quarantine.on_damage(context.files, log.directory, plan, dry=context.dry):
        read_bytes = ledger.add_segments(
            [segment for segment in segments if segment.base_offset < plan.limit],
            plan.limit,
            write_clock=ledger.write_clock,
            now_ms=plan.now_ms,
            outcomes=transactions,
            progress=progress,
            bytes_above=above,
            threads=context.threads,
            sample=sample,
            place=scratch_place(log.directory, context, by_hash=True) if by_hash else None,
        )
    ledger.mark_due(plan.now_ms, plan.delete_retention_ms, floor=floor)
    return read_bytes


def old_due(sources: Sequence[Segment], plan: Plan) -> list[bool]:
    """Return for each source whether tombstones of magic 0 and 1 there may go.

    These formats have no delete horizon; the times of files replace it. An earlier cleaning must have read
    the tombstone (it is below the first dirty offset), and at least `delete.retention.ms` must be between the
    last append to its segment and the last one to a cleaned segment. The last segment keeps its tombstones:
    if the last record of a log were removed, without an empty batch in its place, no consumer would ever
    reach the log's end.
    """
    times_ms = [segment.mtime_now_ms() for segment in sources]
    clean_ms = [t for t, segment in zip(times_ms, sources, strict=True) if segment.base_offset < plan.start]
    if not clean_ms:
        return [False] * len(sources)
    last = max((i for i, segment in enumerate(sources) if segment.size), default=-1)
    return [
        held_by(
            TombstoneFacts(
                segment.base_offset,
                t + plan.delete_retention_ms,
                has_horizon=segment.next_offset <= plan.start,
                ends_file=number == last,
            ),
            now_ms=clean_ms[-1],
        )
        == MAY_GO
        for number, (t, segment) in enumerate(zip(times_ms, sources, strict=True))
    ]


# ---------------------------------------------------------------- accounts


def account_of(log: CleanableLog, config: TopicConfig, ledger: Ledger, *, drive: str) -> PartitionAccount:
    """Return the account of a log that is not in quarantine, and whose ledger is up to date."""
    return ledger.account(
        config,
        topic=log.topic,
        partition=log.partition,
        drive=drive,
        total_bytes=sum(segment.size for segment in log.segments),
        log_start=log.log_start,
    )


def held_back(ledger: Ledger, plan: Plan, held: Leases) -> NDArray[np.int64]:
    """Return the offsets of tombstones that nothing but a lease keeps."""
    return ledger.deletes.held_back(plan.now_ms, plan.delete_retention_ms, held.floor)


def not_worth_it(plan: Plan, ledger: Ledger, choice: Choice, held: Leases) -> Plan:
    """Return the plan of a partition that a choice leaves alone, with its reason."""
    plan = replace(plan, exact=ledger.exact)
    reason = lease_guard.reason(held, held_back(ledger, plan, held))
    if reason is not None:
        plan = replace(plan, reasons=(reason, *plan.reasons))
    return plan.kept(NOT_WORTH_IT, choice.text)


def _with_scratch(plan: Plan, segments: Sequence[Segment], ledger: Ledger, place: ScratchPlace) -> Plan:
    """Return the plan with the scratch file that its scan of the whole log would take."""
    from lastword.resolve import MapLoad

    load = MapLoad.sampled(below(segments, plan.limit), plan.map_bytes, ledger.tracking.expected_keys)
    chosen = place.plan(load, plan.map_bytes)
    if chosen is None:
        return plan
    reasons = (*plan.reasons, _reason_of(chosen))
    return replace(plan, reasons=reasons, scratch_bytes=chosen.scratch_bytes)


def estimated(plan: Plan, own: PartitionAccount, ledger: Ledger, runs: Sequence[SegmentRun] | None) -> Plan:
    """Return the plan by a sample of the keys, as an estimate. Such a cleaning scans the whole log."""
    if runs is None and own.dead_bytes == 0:
        return replace(plan, exact=False).only_newest(
            sum(segment.tombstones for segment in ledger.facts()), None
        )
    taken = all_garbage(own) if runs is None else runs
    return replace(
        plan,
        segments=sum(run.files_in for run in taken),
        read_bytes=sum(segment.size_bytes for segment in own.segments) + sum(run.read_bytes for run in taken),
        write_bytes=sum(run.write_bytes for run in taken),
        free_bytes=sum(run.free_bytes for run in taken),
        exact=False,
    )


# ---------------------------------------------------------------- partial cleanings


def groups_of(
    resolution: Resolution, transactions: TransactionFacts, limits: OutputLimits, run: SegmentRun | None
) -> tuple[SegmentGroup, ...]:
    """Return the groups of a run, or of all garbage. A run that is gone gives none."""
    facts = resolution.segments
    if run is None:
        return group(
            [replace(segment, tombstones_without_horizon=0) for segment in facts],
            limits,
            transactions.segments,
        )
    within = [
        number
        for number, segment in enumerate(facts)
        if run.base_offset <= segment.base_offset and segment.next_offset <= run.next_offset
    ]
    if not within or facts[within[0]].base_offset != run.base_offset:
        return ()
    return tuple(
        segment
        for segment in cut(facts, within[0], within[-1], limits)
        if segment.count > 1 or segment.first in transactions.segments or needs_rewrite(facts[segment.first])
    )


def restrict_to_run(
    resolution: Resolution, transactions: TransactionFacts, limits: OutputLimits, run: SegmentRun
) -> tuple[tuple[SegmentGroup, ...], Resolution, TransactionFacts]:
    """Return the groups of a run in a log that was scanned whole, and the facts to rewrite by.

    No copies were counted. While there is garbage below the run, an older copy of a key deleted there may be
    part of it (`partition.leases.OLDER_RECORD`): then no tombstone gets a horizon, and if one goes, all
    garbage below goes first.
    """
    groups, facts = groups_of(resolution, transactions, limits, run), resolution.segments
    first = groups[0].first if groups else 0
    if not any(segment.dead_records for segment in facts[:first]):
        return groups, resolution, transactions
    if any(
        segment.due_tombstones
        for run_group in groups
        for segment in facts[run_group.first : run_group.last + 1]
    ):
        return (*group(facts[:first], limits, transactions.segments), *groups), resolution, transactions
    without_horizon = tuple(replace(segment, tombstones_without_horizon=0) for segment in facts)
    without = replace(transactions, without_horizon=frozenset(), segments=frozenset())
    return groups, replace(resolution, segments=without_horizon), without


def defer_horizons(
    ledger: Ledger, resolution: Resolution, transactions: TransactionFacts
) -> tuple[Resolution, TransactionFacts]:
    """Return facts by which a rewrite writes no delete horizon into a segment with a blocked tombstone.

    A marker there waits with it.
    """
    blocked = ledger.blocked_segments()
    if not blocked:
        return resolution, transactions
    facts = resolution.segments
    held = {number for number, segment in enumerate(facts) if segment.base_offset in blocked}
    ranges = [(facts[number].base_offset, facts[number].next_offset) for number in held]
    without_horizon = frozenset(
        offset
        for offset in transactions.without_horizon
        if not any(first <= offset < end for first, end in ranges)
    )
    segments = tuple(
        replace(segment, tombstones_without_horizon=0) if number in held else segment
        for number, segment in enumerate(facts)
    )
    kept = replace(transactions, without_horizon=without_horizon, segments=transactions.segments - held)
    return replace(resolution, segments=segments), kept
