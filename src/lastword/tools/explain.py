"""Explain why a log is or is not cleaned, and why a record is still in it.

The plan is the cleaner's own, and each version of a key is explained by the rules of a cleaning. One scan of
the log finds the versions; the rule of a version follows from the header of its batch, the transaction
outcomes and the leases. Takes no lock and changes nothing, also beside a running broker.

    garbage     a newer committed record of the key supersedes it, or its transaction was aborted
                → removed by the cleaning that covers it and the superseding record, unless a rule keeps it
    newest      stays, unless it is a tombstone
    tombstone   newest of its key: stays until its delete horizon has passed, every lease is above it, and no
                older copy of the key is left
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.plan import (
    ACTIVE_SEGMENT,
    COMPACTION_LAG,
    NEWEST,
    NO_POLICY,
    QUARANTINED,
    TOMBSTONE_HORIZON,
    UNDECIDED_TRANSACTION,
    UNFINISHED_COMMIT,
    Plan,
)
from lastword.cleaner.policy.quarantine import Quarantine
from lastword.config import TopicConfig
from lastword.partition import leases, scan
from lastword.partition.leases import HORIZON, MAY_GO, OLDER_RECORD, Leases, TombstoneFacts, held_by
from lastword.partition.reads import read_batches, read_chunks
from lastword.partition.transactions import BatchOutcome, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchHeader
from lastword.records.formats import read_records
from lastword.segment.segment import Segment
from lastword.state.ttl import expires_at
from lastword.units import NEVER, format_bytes, format_duration, format_time, to_time
from lastword.values import Value

LEASE = "lease"
LOG_END = "log-end"
OLDER_SEGMENT = "older-segment-not-clean"
NEXT_ROUND = "next-round"
ABORTED = "aborted-transaction"
TTL = "time-to-live"


@dataclass(frozen=True, slots=True)
class Version(Value):
    """One record of a key, and the rule that keeps or frees it.

    Attributes:
        offset: Offset of the record.
        timestamp: In ms.
        segment: Base offset of its segment.
        tombstone: Whether the value is null.
        kept: Whether the key needs the record. False: it is garbage, and is removed when no rule keeps it.
        reason: Code of the rule.
        until: Time in ms at which the rule ends; None: it does not depend on time, or the time is unknown.
        text: A sentence about the rule.
        partition: The partition.
        superseded_by: Offset of the record that superseded it, or None.
    """

    offset: int
    timestamp: int
    segment: int
    tombstone: bool
    kept: bool
    reason: str
    until: int | None
    text: str
    partition: int
    superseded_by: int | None = None

    def __str__(self) -> str:
        state = "kept" if self.kept else "removable"
        return f"offset {self.offset}  {format_time(self.timestamp)}  {state}  {self.text}"


@dataclass(frozen=True, slots=True)
class Counted(Value):
    """Bytes of one partition, counted as in `describe` and `lastword ls`.

    Attributes:
        size_bytes: All segments.
        garbage_bytes: Bytes of superseded records, the active segment included.
        active_garbage_bytes: The part in the active segment, which no cleaning reads before it is closed.
    """

    size_bytes: int
    garbage_bytes: int
    active_garbage_bytes: int

    def __str__(self) -> str:
        text = f"{format_bytes(self.size_bytes)}, {format_bytes(self.garbage_bytes)} of it garbage"
        if not self.active_garbage_bytes:
            return text
        return f"{text}, {format_bytes(self.active_garbage_bytes)} of that in the active segment"


@dataclass(frozen=True, slots=True)
class Explanation(Value):
    """The reasons why one partition is or is not due, and the state of the versions of a key.

    Attributes:
        topic: The topic.
        partition: The partition.
        plan: The scheduler's plan for the partition, with its reasons.
        versions: Every record of the key that is on disk, oldest first.
        key: The key, as bytes; None: only the partition is explained.
        leases: Leases that keep tombstones, and leases that have lapsed.
        quarantine: Reason and time of the quarantine, or None.
        counted: The garbage, if no key is given, the topic is compacted, and the whole log can be read.
    """

    topic: str
    partition: int
    plan: Plan
    versions: tuple[Version, ...] = ()
    key: bytes | None = None
    leases: Leases = field(default_factory=Leases)
    quarantine: Quarantine | None = None
    counted: Counted | None = None

    def __str__(self) -> str:
        return "\n".join([*(str(version) for version in self.versions), self.verdict])

    @property
    def verdict(self) -> str:
        """Return whether the partition is due, in one sentence."""
        name, plan = f"{self.topic}-{self.partition}", self.plan
        if plan.action == "clean":
            return f"{name} is due: {str(plan).partition(': clean: ')[2]}"
        reason = plan.reasons[0] if plan.reasons else None
        if reason is None:
            return f"{name} is not due"
        if reason.code == NO_POLICY:
            return f"{name} is never cleaned: {reason.text}"
        if self.quarantine is not None:
            since = f" since {format_time(self.quarantine.time_ms)}" if self.quarantine.time_ms else ""
            return f"{name} is quarantined{since}: {reason.text}"
        closed = reason.code != ACTIVE_SEGMENT or plan.total_segments > 1
        return f"{name} is not due: {reason.text if closed else 'no closed segments'}"


def explain(
    view: PartitionView,
    config: TopicConfig,
    plan: Plan,
    *,
    key: bytes | None = None,
    now_ms: int,
    due_ms: Callable[[int], int | None] = lambda _: None,
) -> Explanation:
    """Explain every version of `key` in a partition; with None only the partition.

    Args:
        view: The partition.
        config: Its settings.
        plan: The scheduler's plan: of a `CleanRequest` with `due`.
        key: The key, or None.
        now_ms: The time.
        due_ms: Returns the time when the tombstone at an offset may be removed, by the clock of the garbage
            index; None: the tombstone has no clock.

    Raises:
        DataError: The log is damaged before the last version of the key.
    """
    versions: tuple[Version, ...] = ()
    quarantined = quarantine.load(view.files, view.directory)
    held = leases.load(view.files, view.directory, now_ms)
    if key is not None:
        versions = _Explainer(view, config, plan, quarantined, now_ms, due_ms, held).versions(key)
    return Explanation(view.topic, view.partition, plan, versions, key, held, quarantined)


# ---------------------------------------------------------------- finding the versions


@dataclass(frozen=True, slots=True)
class _KeyRecord:
    offset: int
    timestamp: int
    tombstone: bool
    header: BatchHeader
    segment: int  # number of the segment in the view


def _find(view: PartitionView, key: bytes) -> list[_KeyRecord]:
    """Return the records with this key, oldest first, with any transaction outcome."""
    walk = _plain if scan.is_short(view, view.log_start, view.log_end) else _bulk
    rows = list(walk(view, key))
    # The current bases: a rewrite may have replaced segments.
    bases = [segment.base_offset for segment in view.segments]
    return [_KeyRecord(*row, bisect_right(bases, row[0]) - 1) for row in rows]


def _plain(view: PartitionView, key: bytes) -> Iterator[tuple[int, int, bool, BatchHeader]]:
    start = view.log_start
    for segment, header, data in read_batches(view, start):
        if not header.control:
            for record in read_records(data, header, segment.file, position=0):
                if record.key == key and record.offset >= start:
                    yield record.offset, record.timestamp, record.value is None, header
        # A rewrite may join batches, so that a batch has records that were read and records that were not.
        start = max(start, header.next_offset)


def _bulk(view: PartitionView, key: bytes) -> Iterator[tuple[int, int, bool, BatchHeader]]:
    import numpy as np

    from lastword.records.columns import decode_columns

    reached = view.log_start
    for chunk in read_chunks(view, reached, view.log_end):
        columns = decode_columns(chunk)
        headers: dict[int, BatchHeader] = {}
        for i in np.flatnonzero(columns.key_length == len(key)).tolist():
            start = int(columns.key_position[i])
            offset = int(columns.offset[i])
            if offset >= reached and chunk.uncompressed[start : start + len(key)].tobytes() == key:
                tombstone = bool(columns.value_length[i] < 0)
                row = int(columns.row[i])
                header = headers[row] if row in headers else headers.setdefault(row, chunk.header(row))
                yield offset, int(columns.timestamp[i]), tombstone, header
        reached = max(reached, chunk.next_offset)


# ---------------------------------------------------------------- the rule of each version


@dataclass(frozen=True, slots=True)
class _Explainer:
    view: PartitionView
    config: TopicConfig
    plan: Plan
    quarantine: Quarantine | None
    now_ms: int
    due_ms: Callable[[int], int | None]
    leases: Leases

    def versions(self, key: bytes) -> tuple[Version, ...]:
        transactions = Outcomes(self.view, self.view.log_end)
        records = _find(self.view, key)
        outcomes = [transactions.of_header(key_record.header) for key_record in records]
        superseding_records: list[_KeyRecord | None] = [None] * len(records)
        newest: _KeyRecord | None = None
        for i in range(len(records) - 1, -1, -1):
            if outcomes[i] is BatchOutcome.COMMITTED:
                superseding_records[i], newest = newest, records[i]
        return tuple(
            self._version(key_record, outcome, superseding, records[:i] if superseding is None else ())
            for i, (key_record, outcome, superseding) in enumerate(
                zip(records, outcomes, superseding_records, strict=True)
            )
        )

    def _version(
        self,
        key_record: _KeyRecord,
        outcome: BatchOutcome,
        superseding: _KeyRecord | None,
        older: Sequence[_KeyRecord],
    ) -> Version:
        def rule(kept: bool, reason: str, text: str, until: int | None = None) -> Version:
            return Version(
                offset=key_record.offset,
                timestamp=key_record.timestamp,
                segment=self.view.segments[key_record.segment].base_offset,
                tombstone=key_record.tombstone,
                kept=kept,
                reason=reason,
                until=until,
                text=text,
                partition=self.view.partition,
                superseded_by=None if superseding is None else superseding.offset,
            )

        if outcome is BatchOutcome.UNDECIDED:
            return rule(
                True, UNDECIDED_TRANSACTION, f"{UNDECIDED_TRANSACTION}, neither committed nor aborted"
            )
        if outcome is BatchOutcome.ABORTED:
            return self._garbage(rule, ABORTED, key_record, key_record)
        if superseding is not None:
            return self._garbage(rule, f"superseded by {superseding.offset}", key_record, superseding)
        if key_record.tombstone:
            return self._tombstone(rule, key_record, older)
        return self._value(rule, key_record)

    def _value(self, rule: Rule, key_record: _KeyRecord) -> Version:
        """Explain a newest value: it stays, unless its time to live ends."""
        if self.config.lastword_ttl_ms < 0 or not self.config.compacts:
            return rule(True, NEWEST, NEWEST)
        record = next(
            iter(scan.records(self.view, key_record.offset, key_record.offset + 1, committed=False)), None
        )
        headers = () if record is None else record.headers
        at = expires_at(key_record.timestamp, headers, self.config.lastword_ttl_ms)
        if at == NEVER:
            return rule(True, NEWEST, f"{NEWEST}; no time to live")
        if at > self.now_ms:
            return rule(True, TTL, f"{NEWEST}; {TTL}: expires {format_time(at)}", at)
        return rule(True, TTL, f"{NEWEST}; {TTL}: expired {format_time(at)}, its tombstone is due", at)

    def _garbage(self, rule: Rule, cause: str, key_record: _KeyRecord, superseding: _KeyRecord) -> Version:
        if not self.config.compacts:
            return rule(True, NO_POLICY, f"{cause}; {NO_POLICY}, nothing is compacted")
        held = self._held(superseding.segment) or self._held(key_record.segment)
        if held is not None and key_record.tombstone and self._may_go(key_record):
            # The tombstone is removed for its age, independently of the superseding record.
            held = self._held(key_record.segment)
        if held is not None:
            code, text, until = held
            return rule(False, code, f"{cause}; {code}, {text}", until)
        return rule(False, NEXT_ROUND, f"{cause}; {NEXT_ROUND}")

    def _tombstone(self, rule: Rule, key_record: _KeyRecord, older: Sequence[_KeyRecord]) -> Version:
        if not self.config.compacts:
            return rule(True, NEWEST, f"{NEWEST}; {NO_POLICY}, nothing is compacted")
        wait = format_duration(self.config.delete_retention_ms)
        held = self._held(key_record.segment)
        may_go_ms, elsewhere = key_record.header.delete_horizon_ms, 0
        if self.plan.strategy == "generational":
            elsewhere = sum(copy.segment != key_record.segment for copy in older)
            may_go_ms = None if older else self.due_ms(key_record.offset)
        reason = self._held_by(key_record.offset, may_go_ms, has_older=elsewhere > 0)
        if reason == OLDER_RECORD:
            copies = "1 older copy" if elsewhere == 1 else f"{elsewhere} older copies"
            text = f"{OLDER_SEGMENT}, {copies} on disk: may go {wait} after the last copy is removed"
            return rule(True, OLDER_SEGMENT, f"{NEWEST}; {text}")
        if may_go_ms is None or (held is not None and held[0] != QUARANTINED):
            text = f"{TOMBSTONE_HORIZON}: may go {wait} after its first cleaning"
            return rule(True, TOMBSTONE_HORIZON, f"{NEWEST}; {text}")
        if reason == HORIZON:
            text = f"{TOMBSTONE_HORIZON}: may go at {format_time(may_go_ms)}"
            return rule(True, TOMBSTONE_HORIZON, f"{NEWEST}; {text}", may_go_ms)
        lowest = self.leases.lowest
        if reason == leases.LEASE and lowest is not None:
            text = f"{LEASE}: {lowest.name} is at {lowest.position}, lapses {_minute(lowest.lapses_ms)}"
            return rule(True, LEASE, f"{NEWEST}; {text}", lowest.lapses_ms)
        if reason == leases.PLACE:
            text = f"{LOG_END}: it is the newest record of the partition, which stays"
            return rule(True, LOG_END, f"{NEWEST}; {text}")
        if held is not None:
            code, text, until = held
            return rule(False, code, f"{TOMBSTONE_HORIZON} passed; {code}, {text}", until)
        when = f" {format_time(may_go_ms)}" if may_go_ms > 0 else ""  # 0: already marked as garbage
        return rule(False, NEXT_ROUND, f"{TOMBSTONE_HORIZON} passed{when}; {NEXT_ROUND}")

    def _may_go(self, key_record: _KeyRecord) -> bool:
        return self._held_by(key_record.offset, key_record.header.delete_horizon_ms) == MAY_GO

    def _held_by(self, offset: int, may_go_ms: int | None, *, has_older: bool = False) -> int:
        """Return the reason that keeps a tombstone (`leases.held_by`)."""
        horizon_ms, has_horizon = (0, False) if may_go_ms is None else (may_go_ms, True)
        newest = offset == self.view.log_end - 1
        facts = TombstoneFacts(offset, horizon_ms, has_horizon, has_older, ends_file=newest)
        return int(held_by(facts, self.now_ms, self.leases.floor))

    def _held(self, number: int) -> tuple[str, str, int | None] | None:
        """Return code, text and end of the rule that keeps a due cleaning from covering a segment."""
        segment = self.view.segments[number]
        if self.quarantine is not None:
            return QUARANTINED, self.quarantine.reason, None
        if segment is self.view.active and not self.plan.rolls_active:
            return self._rolls(segment)
        stable = self.view.stable_offset
        if segment.next_offset > stable:
            return UNDECIDED_TRANSACTION, f"one that began at {stable} is open", None
        cleanable = self.view.cleanable_offset
        if segment.next_offset > cleanable:
            return UNFINISHED_COMMIT, f"one that begins at {cleanable} is incomplete", None
        lag_ms = self.config.min_compaction_lag_ms
        if lag_ms > 0 and segment.next_offset > self.plan.start:
            stamp = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.mtime_ms
            if stamp > self.now_ms - lag_ms:
                return COMPACTION_LAG, f"until {_minute(stamp + lag_ms)}", stamp + lag_ms
        return None

    def _rolls(self, segment: Segment) -> tuple[str, str, int | None]:
        began = segment.first_timestamp
        age_ms = min(self.config.segment_ms, self.config.max_compaction_lag_ms)
        rolls_ms = began + age_ms if began >= 0 else NEVER
        if to_time(rolls_ms) is None:
            return ACTIVE_SEGMENT, f"rolls at {self.config.segment_bytes} bytes", None
        return ACTIVE_SEGMENT, f"rolls {_minute(rolls_ms)}", rolls_ms


Rule = Callable[..., Version]


def _minute(timestamp_ms: int) -> str:
    """Format a timestamp to the minute: `2026-11-27 10:02Z`."""
    when = to_time(timestamp_ms)
    return format_time(timestamp_ms) if when is None else when.strftime("%Y-%m-%d %H:%MZ")
