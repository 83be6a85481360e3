"""Control records, which transaction coordinators and controllers write between the data.

    key    i16 version (0) · i16 type: 0 abort, 1 commit, 2 leader change, 3 and 4 snapshot header and footer,
           5 KRaft version, 6 KRaft voters; others are unknown and ignored
    value  of abort and commit: i16 version (0) · i32 coordinator epoch

A control batch has bit 5 set, is not compressed and holds one record, or none after cleaning. Its keys may
have the same bytes as user keys, but are not related to them. Newer versions are read as version 0: they
only add bytes at the end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from lastword.errors import CorruptBatchError

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


@dataclass(frozen=True, slots=True)
class ControlRecord:
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


def parse_control(
    key: bytes | None, value: bytes | None, file: str, position: int, offset: int
) -> ControlRecord:
    """Parse the key and value of a control record.

    Raises `CorruptBatchError` (code `bad-control`) if they are too short or have a negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise _bad(f"control key of {0 if key is None else len(key)} bytes", file, position, offset)
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise _bad(f"control key of version {version}", file, position, offset)
    kind = TYPE_NAMES.get(number, "unknown")
    if number not in (ABORT, COMMIT):
        return ControlRecord(kind, version)
    if value is None or len(value) < _MARKER.size:
        raise _bad(f"{kind} marker of {0 if value is None else len(value)} bytes", file, position, offset)
    marker_version, epoch = _MARKER.unpack_from(value)
    if marker_version < 0:
        raise _bad(f"{kind} marker of version {marker_version}", file, position, offset)
    return ControlRecord(kind, version, epoch)


def control_key(number: int) -> bytes:
    """Return the key of a control record of this type."""
    return _KEY.pack(0, number)


def marker_value(coordinator_epoch: int) -> bytes:
    """Return the value of a transaction marker."""
    return _MARKER.pack(0, coordinator_epoch)


def _bad(text: str, file: str, position: int, offset: int) -> CorruptBatchError:
    return CorruptBatchError(text, code="bad-control", file=file, position=position, offset=offset)
