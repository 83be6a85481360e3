"""What Kafka's own cleaner would do with a partition now, and why it does not: `verdict_of`.

The rules are those of Kafka's `LogCleanerManager`, over the files of the log, its settings and the line of
`cleaner-offset-checkpoint`:

    uncleanable offset   the lowest of: the last stable offset, the base of the active segment, and with
                         `min.compaction.lag.ms` above 0 the base of the first dirty closed segment whose
                         largest timestamp is younger than that. So one record with a timestamp in the future
                         holds back every segment behind it
    ratio                bytes of the segments from the first dirty offset to the uncleanable one, over these
                         and the clean bytes. Segments count whole
    due                  the ratio is above `min.cleanable.dirty.ratio`, or the first record of a dirty closed
                         segment is older than `max.compaction.lag.ms`

The active segment is closed by an append alone: of a record that is `segment.ms` younger than the first, by
their timestamps, or at `segment.bytes`.
Kafka keeps in memory which partitions it could not clean, and forgets it at a restart. Here a partition that
is due is read as the cleaner would, and damage is named. A partition that is due for many checks, while its
line in the checkpoint stays, has no cleaner that works.

Nothing is changed, and no lock is taken.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastword.cleaner.policy.plan import (
    ACTIVE_SEGMENT,
    BELOW_RATIO,
    COMPACTION_LAG,
    NO_POLICY,
    UNDECIDED_TRANSACTION,
)
from lastword.config import TOPIC_SETTINGS, TopicConfig
from lastword.errors import DataError, FileVanishedError
from lastword.segment import names
from lastword.units import format_bytes, format_duration, format_time
from lastword.values import Value
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView
    from lastword.segment.segment import Segment

EMPTY_POLICY = "empty-policy"
FUTURE_TIMESTAMP = "future-timestamp"
UNCLEANABLE = "uncleanable"
NOTHING_DIRTY = "nothing-dirty"
IDLE_CLEANER = "idle-cleaner"
OVERDUE = "max-compaction-lag"
ABOVE_RATIO = "above-ratio"

IDLE_AFTER_MS = 10 * 60 * 1000
"""A partition that was due for so long was passed over: Kafka checks every 15 s (log.cleaner.backoff.ms)."""

SETTINGS = (
    "cleanup.policy",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "segment.ms",
    "segment.bytes",
)
"""The settings that decide."""


@dataclass(frozen=True, slots=True)
class KafkaReason(Value):
    """Why Kafka's cleaner does or does not clean: a code, a sentence, and the numbers in it by name."""

    code: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.code}, {self.text}"


@dataclass(frozen=True, slots=True)
class KafkaVerdict(Value):
    """What Kafka's cleaner would do with a partition now.

    Attributes:
        topic: The topic.
        partition: The partition.
        action: "clean" or "keep".
        reasons: The first decides; the others hold bytes back.
        first_dirty: The first dirty offset: the line of `cleaner-offset-checkpoint`, else the log start.
        uncleanable: Nothing from this offset on may be cleaned.
        clean_bytes: Bytes of the segments below the first dirty offset.
        cleanable_bytes: Bytes that the cleaner would take.
        held_bytes: Bytes from `uncleanable` on.
        dirty_ratio: cleanable_bytes / (clean_bytes + cleanable_bytes), 0 to 1.
        settings: The value and the source of each setting that decides.
    """

    topic: str
    partition: int
    action: str
    reasons: tuple[KafkaReason, ...]
    first_dirty: int = 0
    uncleanable: int = 0
    clean_bytes: int = 0
    cleanable_bytes: int = 0
    held_bytes: int = 0
    dirty_ratio: float = 0.0
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        verb = "would be cleaned" if self.action == "clean" else "is not cleaned"
        return f"{self.topic}-{self.partition} {verb} by Kafka: {self.reasons[0].text}"


def verdict_of(
    view: PartitionView, config: TopicConfig, first_dirty: int | None, now_ms: int
) -> KafkaVerdict:
    """Return what Kafka's cleaner would do.

    Args:
        view: The partition.
        config: Its settings.
        first_dirty: The line of the cleaner checkpoint; None: there is none.
        now_ms: The time to decide by.
    """
    rows = {name: (_shown(config, name), config.source(name)) for name in SETTINGS}
    without = _policy_reason(config)
    if without is not None:
        return KafkaVerdict(view.topic, view.partition, "keep", (without,), settings=rows)
    case = _Case(view, config, first_dirty, now_ms)
    action, reasons = case.decide()
    return KafkaVerdict(
        view.topic,
        view.partition,
        action,
        reasons,
        first_dirty=case.first_dirty,
        uncleanable=case.uncleanable,
        clean_bytes=case.clean_bytes,
        cleanable_bytes=case.cleanable_bytes,
        held_bytes=sum(segment.size for segment in case.segments[case.end :]),
        dirty_ratio=case.ratio,
        settings=rows,
    )


