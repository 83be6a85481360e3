"""Records of key batches as rows of sections, shard by shard, and back."""

from __future__ import annotations

Row = tuple[int, int, int, int, bytes | None]
"""Hash, digest, offset, size with flags, key."""

SIZE_MASK = (1 << 32) - 1
ABORTED, DEAD_KEYLESS = 1 << 40, 1 << 41  # of a key batch
ROW_KEYLESS, ROW_ABORTED, ROW_DEAD_KEYLESS = 1 << 60, 1 << 61, 1 << 62


def divided(records: list[Row], shards: int) -> list[bytes]:
    """Return the section of each shard: its rows, then their keys."""
    rows, keys = [b""] * shards, [b""] * shards
    for hashed, digest, offset, size, key in records:
        word = size & SIZE_MASK
        word |= ROW_ABORTED if size & ABORTED else 0
        word |= ROW_DEAD_KEYLESS if size & DEAD_KEYLESS else 0
        if key is None:
            shard = offset % shards
            words = [0, 0, offset, word | ROW_KEYLESS]
        else:
            shard = ((hashed >> 32) * shards) >> 32
            words = [hashed, digest, offset, word | len(key) << 32]
            keys[shard] += key
        rows[shard] += b"".join(field.to_bytes(8, "little") for field in words)
    return [a + b for a, b in zip(rows, keys, strict=True)]


def joined(section: bytes, count: int, with_keyless: bool) -> list[Row]:
    """Return the records of a section of `count` rows."""
    records: list[Row] = []
    position = 32 * count
    for i in range(count):
        hashed, digest, offset, word = (
            int.from_bytes(section[at : at + 8], "little") for at in range(32 * i, 32 * i + 32, 8)
        )
        size = word & SIZE_MASK
        size |= ABORTED if word & ROW_ABORTED else 0
        size |= DEAD_KEYLESS if word & ROW_DEAD_KEYLESS else 0
        length = word >> 32 & ((1 << 28) - 1)
        if word & ROW_KEYLESS:
            if with_keyless:
                records.append((hashed, digest, offset, size, None))
            continue
        records.append((hashed, digest, offset, size, section[position : position + length]))
        position += length
    return records
