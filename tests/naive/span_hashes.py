"""Hashes of spans, one after another."""

from __future__ import annotations

from tests.naive.keyhash import NULL_KEY, key_hash


def hash_spans(source: bytes, positions: list[int], lengths: list[int], seed0: int, seed1: int) -> list[int]:
    return [
        NULL_KEY if length < 0 else key_hash(source[position : position + length], seed0, seed1)
        for position, length in zip(positions, lengths, strict=True)
    ]
