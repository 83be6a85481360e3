"""One record as bytes, control records, and the varints of the encoding.

A varint is zig-zag: small numbers of either sign take few bytes.

    0 → 00   -1 → 01   1 → 02   63 → 7e   64 → 80 01   -64 → 7f   -65 → 81 01

A byte has seven bits, the lowest first; the top bit is set if more bytes follow. 32 bits take at most 5
bytes, 64 bits at most 10.

Transaction coordinators and controllers write control records between the data:

    key    i16 version (0) · i16 type: 0 abort, 1 commit, 2 leader change, 3 and 4 snapshot header and footer,
           5 KRaft version, 6 KRaft voters; others are unknown and ignored
    value  of abort and commit: i16 version (0) · i32 coordinator epoch

A control batch has bit 5 set, is not compressed and holds one record, or none after cleaning. Its keys may
have the same bytes as user keys, but are not related to them. Newer versions are read as version 0: they only
add bytes at the end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from lastword.errors import CorruptBatchError
from lastword.values import draft_of

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


_new = object.__new__
_Draft = draft_of(RawRecord)


def raw_record(
    offset: int,
    timestamp: int,
    timestamp_type: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[Header, ...] = (),
) -> RawRecord:
    """Return the record with these fields. For code that makes many."""
    record = _new(_Draft)
    draft: Any = record
    draft.offset = offset
    draft.timestamp = timestamp
    draft.timestamp_type = timestamp_type
    draft.key = key
    draft.value = value
    draft.headers = headers
    draft.__class__ = RawRecord
    return record


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


# Joined from prepared bytes, because 8,000 calls take 3 ms of every start.
_BYTES = [bytes((number,)) for number in range(256)]
_SMALL = [
    *_BYTES[127:0:-2],
    *_BYTES[0:128:2],
    *(low + high for high in _BYTES[1:128] for low in _BYTES[128:256:2]),
]
LENGTHS = _SMALL[64:]
"""The varints of 0, 1, 2 and so on. For code that cannot afford a call of `encode_varint` for each length."""


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


def record_time(base_timestamp: int, delta: int) -> int:
    """Return the time of a record in ms; the sum wraps modulo 2^64, as in Kafka and the kernels."""
    return (base_timestamp + delta + (1 << 63)) % (1 << 64) - (1 << 63)


ABORT = 0
COMMIT = 1
TYPE_NAMES = {
    0: "abort",
    1: "commit",
    2: "leader-change",
    3: "snapshot-header",
    4: "snapshot-footer",
    5: "kraft-version",
    6: "kraft-voters",
}

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")


class ControlRecord(NamedTuple):
    """A parsed control record.

    `type` is a name of `TYPE_NAMES` or "unknown". Only transaction markers have a `coordinator_epoch`.
    """

    type: str
    version: int
    coordinator_epoch: int | None = None

    @property
    def marker(self) -> bool:
        """Return whether the record ends a transaction."""
        return self.type in ("abort", "commit")


def marker_record(*, commit: bool, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Return key and value of the control record that ends a transaction."""
    return _KEY.pack(0, COMMIT if commit else ABORT), _MARKER.pack(0, coordinator_epoch)


def parse_control(
    key: bytes | None, value: bytes | None, file: str, position: int, offset: int
) -> ControlRecord:
    """Parse the key and value of a control record.

    Raises `CorruptBatchError` (code `bad-control`) if they are too short or have a negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise _bad_control(f"control key of {0 if key is None else len(key)} bytes", file, position, offset)
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise _bad_control(f"control key of version {version}", file, position, offset)
    kind = TYPE_NAMES.get(number, "unknown")
    if number not in (ABORT, COMMIT):
        return ControlRecord(kind, version)
    if value is None or len(value) < _MARKER.size:
        raise _bad_control(
            f"{kind} marker of {0 if value is None else len(value)} bytes", file, position, offset
        )
    marker_version, epoch = _MARKER.unpack_from(value)
    if marker_version < 0:
        raise _bad_control(f"{kind} marker of version {marker_version}", file, position, offset)
    return ControlRecord(kind, version, epoch)


def _bad_control(text: str, file: str, position: int, offset: int) -> CorruptBatchError:
    return CorruptBatchError(text, code="bad-control", file=file, position=position, offset=offset)
