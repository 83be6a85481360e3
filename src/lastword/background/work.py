"""The tasks of the scheduler: the partitions of open log directories, drive by drive.

Choosing uses sizes, times, checkpoints and garbage accounts and reads no record, so a log in which nothing is
due costs an inspection, and imports no kernel before its first segment is closed. A task holds the
partition's claim. A caller that waits for the claim (to trim, move, truncate or delete, to clean or expire)
ends the task at its next safe point. The background never waits for a claim.

By strategy:

    kafka         a partition is due by itself: by its dirty ratio, or by its age
    generational  a drive is due: the best run of all its partitions under the first obligation that holds.
                  A partition with segments that its accounts do not cover is scanned first
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from lastword import metrics
from lastword.background.scheduler import BackgroundTask, Done, Result, Stop, Urgency
from lastword.background.states import States
from lastword.cleaner.engine.throttle import DriveBudget, Drives, Stopped
from lastword.cleaner.policy import quarantine
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import LastwordError, UnknownTopicError
from lastword.logdir import LogDirectory, LogDirSet
from lastword.logdir.checkpoints import TopicPartition
from lastword.values import Progress

if TYPE_CHECKING:
    from lastword.cleaner.engine.report import CleanRound
    from lastword.cleaner.policy.generational import SegmentRun
    from lastword.cleaner.policy.plan import Plan
    from lastword.state.ttl import ExpiryWatch


log = logging.getLogger(__name__)

OVERDUE, SCAN, SPACE_LIMIT, DIRTY, FILES = range(5)
"""Ranks: garbage older than max.compaction.lag.ms; segments that were not scanned yet; a partition beyond its
space limit; a drive above its target, or a partition above its dirty ratio; too many files."""
KEEP_SECONDS = 5.0
_RANKS = {"overdue": OVERDUE, "ceiling": SPACE_LIMIT, "target": DIRTY, "files": FILES}


@dataclass(frozen=True, slots=True)
class CleaningTask:
    """Work on one partition that is due now. `steps` holds the newest progress of a cleaning that runs."""

    work: DirectoryWork
    partition: TopicPartition
    log_dir: LogDirectory
    drive: str
    urgency: Urgency
    steps: deque[Progress] = field(default_factory=lambda: deque(maxlen=1), init=False, compare=False)

    def run(self, stop: Stop) -> Done | None:
        """Run with the partition's claim if it is free.

        Ends early when another thread waits for the claim, or the topic may not be cleaned any more.
        """
        tp, log_dir = self.partition, self.log_dir
        self.work.begun(self)

        def over() -> bool:
            return log_dir.wanted(*tp) or not log_dir.topic_config(tp.topic).compacts or stop()

        with log_dir.try_claim(*tp) as mine:
            if not mine or not log_dir.holds(*tp):
                return None
            try:
                return self._run(over)
            except UnknownTopicError:  # deleted a moment ago
                return None
            except LastwordError as error:
                damaged = quarantine.load(log_dir.files, log_dir.directory(*tp)) is not None
                now_ms = self.work.clock.now_ms()
                return Done(*tp, self.drive, "failed", now_ms, error=error.message, damaged=damaged)

    def _run(self, stop: Stop) -> Done | None:
        raise AssertionError("each kind of task has its own")

    def _budget(self) -> DriveBudget:
        return self.work.budgets.budget(self.drive)

    def _done(self, cleaned: CleanRound | None) -> Done | None:
        if cleaned is None:
            return None
        published = cleaned.certificate is not None
        result: Result = "ok" if cleaned.complete else "partial" if published else "aborted"
        return Done(*self.partition, self.drive, result, cleaned.now_ms, round=cleaned)


@dataclass(frozen=True, slots=True)
class PartitionTask(CleaningTask):
    """Strategy `kafka`: clean everything below the limit."""

    def _run(self, stop: Stop) -> Done | None:
        from lastword.cleaner.drive import clean_one
        from lastword.cleaner.engine.cleaning import CleanContext
        from lastword.cleaner.inspection import DrivePartition

        files, clock, progress = self.log_dir.files, self.log_dir.clock, self.steps.append
        context = CleanContext(files, clock, budget=self._budget(), stop=stop, progress=progress)
        partition = DrivePartition.of(self.partition, self.log_dir)
        return self._done(clean_one(partition, context, strategy="kafka"))


@dataclass(frozen=True, slots=True)
class RunTask(CleaningTask):
    """Strategy `generational`: rewrite one run of neighbouring segments."""

    chosen: SegmentRun

    def _run(self, stop: Stop) -> Done | None:
        from lastword.cleaner.drive import InlineExecutor
        from lastword.cleaner.inspection import DrivePartition

        executor = InlineExecutor(self._budget(), stop, lambda _: nullcontext(self.steps.append))
        (outcome,) = executor.rewrite([(DrivePartition.of(self.partition, self.log_dir), [self.chosen])])
        if outcome.error is not None:
            raise outcome.error
        return self._done(next(iter(outcome.results), None))


@dataclass(frozen=True, slots=True)
class ScanTask(CleaningTask):
    """Scan the new segments of a partition; each segment is read once, soon after it was closed."""

    def _run(self, stop: Stop) -> Done | None:
        from lastword.cleaner.drive import DriveCleaner, InlineExecutor
        from lastword.cleaner.inspection import DrivePartition

        now_ms = self.work.clock.now_ms()
        cleaner = DriveCleaner(
            self.drive,
            [DrivePartition.of(self.partition, self.log_dir)],
            InlineExecutor(self._budget(), stop),
            space_target=self.work.space_target([self.log_dir]),
            clock=self.work.clock,
        )
        try:
            cleaner.inspect(now_ms)
        except Stopped:
            return None
        for error in cleaner.errors.values():
            raise error
        return Done(*self.partition, self.drive, "scanned", now_ms)


class _Inspection:
    """The result of planning a partition that has no task of its own. Equal only to itself.

    It holds while the facts stay the same, until the active segment is due to be closed, and at most to the
    next multiple of `KEEP_SECONDS`: lags, tombstones and notes on disk become due with time. All results end
    together, so a drive is inspected once for all of them.
    """

    __slots__ = ("_facts", "_from_ms", "_until_ms", "is_cleanable")

    def __init__(self, facts: tuple[Any, ...], now_ms: int, is_cleanable: bool) -> None:
        self.is_cleanable = is_cleanable
        self._facts = facts
        self._from_ms = now_ms
        keep_ms = int(KEEP_SECONDS * 1000)
        self._until_ms = min(facts[0].roll_due_ms, (now_ms // keep_ms + 1) * keep_ms - 1)

    def holds(self, facts: tuple[Any, ...], now_ms: int) -> bool:
        """Return whether the partition would be planned with the same result."""
        return self._from_ms <= now_ms <= self._until_ms and self._facts == facts


def _dead_bytes(stats: object) -> int:
    """Return the known garbage of a partition's closed segments."""
    dead_bytes: int = getattr(getattr(stats, "account", None), "dead_bytes", 0)
    return dead_bytes


