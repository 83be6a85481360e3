"""Decide whether a partition is cleaned, up to which offset, and why: a `Plan`.

Strategy `generational`: `choose` only computes the offset up to which a cleaning may reach. `generational`
and `drive` decide by the garbage accounts what is worth cleaning below it.

Strategy `kafka`: the dirty part is between the first dirty offset and the first uncleanable one. The log is
due when the dirty bytes are more than `min.cleanable.dirty.ratio` of all cleanable bytes, or when a record is
older than `max.compaction.lag.ms`. A cleaning covers the log from its start.

    log start      first dirty                  first uncleanable               log end
        | clean        | dirty                       | lag, or active segment       |
        +--------------+-----------------------------+------------------------------+

Choosing reads sizes and timestamps, no record. `due=False` means now: the active segment counts as closed
(the cleaning rolls it first) and the ratio is ignored; lags and horizons hold in both cases.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from lastword.cleaner.policy import plan as codes
from lastword.cleaner.policy.plan import CleanRequest, Plan, Reason
from lastword.config import TopicConfig
from lastword.config.tables import STRATEGIES
from lastword.errors import UsageError
from lastword.partition.log import PartitionLog
from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS
from lastword.partition.view import PartitionView
from lastword.units import format_bytes, format_duration

OUTGROWN_BYTES = 4 << 20
OUTGROWN_TIMES = 2
"""An active segment is closed for cleaning when it is larger than `OUTGROWN_BYTES`, and than this many times
the live bytes of the closed segments. So a small state stays within a few MiB, even if `segment.bytes` is 1
GiB. In a log of inserts the closed segments triple each time: after five such segments `segment.bytes` closes
them."""


class Choosable(Protocol):
    """The facts of a segment by which `choose` decides."""

    @property
    def base_offset(self) -> int:
        """Return the first offset of the segment's range."""

    @property
    def next_offset(self) -> int:
        """Return the offset after the segment's range."""

    @property
    def size(self) -> int:
        """Return the size of its .log file."""

    @property
    def largest_timestamp(self) -> int:
        """Return the largest timestamp of its records; below 0: there is none."""

    @property
    def mtime_ms(self) -> int:
        """Return the modification time of its file."""

    def position_of(self, offset: int) -> int:
        """Return the position of the batch that contains an offset."""

    @property
    def first_timestamp(self) -> int:
        """Return the largest timestamp of its first batch; below 0: there is none."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The facts of a log by which `choose` decides.

    Attributes:
        segments: In offset order; the last is the active one.
        stable_offset: No transaction below it is undecided; None: the log end.
        cleanable_offset: Nothing from it on may be cleaned; below `stable_offset` if a commit is incomplete
            there. None: the stable offset.
        may_roll: A due cleaning closes the active segment first if its age requires it, and it is not closed
            yet: then the segment counts as closed.
        producer_expiration_ms: The time after which a silent producer is forgotten. Until then its last batch
            is kept.
    """

    topic: str
    partition: int
    segments: Sequence[Choosable]
    log_start: int
    log_end: int
    stable_offset: int | None = None
    cleanable_offset: int | None = None
    may_roll: bool = False
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS


