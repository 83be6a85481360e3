"""One record as bytes, and the varints of its encoding.

A varint is zig-zag: small numbers of either sign take few bytes.

    0 → 00   -1 → 01   1 → 02   63 → 7e   64 → 80 01   -64 → 7f   -65 → 81 01

A byte has seven bits, the lowest first; the top bit is set if more bytes follow. 32 bits take at most 5
bytes, 64 bits at most 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Header = tuple[str, bytes | None]
"""Name and value of a header.

Order and repetitions are kept. A name that is not UTF-8 keeps its bytes as surrogate escapes.
"""

NO_TIMESTAMP_TYPE = -1
"""The timestamp type of magic 0, whose messages have no timestamp."""
CREATE_TIME = 0
LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record of a log.

    `timestamp` is in ms, -1 for none; `timestamp_type` is 0 (create), 1 (log append) or -1 (none). `key`
    None: no key. `value` None: a tombstone.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def encode_varint(number: int) -> bytes:
    """Return a varint (32 bits) or varlong (64 bits): the encoding is the same, only the range differs."""
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


def read_varint(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """Return (number, position after it) of a varint.

    Raises ValueError if it passes `end`, has more than 5 bytes, or exceeds 32 bits.
    """
    return _read(buffer, position, end, 32)


def read_varlong(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """Return (number, position after it) of a varlong.

    Raises ValueError if it passes `end`, has more than 10 bytes, or exceeds 64 bits.
    """
    return _read(buffer, position, end, 64)


def _read(buffer: Any, position: int, end: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    while position < end:
        byte = buffer[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Java drops surplus bits of the last byte; no writer produces them.
            raw &= (1 << bits) - 1
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift >= bits:
            raise ValueError(f"varint of more than {shift // 7} bytes")
    raise ValueError("varint cut short")
