"""Spans of a buffer as a list."""

from __future__ import annotations


def gather(source: bytes, positions: list[int], lengths: list[int]) -> list[bytes | None]:
    return [
        None if length < 0 else source[position : position + length]
        for position, length in zip(positions, lengths, strict=True)
    ]
