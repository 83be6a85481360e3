"""The hash of a key, the hash of several spans, and the pair digest, in big integers."""

from __future__ import annotations

MASK = (1 << 64) - 1
NULL_KEY = 0x9E3779B97F4A7C15


def fold(a: int, b: int) -> int:
    product = a * b
    return (product & MASK) ^ (product >> 64)


def key_hash(key: bytes, seed0: int, seed1: int) -> int:
    def word(position: int) -> int:
        return int.from_bytes(key[position : position + 8], "little")

    state = seed0
    size = len(key)
    if size > 16:
        position = 0
        while size - position > 16:
            state = fold(word(position) ^ seed1, word(position + 8) ^ state)
            position += 16
        first, second = word(size - 16), word(size - 8)
    elif size >= 8:
        first, second = word(0), word(size - 8)
    else:
        first, second = word(0), 0
    return fold(seed1 ^ size, fold(first ^ seed1, second ^ state))


def pair_digest(key: bytes | None, offset: int, seed0: int, seed1: int) -> int:
    hashed = NULL_KEY if key is None else key_hash(key, seed0, seed1)
    return fold(hashed ^ seed0, offset ^ seed1)


def hash_spans(source: bytes, positions: list[int], lengths: list[int], seed0: int, seed1: int) -> list[int]:
    return [
        NULL_KEY if length < 0 else key_hash(source[position : position + length], seed0, seed1)
        for position, length in zip(positions, lengths, strict=True)
    ]
