"""A group of segments into one, driven by the dead bitmaps: no key is looked at.

Chunk by chunk of verified batches: a batch without dead records is copied byte for byte, one with dead
records only is left out, the others are cut. A batch keeps its base and last offset, codec, producer and
leader epoch; its largest timestamp is taken anew (create time), and it gets a delete horizon when a
tombstone survives its first cleaning. Two kinds of batch stay at least as a header of 61 bytes: the last
one of the group, so that the file covers its range of offsets, and the last one of each producer, whose
sequence the log must remember.

Memory: one chunk in, one output buffer out, whatever the size of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from lastword import kernels
from lastword.cleaner.choose import Plan
from lastword.cleaner.groups import Group
from lastword.cleaner.report import TombstonesWaiting
from lastword.errors import UnsupportedBatchError
from lastword.files import Files
from lastword.kernels import table as fields
from lastword.kernels.digest import sum_contents
from lastword.kernels.repack import EMPTIED, KEEP_BASE, MIXED, repack_rows, room_needed
from lastword.records.batch import CHECKED_FROM, CRC_POSITION, HEADER_BYTES, read_header
from lastword.records.chunk import Chunk
from lastword.records.compression import compress
from lastword.records.reader import read_records
from lastword.resolve import Resolution, SegmentFacts, SegmentSource
from lastword.segment import names
from lastword.segment.index_builder import IndexBuilder

OUT_BYTES = 4 << 20
OUT_ROWS = 1 << 14

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewrite says it did; `certificate` looks whether it is true.

    content_digest   sum over the survivors as they lie in the sources; size_bytes: of the output
    """

    size_bytes: int
    content_digest: int
    tombstones: TombstonesWaiting


class Output:
    """The new segment while it is made: a .log that grows, and at the end its indexes."""

    def __init__(self, files: Files, directory: str, base_offset: int, plan: Plan) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.file = self._path(names.LOG)
        self.handle = files.open_append(self.file, create=True, exclusive=True)
        self.indexes = IndexBuilder(base_offset, plan.index_interval_bytes)

    def _path(self, extension: str) -> str:
        return f"{self.directory}/{names.segment_file(self.base_offset, extension)}"

    def finish(self, mtime_ms: int) -> None:
        """Write the indexes, and make all of it durable. The files take the time of the last source's."""
        self.indexes.finish()
        self.handle.fsync()
        self.handle.close()
        for extension, entries in (
            (names.INDEX, self.indexes.offset_entries),
            (names.TIME_INDEX, self.indexes.time_entries),
        ):
            with self._files.open_append(self._path(extension), create=True, exclusive=True) as handle:
                handle.append(bytes(entries))
                handle.fsync()
        for extension in (names.LOG, names.INDEX, names.TIME_INDEX):
            self._files.set_mtime(self._path(extension), mtime_ms)
        self._files.fsync_dir(self.directory)


def rewrite(
    group: Group,
    sources: Sequence[SegmentSource],
    resolution: Resolution,
    plan: Plan,
    output: Output | None,
    progress: Callable[[int], None],
) -> Rewritten:
    """Write the survivors of `group` to `output`; None only counts, to the byte.

    `progress` hears the bytes read, chunk by chunk, and may raise to stop. Raises CorruptBatchError for a
    source that is not what its checksums say.
    """
    writer = _Writer(output)
    retained = _last_of_producers(resolution.segments)
    facts = resolution.segments[group.first : group.last + 1]
    dead = resolution.dead.arrays
    contents = 0
    for one, source in zip(facts, sources[group.first : group.last + 1], strict=True):
        horizon_ms = plan.now_ms + plan.delete_retention_ms if one.tombstones_without_horizon else -1
        for chunk in source.chunk_reader(verify=True):
            _refuse_old_formats(chunk)
            total, _, row, status = sum_contents(chunk.plain, chunk.table, chunk.rows, *dead)
            if status != kernels.OK:
                chunk.raise_status(row, status)
            contents += int(total)
            writer.take(chunk, _retain(chunk, group.next_offset, retained), dead, horizon_ms)
            progress(chunk.size_bytes)
    writer.flush()
    return Rewritten(
        writer.written_bytes, contents & _MASK, writer.tombstones(sum(f.tombstones for f in facts))
    )


def _refuse_old_formats(chunk: Chunk) -> None:
    """Only batches of magic 2 can be cut and given a horizon."""
    old = chunk.table[:, fields.MAGIC] < 2
    if old.any():
        row = int(old.argmax())
        offset, magic = int(chunk.table[row, fields.BASE_OFFSET]), int(chunk.table[row, fields.MAGIC])
        raise UnsupportedBatchError(
            f"offset {offset} has magic {magic}; only batches of magic 2 are rewritten",
            code="old-format",
            remedy="leave this topic to Kafka's own cleaner",
            file=chunk.file,
            position=int(chunk.table[row, fields.FILE_POSITION]),
            offset=offset,
        )


def _last_of_producers(facts: Sequence[SegmentFacts]) -> dict[int, int]:
    """Of each producer below the limit, the last offset of its last batch."""
    last: dict[int, int] = {}
    for one in facts:
        last.update(one.last_of_producers)
    return last


