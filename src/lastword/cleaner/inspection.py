"""Compute the garbage accounts of all partitions of a drive, and scan new segments.

`inspect` reads no record. It names the partitions whose new segments must be scanned (`scan_partition`). A
partition in which nothing has changed since its last scan costs no access to its ledger.

A drive may hold several log directories. Each has its own write clock (bytes appended to it); here the clocks
are converted to one scale.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword import metrics
from lastword.accounts import DriveAccount, PartitionAccount, SegmentAccount
from lastword.accounts.estimates import indexed_bytes
from lastword.accounts.snapshot import SavedTime, Summary, digest_of, load_summary, save_summary
from lastword.accounts.tombstones import Standing
from lastword.cleaner.engine import liveness
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.throttle import Stopped
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.choose import choose_for, roll_for_cleaning
from lastword.cleaner.policy.plan import CleanRequest, Plan
from lastword.errors import LastwordError
from lastword.files import Files, real_path
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import leases
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.config import TopicConfig
    from lastword.logdir.ledgers import Ledgers
    from lastword.logdir.log_dir import LogDirectory
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class DrivePartition:
    """A compacted partition with its log directory.

    Attributes:
        tp: Topic and number.
        log_dir: The directory that holds it.
        ledgers: The ledgers to use: those of the directory, or for a dry run others.
        views: The views of a dry run; all its steps use the same view of a partition.
        closed_only: Count the segments that are closed already: another process writes the active one.
    """

    tp: TopicPartition
    log_dir: LogDirectory
    ledgers: Ledgers
    views: dict[TopicPartition, PartitionView] | None = None
    closed_only: bool = False

    @classmethod
    def of(cls, tp: TopicPartition, log_dir: LogDirectory) -> DrivePartition:
        """Return a partition with the ledgers of its log directory."""
        return cls(tp, log_dir, log_dir.ledgers)

    @property
    def config(self) -> TopicConfig:
        """Return the settings of the topic."""
        return self.log_dir.topic_config(self.tp.topic)

    def view(self) -> PartitionView:
        """Return a view of the partition; all steps of a dry run use the same one."""
        if self.views is None:
            return self.log_dir.view(*self.tp)
        if self.tp not in self.views:
            self.views[self.tp] = self.log_dir.view(*self.tp)
        return self.views[self.tp]

    def request(self, strategy: str = "generational", *, due: bool = True) -> CleanRequest:
        """Return a request for this partition with the memory that the settings allow."""
        request = CleanRequest.of(self.log_dir, self.tp, strategy, due=due)
        return replace(request, closed_only=self.closed_only)


def dry_partitions(partitions: Sequence[DrivePartition]) -> list[DrivePartition]:
    """Return the partitions with ledgers of their own, which are never saved."""
    ledgers = {partition.log_dir.path: partition.log_dir.new_ledgers(saves=False) for partition in partitions}
    views: dict[TopicPartition, PartitionView] = {}
    return [
        replace(partition, ledgers=ledgers[partition.log_dir.path], views=views) for partition in partitions
    ]


@dataclass(frozen=True, slots=True)
class CachedStats:
    """The result of a scan. Valid while the segment files are unchanged and no tombstone has become due.

    files: `delete.retention.ms`, and base offset and identity of each file below the limit; their digest if
        the statistics were saved.
    time: The drive's time at the scan, if the statistics were saved.
    largest_bytes: The most bytes that a record with a key takes; -1: not known.
    """

    files: tuple[object, ...] | str
    account: PartitionAccount
    tombstones: Standing
    time: SavedTime | None = None
    largest_bytes: int = -1

    def holds(
        self, files: Files, log: PartitionLog | PartitionView, present: tuple[object, ...], now_ms: int
    ) -> bool:
        """Return whether the statistics are valid. Reads leases only if a tombstone depends on them."""
        floor = leases.NO_FLOOR
        if self.tombstones.depends_on_leases:
            floor = leases.due_below(files, log.directory, log.log_end, now_ms)
        known = digest_of(present) if isinstance(self.files, str) else present
        return self.files == known and self.tombstones.holds(now_ms, floor)


@dataclass(frozen=True, slots=True)
class DriveInspection:
    """The accounts of a drive, without a scan.

    Attributes:
        account: Account of the drive.
        current: The accounts that are up to date, on the scale of their own log directory.
        stale: Partitions that must be scanned; they count as they were, and may not be chosen.
        errors: Errors of partitions that cannot be inspected and are left out.
    """

    account: DriveAccount
    current: Mapping[TopicPartition, PartitionAccount]
    stale: tuple[DrivePartition, ...]
    errors: Mapping[TopicPartition, LastwordError]


def inspect(
    partitions: Sequence[DrivePartition],
    drive: str,
    *,
    now_ms: int,
    space_target: float,
    held: Collection[TopicPartition] = (),
    current: Mapping[TopicPartition, PartitionAccount] | None = None,
) -> DriveInspection:
    """Return the accounts of a drive up to the limit of each partition; reads no record.

    Args:
        partitions: All partitions of the drive that are cleaned by accounts.
        drive: Its name.
        now_ms: The time to decide by.
        space_target: Space target of the drive.
        held: Partitions that may not be chosen; they count towards the space.
        current: Accounts of an inspection just before, which need not be computed again.
    """
    up_to_date = dict(current or {})
    accounts: list[tuple[Ledgers, PartitionAccount]] = []
    stale: list[DrivePartition] = []
    errors: dict[TopicPartition, LastwordError] = {}
    for partition in partitions:
        account = up_to_date.get(partition.tp)
        if account is None:
            try:
                account, is_stale = _inspect_partition(partition, drive, now_ms, partition.tp in held)
            except LastwordError as error:
                errors[partition.tp] = error
                continue
            if is_stale:
                stale.append(partition)
            else:
                _set_metrics(account, now_ms)
                up_to_date[partition.tp] = account
        accounts.append((partition.ledgers, account))
    write_clock = max((ledgers.write_clock for ledgers, _ in accounts), default=0)
    cost = max((ledgers.file_cost_bytes for ledgers, _ in accounts), default=0.0)
    on_scale = tuple(shifted(account, write_clock - ledgers.write_clock) for ledgers, account in accounts)
    drive_account = DriveAccount(drive, write_clock, space_target, cost, on_scale)
    return DriveInspection(drive_account, up_to_date, tuple(stale), errors)


def _inspect_partition(
    partition: DrivePartition, drive: str, now_ms: int, held: bool
) -> tuple[PartitionAccount, bool]:
    """Return the account of a partition, and whether a scan is needed to bring it up to date."""
    tp, ledgers, config = partition.tp, partition.ledgers, partition.config
    files = partition.log_dir.files
    log, dead_bytes = _log_of(partition)
    if ledgers.saves:
        roll_for_cleaning(partition.log_dir.log(*tp), config, now_ms=now_ms, dead_bytes=dead_bytes)
    quarantined = quarantine.load(files, log.directory) is not None
    plan = limit_plan(partition, log, now_ms, dead_bytes)
    segments: Sequence[Segment] = log.segments
    total_bytes = sum(segment.size for segment in segments)
    nothing = PartitionAccount(
        *tp, drive, (), total_bytes, plan.limit, log.log_start, quarantined=quarantined or held
    )
    if quarantined or plan.action != "clean":
        return nothing, False
    stats = _stats_of(partition, log.directory)
    if stats is None:
        return nothing, True
    if stats.time is not None:
        ledgers.advance(tp, segments, stats.time)  # a ledger that is made again takes no old bytes for new
    is_stale = not stats.holds(
        files, log, _files_below(plan.limit, plan.delete_retention_ms, segments), now_ms
    )
    if not is_stale and stats.time is None:
        ledgers.advance(tp, segments)
    # The segments of a stale account may have been replaced.
    return _account_of(stats, partition, drive, total_bytes, held=held or is_stale), is_stale


def _account_of(
    stats: CachedStats, partition: DrivePartition, drive: str, total_bytes: int, *, held: bool
) -> PartitionAccount:
    """Return the account of a scan with the settings of now."""
    config = partition.config
    return replace(
        stats.account,
        topic=partition.tp.topic,
        partition=partition.tp.partition,
        drive=drive,
        total_bytes=total_bytes,
        quarantined=held,
        segment_bytes=config.segment_bytes,
        file_bytes=indexed_bytes(config),
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
    )


def worst_account(
    partition: DrivePartition, drive: str, now_ms: int, *, held: bool
) -> PartitionAccount | None:
    """Return an account with at least the garbage that a scan of the new segments would find.

    Each new record supersedes at most one record. That is a new one, and all bytes of new segments count as
    garbage here; or it is an old one, which has at most the bytes of the largest. So neither records nor the
    garbage index are read, which takes more bytes than a few new records.

    Returns:
        The account, for a decision by sums only: a new segment has the garbage of the old ones, too. None if
        there is no bound: the old segments have no statistics, or have changed; the largest record is not
        known; or the time at which garbage is found counts (`max.compaction.lag.ms`).
    """
    log, dead_bytes = _log_of(partition)
    stats, files = _stats_of(partition, log.directory), partition.log_dir.files
    if stats is None or stats.largest_bytes < 0 or partition.config.max_compaction_lag_ms < INT64_MAX:
        return None
    plan = limit_plan(partition, log, now_ms, dead_bytes)
    segments, limit = log.segments, stats.account.limit
    if not stats.holds(files, log, _files_below(limit, plan.delete_retention_ms, segments), now_ms):
        return None
    account = _account_of(stats, partition, drive, sum(segment.size for segment in segments), held=held)
    superseded_bytes = min(
        (log.log_end - limit) * stats.largest_bytes,
        sum(segment.size_bytes - segment.dead_bytes for segment in account.segments),
    )
    newer: list[SegmentAccount] = []
    ends = [segment.base_offset for segment in segments[1:]] + [log.log_end]  # reads no segment
    for segment, end in zip(segments, ends, strict=True):
        if segment.base_offset >= limit and segment.size:
            garbage_bytes = segment.size + superseded_bytes
            newer.append(SegmentAccount(segment.base_offset, end, segment.size, 0, 0, garbage_bytes))
            superseded_bytes = 0
    return replace(account, segments=(*account.segments, *newer))


def _log_of(partition: DrivePartition) -> tuple[PartitionLog | PartitionView, int]:
    """Return the log to inspect, of a dry run a view of it, and the known garbage of its closed segments."""
    view = partition.view()
    view.check_end()
    stats = _stats_of(partition, view.directory)
    dead_bytes = 0 if stats is None else stats.account.dead_bytes
    return partition.log_dir.log(*partition.tp) if partition.ledgers.saves else view, dead_bytes


def _stats_of(partition: DrivePartition, directory: str) -> CachedStats | None:
    """Return the statistics of the last scan in this process, or those that a scan in a bucket saved."""
    ledgers, tp = partition.ledgers, partition.tp
    stats = ledgers.cached_stats.get(tp)
    if isinstance(stats, CachedStats):
        return stats
    saved = load_summary(partition.log_dir.files, directory)
    if saved is None:
        return None
    stats = CachedStats(saved.log, saved.account, saved.tombstones, saved.time, saved.largest_bytes)
    ledgers.cached_stats[tp] = stats
    return stats


def scan_plan(partition: DrivePartition, now_ms: int) -> tuple[PartitionLog | PartitionView, Plan]:
    """Return the log of a partition, or for a dry run a view, and the plan with the limit of its scan."""
    log, dead_bytes = _log_of(partition)
    return log, limit_plan(partition, log, now_ms, dead_bytes)


def scan_partition(partition: DrivePartition, drive: str, now_ms: int, context: CleanContext) -> int:
    """Scan the new segments of a partition, whose claim the caller holds, and cache the statistics.

    Returns:
        The bytes that were read.

    Raises:
        Stopped: `context.stop` returned true. The result of the scan so far is kept.
    """
    log, plan = scan_plan(partition, now_ms)
    segments = context.throttled(log.segments)

    def check_stop(done_bytes: int, total_bytes: int) -> None:
        if context.stop is not None and context.stop():
            raise Stopped

    before = _stats_of(partition, log.directory)
    with partition.ledgers.of(partition.tp, log) as ledger:
        is_new = not ledger.entries
        read_bytes = liveness.refresh(log, segments, ledger, plan, context, check_stop)
        if is_new and before is not None:
            ledger.remember(before.account)
        if partition.ledgers.saves:
            metrics.CLEANER_READ_BYTES.add(read_bytes, real_path(os.path.dirname(log.directory)))
        stats = cached_stats(log, partition.config, ledger, plan, segments, drive)
        time = SavedTime(ledger.write_clock, ledger.reached)
    partition.ledgers.cached_stats[partition.tp] = stats
    if partition.ledgers.saves and isinstance(stats.files, tuple):
        summary = Summary(digest_of(stats.files), stats.account, stats.tombstones, time, stats.largest_bytes)
        save_summary(partition.log_dir.files, log.directory, summary)
    return read_bytes


def saved_statement(view: PartitionView, config: TopicConfig) -> tuple[PartitionAccount, bool] | None:
    """Return the account that a scan of a partition in a bucket saved, and whether its garbage is superseded.

    False: due tombstones count as garbage, too. None: nothing is saved for these segments.
    """
    saved = load_summary(view.files, view.directory)
    if saved is None:
        return None
    files = _files_below(saved.account.limit, config.delete_retention_ms, view.segments)
    if saved.log != digest_of(files):
        return None
    return saved.account, saved.account.exact and saved.tombstones.due_to < 0


def is_kept_unread(partition: DrivePartition) -> bool:
    """Return whether the plan of a partition that nothing chose needs no ledger.

    To be called after an inspection. A tombstone that only a lease keeps is a reason, which the ledger has.
    """
    stats = _stats_of(partition, partition.view().directory)
    return stats is not None and stats.tombstones.held_from == leases.NO_FLOOR


def cached_stats(
    log: PartitionLog | PartitionView,
    config: TopicConfig,
    ledger: Ledger,
    plan: Plan,
    segments: Sequence[Segment],
    drive: str,
) -> CachedStats:
    """Return the statistics of the log's segments from a ledger that is up to date."""
    account = liveness.account_of(log, config, ledger, drive=drive)
    standing = Standing()
    if ledger.exact:
        standing = ledger.deletes.standing(plan.now_ms, plan.delete_retention_ms)
    files = _files_below(plan.limit, plan.delete_retention_ms, segments)
    largest_bytes = ledger.tracking.running.largest_bytes if ledger.exact else -1
    return CachedStats(files, account, standing, largest_bytes=largest_bytes)


