"""CRC-32C bit by bit: reflected polynomial 0x82F63B78, all ones before and after."""

from __future__ import annotations

import functools


@functools.cache
def _of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


def crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state = _of_byte((state ^ byte) & 0xFF) ^ (state >> 8)
    return state ^ 0xFFFFFFFF
