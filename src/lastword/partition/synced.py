"""How far the log was made durable: `<partition>/lastword/synced`, 16 bytes, big-endian.

```
4 bytes "lws1"   i64 offset   u32 CRC-32C of the twelve bytes before
```

Version 0 has no "lws1" and is 12 bytes long; it is still read.

Everything below the offset was synced, so a power cut cannot have taken it: damage below it is the drive's,
and nothing behind such damage may be cut off as a torn tail. The file is written in place after each sync and
not synced itself. If a power cut takes the newest value, an older one is found, which protects less but never
says too much. Only where the log was cut the lower value is synced.
"""

from __future__ import annotations

import os
import struct

import google_crc32c

from lastword.errors import LastwordError
from lastword.files import Files, Handle
from lastword.segment import names

_MARK = struct.Struct(">4sqI")
_MAGIC = b"lws1"
_OLD_MARK = struct.Struct(">qI")


class SyncedMark:
    """Writes the mark of one partition."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._handle: Handle | None = None

    def write(self, offset: int) -> None:
        self._write(offset)

    def lower(self, offset: int) -> None:
        """Offsets from here on will be given again: an older, higher mark must not come back. Synced."""
        if read_synced(self._files, self._directory) > offset:
            self._write(offset).fsync()

    def _write(self, offset: int) -> Handle:
        if self._handle is None:
            private = os.path.join(self._directory, names.PRIVATE)
            if not self._files.exists(private):
                self._files.mkdir(private)
            self._handle = self._files.open_append(os.path.join(private, names.SYNCED), create=True)
            if self._handle.size() > _MARK.size:  # damaged: what follows the mark would stay
                self._handle.truncate(0)
        self._handle.pwrite(encode_mark(offset), 0)
        return self._handle

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def read_synced(files: Files, directory: str) -> int:
    """The offset below which everything was synced; 0 if that is not known."""
    path = os.path.join(directory, names.PRIVATE, names.SYNCED)
    try:
        data = files.read_bytes(path) if files.exists(path) else b""
    except LastwordError:
        return 0
    return decode_mark(data) or 0


def encode_mark(offset: int) -> bytes:
    """Return the bytes of a mark."""
    data = struct.pack(">4sq", _MAGIC, offset)
    return data + struct.pack(">I", google_crc32c.value(data))


def decode_mark(data: bytes) -> int | None:
    """Return the offset of a mark; None if it is damaged, or of a version that is not known."""
    if len(data) == _OLD_MARK.size:
        offset, crc = _OLD_MARK.unpack(data)
    elif len(data) == _MARK.size and data[:4] == _MAGIC:
        _, offset, crc = _MARK.unpack(data)
    else:
        return None
    return offset if offset >= 0 and google_crc32c.value(data[:-4]) == crc else None