def choose(
    log: LogState,
    config: TopicConfig,
    request: CleanRequest,
    now_ms: int,
    *,
    quarantine: str | None = None,
    dead_bytes: int = 0,
) -> Plan:
    """Decide about one partition.

    Args:
        log: The log.
        config: Settings of the topic.
        request: Its checkpoint is corrected here if it is outside the log.
        now_ms: The time to decide by.
        quarantine: Why the partition is in quarantine, or None.
        dead_bytes: Known garbage of the closed segments.
    """
    due, strategy, segments = request.due, request.strategy, log.segments
    if strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy {strategy!r}", remedy=f"use one of: {', '.join(STRATEGIES)}")
    start = corrected_first_dirty(request.first_dirty, log.log_start, log.log_end)
    plan = Plan(
        topic=log.topic,
        partition=log.partition,
        action="clean",
        due=True if due else None,  # False once there is a reason to keep it
        strategy=strategy,
        log_start=log.log_start,
        start=start,
        limit=start,
        total_segments=len(segments),
        total_bytes=sum(s.size for s in segments),
        now_ms=now_ms,
        map_bytes=request.map_bytes,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        max_message_bytes=config.max_message_bytes,
        producer_expiration_ms=log.producer_expiration_ms,
    )
    if config.policy is None:
        return plan.kept(codes.NO_POLICY, config.policy_unknown)
    if "compact" not in config.policy:
        return plan.kept(codes.NO_POLICY, f"cleanup.policy is {config.policy_text}: nothing is compacted")
    if quarantine is not None:
        return plan.kept(codes.QUARANTINED, quarantine)
    stable_offset = log.log_end if log.stable_offset is None else log.stable_offset
    cleanable_offset = stable_offset if log.cleanable_offset is None else log.cleanable_offset
    ends = _Ends(stable_offset, cleanable_offset)
    rolls = not (due or request.closed_only) or (log.may_roll and _rolls_by_age(segments, config, now_ms))
    outgrown = False
    if not rolls and log.may_roll:
        decided = ends.cleanable_offset >= log.log_end
        rolls = outgrown = decided and is_outgrown(segments, config, dead_bytes, now_ms)
    closed, reasons = _cleanable(plan, segments, config, ends, rolls, dead_bytes)
    plan = _bounded(plan, segments, closed, reasons)
    if outgrown and len(closed) == len(segments):
        times = f"more than {OUTGROWN_TIMES} times the live bytes of the closed segments"
        text = (
            f"{format_bytes(segments[-1].size)} from {segments[-1].base_offset} on are closed first: {times}"
        )
        plan = replace(plan, reasons=(*plan.reasons, Reason(codes.OUTGROWN, text)))
    if plan.action == "clean" and due and strategy == "kafka":
        return _by_ratio(plan, closed, config)
    return plan


def choose_for(
    log: PartitionLog | PartitionView,
    config: TopicConfig,
    request: CleanRequest,
    now_ms: int,
    *,
    quarantine: str | None = None,
    dead_bytes: int = 0,
) -> Plan:
    """Decide about a log as it is on disk (`choose`)."""
    state = LogState(
        log.topic,
        log.partition,
        log.segments,
        log_start=log.log_start,
        log_end=log.log_end,
        stable_offset=log.stable_offset,
        cleanable_offset=log.cleanable_offset,
        may_roll=isinstance(log, PartitionView) and not request.closed_only,
        producer_expiration_ms=log.producer_expiration_ms,
    )
    return choose(state, config, request, now_ms, quarantine=quarantine, dead_bytes=dead_bytes)


def by_accounts(config: TopicConfig, strategy: str | None = None) -> bool:
    """Return whether a topic with these settings, or with `strategy`, is cleaned by accounts."""
    return config.compacts and (strategy or config.lastword_strategy) == "generational"


def outgrown_above(segments: Sequence[Choosable], dead_bytes: int) -> int:
    """Return the size above which the active segment is closed for cleaning."""
    closed_bytes = sum(segment.size for segment in segments[:-1])
    return max(OUTGROWN_BYTES, OUTGROWN_TIMES * (closed_bytes - dead_bytes))


def is_outgrown(segments: Sequence[Choosable], config: TopicConfig, dead_bytes: int, now_ms: int) -> bool:
    """Return whether the active segment is to be closed early, for cleaning.

    Compares sizes. If `min.compaction.lag.ms` is set, the first record must be older than that.
    """
    if not segments or not config.compacts or segments[-1].size <= outgrown_above(segments, dead_bytes):
        return False
    if not config.min_compaction_lag_ms:
        return True
    return 0 <= segments[-1].first_timestamp <= now_ms - config.min_compaction_lag_ms


