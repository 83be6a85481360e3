"""Clean one partition of an open log, or compute the plan: prepare, then `cleaning.clean`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.cleaner.engine.cleaning import CleanContext, Liveness, clean
from lastword.cleaner.engine.report import CleanRound
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.choose import choose_for, roll_for_cleaning
from lastword.cleaner.policy.plan import CleanRequest, Plan
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.config.tables import DEFAULT_SPACE_TARGET, DEFAULT_SURVIVORSHIP_ALPHA
from lastword.errors import BusyError, LastwordError
from lastword.files import Files
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.cleaner.policy.generational import SegmentRun


def clean_partition(
    log: PartitionLog,
    config: TopicConfig,
    request: CleanRequest,
    context: CleanContext,
    *,
    record_first_dirty: Callable[[int], None],
    ledger: Ledger | None = None,
    runs: Sequence[SegmentRun] | None = None,
    space_target: float = DEFAULT_SPACE_TARGET,
    alpha: float = DEFAULT_SURVIVORSHIP_ALPHA,
) -> CleanRound | None:
    """Clean one partition; None when the plan is to keep it (`plan_partition` has the reason).

    Args:
        log: The open log.
        config: Settings of the topic.
        request: The kind of the cleaning.
        context: Storage, memory, budget and progress of the cleaning.
        record_first_dirty: Called with the new checkpoint, after the last swap is durable.
        ledger: For strategy `generational`: the partition's garbage accounts, held by the caller; None: those
            that were saved.
        runs: Runs to rewrite, which do not overlap, ascending; of accounts that hold a sample, the first
            one. None: all garbage, or with `due` what is due if the partition has a drive of its own.
        space_target: Space target of that drive.
        alpha: Weight of the survivorship that this cleaning observes.
    """
    from lastword.cleaner.engine.liveness import FullScan, KeptAccounts  # loads the kernels
    from lastword.cleaner.engine.sinks import Publisher
    from lastword.resolve.hash_map import HashesUnsure
    from lastword.resolve.whole import LOGGER

    with alone(log.files, log.directory):
        plan = prepare(log, config, request)
        if plan.action != "clean":
            return None
        sink = Publisher(log, plan, record_first_dirty)
        kept: Ledger | None = None
        if request.strategy == "generational":
            if ledger is None:
                kept = opened(log, context, plan.map_bytes)
            else:
                kept = ledger
                kept.fit(log.segments)

        def liveness(*, by_hash: bool) -> Liveness:
            if kept is None:
                return FullScan(by_hash=by_hash)
            target = space_target if request.due else None
            return KeptAccounts(kept, config, runs=runs, space_target=target, alpha=alpha, by_hash=by_hash)

        try:
            try:
                return clean(log, plan, liveness(by_hash=True), sink, context)
            except HashesUnsure as unsure:
                LOGGER.warning("%s is cleaned again by an exact map of its keys: %s", log.directory, unsure)
            return clean(log, plan, liveness(by_hash=False), sink, context)
        finally:
            if kept is not None and ledger is None:
                with suppress(LastwordError):  # derived data: lost, it costs a scan
                    kept.save()


def plan_partition(
    view: PartitionView,
    config: TopicConfig,
    request: CleanRequest,
    context: CleanContext,
    *,
    held: Ledger | None = None,
) -> Plan:
    """Return the plan of `clean_partition` now: scan the log, and count the bytes of the rewrite.

    Takes no lock and changes nothing. The plan is exact if the saved accounts are those that a cleaning uses
    (`Ledger.lacks`).

    Args:
        view: The partition.
        config: Settings of the topic.
        request: The kind of the cleaning.
        context: A dry one.
        held: The accounts in memory, whose clocks of tombstones are used.
    """
    plan = chosen_plan(view, config, request, context.files, context.clock)
    if plan.action != "clean":
        return plan
    from lastword.cleaner.engine.liveness import FullScan, KeptAccounts  # loads the kernels

    liveness: Liveness = FullScan(by_hash=True)
    is_estimate = False
    if request.strategy == "generational":
        ledger = opened(view, context, plan.map_bytes)
        if held is not None and held.exact:
            ledger.deletes.clocks.offset, ledger.deletes.clocks.since_ms = held.deletes.running()
        is_estimate = ledger.lacks(held)
        liveness = KeptAccounts(ledger, config, space_target=DEFAULT_SPACE_TARGET if request.due else None)
    counted = dry_run(view, plan, liveness, context)
    return replace(counted, exact=False) if is_estimate else counted


def dry_run(view: PartitionView, plan: Plan, liveness: Liveness, context: CleanContext) -> Plan:
    """Return the plan with the figures that a cleaning by it would have."""
    from lastword.cleaner.engine.sinks import CountingSink

    assert context.dry
    return clean(view, plan, liveness, CountingSink(plan), context)


def opened(log: PartitionLog | PartitionView, context: CleanContext, map_bytes: int) -> Ledger:
    """Return the saved accounts, or empty ones, for one cleaning or one scan."""
    from lastword.accounts.ledger import Ledger

    ledger = Ledger.open(
        context.files,
        log.directory,
        log.segments,
        map_bytes=map_bytes,
        salt=lambda: os.urandom(16) if context.salt is None else context.salt,
        scratch=context.scratch,
    )
    ledger.write_clock = max(ledger.write_clock, log.segment_set.size)
    return ledger


def prepare(log: PartitionLog, config: TopicConfig, request: CleanRequest) -> Plan:
    """Choose, close the active segment if the plan says so, and make the input of the cleaning durable.

    A record may supersede an older one only when it cannot be lost itself: so everything below the limit is
    synced before the scan reads it. Leftovers of earlier cleanings are removed here.
    """
    with log.lock:
        if request.due and config.compacts:
            # So segment.ms and max.compaction.lag.ms hold without new appends, and a small state stays small.
            roll_for_cleaning(log, config, now_ms=log.clock.now_ms())
        plan = chosen_plan(log, config, request, log.files, log.clock)
        if plan.action == "clean" and plan.rolls_active:
            log.roll()
            plan = replace(plan, limit=log.active.base_offset)
    if plan.action == "clean":
        log.sync()
        if log.synced_to < plan.limit:
            raise BusyError(f"{log.directory} is synced up to {log.synced_to} only", remedy="try again")
        log.store.discard_outputs()
    return plan


def chosen_plan(
    log: PartitionLog | PartitionView, config: TopicConfig, request: CleanRequest, files: Files, clock: Clock
) -> Plan:
    """Choose for a log as it is on disk, with its quarantine."""
    reason = quarantine.reason_of(files, log.directory)
    return choose_for(log, config, request, clock.now_ms(), quarantine=reason)


_cleaning: set[str] = set()
_cleaning_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_cleaning=set(), _cleaning_lock=threading.Lock()))


@contextmanager
def alone(files: Files, directory: str) -> Iterator[None]:
    """Hold the only cleaning of a partition in this process; BusyError if there is one.

    Other processes are kept out by the log directory's lock.
    """
    identity = files.identity(directory)
    with _cleaning_lock:
        if identity in _cleaning:
            raise BusyError(f"{directory} is being cleaned", remedy="wait until that ends", file=directory)
        _cleaning.add(identity)
    try:
        yield
    finally:
        with _cleaning_lock:
            _cleaning.discard(identity)
