"""Sums over records modulo 2^64."""

from __future__ import annotations

from collections.abc import Sequence, Set

from tests.naive.batches import Header
from tests.naive.columns import decode
from tests.naive.crc32c import crc32c
from tests.naive.hashing import MASK, fold, pair_digest
from tests.naive.pack import Record
from tests.naive.repack import joinable
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


def _mixed(digest: int, *values: int) -> int:
    for value in values:
        digest = fold(digest ^ value & MASK, _MIX1)
    return digest


def sum_batches(
    data: bytes, headers: Sequence[Header], dead: Set[int], retain: Sequence[int], horizon_ms: int
) -> tuple[int, int, list[int], list[int]]:
    """Return the sums that the output must have.

    These are (sum over batches, sum over control batches, ends, largest timestamps).
    """
    batches = controls = 0
    ends, largest = [0] * len(headers), [header.max_timestamp for header in headers]
    for row, (header, keep) in enumerate(zip(headers, retain, strict=True)):
        control = header.attributes & 0x20 != 0
        if control and keep == 2:
            continue
        records = decode(data, header)
        kept = records if control else [record for record in records if record.offset not in dead]
        attributes, base = header.attributes, header.base_timestamp
        if not kept and not control:
            timestamp = header.max_timestamp
            if records:
                attributes, base = attributes & ~0x47, -1
                timestamp = timestamp if header.producer_id >= 0 else -1
            if keep:
                digest = _of_batch(header, attributes, base)
                batches += _mixed(digest, header.base_offset, header.last_offset, timestamp)
            continue
        timestamp = header.max_timestamp
        horizon = base if attributes & 0x40 else 0
        clock = keep == 3 if control else any(record.value is None for record in kept)
        if clock and horizon_ms >= 0 and not attributes & 0x40 and records:
            attributes, horizon = attributes | 0x40, horizon_ms
            if control and not attributes & 8:
                timestamp = max(record.timestamp for record in records)
        digest = _of_batch(header, attributes, horizon)
        contents = sum_contents(kept)
        if control:
            controls += _mixed(digest, contents, header.count, timestamp)
        else:
            batches += contents * (digest | 1)
            ends[row] = int(joinable(header))
        if records and not attributes & 8:
            largest[row] = max(record.timestamp for record in records)
    return batches & MASK, controls & MASK, ends, largest


def _of_batch(header: Header, attributes: int, horizon: int) -> int:
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    digest = _mixed(_MIX0, attributes, 2, header.leader_epoch, *producer, horizon)
    return digest if joinable(header) else _mixed(digest, header.base_offset, header.last_offset)