def roll_for_cleaning(log: PartitionLog, config: TopicConfig, *, now_ms: int, dead_bytes: int = 0) -> bool:
    """Close the active segment if it is too old, or has outgrown the live bytes below it.

    Costs sums over sizes. A segment with an open transaction or an incomplete commit stays open: closing it
    would not let anything be cleaned. `dead_bytes`: known garbage of the closed segments; unknown garbage
    counts as live.
    """
    with log.lock:
        if log.roll_if_due():
            return True
        if not is_outgrown(log.segments, config, dead_bytes, now_ms):
            return False
        if log.cleanable_offset < log.log_end:
            return False
        log.roll()
        return True


def corrected_first_dirty(first_dirty: int | None, log_start: int, log_end: int) -> int:
    """Return the checkpoint, or the log start if the checkpoint is outside the log.

    Then the whole log counts as dirty.
    """
    if first_dirty is None or first_dirty < log_start or first_dirty > log_end:
        return log_start
    return first_dirty


class _Ends(NamedTuple):
    """The offsets from which on nothing may be cleaned, whatever its age."""

    stable_offset: int
    cleanable_offset: int


def _bounded(
    plan: Plan, segments: Sequence[Choosable], closed: Sequence[Choosable], reasons: Sequence[Reason]
) -> Plan:
    """Return the plan with the limit behind the `closed` segments; kept if there are none."""
    if not closed:
        plan = replace(plan, reasons=tuple(reasons[1:]))
        why = reasons[0] if reasons else Reason(codes.NEWEST, "the log is empty")
        return plan.kept(why.code, why.text)
    limit = closed[-1].next_offset if len(closed) == len(segments) else segments[len(closed)].base_offset
    dirty_bytes = _dirty_bytes(segments, len(closed), plan.start, to_the_byte=plan.strategy == "kafka")
    total_bytes = sum(s.size for s in closed)
    ratio = dirty_bytes / total_bytes if total_bytes else 0.0
    plan = replace(
        plan,
        limit=limit,
        segments=len(closed),
        read_bytes=2 * total_bytes,
        dirty_bytes=dirty_bytes,
        dirty_ratio=ratio,
        rolls_active=len(closed) == len(segments),
        reasons=tuple(reasons),
    )
    if total_bytes == 0:
        plan = plan.kept(codes.NEWEST, "the log holds no records")
    return plan


def _rolls_by_age(segments: Sequence[Choosable], config: TopicConfig, now_ms: int) -> bool:
    """Return whether the active segment is to be closed for its age.

    The log's own decision has a random jitter and may come later.
    """
    first = segments[-1].first_timestamp if segments else -1
    return first >= 0 and now_ms - first > min(config.segment_ms, config.max_compaction_lag_ms)


def _by_ratio(plan: Plan, closed: Sequence[Choosable], config: TopicConfig) -> Plan:
    late_ms = overdue_ms(closed, plan.start, plan.now_ms, config.max_compaction_lag_ms)
    if plan.dirty_ratio > config.min_cleanable_dirty_ratio or (late_ms is not None and plan.dirty_bytes):
        return plan
    return plan.kept(
        codes.BELOW_RATIO,
        f"{plan.dirty_ratio:.0%} of the bytes are dirty, due above {config.min_cleanable_dirty_ratio:.0%}",
    )


