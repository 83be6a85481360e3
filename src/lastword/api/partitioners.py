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
    import pyarrow as pa

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


def murmur2_partitions(keys: pa.Array, partitions: int) -> np.ndarray:
    """`by_murmur2` of many keys at once: int64, one of each key of an Arrow binary or string array; -1 where
    there is none."""
    import numpy as np

    from lastword import kernels
    from lastword.kernels.hashing import murmur2_partitions as loop

    chosen = np.empty(len(keys), np.int64)
    _, edges, data = keys.buffers()
    if len(keys) == 0 or edges is None:
        return chosen
    content = np.frombuffer(data if data is not None and data.size else b"\0", np.uint8)
    ends = np.frombuffer(edges, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    content.flags.writeable = ends.flags.writeable = False  # one kind of array: one compiled kernel
    if loop(content, ends, partitions, chosen) != kernels.OK:
        raise ValueError("the array's offsets lie outside its data")
    if keys.null_count:
        chosen[np.asarray(keys.is_null())] = -1
    return chosen
