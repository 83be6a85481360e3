"""Reading of the batch headers of a buffer, with every check that comes before a record is read."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import google_crc32c

from tests.naive.crc32c import crc32c


@dataclass(frozen=True)
class Header:
    position: int
    size: int
    base_offset: int
    last_offset: int
    attributes: int
    count: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int
    crc: int


def walk(data: bytes, next_offset: int = 0) -> tuple[list[Header], int, str]:
    """Return (headers, position reached, reason to stop): "ok", "more" or the name of the damage."""
    headers = []
    position = 0
    while position < len(data):
        rest = data[position:]
        if len(rest) < 17:
            return headers, position, "more"
        (length,) = struct.unpack_from(">i", rest, 8)
        if length < 14:
            return headers, position, "length"
        if rest[16] > 2:
            return headers, position, "magic"
        if rest[16] == 2 and length < 49:
            return headers, position, "length"
        if len(rest) < length + 12:
            return headers, position, "more"
        if rest[16] < 2:
            header, damage = _old_entry(rest[: length + 12], position, next_offset)
            if header is None:
                return headers, position, damage
            headers.append(header)
            next_offset = header.last_offset + 1
            position += header.size
            continue
        batch = rest[: length + 12]
        base, _, epoch, _, crc, attributes, delta, first, largest, pid, pepoch, sequence, count = (
            struct.unpack_from(">qiibIhiqqqhii", batch)
        )
        if crc32c(batch[21:]) != crc:
            return headers, position, "crc"
        if base < next_offset or delta < 0 or base + delta + 1 >= 1 << 63:
            return headers, position, "offset"
        if count < 0 or count > delta + 1 or (attributes & 7 == 0 and count * 7 > len(batch) - 61):
            return headers, position, "count"
        headers.append(
            Header(
                position,
                len(batch),
                base,
                base + delta,
                attributes,
                count,
                first,
                largest,
                pid,
                pepoch,
                sequence,
                epoch,
                crc,
            )
        )
        next_offset = base + delta + 1
        position += len(batch)
    return headers, position, "ok"


def _old_entry(entry: bytes, position: int, next_offset: int) -> tuple[Header | None, str]:
    """Return the header of an entry of magic 0 or 1.

    A wrapper counts -1 records; its first offset is not searched for.
    """
    magic, attributes = entry[16], entry[17] & (7 if entry[16] == 0 else 15)
    if len(entry) < (26, 34)[magic]:
        return None, "length"
    offset = int.from_bytes(entry[:8], "big", signed=True)
    crc = int.from_bytes(entry[12:16], "big")
    if zlib.crc32(entry[16:]) != crc:
        return None, "crc"
    if offset < next_offset or offset == (1 << 63) - 1:
        return None, "offset"
    if attributes & 7 > 3:
        return None, "record"
    timestamp = int.from_bytes(entry[18:26], "big", signed=True) if magic else -1
    count = -1 if attributes & 7 else 1
    fields = (offset, offset, attributes, count, timestamp, timestamp, -1, -1, -1, -1, crc)
    return Header(position, len(entry), *fields), ""


def most_plain_bytes(batch: bytes) -> int | None:
    """Return the most bytes that a batch's records can have when decompressed; None for cut zstd frames."""
    codec = batch[22 if batch[16] == 2 else 17] & 7
    if codec != 4:
        return len(batch) * {0: 1, 1: 1032, 2: 64, 3: 255}[codec]
    position, most, end = 61, 0, len(batch)
    while end - position >= 9:
        if batch[position : position + 4] != b"\x28\xb5\x2f\xfd":
            return None
        flags = batch[position + 4]
        single = bool(flags & 0x20)
        position += 5 + (not single) + (0, 1, 2, 4)[flags & 3] + (1 if single else 0, 2, 4, 8)[flags >> 6]
        last = False
        while not last:
            if end - position < 3:
                return None
            head = int.from_bytes(batch[position : position + 3], "little")
            last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
            position += 3 + (1 if kind == 1 else size)
            most += 128 << 10 if kind == 2 else size
        position += flags & 4
    return most if position == end else None


def is_plain_zstd(frame: bytes) -> bool:
    """Return whether this is one whole frame of zstd without content size, checksum and dictionary."""
    if len(frame) < 9 or frame[:5] != b"\x28\xb5\x2f\xfd\0":
        return False
    blocks, last = frame[6:], False
    while not last and len(blocks) >= 3:
        head = int.from_bytes(blocks[:3], "little")
        size = 1 if head >> 1 & 3 == 1 else head >> 3
        if len(blocks) < 3 + size:
            return False
        blocks, last = blocks[3 + size :], bool(head & 1)
    return last and not blocks


MOST = 2**63 - 1


def assign_offsets(batches: list[bytes], next_offset: int, epoch: int) -> tuple[int, list[bytes]]:
    """Return the number of sound batches at the start, and the batches.

    If all are sound, the batches returned have their new offsets; else they are unchanged.
    """
    placed = []
    for number, data in enumerate(batches):
        if len(data) < 61:
            return number, batches
        _, length, _, magic, crc, _, delta, _, _, producer, _, _, count = struct.unpack_from(
            ">qiibIhiqqqhii", data
        )
        if (
            length != len(data) - 12
            or magic != 2
            or delta < 0
            or count < 0
            or producer != -1
            or next_offset + delta > MOST - 1
            or crc != google_crc32c.value(data[21:])
        ):
            return number, batches
        placed.append(struct.pack(">qii", next_offset, length, epoch) + data[16:])
        next_offset += delta + 1
    return len(batches), placed
