"""Whether a partition's producer state is known to be empty, and the snapshot files that say so.

```
<20-digit offset>.snapshot    i16 version 1   u32 CRC-32C of the rest   i32 entries   46 bytes each
```

A snapshot holds the newest batch of each producer id below its offset. A broker that finds the clean-shutdown
marker believes the one at the log's end without reading the log. So nobody may leave the marker who cannot
vouch for it: either no batch of the log has a producer id (an empty snapshot is right), or the snapshot that
was there is still right because nothing was appended.
"""

from __future__ import annotations

import os
import struct

import google_crc32c

from lastword.errors import StorageError
from lastword.files import Files
from lastword.segment import names

ENTRY_BYTES = 46
_HEAD = struct.Struct(">hIi")
_VERSION = 1
EMPTY_SNAPSHOT = _HEAD.pack(_VERSION, google_crc32c.value(bytes(4)), 0)


def count_entries(data: bytes) -> int | None:
    """Number of producers in a snapshot, or None if it is damaged."""
    if len(data) < _HEAD.size:
        return None
    version, crc, entries = _HEAD.unpack_from(data)
    if version != _VERSION or entries < 0 or len(data) != _HEAD.size + entries * ENTRY_BYTES:
        return None
    return entries if google_crc32c.value(data[6:]) == crc else None


def snapshot_path(directory: str, offset: int) -> str:
    return os.path.join(directory, names.segment_file(offset, names.SNAPSHOT))


def snapshot_offsets(listing: list[str]) -> list[int]:
    """Offsets of the snapshots among a directory's names, ascending."""
    found = (names.parse_segment_file(name) for name in listing)
    return sorted(
        f.base_offset for f in found if f is not None and f.extension == names.SNAPSHOT and not f.suffix
    )


def newest_snapshot(files: Files, directory: str, listing: list[str], log_end: int) -> tuple[int, int] | None:
    """(offset, entries) of the newest sound snapshot not above `log_end`, or None."""
    for offset in reversed(snapshot_offsets(listing)):
        if offset > log_end:
            continue
        try:
            entries = count_entries(files.read_bytes(snapshot_path(directory, offset)))
        except StorageError:
            continue
        if entries is not None:
            return offset, entries
    return None


def write_empty_snapshot(files: Files, directory: str, offset: int) -> None:
    """Durable when it returns, but for its name: that needs `fsync_dir`."""
    path = snapshot_path(directory, offset)
    files.unlink(path, missing_ok=True)
    with files.open_append(path, create=True, exclusive=True) as handle:
        handle.append(EMPTY_SNAPSHOT)
        handle.fsync()
