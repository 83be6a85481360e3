"""`audit`: per key, the newest offset that was logged against the newest that was delivered.

    logged     delivered    the key is
    ------     ---------    ----------
    17         17           right
    17         -            missing, unless 17 is a tombstone: who applied it holds nothing any more
    17         12           stale
    17         20           phantom: delivered, and never logged as this key's newest
    -          12           phantom, or gone: where the log was cleaned or trimmed above 12, its tombstone may
                            have gone with it, which is no fault

`delivered` is whatever names a key and an offset: a mapping, a table with columns `key` and `offset`, or
another log (a replica that is cleaned at other times keeps the same newest records).

Both sides are looked at in shares of their keys' hashes, one after another, so memory is bounded by the
budget whatever the number of keys; each further share reads both sides once more.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

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
    """One key that is not right. `partition` is None where only the delivered side knows the key and does
    not say; offsets are None on the side that has none."""

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
    """The result. `counts` are exact and name every kind, and `right`; `rows` are the first of them, by
    share and partition, `left_off` the number that did not find room."""

    ok: bool
    counts: Mapping[str, int]
    rows: tuple[AuditRow, ...]
    left_off: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        return f"{'sound' if self.ok else 'not sound'}: {counts or 'no keys'}"


@dataclass(frozen=True, slots=True)
class DeliveredKey:
    """What one key's consumer has: `tombstone` if it is known to hold a deletion."""

    key: bytes
    offset: int
    partition: int | None = None
    tombstone: bool = False


class Delivered(Protocol):
    """The other side. `rows` may be asked for several times; `count` bounds the number of its keys."""

    @property
    def count(self) -> int: ...
    def rows(self) -> Iterator[DeliveredKey]: ...


@dataclass(frozen=True, slots=True)
class Logged:
    """One partition of the log: what `range` shows is compared.

    gone_below   a key whose newest record lay below may have left the log
    """

    range: Range
    gone_below: int

    @property
    def view(self) -> PartitionView:
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
    """Compare; `progress` hears (bytes, bytes in all). A key that lies in several partitions (a topic whose
    partition count was raised) counts in each where it is not the newest of the delivered one. What is
    delivered without a partition counts in every one where its key is logged; of two the newest.

    partition   only this one was asked for: what the delivered side says of another is left out. A key whose
                partition it does not say and that is not logged here counts if `partition_of` gives this one
    """
    shares = max(1, -(-delivered.count * _BYTES_PER_KEY // memory_bytes))
    total = sum(segment.size for part in logged for segment in part.view.segments)
    comparison = _Comparison(topic, most_rows)
    gone_below = {part.view.partition: part.gone_below for part in logged}
    everywhere = max(gone_below.values(), default=0)
    for share in range(shares):
        remaining = _newest_of(delivered, partition, share, shares)
        matched: set[bytes] = set()  # of keys whose partition the delivered side does not say
        done = total * share
        for part in logged:
            number = part.view.partition
            # Tombstones too: a key whose newest record is one is not missing where it is absent.
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
    """One share of the delivered keys. Of a key that is there twice the newest counts."""
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
