"""Dead records, found with a dict from keys to their newest record."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from tests.naive.batches import walk
from tests.naive.columns import decode
from tests.naive.hashing import MASK, pair_digest

CONTROL = 0x20
HORIZON = 0x40


@dataclass
class Facts:
    records: int = 0
    dead: set[int] = field(default_factory=set)
    digest: int = 0
    tombstones: int = 0
    tombstones_without_horizon: int = 0
    due_tombstones: int = 0
    keyless: int = 0
    aborted: int = 0


@dataclass(frozen=True)
class _Seen:
    key: bytes
    segment: int
    offset: int
    due: bool


def resolve(
    segments: Sequence[bytes],
    now_ms: int | None,
    seed0: int,
    seed1: int,
    *,
    aborted: Container[int] = (),
    undecided: Container[int] = (),
    name: Callable[[bytes], int | bytes] = bytes,
) -> tuple[list[Facts], dict[int | bytes, int]]:
    """Return the facts of each segment, and the newest offset of each key.

    `aborted`, `undecided`: base offsets of batches. `name`: the map's name of a key. Of keys with one name,
    the older records are subtracted from their segments' digests with the newest key.
    """
    facts = [Facts() for _ in segments]
    newest: dict[int | bytes, _Seen] = {}
    live: list[tuple[int, bytes | None, int, bool, bool]] = []
    superseded: list[_Seen] = []
    for index, data in enumerate(segments):
        headers, _, stopped = walk(data)
        assert stopped == "ok"
        for header in headers:
            if header.attributes & CONTROL:
                continue
            clocked = header.attributes & HORIZON != 0
            past = now_ms is not None and clocked and header.base_timestamp <= now_ms
            for record in decode(data, header):
                segment = facts[index]
                segment.records += 1
                if header.base_offset in aborted:
                    segment.dead.add(record.offset)
                    segment.aborted += 1
                if header.base_offset in aborted or header.base_offset in undecided:
                    continue
                if record.key is None:
                    segment.keyless += 1
                    if now_ms is not None:
                        segment.dead.add(record.offset)
                    else:
                        live.append((index, None, record.offset, record.value is None, False))
                    continue
                before = newest.get(name(record.key))
                if before is not None:
                    older = facts[before.segment]
                    older.dead.add(before.offset)
                    if before.due:
                        older.due_tombstones -= 1
                    else:
                        superseded.append(before)
                due = past and record.value is None
                if due:
                    segment.dead.add(record.offset)
                    segment.due_tombstones += 1
                newest[name(record.key)] = _Seen(record.key, index, record.offset, due)
                live.append((index, record.key, record.offset, record.value is None, not clocked))
    for index, key, offset, tombstone, unclocked in live:
        segment = facts[index]
        if offset not in segment.dead:
            segment.digest = (segment.digest + pair_digest(key, offset, seed0, seed1)) & MASK
            segment.tombstones += tombstone
            segment.tombstones_without_horizon += tombstone and unclocked and key is not None
    for before in superseded:
        facts[before.segment].digest += pair_digest(before.key, before.offset, seed0, seed1)
        newer = newest[name(before.key)].key
        facts[before.segment].digest -= pair_digest(newer, before.offset, seed0, seed1)
    for segment in facts:
        segment.digest &= MASK
    return facts, {key: seen.offset for key, seen in newest.items()}
