"""How far a log is known to reach: the synced mark, and what a clean stop leaves beside it.

The synced mark is `<partition>/lastword/synced`, version 2, 18 bytes, big endian:

```
i16 version, 2   i64 offset   i32 leader epoch, -1 without one   u32 CRC-32C of the bytes before
```

Version 1 had 12 bytes: the offset and its CRC-32C. It is still read, as a mark without an epoch.

Everything below the offset was synced, so a power cut cannot have taken it: damage below it is the drive's,
and is never cut off as a torn tail. The offset was the log end when the mark was written, so a batch or a
segment ends there. The file is written in place after each sync and not synced itself. If a power cut takes
the newest value, an older one is found, which protects less but never says too much. Only where the log is
cut the lower value is synced.

A broker that has the directory in between does not know the mark, and may truncate the log below it. Brokers
begin a leader epoch whenever they lead: a mark whose epoch is not the newest of `leader-epoch-checkpoint` is
older than the last change of hands, and counts as a hint only (`Mark.is_current`).

`LogEnd` brings together all that tells where a log must end:

    mark             current: the log does not end below it, and where no broker ever had the directory the
                     batches above it leave no gap
    recovery point   everything below it was synced (a text file without a checksum)
    clean stop       the log ends at the recovery point, where the newest producer snapshot is, too
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from lastword.errors import CorruptBatchError, LastwordError
from lastword.files import Files, Handle
from lastword.partition.checkpoint_file import MAX_CHECKPOINT_BYTES
from lastword.partition.epochs import LeaderEpochs
from lastword.partition.snapshots import snapshot_offsets
from lastword.segment import names

VERSION = 2
_OLD_MARK = struct.Struct(">qI")
_FIELDS = struct.Struct(">hqi")
_CRC = struct.Struct(">I")
_BYTES = _FIELDS.size + _CRC.size
_NO_EPOCH = -1
RESTORE = "restore the file from a copy; `lastword verify` lists all damage"


class Mark(NamedTuple):
    """A synced mark.

    offset       0: none, or a damaged one
    is_current   no broker led since it was written
    is_alone     no broker ever had the directory: one that follows a leader appends what the leader has, gaps
                 of a compacted log included, and begins no epoch
    """

    offset: int = 0
    is_current: bool = False
    is_alone: bool = False


class SyncedMark:
    """Write the mark of one partition, with the newest leader epoch."""

    def __init__(self, files: Files, directory: str, epochs: LeaderEpochs) -> None:
        self._files = files
        self._directory = directory
        self._epochs = epochs
        self._handle: Handle | None = None

    def write(self, offset: int) -> None:
        """Everything below `offset` is synced."""
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
        epoch = self._epochs.latest
        data = _FIELDS.pack(VERSION, offset, _NO_EPOCH if epoch is None else epoch)
        self._handle.pwrite(data + _CRC.pack(google_crc32c.value(data)), 0)
        return self._handle

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def read_synced(files: Files, directory: str) -> int:
    """The offset below which everything was synced; 0 if that is not known."""
    return _read(files, directory)[0]


def read_mark(files: Files, directory: str) -> Mark:
    """The mark, and whether it is current."""
    offset, epoch = _read(files, directory)
    if offset == 0 or epoch is None:
        return Mark(offset)
    latest = LeaderEpochs.load(files, directory).latest
    is_current = epoch == (_NO_EPOCH if latest is None else latest)
    root = os.path.dirname(os.path.normpath(directory))
    return Mark(offset, is_current, not files.exists(os.path.join(root, names.HIGH_WATERMARKS)))


def _read(files: Files, directory: str) -> tuple[int, int | None]:
    """Offset and epoch; no epoch of version 1."""
    path = os.path.join(directory, names.PRIVATE, names.SYNCED)
    try:
        data = files.read_bytes(path) if files.exists(path) else b""
    except LastwordError:
        return 0, None
    return decode_mark(data) or (0, None)


def decode_mark(data: bytes) -> tuple[int, int | None] | None:
    """Return offset and epoch of a mark's bytes, no epoch of version 1; None if they are damaged."""
    if len(data) == _OLD_MARK.size:
        offset, crc = _OLD_MARK.unpack(data)
        return (max(offset, 0), None) if google_crc32c.value(data[:8]) == crc else None
    if len(data) != _BYTES:
        return None
    version, offset, epoch = _FIELDS.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    if version != VERSION or google_crc32c.value(data[: _FIELDS.size]) != crc:
        return None
    return max(offset, 0), epoch


