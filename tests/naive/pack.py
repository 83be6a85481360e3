"""Encoder of records and batches of magic 2, field by field."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lastword.records.batch import read_header, set_base_offset
from tests.naive.crc32c import crc32c
from tests.naive.varint import write


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def _blob(data: bytes | None) -> bytes:
    return write(-1) if data is None else write(len(data)) + data


def encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    delta = record.timestamp - base_timestamp
    delta = (delta + (1 << 63)) % (1 << 64) - (1 << 63)  # 64-bit arithmetic wraps
    body = b"\0" + write(delta) + write(record.offset - base_offset) + _blob(record.key) + _blob(record.value)
    body += write(len(record.headers))
    for name, value in record.headers:
        body += _blob(name) + _blob(value)
    return write(len(body)) + body


def seal(batch: bytes) -> bytes:
    """Set the length and the CRC of a batch."""
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def header(
    base_offset: int,
    last_offset: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    *,
    leader_epoch: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Return a header of 61 bytes with length and CRC 0."""
    return struct.pack(
        ">qiibIhiqqqhii",
        base_offset,
        0,
        leader_epoch,
        2,
        0,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    attributes: int = 0,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    leader_epoch: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    base = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    if base_timestamp is None:
        base_timestamp = records[0].timestamp if records else -1
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=-1)
    head = header(
        base,
        last,
        attributes,
        base_timestamp,
        max_timestamp,
        len(records),
        leader_epoch=leader_epoch,
        producer=producer,
    )
    return seal(head + b"".join(encode_record(record, base, base_timestamp) for record in records))


def pack(records: Sequence[Record], batch_bytes: int) -> list[bytes]:
    """Return batches of up to `batch_bytes`, each with base offset 0."""
    batches = []
    group: list[Record] = []
    for record in records:
        grown = [*group, record]
        if group and len(_relative(grown)) > batch_bytes:
            batches.append(_relative(group))
            grown = [record]
        group = grown
    if group:
        batches.append(_relative(group))
    return batches


def _relative(group: Sequence[Record]) -> bytes:
    return encode_batch([replace(record, offset=i) for i, record in enumerate(group)])


def rebase(buffer: bytearray, base_offset: int, leader_epoch: int) -> int:
    """Give the batches in `buffer` consecutive offsets, in place; return the next offset."""
    position = 0
    while position < len(buffer):
        set_base_offset(buffer, position, base_offset, leader_epoch)
        header = read_header(buffer, position, len(buffer), "")
        position, base_offset = header.end, header.next_offset
    return base_offset
