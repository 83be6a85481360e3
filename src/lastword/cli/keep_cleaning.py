"""`lastword clean --every`: run the background cleaner as a process, until a signal ends it."""

from __future__ import annotations

import queue
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lastword.cli import signals
from lastword.cli.command import Session
from lastword.cli.target import Target
from lastword.units import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from lastword.background.scheduler import Done

POLL_SECONDS = 0.2  # a signal takes effect after at most this time


def keep_cleaning(
    out: Session, target: Target, every_ms: int, metrics: str | None, bytes_per_second: int | None
) -> None:
    """Clean and expire what is due at an interval, and show each cleaning when it ends.

    A signal ends the command at the next safe point: SIGTERM with exit code 0, SIGINT and SIGHUP with 130
    and 129.
    """
    from lastword.api.cleaning import quarantined

    address = None
    if metrics is not None:
        from lastword.cli.exporter import parse_address

        address = parse_address(metrics)
    # Not a SimpleQueue: in CPython 3.11 its `get(timeout=)` hangs if a signal handler runs past the timeout.
    ended: queue.Queue[Done] = queue.Queue()
    totals = {"rounds": 0, "deletions": 0, "failed": 0, "read_bytes": 0, "written_bytes": 0, "freed_bytes": 0}
    with ExitStack() as stack:
        logs = stack.enter_context(out.change(target))
        if address is not None:
            from lastword.cli.exporter import exporter

            url = stack.enter_context(exporter(*address))
            out.tell("metrics", {"address": url}, f"metrics on {url}")
        if bytes_per_second is not None:
            logs.cleaner.set_budget(bytes_per_second)
        only = None if target.topic is None else (target.topic, target.partition)
        for aside in quarantined(logs.dirs, target.topic, target.partition):
            out.warning(f"{aside.message}; to have it cleaned again, {aside.remedy}")
        logs.background.run_for(only, every_ms, ended.put)
        out.say(f"cleaning what is due every {format_duration(every_ms)}; Ctrl-C ends it")
        while not signals.noted():
            try:
                _show(out, ended.get(timeout=POLL_SECONDS), totals)
            except queue.Empty:
                continue
        logs.cleaner.stop()
        while not ended.empty():
            _show(out, ended.get(), totals)
    read, written, freed = (format_bytes(totals[f"{what}_bytes"]) for what in ("read", "written", "freed"))
    out.summary(f"read {read}, wrote {written}, freed {freed}", ok=not totals["failed"], **totals)
    if signals.first() == signal.SIGTERM:
        signals.settle()  # the normal way to stop a service


def _show(out: Session, done: Done, totals: dict[str, int]) -> None:
    if done.round is not None:
        totals["rounds"] += 1
        totals["read_bytes"] += done.round.read_bytes
        totals["written_bytes"] += done.round.written_bytes
        totals["freed_bytes"] += done.round.freed_bytes
        out.row("round", done.round.to_dict())
        out.line(f"{format_time(done.time_ms)}  {done.round}")
        if done.round.stopped_by == "lease":
            out.warning(f"{done.topic}-{done.partition}: a lease moved below a due tombstone")
    elif done.deletion is not None:
        totals["deletions"] += 1
        totals["freed_bytes"] += done.deletion.freed_bytes
        out.row("deletion", done.deletion.to_dict())
        out.line(f"{format_time(done.time_ms)}  {done.deletion}")
    if done.error is not None:
        totals["failed"] += 1
        out.warning(f"{format_time(done.time_ms)}  {done.topic}-{done.partition}: {done.error}")
    out.stdout.flush()
