"""One drive: what lies on it, what is due there, and the round that does it.

`look` brings the accounts of every compacted partition up to date (what fell below the limits is scanned
once) and gives one `DriveAccount`; `generational.choose_drive` chooses by it (`drive_plan`: again and again,
on paper); `rewrite` carries a chosen run out. A partition in which nothing has moved since it was looked at
costs no look into its ledger.

A drive may hold several log directories. Each has a time of its own (bytes appended to it); they are put on
one scale here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword import metrics
from lastword.accounts.estimates import indexed_bytes
from lastword.accounts.tombstones import Standing
from lastword.accounts.values import DriveAccount, PartitionAccount, SegmentAccount
from lastword.cleaner.engine import liveness
from lastword.cleaner.engine.cleaning import Context
from lastword.cleaner.engine.liveness import KeptAccounts, not_worth_it
from lastword.cleaner.engine.partition import dry_run
from lastword.cleaner.engine.throttle import Stopped
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.choose import choose_for, is_outgrown, roll_for_cleaning
from lastword.cleaner.policy.generational import Choice, because, choose_drive, disjoint
from lastword.cleaner.policy.plan import Plan, Request
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.ledgers import Ledgers
from lastword.partition import leases
from lastword.partition.view import PartitionView
from lastword.segment.segment import Segment
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.cleaner.engine.report import CleanRound
    from lastword.cleaner.engine.throttle import DriveBudget
    from lastword.cleaner.policy.generational import Run
    from lastword.config import TopicConfig
    from lastword.logdir.log_dir import LogDirectory
    from lastword.partition.log import PartitionLog


@dataclass(frozen=True, slots=True)
class Place:
    """A compacted partition of strategy `generational`, and the directory that it lies in."""

    partition: TopicPartition
    home: LogDirectory


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found: valid as long as what it rests on stays as it was, and what it says of tombstones
    holds. `below`: `delete.retention.ms`, and of each file that it knows base offset and identity."""

    below: tuple[object, ...]
    account: PartitionAccount
    tombstones: Standing

    def holds(self, files: Files, directory: str, below: tuple[object, ...], now_ms: int) -> bool:
        """Leases are read only if a tombstone depends on them."""
        asks = self.tombstones.asks_leases
        floor = leases.load(files, directory, now_ms).floor if asks else leases.NO_FLOOR
        return self.below == below and self.tombstones.holds(now_ms, floor)


def look(
    places: Sequence[Place],
    drive: str,
    *,
    now_ms: int,
    space_target: float,
    held: Collection[TopicPartition] = (),
    ledgers: Callable[[LogDirectory], Ledgers] | None = None,
    failed: list[LastwordError] | None = None,
    stale: list[Place] | None = None,
    stop: Callable[[], bool] | None = None,
    budget: DriveBudget | None = None,
) -> DriveAccount:
    """The accounts of a drive, scanned up to the limit of each partition.

    held      partitions that may not be chosen; they count towards the space all the same
    ledgers   of a directory; None: its own
    failed    takes the errors of partitions that cannot be looked at, which are left out
    stale     given, nothing is scanned: takes the partitions that should be, which then count as they were
    """
    found: list[tuple[Ledgers, PartitionAccount]] = []
    for place in places:
        own = ledgers(place.home) if ledgers is not None else place.home.ledgers
        try:
            one = _look_at(place, drive, own, now_ms, place.partition in held, stale, stop, budget)
        except LastwordError as error:
            if failed is not None:
                failed.append(error)
            continue
        _show(one, now_ms)
        found.append((own, one))
    t = max((own.t for own, _ in found), default=0)
    cost = max((own.file_cost_bytes for own, _ in found), default=0.0)
    accounts = tuple(_shifted(one, t - own.t) for own, one in found)
    return DriveAccount(drive, t, space_target, cost, accounts)