def _retain(chunk: Chunk, next_offset: int, producers: dict[int, int]) -> NDArray[np.uint8]:
    """Which batches of the chunk must leave at least their header."""
    last_offsets = chunk.table[:, fields.LAST_OFFSET]
    retain = (last_offsets == next_offset - 1).astype(np.uint8)
    ids = chunk.table[:, fields.PRODUCER_ID]
    if producers and ids.max() >= 0:
        for row in np.flatnonzero(ids >= 0).tolist():
            if producers[int(ids[row])] == last_offsets[row]:
                retain[row] = 1
    return retain


class _Writer:
    """Collects batches in one buffer and appends it when it is full."""

    def __init__(self, output: Output | None) -> None:
        self._output = output
        self._out = np.empty(OUT_BYTES + kernels.SLACK, np.uint8)
        self._table = np.empty((OUT_ROWS, fields.FIELDS), np.int64)
        self._classes = np.empty(OUT_ROWS, np.int64)
        self._position = 0
        self._row = 0
        self._first_due: tuple[int, bytes] | None = None  # (horizon, a copy of its batch)
        self.written_bytes = 0

    def take(
        self,
        chunk: Chunk,
        retain: NDArray[np.uint8],
        dead: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint64]],
        horizon_ms: int,
    ) -> None:
        row = 0
        while True:
            row, self._position, self._row, _kept, status = repack_rows(
                chunk.raw,
                chunk.plain,
                chunk.table,
                chunk.rows,
                row,
                retain,
                *dead,
                horizon_ms,
                KEEP_BASE,
                self._out,
                self._position,
                self._table,
                self._row,
                self._classes,
            )
            if status == kernels.OK:
                return
            if status != kernels.FULL:
                chunk.raise_status(row, status)
            self.flush()
            needed = int(room_needed(chunk.table, row)) + kernels.SLACK
            if needed > self._out.size:
                self._out = np.empty(needed, np.uint8)

    def flush(self) -> None:
        """Append what was collected; batches that carry a codec but were cut are compressed first."""
        table = self._table[: self._row]
        if self._row:
            self._note_first_due(table)
            attributes = table[:, fields.ATTRIBUTES]
            classes = self._classes[: self._row]
            compressed = (classes == MIXED) & ((attributes & fields.CODEC) != 0)
            for row in np.flatnonzero((classes == EMPTIED) & (table[:, fields.PRODUCER_ID] < 0)).tolist():
                self._without_timestamp(int(table[row, fields.POSITION]))
            done = 0
            parts: list[memoryview | bytes] = []
            for row in np.flatnonzero(compressed).tolist():
                start = int(table[row, fields.POSITION])
                parts.append(self._out[done:start].data)
                done = start + int(table[row, fields.SIZE])
                parts.append(_compressed(int(attributes[row]) & fields.CODEC, self._out[start:done]))
            rest = self._out[done : self._position]
            self._append(b"".join([*parts, rest.data]) if parts else rest)
        self._position = 0
        self._row = 0

    def tombstones(self, count: int) -> TombstonesWaiting:
        if not count or self._first_due is None:
            return TombstonesWaiting(count)
        horizon_ms, batch = self._first_due
        header = read_header(batch, 0, len(batch), "<output>")
        first = next((r.offset for r in read_records(batch, header) if r.value is None), -1)
        return TombstonesWaiting(count, first, horizon_ms) if first >= 0 else TombstonesWaiting(count)

    def _append(self, data: NDArray[np.uint8] | bytes) -> None:
        if len(data):
            self.written_bytes += len(data)
            if self._output is not None:
                self._output.handle.append(data)

    def _note_first_due(self, table: NDArray[np.int64]) -> None:
        """Remember the batch whose horizon comes first, to name its tombstone in the report."""
        clocked = np.flatnonzero(
            (table[:, fields.ATTRIBUTES] & fields.HORIZON != 0) & (table[:, fields.COUNT] > 0)
        )
        if clocked.size:
            row = clocked[np.argmin(table[clocked, fields.BASE_TIMESTAMP])]
            horizon_ms = int(table[row, fields.BASE_TIMESTAMP])
            if self._first_due is None or horizon_ms < self._first_due[0]:
                start, size = int(table[row, fields.POSITION]), int(table[row, fields.SIZE])
                batch = self._out[start : start + size].tobytes()
                if self._classes[row] == MIXED:  # its records are still plain
                    attributes = int(table[row, fields.ATTRIBUTES]) & ~fields.CODEC
                    batch = batch[:CHECKED_FROM] + attributes.to_bytes(2, "big") + batch[CHECKED_FROM + 2 :]
                self._first_due = (horizon_ms, batch)

    def _without_timestamp(self, start: int) -> None:
        """A header that only holds the end of the range has no record with a timestamp, so it has none
        either: an index entry for it would point at a time that no record has.
        """
        header = self._out[start : start + HEADER_BYTES]
        header[35:43] = 0xFF
        crc = crc32c(header[CHECKED_FROM:].tobytes())
        header[CRC_POSITION:CHECKED_FROM] = np.frombuffer(crc.to_bytes(4, "big"), np.uint8)


def _compressed(codec: int, batch: NDArray[np.uint8]) -> bytes:
    """The batch with its plain records compressed, length and checksum set anew."""
    data = batch.tobytes()
    checked = data[CHECKED_FROM:HEADER_BYTES] + compress(codec, data[HEADER_BYTES:])
    length = len(checked) + CHECKED_FROM - 12
    return (
        data[:8]
        + length.to_bytes(4, "big")
        + data[12:CRC_POSITION]
        + crc32c(checked).to_bytes(4, "big")
        + checked
    )
