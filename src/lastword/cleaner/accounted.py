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

from lastword.accounts.ledger import Ledger
from lastword.accounts.values import DriveAccount, PartitionAccount
from lastword.accounts.watched import Watched
from lastword.cleaner import account, phases, quarantine
from lastword.cleaner.ahead import threads_for
from lastword.cleaner.built import BuiltGroup, BuiltRound
from lastword.cleaner.generational import Choice, choose_drive
from lastword.cleaner.part import groups_of, part_of, transactions_of, without_blocked
from lastword.cleaner.plan import Plan
from lastword.cleaner.report import CleanRound, TombstonesWaiting
from lastword.cleaner.runs import Run
from lastword.cleaner.steps import Steps, Stopped
from lastword.cleaner.transactions import Transactions
from lastword.config import TopicConfig
from lastword.errors import CertificateError, LastwordError
from lastword.files import Files
from lastword.partition import leases
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.segment.segment import Segment
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.cleaner.budget import DriveBudget


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
    """What the ledger says of a log that it was brought up to date with."""
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
        files, segments = phases.paced(log, budget, stop)
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
                    salt=salt,
                    progress=progress,
                    stop=stop,
                    threads=threads,
                    scratch=ledger.tracking.scratch,
                    part=None if run is None else partial(part_of, limits=limits, run=run),
                )
        except Stopped:
            return phases.stopped(log, plan)
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


def waiting(ledger: Ledger, plan: Plan) -> TombstonesWaiting:
    """The tombstones that are left, and which of them goes first."""
    # Starts the clocks of those that were freed just now.
    ledger.mark_due(plan.now_ms, plan.delete_retention_ms, floor=0)
    count = sum(one.tombstones for one in ledger.facts())
    offset, due_ms = ledger.deletes.next_due(plan.delete_retention_ms)
    return TombstonesWaiting(count, offset, due_ms)