def _files_below(limit: int, delete_retention_ms: int, segments: Sequence[Segment]) -> tuple[object, ...]:
    files = ((s.base_offset, s.id) for s in segments if s.base_offset < limit)
    return (delete_retention_ms, *files)


def limit_plan(
    partition: DrivePartition, log: PartitionLog | PartitionView, now_ms: int, dead_bytes: int = 0
) -> Plan:
    """Compute the upper offset of a due cleaning; reads no record.

    Args:
        partition: The partition of the log.
        log: The log, or for a dry run a view of it.
        now_ms: The time to decide by.
        dead_bytes: Known garbage of the closed segments.
    """
    return choose_for(log, partition.config, partition.request(), now_ms, dead_bytes=dead_bytes)


def _set_metrics(account: PartitionAccount, now_ms: int) -> None:
    labels, dead = (account.topic, str(account.partition)), account.dead_bytes
    exact, other = ("true", "false") if account.exact else ("false", "true")
    for gauge, value in (
        (metrics.LOG_GARBAGE_BYTES, dead),
        (metrics.LOG_LIVE_BYTES, account.total_bytes - dead),
        (
            metrics.LOG_LIVE_RECORDS,
            sum(segment.records - segment.dead_records for segment in account.segments),
        ),
        (metrics.LOG_TOMBSTONES, sum(segment.tombstones for segment in account.segments)),
    ):
        gauge.remove(*labels, other)
        gauge.set(value, *labels, exact)
    metrics.LOG_DIRTY_RATIO.set(dead / account.total_bytes if account.total_bytes else 0.0, *labels)
    metrics.CLEANER_OVERDUE_SECONDS.set(account.late_ms(now_ms) / 1000, *labels)


def shifted(account: PartitionAccount, by: int) -> PartitionAccount:
    """Return the account on a scale of time that is `by` ahead."""
    if by == 0:
        return account
    return replace(
        account,
        segments=tuple(
            replace(segment, garbage_age_at=segment.garbage_age_at + by, written_at=segment.written_at + by)
            for segment in account.segments
        ),
    )
