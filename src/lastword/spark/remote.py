"""Build cleanings by garbage accounts where a worker sees the files; publish where the log is open.

`build` is `cleaning.clean` on a view and without a lock, with publishing deferred: it opens the saved
accounts, scans new segments, rewrites and certifies. A swap moves a file without changing it, so the accounts
after all swaps are known before the first one. They are saved beside the outputs; `publish` swaps, and then
renames them. A kill in between leaves accounts that do not fit the log, which are discarded and cost a scan;
so does a swap that is refused.

    where the log is open        anywhere that sees the files
    prepare -> plan
                                 scan, build -> values that can be pickled
    save, publish
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from lastword.accounts.ledger import Ledger
from lastword.accounts.snapshot import saved_time
from lastword.cleaner.engine.cleaning import CleanContext, clean
from lastword.cleaner.engine.liveness import KeptAccounts, refresh
from lastword.cleaner.engine.report import CleanRound, PreparedCleaning
from lastword.cleaner.engine.sinks import Collector, Publisher
from lastword.cleaner.inspection import CachedStats, DrivePartition, cached_stats
from lastword.cleaner.policy.generational import SegmentRun
from lastword.cleaner.policy.plan import Plan
from lastword.config import TopicConfig
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.segment import names


@dataclass(frozen=True, slots=True)
class LedgerParams:
    """The parameters to open the accounts of a partition elsewhere.

    Attributes:
        write_clock: The drive's time.
        reached: The end of the log then (`Ledgers.advance`).
        drive: The drive's name.
        alpha: Weight of the survivorship that a cleaning observes.
    """

    write_clock: int
    reached: tuple[int, int]
    drive: str
    alpha: float

    @classmethod
    def of(cls, partition: DrivePartition) -> LedgerParams:
        """Return the parameters of a partition; advances the drive's time by the bytes appended since."""
        log_dir, tp = partition.log_dir, partition.tp
        time = saved_time(log_dir.files, log_dir.directory(*tp))
        partition.ledgers.advance(tp, partition.view().segments, time)
        alpha = log_dir.settings.instance.lastword_survivorship_alpha
        return cls(time.write_clock, time.reached, log_dir.path, alpha)


@dataclass(frozen=True, slots=True)
class RemoteScan:
    """The result of a scan.

    Attributes:
        stats: The statistics to cache.
        accounts: The directory that holds the accounts after the scan; empty: none were saved.
    """

    stats: CachedStats
    accounts: str


@dataclass(frozen=True, slots=True)
class RemoteBuild:
    """Cleanings of one partition, one after another, before their swaps.

    Attributes:
        cleanings: The outputs.
        after: Statistics to cache when all are published.
        accounts: The directory that holds the accounts as of then; empty: none were saved.
    """

    cleanings: tuple[PreparedCleaning, ...]
    after: CachedStats
    accounts: str


# ---------------------------------------------------------------- anywhere that sees the files


def up_to_date(
    view: PartitionView, plan: Plan, params: LedgerParams, context: CleanContext
) -> tuple[Ledger, int]:
    """Return the saved accounts after a scan of new segments, and the bytes that were read.

    Accounts that do not fit the log are made again.
    """
    ledger = open_ledger(view, plan, params, context)
    return ledger, refresh(view, view.segments, ledger, plan, context)


def open_ledger(view: PartitionView, plan: Plan, params: LedgerParams, context: CleanContext) -> Ledger:
    """Return the saved accounts of a view, with the drive's time."""
    ledger = Ledger.open(context.files, view.directory, view.segments, map_bytes=plan.map_bytes)
    ledger.write_clock, ledger.reached = max(ledger.write_clock, params.write_clock), params.reached
    return ledger


def scan(
    view: PartitionView, config: TopicConfig, plan: Plan, params: LedgerParams, context: CleanContext
) -> RemoteScan:
    """Scan new segments. Changes only the private directory; with a dry context, nothing."""
    ledger, _ = up_to_date(view, plan, params, context)
    stats = cached_stats(view, config, ledger, plan, view.segments, params.drive)
    return RemoteScan(stats, "" if context.dry else _saved(view, ledger, plan))


def build(
    view: PartitionView,
    config: TopicConfig,
    plan: Plan,
    params: LedgerParams,
    runs: Sequence[SegmentRun] | None,
    context: CleanContext,
) -> RemoteBuild:
    """Scan new segments, then rewrite by `plan` (from `prepare`): the usual `clean`, published later.

    A swap moves files without changing them: the ledger counts each output as swapped in, and the view has it
    in the place of its sources.

    Args:
        view: The partition.
        config: Settings of the topic.
        plan: The plan.
        params: Parameters of the ledger.
        runs: One cleaning for each; none overlaps another. None: one cleaning of all garbage.
        context: Storage, memory, budget and progress of the cleaning.
    """
    ledger = open_ledger(view, plan, params, context)
    prepared: list[PreparedCleaning] = []
    for run in [None] if runs is None else runs:
        liveness = KeptAccounts(
            ledger, config, runs=None if run is None else [run], alpha=params.alpha, refresh=not prepared
        )
        prepared.append(clean(view, plan, liveness, Collector(plan, view), context))
        plan = replace(plan, start=max(prepared[-1].first_dirty, plan.log_start))
    after = cached_stats(view, config, ledger, plan, view.segments, params.drive)
    return RemoteBuild(tuple(prepared), after, _saved(view, ledger, plan))


def _saved(view: PartitionView, ledger: Ledger, plan: Plan) -> str:
    """Return the private directory with the saved accounts; empty if they were not saved.

    They are not saved if saving costs more than a scan, or if the drive is full: they can be made again.
    """
    aside = ""
    with suppress(LastwordError):
        aside = view.store.create_output(plan.limit).location
        if ledger.save(aside):
            return aside
    if aside:
        with suppress(LastwordError):
            view.store.discard(aside)
    return ""


# ---------------------------------------------------------------- where the log is open


def publish(
    log: PartitionLog, built: RemoteBuild, *, record_first_dirty: Callable[[int], None]
) -> Iterator[CleanRound]:
    """Publish one cleaning after another, then save the accounts.

    A lease that is taken in between ends this: later outputs are discarded.
    """
    try:
        for cleaning in built.cleanings:
            done = Publisher(log, cleaning.plan, record_first_dirty).publish(cleaning)
            yield done
            if not done.complete:
                return
        save(log.files, log.directory, built.accounts)
    finally:
        if built.accounts:
            log.store.discard(built.accounts)


def save(files: Files, directory: str, accounts: str) -> None:
    """Rename accounts that were saved aside: they are true of the log from now on."""
    if not accounts:
        return
    private = f"{directory}/{names.PRIVATE}"
    for name in (names.SURVIVORSHIP, names.ACCOUNTS):
        if files.exists(os.path.join(accounts, name)):
            files.rename(os.path.join(accounts, name), os.path.join(private, name))
    files.fsync_dir(private)
    DirectorySegments(files, directory).discard(accounts)
