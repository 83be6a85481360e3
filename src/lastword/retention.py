"""Retention: remove whole segments from the front of a log.

`decide` decides by sizes and times, without reading records: a `Deletion` is a value with its reasons.
`expire` carries it out for many partitions. `trim_offset` computes the log start of a trim, and `trim` raises
log starts.

The decision is Kafka's three passes, each over the segments that the last pass left:

```
log start        a segment whose successor begins at or below the log start; under every policy
retention.bytes  oldest first, while the remaining segments have at least the limit
retention.ms     oldest first, while the newest record of the segment is older (strictly)
```

Only a prefix of the log is removed, and nothing at or above the high watermark or the start of an incomplete
commit. The last segment is removed only if it has records and all segments before it are removed; the log
then continues, empty, at its end. Size and time apply only if `cleanup.policy` has `delete`; without a known
policy nothing is removed. Retention also applies to a partition in quarantine.

The age of a segment is that of its largest timestamp, or of the file if no record has a timestamp. The system
date decides, as in Kafka: a date that was set back keeps more, a date that was set forward removes more.

The order of a deletion is that of `partition.cut`: the log start is durable before a file is renamed or
removed. The checkpoint of the log starts is written once for many partitions: each of them is claimed and
decided, then the checkpoint is written, then each log start is raised, then each prefix is removed. A crash
after the checkpoint leaves higher log starts with their segments, which the next call removes.

Retention runs in a call of `expire`, and every `log.retention.check.interval.ms` in the threads of the
background cleaner. `segment.ms` and `max.compaction.lag.ms` of a compacted log without appends are checked
when the partition is opened to append, before `expire`, and at each check of the background cleaner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from lastword.config import TopicConfig
from lastword.errors import DiskFullError, LastwordError, OffsetOutOfRangeError, UsageError
from lastword.logdir import LogDirectory
from lastword.logdir.checkpoints import LogStart, TopicPartition
from lastword.parse import to_ms
from lastword.partition import PartitionLog
from lastword.partition.view import PartitionView
from lastword.segment.segment import Segment
from lastword.units import format_bytes, format_duration, format_time
from lastword.values import Value

LOG_START = "log-start"
BYTES = "retention.bytes"
MS = "retention.ms"
NO_POLICY = "no-policy"
WITHIN = "within-retention"

PARTITIONS_PER_CHECKPOINT = 1000
"""Partitions whose log starts are written together. They are claimed until their segments are removed."""


@dataclass(frozen=True, slots=True)
class Deletion(Value):
    """The segments that retention removes from a partition, or the reason why it removes none.

    Attributes:
        topic: The topic.
        partition: The partition.
        segments: The number of removed segments, the oldest ones.
        freed_bytes: Bytes of their log files.
        log_start: First offset that may be read afterwards.
        reason: A sentence.
        codes: `log-start`, `retention.bytes`, `retention.ms` in the order in which they applied, or
            `no-policy`, `within-retention`.
        log_start_before: First offset that may be read before.
    """

    topic: str
    partition: int
    segments: int
    freed_bytes: int
    log_start: int
    reason: str
    codes: tuple[str, ...] = ()
    log_start_before: int = 0

    @property
    def removes(self) -> bool:
        """Whether segments are removed."""
        return self.segments > 0

    def __str__(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if not self.segments:
            return f"{name}: nothing goes: {self.reason}"
        count = "1 segment" if self.segments == 1 else f"{self.segments} segments"
        freed = format_bytes(self.freed_bytes)
        return f"{name}: {count} removed, {freed}, log start {self.log_start}: {self.reason}"


def outlook(log: PartitionLog | PartitionView, config: TopicConfig, now_ms: int) -> Deletion:
    """Return the deletion that `expire` would carry out now. Changes nothing.

    Args:
        log: The log. No segment that ends above its `removable_offset` is removed: the high watermark, or the
            start of an incomplete commit.
        config: Settings of the topic.
        now_ms: The current time.
    """
    log_start, log_end = log.log_start, log.log_end
    keep = partial(Deletion, log.topic, log.partition, 0, 0, log_start, log_start_before=log_start)
    if config.policy is None:
        return keep(config.policy_unknown, (NO_POLICY,))
    prefix = _Prefix(log.segments, log_end, min(log_end, log.removable_offset))
    taken = {LOG_START: prefix.take(lambda _: not prefix.is_at_last and prefix.next_base <= log_start)}
    if config.deletes and config.retention_bytes >= 0:
        taken[BYTES] = prefix.take(_too_large(prefix, config.retention_bytes))
    if config.deletes and config.retention_ms >= 0:
        taken[MS] = prefix.take(lambda segment: _is_old(segment, now_ms - config.retention_ms))
    reasons = {code: _sentence(code, gone, config, log_start) for code, gone in taken.items() if gone}
    gone = prefix.segments[: prefix.count]
    rest = prefix.segments[prefix.count :]
    if not gone:
        return keep(_reason_to_keep(prefix, config, now_ms), (WITHIN,))
    return Deletion(
        log.topic,
        log.partition,
        len(gone),
        sum(segment.size for segment in gone),
        max(log_start, rest[0].base_offset if rest else log_end),
        "; ".join(reasons.values()),
        tuple(reasons),
        log_start,
    )


class _Prefix:
    """The segments, and how many of them are removed."""

    def __init__(self, segments: Sequence[Segment], log_end: int, top: int) -> None:
        self.segments = segments
        self.log_end = log_end
        self.top = top
        self.count = 0

    @property
    def is_at_last(self) -> bool:
        """Whether the first segment that is left is the last one."""
        return self.count == len(self.segments) - 1

    @property
    def next_base(self) -> int:
        """The base offset of the successor of the first segment that is left; the log end without one."""
        return self.log_end if self.is_at_last else self.segments[self.count + 1].base_offset

    def take(self, deletable: Callable[[Segment], bool]) -> Sequence[Segment]:
        """Extend the prefix by the segments that the rule allows, up to the first that it does not."""
        before = self.count
        while self.count < len(self.segments):
            segment = self.segments[self.count]
            if (self.is_at_last and segment.size == 0) or self.next_base > self.top:
                break
            if not deletable(segment):
                break
            self.count += 1
        return self.segments[before : self.count]


def _too_large(prefix: _Prefix, limit: int) -> Callable[[Segment], bool]:
    over = sum(segment.size for segment in prefix.segments[prefix.count :]) - limit

    def rule(segment: Segment) -> bool:
        nonlocal over
        if over - segment.size < 0:
            return False
        over -= segment.size
        return True

    return rule


def _is_old(segment: Segment, before_ms: int) -> bool:
    """Return whether all records are older. Reads the segment only if the bound does not show a newer one."""
    return segment.known_timestamp < before_ms and _newest_ms(segment) < before_ms


def _newest_ms(segment: Segment) -> int:
    return segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.mtime_ms


def _sentence(code: str, taken: Sequence[Segment], config: TopicConfig, log_start: int) -> str:
    if code == LOG_START:
        return f"log start {log_start}, {_counted(taken)} below it"
    if code == BYTES:
        return f"retention.bytes {format_bytes(config.retention_bytes)}, {_counted(taken)} above it"
    newest = format_time(max(_newest_ms(segment) for segment in taken))
    return f"retention.ms {format_duration(config.retention_ms)}, newest record {newest}"


def _counted(taken: Sequence[Segment]) -> str:
    size = format_bytes(sum(segment.size for segment in taken))
    return f"{size} in 1 segment" if len(taken) == 1 else f"{size} in {len(taken)} segments"


def _reason_to_keep(prefix: _Prefix, config: TopicConfig, now_ms: int) -> str:
    if not config.deletes:
        return f"cleanup.policy is {config.policy_text}: only segments below the log start are removed"
    first = prefix.segments[0] if prefix.segments else None
    if first is None or not any(segment.size for segment in prefix.segments):
        return "the log is empty"
    limits = []
    if config.retention_ms >= 0:
        wait = first.known_timestamp + config.retention_ms - now_ms
        if wait < 0:  # the bound does not show why the segment stays
            wait = _newest_ms(first) + config.retention_ms - now_ms
        if wait >= 0:
            limits.append(f"the oldest segment may go in {format_duration(max(wait, 1))} by retention.ms")
    if config.retention_bytes >= 0:
        size = format_bytes(sum(segment.size for segment in prefix.segments))
        limits.append(f"{size} of retention.bytes {format_bytes(config.retention_bytes)}")
    return "; ".join(limits) or "no limit of size or time is set"


# ---------------------------------------------------------------- carry it out


def expire(
    log_dir: LogDirectory,
    partitions: Iterable[TopicPartition],
    *,
    stop: Callable[[], bool] | None = None,
    wait: bool = True,
) -> dict[TopicPartition, Deletion | LastwordError]:
    """Apply retention to partitions of a directory that is open to append.

    After a storage error a log is unchanged, or a part of its deletion is done.

    Args:
        log_dir: The directory.
        partitions: The partitions.
        stop: Checked before each decision. If it returns True, no further partition is changed.
        wait: Wait for the cleaning of a partition. False: leave out partitions that are being cleaned.

    Returns:
        The deletion of each partition, or its error. Partitions that were left out are absent.
    """
    results: dict[TopicPartition, Deletion | LastwordError] = {}

    def log_start_of(tp: TopicPartition) -> LogStart | None:
        deletion = _decide_and_roll(log_dir, tp)
        results[tp] = deletion
        return LogStart(deletion.log_start, deletion.codes[-1]) if deletion.removes else None

    return results | _remove_prefixes(log_dir, partitions, log_start_of, stop=stop, wait=wait)


def _decide_and_roll(log_dir: LogDirectory, tp: TopicPartition) -> Deletion:
    config = log_dir.topic_config(tp.topic)
    log = log_dir.log(*tp)
    log.remove_deferred()
    if config.compacts:
        with suppress(DiskFullError):  # what is removed now may make room for it
            log.roll_if_due()
    with log.lock:  # no append between the decision to remove all segments and the roll
        deletion = outlook(log, config, log_dir.clock.now_ms())
        if deletion.removes and deletion.segments == len(log.segments):
            log.roll()
        return deletion


def trim(
    log_dir: LogDirectory, log_starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, LastwordError]:
    """Raise log starts and remove the whole segments below. Waits for cleanings of the partitions.

    Returns:
        The errors of partitions that failed. A log that failed is unchanged, or a part of its change is done.
    """
    return _remove_prefixes(log_dir, log_starts, lambda tp: LogStart(log_starts[tp], "trim"))


def _remove_prefixes(
    log_dir: LogDirectory,
    partitions: Iterable[TopicPartition],
    log_start_of: Callable[[TopicPartition], LogStart | None],
    *,
    stop: Callable[[], bool] | None = None,
    wait: bool = True,
) -> dict[TopicPartition, LastwordError]:
    """Raise the log starts of partitions, a batch with each write of the checkpoint, and remove prefixes.

    A partition is claimed from its decision to the removal of its files. A thread that waits for a claim
    holds no other claim, so two callers cannot wait for each other.

    Args:
        log_dir: The directory.
        partitions: The partitions.
        log_start_of: Decides in a claimed partition. None: the partition stays as it is.
        stop: Checked before each decision.
        wait: Wait for partitions that another thread has claimed. False: leave them out.

    Returns:
        The errors of partitions that failed.
    """
    errors: dict[TopicPartition, LastwordError] = {}
    waiting = deque(partitions)
    stopped = False
    while waiting and not stopped:
        busy: list[TopicPartition] = []
        starts: dict[TopicPartition, LogStart] = {}
        with ExitStack() as claims:
            claimed: dict[TopicPartition, ExitStack] = {}
            while waiting and len(starts) < PARTITIONS_PER_CHECKPOINT:
                stopped = stop is not None and stop()
                if stopped:
                    break
                tp = waiting.popleft()
                try:
                    with ExitStack() as claim:
                        if wait and not starts:
                            claim.enter_context(log_dir.claim(*tp))
                        elif not claim.enter_context(log_dir.try_claim(*tp)):
                            busy.append(tp)
                            continue
                        start = log_start_of(tp)
                        if start is not None:
                            starts[tp] = start
                            claimed[tp] = claims.enter_context(claim.pop_all())
                except LastwordError as error:
                    errors[tp] = error
            failed = log_dir.raise_log_starts(starts) if starts else {}
            errors |= failed
            for tp, claim in claimed.items():
                with claim:
                    if tp not in failed:
                        try:
                            log_dir.log(*tp).remove_prefix()
                        except LastwordError as error:
                            errors[tp] = error
        if wait:
            waiting.extendleft(reversed(busy))
    return errors


def trim_offset(view: PartitionView, before: int | datetime) -> int:
    """Return the log start after a trim; it is never below the current log start.

    Args:
        view: The partition.
        before: The new log start, or a time: the first record that is not older becomes the log start. A time
            after the last record empties the log.

    Raises:
        OffsetOutOfRangeError: the offset is above the log end.
        UsageError: `before` is neither an offset nor an aware datetime.
    """
    if isinstance(before, datetime):
        offset = view.offset_at(to_ms(before))
        return view.log_end if offset is None else max(offset, view.log_start)
    if isinstance(before, bool) or not isinstance(before, int) or before < 0:
        raise UsageError(
            f"before={before!r} is not a position in a log", remedy="give an offset or an aware datetime"
        )
    if before > view.log_end:
        raise OffsetOutOfRangeError.above(f"{view.topic}-{view.partition}", before, view.log_end)
    return max(before, view.log_start)
