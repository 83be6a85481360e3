"""Records of key batches as rows of sections, shard by shard, and back."""

from __future__ import annotations

Row = tuple[int, int, bytes | None]
"""Offset, size with flags, key."""

SIZE_MASK = (1 << 32) - 1
ABORTED, DEAD_KEYLESS = 1 << 40, 1 << 41  # of a key batch
ROW_KEYLESS, ROW_ABORTED, ROW_DEAD_KEYLESS = 1, 2, 4
LONG = 255
HashRow = tuple[int, int, bool, int, int]
"""Offset, size with flags, whether there is a key, its low 24 bits of the map's hash, its digest hash."""


def divided(records: list[tuple[int, Row]], shards: int) -> list[list[bytes]]:
    """Return the rows of each shard; a record has the hash of its key beside it."""
    rows: list[list[bytes]] = [[] for _ in range(shards)]
    before: list[int | None] = [None] * shards
    for hashed, (offset, size, key) in records:
        shard = offset % shards if key is None else ((hashed >> 32) * shards) >> 32
        rows[shard].append(row(offset, size, key, before[shard]))
        before[shard] = offset
    return rows


def row(offset: int, size: int, key: bytes | None, before: int | None) -> bytes:
    """Return a row; `before` is the offset of the row before it in the section."""
    if before is not None and key is not None and len(key) < LONG:
        delta = offset - before
        if 0 < delta < 1 << 16 and size < 1 << 16:
            return delta.to_bytes(2, "little") + size.to_bytes(2, "little") + bytes([len(key)]) + key
    flags = flags_of(size, keyless=key is None)
    key = key or b""
    numbers = ((flags, 2), (0, 2), (LONG, 1), (offset, 8), (size & SIZE_MASK, 4), (len(key), 4))
    return b"".join(number.to_bytes(size, "little") for number, size in numbers) + key


def flags_of(size: int, *, keyless: bool) -> int:
    flags = ROW_KEYLESS if keyless else 0
    flags |= ROW_ABORTED if size & ABORTED else 0
    return flags | (ROW_DEAD_KEYLESS if size & DEAD_KEYLESS else 0)


def hash_row(row: HashRow, before: int | None) -> bytes:
    """Return a row of hashes; `before` is the offset of the row before it in the section."""
    offset, size, keyed, low, digest = row
    hashes = digest.to_bytes(8, "little") + low.to_bytes(3, "little")
    if before is not None and keyed and 0 < offset - before < 1 << 12 and size < 1 << 12:
        return hashes + (offset - before | size << 12).to_bytes(3, "little")
    flags = flags_of(size, keyless=not keyed) << 12
    numbers = ((flags, 3), (offset, 8), (size & SIZE_MASK, 4))
    return hashes + b"".join(number.to_bytes(size, "little") for number, size in numbers)


def joined(section: bytes, with_keyless: bool) -> list[Row]:
    """Return the records of a section."""
    records: list[Row] = []
    position = offset = 0

    def take(size: int) -> int:
        nonlocal position
        position += size
        return int.from_bytes(section[position - size : position], "little")

    while position < len(section):
        delta, size, length, flags = take(2), take(2), take(1), 0
        if length == LONG:
            flags, offset, size, length = delta, take(8), take(4), take(4)
        else:
            offset += delta
        size |= ABORTED if flags & ROW_ABORTED else 0
        size |= DEAD_KEYLESS if flags & ROW_DEAD_KEYLESS else 0
        key = section[position : position + length]
        position += length
        if not flags & ROW_KEYLESS:
            records.append((offset, size, key))
        elif with_keyless:
            records.append((offset, size, None))
    return records
