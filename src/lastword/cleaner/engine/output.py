"""The new segment while a rewrite makes it: survivors are packed into a buffer, which is appended when full.

Neighbouring batches that lost records are joined (`kernels.repack`). They are in the buffer uncompressed;
their records are compressed and get checksums when the buffer is appended.

Each output is a private segment of the log's store (`DirectorySegments.create_output`). An output that is not
published is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from lastword import kernels
from lastword.cleaner.engine.report import TombstonesWaiting
from lastword.cleaner.policy.plan import Plan
from lastword.kernels import repack as loops
from lastword.kernels import table as fields
from lastword.records.batch import read_header, read_records
from lastword.records.chunk import Chunk, header_of
from lastword.records.columns import decode_columns
from lastword.records.compression import compress
from lastword.records.formats import filter_entry
from lastword.resolve import DeadBitmaps
from lastword.resolve.survivors import NO_BEFORE, NOTHING_DEAD
from lastword.segment import names
from lastword.segment.indexes import AbortedTransaction, IndexBuilder, encode_aborted
from lastword.segment.stored import StoredSegment
from lastword.wire import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAX_TIMESTAMP_AT,
    OVERHEAD_BYTES,
    PRODUCER_ID_AT,
    ZSTD,
)

OUT_BYTES = 4 << 20
OUT_ROWS = 1 << 14
BATCH_BYTES = 32 << 10
"""Batches are joined up to this size, uncompressed. A reader of one record decompresses its whole batch, so
batches are no larger than compression needs: Zipf-distributed keys under zstd, written in batches of 16 KiB,
take 1.40 times their bytes per record if each batch is cut by itself, 1.08 times if batches are joined up to
16 KiB, 1.03 up to 32 KiB and 1.02 up to 64 KiB."""

_FAST_LEVEL = 1  # of zstd: 60 % of the CPU time of the default level, for batches of `BATCH_BYTES`
_SAMPLED_FIRST = 32
_SAMPLED_EVERY = 32


class OutputSegment:
    """The new segment while it is made: a .log that grows, and at the end its indexes."""

    def __init__(self, location: str, stored: StoredSegment, plan: Plan) -> None:
        self._stored = stored
        self.location = location
        self.base_offset = stored.base_offset
        self.file = stored.path(names.LOG)
        self.handle = stored.open_append(names.LOG, create=True, exclusive=True)
        self.indexes = IndexBuilder(stored.base_offset, plan.index_interval_bytes)
        self._synced = False

    def sync(self) -> None:
        """Make the .log durable: all of it is written."""
        if not self._synced:
            self.handle.fsync()
            self._synced = True

    def finish(self, mtime_ms: int, aborted: Sequence[AbortedTransaction] = ()) -> None:
        """Write the indexes, and make the segment durable. The files get the time of the last source.

        `aborted`: entries of the transaction index; without any, there is no such file.
        """
        self.indexes.finish()
        self.sync()
        self.handle.close()
        indexes = {
            names.INDEX: bytes(self.indexes.offset_entries),
            names.TIME_INDEX: bytes(self.indexes.time_entries),
        }
        if aborted:
            indexes[names.TXN_INDEX] = encode_aborted(aborted)
        for extension, entries in indexes.items():
            with self._stored.open_append(extension, create=True, exclusive=True) as handle:
                handle.append(entries)
                handle.fsync()
        self._stored.seal((names.LOG, *indexes), mtime_ms)


@dataclass(slots=True)
class _Buffer:
    """Batches for the output: their bytes, a row for each, and its class."""

    out: NDArray[np.uint8]
    table: NDArray[np.int64]
    classes: NDArray[np.int64]
    rows: int = 0
    bytes: int = 0

    @classmethod
    def empty(cls) -> _Buffer:
        """Return a new buffer."""
        return cls(
            np.empty(OUT_BYTES + kernels.SLACK, np.uint8),
            np.empty((OUT_ROWS, fields.FIELDS), np.int64),
            np.empty(OUT_ROWS, np.int64),
        )


class Writer:
    """Collects batches in one buffer and appends it when it is full.

    Compressing and appending are deferred to `leave`; with two threads the next buffer is filled meanwhile.
    `appended` is called after each append, with the bytes that were appended.
    """

    def __init__(
        self,
        output: OutputSegment | None,
        dead: DeadBitmaps,
        max_message_bytes: int,
        leave: Callable[[Callable[[], None]], bool],
        appended: Callable[[memoryview], None] | None = None,
    ) -> None:
        self._output = output
        self._dead = dead
        self._leave = leave
        self._appended = appended
        first = _Buffer.empty()
        self._out, self._table, self._classes = first.out, first.table, first.classes
        self._spare: _Buffer | None = None
        self._joining = np.full(loops.JOINING_FIELDS, -1, np.int64)
        self._joining[loops.TARGET_BYTES] = BATCH_BYTES
        # Incompressible records grow a little, under snappy by a sixth.
        self._joining[loops.MAX_BYTES] = max_message_bytes * 3 // 4
        self._side = np.empty(BATCH_BYTES // 2 + kernels.SLACK, np.uint8)
        self._position = 0
        self._row = 0
        self._first_due: tuple[int, bytes] | None = None  # (horizon, a copy of its batch)
        self._compress = _Compressor()
        self.written_bytes = 0
        self.next_offset = -1

    def take(
        self, chunk: Chunk, retain: NDArray[np.uint8], horizon_ms: int, before: NDArray[np.int64] = NO_BEFORE
    ) -> None:
        """Add the survivors of a chunk. `before`: as in a `RepackSource`."""
        if not chunk.has_old:
            self._take_batches(chunk, 0, chunk.rows, retain, horizon_ms, before)
            return
        old = chunk.table[:, fields.MAGIC] < 2
        borders = [0, *(np.flatnonzero(old[1:] != old[:-1]) + 1).tolist(), chunk.rows]
        for first, end in pairwise(borders):
            if old[first]:
                self._take_entries(chunk, first, end)
            else:
                self._take_batches(chunk, first, end, retain, horizon_ms)

    def _take_batches(
        self,
        chunk: Chunk,
        row: int,
        end: int,
        retain: NDArray[np.uint8],
        horizon_ms: int,
        before: NDArray[np.int64] = NO_BEFORE,
    ) -> None:
        """Add rows of magic 2."""
        dead = NOTHING_DEAD if before.shape[0] else self._dead
        source = loops.RepackSource(chunk.raw, chunk.uncompressed, chunk.table, before)
        while True:
            target = loops.RepackOutput(self._out, self._table, self._classes, self._joining, self._side)
            row, self._position, self._row, _kept, status = loops.repack_rows(
                source, end, row, retain, dead.arrays, horizon_ms, target, self._position, self._row
            )
            if self._row:
                self.next_offset = max(
                    self.next_offset, int(self._table[self._row - 1, fields.LAST_OFFSET]) + 1
                )
            if status == kernels.OK:
                return
            if status != kernels.FULL:
                chunk.raise_status(row, status)
            self._flush_but_open(int(loops.bytes_needed(chunk.table, row, self._side)) + kernels.SLACK)

    def _take_entries(self, chunk: Chunk, first: int, end: int) -> None:
        """Add rows of magic 0 and 1: whole ones are copied in runs, wrappers with dead messages are cut."""
        table = chunk.table[first:end]
        ends = table[:, fields.LAST_OFFSET].copy()
        whole = ~self._dead.mask(ends)  # of an uncompressed entry: its only message
        parts: list[tuple[int, int, bytes]] = []  # rows [a, b): a wrapper that was cut
        for row in np.flatnonzero(table[:, fields.ATTRIBUTES] & CODEC_MASK).tolist():
            gone = self._dead.count(int(table[row, fields.BASE_OFFSET]), int(ends[row]) + 1)
            whole[row] = gone == 0
            if 0 < gone < table[row, fields.COUNT]:
                data, ends[row] = self._cut(chunk, first + row)
                parts.append((row, row + 1, data))
        edges = np.flatnonzero(np.diff(whole.astype(np.int8), prepend=0, append=0)).tolist()
        parts += [(a, b, b"") for a, b in zip(edges[::2], edges[1::2], strict=True)]
        for a, b, data in sorted(parts):
            if data:
                self._put(np.frombuffer(data, np.uint8))
            else:
                stop = table[b - 1, fields.POSITION] + table[b - 1, fields.SIZE]
                self._put(chunk.raw[table[a, fields.POSITION] : stop])
            self.next_offset = int(ends[b - 1]) + 1

    def _cut(self, chunk: Chunk, row: int) -> tuple[bytes, int]:
        """Return a wrapper without its dead messages, and the last offset that it has then."""
        alone = Chunk(chunk.raw, chunk.uncompressed, chunk.table[row : row + 1], chunk.file)
        keep = ~self._dead.mask(decode_columns(alone).offset)
        header, at = header_of(chunk.table, row), int(chunk.table[row, fields.POSITION])
        left = filter_entry(chunk.raw, header, keep.tolist(), chunk.file, position=at)
        if left is None:
            raise AssertionError("a wrapper that keeps a message")
        return left.data, left.last_offset

    def _put(self, data: NDArray[np.uint8]) -> None:
        if self._position + data.size > self._out.size - kernels.SLACK:
            self.flush()
            if data.size > self._out.size - kernels.SLACK:
                self._out = np.empty(data.size + kernels.SLACK, np.uint8)
        self._out[self._position : self._position + data.size] = data
        self._position += data.size
        self._joining[loops.OPEN_ROW] = -1

    def _flush_but_open(self, room: int) -> None:
        """Append the buffer except a last batch that may take more records; make `room` behind that.

        So the output does not depend on when its buffer was full.
        """
        row = int(self._joining[loops.OPEN_ROW])
        if row < 0:
            self.flush()
            kept = 0
        else:
            open_row, open_class = self._table[row].copy(), int(self._classes[row])
            start, kept = int(open_row[fields.POSITION]), int(open_row[fields.SIZE])
            data, beside = self._out[start : start + kept].copy(), int(self._joining[loops.OPEN_UNCOMPRESSED])
            self._row, self._position = row, start
            self.flush()
        if kept + room > self._out.size:
            self._out = np.empty(kept + room, np.uint8)
        if kept:
            self._out[:kept] = data
            open_row[[fields.POSITION, fields.FILE_POSITION]] = 0
            open_row[[fields.RECORDS_POSITION, fields.RECORDS_END]] -= start
            self._table[0], self._classes[0] = open_row, open_class
            self._row, self._position = 1, kept
            self._joining[loops.OPEN_ROW], self._joining[loops.OPEN_UNCOMPRESSED] = 0, beside

    def flush(self) -> None:
        """Append the buffer, and continue with an empty one."""
        if self._position:
            full = _Buffer(self._out, self._table, self._classes, self._row, self._position)
            self._note_first_due(self._table[: self._row])
            if not self._leave(partial(self._append, full)):
                # The previous buffer is appended: it is free.
                self._spare, free = full, self._spare or _Buffer.empty()
                self._out, self._table, self._classes = free.out, free.table, free.classes
        self._position = 0
        self._row = 0
        self._joining[loops.OPEN_ROW] = -1

    def tombstones(self, count: int) -> TombstonesWaiting:
        """Return how many tombstones wait, and which is due first."""
        if not count or self._first_due is None:
            return TombstonesWaiting(count)
        horizon_ms, batch = self._first_due
        file = "<output>" if self._output is None else self._output.file
        header = read_header(batch, 0, len(batch), file)
        records = read_records(batch, header, file, position=0)
        first = next((record.offset for record in records if record.value is None), -1)
        return TombstonesWaiting(count, first, horizon_ms) if first >= 0 else TombstonesWaiting(count)

    def _append(self, full: _Buffer) -> None:
        """Append a buffer; uncompressed batches with a codec are compressed first."""
        out, table, classes = full.out, full.table[: full.rows], full.classes[: full.rows]
        attributes = table[:, fields.ATTRIBUTES]
        joined = classes == loops.JOINED
        coded = (attributes & CODEC_MASK) != 0
        compressed = ((classes == loops.MIXED) | joined) & coded
        if joined.any() and loops.seal_joined(out, table, classes, full.rows) != kernels.OK:
            raise AssertionError("a joined batch outside the buffer")
        for row in np.flatnonzero((classes == loops.EMPTIED) & (table[:, fields.PRODUCER_ID] < 0)).tolist():
            start = int(table[row, fields.POSITION])
            _without_timestamp(out[start : start + HEADER_BYTES])
        done = 0
        parts: list[memoryview | bytes] = []
        for row in np.flatnonzero(compressed).tolist():
            start = int(table[row, fields.POSITION])
            parts.append(out[done:start].data)
            done = start + int(table[row, fields.SIZE])
            parts.append(self._compress(int(attributes[row]) & CODEC_MASK, out[start:done]))
        rest = out[done : full.bytes]
        data = memoryview(b"".join([*parts, rest.data])) if parts else rest.data
        if len(data):
            self.written_bytes += len(data)
            if self._output is not None:
                self._output.handle.append(data)
            if self._appended is not None:
                self._appended(data)

    def _note_first_due(self, table: NDArray[np.int64]) -> None:
        """Keep a copy of the batch whose horizon comes first, to name its tombstone in the report."""
        special = table[:, fields.ATTRIBUTES] & (DELETE_HORIZON_BIT | CONTROL_BIT)
        with_horizon = np.flatnonzero((special == DELETE_HORIZON_BIT) & (table[:, fields.COUNT] > 0))
        if with_horizon.size:
            row = with_horizon[np.argmin(table[with_horizon, fields.BASE_TIMESTAMP])]
            horizon_ms = int(table[row, fields.BASE_TIMESTAMP])
            if self._first_due is None or horizon_ms < self._first_due[0]:
                start, size = int(table[row, fields.POSITION]), int(table[row, fields.SIZE])
                batch = self._out[start : start + size].tobytes()
                if self._classes[row] in (loops.MIXED, loops.JOINED):  # its records are still plain
                    attributes = int(table[row, fields.ATTRIBUTES]) & ~CODEC_MASK
                    batch = batch[:ATTRIBUTES_AT] + attributes.to_bytes(2, "big") + batch[ATTRIBUTES_AT + 2 :]
                self._first_due = (horizon_ms, batch)


def _without_timestamp(header: NDArray[np.uint8]) -> None:
    """Remove the largest timestamp from a header that only holds the end of the range.

    It has no record: an index entry for it would point at a time that no record has.
    """
    header[MAX_TIMESTAMP_AT:PRODUCER_ID_AT] = 0xFF
    crc = crc32c(header[ATTRIBUTES_AT:].tobytes())
    header[CRC_AT:ATTRIBUTES_AT] = np.frombuffer(crc.to_bytes(4, "big"), np.uint8)


class _Compressor:
    """Compresses batches; those of zstd at the fast level where that costs no bytes.

    The first batches of an output and then one in `_SAMPLED_EVERY` are compressed at both levels. The fast
    one is used while its bytes, over all of these, are not more than those of the default level.
    """

    def __init__(self) -> None:
        self._batches = 0  # of zstd
        self._more_bytes = 0  # that the fast level took for the sample

    def __call__(self, codec: int, batch: NDArray[np.uint8]) -> bytes:
        """Return the batch with its records compressed, and a new length and checksum."""
        data = batch.tobytes()
        if codec != ZSTD:
            return _with_records(data, compress(codec, data[HEADER_BYTES:]))
        number, self._batches = self._batches, self._batches + 1
        if number < _SAMPLED_FIRST or number % _SAMPLED_EVERY == 0:
            records = compress(codec, data[HEADER_BYTES:])
            self._more_bytes += len(compress(codec, data[HEADER_BYTES:], _FAST_LEVEL)) - len(records)
        else:
            records = compress(codec, data[HEADER_BYTES:], _FAST_LEVEL if self._more_bytes <= 0 else None)
        return _with_records(data, records)


def _with_records(data: bytes, records: bytes) -> bytes:
    checked = data[ATTRIBUTES_AT:HEADER_BYTES] + records
    length = len(checked) + ATTRIBUTES_AT - OVERHEAD_BYTES
    crc: int = crc32c(checked)
    return (
        data[:LENGTH_AT]
        + length.to_bytes(4, "big")
        + data[LEADER_EPOCH_AT:CRC_AT]
        + crc.to_bytes(4, "big")
        + checked
    )
