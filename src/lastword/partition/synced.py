"""How far the log was made durable: `<partition>/lastword/synced`, 12 bytes.

```
i64 offset   u32 CRC-32C of the eight bytes before
```

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

_MARK = struct.Struct(">qI")


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
        data = struct.pack(">q", offset)
        self._handle.pwrite(data + struct.pack(">I", google_crc32c.value(data)), 0)
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
    if len(data) != _MARK.size:
        return 0
    offset, crc = _MARK.unpack(data)
    return max(offset, 0) if google_crc32c.value(data[:8]) == crc else 0
