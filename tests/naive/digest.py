"""Sums over records modulo 2^64."""

from __future__ import annotations

from collections.abc import Sequence, Set

from tests.naive.crc32c import crc32c
from tests.naive.keyhash import MASK, fold, pair_digest
from tests.naive.pack import Record
from tests.naive.varint import write

_MIX0 = 0xA0761D6478BD642F
_MIX1 = 0xE7037ED1A0B428DB
_MIX2 = 0x8EBC6AF09C88C6E3


def sum_pairs(records: Sequence[Record], seed0: int, seed1: int) -> int:
    return sum(pair_digest(record.key, record.offset, seed0, seed1) for record in records) & MASK


def _blob(data: bytes | None) -> bytes:
    return write(-1) if data is None else write(len(data)) + data


def sum_contents(records: Sequence[Record], dead: Set[int] = frozenset()) -> int:
    total = 0
    for record in records:
        if record.offset not in dead:
            tail = _blob(record.key) + _blob(record.value) + write(len(record.headers))
            for name, note in record.headers:
                tail += _blob(name) + _blob(note)
            mixed = fold(crc32c(tail) ^ _MIX0, record.offset ^ _MIX1)
            total += fold(mixed ^ _MIX1, (record.timestamp & MASK) ^ _MIX2)
    return total & MASK
