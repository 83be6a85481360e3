"""A round by garbage accounts: what is new is scanned once, and of the rest only what is rewritten is read.

`look` brings a ledger up to date with its log; what to rewrite is then known exactly (or, where the keys do
not fit the memory, estimated). `clean` rewrites one chosen run, or all garbage for a cleaning that was asked
for. Each group is certified against the running sums before it is published, and the ledger hears of every
swap. A ledger that tracks a sample of the keys only chooses: then the log is resolved as a whole, in as many
passes as it takes, and still only the chosen run is rewritten.

Tombstones here go by the ledger's clocks, which start when no older copy of the key is left in any segment.
A batch gets Kafka's delete horizon only from a rewrite of a segment without a blocked tombstone, so that no
Kafka that takes over drops one before the value that it deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lastword.accounts.deletes import Clocks
from lastword.accounts.ledger import Ledger
from lastword.accounts.values import DriveAccount, PartitionAccount
from lastword.accounts.watched import Watched
from lastword.cleaner import account, leased, phases, quarantine
from lastword.cleaner.ahead import threads_for
from lastword.cleaner.built import BuiltGroup, BuiltRound
from lastword.cleaner.choose import NOT_WORTH_IT, Plan, Reason
from lastword.cleaner.generational import Choice, choose_drive
from lastword.cleaner.groups import Group, Limits, cut, group, needs_rewrite
from lastword.cleaner.paced import PacedFiles
from lastword.cleaner.report import CleanRound, TombstonesWaiting
from lastword.cleaner.runs import Run, all_garbage
from lastword.cleaner.steps import Steps, Stopped
from lastword.cleaner.transactions import NOTHING, Found, Transactions
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import CertificateError, LastwordError
from lastword.files import Files
from lastword.partition import leases
from lastword.partition.leases import Leases
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.segment.segment import Segment
from lastword.values import ProgressLike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lastword.cleaner.budget import DriveBudget
    from lastword.resolve import Resolution


def look(
    log: PartitionLog | PartitionView,
    files: Files,
    ledger: Ledger,
    plan: Plan,
    segments: Sequence[Segment],
    progress: Callable[[int, int], None] | None = None,
    *,
    dry: bool = False,
    threads: int = 1,
) -> int:
    """Scan what fell below the plan's limit since the last look, and let tombstones become due; returns the
    bytes read. `segments`: the log's, maybe through a budget. The ledger fits the log (`Ledger.fit`).
    `dry`: damage that is met quarantines nothing.
    """
    if ledger.entries and ledger.entries[-1].base_offset >= plan.limit:
        ledger.begin_anew("min.compaction.lag.ms was raised: younger records have no say any more")
    transactions = Transactions(log.segments, plan.limit, plan.now_ms, plan.producer_expiration_ms)
    above = sum(one.size for one in segments if one.base_offset >= plan.limit)
    name = f"{plan.topic}-{plan.partition}"
    floor = leases.load(files, log.directory, plan.now_ms).floor
    ledger.hold_back(floor)
    with nullcontext() if dry else quarantine.on_damage(files, log.directory, name, plan.now_ms):
        read = ledger.absorb(
            [one for one in segments if one.base_offset < plan.limit],
            plan.limit,
            t=ledger.t,
            now_ms=plan.now_ms,
            fates=transactions,
            progress=progress,
            bytes_above=above,
            threads=threads,
        )
    ledger.mark_due(plan.now_ms, plan.delete_retention_ms, floor=floor)
    return read


def account_of(
    log: PartitionLog | PartitionView, config: TopicConfig, ledger: Ledger, *, drive: str, quarantined: bool
) -> PartitionAccount:
    return ledger.account(
        config,
        topic=log.topic,
        partition=log.partition,
        drive=drive,
        total_bytes=sum(one.size for one in log.segments),
        log_start=log.log_start,
        quarantined=quarantined,
    )


def choose_alone(
    log: PartitionLog | PartitionView,
    config: TopicConfig,
    ledger: Ledger,
    *,
    space_target: float,
    now_ms: int,
) -> Choice:
    """What is due if the partition had a drive of its own."""
    own = account_of(log, config, ledger, drive=log.directory, quarantined=False)
    return choose_drive(DriveAccount(log.directory, ledger.t, space_target, 0.0, (own,)), now_ms)


def groups_of(
    resolution: Resolution, transactions: Found, limits: Limits, run: Run | None
) -> tuple[Group, ...]:
    """What is rewritten together: the run, or all garbage. A run that is not there any more gives nothing."""
    facts = resolution.segments
    if run is None:
        return group(
            [replace(one, tombstones_without_horizon=0) for one in facts], limits, transactions.segments
        )
    within = [
        number
        for number, one in enumerate(facts)
        if run.base_offset <= one.base_offset and one.next_offset <= run.next_offset
    ]
    if not within or facts[within[0]].base_offset != run.base_offset:
        return ()
    return tuple(
        one
        for one in cut(facts, within[0], within[-1], limits)
        if one.count > 1 or one.first in transactions.segments or needs_rewrite(facts[one.first])
    )


def part_of(
    resolution: Resolution, transactions: Found, limits: Limits, run: Run
) -> tuple[tuple[Group, ...], Resolution, Found]:
    """The same of a log that was resolved as a whole, where nobody counted copies, and the facts to rewrite
    by. While garbage lies below the run, an older copy of a key deleted there may be among it: then no
    tombstone's clock starts, and if one goes, all garbage below goes first.
    """
    found, facts = groups_of(resolution, transactions, limits, run), resolution.segments
    first = found[0].first if found else 0
    if not any(one.dead_records for one in facts[:first]):
        return found, resolution, transactions
    if any(one.due_tombstones for each in found for one in facts[each.first : each.last + 1]):
        return (*group(facts[:first], limits, transactions.segments), *found), resolution, transactions
    unclocked = tuple(replace(one, tombstones_without_horizon=0) for one in facts)
    without = replace(transactions, unclocked=frozenset(), segments=frozenset())
    return found, replace(resolution, segments=unclocked), without


def transactions_of(ledger: Ledger, log: PartitionLog | PartitionView, plan: Plan) -> Found:
    """What a rewrite has to know of transactions: a walk over headers, if the log has any."""
    if ledger.transactions_from < 0:
        return NOTHING
    walk = Transactions(log.segments, plan.limit, plan.now_ms, plan.producer_expiration_ms)
    walk.look(ledger.transactions_from)
    return walk.found


def without_blocked(ledger: Ledger, resolution: Resolution, transactions: Found) -> tuple[Resolution, Found]:
    """Facts by which a rewrite writes no delete horizon into a segment where an older copy of some deleted
    key holds a tombstone back; a marker there waits with it."""
    blocked = ledger.blocked_segments()
    if not blocked:
        return resolution, transactions
    facts = resolution.segments
    held = {number for number, one in enumerate(facts) if one.base_offset in blocked}
    ranges = [(facts[number].base_offset, facts[number].next_offset) for number in held]
    unclocked = frozenset(
        offset for offset in transactions.unclocked if not any(first <= offset < end for first, end in ranges)
    )
    segments = tuple(
        replace(one, tombstones_without_horizon=0) if number in held else one
        for number, one in enumerate(facts)
    )
    found = replace(transactions, unclocked=unclocked, segments=transactions.segments - held)
    return replace(resolution, segments=segments), found


def clean(
    log: PartitionLog,
    config: TopicConfig,
    *,
    ledger: Ledger | None,
    run: Run | None,
    first_dirty: int | None,
    record_first_dirty: Callable[[int], None],
    due: bool,
    map_bytes: int,
    map_scratch: str | None = None,
    space_target: float,
    alpha: float,
    salt: bytes | None = None,
    progress: ProgressLike | None = None,
    stop: Callable[[], bool] | None = None,
    budget: DriveBudget | None = None,
    threads: int = 1,
) -> CleanRound | None:
    """See `cleaner.clean`."""
    with phases.alone(log.directory):
        plan = phases.prepare(
            log, config, first_dirty=first_dirty, due=due, strategy="generational", map_bytes=map_bytes
        )
        if plan.action != "clean":
            return None
        mine = ledger is None
        if ledger is None:
            ledger = opened(log, log.files, map_bytes, salt, map_scratch)
        else:
            ledger.fit(log.segments)
        files, segments = log.files, log.segments
        if budget is not None:
            files = paced = PacedFiles(log.files, budget, stop)
            segments = tuple(paced.segments(log.segments))
        new = sum(one.size for one in segments if ledger.limit <= one.base_offset < plan.limit)
        steps = Steps("clean", new, log.clock, progress, stop)
        try:
            started = log.clock.monotonic()
            scan_threads = threads_for(new, threads)
            read_bytes = look(log, files, ledger, plan, segments, steps.mapped, threads=scan_threads)
            if due and run is None:
                choice = choose_alone(log, config, ledger, space_target=space_target, now_ms=plan.now_ms)
                if choice.run is None:
                    return None
                run = choice.run
            if ledger.exact:
                seconds = log.clock.monotonic() - started
                built = build(log, files, segments, ledger, plan, run, steps, read_bytes, seconds, threads)
            else:
                limits = phases.limits_of(plan)
                built = phases.build_whole(
                    files,
                    log.directory,
                    segments,
                    plan,
                    log.clock,
                    salt,
                    progress,
                    stop,
                    threads=threads,
                    scratch=ledger.tracking.scratch,
                    part=None if run is None else partial(part_of, limits=limits, run=run),
                )
        except Stopped:
            built = BuiltRound(plan, account.nothing_mapped(), ())
            return account.close(log.directory, built, [], stopped_by="request", swap_seconds=0.0)
        except LastwordError:
            account.count_failure(log.directory)
            raise
        held = ledger

        def swap(log: PartitionLog, one: BuiltGroup) -> None:
            held.spoiled = True  # if this does not come back, nobody knows which files are there
            published = phases.swap_group(log, one)
            held.swapped(one.sources[0].base_offset, one.sources[-1].base_offset, published, alpha)
            held.spoiled = False

        try:
            return phases.publish(
                log,
                built,
                record_first_dirty=lambda limit: record_first_dirty(
                    limit if run is None and not held.exact else held.first_dirty_for_kafka()
                ),
                swap=swap,
                waiting=(lambda: waiting(held, plan)) if held.exact else None,
            )
        except CertificateError:
            held.discard()
            raise
        finally:
            held.give_up()
            if mine:
                with suppress(LastwordError):  # derived data: lost, it costs a scan
                    held.save()


def opened(
    log: PartitionLog | PartitionView,
    files: Files,
    map_bytes: int,
    salt: bytes | None = None,
    scratch: str | None = None,
) -> Ledger:
    """The accounts that were saved, or fresh ones, for one round or one look."""
    segments = log.segments
    ledger = (
        Ledger.open(files, log.directory, segments, map_bytes=map_bytes, scratch=scratch)
        if salt is None
        else Ledger.open(
            files, log.directory, segments, map_bytes=map_bytes, salt=lambda: salt, scratch=scratch
        )
    )
    ledger.t = max(ledger.t, sum(one.size for one in segments))
    return ledger


def build(
    log: PartitionLog | PartitionView,
    files: Files,
    segments: Sequence[Segment],
    ledger: Ledger,
    plan: Plan,
    run: Run | None,
    steps: Steps,
    read_bytes: int,
    seconds: float,
    threads: int = 1,
) -> BuiltRound:
    """Rewrite each group when it is asked for; with two threads the next one is begun before, unless the map
    has to hear what goes: then `Ledger.swapped` comes first. `read_bytes`, `seconds`: what the scan before it
    took.
    """
    from lastword.cleaner.building import rewrite_each

    resolution = ledger.resolution()
    transactions = transactions_of(ledger, log, plan)
    found = groups_of(resolution, transactions, phases.limits_of(plan), run)
    mapped = account.accounted(plan, resolution, found, read_bytes=read_bytes, seconds=seconds)
    steps.expect(sum(one.size_bytes for one in found))
    clocked, transactions = without_blocked(ledger, resolution, transactions)
    sources = phases.below(segments, plan.limit)
    if [one.base_offset for one in sources] != [one.base_offset for one in clocked.segments]:
        raise AssertionError("accounts of other segments than those below the limit")

    def rewritten() -> Iterator[BuiltGroup]:
        watched = ledger.sources(sources, clocked.dead)
        told = any(isinstance(one, Watched) for one in watched)
        each = rewrite_each(
            files,
            log.directory,
            watched,
            plan,
            clocked,
            transactions,
            found,
            steps,
            due_below=0,
            threads=threads_for(sum(one.size_bytes for one in found), threads),
            overlap=not told,
        )
        with closing(each):
            for chosen, one in zip(found, each, strict=True):
                end = clocked.segments[chosen.last].next_offset
                dropped = ledger.deletes.due_between(chosen.base_offset, end)
                yield replace(one, dropped_tombstone=dropped)

    return BuiltRound(plan, mapped, rewritten())


def plan(
    view: PartitionView,
    config: TopicConfig,
    chosen: Plan,
    *,
    files: Files,
    clock: Clock,
    ledger: Ledger | None = None,
    runs: Sequence[Run] | None = None,
    space_target: float = 1.5,
    clocks: Clocks | None = None,
    salt: bytes | None = None,
    progress: ProgressLike | None = None,
) -> Plan:
    """What a round would do now, to the byte: what is new is scanned, and the rest rewritten into nothing.

    chosen  up to where the round may reach (`choose`)
    ledger  of the caller, up to date; None: the one that was saved, brought up to date for this call
    clocks  of tombstones, where a ledger in memory knows more than the one that was saved
    runs    what would be rewritten; None: all garbage, or what is due as if alone on a drive
    """
    from lastword.cleaner.rewrite import rewrite

    scanned = 0
    if ledger is None:
        ledger = opened(view, files, chosen.map_bytes, salt)
        if clocks is not None:
            ledger.deletes.clocks.offset, ledger.deletes.clocks.since_ms = clocks
        to_scan = sum(one.size for one in view.segments if ledger.limit <= one.base_offset < chosen.limit)
        steps = Steps("plan", to_scan, clock, progress, None)
        scanned = look(view, files, ledger, chosen, view.segments, steps.mapped, dry=True)
    else:
        steps = Steps("plan", 0, clock, progress, None)
    held = leases.load(files, view.directory, chosen.now_ms)
    if chosen.due and runs is None:
        choice = choose_alone(view, config, ledger, space_target=space_target, now_ms=chosen.now_ms)
        if choice.run is None:
            return kept(chosen, ledger, choice, held)
        runs = [choice.run]
        chosen = replace(chosen, reasons=(*because(choice), *chosen.reasons))
    if not ledger.exact:
        return estimated(view, config, chosen, ledger, runs)
    waiting = leased.reason(held, held_back(ledger, chosen, held))
    resolution = ledger.resolution()
    transactions = transactions_of(ledger, view, chosen)
    limits = phases.limits_of(chosen)
    found: list[Group] = []
    for run in runs if runs is not None else [None]:
        found += groups_of(resolution, transactions, limits, run)
    if not found:
        return kept(chosen, ledger, None, held)
    sources = phases.below(view.segments, chosen.limit)
    steps.expect(sum(one.size_bytes for one in found))
    clocked, transactions = without_blocked(ledger, resolution, transactions)
    written_bytes = sum(
        rewrite(one, sources, clocked, chosen, None, steps.rewritten, transactions).size_bytes
        for one in found
    )
    source_bytes = sum(one.size_bytes for one in found)
    return replace(
        chosen,
        reasons=chosen.reasons if waiting is None else (*chosen.reasons, waiting),
        segments=sum(one.count for one in found),
        read_bytes=scanned + source_bytes,
        write_bytes=written_bytes,
        free_bytes=source_bytes - written_bytes,
        exact=True,
    )


def estimated(
    view: PartitionView, config: TopicConfig, chosen: Plan, ledger: Ledger, runs: Sequence[Run] | None
) -> Plan:
    """The same from a sample of the keys: about. Such a round resolves the log as a whole."""
    own = account_of(view, config, ledger, drive=view.directory, quarantined=False)
    dead = own.dead_bytes
    if runs is None and dead == 0:
        return kept(chosen, ledger, None, Leases())
    total = sum(one.size_bytes for one in own.segments)
    taken = all_garbage(own) if runs is None else runs
    return replace(
        chosen,
        segments=sum(one.files_in for one in taken),
        read_bytes=total + sum(one.read_bytes for one in taken),
        write_bytes=sum(one.write_bytes for one in taken),
        free_bytes=sum(one.free_bytes for one in taken),
        exact=False,
    )


def waiting(ledger: Ledger, plan: Plan) -> TombstonesWaiting:
    """The tombstones that are left, and which of them goes first."""
    # Starts the clocks of those that were freed just now.
    ledger.mark_due(plan.now_ms, plan.delete_retention_ms, floor=0)
    count = sum(one.tombstones for one in ledger.facts())
    offset, due_ms = ledger.deletes.next_due(plan.delete_retention_ms)
    return TombstonesWaiting(count, offset, due_ms)


def held_back(ledger: Ledger, plan: Plan, held: Leases) -> NDArray[np.int64]:
    """Offsets of tombstones that nothing but a lease keeps."""
    return ledger.deletes.held_back(plan.now_ms, plan.delete_retention_ms, held.floor)


def kept(plan: Plan, ledger: Ledger, choice: Choice | None, held: Leases) -> Plan:
    """The plan of a partition that is left alone, with the reason."""
    plan = replace(plan, exact=ledger.exact)
    waiting = held_back(ledger, plan, held)
    reason = leased.reason(held, waiting)
    if choice is None:
        tombstones = sum(one.tombstones for one in ledger.facts())
        return plan.only_newest(tombstones, reason, len(waiting))
    if reason is not None:
        plan = replace(plan, reasons=(reason, *plan.reasons))
    return plan.kept(NOT_WORTH_IT, choice.text)


def disjoint(runs: Sequence[Run]) -> list[Run]:
    """The runs by offset; one that takes in what an earlier one made covers it."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda one: (one.base_offset, -one.next_offset)):
        if found and run.base_offset < found[-1].next_offset:
            continue
        found.append(run)
    return found


def because(choice: Choice) -> tuple[Reason, ...]:
    """Why a run was chosen, and the others that were weighed."""
    others = [Reason("weighed", f"{run}, {run.score:.3g} of rent for each byte") for run in choice.best]
    return (Reason(choice.obligation, choice.text), *others)
