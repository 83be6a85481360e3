"""Zig-zag varints from the specification (Kafka log spec, record encoding)."""

from __future__ import annotations


class BadVarint(ValueError):
    pass


def read(data: bytes, position: int, end: int, groups: int) -> tuple[int, int]:
    """Return (value, position after it); `groups` is 5 for 32 bits, 10 for 64."""
    bits = 0
    for i in range(groups):
        if position >= end:
            raise BadVarint("ends inside")
        byte = data[position]
        position += 1
        bits |= (byte & 0x7F) << (7 * i)
        if byte < 128:
            bits &= (1 << (32 if groups == 5 else 64)) - 1
            return (bits >> 1) ^ -(bits & 1), position
    raise BadVarint("too many groups")


def write(value: int) -> bytes:
    bits = (value << 1) ^ (value >> 63)
    out = bytearray()
    while bits >= 128:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)
