"""Kafka's hash of a key for many keys at once: which partition each belongs to."""

from __future__ import annotations

from lastword.kernels import BAD_LENGTH, OK, inline, kernel
from lastword.kernels.memory import load8, load32

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@inline
def murmur2(data, position, size):
    """The 32-bit hash of `size` bytes, as Kafka's Java client has it; 0 to 2^32 - 1."""
    h = _SEED ^ size
    end = position + size
    while end - position >= 4:
        k = (load32(data, position) * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
        position += 4
    if position < end:
        shift = 0
        while position < end:
            h ^= load8(data, position) << shift
            shift += 8
            position += 1
        h = (h * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


@kernel
def murmur2_partitions(data, edges, partitions, chosen):
    """chosen[i] (int64) = the partition, of `partitions`, of the key data[edges[i]:edges[i + 1]].

    The hash's sign bit is cleared, as in Java's `toPositive`. BAD_LENGTH for edges that fall, or lie
    outside `data`: nothing was read there.
    """
    for i in range(chosen.size):
        first = edges[i]
        if first < 0 or edges[i + 1] < first or edges[i + 1] > data.size:
            return BAD_LENGTH
        chosen[i] = (murmur2(data, first, edges[i + 1] - first) & 0x7FFFFFFF) % partitions
    return OK
