"""The result of one cleaning, as values: the facts of its outputs, their totals, and the report.

`CleanRound` counts what happened to the records below the end of the cleaning, and what it cost: it is
printed, logged, sent as JSON, shown in a notebook. The name of each figure has its unit.

`BuiltGroup`, `ScanStats` and `PreparedCleaning` hold neither handles nor arrays, so they can be pickled: a
`Collector` makes them where a worker sees the files, a `Publisher` uses them where the log is open. A source
is named with its inode and size; a swap that finds another file refuses.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from lastword import metrics
from lastword.cleaner.policy.groups import SegmentGroup
from lastword.cleaner.policy.plan import Plan
from lastword.files import real_path
from lastword.segment.stored import SegmentId
from lastword.units import format_duration
from lastword.values import Value

if TYPE_CHECKING:
    from lastword.resolve import Resolution, SegmentFacts


@dataclass(frozen=True, slots=True)
class Removed(Value):
    """Records that left the log, by rule.

    Control records, which no reader gets, are counted by `marker` alone: `records_read` and `records_kept`
    leave them out.
    """

    superseded: int = 0  # a newer record of the key is below the end of the cleaning
    tombstone: int = 0  # its delete horizon had passed
    marker: int = 0  # control records of transactions without data
    aborted: int = 0  # data of aborted transactions
    keyless: int = 0  # a compacted log cannot keep them apart

    @property
    def total(self) -> int:
        """Return the sum over all rules."""
        return self.superseded + self.tombstone + self.marker + self.aborted + self.keyless


@dataclass(frozen=True, slots=True)
class Phases(Value):
    """Seconds of a cleaning: scan, rewrite (with its certificate), publishing."""

    map: float = 0.0
    rewrite: float = 0.0
    swap: float = 0.0


@dataclass(frozen=True, slots=True)
class Certificate(Value):
    """What was compared before publishing, by a computation without the dead bitmaps.

    Attributes:
        records: Live records of the rewritten segments.
        key_offset_digest: Sum over these records of H(key, offset), from the scan and from the bytes of the
            new files; 16 hex digits.
        content_digest: Sum over the survivors of mix(CRC of the record's bytes, offset, timestamp), from the
            sources and from the bytes of the new files; 16 hex digits.
    """

    records: int
    key_offset_digest: str
    content_digest: str

    def __str__(self) -> str:
        return f"{self.records} records, keys {self.key_offset_digest}, contents {self.content_digest}"


@dataclass(frozen=True, slots=True)
class TombstonesWaiting(Value):
    """Tombstones below the end of the cleaning that stay until their horizon.

    Attributes:
        first_offset: Offset of the tombstone that is due first; -1 if its segment was not rewritten.
        first_due_ms: Its horizon in milliseconds since 1970, or -1.
    """

    count: int = 0
    first_offset: int = -1
    first_due_ms: int = -1


@dataclass(frozen=True, slots=True)
class CleanRound(Value):
    """The report of one cleaning of one partition.

    Attributes:
        start: First dirty offset before.
        end: The offset up to which the log is clean now.
        complete: False if it was stopped between two swaps; what was swapped stays, `end` is not recorded.
        stopped_by: Why it is incomplete: "lease", a reader took a lease below a tombstone that was due;
            or "request".
        records_read: Records that the scan read below `end`, without control records.
        records_kept: How many of them are left.
        removed: How many were removed, by rule.
        read_bytes: Bytes read from the log: by every scan pass, and by the rewrite.
        written_bytes: Bytes of the new segments.
        freed_bytes: Bytes of the old segments less those of the new ones.
        seconds: Duration; `phases` has its parts.
        map_used_ratio: Distinct keys over what the key map could hold (of the fullest pass).
        survivorship: Share of the dirty bytes that survived (1.0 when nothing was dirty).
        certificate: None when no segment needed a rewrite.
        tombstones: Tombstones that stay until their horizon.
        segments_before: Segments below `end` before the cleaning.
        segments_after: Segments there after it.
        map_passes: Times that a key map was filled: passes over the log, or over the shards of the scratch
            file.
        now_ms: The time to which lags and horizons were compared, in milliseconds since 1970.
        scratch_bytes: Size of the scratch file by which keys that did not fit the map were resolved; 0: none.
    """

    topic: str
    partition: int
    strategy: str
    start: int
    end: int
    complete: bool
    records_read: int
    records_kept: int
    removed: Removed
    read_bytes: int
    written_bytes: int
    freed_bytes: int
    seconds: float
    phases: Phases
    map_used_ratio: float
    survivorship: float
    certificate: Certificate | None
    tombstones: TombstonesWaiting = field(default_factory=TombstonesWaiting)
    segments_before: int = 0
    segments_after: int = 0
    map_passes: int = 1
    now_ms: int = 0
    stopped_by: Literal["", "lease", "request"] = ""
    scratch_bytes: int = 0

    def __str__(self) -> str:
        if not self.complete and not self.records_read:
            by = " by a lease that came below a due tombstone" if self.stopped_by == "lease" else ""
            return f"{self.topic}-{self.partition}: stopped{by} before anything was changed"
        records = "1 record" if self.records_read == 1 else f"{self.records_read} records"
        text = f"{self.topic}-{self.partition}: {records} -> {self.records_kept}"
        if self.stopped_by == "lease":
            text += ", stopped before its end by a lease that came below a due tombstone"
        elif not self.complete:
            text += ", stopped before its end"
        return text + self._waiting()

    def _waiting(self) -> str:
        waiting = self.tombstones
        if not waiting.count:
            return ""
        sentence = "1 tombstone waits" if waiting.count == 1 else f"{waiting.count} tombstones wait"
        if waiting.first_offset < 0:
            return f"; {sentence}"
        wait = waiting.first_due_ms - self.now_ms
        end = f"may go in {format_duration(wait)}"
        if wait <= 0:
            end = "stays for a lease, or because it is the newest record of the partition"
        if waiting.count == 1:
            return f"; the tombstone at {waiting.first_offset} {end}"
        return f"; {sentence}, the one at {waiting.first_offset} {end}"


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One segment as it was read: its .log file."""

    path: str
    base_offset: int
    size_bytes: int
    inode: int

    @property
    def id(self) -> SegmentId:
        """Return the identity of the file."""
        return SegmentId(self.inode, self.size_bytes)


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """A complete, synced segment in a private directory.

    `next_offset` is that of the last source, or below it if nothing is left of the batches that end there
    (magic 0 and 1).
    """

    directory: str
    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BuiltGroup:
    """One certified output, and the segments that it replaces.

    Attributes:
        key_offset_digest: Unsigned 64-bit sum that sources and output agree on.
        content_digest: The same for contents.
        read_bytes: Bytes of the sources, counted once.
        kept_bytes: Of them, those whose survivors the scan had kept, so that they were not read again.
        seconds: Duration of rewrite and certificate.
        dropped_tombstone: Highest offset of a tombstone that goes for its age; -1: none.
    """

    sources: tuple[SourceFacts, ...]
    output: OutputFacts
    records_read: int
    records_kept: int
    removed: Removed
    key_offset_digest: int
    content_digest: int
    tombstones: TombstonesWaiting
    read_bytes: int
    seconds: float
    dropped_tombstone: int = -1
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScanStats:
    """Totals of a scan below the limit.

    Attributes:
        bytes: Bytes of the segments there.
        records: Records of the segments there.
        dirty_bytes: Bytes of segments with an offset at or above the first dirty offset.
        dirty_live_bytes: Bytes of them that survive.
        tombstones: Live tombstones, which wait for their horizon.
        passes: Passes of the scan, one per map.
        used_ratio: Used share of the key map.
        read_bytes: Bytes of the log that all passes read.
        waiting: The tombstone that is due first, if the accounts have it.
        scratch_bytes: Size of the scratch file; 0: there was none.
    """

    segments: int
    bytes: int
    records: int
    dirty_bytes: int
    dirty_live_bytes: int
    tombstones: int
    passes: int
    used_ratio: float
    seconds: float
    read_bytes: int = 0
    waiting: TombstonesWaiting | None = None
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PreparedCleaning:
    """A cleaning before its swaps.

    Attributes:
        groups: Ascending; each was certified when it was built.
        first_dirty: The checkpoint to record when all are published.
    """

    plan: Plan
    stats: ScanStats
    groups: tuple[BuiltGroup, ...]
    first_dirty: int


LOGGER = logging.getLogger("lastword.cleaner")
"""One JSON line for each cleaning, at level INFO."""

StoppedBy = Literal["", "lease", "request"]
NOTHING_SCANNED = ScanStats(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
"""The totals of a cleaning that was stopped while it scanned."""
_MASK = (1 << 64) - 1


def removable(facts: Sequence[SegmentFacts], markers: int) -> Removed:
    """Return the records that a rewrite of these segments drops, by rule; `markers` are control records."""
    due = sum(segment.due_tombstones for segment in facts)
    keyless = sum(segment.keyless for segment in facts)
    aborted = sum(segment.aborted_records for segment in facts)
    dead = sum(segment.dead_records for segment in facts)
    return Removed(
        superseded=dead - due - keyless - aborted,
        tombstone=due,
        marker=markers,
        aborted=aborted,
        keyless=keyless,
    )


def scan_stats(plan: Plan, resolution: Resolution) -> ScanStats:
    """Return the totals of a scan of the whole log."""
    dirty = [segment for segment in resolution.segments if segment.next_offset > plan.start]
    return ScanStats(
        segments=len(resolution.segments),
        bytes=sum(segment.size_bytes for segment in resolution.segments),
        records=sum(segment.records for segment in resolution.segments),
        dirty_bytes=sum(segment.size_bytes for segment in dirty),
        dirty_live_bytes=sum(segment.live_bytes for segment in dirty),
        tombstones=sum(segment.tombstones for segment in resolution.segments),
        passes=resolution.passes,
        used_ratio=resolution.map_used_ratio,
        seconds=resolution.seconds,
        read_bytes=resolution.passes * sum(segment.size_bytes for segment in resolution.segments),
    )


def accounted_stats(
    plan: Plan, resolution: Resolution, groups: Sequence[SegmentGroup], *, read_bytes: int, seconds: float
) -> ScanStats:
    """Return the totals of a cleaning by accounts: scanned bytes, and as dirty bytes those it rewrites."""
    chosen = [segment for group in groups for segment in resolution.segments[group.first : group.last + 1]]
    return replace(
        scan_stats(plan, resolution),
        dirty_bytes=sum(segment.size_bytes for segment in chosen),
        dirty_live_bytes=sum(segment.live_bytes for segment in chosen),
        passes=1 if read_bytes else 0,
        seconds=seconds,
        read_bytes=read_bytes,
    )


def close(
    directory: str,
    plan: Plan,
    stats: ScanStats,
    done: Sequence[BuiltGroup],
    *,
    stopped_by: StoppedBy,
    swap_seconds: float,
) -> CleanRound:
    """Return the report of a cleaning whose groups `done` were published; add it to the metrics and the log.

    `directory`: that of the partition. `stopped_by`: empty, it ended.
    """
    removed = Removed(
        superseded=sum(group.removed.superseded for group in done),
        tombstone=sum(group.removed.tombstone for group in done),
        marker=sum(group.removed.marker for group in done),
        aborted=sum(group.removed.aborted for group in done),
        keyless=sum(group.removed.keyless for group in done),
    )
    source_bytes = sum(group.read_bytes for group in done)
    written_bytes = sum(group.output.size_bytes for group in done)
    rewrite_seconds = sum(group.seconds for group in done)
    round_ = CleanRound(
        topic=plan.topic,
        partition=plan.partition,
        strategy=plan.strategy,
        start=plan.start,
        end=plan.limit,
        complete=not stopped_by,
        records_read=stats.records,
        records_kept=stats.records - (removed.total - removed.marker),
        removed=removed,
        read_bytes=stats.read_bytes + source_bytes - sum(group.kept_bytes for group in done),
        written_bytes=written_bytes,
        freed_bytes=source_bytes - written_bytes,
        seconds=stats.seconds + rewrite_seconds + swap_seconds,
        phases=Phases(map=stats.seconds, rewrite=rewrite_seconds, swap=swap_seconds),
        map_used_ratio=stats.used_ratio,
        survivorship=stats.dirty_live_bytes / stats.dirty_bytes if stats.dirty_bytes else 1.0,
        certificate=_certificate(done),
        tombstones=stats.waiting or _waiting(stats.tombstones, [group.tombstones for group in done]),
        segments_before=stats.segments,
        segments_after=stats.segments - sum(len(group.sources) - 1 for group in done),
        map_passes=stats.passes,
        now_ms=plan.now_ms,
        stopped_by=stopped_by,
        scratch_bytes=stats.scratch_bytes,
    )
    root = real_path(os.path.dirname(directory))
    metrics.CLEANER_ROUNDS.add(1, root, "ok" if round_.complete else "partial" if done else "aborted")
    metrics.CLEANER_READ_BYTES.add(round_.read_bytes, root)
    metrics.CLEANER_WRITTEN_BYTES.add(round_.written_bytes, root)
    metrics.CLEANER_FREED_BYTES.add(max(round_.freed_bytes, 0), root)
    metrics.CLEANER_ROUND_SECONDS.observe(round_.seconds, root)
    metrics.CLEANER_MAP_USED_RATIO.set(round_.map_used_ratio, root)
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info(json.dumps({"event": "round", "dir": root, **round_.to_dict()}, separators=(",", ":")))
    return round_


def count_failure(directory: str) -> None:
    """Count a cleaning that failed in the metrics."""
    metrics.CLEANER_ROUNDS.add(1, real_path(os.path.dirname(directory)), "failed")


def _certificate(done: Sequence[BuiltGroup]) -> Certificate | None:
    if not done:
        return None
    return Certificate(
        records=sum(group.records_kept for group in done),
        key_offset_digest=f"{sum(group.key_offset_digest for group in done) & _MASK:016x}",
        content_digest=f"{sum(group.content_digest for group in done) & _MASK:016x}",
    )


def _waiting(count: int, rewritten: Sequence[TombstonesWaiting]) -> TombstonesWaiting:
    """Return the waiting tombstones; which is due first is known only in rewritten segments."""
    seen = [waiting for waiting in rewritten if waiting.count]
    if not count or sum(waiting.count for waiting in seen) < count:
        return TombstonesWaiting(count)
    first = min(seen, key=lambda waiting: (waiting.first_due_ms, waiting.first_offset))
    return TombstonesWaiting(count, first.first_offset, first.first_due_ms)
