"""Zig-zag varints: small numbers of either sign in few bytes.

    0 → 00   -1 → 01   1 → 02   63 → 7e   64 → 80 01   -64 → 7f   -65 → 81 01

Seven bits a byte, lowest first, the top bit says that more follow. 32 bits take at most 5 bytes, 64 bits at
most 10.
"""

from __future__ import annotations

from typing import Any


def encode(number: int) -> bytes:
    """Bytes of a varint (32 bits) or varlong (64 bits): the encoding is the same, only the range differs."""
    if -64 <= number < 8192:
        return _SMALL[number + 64]
    return _encode(number)


def _encode(number: int) -> bytes:
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit 64 bits")
    rest = number << 1 if number >= 0 else ((-number) << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL = [_encode(number) for number in range(-64, 8192)]


def size(number: int) -> int:
    """How many bytes `encode` gives."""
    rest = number << 1 if number >= 0 else ((-number) << 1) - 1
    return max(1, (rest.bit_length() + 6) // 7)


def read_varint(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """(number, position after it). Raises ValueError if it passes `end`, has more than 5 bytes, or exceeds
    32 bits."""
    return _read(buffer, position, end, 32)


def read_varlong(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """(number, position after it). Raises ValueError if it passes `end`, has more than 10 bytes, or exceeds
    64 bits."""
    return _read(buffer, position, end, 64)


def _read(buffer: Any, position: int, end: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    while position < end:
        byte = buffer[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Java shifts surplus bits of the last byte out; they are nothing a writer produces.
            raw &= (1 << bits) - 1
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift >= bits:
            raise ValueError(f"varint of more than {shift // 7} bytes")
    raise ValueError("varint cut short")
