"""Salted 64-bit hash of a key, and the digest of (key, offset) pairs that certificates sum up.

Two words a round go through one 64x64->128-bit multiply. Without the seeds nobody can choose keys that meet.
"""

from __future__ import annotations

import hashlib

import numpy as np

from lastword.kernels import inline
from lastword.kernels.memory import load64, multiply_fold


def seeds(salt: bytes, purpose: bytes) -> tuple[np.uint64, np.uint64]:
    """Two seeds for `key_hash`; those of different purposes (at most 16 bytes) are independent."""
    digest = hashlib.blake2b(salt, digest_size=16, person=purpose).digest()
    first, second = np.frombuffer(digest, np.uint64)
    return np.uint64(first), np.uint64(second)


def digest_seeds(seed: int) -> tuple[np.uint64, np.uint64]:
    """The two seeds behind a digest seed (any integer of 64 bits)."""
    return seeds((seed & (1 << 64) - 1).to_bytes(8, "little"), b"lastword digest")


@inline
def key_hash(data, position, size, seed0, seed1):
    """Hash of data[position:position + size]; reads up to 7 bytes more, which do not count."""
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
"""Stands for the hash of a record without a key."""


@inline
def pair_digest(hashed_key, offset, seed0, seed1):
    """What one (key, offset) adds to a digest; `hashed_key` was made with the same seeds."""
    return multiply_fold(hashed_key ^ seed0, np.uint64(offset) ^ seed1)
