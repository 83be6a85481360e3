"""Partitioners: which partition a key belongs to.

`murmur2` is the choice of Kafka's Java client (its DefaultPartitioner for records with a key), `crc32`
that of librdkafka's `consistent` partitioner: a topic shared with such a producer keeps every key in one
partition. A callable `fn(key: bytes, partitions: int) -> int` takes their place. Records without a key
never come here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from lastword.errors import UsageError, nearest

if TYPE_CHECKING:
    import numpy as np

Partitioner = Callable[[bytes, int], int]
PartitionerLike = str | Partitioner

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client, as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def by_murmur2(key: bytes, partitions: int) -> int:
    """Java's `toPositive(murmur2(key)) % partitions`: the sign bit is cleared, not negated."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def by_crc32(key: bytes, partitions: int) -> int:
    """librdkafka's `consistent`: the unsigned CRC-32 (zlib's) modulo the number of partitions."""
    return zlib.crc32(key) % partitions


PARTITIONERS: dict[str, Partitioner] = {"murmur2": by_murmur2, "crc32": by_crc32}


def partitioner_of(given: PartitionerLike) -> tuple[str | None, Partitioner]:
    """(name or None for a callable, function). UsageError for an unknown name."""
    if isinstance(given, str):
        found = PARTITIONERS.get(given)
        if found is None:
            near = nearest(given, PARTITIONERS)
            raise UsageError(
                f"unknown partitioner {given!r}" + (f"; nearest: {near}" if near else ""),
                remedy=f"one of {', '.join(PARTITIONERS)}, or a function of (key, partitions)",
            )
        return given, found
    if callable(given):
        return None, given
    raise UsageError(
        f"a partitioner is a name or a function, not {type(given).__name__}",
        remedy=f"one of {', '.join(PARTITIONERS)}, or a function of (key, partitions)",
    )


def choose(partitioner: Partitioner, key: bytes, partitions: int) -> int:
    """The partition of `key`, checked: a callable that answers outside 0..partitions-1 is refused."""
    if partitions == 1:
        return 0
    chosen = partitioner(key, partitions)
    if not isinstance(chosen, int) or not 0 <= chosen < partitions:
        raise UsageError(
            f"the partitioner answered {chosen!r} for {partitions} partitions",
            remedy=f"return an int from 0 to {partitions - 1}",
        )
    return chosen


def murmur2_columns(data: np.ndarray, positions: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`murmur2` of many keys at once: data uint8, key i = data[positions[i] : positions[i] + lengths[i]];
    uint32.

    One NumPy step per four bytes of the longest key, over the keys that are that long: no loop over keys.
    """
    import numpy as np

    m = np.uint32(_M)
    starts = positions.astype(np.int64, copy=False)
    lengths = lengths.astype(np.int64, copy=False)
    h = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    word_at = np.ndarray((data.size + 1,), "<u4", padded.data, strides=(1,))  # the four bytes from each on

    def word(at: np.ndarray) -> np.ndarray:
        return word_at[at].astype(np.uint32, copy=False)

    words = lengths >> 2
    for step in range(int(words.max(initial=0))):
        chosen = np.flatnonzero(words > step)
        k = word(starts[chosen] + 4 * step) * m
        k = (k ^ k >> np.uint32(24)) * m
        h[chosen] = h[chosen] * m ^ k
    rest = lengths & 3
    chosen = np.flatnonzero(rest > 0)
    if chosen.size:
        tail = word(starts[chosen] + 4 * words[chosen])
        keep = (np.uint32(1) << (rest[chosen] * 8).astype(np.uint32)) - np.uint32(1)
        h[chosen] = (h[chosen] ^ (tail & keep)) * m
    h = (h ^ h >> np.uint32(13)) * m
    return h ^ h >> np.uint32(15)
