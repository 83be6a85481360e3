"""The phases of a round: choose, map and rewrite, swap.

For an engine that rewrites elsewhere they are apart: `prepare` (where the log is open) gives a plan, `build`
(anywhere that sees the files; it takes no lock and changes nothing but `<partition>/lastword/`) a
`BuiltRound` of plain facts, `publish` (where the log is open) swaps it in. A round that fails or is killed at
any point leaves a log that holds the newest value of every key; `lastword.cleaner` has the list.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.cleaner import account, leased, quarantine, staging
from lastword.cleaner.ahead import threads_for
from lastword.cleaner.built import BuiltGroup, BuiltRound
from lastword.cleaner.choose import choose_for, roll_for_cleaning
from lastword.cleaner.groups import Group, Limits, group
from lastword.cleaner.paced import PacedFiles
from lastword.cleaner.plan import Plan, Reason
from lastword.cleaner.report import CleanRound, TombstonesWaiting
from lastword.cleaner.steps import Steps, Stopped
from lastword.cleaner.transactions import Found, Transactions
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.config.instance import DEFAULT_MAP_BYTES
from lastword.errors import BusyError, LastwordError
from lastword.files import Files
from lastword.partition import leases, losses
from lastword.partition.log import PartitionLog
from lastword.partition.tombstones import MAY_GO, TombstoneFacts, held_by
from lastword.partition.view import PartitionView
from lastword.segment.segment import Segment
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.cleaner.budget import DriveBudget
    from lastword.resolve import Resolution


def prepare(
    log: PartitionLog,
    config: TopicConfig,
    *,
    first_dirty: int | None,
    due: bool = False,
    strategy: str = "kafka",
    map_bytes: int = DEFAULT_MAP_BYTES,
) -> Plan:
    """Choose, close the active segment if the plan says so, and make durable what the round builds on.

    A record may kill an older one only when it cannot be lost itself: so everything below the limit is synced
    before the map pass reads it. Leftovers of earlier rounds are removed here.
    """
    with log.lock:
        if due and config.compacts:
            # So segment.ms and max.compaction.lag.ms hold without new appends, and a small state stays small.
            roll_for_cleaning(log, config, now_ms=log.clock.now_ms())
        chosen = chosen_plan(log, config, log.files, log.clock, first_dirty, due, strategy, map_bytes)
        if chosen.action == "clean" and chosen.rolls_active:
            log.roll()
            chosen = replace(chosen, limit=log.active.base_offset)
    if chosen.action == "clean":
        log.sync()
        if log.synced_to < chosen.limit:
            raise BusyError(f"{log.directory} is synced up to {log.synced_to} only", remedy="try again")
        staging.remove_leftovers(log.files, log.directory)
    return chosen


def build(
    view: PartitionView,
    plan: Plan,
    *,
    files: Files,
    clock: Clock,
    salt: bytes | None = None,
    progress: ProgressLike | None = None,
) -> BuiltRound:
    """Map and rewrite by `plan` (from `prepare`); the value can be pickled and given to `publish`."""
    built = build_whole(files, view.directory, view.segments, plan, clock, salt=salt, progress=progress)
    return built.collected()


def publish(
    log: PartitionLog,
    built: BuiltRound,
    *,
    record_first_dirty: Callable[[int], None],
    swap: Callable[[PartitionLog, BuiltGroup], object] | None = None,
    waiting: Callable[[], TombstonesWaiting] | None = None,
) -> CleanRound:
    """Swap each certified group in, lowest offsets first, then record how far the log is clean now.

    The order protects deletes: when a tombstone goes, older copies below it went with it or before.

    swap     `swap_group`, or who has to hear of each swap besides
    waiting  asked at the end which tombstones are left; None: told from what was rewritten
    """
    done: list[BuiltGroup] = []
    swap_seconds = 0.0
    stopped_by: account.StoppedBy = ""
    try:
        with built.ended() as groups:
            for one in groups:
                started = log.clock.monotonic()
                if not done:  # before the first swap, so that no reader meets files of which nothing is noted
                    limit, active_base = built.plan.limit, log.active.base_offset
                    losses.note_knowledge(log.files, log.directory, limit, active_base)
                leased.check(log.files, log.directory, log.clock, one.dropped_tombstone)
                (swap or swap_group)(log, one)
                staging.discard(log.files, one.output.directory)
                swap_seconds += log.clock.monotonic() - started
                done.append(one)
    except leased.LeaseCame:
        stopped_by = "lease"
        staging.remove_leftovers(log.files, log.directory)
    except Stopped:
        stopped_by = "request"
    except LastwordError:
        account.count_failure(log.directory)
        with suppress(LastwordError):  # the first error is the one to tell
            staging.remove_leftovers(log.files, log.directory)
        raise
    if not stopped_by:
        record_first_dirty(built.plan.limit)
    if waiting is not None:
        built = replace(built, mapped=replace(built.mapped, waiting=waiting()))
    return account.close(log.directory, built, done, stopped_by=stopped_by, swap_seconds=swap_seconds)


def swap_group(log: PartitionLog, built: BuiltGroup) -> Segment:
    """Publish one group, if its sources still are the files that it was made of; the segment as it lies in
    the log now."""
    with log.lock:
        by_base = {one.base_offset: one for one in log.segments}
        old = []
        for source in built.sources:
            segment = by_base.get(source.base_offset)
            facts = log.files.stat(source.path)
            same = facts is not None and (facts.inode, facts.size) == (source.inode, source.size_bytes)
            if segment is None or segment.active or not same:
                raise BusyError(
                    f"{source.path} changed while it was cleaned; nothing was published",
                    remedy="clean again",
                    file=source.path,
                )
            old.append(segment)
        new = Segment.load(log.files, built.output.directory, built.output.base_offset)
        return log.replace(old, [new])


_cleaning: set[str] = set()
_cleaning_lock = threading.Lock()


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """Hold the only cleaning of a partition in this process; BusyError if there is one.

    Other processes are kept out by the log directory's lock.
    """
    real = os.path.realpath(directory)
    with _cleaning_lock:
        if real in _cleaning:
            raise BusyError(f"{directory} is being cleaned", remedy="wait until that ends", file=directory)
        _cleaning.add(real)
    try:
        yield
    finally:
        with _cleaning_lock:
            _cleaning.discard(real)


def paced(
    log: PartitionLog | PartitionView, budget: DriveBudget | None, stop: Callable[[], bool] | None
) -> tuple[Files, Sequence[Segment]]:
    """The files and segments of a log; what is read and written through them comes out of `budget`."""
    if budget is None:
        return log.files, log.segments
    files = PacedFiles(log.files, budget, stop)
    return files, files.segments(log.segments)


def stopped(log: PartitionLog, plan: Plan) -> CleanRound:
    """The report of a round that was stopped while it mapped: nothing was rewritten."""
    built = BuiltRound(plan, account.nothing_mapped(), ())
    return account.close(log.directory, built, [], stopped_by="request", swap_seconds=0.0)


def chosen_plan(
    log: PartitionLog | PartitionView,
    config: TopicConfig,
    files: Files,
    clock: Clock,
    first_dirty: int | None,
    due: bool,
    strategy: str,
    map_bytes: int,
) -> Plan:
    """What `choose` says of a log as it lies there, with its quarantine."""
    set_aside = quarantine.load(files, log.directory)
    return choose_for(
        log,
        config,
        first_dirty=first_dirty,
        now_ms=clock.now_ms(),
        map_bytes=map_bytes,
        due=due,
        strategy=strategy,
        quarantine=None if set_aside is None else set_aside.reason,
    )


def exactly(
    chosen: Plan,
    resolution: Resolution,
    segments: int,
    source_bytes: int,
    written_bytes: int,
    held: Reason | None = None,
    held_count: int = 0,
) -> Plan:
    """The plan to the byte: `segments` of `source_bytes` are rewritten, into `written_bytes`. `held`: so many
    tombstones wait for a lease."""
    if not segments:
        tombstones = sum(one.tombstones for one in resolution.segments)
        return replace(chosen, exact=True).only_newest(tombstones, held, held_count)
    return replace(
        chosen,
        reasons=chosen.reasons if held is None else (*chosen.reasons, held),
        segments=segments,
        read_bytes=resolution.passes * sum(one.size_bytes for one in resolution.segments) + source_bytes,
        write_bytes=written_bytes,
        free_bytes=source_bytes - written_bytes,
        exact=True,
    )


def build_whole(
    files: Files,
    directory: str,
    segments: Sequence[Segment],
    plan: Plan,
    clock: Clock,
    *,
    salt: bytes | None = None,
    progress: ProgressLike | None = None,
    stop: Callable[[], bool] | None = None,
    threads: int = 1,
    scratch: str | None = None,
    part: Callable[[Resolution, Found], tuple[tuple[Group, ...], Resolution, Found]] | None = None,
) -> BuiltRound:
    """Map now; rewrite each group when it is asked for, or with two threads a little before. `part`: which
    groups, and by which facts; None: all that need it."""
    from lastword.cleaner.building import rewrite_each

    sources = below(segments, plan.limit)
    source_bytes = sum(one.size for one in sources)
    threads = threads_for(source_bytes, threads)
    steps = Steps("clean", source_bytes, clock, progress, stop)
    transactions = Transactions(segments, plan.limit, plan.now_ms, plan.producer_expiration_ms)
    due_below = leases.load(files, directory, plan.now_ms).floor
    with quarantine.on_damage(files, directory, f"{plan.topic}-{plan.partition}", plan.now_ms):
        resolution = map_of(sources, plan, salt, steps, transactions, due_below, threads, scratch)
    by = transactions.found
    if part is None:
        found = group(resolution.segments, limits_of(plan), by.segments)
    else:
        found, resolution, by = part(resolution, by)
    rewritten = rewrite_each(
        files,
        directory,
        sources,
        plan,
        resolution,
        by,
        found,
        steps,
        due_below,
        threads=threads,
    )
    return BuiltRound(plan, account.mapped(plan, resolution), rewritten)


def map_of(
    sources: Sequence[Segment],
    plan: Plan,
    salt: bytes | None,
    steps: Steps,
    transactions: Transactions,
    due_below: int,
    threads: int = 1,
    scratch: str | None = None,
) -> Resolution:
    """`due_below`: tombstones from there on wait for a lease."""
    from lastword.resolve import resolve

    return resolve(
        sources,
        map_bytes=plan.map_bytes,
        salt=os.urandom(16) if salt is None else salt,
        now_ms=plan.now_ms,
        fates=transactions,
        old_due=old_due(sources, plan),
        due_below=due_below,
        progress=steps.mapped,
        threads=threads,
        scratch=scratch,
    )


def old_due(sources: Sequence[Segment], plan: Plan) -> list[bool]:
    """For each source, whether tombstones of magic 0 and 1 there may go.

    These formats have no delete horizon; the times of files stand in for it. A round before this one must
    have seen the tombstone (it lies below the first dirty offset), and between the last append to its segment
    and the last one that was cleaned lies at least `delete.retention.ms`. The last segment keeps its
    tombstones: if the last record of a log went, with no empty batch in its place, no consumer would ever
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


def below(segments: Sequence[Segment], limit: int) -> list[Segment]:
    """Those that a round up to `limit` may take."""
    return [one for one in segments if one.base_offset < limit]


def limits_of(plan: Plan) -> Limits:
    """What one output may hold."""
    return Limits(plan.segment_bytes, plan.segment_index_bytes, plan.index_interval_bytes)
