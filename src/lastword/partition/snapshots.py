"""Producer snapshots, `<offset>.snapshot`: the producer state of all batches below that offset.

```
position  bytes  field
       0      2  version, 1
       2      4  CRC-32C of bytes 6 to the end
       6      4  number of entries
      10   46*n  entries:
                 8 producer id · 2 epoch · 4 last sequence · 8 last data offset · 4 its batch's offset delta ·
                 8 timestamp, ms · 4 coordinator epoch · 8 first offset of the open transaction, -1 none
```

Big endian. Only a producer's newest batch is in it; last data offset -1: it has none. A snapshot is valid
as a whole or not at all, and derived: a damaged one is removed, an older one read and the batches behind it
replayed. So losing one costs time, and nothing else: the cleaner keeps the last batch of each producer that
the log remembers, or else its last marker.

Written aside, synced, renamed, directory synced: a reader never sees half of one. Kafka writes in place.

Taken at each roll (offset = base of the new segment), at a clean close (log end), after recovering a
segment. Kept: those at segment bases, and the largest one if it lies above them.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable

import google_crc32c

from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.partition.producer_state import Producer, ProducerState, SequencedBatch
from lastword.segment import names

HEADER = struct.Struct(">hIi")
ENTRY = struct.Struct(">qhiqiqiq")
VERSION = 1
CRC_START = 6


def encode(producers: Iterable[Producer]) -> bytes:
    """The bytes of a snapshot file, entries by producer id."""
    body = bytearray()
    count = 0
    for producer in sorted(producers, key=lambda producer: producer.producer_id):
        newest = producer.batches[-1] if producer.batches else SequencedBatch(-1, -1, 0, -1)
        start = producer.transaction_start
        body += ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            newest.last_sequence,
            newest.last_offset,
            newest.offset_delta,
            producer.last_timestamp,
            producer.coordinator_epoch,
            -1 if start is None else start,
        )
        count += 1
    covered = struct.pack(">i", count) + body
    return struct.pack(">hI", VERSION, google_crc32c.value(covered)) + covered


def decode(data: bytes, file: str) -> list[Producer]:
    """The producers of a snapshot file's bytes. Raises CorruptFileError for anything that is not a whole,
    sound snapshot."""

    def bad(text: str, position: int) -> CorruptFileError:
        return CorruptFileError(
            text, remedy="remove the file: opening the log rebuilds the state", file=file, position=position
        )

    if len(data) < HEADER.size:
        raise bad(f"a snapshot of {len(data)} bytes is shorter than its header", len(data))
    version, crc, count = HEADER.unpack_from(data)
    if version != VERSION:
        raise bad(f"snapshot version {version}, known is {VERSION}", 0)
    if count < 0 or count * ENTRY.size != len(data) - HEADER.size:
        raise bad(f"{count} entries in a snapshot of {len(data)} bytes", CRC_START)
    computed = google_crc32c.value(bytes(data[CRC_START:]))
    if computed != crc:
        raise bad(f"snapshot has CRC {crc:08x}, computed {computed:08x}", 2)
    producers = []
    for fields in ENTRY.iter_unpack(data[HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, start = fields
        batches = (SequencedBatch(last_sequence, last_offset, delta, timestamp),) if last_offset >= 0 else ()
        producers.append(
            Producer(producer_id, epoch, coordinator_epoch, timestamp, batches, None if start < 0 else start)
        )
    return producers


EMPTY_SNAPSHOT = encode(())


def snapshot_path(directory: str, offset: int) -> str:
    return os.path.join(directory, names.segment_file(offset, names.SNAPSHOT))


def snapshot_offsets(listing: Iterable[str]) -> list[int]:
    """Offsets of the snapshots among a directory's names, ascending."""
    parsed = (names.parse_segment_file(name) for name in listing)
    return sorted(f.base_offset for f in parsed if f and f.extension == names.SNAPSHOT and not f.suffix)


