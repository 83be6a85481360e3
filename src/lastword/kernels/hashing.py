"""Hashes of keys: the salted hash of maps and digests, and Kafka's hash, which chooses the partition.

The salted hash reads two words a step, through one 64x64->128-bit multiply. Without its seeds no one can
construct keys that collide.
"""

from __future__ import annotations

import hashlib

import numpy as np

from lastword.kernels import BAD_LENGTH, NO_SLACK, OK, SLACK, inline, kernel
from lastword.kernels.memory import load8, load32, load64, multiply_fold


def seeds(salt: bytes, purpose: bytes) -> tuple[np.uint64, np.uint64]:
    """Return two seeds for `key_hash`; those of different purposes (at most 16 bytes) are independent."""
    digest = hashlib.blake2b(salt, digest_size=16, person=purpose).digest()
    first, second = np.frombuffer(digest, np.uint64)
    return np.uint64(first), np.uint64(second)


def digest_seeds(seed: int) -> tuple[np.uint64, np.uint64]:
    """Return the two seeds that a digest seed (any integer of 64 bits) stands for."""
    return seeds((seed & (1 << 64) - 1).to_bytes(8, "little"), b"lastword digest")


@inline
def key_hash(data, position, size, seed0, seed1):
    """Return the hash of data[position:position + size]; reads up to 7 bytes more, which have no effect."""
    state = seed0
    if size > 16:
        end = position + size
        while end - position > 16:
            state = multiply_fold(load64(data, position) ^ seed1, load64(data, position + 8) ^ state)
            position += 16
        first = load64(data, end - 16)
        second = load64(data, end - 8)
    elif size >= 8:
        first = load64(data, position)
        second = load64(data, position + size - 8)
    else:
        first = load64(data, position) & ((np.uint64(1) << np.uint64(8 * size)) - np.uint64(1))
        second = np.uint64(0)
    return multiply_fold(seed1 ^ np.uint64(size), multiply_fold(first ^ seed1, second ^ state))


NULL_KEY = np.uint64(0x9E3779B97F4A7C15)
"""The hash of a record without a key."""


@inline
def pair_digest(hashed_key, offset, seed0, seed1):
    """Return the digest of a (key, offset) pair; `hashed_key` was made with the same seeds."""
    return multiply_fold(hashed_key ^ seed0, np.uint64(offset) ^ seed1)


@kernel
def hash_spans(source, position, length, seed0, seed1, hashes):
    """Fill `hashes` (uint64) with the `key_hash` of each span of `source`, or `NULL_KEY` for a null span."""
    for i in range(position.size):
        size = length[i]
        if size < 0:
            hashes[i] = NULL_KEY
            continue
        at = position[i]
        if at < 0 or size > source.size - SLACK - at:
            return NO_SLACK
        hashes[i] = key_hash(source, at, size, seed0, seed1)
    return OK


_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@inline
def murmur2(data, position, size):
    """Return the 32-bit hash of `size` bytes, as Kafka's Java client computes it: 0 to 2^32 - 1."""
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
    """Fill `chosen` (int64) with the partition of each key data[edges[i]:edges[i + 1]].

    The sign bit of the hash is cleared, as in Java's `toPositive`. BAD_LENGTH for edges that decrease or are
    outside `data`; these bytes are not read.
    """
    for i in range(chosen.size):
        first = edges[i]
        if first < 0 or edges[i + 1] < first or edges[i + 1] > data.size:
            return BAD_LENGTH
        chosen[i] = (murmur2(data, first, edges[i + 1] - first) & 0x7FFFFFFF) % partitions
    return OK
