"""Rounds by garbage accounts in two places: built where a worker sees the files, published where the log is
open.

`build` does what `accounted.clean` does up to the swaps, on a view and without a lock: it opens the accounts
that were saved, scans what is new, rewrites and certifies. A swap moves a file and changes nothing of it, so
the accounts as they will be after all swaps are known before the first one. They are saved beside the
outputs; `publish` swaps, and then gives them their name. A kill in between leaves accounts that do not fit
the log, which are thrown away and cost a scan; so does a swap that is refused.

    where the log is open        anywhere that sees the files
    phases.prepare -> plan
                                 look, build -> values that can be pickled
    keep, publish
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from lastword.accounts.ledger import Ledger
from lastword.cleaner import accounted, phases, staging
from lastword.cleaner.built import BuiltRound
from lastword.cleaner.drive import Seen, seen_of
from lastword.cleaner.part import part_of
from lastword.cleaner.plan import Plan
from lastword.cleaner.report import CleanRound
from lastword.cleaner.runs import Run
from lastword.cleaner.steps import Steps
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import CertificateError, LastwordError
from lastword.files import Files
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.segment import names
from lastword.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class Opening:
    """With what the accounts of a partition are opened elsewhere.

    t, seen   the drive's time, and how far this log went then (`Ledgers.advance`)
    drive     its name
    alpha     weight of the survivorship that a round meets
    """

    t: int
    seen: tuple[int, int]
    drive: str
    alpha: float


@dataclass(frozen=True, slots=True)
class Looked:
    """What a scan found, and the directory that holds the accounts after it; empty: none were saved."""

    seen: Seen
    accounts: str


@dataclass(frozen=True, slots=True)
class Apart:
    """Rounds over one partition, one after another, before their swaps.

    first_dirty   of each: what to record when it is published
    after         what a look finds when all are
    accounts      as of then: the directory that holds them, empty if none were saved
    """

    rounds: tuple[BuiltRound, ...]
    first_dirty: tuple[int, ...]
    after: Seen
    accounts: str


# ---------------------------------------------------------------- anywhere that sees the files


def up_to_date(
    view: PartitionView, plan: Plan, opening: Opening, files: Files, *, dry: bool = False
) -> tuple[Ledger, int]:
    """The accounts that were saved, or fresh ones where they do not fit the log as it lies there, with what
    is new scanned; and the bytes read. `dry`: damage that is met quarantines nothing."""
    ledger = Ledger.open(files, view.directory, view.segments, map_bytes=plan.map_bytes)
    ledger.t, ledger.seen = max(ledger.t, opening.t), opening.seen
    return ledger, accounted.look(view, files, ledger, plan, view.segments, dry=dry)


def look(
    view: PartitionView, config: TopicConfig, plan: Plan, opening: Opening, *, files: Files, dry: bool
) -> Looked:
    """Scan what is new. Changes nothing but the private directory; `dry`: nor that."""
    ledger, _ = up_to_date(view, plan, opening, files, dry=dry)
    seen = seen_of(view, config, ledger, plan, view.segments, opening.drive)
    return Looked(seen, "" if dry else _saved(view, ledger, plan, files))


def build(
    view: PartitionView,
    config: TopicConfig,
    plan: Plan,
    opening: Opening,
    runs: Sequence[Run] | None,
    *,
    files: Files,
    clock: Clock,
) -> Apart:
    """Scan what is new, then map and rewrite by `plan` (from `phases.prepare`).

    runs   a round for each; none reaches into another. None: one round over all garbage
    """
    started = clock.monotonic()
    ledger, read_bytes = up_to_date(view, plan, opening, files)
    rounds: list[BuiltRound] = []
    first_dirty: list[int] = []
    try:
        for run in [None] if runs is None else runs:
            seconds = clock.monotonic() - started
            built = _built(view, plan, ledger, run, read_bytes, seconds, opening.alpha, files, clock)
            whole = run is None and not ledger.exact
            rounds.append(built)
            first_dirty.append(plan.limit if whole else ledger.first_dirty_for_kafka())
            started, read_bytes = clock.monotonic(), 0
            plan = replace(plan, start=max(first_dirty[-1], plan.log_start))
    except CertificateError:
        ledger.discard()
        raise
    after = seen_of(view, config, ledger, plan, view.segments, opening.drive)
    return Apart(tuple(rounds), tuple(first_dirty), after, _saved(view, ledger, plan, files))


def _built(
    view: PartitionView,
    plan: Plan,
    ledger: Ledger,
    run: Run | None,
    read_bytes: int,
    seconds: float,
    alpha: float,
    files: Files,
    clock: Clock,
) -> BuiltRound:
    """One round. The ledger hears of each output as of one that was swapped in, and the view has it in the
    place of its sources."""
    if ledger.exact:
        steps = Steps("clean", 0, clock, None, None)
        built = accounted.build(view, files, view.segments, ledger, plan, run, steps, read_bytes, seconds)
    else:
        limits = phases.limits_of(plan)
        part = None if run is None else partial(part_of, limits=limits, run=run)
        built = phases.build_whole(files, view.directory, view.segments, plan, clock, part=part)
    groups = []
    try:
        with built.ended() as each:
            for one in each:
                output = Segment.load(files, one.output.directory, one.output.base_offset)
                ledger.swapped(one.sources[0].base_offset, one.sources[-1].base_offset, output, alpha)
                gone = {source.base_offset for source in one.sources}
                old = [segment for segment in view.segments if segment.base_offset in gone]
                view.segment_set = view.segment_set.with_replaced(old, [output])
                groups.append(one)
    finally:
        ledger.give_up()
    mapped = built.mapped
    if ledger.exact:
        mapped = replace(mapped, waiting=accounted.waiting(ledger, plan))
    return replace(built, mapped=mapped, groups=tuple(groups))


def _saved(view: PartitionView, ledger: Ledger, plan: Plan, files: Files) -> str:
    """The private directory in which the accounts lie now; empty where they are not worth it, or for want of
    room: they can be made again."""
    aside = ""
    with suppress(LastwordError):
        aside = staging.make(files, view.directory, plan.limit)
        if ledger.save(aside):
            return aside
    if aside:
        with suppress(LastwordError):
            staging.discard(files, aside)
    return ""


# ---------------------------------------------------------------- where the log is open


def publish(
    log: PartitionLog, built: Apart, *, record_first_dirty: Callable[[int], None]
) -> Iterator[CleanRound]:
    """Swap in round after round, each told as it is done; then keep the accounts. A lease that comes in
    between ends it, and with it what was built for later rounds."""
    try:
        for one, first_dirty in zip(built.rounds, built.first_dirty, strict=True):
            done = phases.publish(log, one, record_first_dirty=_instead(record_first_dirty, first_dirty))
            yield done
            if not done.complete:
                return
        keep(log.files, log.directory, built.accounts)
    finally:
        if built.accounts:
            staging.discard(log.files, built.accounts)


def _instead(record: Callable[[int], None], first_dirty: int) -> Callable[[int], None]:
    """Accounts know better than the plan from where on a Kafka that takes over has to clean."""
    return lambda limit: record(first_dirty)


def keep(files: Files, directory: str, accounts: str) -> None:
    """Give accounts that were saved aside their name: they are true of the log from now on."""
    if not accounts:
        return
    private = f"{directory}/{names.PRIVATE}"
    for name in (names.SURVIVORSHIP, names.ACCOUNTS):
        if files.exists(os.path.join(accounts, name)):
            files.rename(os.path.join(accounts, name), os.path.join(private, name))
    files.fsync_dir(private)
    staging.discard(files, accounts)
