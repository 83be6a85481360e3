"""Decide whether a reader's result is allowed, by comparison with a dict for each moment of the read.

A *moment* of a partition is a sequence of records, an offset E and a log start: the newest committed record
of every key below E, among those at or above the log start. While a read runs, E is at least the stable
offset acknowledged before the read began, and at most the stable offset left by the call in progress at its
end. A state reads up to the log end, without the records that are undecided then: its E is a log end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, product
from typing import Any, NamedTuple

from lastword.errors import (
    BusyError,
    CorruptBatchError,
    FileVanishedError,
    InconsistentTopicIdError,
    LastwordError,
    NotAPartitionError,
    OffsetOutOfRangeError,
    SnapshotRefusedError,
    UnknownMagicError,
    UnknownTopicError,
)
from tests.readers.history import Ends, Lineage, PartitionHistory, Written


class Violation(AssertionError):
    """A result that is not allowed at any moment of the read. `rule` is the name of the broken rule."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


class Row(NamedTuple):
    """A record as a reader returned it; None for fields that the reader does not return."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None


class Lifetimes(NamedTuple):
    """The values that a state hides: those expired when the read began, and perhaps those up to its end."""

    topic_ttl_ms: int = -1
    begin_ms: float = -math.inf
    end_ms: float = -math.inf


class Window:
    """One partition between the versions at which a read began and ended."""

    def __init__(self, partition: PartitionHistory, first: int, last: int, committed: bool = True) -> None:
        self.partition = partition
        self.first = first
        self.last = last
        self.calls = partition.calls(first, last)
        self.committed = committed
        self.lines: dict[int, list[Ends]] = {}
        for ends in self.calls:
            self.lines.setdefault(ends.lineage, []).append(ends)

    def end_of(self, ends: Ends) -> int:
        return ends.stable if self.committed else ends.log_end

    @property
    def lowest_end(self) -> int:
        return self.end_of(self.calls[0])

    @cached_property
    def log_starts(self) -> list[int]:
        return sorted({ends.log_start for ends in self.calls})

    @cached_property
    def highest_ends(self) -> dict[int, int]:
        """Return the highest end of each lineage."""
        return {number: max(map(self.end_of, calls)) for number, calls in self.lines.items()}

    @property
    def is_one_line(self) -> bool:
        return len(self.lines) == 1

    # ---- one moment

    def check_moment(
        self,
        shown: Mapping[bytes, Any],
        *,
        tombstones: bool,
        keys: Collection[bytes] | None = None,
        values: bool = False,
        end: int | None = None,
        forgotten: bool = False,
        start: int | None = None,
        is_state: bool = False,
        lifetimes: Lifetimes = Lifetimes(),
    ) -> None:
        """Check that `shown` is the state of one moment.

        Args:
            shown: The offset of each key; with `values` the value of each key.
            end: The range ended at this offset, so only E = `end` is allowed.
            forgotten: The mapping was filled earlier. It may still have keys whose tombstone was removed
                from the log, and keys that are below the log start now.
            start: The range began at this offset; records below it do not count.
            is_state: The range ended at the log end, without the undecided records.
            lifetimes: The values that the mapping hides, or may hide.
        """
        if not self.is_one_line:
            # During a truncation a reader may find an end between the two. The cleaning may have removed
            # records because of newer records that are truncated, so the result equals no moment.
            self._check_written(shown, values)
            return
        nearest: tuple[int, str] | None = None
        for number, calls in self.lines.items():
            lineage = self.partition.lineages[number]
            lowest, highest = self.end_of(calls[0]), self.highest_ends[number]
            hidden = {frozenset[int]()}
            if is_state:
                lowest, highest = calls[0].log_end, max(ends.log_end for ends in calls)
                hidden = {ends.undecided for ends in calls}
            if end is not None:
                lowest = highest = end
            gone = self.partition.removed_up_to(self.last, number)
            before: tuple[int, dict[bytes, int]] | None = None
            for log_start in {ends.log_start for ends in calls}:
                floor = max(log_start, start or 0)
                for undecided, moment in product(hidden, range(lowest, highest + 1)):
                    newest = lineage.newest(moment, undecided)
                    if before is not None and before[0] == floor and before[1] is newest:
                        continue
                    before = floor, newest
                    wrong = _difference(
                        lineage, newest, floor, shown, tombstones, keys, values, gone, forgotten, lifetimes
                    )
                    if not wrong:
                        return
                    if nearest is None or len(wrong) < nearest[0]:
                        text = f"at E={moment}, log start {log_start}, line {number}: {'; '.join(wrong[:4])}"
                        nearest = len(wrong), text
        ends = f"E in [{self.lowest_end}, {max(map(self.end_of, self.calls))}]" if end is None else f"E={end}"
        raise Violation("no moment", f"{ends}; nearest {nearest[1] if nearest else '-'}")

    def check_presence(self, key: bytes, is_present: bool) -> None:
        """Check that a key has a value at one moment, or that it has none."""
        if not is_present:
            self.check_moment({}, tombstones=False, keys=[key])
            return
        wrong: Violation | None = None
        lines = (self.partition.lineages[number].records.values() for number in self.lines)
        for offset in sorted({record.offset for line in lines for record in line if record.key == key}):
            try:
                self.check_moment({key: offset}, tombstones=False, keys=[key])
                return
            except Violation as violation:
                wrong = violation
        raise wrong or Violation("never written", f"{key!r} is present")

    def _check_written(self, shown: Mapping[bytes, Any], values: bool) -> None:
        lines = [self.partition.lineages[number].records for number in self.lines]
        for key, given in shown.items():
            if not any(
                (record.value if values else offset) == given and record.key == key
                for records in lines
                for offset, record in records.items()
            ):
                raise Violation("never written", f"{key!r} is {given!r}")

    # ---- each record once

    def check_log(self, rows: Sequence[Row], *, start: int | None = None, end: int | None = None) -> None:
        """Check that the rows are the surviving records of the range, each once, ascending and unchanged."""
        offsets = [row.offset for row in rows]
        for before, after in pairwise(offsets):
            if after <= before:
                raise Violation("goes back", f"offset {after} after {before}")
        for row in rows:
            self.check_row(row, start, end)
        self.check_complete(set(offsets), max(offsets, default=-1), start=start, end=end)

    def check_one_topic(self, rows: Sequence[Row]) -> None:
        """Check that the rows are of one topic, not of a topic and of the next one of the same name."""
        first = self.partition.topics
        for number, end in zip(first, [*first[1:], len(self.partition.lineages)], strict=True):
            lineages = [self.partition.lineages[n] for n in range(number, end) if n in self.lines]
            if len(first) == 1 or all(any(_holds(lineage, row) for lineage in lineages) for row in rows):
                return
        raise Violation("two topics", f"offsets {[row.offset for row in rows]}")

    def check_row(self, row: Row, start: int | None = None, end: int | None = None) -> None:
        """Check that the row is an existing record which may be returned."""
        if (start is not None and row.offset < start) or (end is not None and row.offset >= end):
            raise Violation("outside", f"offset {row.offset} is outside of [{start}, {end})")
        if row.offset < self.log_starts[0]:
            raise Violation("below the log start", f"offset {row.offset}, log start {self.log_starts[0]}")
        reasons = []
        for number, end_of_line in self.highest_ends.items():
            # After a truncation an equal record may be written at the same offset, so it is enough if one
            # lineage allows the row.
            reason = self._refused(row, number, end_of_line)
            if reason is None:
                return
            reasons.append(reason)
        rule, text = min(reasons, key=lambda reason: reason[0] == "never written")
        raise Violation(rule, text)

    def _refused(self, row: Row, number: int, end: int) -> tuple[str, str] | None:
        """Return the broken rule and a text, if a lineage does not allow a row."""
        lineage = self.partition.lineages[number]
        record = lineage.records.get(row.offset)
        if record is None:
            return "never written", f"offset {row.offset}, {row}: was never written"
        if not _same(record, row):
            return "never written", f"offset {row.offset}, {row}: was written as {record}"
        if self.committed and row.offset in lineage.aborted:
            return "aborted", f"offset {row.offset} belongs to an aborted transaction"
        if row.offset >= end:
            return "above the end", f"offset {row.offset} was shown too early"
        if row.offset in self.partition.removed_before(self.first, number):
            return "removed", f"offset {row.offset} was removed before the read began"
        return None

    def survivors(self) -> dict[int, Written]:
        """Return the records in the log at the end of the read, in each lineage of the window."""
        survivors: dict[int, Written] | None = None
        for number in self.lines:
            lineage = self.partition.lineages[number]
            gone = self.partition.removed_up_to(self.last, number)
            hidden = lineage.aborted if self.committed else ()
            left = {o: r for o, r in lineage.records.items() if o not in gone and o not in hidden}
            if survivors is not None:
                left = {o: r for o, r in left.items() if survivors.get(o) == r}
            survivors = left
        log_start = self.log_starts[-1]
        return {o: r for o, r in (survivors or {}).items() if o >= log_start}

    def check_complete(
        self,
        offsets: Collection[int],
        reached: int,
        *,
        start: int | None = None,
        end: int | None = None,
        wanted: Iterable[int] | None = None,
    ) -> None:
        upto = max(
            min(self.end_of(calls[0]) for calls in self.lines.values()),
            reached + 1 if self.is_one_line else 0,
        )
        if end is not None:
            upto = min(upto, end)
        survivors = self.survivors() if wanted is None else wanted
        missing = [o for o in survivors if (start or 0) <= o < upto and o not in offsets]
        if missing:
            raise Violation(
                "missing", f"{len(missing)} surviving records, the first {min(missing)}, below {upto}"
            )

    # ---- errors

    def check_error(
        self, error: BaseException, *, start: int | None = None, end: int | None = None, as_of: bool = False
    ) -> None:
        """Check that a read may raise this error during the window."""
        if self.partition.absent(self.first, self.last) and isinstance(
            error,
            (
                UnknownTopicError,
                NotAPartitionError,
                FileVanishedError,
                InconsistentTopicIdError,
                OffsetOutOfRangeError,
            ),
        ):
            return
        if isinstance(error, (BusyError, SnapshotRefusedError)):
            return
        if isinstance(error, (CorruptBatchError, UnknownMagicError)) and not self.is_one_line:
            return  # the file was truncated, and appended to, while it was read
        if isinstance(error, OffsetOutOfRangeError):
            begins = self.log_starts[0] if start is None else start
            if self.log_starts[-1] > begins or not self.is_one_line:
                return
            if end is not None and as_of and end < self.partition.cleaned_up_to(self.last):
                return
            if end is not None and end < self.log_starts[-1]:
                return
            raise Violation("refused", f"{error} (log starts {self.log_starts}, range [{start}, {end}))")
        if isinstance(error, LastwordError):
            raise Violation(type(error).__name__, str(error.message))
        raise Violation("raw error", f"{type(error).__name__}: {error}")


def _holds(lineage: Lineage, row: Row) -> bool:
    record = lineage.records.get(row.offset)
    return record is not None and _same(record, row)


def _same(record: Written, row: Row) -> bool:
    return (
        (record.key, record.value) == (row.key, row.value)
        and (row.timestamp is None or row.timestamp == record.timestamp)
        and (row.headers is None or row.headers == record.headers)
    )


def _difference(
    lineage: Lineage,
    newest: Mapping[bytes, int],
    log_start: int,
    shown: Mapping[bytes, Any],
    tombstones: bool,
    keys: Collection[bytes] | None,
    values: bool,
    gone: frozenset[int],
    forgotten: bool,
    lifetimes: Lifetimes,
) -> list[str]:
    """Return the differences between the shown offsets (or values) and a moment; empty if there are none."""
    wrong = []
    records = lineage.records
    expires = lifetimes.topic_ttl_ms >= 0

    def has_expired(record: Written, now_ms: float) -> bool:
        return expires and record.expiry(lifetimes.topic_ttl_ms) <= now_ms

    for key, offset in newest.items():
        if offset < log_start or (keys is not None and key not in keys):
            if key in shown and not (forgotten and shown[key] == records[offset].value):
                wrong.append(f"{key!r} is shown, its newest {offset} is not in the range")
            continue
        record = records[offset]
        if record.value is None and not tombstones:
            if key in shown and not (forgotten and offset in gone):
                wrong.append(f"{key!r} is shown, and was deleted at {offset}")
            continue
        if key not in shown:
            may_hide = offset in gone if record.value is None else has_expired(record, lifetimes.end_ms)
            if not may_hide:
                wrong.append(f"{key!r} is not shown, its newest is {offset}")
        elif record.value is not None and has_expired(record, lifetimes.begin_ms):
            wrong.append(f"{key!r} is shown, its newest {offset} has expired")
        elif shown[key] != (record.value if values else offset):
            wrong.append(f"{key!r} is {shown[key]!r}, its newest is {offset}, {record.value!r}")
    wrong += [f"{key!r} is shown, and has no record" for key in shown if key not in newest]
    return wrong