def _cleanable(
    plan: Plan, segments: Sequence[Choosable], config: TopicConfig, ends: _Ends, rolls: bool, dead_bytes: int
) -> tuple[Sequence[Choosable], list[Reason]]:
    """Return the segments that a cleaning may take (a prefix of the log), and why it may not take the others.

    Args:
        plan: The plan so far.
        segments: All segments.
        config: Settings of the topic.
        ends: Upper bounds.
        rolls: The cleaning closes the active segment first.
        dead_bytes: Known garbage of the closed segments.
    """
    reasons = []
    count = len(segments)
    if not rolls:
        count = max(0, count - 1)
        if segments and segments[-1].size:
            held = f"{format_bytes(segments[-1].size)} from {segments[-1].base_offset} on are not closed yet"
            above = outgrown_above(segments, dead_bytes)
            if above < config.segment_bytes:
                held += f" (closed for cleaning above {format_bytes(above)})"
            reasons.append(Reason(codes.ACTIVE_SEGMENT, held))
    elif segments and segments[-1].size == 0:
        count -= 1  # an empty active segment has nothing to close
    decided = _ending_at(segments, count, ends.stable_offset)
    if decided < count:
        count = decided
        held = f"a transaction at {ends.stable_offset} is undecided: records from there on may not count"
        reasons.insert(0, Reason(codes.UNDECIDED_TRANSACTION, held))
    complete = _ending_at(segments, count, ends.cleanable_offset)
    if complete < count:
        count = complete
        held = f"a commit that begins at {ends.cleanable_offset} is incomplete"
        reasons.insert(0, Reason(codes.UNFINISHED_COMMIT, held))
    if count and _ending_at(segments, count, plan.log_start) == count:
        # A transaction that is undecided there does not hold the stable offset: a scan would refuse it.
        count = 0
        held = f"records below the log start {plan.log_start} are left to retention, which removes them"
        reasons.insert(0, Reason(codes.LOG_START, held))
    lag_ms = config.min_compaction_lag_ms
    if lag_ms > 0:
        for i, segment in enumerate(segments[:count]):
            if segment.next_offset <= plan.start:
                continue
            stamp = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.mtime_ms
            if stamp > plan.now_ms - lag_ms:
                wait = format_duration(stamp + lag_ms - plan.now_ms)
                held = f"records from {segment.base_offset} on may be cleaned in {wait}"
                reasons.insert(0, Reason(codes.COMPACTION_LAG, held))
                count = i
                break
    return segments[:count], reasons


def _ending_at(segments: Sequence[Choosable], count: int, offset: int) -> int:
    """Return how many of the first segments end at an offset or below it.

    Reads the end of at most one segment: the others end there if the next one begins there, and not if they
    begin above.
    """
    ending = bisect_right(segments, offset, 0, count, key=lambda segment: segment.base_offset)
    last = ending - 1
    if last < 0 or (ending < len(segments) and segments[ending].base_offset <= offset):
        return ending
    if segments[last].base_offset == offset:
        return last if segments[last].size else ending
    return ending if segments[last].next_offset <= offset else last


def _dirty_bytes(segments: Sequence[Choosable], count: int, first_dirty: int, *, to_the_byte: bool) -> int:
    """Return the bytes of the first segments from the batch of `first_dirty` on.

    To the byte: by position in its segment, so no byte counts twice. Otherwise whole segments, and a segment
    reaches to the next one: looking up the position, or its end, would cost a read at every inspection.
    """
    if to_the_byte:
        first = _ending_at(segments, count, first_dirty)
    else:
        first = bisect_right(segments, first_dirty, 1, max(count, 1), key=lambda s: s.base_offset) - 1
        end = segments[count].base_offset if count < len(segments) else segments[-1].next_offset
        if end <= first_dirty:
            first = count
    dirty = 0
    for segment in segments[first:count]:
        dirty += segment.size
        if to_the_byte and segment.base_offset < first_dirty:
            dirty -= segment.position_of(first_dirty)
    return dirty


def overdue_ms(closed: Iterable[Choosable], first_dirty: int, now_ms: int, max_lag_ms: int) -> int | None:
    """Return by how long the oldest dirty segment has passed `max.compaction.lag.ms`; None: it has not."""
    if now_ms <= max_lag_ms:
        return None  # no record is that old; nothing is read to find out
    stamps = []
    for segment in closed:
        if segment.next_offset <= first_dirty or segment.size == 0:
            continue
        first = segment.first_timestamp
        if first > 0:
            stamps.append(first)
    if not stamps or min(stamps) >= now_ms - max_lag_ms:
        return None
    return now_ms - max_lag_ms - min(stamps)
