"""The accounts of a partition in one file, `<partition>/lastword/accounts`.

```
8 bytes  magic       u64 length of the header
header   JSON: what describes the accounts, and the name, type and shape of each array
arrays   one after another, each from a multiple of 8 bytes on
u32      CRC-32C of all before
```

Written aside, synced, renamed: it is there as a whole or not at all. It speaks of segments as they were when
it was written, by base offset, inode, size, time and the checksum of their last bytes. Whoever loads it
compares; anything else lying there makes it worthless. A truncation removes it, durably, before it takes the
first byte: what is appended afterwards may look like what was cut off.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from lastword.errors import CorruptFileError, LastwordError
from lastword.files import Files, Handle

_MAGIC = b"lwaccts1"
_START = struct.Struct("<8sQ")
_CRC = struct.Struct("<I")
_PIECE = 1 << 20
_MOST_HEADER_BYTES = 256 << 20

Place = Callable[[int], NDArray[np.uint8]]
"""Gives an array of at least so many bytes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Plain values, and arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def save(files: Files, path: str, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> int:
    """Replace the file; durable when it returns. Returns its size in bytes."""
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": listed}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    scratch = f"{path}.tmp"
    files.unlink(scratch, missing_ok=True)
    with files.open_append(scratch, create=True, exclusive=True) as handle:
        writer = _Writer(handle)
        writer.put(_START.pack(_MAGIC, len(text)) + text)
        for array in arrays.values():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for start in range(0, len(data), _PIECE):
                writer.put(data[start : start + _PIECE].tobytes())
            if len(data) % 8:
                writer.put(bytes(-len(data) % 8))
        handle.append(_CRC.pack(writer.crc))
        handle.fsync()
        size = writer.written + _CRC.size
    files.rename(scratch, path)
    files.fsync_dir(path.rpartition("/")[0] or ".")
    return size


def load(
    files: Files,
    path: str,
    *,
    room: Mapping[str, int] | None = None,
    places: Mapping[str, Place] | None = None,
) -> Snapshot | None:
    """The snapshot, checked; None if there is none. CorruptFileError if it is damaged.

    `room`: bytes for arrays of these names. One that fits is the beginning of an array (its `base`, uint8) of
    so many bytes, of which the system gives only what is touched: it can grow without a copy. `places`: where
    arrays of bytes of these names come to lie, if not in memory.
    """
    if not files.exists(path):
        return None
    with files.open_read(path) as handle:
        size = handle.size()
        header, position = _header(handle, path, size)
        crc = google_crc32c.value(handle.pread(position, 0))
        arrays: dict[str, NDArray[Any]] = {}
        for name, kind, shape in header.pop("arrays"):
            place = (places or {}).get(name)
            array = _empty(path, kind, shape, size - position, (room or {}).get(name, 0), place)
            data = array.reshape(-1).view(np.uint8)
            for start in range(0, len(data), _PIECE):
                piece = data[start : start + _PIECE]
                if handle.pread_into(piece, position) != len(piece):
                    raise _damaged(path, "ends early")
                crc = google_crc32c.extend(crc, piece.tobytes())
                position += len(piece)
            if len(data) % 8:
                pad = handle.pread(-len(data) % 8, position)
                crc = google_crc32c.extend(crc, pad)
                position += len(pad)
            arrays[name] = array
        if position + _CRC.size != size or handle.pread(_CRC.size, position) != _CRC.pack(crc):
            raise _damaged(path, "checksum mismatch")
    return Snapshot(header, arrays)


def load_header(files: Files, path: str) -> dict[str, Any] | None:
    """Only what describes the accounts, cheap and unchecked: for figures that nothing relies on. None if it
    cannot be read."""
    try:
        if not files.exists(path):
            return None
        with files.open_read(path) as handle:
            return _header(handle, path, handle.size())[0]
    except LastwordError:
        return None


def check(files: Files, path: str) -> dict[str, Any]:
    """Return the header of the accounts at `path`, checked whole. CorruptFileError if they are damaged."""
    with files.open_read(path) as handle:
        size = handle.size()
        header, _ = _header(handle, path, size)
        crc, position = 0, 0
        while position < size - _CRC.size:
            piece = handle.pread(min(_PIECE, size - _CRC.size - position), position)
            if not piece:
                break
            crc = google_crc32c.extend(crc, piece)
            position += len(piece)
        if handle.pread(_CRC.size, position) != _CRC.pack(crc):
            raise _damaged(path, "checksum mismatch")
    return header


class _Writer:
    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.crc = 0
        self.written = 0

    def put(self, data: bytes) -> None:
        self._handle.append(data)
        self.crc = google_crc32c.extend(self.crc, data)
        self.written += len(data)


def _header(handle: Handle, path: str, size: int) -> tuple[dict[str, Any], int]:
    """The header, and the position behind it."""
    start = handle.pread(_START.size, 0)
    if len(start) != _START.size:
        raise _damaged(path, "ends early")
    magic, length = _START.unpack(start)
    if magic != _MAGIC or length > min(size - _START.size, _MOST_HEADER_BYTES):
        raise _damaged(path, "no accounts, or of another version")
    try:
        header = json.loads(handle.pread(length, _START.size))
        if not isinstance(header, dict) or not isinstance(header["arrays"], list):
            raise ValueError
    except (ValueError, KeyError):
        raise _damaged(path, "its header is no JSON object") from None
    return header, _START.size + length


def _empty(path: str, kind: Any, shape: Any, left: int, room_bytes: int, place: Place | None) -> NDArray[Any]:
    """An array of the size that the header says, if the file can hold it."""
    try:
        dtype = np.dtype(kind)
        count = 1
        for length in shape:
            count *= int(length)
        if dtype.hasobject or count < 0 or min(shape, default=0) < 0 or count * dtype.itemsize > left:
            raise ValueError
        size_bytes = count * dtype.itemsize
        if place is not None and dtype == np.uint8 and len(shape) == 1 and size_bytes:
            return place(size_bytes)[:size_bytes]
        if dtype == np.uint8 and len(shape) == 1 and size_bytes <= room_bytes:
            return np.empty(room_bytes, np.uint8)[:size_bytes]
        return np.empty([int(length) for length in shape], dtype)
    except (TypeError, ValueError):
        raise _damaged(path, "an array that cannot be") from None


def _damaged(path: str, text: str) -> CorruptFileError:
    return CorruptFileError(
        text, code="bad-accounts", remedy="delete the file: it is made again from the log", file=path
    )