def _shown(config: TopicConfig, name: str) -> str:
    setting = TOPIC_SETTINGS[name]
    value = getattr(config, setting.keyword)
    if value == INT64_MAX:
        return "no limit"
    return "not set" if value is None else setting.show(value)


def _policy_reason(config: TopicConfig) -> KafkaReason | None:
    """Return why a topic is not compacted; None: it is."""
    if config.policy is None:
        why = "no source sets cleanup.policy, and Kafka's default is delete"
        return KafkaReason(NO_POLICY, why if config.unread is None else config.policy_unknown)
    if not config.policy:
        return KafkaReason(EMPTY_POLICY, "cleanup.policy is empty: nothing is ever removed")
    if not config.compacts:
        return KafkaReason(NO_POLICY, f"cleanup.policy is {config.policy_text}: superseded records stay")
    return None


class _Case:
    """The facts of one partition, by Kafka's rules."""

    def __init__(
        self, view: PartitionView, config: TopicConfig, first_dirty: int | None, now_ms: int
    ) -> None:
        self.view, self.config, self.now_ms = view, config, now_ms
        self.segments: Sequence[Segment] = view.segments
        self._bases = [segment.base_offset for segment in self.segments]
        is_valid = first_dirty is not None and view.log_start <= first_dirty <= view.log_end
        self.first_dirty = first_dirty if is_valid and first_dirty is not None else view.log_start
        self.blocks: list[KafkaReason] = []
        self.uncleanable = self._uncleanable_offset()
        # The segment that holds the uncleanable offset is the first one that stays.
        self.end = max(bisect_right(self._bases, self.uncleanable) - 1, 0)
        end_offset = [*self._bases, view.log_end][self.end]
        first = max(bisect_right(self._bases, min(self.first_dirty, end_offset)) - 1, 0)
        self.cleanable_bytes = sum(segment.size for segment in self.segments[first : self.end])
        self.clean_bytes = sum(
            segment.size for segment in self.segments if segment.base_offset < self.first_dirty
        )
        total_bytes = self.clean_bytes + self.cleanable_bytes
        self.ratio = self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def _dirty_closed(self) -> Sequence[Segment]:
        return self.segments[max(bisect_right(self._bases, self.first_dirty) - 1, 0) : -1]

    def _uncleanable_offset(self) -> int:
        """Return the lowest offset that may not be cleaned; every bound below the log end is a reason."""
        view, config = self.view, self.config
        bounds: list[tuple[int, KafkaReason | None]] = []
        if view.stable_offset < view.log_end:
            bounds.append((view.stable_offset, self._transaction()))
        lag_ms = config.min_compaction_lag_ms
        if lag_ms > 0:
            for segment in self._dirty_closed():
                stamp = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.mtime_ms
                if stamp > self.now_ms - lag_ms:
                    bounds.append((segment.base_offset, self._lag(segment, stamp, lag_ms)))
                    break
        if self.segments:
            bounds.append((self._bases[-1], self._active(self.segments[-1])))
        bounds.sort(key=lambda bound: bound[0])
        self.blocks = [reason for _, reason in bounds if reason is not None]
        return bounds[0][0] if bounds else view.log_end

    def _transaction(self) -> KafkaReason:
        view = self.view
        held = sum(s.size for s in self.segments if s.next_offset > view.stable_offset)
        producers = sorted(producer.producer_id for producer in view.open_transactions)
        named = f" of producer {', '.join(map(str, producers))}" if producers else ""
        text = (
            f"the transaction{named} at {view.stable_offset} is undecided: {format_bytes(held)} in the "
            "segments from there on wait"
        )
        return KafkaReason(UNDECIDED_TRANSACTION, text, {"offset": view.stable_offset, "held_bytes": held})

    def _lag(self, segment: Segment, stamp: int, lag_ms: int) -> KafkaReason:
        numbers = {
            "offset": segment.base_offset,
            "timestamp": stamp,
            "min_compaction_lag_ms": lag_ms,
            "until": stamp + lag_ms,
        }
        behind = (
            f"the segment at {segment.base_offset} and all behind it wait until {format_time(stamp + lag_ms)}"
        )
        if stamp > self.now_ms:
            ahead = format_duration(stamp - self.now_ms)
            text = f"a record has the timestamp {format_time(stamp)}, {ahead} in the future: {behind}"
            return KafkaReason(FUTURE_TIMESTAMP, text, numbers)
        lag = format_duration(lag_ms)
        text = f"its largest timestamp is {format_time(stamp)}, min.compaction.lag.ms is {lag}: {behind}"
        return KafkaReason(COMPACTION_LAG, text, numbers)

    def _active(self, active: Segment) -> KafkaReason | None:
        if not active.size:
            return None
        config, first = self.config, active.first_timestamp
        rolls_ms = first + min(config.segment_ms, config.max_compaction_lag_ms) if first >= 0 else -1
        if rolls_ms < 0:
            when = f"at {format_bytes(config.segment_bytes)}"
        elif rolls_ms <= self.now_ms:
            when = "with the next record; none has come"
        else:
            when = f"with the first record whose timestamp is after {format_time(rolls_ms)}"
        held = f"{format_bytes(active.size)} from {active.base_offset} on are in the active segment"
        text = f"{held}, closed {when}"
        numbers = {"offset": active.base_offset, "bytes": active.size, "segment_ms": config.segment_ms}
        return KafkaReason(ACTIVE_SEGMENT, text, {**numbers, "rolls": rolls_ms})

    def decide(self) -> tuple[str, tuple[KafkaReason, ...]]:
        """Return the action and its reasons."""
        due = self._due()
        if due is None:
            return "keep", self._kept()
        damage = self._damage()
        if damage is not None:
            return "keep", (damage, due, *self.blocks)
        idle = self._idle()
        reasons = (due,) if idle is None else (due, idle)
        return "clean", (*reasons, *self.blocks)

    def _due(self) -> KafkaReason | None:
        least, numbers = self.config.min_cleanable_dirty_ratio, self._ratio_numbers()
        if self.cleanable_bytes and self.ratio > least:
            return KafkaReason(ABOVE_RATIO, f"{self._ratio_text()}, due above {least:.0%}", numbers)
        stamps = [s.first_timestamp for s in self._dirty_closed() if s.size and s.first_timestamp > 0]
        max_lag_ms = self.config.max_compaction_lag_ms
        late_ms = self.now_ms - max_lag_ms - min(stamps, default=self.now_ms)
        if self.cleanable_bytes and late_ms > 0:
            text = f"a dirty record is {format_duration(late_ms)} older than max.compaction.lag.ms"
            return KafkaReason(OVERDUE, text, {"late_ms": late_ms, "max_compaction_lag_ms": max_lag_ms})
        return None

    def _kept(self) -> tuple[KafkaReason, ...]:
        """Return why a partition is not due."""
        if not self.cleanable_bytes:
            nothing = KafkaReason(NOTHING_DIRTY, "every closed segment is clean", self._ratio_numbers())
            return tuple(self.blocks) or (nothing,)
        text = f"{self._ratio_text()}, due above {self.config.min_cleanable_dirty_ratio:.0%}"
        return (KafkaReason(BELOW_RATIO, text, self._ratio_numbers()), *self.blocks)

    def _ratio_text(self) -> str:
        cleanable = format_bytes(self.cleanable_bytes)
        clean = format_bytes(self.clean_bytes)
        return f"{cleanable} are dirty beside {clean} of clean segments, {self.ratio:.1%}"

    def _ratio_numbers(self) -> dict[str, float]:
        return {
            "dirty_ratio": self.ratio,
            "min_cleanable_dirty_ratio": self.config.min_cleanable_dirty_ratio,
            "cleanable_bytes": self.cleanable_bytes,
            "clean_bytes": self.clean_bytes,
        }

    def _damage(self) -> KafkaReason | None:
        """Read what the cleaner would read; return the first damage that it cannot pass."""
        for segment in self.segments[: self.end]:
            try:
                for chunk in segment.chunk_reader(verify=False):
                    chunk.decompress()
            except FileVanishedError:
                raise
            except DataError as error:
                position = error.position or 0
                text = (
                    f"{os.path.basename(segment.file)} cannot be read at position {position}: the cleaner "
                    "sets the partition aside until the broker starts again, and then meets it again"
                )
                return KafkaReason(
                    UNCLEANABLE, text, {"base_offset": segment.base_offset, "position": position}
                )
        return None

    def _idle(self) -> KafkaReason | None:
        """Return that the cleaner should have come long ago; None: it may still come."""
        files, root = self.view.files, os.path.dirname(os.path.normpath(self.view.directory))
        since_ms = max(segment.mtime_ms for segment in self.segments[: self.end])
        waited_ms = self.now_ms - since_ms
        if waited_ms < IDLE_AFTER_MS:
            return None
        facts = files.stat(os.path.join(root, names.FIRST_DIRTY))
        written_ms = -1 if facts is None else facts.mtime_ms
        if written_ms > since_ms:
            seen = f"it cleaned other partitions since ({names.FIRST_DIRTY} is of {format_time(written_ms)})"
        else:
            seen = f"it has moved no line of {names.FIRST_DIRTY} since"
        text = (
            f"due for {format_duration(waited_ms)}, and not cleaned: {seen}. Is the broker running, with "
            "log.cleaner.enable, and does its log name a cleaner thread that ended, or this partition?"
        )
        return KafkaReason(
            IDLE_CLEANER, text, {"since": since_ms, "waited_ms": waited_ms, "checkpoint_written": written_ms}
        )