def write_empty_snapshot(files: Files, directory: str, offset: int) -> None:
    """For a partition that is just being made: nothing is known at `offset`. Its name is not durable yet."""
    path = snapshot_path(directory, offset)
    files.unlink(path, missing_ok=True)
    with files.open_append(path, create=True, exclusive=True) as handle:
        handle.append(EMPTY_SNAPSHOT)
        handle.fsync()


class Snapshots:
    """The snapshot files of one partition directory."""

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        self.directory = directory
        self._current = -1  # the offset of the snapshot last taken or loaded: known to hold what it should

    def path(self, offset: int) -> str:
        return snapshot_path(self.directory, offset)

    def offsets(self) -> list[int]:
        """Offsets of all snapshot files, ascending."""
        return snapshot_offsets(self.files.listdir(self.directory))

    def take(self, state: ProducerState) -> bool:
        """Writes the state at its end offset, durably. False, and nothing done, if that was the last one
        taken or loaded."""
        path = self.path(state.end_offset)
        if state.end_offset == self._current and self.files.exists(path):
            return False
        self.write(state.end_offset, state.producers)
        return True

    def write(self, offset: int, producers: Iterable[Producer]) -> None:
        """Makes the snapshot at `offset` hold `producers`, durably."""
        self.files.write_atomic(self.path(offset), encode(producers))
        self._current = offset

    def is_current(self, offset: int) -> None:
        """The snapshot at `offset` is sound and tells what the caller's state is."""
        self._current = offset

    def read(self, offset: int) -> list[Producer]:
        """Raises CorruptFileError; StorageError if there is none."""
        path = self.path(offset)
        return decode(self.files.read_bytes(path), path)

    def load(
        self,
        log_start: int,
        log_end: int,
        *,
        now_ms: int,
        expiration_ms: int,
        remove_damaged: bool = True,
    ) -> ProducerState:
        """The state of the newest sound snapshot in (log_start, log_end], or an empty one at `log_start`.

        The caller replays the batches from the state's `end_offset` on. Expired producers without an open
        transaction are left out. A damaged snapshot is skipped; so is one above the log end, for it tells
        of batches that were lost. Both are removed unless this only looks (`remove_damaged`): otherwise the
        log could grow up to one that tells another story.
        """
        for offset in reversed(self.offsets()):
            if offset <= log_start:
                break
            producers = None
            if offset <= log_end:
                with contextlib.suppress(CorruptFileError):
                    producers = self.read(offset)
            if producers is None:
                if remove_damaged:
                    self.files.unlink(self.path(offset), missing_ok=True)
                continue
            self._current = offset
            return ProducerState(offset, (p for p in producers if not p.is_expired(now_ms, expiration_ms)))
        return ProducerState(log_start)

    def remove_outside(self, log_start: int, log_end: int) -> list[int]:
        """After a truncation: removes those that are not in (log_start, log_end]; their offsets."""
        gone = [offset for offset in self.offsets() if not log_start < offset <= log_end]
        for offset in gone:
            self.files.unlink(self.path(offset), missing_ok=True)
        if self._current in gone:
            self._current = -1
        return gone

    def remove_stray(self, segment_bases: Iterable[int]) -> list[int]:
        """Removes those that are at no segment's base, except the largest if it lies above all bases (a
        clean close left it); their offsets."""
        bases = set(segment_bases)
        offsets = self.offsets()
        stray = [offset for offset in offsets if offset not in bases]
        if stray and stray[-1] == offsets[-1] and stray[-1] > max(bases, default=-1):
            stray.pop()
        for offset in stray:
            self.files.unlink(self.path(offset), missing_ok=True)
        return stray

    def mark_deleted(self, offset: int) -> str | None:
        """Renames a snapshot to `.deleted`, as its segment's files are, and returns the new path; None if
        there is none."""
        path = self.path(offset)
        if not self.files.exists(path):
            return None
        self.files.rename(path, path + names.DELETED)
        return path + names.DELETED