# -------------------------------------------------------------------- where the log must end


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What a directory says about the end of a log, apart from the log itself.

    clean            the last holder stopped cleanly: its clean-shutdown marker was there
    recovery_point   of the checkpoint; 0: not known
    mark             the synced mark
    snapshots        offsets of the producer snapshots
    """

    clean: bool
    recovery_point: int
    mark: Mark
    snapshots: Collection[int]

    def is_torn_tail(self, offset: int, *, followed: bool) -> bool:
        """Can bytes that make no sense from `offset` on be what a crash left of an append? `followed`: sound
        batches lie behind them. A mark that is not current counts only then.
        """
        if self.clean and (followed or self.contradicts(offset) is not None):
            return False
        mark = self.mark.offset if followed or self.mark.is_current else 0
        return offset >= max(mark, 0 if self.clean else self.recovery_point)

    @property
    def contiguous_from(self) -> int | None:
        """The batches above this offset follow each other without a gap; None: that is not known."""
        mark = self.mark
        return mark.offset if mark.offset and mark.is_current and mark.is_alone else None

    def contradicts(self, end: int) -> int | None:
        """Where the log must end if it cannot be `end`; None: it may end there.

        A current mark has a checksum: the log does not end below it, and one at its end settles the matter.
        Then up to three witnesses name the exact end after a clean stop. Each may be damaged, too: the log is
        believed unless more of them name another offset. A snapshot below the end is no witness: the newest
        one may have been removed.
        """
        mark = self.mark.offset if self.mark.is_current else 0
        if end == mark:
            return None
        if not self.clean:
            return mark if end < mark else None
        snapshot = max(self.snapshots, default=0)
        witnesses = [self.recovery_point, mark, snapshot if snapshot >= end else 0]
        others = [offset for offset in witnesses if offset not in (0, end)]
        if not others:
            return None
        named = max(others, key=others.count)
        return named if others.count(named) > witnesses.count(end) else None


def wrong_end(file: str, position: int, end: int, expected: int, *, clean: bool) -> CorruptBatchError:
    """The error for a log that ends at `end` (behind the batch that ends at `position`) and must not."""
    known = "the last writer stopped cleanly at" if clean else "it was synced up to"
    if end < expected:
        missing = f"offset {end} is" if expected == end + 1 else f"offsets {end}-{expected - 1} are"
        text = f"the log ends at offset {end}, {known} {expected}: {missing} missing"
    else:
        text = f"the log ends at offset {end}, {known} {expected}: a batch has a wrong base offset"
    return CorruptBatchError(
        text,
        code="wrong-log-end",
        remedy=RESTORE,
        file=file,
        position=position,
        offset=min(end, expected),
    )


def read_log_end(files: Files, directory: str, end: int, listing: Collection[str]) -> LogEnd | None:
    """The same as somebody reads it who does not hold the lock; None if nothing is known that a log which
    ends at `end` could contradict. `listing`: the names in the directory.
    """
    root, name = os.path.split(os.path.normpath(directory))
    clean = files.exists(os.path.join(root, names.CLEAN_SHUTDOWN))
    if not clean and read_synced(files, directory) in (0, end):
        return None
    mark = read_mark(files, directory)
    if not clean or (mark.is_current and mark.offset == end):
        return LogEnd(clean, 0, mark, ())
    return LogEnd(clean, _recovery_point(files, root, name), mark, snapshot_offsets(listing))


def _recovery_point(files: Files, root: str, name: str) -> int:
    """One line of the recovery-point checkpoint, 0 if there is none. The file may have a line for each of
    very many partitions: the others are not parsed.
    """
    path = os.path.join(root, names.RECOVERY_POINTS)
    topic, _, partition = name.rpartition("-")
    try:
        facts = files.stat(path)
        data = files.read_bytes(path) if facts is not None and facts.size <= MAX_CHECKPOINT_BYTES else b""
    except LastwordError:
        return 0
    key = f"\n{topic} {partition} ".encode()
    start = data.find(key)
    if start < 0 or data.count(key) > 1:
        return 0
    digits = data[start + len(key) :].partition(b"\n")[0]
    return int(digits) if digits.isdigit() and len(digits) < 20 else 0
