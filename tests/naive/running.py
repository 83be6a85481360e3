"""A log that grows and is rewritten; its facts are computed again from its bytes each time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.naive import offset_map
from tests.naive.batches import walk
from tests.naive.columns import decode
from tests.naive.hashing import MASK, pair_digest
from tests.naive.offset_map import CONTROL, HORIZON
from tests.naive.pack import Record, encode_batch


@dataclass
class Facts(offset_map.Facts):
    lowest_superseding: int | None = None


@dataclass
class Truth:
    facts: list[Facts]
    newest: dict[bytes, int]
    copies: Counter[bytes]
    tombstones: list[tuple[int, int, int]]  # offset, copies, horizon or -1


class Log:
    """A log and the decisions about its records.

    `segments`: the bytes of each. `aborted`: base offsets of batches of aborted transactions. `due`:
    tombstones that were declared dead. `killers`: offset of a record to that of the record that replaced it.
    `revived`: tombstones that were declared dead and are live again, as if their batches had a horizon.
    """

    def __init__(self) -> None:
        self.segments: list[bytes] = []
        self.aborted: set[int] = set()
        self.due: set[int] = set()
        self.revived: set[int] = set()
        self.killers: dict[int, int] = {}

    def truth(self, seed0: int, seed1: int) -> Truth:
        facts = [Facts() for _ in self.segments]
        newest: dict[bytes, int] = {}
        copies: Counter[bytes] = Counter()
        live: dict[int, tuple[int, bytes, int | None, bool]] = {}
        for index, data in enumerate(self.segments):
            segment = facts[index]
            for header in walk(data)[0]:
                if header.attributes & CONTROL:
                    continue
                horizon = header.base_timestamp if header.attributes & HORIZON else None
                for record in decode(data, header):
                    segment.records += 1
                    if record.key is not None:
                        copies[record.key] += 1
                    if header.base_offset in self.aborted:
                        segment.aborted += 1
                        segment.dead.add(record.offset)
                    elif record.key is None:
                        segment.keyless += 1
                        segment.dead.add(record.offset)
                    else:
                        before = newest.get(record.key)
                        if before is not None:
                            at, *_ = live.pop(before)
                            facts[at].dead.add(before)
                            self.killers.setdefault(before, record.offset)
                        newest[record.key] = record.offset
                        live[record.offset] = index, record.key, horizon, record.value is None
        truth = Truth(facts, newest, copies, [])
        for offset, (index, key, horizon, tombstone) in sorted(live.items()):
            segment = facts[index]
            if offset in self.due:
                segment.dead.add(offset)
                segment.due_tombstones += 1
                continue
            segment.digest = (segment.digest + pair_digest(key, offset, seed0, seed1)) & MASK
            if tombstone:
                segment.tombstones += 1
                segment.tombstones_without_horizon += horizon is None and offset not in self.revived
                truth.tombstones.append((offset, copies[key], -1 if horizon is None else horizon))
        for segment in facts:
            killers = [self.killers[offset] for offset in segment.dead if offset in self.killers]
            segment.lowest_superseding = min(killers, default=None)
        return truth

    def rewrite(self, first: int, last: int, dead: set[int]) -> bytes:
        """Rewrite segments `first` to `last` into one, without dead records and batches left empty."""
        kept = []
        for data in self.segments[first : last + 1]:
            for header in walk(data)[0]:
                if header.attributes & CONTROL:
                    kept.append(data[header.position : header.position + header.size])
                    continue
                left = [record for record in decode(data, header) if record.offset not in dead]
                if left:
                    kept.append(
                        encode_batch(
                            [Record(record.offset, 0, record.key, record.value) for record in left],
                            base_offset=header.base_offset,
                            last_offset=header.last_offset,
                            attributes=header.attributes,
                            base_timestamp=header.base_timestamp,
                        )
                    )
        self.segments[first : last + 1] = [b"".join(kept)]
        return self.segments[first]
