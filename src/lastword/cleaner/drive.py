"""Choose what is due on a drive, and have an executor do it: `DriveCleaner`.

`inspection.inspect` computes the garbage accounts of all partitions of a drive, `choose_drive` chooses a run
by them. `outlook` repeats the choice on simulated segments, for dry runs and for executors that rewrite
several runs in parallel.

    executor           scans and rewrites run               a choice covers
    InlineExecutor     in this thread                       one run, then the drive is inspected again
    background tasks   on the threads of the scheduler      one run; `background.work` calls `inspect` itself
    SparkExecutor      as Spark tasks                       every run that is due, one task for each partition
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from lastword.accounts import DriveAccount, PartitionAccount, SegmentAccount
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.liveness import KeptAccounts, not_worth_it, refresh
from lastword.cleaner.engine.partition import clean_partition, dry_run
from lastword.cleaner.engine.throttle import DriveBudget, Stopped
from lastword.cleaner.inspection import (
    DrivePartition,
    inspect,
    is_kept_unread,
    limit_plan,
    scan_partition,
    shifted,
    worst_account,
)
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.generational import Choice, DriveChooser, SegmentRun, because, disjoint
from lastword.cleaner.policy.plan import NOT_WORTH_IT, QUARANTINED, Plan
from lastword.errors import LastwordError
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import leases
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.cleaner.engine.report import CleanRound
    from lastword.clock import Clock
    from lastword.config import TopicConfig
    from lastword.logdir.ledgers import Ledgers
    from lastword.partition.view import PartitionView

MOST_SCANS = 4
"""Scans of one partition in one inspection. A scan that finds garbage may let the active segment be closed,
which is then scanned too; a partition that another thread keeps changing is left as it is after this many."""
MANY_PARTITIONS = 64
"""A drive of fewer partitions is inspected as a whole before each choice."""
SEGMENTS_PER_RUN = 256
"""A partition of more segments is inspected once for this many segments of it: an inspection visits all."""
INSPECTION_SHARE = 10.0
"""A drive of more partitions is inspected as a whole after this many times the time of such an inspection."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the chosen runs of a partition.

    complete: every run was rewritten and published to its end.
    """

    tp: TopicPartition
    results: tuple[CleanRound, ...] = ()
    error: LastwordError | None = None
    complete: bool = False


class Executor(Protocol):
    """Where the scans and rewrites of a drive run."""

    @property
    def parallel(self) -> bool:
        """Return whether all due runs are rewritten before the drive is inspected again."""

    def scan(
        self, partitions: Sequence[DrivePartition], drive: str, now_ms: int
    ) -> Iterator[tuple[DrivePartition, LastwordError | None]]:
        """Scan the new segments of each partition, and cache the statistics in its ledgers."""

    def rewrite(self, runs: Sequence[tuple[DrivePartition, Sequence[SegmentRun]]]) -> Iterator[Outcome]:
        """Rewrite and publish runs."""

    def plan(
        self, chosen: Sequence[tuple[DrivePartition, Plan, Sequence[Choice]]]
    ) -> Iterator[tuple[DrivePartition, Plan]]:
        """Return the exact plan of these choices for each partition (`planned`)."""


class DriveCleaner:
    """One call's cleaning, or plan, of the partitions of a drive with strategy `generational`.

    The space target holds for all partitions of the drive together, so all of them are inspected, and some of
    them are `held`: they count towards the space and may not be chosen.

    errors: the first error of each partition that failed. The others are cleaned.
    """

    def __init__(
        self,
        drive: str,
        partitions: Sequence[DrivePartition],
        executor: Executor,
        *,
        space_target: float,
        clock: Clock,
    ) -> None:
        self.drive = drive
        self.errors: dict[TopicPartition, LastwordError] = {}
        self._partitions = {partition.tp: partition for partition in partitions}
        self._executor = executor
        self._space_target = space_target
        self._clock = clock
        self._chooser: DriveChooser | None = None  # of many partitions, since all of them were inspected
        self._inspected = (0.0, 0.0)  # when that was, and the seconds that it took

    def inspect(
        self,
        now_ms: int,
        held: Collection[TopicPartition] = (),
        partitions: Collection[TopicPartition] | None = None,
        *,
        bounded: bool = False,
    ) -> DriveAccount:
        """Return the accounts of the drive, after a scan of every new segment.

        A partition that fails is left out.

        Args:
            now_ms: The time to decide by.
            held: Partitions that may not be chosen.
            partitions: Only these; None: all.
            bounded: If no obligation can hold, scan nothing and return accounts with at least the garbage
                that there is.
        """
        scans: Counter[TopicPartition] = Counter()
        current: Mapping[TopicPartition, PartitionAccount] = {}
        wanted = list(self._partitions) if partitions is None else partitions
        while True:
            inspection = inspect(
                [self._partitions[tp] for tp in wanted if tp in self._partitions],
                self.drive,
                now_ms=now_ms,
                space_target=self._space_target,
                held=held,
                current=current,
            )
            current = inspection.current
            for tp, error in inspection.errors.items():
                self._leave_out(tp, error)
            stale = [partition for partition in inspection.stale if scans[partition.tp] < MOST_SCANS]
            if not stale:
                return inspection.account
            if bounded:
                worst = self._worst(inspection.account, stale, now_ms, held)
                if worst is not None and not DriveChooser(worst, now_ms).is_obliged:
                    return worst
            for partition, failed in self._executor.scan(stale, self.drive, now_ms):
                scans[partition.tp] += 1
                if failed is not None:
                    self._leave_out(partition.tp, failed)

    def _worst(
        self,
        account: DriveAccount,
        stale: Sequence[DrivePartition],
        now_ms: int,
        held: Collection[TopicPartition],
    ) -> DriveAccount | None:
        """Return the account with the most garbage that the stale partitions may have; None: not known.

        Only where a file that is read costs requests: elsewhere the accounts are kept in memory.
        """
        worst: dict[tuple[str, int], PartitionAccount] = {}
        for partition in stale:
            if not partition.log_dir.files.file_cost_bytes:
                return None
            try:
                bound = worst_account(partition, self.drive, now_ms, held=partition.tp in held)
            except LastwordError:
                return None  # the scan meets the error, too
            if bound is None:
                return None
            worst[partition.tp] = bound
        return replace(
            account,
            partitions=tuple(worst.get((own.topic, own.partition), own) for own in account.partitions),
        )

    def clean(
        self, held: Collection[TopicPartition] = (), stop: Callable[[], bool] | None = None
    ) -> Iterator[CleanRound]:
        """Rewrite what is due, until no obligation is left that can be met; yield each result.

        Args:
            held: Partitions that may not be chosen.
            stop: Called before each inspection; once true, the cleaning ends.
        """
        held = set(held)
        given_out: set[tuple[TopicPartition, int, int, int]] = set()
        changed: set[TopicPartition] = set()  # since the last choice
        self._chooser = None
        while stop is None or not stop():
            try:
                runs = self._next_runs(held, changed)
            except Stopped:
                return
            if not runs:
                return
            changed = set(runs)
            marks = {
                tp: {(tp, run.base_offset, run.next_offset, run.read_bytes) for run in chosen}
                for tp, chosen in runs.items()
            }
            # These runs were rewritten just now and are unchanged: no more can be done there.
            stuck = {tp for tp in runs if marks[tp] <= given_out}
            held |= stuck
            given_out.update(*marks.values())
            chosen_runs = [(self._partitions[tp], chosen) for tp, chosen in runs.items() if tp not in stuck]
            for outcome in self._executor.rewrite(chosen_runs):
                yield from outcome.results
                if outcome.error is not None:
                    self.errors.setdefault(outcome.tp, outcome.error)
                if not outcome.complete:
                    held.add(outcome.tp)
                if any(result.stopped_by == "request" for result in outcome.results):
                    return

    def plan(
        self, held: Collection[TopicPartition] = (), only: Collection[tuple[str, int]] | None = None
    ) -> Iterator[Plan]:
        """Return the plan of `clean` for each partition that is not held, or why it is kept.

        A cleaning chooses each run after the one before was rewritten. So with several runs the plans are
        estimates: the later ones are chosen from what the accounts expect of the first.

        Args:
            held: As for `clean`.
            only: The partitions to plan; None: all that are not held.
        """
        now_ms = self._clock.now_ms()
        account = self.inspect(now_ms, held)
        dead_bytes = {(part.topic, part.partition): part.dead_bytes for part in account.partitions}
        exact = {(part.topic, part.partition): part.exact for part in account.partitions}
        choices = outlook(account, now_ms)
        several = len(choices) > 2  # the last one has no run
        by_tp: dict[tuple[str, int], list[Choice]] = {}
        for choice in choices[:-1]:
            if choice.run is not None:
                by_tp.setdefault((choice.run.topic, choice.run.partition), []).append(choice)
        chosen: list[tuple[DrivePartition, Plan, Sequence[Choice]]] = []
        for tp, partition in self._partitions.items():
            if tp in held or (only is not None and tp not in only):
                continue
            view = partition.view()
            plan = limit_plan(partition, view, now_ms, dead_bytes.get(tp, 0))
            reason = quarantine.reason_of(partition.log_dir.files, view.directory)
            if reason is not None:
                yield plan.kept(QUARANTINED, reason)
            elif plan.action != "clean":
                yield plan
            elif tp not in by_tp and is_kept_unread(partition):
                is_exact = exact[tp] and not several and not _is_estimate(partition)
                yield replace(plan, exact=is_exact).kept(NOT_WORTH_IT, choices[-1].text)
            else:
                chosen.append((partition, plan, [*by_tp.get(tp, ()), choices[-1]]))
        for partition, plan in self._executor.plan(chosen):
            yield replace(plan, exact=plan.exact and not several and not _is_estimate(partition))

    def _next_runs(
        self, held: Collection[TopicPartition], changed: Collection[TopicPartition]
    ) -> dict[TopicPartition, list[SegmentRun]]:
        """Return the runs to rewrite next, by partition, the best first; none overlaps another.

        The drive is inspected. With many partitions, only the `changed` ones are, as long as an inspection of
        all would take more than a part of the time; if nothing more is due then, all are.
        """
        now_ms, began = self._clock.now_ms(), self._clock.monotonic()
        chooser, (inspected_at, took) = self._chooser, self._inspected
        if chooser is not None and began - inspected_at < INSPECTION_SHARE * took:
            for tp in changed:
                account = self.inspect(now_ms, held, [tp])
                for own in account.partitions:
                    chooser.update(tp, shifted(own, chooser.write_clock - account.write_clock))
                if not account.partitions:
                    chooser.update(tp, None)
            run = chooser.choose().run
            if run is not None:
                return {TopicPartition(run.topic, run.partition): [run]}
        account = self.inspect(now_ms, held, bounded=True)
        if self._executor.parallel:
            return self._all_runs(outlook(account, now_ms))
        chooser = DriveChooser(account, now_ms)
        if len(account.partitions) >= MANY_PARTITIONS:
            self._chooser, self._inspected = chooser, (began, self._clock.monotonic() - began)
        exact = [len(own.segments) for own in account.partitions if own.exact]
        most_runs = max(exact, default=0) // SEGMENTS_PER_RUN
        if most_runs > 1:
            return self._all_runs(outlook(account, now_ms, most_runs))
        return self._all_runs([chooser.choose()])

    @staticmethod
    def _all_runs(choices: Sequence[Choice]) -> dict[TopicPartition, list[SegmentRun]]:
        runs: dict[TopicPartition, list[SegmentRun]] = {}
        for choice in choices:
            if choice.run is not None:
                runs.setdefault(TopicPartition(choice.run.topic, choice.run.partition), []).append(choice.run)
        kept = {tp: disjoint(chosen) for tp, chosen in runs.items()}
        return {tp: [run for run in chosen if run in kept[tp]] for tp, chosen in runs.items()}

    def _leave_out(self, tp: TopicPartition, error: LastwordError) -> None:
        self._partitions.pop(tp, None)
        self.errors.setdefault(tp, error)


class InlineExecutor:
    """Scans and rewrites in the calling thread, one partition at a time.

    Args:
        budget: The I/O budget of the drive.
        stop: Called at every safe point; once true, a rewrite ends early, and a scan raises `Stopped`.
        progress: Gives the progress function for a part of this many bytes.
    """

    parallel = False

    def __init__(
        self,
        budget: DriveBudget | None = None,
        stop: Callable[[], bool] | None = None,
        progress: Callable[[int], AbstractContextManager[ProgressLike | None]] = lambda _: nullcontext(),
    ) -> None:
        self._budget = budget
        self._stop = stop
        self._progress = progress

    def scan(
        self, partitions: Sequence[DrivePartition], drive: str, now_ms: int
    ) -> Iterator[tuple[DrivePartition, LastwordError | None]]:
        """Scan each partition whose claim is free."""
        for partition in partitions:
            failed: LastwordError | None = None
            try:
                with partition.log_dir.try_claim(*partition.tp) as mine:
                    if mine:  # otherwise another thread is cleaning or changing the partition
                        scan_partition(partition, drive, now_ms, self._context(partition))
            except LastwordError as error:
                failed = error
            yield partition, failed

    def rewrite(self, runs: Sequence[tuple[DrivePartition, Sequence[SegmentRun]]]) -> Iterator[Outcome]:
        """Rewrite the runs of each partition with its claim, after waiting for it."""
        for partition, chosen in runs:
            tp, read_bytes = partition.tp, sum(run.read_bytes for run in chosen)
            try:
                with self._progress(read_bytes) as progress, partition.log_dir.claim(*tp):
                    context = replace(self._context(partition), progress=progress)
                    result = clean_one(partition, context, runs=disjoint(chosen))
            except LastwordError as error:
                yield Outcome(tp, error=error)
                continue
            yield Outcome(tp) if result is None else Outcome(tp, (result,), complete=result.complete)

    def plan(
        self, chosen: Sequence[tuple[DrivePartition, Plan, Sequence[Choice]]]
    ) -> Iterator[tuple[DrivePartition, Plan]]:
        """Count each plan.

        A bucket may have the summary of a scan, by which a run was chosen, without its garbage index: then
        the log is scanned here.
        """
        for partition, plan, choices in chosen:
            view, context = partition.view(), self._context(partition)
            with partition.ledgers.of(partition.tp, view) as ledger:
                refresh(view, view.segments, ledger, plan, context)
                yield partition, planned(view, partition.config, plan, ledger, choices, context)

    def _context(self, partition: DrivePartition) -> CleanContext:
        log_dir = partition.log_dir
        dry = not partition.ledgers.saves
        return CleanContext(log_dir.files, log_dir.clock, budget=self._budget, stop=self._stop, dry=dry)


def clean_one(
    partition: DrivePartition,
    context: CleanContext,
    *,
    runs: Sequence[SegmentRun] | None = None,
    strategy: str = "generational",
    due: bool = True,
    closed_only: bool = False,
) -> CleanRound | None:
    """Clean one partition, whose claim the caller holds.

    Args:
        partition: Partition, with its ledgers; strategy `kafka` uses none.
        context: Storage, memory, budget and progress of the cleaning.
        runs: Runs to rewrite, which do not overlap, ascending. None: all garbage, or with strategy
            `kafka` the request of `due`.
        strategy: Which segments are rewritten.
        due: Clean only if the settings make the partition due.
        closed_only: Do not close the active segment first.
    """
    log_dir, tp = partition.log_dir, partition.tp
    log, settings, ledgers = log_dir.log(*tp), log_dir.settings.instance, partition.ledgers
    request = replace(partition.request(strategy, due=due), closed_only=closed_only)

    def record_first_dirty(offset: int) -> None:
        log_dir.set_first_dirty(*tp, offset)

    if strategy != "generational":
        context = replace(context, scratch=settings.lastword_map_scratch)
        return clean_partition(log, partition.config, request, context, record_first_dirty=record_first_dirty)
    with ledgers.of(tp, log) as ledger:
        result = clean_partition(
            log,
            partition.config,
            request,
            context,
            record_first_dirty=record_first_dirty,
            ledger=ledger,
            runs=runs,
            space_target=settings.lastword_space_target,
            alpha=settings.lastword_survivorship_alpha,
        )
        keeps_summary = result is not None and runs is None and ledger.exact and bool(ledger.entries)
    if result is not None:
        measure(ledgers, result)
    if keeps_summary and log.files.file_cost_bytes:
        scan_partition(partition, "", log.clock.now_ms(), replace(context, stop=None))
    return result


def measure(ledgers: Ledgers, result: CleanRound) -> None:
    """Record the bytes and seconds of a published cleaning in the ledgers of its drive."""
    if result.certificate is not None:
        swaps = max(result.segments_before - result.segments_after, 1)
        ledgers.measured(result.written_bytes, result.phases.rewrite, swaps, result.phases.swap)


# ---------------------------------------------------------------- dry runs


def outlook(drive: DriveAccount, now_ms: int, most_runs: int = 10_000) -> list[Choice]:
    """Return the choices that would be made now, in order."""
    choices: list[Choice] = []
    chooser = DriveChooser(drive, now_ms)
    accounts = {(account.topic, account.partition): account for account in drive.partitions}
    while len(choices) < most_runs:
        choice = chooser.choose()
        choices.append(choice)
        if choice.run is None:
            break
        tp = choice.run.topic, choice.run.partition
        accounts[tp] = _rewritten(accounts[tp], choice.run, drive.write_clock)
        chooser.update(tp, accounts[tp])
    return choices


def planned(
    view: PartitionView,
    config: TopicConfig,
    plan: Plan,
    ledger: Ledger,
    choices: Sequence[Choice],
    context: CleanContext,
) -> Plan:
    """Return the exact plan of these choices (of `outlook`) for one partition of the drive.

    Args:
        view: The partition.
        config: Its settings.
        plan: The upper offset of a cleaning (`limit_plan`).
        ledger: Up to date.
        choices: Choices of this partition, and the last one of the drive.
        context: A dry one.
    """
    own = plan.topic, plan.partition
    mine = [choice for choice in choices if choice.run and (choice.run.topic, choice.run.partition) == own]
    if not mine:
        held = leases.load(context.files, view.directory, plan.now_ms)
        return not_worth_it(plan, ledger, choices[-1], held)
    plan = replace(plan, reasons=(*because(mine[0]), *plan.reasons))
    runs = disjoint([choice.run for choice in mine if choice.run is not None])
    return dry_run(view, plan, KeptAccounts(ledger, config, runs=runs, refresh=False), context)


def _is_estimate(partition: DrivePartition) -> bool:
    """Return whether a cleaning in this process uses newer accounts than this plan."""
    own = partition.ledgers.held(partition.tp)
    return own is not None and own.lacks(partition.log_dir.ledgers.held(partition.tp))


def _rewritten(account: PartitionAccount, run: SegmentRun, write_clock: int) -> PartitionAccount:
    old = account.segments[run.first : run.last + 1]
    new = SegmentAccount(
        base_offset=run.base_offset,
        next_offset=run.next_offset,
        size_bytes=run.write_bytes,
        records=sum(segment.records - segment.dead_records for segment in old),
        dead_records=0,
        dead_bytes=0,
        tombstones=sum(segment.tombstones for segment in old),
        blocked_tombstone_bytes=sum(segment.blocked_tombstone_bytes for segment in old),
        garbage_age_at=write_clock,
        written_at=write_clock,
    )
    return replace(
        account,
        segments=(*account.segments[: run.first], new, *account.segments[run.last + 1 :]),
        total_bytes=account.total_bytes - run.free_bytes,
    )
