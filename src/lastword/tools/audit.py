"""`audit`: compare the newest logged offset of each key with the newest delivered offset.

    logged     delivered    the key is
    ------     ---------    ----------
    17         17           right
    17         -            missing, unless 17 is a tombstone: a consumer that applied it has no value
    17         12           stale
    17         20           phantom: delivered, but never logged as the newest of this key
    -          12           phantom, or gone: if the log was cleaned or trimmed above 12, its tombstone may
                            have been removed, which is not a fault

`delivered` is a mapping from key to offset, a table with columns `key` and `offset`, or another log (a
replica that is cleaned at other times keeps the same newest records).

Both sides are compared in shares of their keys' hashes, one after another, so the budget bounds the memory
for any number of keys. Each further share reads both sides again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lastword.partition.moment import Range
from lastword.partition.view import PartitionView
from lastword.state.newest import newest
from lastword.values import Value

Kind = Literal["missing", "stale", "phantom", "gone"]
KINDS: tuple[Kind, ...] = ("missing", "stale", "phantom", "gone")
FAULTS: tuple[Kind, ...] = ("missing", "stale", "phantom")

MAX_ROWS = 100_000
_BYTES_PER_KEY = 250  # of a Python dict with its key and two numbers


@dataclass(frozen=True, slots=True)
class AuditRow(Value):
    """A key whose offsets differ.

    `partition` is None if only the delivered side has the key and does not name its partition. An offset is
    None on the side that does not have the key.
    """

    topic: str
    partition: int | None
    key: bytes
    kind: Kind
    logged_offset: int | None
    delivered_offset: int | None

    def __str__(self) -> str:
        where = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        logged = "nothing" if self.logged_offset is None else str(self.logged_offset)
        delivered = "nothing" if self.delivered_offset is None else str(self.delivered_offset)
        return f"{self.kind:8}{where} {self.key!r}: logged {logged}, delivered {delivered}"


@dataclass(frozen=True, slots=True)
class Audit(Value):
    """The result of an audit.

    Attributes:
        ok: No key is missing, stale or phantom.
        counts: Exact number of keys of each kind, and of `right` keys.
        rows: The first keys that are not right, by share and partition.
        left_off: The number of other keys that are not right.
    """

    ok: bool
    counts: Mapping[str, int]
    rows: tuple[AuditRow, ...]
    left_off: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        return f"{'sound' if self.ok else 'not sound'}: {counts or 'no keys'}"


@dataclass(frozen=True, slots=True)
class DeliveredKey:
    """The delivered offset of a key. `tombstone`: the record is known to be a tombstone."""

    key: bytes
    offset: int
    partition: int | None = None
    tombstone: bool = False


@dataclass(frozen=True, slots=True)
class Delivered:
    """The delivered side.

    Attributes:
        count: An upper bound of its keys.
        rows: Yields the delivered keys; called once for each share of the keys.
    """

    count: int
    rows: Callable[[], Iterator[DeliveredKey]]


@dataclass(frozen=True, slots=True)
class Logged:
    """A partition of the log.

    Attributes:
        range: The records to compare.
        gone_below: A key whose newest record was below this offset may have been removed from the log.
    """

    range: Range
    gone_below: int

    @property
    def view(self) -> PartitionView:
        """Return the view of the partition."""
        return self.range.view


def audit(
    topic: str,
    logged: list[Logged],
    delivered: Delivered,
    *,
    memory_bytes: int,
    partition: int | None = None,
    partition_of: Callable[[bytes], int] | None = None,
    most_rows: int = MAX_ROWS,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Compare the log with the delivered offsets.

    A key in several partitions (of a topic whose partition count was raised) is compared in each of them. A
    key that is delivered without a partition is compared in every partition that has the key; if the key is
    also delivered with that partition, the newer offset counts.

    Args:
        topic: The topic.
        logged: The partitions to compare.
        delivered: The delivered side.
        memory_bytes: Memory budget, also of each key map.
        partition: Compare only this partition: delivered keys of other partitions are omitted. A key that is
            delivered without a partition and is not logged in this partition counts if `partition_of` returns
            this partition.
        partition_of: Returns the partition of a key.
        most_rows: The most rows of the result.
        progress: Receives (bytes done, total bytes).
    """
    shares = max(1, -(-delivered.count * _BYTES_PER_KEY // memory_bytes))
    total = sum(segment.size for part in logged for segment in part.view.segments)
    comparison = _Comparison(topic, most_rows)
    gone_below = {part.view.partition: part.gone_below for part in logged}
    everywhere = max(gone_below.values(), default=0)
    for share in range(shares):
        remaining = _newest_of(delivered, partition, share, shares)
        matched: set[bytes] = set()  # keys that are delivered without a partition and logged here
        done = total * share
        for part in logged:
            number = part.view.partition
            # With tombstones: an undelivered key whose newest record is a tombstone is not missing.
            records = newest(part.range, tombstones=True, map_bytes=memory_bytes)
            for record in records:
                key = record.key
                if key is None or (shares > 1 and zlib.crc32(key) % shares != share):
                    continue
                other, anywhere = remaining.pop((key, number), None), remaining.get((key, None))
                if anywhere is not None:
                    matched.add(key)
                    if other is None or other.offset < anywhere.offset:
                        other = anywhere
                if other is None:
                    if record.value is not None:
                        comparison.add(number, key, "missing", record.offset, None)
                    else:
                        comparison.right += 1
                elif other.offset == record.offset:
                    comparison.right += 1
                else:
                    kind: Kind = "stale" if other.offset < record.offset else "phantom"
                    comparison.add(number, key, kind, record.offset, other.offset)
            done += sum(segment.size for segment in part.view.segments)
            if progress is not None:
                progress(done, total * shares)
        for (key, at), delivered_key in remaining.items():
            if at is None and key in matched:
                continue
            elsewhere = partition_of is not None and partition_of(key) != partition
            if at is None and partition is not None and elsewhere:
                continue
            bound = everywhere if at is None else gone_below.get(at, 0)
            gone = delivered_key.tombstone or delivered_key.offset < bound
            comparison.add(at, key, "gone" if gone else "phantom", None, delivered_key.offset)
    return comparison.result()


def _newest_of(
    delivered: Delivered, partition: int | None, share: int, shares: int
) -> dict[tuple[bytes, int | None], DeliveredKey]:
    """Return one share of the delivered keys. If a key occurs twice, its newest offset counts."""
    newest_keys: dict[tuple[bytes, int | None], DeliveredKey] = {}
    for delivered_key in delivered.rows():
        if shares > 1 and zlib.crc32(delivered_key.key) % shares != share:
            continue
        if partition is not None and delivered_key.partition not in (None, partition):
            continue
        name = delivered_key.key, delivered_key.partition
        if name not in newest_keys or newest_keys[name].offset < delivered_key.offset:
            newest_keys[name] = delivered_key
    return newest_keys


class _Comparison:
    def __init__(self, topic: str, most_rows: int) -> None:
        self.topic = topic
        self.most_rows = most_rows
        self.right = 0
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.rows: list[AuditRow] = []

    def add(
        self, partition: int | None, key: bytes, kind: Kind, logged: int | None, delivered: int | None
    ) -> None:
        self.counts[kind] += 1
        if len(self.rows) < self.most_rows:
            self.rows.append(AuditRow(self.topic, partition, key, kind, logged, delivered))

    def result(self) -> Audit:
        ok = not any(self.counts[kind] for kind in FAULTS)
        counts = {"right": self.right, **self.counts}
        return Audit(ok, counts, tuple(self.rows), sum(self.counts.values()) - len(self.rows))