def _look_at(
    place: Place,
    drive: str,
    ledgers: Ledgers,
    now_ms: int,
    held: bool,
    stale: list[Place] | None,
    stop: Callable[[], bool] | None,
    budget: DriveBudget | None,
) -> PartitionAccount:
    home, tp = place.home, place.partition
    config = home.topic_config(tp.topic)
    log: PartitionLog | PartitionView = home.view(*tp)
    log.check_end()
    seen = ledgers.seen.get(tp)
    dead_bytes = seen.account.dead_bytes if isinstance(seen, Seen) else 0
    if ledgers.saves:
        log = opened = home.log(*tp)
        roll_for_cleaning(opened, config, now_ms=now_ms, dead_bytes=dead_bytes)
    set_aside = quarantine.load(home.files, log.directory) is not None
    plan = plan_of(place, log, now_ms, dead_bytes)
    segments: Sequence[Segment] = log.segments
    total_bytes = sum(one.size for one in segments)
    nothing = PartitionAccount(
        *tp, drive, (), total_bytes, plan.limit, log.log_start, quarantined=set_aside or held
    )
    if set_aside or plan.action != "clean":
        return nothing
    below = _rests_on(plan, segments)
    known = isinstance(seen, Seen) and seen.holds(home.files, log.directory, below, now_ms)
    if not known and stale is not None:
        stale.append(place)
        if not isinstance(seen, Seen):
            return nothing
        held = True  # its segments may be others by now
    elif not known:
        with home.try_claim(*tp) as mine:
            if not mine:  # it is being cleaned, or changed, by somebody else
                return nothing if not isinstance(seen, Seen) else replace(seen.account, quarantined=True)
            context = Context(home.files, home.clock, budget=budget, stop=stop, dry=not ledgers.saves)
            seen = _scan(place, log, plan, drive, ledgers, context)
            ledgers.seen[tp] = seen
        if seen.account.dead_bytes > dead_bytes and is_outgrown(
            log.segments, config, seen.account.dead_bytes, now_ms
        ):
            # Known only now: what is dead below it does not keep the active segment open.
            return _look_at(place, drive, ledgers, now_ms, held, stale, stop, budget)
    else:
        ledgers.advance(tp, segments)
    assert isinstance(seen, Seen)
    return replace(
        seen.account,
        total_bytes=total_bytes,
        quarantined=held,
        segment_bytes=config.segment_bytes,
        file_bytes=indexed_bytes(config),
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
    )


def _scan(
    place: Place,
    log: PartitionLog | PartitionView,
    plan: Plan,
    drive: str,
    ledgers: Ledgers,
    context: Context,
) -> Seen:
    config = place.home.topic_config(place.partition.topic)
    context, segments = context.throttled(log.segments)

    def check_stop(done_bytes: int, total_bytes: int) -> None:
        if context.stop is not None and context.stop():
            raise Stopped

    with ledgers.of(place.partition, log) as ledger:
        read_bytes = liveness.refresh(log, segments, ledger, plan, context, check_stop)
        if ledgers.saves:
            metrics.CLEANER_READ_BYTES.add(read_bytes, os.path.realpath(os.path.dirname(log.directory)))
        return seen_of(log, config, ledger, plan, segments, drive)


def seen_of(
    log: PartitionLog | PartitionView,
    config: TopicConfig,
    ledger: Ledger,
    plan: Plan,
    segments: Sequence[Segment],
    drive: str,
) -> Seen:
    """What a ledger that is up to date says of these segments, the log's."""
    account = liveness.account_of(log, config, ledger, drive=drive, quarantined=False)
    standing = Standing()
    if ledger.exact:
        standing = ledger.deletes.standing(plan.now_ms, plan.delete_retention_ms)
    return Seen(_rests_on(plan, segments), account, standing)


def _rests_on(plan: Plan, segments: Sequence[Segment]) -> tuple[object, ...]:
    files_below = ((s.base_offset, s.id) for s in segments if s.base_offset < plan.limit)
    return (plan.delete_retention_ms, *files_below)


def _show(account: PartitionAccount, now_ms: int) -> None:
    """The figures of a partition, for whoever looks at the metrics."""
    labels, dead = (account.topic, str(account.partition)), account.dead_bytes
    exact, other = ("true", "false") if account.exact else ("false", "true")
    for gauge, value in (
        (metrics.LOG_GARBAGE_BYTES, dead),
        (metrics.LOG_LIVE_BYTES, account.total_bytes - dead),
        (metrics.LOG_LIVE_RECORDS, sum(one.records - one.dead_records for one in account.segments)),
        (metrics.LOG_TOMBSTONES, sum(one.tombstones for one in account.segments)),
    ):
        gauge.remove(*labels, other)
        gauge.set(value, *labels, exact)
    metrics.LOG_DIRTY_RATIO.set(dead / account.total_bytes if account.total_bytes else 0.0, *labels)
    metrics.CLEANER_OVERDUE_SECONDS.set(late_ms(account, now_ms) / 1000, *labels)


def late_ms(account: PartitionAccount, now_ms: int) -> int:
    """By how long its oldest garbage has passed `max.compaction.lag.ms`; 0: it has not."""
    died_ms = [one.oldest_dead_ms for one in account.segments if one.oldest_dead_ms >= 0]
    return max(now_ms - min(died_ms) - account.max_compaction_lag_ms, 0) if died_ms else 0