class DirectoryWork:
    """The compacted partitions of the log directories in `dir_set`.

    Attributes:
        only: Topics with a partition (None: each) to which everything is limited; None: all.
    """

    def __init__(self, dir_set: LogDirSet, drives: Drives, states: States, clock: Clock) -> None:
        self.budgets = drives
        self._dir_set = dir_set
        self._states = states
        self.clock = clock
        self.only: frozenset[tuple[str, int | None]] | None = None
        self._due: dict[str, tuple[float, list[CleaningTask]]] = {}
        self._warned: set[str] = set()
        self._watches: dict[tuple[str, TopicPartition], ExpiryWatch] = {}
        self._checked: dict[str, dict[TopicPartition, _Inspection]] = {}  # by drive
        self._idle: dict[str, tuple[Any, ...]] = {}  # by drive: an inspection that found nothing to do

    def drives(self) -> list[str]:
        """Return the names of the drives."""
        self._check_quarantine()
        return self.budgets.names

    def next(self, drive: str, held: Collection[TopicPartition]) -> CleaningTask | None:
        """Return the most urgent task on a drive for a partition that is not in `held`.

        One inspection may find many tasks; they are cached for `KEEP_SECONDS` and returned one by one.
        """
        until, tasks = self._due.get(drive, (0.0, []))
        now = self.clock.monotonic()
        tasks = [task for task in tasks if task.partition not in held] if now < until else []
        if not tasks:
            tasks, until = self._find_due(drive, held), now + KEEP_SECONDS
            # The first task changes the drive, so the best run is chosen again after it.
            tasks[1:] = takewhile(lambda task: not isinstance(task, RunTask), tasks[1:])
        # The first task stays: a more urgent one of another drive may begin instead.
        self._due[drive] = until, tasks
        return tasks[0] if tasks else None

    def begun(self, task: CleaningTask) -> None:
        """Remove a task that begins from the cached ones."""
        _, tasks = self._due.get(task.drive, (0.0, []))
        if task in tasks:
            tasks.remove(task)

    def overtakes(self, task: BackgroundTask, held: Collection[TopicPartition]) -> bool:
        """Return whether a task of the drive is overdue by `max.compaction.lag.ms`; `next` returns it then.

        Such a task does not wait for a running one.
        """
        if task.urgency.rank == OVERDUE:
            return False
        tasks = self._find_due(task.drive, held)
        if not tasks or tasks[0].urgency.rank != OVERDUE:
            return False
        self._due[task.drive] = self.clock.monotonic() + KEEP_SECONDS, tasks[:1]
        return True

    def forget(self) -> None:
        """Discard cached tasks: settings have changed."""
        self._due.clear()
        self._checked.clear()
        self._idle.clear()

    def _find_due(self, drive: str, held: Collection[TopicPartition]) -> list[CleaningTask]:
        """Return everything that is due on a drive, the most urgent first."""
        tasks: list[CleaningTask] = []
        accounted: list[tuple[TopicPartition, LogDirectory]] = []
        kept = set(held)
        worth_it = False  # whether there is a closed segment
        now_ms = self.clock.now_ms()
        before, checked = self._checked.get(drive, {}), {}
        for tp, log_dir, config in self._partitions(drive):
            if not config.compacts:
                continue
            generational = config.lastword_strategy == "generational"
            wanted = self._wanted(tp)
            if not wanted:
                kept.add(tp)
            if generational:
                accounted.append((tp, log_dir))
            if tp in held or not (wanted or generational):
                continue
            try:
                facts = self._facts(tp, log_dir, config)
                check = before.get(tp)
                if check is None or not check.holds(facts, now_ms):
                    plan, urgency = self._plan_partition(tp, log_dir, config)
                    check = _Inspection(facts, now_ms, plan.action == "clean")
                    if check.is_cleanable and not generational:
                        tasks.append(PartitionTask(self, tp, log_dir, drive, urgency))
                        continue
            except LastwordError:  # raised where the partition is used; the others are cleaned
                continue
            if self._states[tp].kind != "quarantined":  # until its note is removed
                checked[tp] = check
            worth_it = worth_it or (generational and check.is_cleanable)
        self._checked[drive] = checked
        if worth_it and (checked, kept) != self._idle.get(drive):
            chosen = list(self._by_accounts(drive, accounted, kept))
            tasks += chosen
            if not chosen:
                self._idle[drive] = checked, kept
        return sorted(tasks, key=lambda task: (task.urgency, task.partition))

    @staticmethod
    def _facts(tp: TopicPartition, log_dir: LogDirectory, config: TopicConfig) -> tuple[Any, ...]:
        """Return the facts by which a partition becomes due, apart from the time. Reads no file."""
        log = log_dir.log(*tp)
        return log, log.change_mark, config, _dead_bytes(log_dir.ledgers.cached_stats.get(tp))

    def _wanted(self, tp: TopicPartition) -> bool:
        return self.only is None or not self.only.isdisjoint([(tp.topic, None), tp])

    def _by_accounts(
        self,
        drive: str,
        accounted: list[tuple[TopicPartition, LogDirectory]],
        held: Collection[TopicPartition],
    ) -> Iterator[CleaningTask]:
        """Return scans of new segments, and the best run of the drive by the accounts that are up to date."""
        from lastword.cleaner.inspection import DrivePartition, inspect
        from lastword.cleaner.policy.generational import choose_drive

        now_ms = self.clock.now_ms()
        inspection = inspect(
            [DrivePartition.of(tp, log_dir) for tp, log_dir in accounted],
            drive,
            now_ms=now_ms,
            space_target=self.space_target([log_dir for _, log_dir in accounted]),
            held=held,
        )
        account = inspection.account
        self._warn_once(inspection.errors.values())
        late = {(part.topic, part.partition): part.late_ms(now_ms) for part in account.partitions}
        for stale in inspection.stale:
            if stale.tp not in held:
                # The new segments of an overdue partition are scanned before its garbage can be removed.
                after_ms = late.get(stale.tp, 0)
                urgency = Urgency(OVERDUE, -after_ms) if after_ms else Urgency(SCAN)
                yield ScanTask(self, stale.tp, stale.log_dir, drive, urgency)
        choice = choose_drive(account, now_ms)
        if choice.run is not None:
            log_dirs = dict(accounted)
            tp = TopicPartition(choice.run.topic, choice.run.partition)
            dead = sum(part.dead_bytes for part in account.partitions)
            ratio = dead / max(1, sum(part.total_bytes for part in account.partitions))
            urgency = Urgency(_RANKS[choice.obligation], -ratio)
            yield RunTask(self, tp, log_dirs[tp], drive, urgency, choice.run)

    def _warn_once(self, failed: Iterable[LastwordError]) -> None:
        """Log why a partition cannot be inspected, once; the others are cleaned."""
        for error in failed:
            if error.message not in self._warned:
                self._warned.add(error.message)
                log.warning("lastword: not cleaned: %s", error.message)

    @staticmethod
    def space_target(log_dirs: Sequence[LogDirectory]) -> float:
        """Return the space target of a drive with these log directories."""
        return min(log_dir.settings.instance.lastword_space_target for log_dir in log_dirs)

    def _partitions(self, drive: str) -> Iterator[tuple[TopicPartition, LogDirectory, TopicConfig]]:
        """Yield the partitions of a drive that may be changed."""
        try:
            log_dirs = self._dir_set.log_dirs_by_topic()
        except LastwordError:  # a partition is in two directories: nothing is changed until one is removed
            return
        is_here = functools.cache(
            lambda log_dir: self._dir_set.serves(log_dir) and self.budgets.drive_of(log_dir.path) == drive
        )
        for topic, partitions in log_dirs.items():
            configs: dict[LogDirectory, TopicConfig] = {}
            for number, log_dir in partitions.items():
                if is_here(log_dir):
                    config = configs.get(log_dir) or configs.setdefault(log_dir, log_dir.topic_config(topic))
                    yield TopicPartition(topic, number), log_dir, config

    def _plan_partition(
        self, tp: TopicPartition, log_dir: LogDirectory, config: TopicConfig
    ) -> tuple[Plan, Urgency]:
        # The first check comes some time after the start, which these modules would delay by 10 ms.
        from lastword.cleaner.policy.choose import choose_for, overdue_ms, roll_for_cleaning
        from lastword.cleaner.policy.plan import CleanRequest

        log = log_dir.log(*tp)
        dead_bytes = _dead_bytes(log_dir.ledgers.cached_stats.get(tp))
        roll_for_cleaning(log, config, now_ms=self.clock.now_ms(), dead_bytes=dead_bytes)
        reason = quarantine.reason_of(log_dir.files, log.directory)
        if reason is not None and self._states[tp].kind in ("idle", "paused"):
            self._states.apply(tp, "find")
        segments, request = log.segments, CleanRequest.of(log_dir, tp)
        plan = choose_for(log, config, request, self.clock.now_ms(), quarantine=reason, dead_bytes=dead_bytes)
        if config.lastword_strategy == "generational":
            return plan, Urgency(SCAN)
        late_ms = overdue_ms(
            [segment for segment in segments if segment.next_offset <= plan.limit],
            plan.start,
            plan.now_ms,
            config.max_compaction_lag_ms,
        )
        labels = tp.topic, str(tp.partition)
        metrics.LOG_DIRTY_RATIO.set(plan.dirty_ratio, *labels)
        metrics.CLEANER_OVERDUE_SECONDS.set((late_ms or 0) / 1000, *labels)
        if late_ms is None:
            return plan, Urgency(DIRTY, -plan.dirty_ratio)
        return plan, Urgency(OVERDUE, -late_ms)

    def _check_quarantine(self) -> None:
        """End the quarantine of partitions whose note was removed by hand."""
        for tp, state in self._states.all().items():
            if state.kind == "quarantined":
                try:
                    log_dir = self._dir_set.log_dir(*tp)
                    if log_dir is None or not log_dir.holds(*tp):
                        self._states.forget(tp)
                    elif quarantine.load(log_dir.files, log_dir.directory(*tp)) is None:
                        self._states.apply(tp, "retry")
                except LastwordError:  # its drive is offline
                    continue

    def chores(self, held: Collection[TopicPartition]) -> Iterator[Done]:
        """Apply retention where the policy is known; remove files and producers whose time has passed."""
        for drive in self.budgets.names:
            by_directory: dict[LogDirectory, dict[TopicPartition, TopicConfig]] = {}
            for tp, log_dir, config in self._partitions(drive):
                inside = by_directory.setdefault(log_dir, {})
                if config.unread is not None and config.unread.why not in self._warned:
                    self._warned.add(config.unread.why)
                    log.warning("lastword: nothing is removed from %s: %s", tp.topic, config.unread.why)
                if tp not in held and config.policy is not None and self._wanted(tp):
                    inside[tp] = config
            for log_dir, inside in by_directory.items():
                yield from self._expire(log_dir, inside, drive)
                for tp, config in inside.items():
                    self._expire_values(tp, log_dir, config)
            for log_dir in by_directory:
                with suppress(LastwordError):  # a drive that fails raises where it is written
                    log_dir.remove_deferred()
                log_dir.expire_producers()

    def _expire_values(self, tp: TopicPartition, log_dir: LogDirectory, config: TopicConfig) -> None:
        """Append tombstones for values whose time to live has passed."""
        if config.lastword_ttl_ms < 0 or not config.compacts:
            self._watches.pop((log_dir.path, tp), None)
            return
        from lastword.state.ttl import ExpiryWatch, expire_values

        watch = self._watches.setdefault((log_dir.path, tp), ExpiryWatch())
        with log_dir.try_claim(*tp) as mine:
            if mine:
                try:
                    map_bytes = log_dir.settings.instance.map_bytes
                    count = expire_values(log_dir.log(*tp), config, watch, map_bytes=map_bytes)
                except LastwordError as error:
                    self._warn_once([error])
                else:
                    if count:
                        log.info("lastword: %s: %d values expired", tp, count)

    def _expire(
        self, log_dir: LogDirectory, partitions: Iterable[TopicPartition], drive: str
    ) -> Iterator[Done]:
        from lastword.retention import expire

        for tp, result in expire(log_dir, partitions, wait=False).items():
            now_ms = self.clock.now_ms()
            if isinstance(result, UnknownTopicError):  # deleted a moment ago
                continue
            if isinstance(result, LastwordError):
                yield Done(*tp, drive, "failed", now_ms, error=result.message)
            elif result.removes:
                yield Done(*tp, drive, "expired", now_ms, deletion=result)
