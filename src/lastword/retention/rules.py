"""Which segments may go: Kafka's three passes, one after another over what the last one left.

```
log start        a segment whose successor begins at or below the log start; under every policy
retention.bytes  oldest first, while what goes leaves at least the limit
retention.ms     oldest first, while the newest record of the segment is older (strictly)
```

Only a beginning of the log may go, and nothing at or above the high watermark or the beginning of an
incomplete commit. The last segment goes only if it holds records and everything before it goes; then the
log continues, empty, at its end. Size and time count only if `cleanup.policy` has `delete`; without a known
policy nothing goes at all.

A segment's age is that of its largest timestamp; where no record has one, that of the file. The date decides:
one that was set back keeps more, one that was set forward lets go what it calls old, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lastword.config import TopicConfig
from lastword.units import format_bytes, format_duration, format_time
from lastword.values import Value

LOG_START = "log-start"
BYTES = "retention.bytes"
MS = "retention.ms"
NO_POLICY = "no-policy"
WITHIN = "within-retention"


@dataclass(frozen=True, slots=True)
class Deletion(Value):
    """What retention takes from one partition, or would take; with no segments, why nothing goes.

    segments     how many segments go, the oldest ones; freed_bytes: of their log files
    log_start    first offset that may be read afterwards; before it was log_start_before
    reason       a sentence; codes: `log-start`, `retention.bytes`, `retention.ms` in the order they applied,
                 or `no-policy`, `within-retention`
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
        """Is there anything to delete?"""
        return self.segments > 0

    def __str__(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if not self.segments:
            return f"{name}: nothing goes: {self.reason}"
        many = "1 segment" if self.segments == 1 else f"{self.segments} segments"
        freed = format_bytes(self.freed_bytes)
        return f"{name}: {many} removed, {freed}, log start {self.log_start}: {self.reason}"


class Expirable(Protocol):
    """What the rules need to know of a segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def largest_timestamp(self) -> int: ...
    @property
    def mtime_ms(self) -> int: ...


def decide(
    topic: str,
    partition: int,
    segments: Sequence[Expirable],
    config: TopicConfig,
    *,
    log_start: int,
    log_end: int,
    now_ms: int,
    upper_offset: int | None = None,
) -> Deletion:
    """Decide which segments of one partition go.

    Args:
        segments: In offset order; the last is the active one.
        upper_offset: No segment that reaches above it goes: the high watermark, or where an incomplete commit
            begins. None: the log end.
    """
    if config.cleanup_policy is None:
        return Deletion(
            topic,
            partition,
            0,
            0,
            log_start,
            "cleanup.policy is not known, so nothing may be removed",
            (NO_POLICY,),
            log_start,
        )
    top = log_end if upper_offset is None else min(log_end, upper_offset)
    found = _Prefix(segments, log_end, top)
    reasons: list[str] = []
    codes: list[str] = []
    for code, pass_ in _passes(config, log_start, now_ms):
        took = found.take(pass_(found))
        if took:
            codes.append(code)
            reasons.append(_sentence(code, took, config, log_start))
    if not found.gone:
        return Deletion(
            topic,
            partition,
            0,
            0,
            log_start,
            _why_not(found, config, now_ms),
            (WITHIN,),
            log_start,
        )
    return Deletion(
        topic,
        partition,
        len(found.gone),
        sum(s.size for s in found.gone),
        max(log_start, found.next_base(len(found.gone) - 1)),
        "; ".join(reasons),
        tuple(codes),
        log_start,
    )


class _Prefix:
    """The segments, and how many of them go."""

    def __init__(self, segments: Sequence[Expirable], log_end: int, top: int) -> None:
        self.segments = segments
        self.log_end = log_end
        self.top = top
        self.count = 0

    @property
    def gone(self) -> Sequence[Expirable]:
        return self.segments[: self.count]

    @property
    def left(self) -> Sequence[Expirable]:
        return self.segments[self.count :]

    def next_base(self, index: int) -> int:
        """Where the segment's successor begins; the log end for the last."""
        return self.segments[index + 1].base_offset if index + 1 < len(self.segments) else self.log_end

    def take(self, deletable: Callable[[int, Expirable], bool]) -> Sequence[Expirable]:
        """Let go the longest beginning of what is left that the rule allows."""
        before = self.count
        while self.count < len(self.segments):
            one = self.segments[self.count]
            last = self.count == len(self.segments) - 1
            if (last and one.size == 0) or self.next_base(self.count) > self.top:
                break
            if not deletable(self.count, one):
                break
            self.count += 1
        return self.segments[before : self.count]


_Rule = Callable[[_Prefix], Callable[[int, Expirable], bool]]


def _passes(config: TopicConfig, log_start: int, now_ms: int) -> list[tuple[str, _Rule]]:
    passes: list[tuple[str, _Rule]] = [(LOG_START, lambda found: _breached(found, log_start))]
    if config.deletes and config.retention_bytes >= 0:
        passes.append((BYTES, lambda found: _too_large(found, config.retention_bytes)))
    if config.deletes and config.retention_ms >= 0:
        passes.append((MS, lambda found: lambda _, one: now_ms - _stamp(one) > config.retention_ms))
    return passes


def _breached(found: _Prefix, log_start: int) -> Callable[[int, Expirable], bool]:
    def rule(index: int, one: Expirable) -> bool:
        return index + 1 < len(found.segments) and found.segments[index + 1].base_offset <= log_start

    return rule


def _too_large(found: _Prefix, limit: int) -> Callable[[int, Expirable], bool]:
    over = sum(s.size for s in found.left) - limit

    def rule(index: int, one: Expirable) -> bool:
        nonlocal over
        if over - one.size < 0:
            return False
        over -= one.size
        return True

    return rule


def _stamp(one: Expirable) -> int:
    return one.largest_timestamp if one.largest_timestamp >= 0 else one.mtime_ms


def _sentence(code: str, took: Sequence[Expirable], config: TopicConfig, log_start: int) -> str:
    if code == LOG_START:
        return f"log start {log_start}, {_counted(took)} below it"
    if code == BYTES:
        return f"retention.bytes {format_bytes(config.retention_bytes)}, {_counted(took)} above it"
    newest = format_time(max(_stamp(one) for one in took))
    return f"retention.ms {format_duration(config.retention_ms)}, newest record {newest}"


def _counted(took: Sequence[Expirable]) -> str:
    size = format_bytes(sum(one.size for one in took))
    return f"{size} in 1 segment" if len(took) == 1 else f"{size} in {len(took)} segments"


def _why_not(found: _Prefix, config: TopicConfig, now_ms: int) -> str:
    if not config.deletes:
        policy = ",".join(sorted(config.cleanup_policy or ()))
        return f"cleanup.policy is {policy}: only what lies below the log start goes"
    first = found.segments[0] if found.segments else None
    if first is None or not any(one.size for one in found.segments):
        return "the log is empty"
    limits = []
    if config.retention_ms >= 0:
        wait = _stamp(first) + config.retention_ms - now_ms
        if wait >= 0:
            limits.append(f"the oldest segment may go in {format_duration(max(wait, 1))} by retention.ms")
    if config.retention_bytes >= 0:
        size = format_bytes(sum(one.size for one in found.segments))
        limits.append(f"{size} of retention.bytes {format_bytes(config.retention_bytes)}")
    return "; ".join(limits) or "no limit of size or time is set"
