"""One record, as it lies in the log: bytes, not yet anybody's types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Header = tuple[str, bytes | None]
"""Name and value. Order and repetitions are kept; a name that is not UTF-8 keeps its bytes as surrogate
escapes."""

NO_TIMESTAMP_TYPE = -1
"""Of magic 0, whose messages have no timestamp."""
CREATE_TIME = 0
LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class RawRecord:
    """`timestamp` in ms, -1 for none; `timestamp_type` 0 (create), 1 (log append) or -1 (none); `key` None is
    no key, `value` None a tombstone."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def encode_varint(number: int) -> bytes:
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