def plan_of(place: Place, log: PartitionLog | PartitionView, now_ms: int, dead_bytes: int = 0) -> Plan:
    """Compute up to where a round may reach that is due; reads no record. `dead_bytes`: known garbage of the
    closed segments."""
    home, tp = place.home, place.partition
    return choose_for(
        log,
        home.topic_config(tp.topic),
        Request(home.first_dirty(*tp), True, "generational", home.settings.instance.map_bytes),
        now_ms,
        dead_bytes=dead_bytes,
    )


def _shifted(account: PartitionAccount, by: int) -> PartitionAccount:
    """The same on a scale of time that is `by` ahead."""
    if by == 0:
        return account
    return replace(
        account,
        segments=tuple(
            replace(one, rent_at=one.rent_at + by, written_at=one.written_at + by) for one in account.segments
        ),
    )


def rewrite(
    place: Place,
    run: Run | None,
    *,
    due: bool = True,
    progress: ProgressLike | None = None,
    stop: Callable[[], bool] | None = None,
    budget: DriveBudget | None = None,
    threads: int = 1,
) -> CleanRound | None:
    """One round over a partition, whose claim the caller holds. `run`: what `look` and `choose_drive` found;
    None without `due`: all its garbage, now."""
    from lastword.cleaner.engine.partition import clean_partition

    home, tp = place.home, place.partition
    log, settings = home.log(*tp), home.settings.instance
    with home.ledgers.of(tp, log) as ledger:
        found = clean_partition(
            log,
            home.topic_config(tp.topic),
            Request(home.first_dirty(*tp), due, "generational", settings.map_bytes),
            Context(log.files, log.clock, threads=threads, budget=budget, progress=progress, stop=stop),
            record_first_dirty=lambda offset: home.set_first_dirty(*tp, offset),
            ledger=ledger,
            run=run,
            space_target=settings.lastword_space_target,
            alpha=settings.lastword_survivorship_alpha,
        )
    if found is not None and found.certificate is not None:
        swaps = max(found.segments_before - found.segments_after, 1)
        home.ledgers.measured(found.written_bytes, found.phases.rewrite, swaps, found.phases.swap)
    return found


def outlook(drive: DriveAccount, now_ms: int, most_runs: int = 10_000) -> tuple[list[Choice], DriveAccount]:
    """All that would be rewritten now, one choice after another, and the drive as it would be then."""
    choices: list[Choice] = []
    while len(choices) < most_runs:
        choice = choose_drive(drive, now_ms)
        choices.append(choice)
        if choice.run is None:
            break
        drive = replace(
            drive, partitions=tuple(_rewritten(one, choice.run, drive.t) for one in drive.partitions)
        )
    return choices, drive


def planned(
    view: PartitionView,
    config: TopicConfig,
    plan: Plan,
    ledger: Ledger,
    choices: Sequence[Choice],
    context: Context,
) -> Plan:
    """Return what these choices (of `outlook`) mean for one of the drive's partitions, to the byte.

    Args:
        plan: up to where a cleaning may reach (`plan_of`).
        ledger: up to date.
        context: a dry one.
    """
    place = (plan.topic, plan.partition)
    mine = [one for one in choices if one.run is not None and (one.run.topic, one.run.partition) == place]
    if not mine:
        held = leases.load(context.files, view.directory, plan.now_ms)
        return not_worth_it(plan, ledger, choices[-1], held)
    plan = replace(plan, reasons=(*because(mine[0]), *plan.reasons))
    runs = disjoint([one.run for one in mine if one.run is not None])
    return dry_run(view, plan, KeptAccounts(ledger, config, runs=runs, refresh=False), context)


def _rewritten(account: PartitionAccount, run: Run, t: int) -> PartitionAccount:
    if (account.topic, account.partition) != (run.topic, run.partition):
        return account
    old = account.segments[run.first : run.last + 1]
    new = SegmentAccount(
        base_offset=run.base_offset,
        next_offset=run.next_offset,
        size_bytes=run.write_bytes,
        records=sum(one.records - one.dead_records for one in old),
        dead_records=0,
        dead_bytes=0,
        tombstones=sum(one.tombstones for one in old),
        blocked_tombstone_bytes=sum(one.blocked_tombstone_bytes for one in old),
        rent_at=t,
        written_at=t,
    )
    return replace(
        account,
        segments=(*account.segments[: run.first], new, *account.segments[run.last + 1 :]),
        total_bytes=account.total_bytes - run.free_bytes,
    )
