"""Adding up a round: from what resolve knows and what was built, to the report."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lastword import metrics
from lastword.cleaner.built import BuiltGroup, OutputFacts, ScanStats, SourceFacts
from lastword.cleaner.groups import Group
from lastword.cleaner.plan import Plan
from lastword.cleaner.report import Certificate, CleanRound, Phases, Removed, TombstonesWaiting

if TYPE_CHECKING:
    from lastword.cleaner.certificate import Certified
    from lastword.cleaner.rewrite import Rewritten
    from lastword.resolve import Resolution, SegmentFacts
    from lastword.segment.segment import Segment

LOGGER = logging.getLogger("lastword.cleaner")
"""One JSON line for each round, at level INFO."""

StoppedBy = Literal["", "lease", "request"]
NOTHING_SCANNED = ScanStats(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
"""Of a cleaning that was stopped while it scanned."""
_MASK = (1 << 64) - 1


def removable(facts: Sequence[SegmentFacts], markers: int) -> Removed:
    """What a rewrite of these segments drops, by rule; `markers` of them are control records."""
    due = sum(one.due_tombstones for one in facts)
    keyless = sum(one.keyless for one in facts)
    aborted = sum(one.aborted_records for one in facts)
    dead = sum(one.dead_records for one in facts)
    return Removed(
        superseded=dead - due - keyless - aborted,
        tombstone=due,
        marker=markers,
        aborted=aborted,
        keyless=keyless,
    )


def scan_stats(plan: Plan, resolution: Resolution) -> ScanStats:
    """Add up what the scan of a whole log met."""
    dirty = [one for one in resolution.segments if one.next_offset > plan.start]
    return ScanStats(
        segments=len(resolution.segments),
        bytes=sum(one.size_bytes for one in resolution.segments),
        records=sum(one.records for one in resolution.segments),
        dirty_bytes=sum(one.size_bytes for one in dirty),
        dirty_live_bytes=sum(one.live_bytes for one in dirty),
        tombstones=sum(one.tombstones for one in resolution.segments),
        passes=resolution.passes,
        used_ratio=resolution.map_used_ratio,
        seconds=resolution.seconds,
        read_bytes=resolution.passes * sum(one.size_bytes for one in resolution.segments),
    )


def accounted_stats(
    plan: Plan,
    resolution: Resolution,
    groups: Sequence[Group],
    *,
    read_bytes: int,
    seconds: float,
) -> ScanStats:
    """Add up the same for a cleaning by garbage accounts: the bytes that were scanned for it, and as dirty
    bytes those that it rewrites."""
    chosen = [one for each in groups for one in resolution.segments[each.first : each.last + 1]]
    return replace(
        scan_stats(plan, resolution),
        dirty_bytes=sum(one.size_bytes for one in chosen),
        dirty_live_bytes=sum(one.live_bytes for one in chosen),
        passes=1 if read_bytes else 0,
        seconds=seconds,
        read_bytes=read_bytes,
    )


def built(
    sources: Sequence[Segment],
    group: Group,
    directory: str,
    rewritten: Rewritten,
    certified: Certified,
    resolution: Resolution,
    seconds: float,
) -> BuiltGroup:
    """The facts of one certified output, complete in `directory`."""
    facts = resolution.segments[group.first : group.last + 1]
    chosen = sources[group.first : group.last + 1]
    return BuiltGroup(
        sources=tuple(SourceFacts(one.file, one.base_offset, one.size, one.inode) for one in chosen),
        output=OutputFacts(directory, group.base_offset, certified.next_offset, rewritten.size_bytes),
        records_read=sum(one.records for one in facts),
        records_kept=certified.records,
        removed=removable(facts, rewritten.markers),
        key_offset_digest=certified.key_offset_digest,
        content_digest=certified.content_digest,
        tombstones=rewritten.tombstones,
        read_bytes=group.size_bytes,
        seconds=seconds,
    )


def report(
    plan: Plan,
    found: ScanStats,
    done: Sequence[BuiltGroup],
    *,
    stopped_by: StoppedBy,
    swap_seconds: float,
) -> CleanRound:
    """Return the report of a cleaning whose groups `done` were published. `stopped_by`: empty, it ended."""
    removed = Removed(
        superseded=sum(one.removed.superseded for one in done),
        tombstone=sum(one.removed.tombstone for one in done),
        marker=sum(one.removed.marker for one in done),
        aborted=sum(one.removed.aborted for one in done),
        keyless=sum(one.removed.keyless for one in done),
    )
    source_bytes = sum(one.read_bytes for one in done)
    written_bytes = sum(one.output.size_bytes for one in done)
    rewrite_seconds = sum(one.seconds for one in done)
    return CleanRound(
        topic=plan.topic,
        partition=plan.partition,
        strategy=plan.strategy,
        start=plan.start,
        end=plan.limit,
        complete=not stopped_by,
        records_read=found.records,
        records_kept=found.records - (removed.total - removed.marker),
        removed=removed,
        read_bytes=found.read_bytes + source_bytes,
        written_bytes=written_bytes,
        freed_bytes=source_bytes - written_bytes,
        seconds=found.seconds + rewrite_seconds + swap_seconds,
        phases=Phases(map=found.seconds, rewrite=rewrite_seconds, swap=swap_seconds),
        map_used_ratio=found.used_ratio,
        survivorship=found.dirty_live_bytes / found.dirty_bytes if found.dirty_bytes else 1.0,
        certificate=_certificate(done),
        tombstones=found.waiting or _waiting(found.tombstones, [one.tombstones for one in done]),
        segments_before=found.segments,
        segments_after=found.segments - sum(len(one.sources) - 1 for one in done),
        map_passes=found.passes,
        now_ms=plan.now_ms,
        stopped_by=stopped_by,
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
    """The report, and its figures into the metrics of the log directory that holds `directory`."""
    round_ = report(plan, stats, done, stopped_by=stopped_by, swap_seconds=swap_seconds)
    root = os.path.realpath(os.path.dirname(directory))
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
    metrics.CLEANER_ROUNDS.add(1, os.path.realpath(os.path.dirname(directory)), "failed")


def _certificate(done: Sequence[BuiltGroup]) -> Certificate | None:
    if not done:
        return None
    return Certificate(
        records=sum(one.records_kept for one in done),
        key_offset_digest=f"{sum(one.key_offset_digest for one in done) & _MASK:016x}",
        content_digest=f"{sum(one.content_digest for one in done) & _MASK:016x}",
    )


def _waiting(count: int, rewritten: Sequence[TombstonesWaiting]) -> TombstonesWaiting:
    """All live tombstones are counted; which is due first is known of those that were rewritten."""
    seen = [one for one in rewritten if one.count]
    if not count or sum(one.count for one in seen) < count:
        return TombstonesWaiting(count)
    first = min(seen, key=lambda one: (one.first_due_ms, one.first_offset))
    return TombstonesWaiting(count, first.first_offset, first.first_due_ms)
