"""What comes before a cleaning: a plan, and a log that is ready for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lastword.cleaner import quarantine, staging
from lastword.cleaner.choose import choose_for, roll_for_cleaning
from lastword.cleaner.plan import Plan, Request
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import BusyError
from lastword.files import Files
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView


def prepare(log: PartitionLog, config: TopicConfig, request: Request) -> Plan:
    """Choose, close the active segment if the plan says so, and make durable what the cleaning builds on.

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
        staging.remove_leftovers(log.files, log.directory)
    return plan


def chosen_plan(
    log: PartitionLog | PartitionView, config: TopicConfig, request: Request, files: Files, clock: Clock
) -> Plan:
    """Choose for a log as it is on disk, with its quarantine."""
    set_aside = quarantine.load(files, log.directory)
    return choose_for(
        log,
        config,
        request,
        clock.now_ms(),
        quarantine=None if set_aside is None else set_aside.reason,
    )


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
