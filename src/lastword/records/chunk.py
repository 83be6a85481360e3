"""Whole batches of a file in memory, for the kernels: raw bytes, uncompressed records, and the batch table.

A `ChunkReader` reads into the same buffers again and again, so a `Chunk` is valid until the next one is
read. Length, magic, CRC and offsets of every batch are checked before its records are read. Batches before a
bad one are still returned; then the error is raised.

`RecordBuffer` holds the records of a chunk: decompressed, and translated if their magic is 0 or 1. Plain
Python reads magic 0 and 1 through `records.formats`.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptBatchError, DataError, DecompressionLimitError, FileVanishedError
from lastword.kernels import legacy as legacy_kernels
from lastword.kernels import table as fields
from lastword.kernels.batches import find_plain_zstd, rows_that_fit, valid_rows, walk_batches
from lastword.kernels.hashing import crc32c
from lastword.kernels.lz4 import BLOCK_BYTES, decompress_lz4_rows
from lastword.records import formats
from lastword.records.batch import BatchHeader, unknown_magic
from lastword.records.compression import (
    CODEC_NAMES,
    decompress_into,
    limit_of,
    located_error,
    plain_zstd_decompressor,
    too_large,
)
from lastword.wire import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    LEGACY_CRC_AT,
    LENGTH_AT,
    LZ4,
    MAGIC_AT,
    OVERHEAD_BYTES,
    SMALLEST_ENTRY_BYTES,
    ZSTD,
)

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]
SkipRows = Callable[[Table], NDArray[np.uint8]]

CHUNK_BYTES = 1 << 20
SCAN_BYTES = 4 << 20
"""Bytes of a chunk of a scan or a rewrite, if batches are not compressed: both make many calls a chunk."""
KEPT_BYTES = 16 << 20
"""A buffer of a thread is kept up to this size."""
_HEADER_COLUMNS = (
    fields.FILE_POSITION,
    fields.SIZE,
    fields.BASE_OFFSET,
    fields.LAST_OFFSET,
    fields.LEADER_EPOCH,
    fields.MAGIC,
    fields.CRC,
    fields.ATTRIBUTES,
    fields.BASE_TIMESTAMP,
    fields.MAX_TIMESTAMP,
    fields.PRODUCER_ID,
    fields.PRODUCER_EPOCH,
    fields.BASE_SEQUENCE,
    fields.COUNT,
)
"""In the order of the fields of a BatchHeader."""
_LEGACY_COLUMNS = (
    fields.FILE_POSITION,
    fields.SIZE,
    fields.LAST_OFFSET,
    fields.MAGIC,
    fields.CRC,
    fields.ATTRIBUTES,
    fields.MAX_TIMESTAMP,
)
"""In the order of the arguments of `formats.legacy_header`."""
_FIRST_ROWS = 1024
_MAX_ROWS = 16384


class Source(Protocol):
    """The source of a ChunkReader: a `files.Handle` is one."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Read from `position` into `buffer`; return the number of bytes."""


class BytesSource:
    """The content of a file that is already in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Copy from `position` into `buffer`; return the number of bytes."""
        part = self._data[position : position + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


@dataclass(slots=True)
class Chunk:
    """Whole batches.

    `raw` are the bytes as on disk. `uncompressed` is the same array, or the records alone if any batch is
    compressed. `table` is int64[rows, FIELDS], with the columns of `kernels.table`. Both buffers have slack
    after their last batch. `unverified`: the checksums wait for `verify`. `compressed`: while records wait
    for `decompress`, their destination and the smallest first offset.
    """

    raw: Bytes
    uncompressed: Bytes
    table: Table
    file: str
    scratch: dict[str, Any] = field(default_factory=dict, repr=False)
    compressed: tuple[RecordBuffer, int] | None = field(default=None, repr=False)
    unverified: bool = False
    _attributes: int = field(default=-1, repr=False)

    def verify(self) -> None:
        """Verify the checksums of the batches, if that was deferred.

        Raises CorruptBatchError.
        """
        if self.unverified:
            valid = valid_rows(self.raw, self.table, self.rows)
            if valid < self.rows:
                position = int(self.table[valid, fields.FILE_POSITION])
                raise _bad_crc(self.raw, int(self.table[valid, fields.POSITION]), self.file, position)
            self.unverified = False

    def decompress(self) -> None:
        """Decompress the records, if they are still compressed.

        Raises CorruptBatchError and DecompressionLimitError.
        """
        if self.compressed is not None:
            buffer, first_offset = self.compressed
            self.uncompressed = buffer.decompress(self.raw, self.table, first_offset)
            self.compressed = None

    @property
    def rows(self) -> int:
        """Return the number of batches."""
        return int(self.table.shape[0])

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all batches on disk."""
        return int(self.table[:, fields.SIZE].sum())

    @property
    def next_offset(self) -> int:
        """Return the offset after the last batch."""
        return int(self.table[-1, fields.LAST_OFFSET]) + 1

    def header(self, row: int) -> BatchHeader:
        """Return the header of batch `row`; `position` is in the file."""
        values = self.table[row].tolist()
        return BatchHeader(*(values[column] for column in _HEADER_COLUMNS))

    @property
    def attributes(self) -> int:
        """Return the bits that are set in the attributes of any batch."""
        if self._attributes < 0:
            self._attributes = _any_bits(self.table)
        return self._attributes

    @property
    def has_old(self) -> bool:
        """Return whether a batch has magic 0 or 1."""
        return bool(np.minimum.reduce(self.table[:, fields.MAGIC]) < 2)

    def data_rows(self) -> NDArray[np.bool_]:
        """Return which batches hold users' records, not control records."""
        rows: NDArray[np.bool_] = (self.table[:, fields.ATTRIBUTES] & CONTROL_BIT) == 0
        return rows

    def raise_status(self, row: int, status: int) -> NoReturn:
        """Raise the error for a kernel's bad status about batch `row`."""
        position = int(self.table[row, fields.FILE_POSITION])
        offset = int(self.table[row, fields.BASE_OFFSET])
        if status == kernels.NO_SLACK:
            raise ValueError("a chunk's buffers need slack after their last batch")
        text = kernels.STATUS_TEXT[status]
        raise CorruptBatchError.damage(
            f"offset {offset}: {text} in this batch", text.replace(" ", "-"), self.file, position, offset
        )


class ChunkReader:
    """Iterates over the batches of `source` between two positions, about `chunk_bytes` at a time.

    `position` is the start of the next chunk, `next_offset` the offset after the last batch read.

    Args:
        source: A handle with `pread_into(buffer, position)`.
        file: Its name, for errors.
        start_position: Position where a batch starts.
        end_position: End of the bytes to read.
        chunk_bytes: Bytes to read at a time. The first chunk has at most `CHUNK_BYTES`, and so have those
            after it while batches are compressed: their records must fit the cache.
        verify: Verify every CRC. Lengths, magic and offsets are checked always.
        decompress: False returns chunks for their headers only: compressed records stay compressed.
        skip_rows: Returns, for a chunk's table, the batches (uint8, a value a row) that are not needed. They
            are not decompressed, and if they are compressed, they have no bytes in `uncompressed`.
        max_batch_bytes: A larger batch is an error; None: any size that fits the file.
        first_offset: No batch may start below it.

    Raises:
        CorruptBatchError: A batch is damaged; names file, position and offset.
        UnknownMagicError: A batch has an unknown magic.
        DecompressionLimitError: The records of a batch are larger than the bound.
        FileVanishedError: After the whole batches of a source that ends before `end_position`: it was
            truncated, so its owner lists the files again.
    """

    def __init__(
        self,
        source: Source,
        file: str,
        start_position: int,
        end_position: int,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        verify: bool = True,
        decompress: bool = True,
        skip_rows: SkipRows | None = None,
        max_batch_bytes: int | None = None,
        first_offset: int = 0,
    ) -> None:
        self.position = start_position
        self.next_offset = first_offset
        self._source = source
        self._file = file
        self._end = end_position
        self._is_short = False  # the source ended before `end_position`
        self._verify = verify
        self._verify_later = False
        self._decompresses = decompress
        self._skip_rows = skip_rows
        self._max_batch_bytes = max_batch_bytes
        capacity = max(min(chunk_bytes, end_position - start_position), HEADER_BYTES)
        self._capacity = min(capacity, CHUNK_BYTES)
        self._most = capacity  # once a chunk had no compressed batch
        self._raw = np.empty(self._capacity + kernels.SLACK, np.uint8)
        self._have = 0  # bytes in `_raw`, the first of them from `position`
        self._used = 0  # bytes of `_raw` that were returned in chunks
        self._records = RecordBuffer(file, skip_rows)
        self._splits = True  # may return fewer batches than were read
        self._table: Table = np.empty((_FIRST_ROWS, fields.FIELDS), np.int64)
        self._scratch: dict[str, Any] = {}
        self._observer: Callable[[Chunk], None] | None = None
        self._waiting: deque[tuple[Bytes, RecordBuffer, Table, dict[str, Any]]] = deque()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        self._drop_used()
        while self.position < self._end:
            self._fill()
            rows, used, next_offset, status = self._walk()
            if rows:
                rows, used, next_offset = self._limit_rows(rows, used, next_offset)
                self._used = used
                first_offset, self.next_offset = self.next_offset, next_offset
                chunk = self._chunk(rows, first_offset)
                if self._observer is not None:
                    chunk.decompress()
                    self._observer(chunk)
                return chunk
            if status == kernels.MORE and self._grow():
                continue
            if self._is_short and status in (kernels.OK, kernels.MORE):
                break
            self._raise(status)
        if self._is_short:
            raise FileVanishedError(
                f"{self._file} became shorter while it was read",
                remedy="read again",
                file=self._file,
                position=self.position,
            )
        raise StopIteration

    def extend(self, end_position: int) -> None:
        """Continue up to `end_position`: the source got more whole batches after its end was reached."""
        self._end = end_position

    def in_slots(self, slots: int, *, verify_later: bool = False) -> None:
        """Read into this many sets of buffers in turn, so that threads can process several chunks.

        A chunk is valid until the `slots`-th one after it is read. Records stay compressed until
        `Chunk.decompress`, and with `verify_later` checksums may wait for `Chunk.verify`.
        """
        self._verify_later = verify_later
        for _ in range(slots - 1):
            table: Table = np.empty((_FIRST_ROWS, fields.FIELDS), np.int64)
            records = RecordBuffer(self._file, self._skip_rows)
            self._waiting.append((np.empty(self._raw.size, np.uint8), records, table, {}))

    def set_observer(self, observe: Callable[[Chunk], None]) -> None:
        """Call `observe` with each chunk, decompressed, before it is returned."""
        self._observer = observe

    def _drop_used(self) -> None:
        if self._used:
            rest = self._have - self._used
            before = self._raw
            if self._waiting:
                self._waiting.append((self._raw, self._records, self._table, self._scratch))
                self._raw, self._records, self._table, self._scratch = self._waiting.popleft()
            size = max(before.size, self._capacity + kernels.SLACK)
            if self._raw.size < size:
                self._raw = np.empty(size, np.uint8)
            self._raw[:rest] = before[self._used : self._have]
            self.position += self._used
            self._have = rest
            self._used = 0

    def _fill(self) -> None:
        want = min(self._raw.size - kernels.SLACK, self._end - self.position)
        view = self._raw.data
        while self._have < want:
            got = self._source.pread_into(view[self._have : want], self.position + self._have)
            if got <= 0:  # shorter than expected: the bytes may still be whole batches
                self._end = self.position + self._have
                self._is_short = True
                return
            self._have += got

    def _walk(self) -> tuple[int, int, int, int]:
        """Return (batches, bytes, next offset, status): the whole and valid batches that were read."""
        rows, used, next_offset, status = self._walk_from(0, 0, self.next_offset, verify=False)
        if not self._verify:
            return rows, used, next_offset, status
        table = self._table[:rows]
        valid = rows
        if rows and np.minimum.reduce(table[:, fields.MAGIC]) < 2:
            valid = int(np.argmax(table[:, fields.MAGIC] < 2))
        if valid < rows or not self._defers_checksums:
            valid = int(valid_rows(self._raw, table, valid))
        if valid < rows:
            used = int(table[valid, fields.POSITION])
            next_offset = int(table[valid - 1, fields.LAST_OFFSET]) + 1 if valid else self.next_offset
        elif status in (kernels.OK, kernels.MORE, kernels.FULL):
            return rows, used, next_offset, status
        # Old batches, and damage: one after another, the checksum of a batch before its offsets.
        return self._walk_from(valid, used, next_offset, verify=True)

    def _limit_rows(self, rows: int, used: int, next_offset: int) -> tuple[int, int, int]:
        """Return (batches, bytes, next offset) of a chunk whose records keep to the bound on decompression.

        So a chunk takes no more memory than one batch may.
        """
        if rows == 1 or not self._decompresses or not self._splits:
            return rows, used, next_offset
        table = self._table[:rows]
        if not _any_bits(table) & CODEC_MASK:
            return rows, used, next_offset
        within = int(
            rows_that_fit(self._raw, table, rows, self._records.skip_rows(table), self._records.limit_bytes)
        )
        if within == rows:
            return rows, used, next_offset
        return within, int(table[within, fields.POSITION]), int(table[within - 1, fields.LAST_OFFSET]) + 1

    @property
    def _defers_checksums(self) -> bool:
        return self._verify and self._verify_later and self._observer is None

    def _walk_from(self, row: int, used: int, next_offset: int, *, verify: bool) -> tuple[int, int, int, int]:
        while True:
            row, used, next_offset, status = walk_batches(
                self._raw, used, self._have, self.position, next_offset, verify, self._table, row
            )
            if status != kernels.FULL or row >= _MAX_ROWS:
                return row, used, next_offset, status
            larger = np.empty((4 * row, fields.FIELDS), np.int64)
            larger[:row] = self._table
            self._table = larger

    def _grow(self) -> bool:
        """Make room for the first batch; return False if the bytes to read do not hold all of it."""
        left = self._end - self.position
        if self._have < 17:
            return self._have < left
        length = self._raw[LENGTH_AT:LEADER_EPOCH_AT].tobytes()
        size = int.from_bytes(length, "big", signed=True) + OVERHEAD_BYTES
        if self._max_batch_bytes is not None and size > self._max_batch_bytes:
            self._raise(kernels.BAD_LENGTH)
        if size > left or size <= self._have:
            return False
        larger = np.empty(size + kernels.SLACK, np.uint8)
        larger[: self._have] = self._raw[: self._have]
        self._raw = larger
        return True

    def _chunk(self, rows: int, first_offset: int) -> Chunk:
        table = self._table[:rows]
        if self._max_batch_bytes is not None and (table[:, fields.SIZE] > self._max_batch_bytes).any():
            row = int(np.argmax(table[:, fields.SIZE] > self._max_batch_bytes))
            Chunk(self._raw, self._raw, table, self._file).raise_status(row, kernels.BAD_LENGTH)
        chunk = Chunk(self._raw, self._raw, table, self._file, self._scratch)
        old = chunk.has_old
        chunk.unverified = self._defers_checksums and not old
        coded = old or chunk.attributes & CODEC_MASK
        if not coded:
            self._capacity = self._most
        if coded and self._decompresses:
            chunk.compressed = self._records, first_offset
            if old or not self._waiting:  # the rows of old batches are incomplete before
                chunk.decompress()
        return chunk

    def _raise(self, status: int) -> NoReturn:
        """Raise for the batch at `position`, which is at the start of `_raw`."""
        head = self._raw[: min(self._have, HEADER_BYTES)].tobytes()
        offset = int.from_bytes(head[:8], "big", signed=True)
        if status == kernels.MORE:
            left = self._end - self.position
            raise CorruptBatchError(
                f"the last {left} bytes are not a whole batch",
                code="truncated",
                remedy="open the log for writing: recovery cuts a torn tail",
                file=self._file,
                position=self.position,
                offset=offset,
            )
        if status == kernels.BAD_MAGIC:
            raise unknown_magic(head[MAGIC_AT], self._file, self.position, offset)
        if status == kernels.BAD_CRC:
            raise _bad_crc(self._raw, 0, self._file, self.position)
        detail = f"; at least {self.next_offset} was due" if status == kernels.BAD_OFFSET else ""
        text = kernels.STATUS_TEXT[status]
        code = text.replace(" ", "-")
        raise CorruptBatchError.damage(
            f"offset {offset}: {text}{detail}", code, self._file, self.position, offset
        )


def _any_bits(table: Table) -> int:
    """Return the bits that are set in the attributes of any row."""
    return int(np.bitwise_or.reduce(table[:, fields.ATTRIBUTES])) & 0xFFFF


def _bad_crc(raw: Bytes, at: int, file: str, position: int) -> CorruptBatchError:
    """Return the error for the batch at raw[at:], with `position` in its file."""
    head = raw[at : at + HEADER_BYTES].tobytes()
    offset = int.from_bytes(head[:8], "big", signed=True)
    size = int.from_bytes(head[LENGTH_AT:LEADER_EPOCH_AT], "big", signed=True) + OVERHEAD_BYTES
    if head[MAGIC_AT] < 2:
        stored = int.from_bytes(head[LEGACY_CRC_AT:MAGIC_AT], "big")
        return CorruptBatchError.crc(
            file, position, offset, stored, zlib.crc32(raw.data[at + MAGIC_AT : at + size])
        )
    stored = int.from_bytes(head[CRC_AT:ATTRIBUTES_AT], "big")
    return CorruptBatchError.crc(
        file, position, offset, stored, int(crc32c(raw, at + ATTRIBUTES_AT, size - ATTRIBUTES_AT))
    )


def chunk_of(data: bytes | bytearray | memoryview, file: str = "<memory>", *, verify: bool = True) -> Chunk:
    """Return all batches in `data` as one chunk; raises as ChunkReader does.

    `data` must hold at least one batch.
    """
    reader = ChunkReader(BytesSource(data), file, 0, len(data), chunk_bytes=max(len(data), 1), verify=verify)
    reader._splits = False
    reader._raw = np.empty(max(len(data), HEADER_BYTES) + kernels.SLACK, np.uint8)
    reader._table = np.empty((max(len(data) // SMALLEST_ENTRY_BYTES, 1), fields.FIELDS), np.int64)
    chunk = next(reader)
    if reader._used != len(data):
        next(reader)
    return chunk


class ChunkJoiner:
    """Join small chunks, also of different files, into one chunk, whose batches are decoded in one call.

    Args:
        room_bytes: The bytes of records that it takes.
    """

    def __init__(self, room_bytes: int) -> None:
        self._data = np.empty(room_bytes + kernels.SLACK, np.uint8)
        self._room = room_bytes
        self._scratch: dict[str, Any] = {}
        self._clear()

    def _clear(self) -> None:
        self._used = 0
        self.chunks: list[Chunk] = []  # as they were added; their records are in `_data`

    def add(self, chunk: Chunk) -> bool:
        """Copy the records of a chunk; return False if there is no room for them."""
        table = chunk.table
        first, end = int(table[0, fields.RECORDS_POSITION]), int(table[-1, fields.RECORDS_END])
        start, used = self._used, self._used + end - first
        if used > self._room:
            return False
        self._data[start:used] = chunk.uncompressed[first:end]
        table = table.copy()
        table[:, fields.RECORDS_POSITION : fields.RECORDS_END + 1] += start - first
        self.chunks.append(Chunk(self._data, self._data, table, chunk.file, self._scratch))
        self._used = used
        return True

    def take(self) -> tuple[Chunk, list[Chunk]]:
        """Return the joined chunk, and the chunks that it consists of. Both are valid until the next `add`.

        Only the records of the joined chunk may be read. An error in its records names the first file.
        """
        chunks = self.chunks
        table = np.concatenate([chunk.table for chunk in chunks])
        joined = Chunk(self._data, self._data, table, chunks[0].file, self._scratch)
        self._clear()
        return joined, chunks


# ---------------------------------------------------------------- the buffer of uncompressed records


_NONE = np.empty(0, np.uint8)


class RecordBuffer:
    """An array that grows to the size of the largest chunk, and is reused for every chunk.

    Args:
        file: Name of the file, for errors and for the bound on decompression.
        skip_rows: Returns, for a table, the batches (uint8, a value a row) of which no record is needed.
    """

    def __init__(self, file: str, skip_rows: SkipRows | None = None) -> None:
        self._file = file  # for errors
        self._skip_rows = skip_rows
        self.limit_bytes = limit_of(file)  # bound of the records of a batch
        self._data = np.empty(kernels.SLACK, np.uint8)

    def use_for(self, file: str, limit_bytes: int) -> None:
        """Use the buffer for another file, with another bound."""
        self._file, self.limit_bytes = file, limit_bytes

    def drop_large(self) -> None:
        """Drop the memory of the buffer if it is large."""
        if self._data.size > KEPT_BYTES:
            self._data = np.empty(kernels.SLACK, np.uint8)

    def skip_rows(self, table: Table) -> NDArray[np.uint8]:
        """Return the batches of which no record is needed (1); empty: there are none."""
        return _NONE if self._skip_rows is None else self._skip_rows(table)

    def decompress(self, raw: Bytes, table: Table, first_offset: int) -> Bytes:
        """Return the records of every batch, one batch after another; set their positions in `table`.

        `first_offset`: no record of magic 0 or 1 may be below it. The array is valid until the next call.
        """
        rows = table.shape[0]
        skip_rows = self.skip_rows(table)
        done = row = 0
        while row < rows:
            row, done, status = decompress_lz4_rows(raw, table, row, rows, skip_rows, self._data, done)
            if status == kernels.OK:
                break
            if status == kernels.FULL:
                self._reserve(done, self._room_after(table, row, self._data.size - kernels.SLACK - done))
            elif table[row, fields.MAGIC] < 2:
                row, done = self._translate(raw, table, row, done, first_offset)
            else:
                row, done = self._decompress_alike(raw, table, row, skip_rows, done)
        self._check_sizes(table)
        return self._data

    def _room_after(self, table: Table, row: int, room: int) -> int:
        """Return the room to try next for a batch that did not fit into `room` bytes.

        DecompressionLimitError if its bound was already tried.
        """
        size = int(table[row, fields.SIZE])
        if int(table[row, fields.ATTRIBUTES]) & CODEC_MASK == 0:
            return size
        most = self.limit_bytes + BLOCK_BYTES  # the kernel needs room for a whole block
        if room >= most:
            self._raise_too_large(table, row)
        return min(max(2 * room, 8 * size, 2 * BLOCK_BYTES), most)

    def _check_sizes(self, table: Table) -> None:
        """Raise DecompressionLimitError for a batch that fitted the buffer but exceeds the bound."""
        sizes = table[:, fields.RECORDS_END] - table[:, fields.RECORDS_POSITION]
        if sizes.size and int(sizes.max()) > self.limit_bytes:
            for row in (sizes > self.limit_bytes).nonzero()[0].tolist():
                if table[row, fields.MAGIC] == 2 and table[row, fields.ATTRIBUTES] & CODEC_MASK:
                    self._raise_too_large(table, row)

    def _raise_too_large(self, table: Table, row: int) -> NoReturn:
        codec = int(table[row, fields.ATTRIBUTES]) & CODEC_MASK
        raise self._located(
            too_large(CODEC_NAMES[codec], int(table[row, fields.SIZE]), self.limit_bytes), table, row
        )

    def _decompress_alike(
        self, raw: Bytes, table: Table, row: int, skip_rows: NDArray[np.uint8], done: int
    ) -> tuple[int, int]:
        """Decompress the batch at `row` and those after it with the same codec, through its library."""
        codec = int(table[row, fields.ATTRIBUTES]) & CODEC_MASK
        alike = (table[row:, fields.MAGIC] == 2) & (table[row:, fields.ATTRIBUTES] & CODEC_MASK == codec)
        if codec == LZ4:  # a frame that the kernel does not support
            end = row + 1
        else:
            end = table.shape[0] if alike.all() else row + int(np.argmin(alike))
        starts = table[row:end, fields.POSITION] + HEADER_BYTES
        ends = starts + table[row:end, fields.SIZE] - HEADER_BYTES
        if skip_rows.size:
            ends[skip_rows[row:end] != 0] = 0
        rooms, decompress_plain = self._plain_frames(codec, raw, starts, ends)
        places = [done]
        data = raw.data
        batches = zip(starts.tolist(), ends.tolist(), rooms, strict=True)
        for number, (first, last, room) in enumerate(batches, row):
            if last > first:
                records = decompress_plain(data[first:last], room) if room else None
                if records is None:
                    done += self._decompress_batch(codec, data[first:last], done, table, number)
                else:
                    size = len(records)
                    self._reserve(done, size)
                    self._data.data[done : done + size] = records
                    done += size
            places.append(done)
        table[row:end, fields.RECORDS_POSITION] = places[:-1]
        table[row:end, fields.RECORDS_END] = places[1:]
        return end, done

    def _plain_frames(
        self, codec: int, raw: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[list[int], Callable[[memoryview, int], bytes | None]]:
        """Return the room to try for each plain frame of zstd (0 for others), and their decompressor."""
        plain = np.zeros(starts.size, np.bool_)
        if codec != ZSTD:
            return plain.tolist(), lambda data, room: None

        find_plain_zstd(raw, starts, ends, plain)
        rooms = np.minimum(np.maximum(8 * (ends - starts), 1 << 16), self.limit_bytes)
        return np.where(plain, rooms, 0).tolist(), plain_zstd_decompressor()

    def _translate(self, raw: Bytes, table: Table, row: int, done: int, first_offset: int) -> tuple[int, int]:
        """Translate the rows of magic 0 and 1 from `row` on, up to the first of another magic.

        Returns (row reached, bytes used). `first_offset`: no record of the table's first row may be below it.
        """
        rows = table.shape[0]
        while row < rows and table[row, fields.MAGIC] < 2:
            row, done, status = legacy_kernels.translate_messages(raw, table, row, rows, self._data, done)
            if status == kernels.FULL:
                self._reserve(done, int(table[row, fields.SIZE]) + legacy_kernels.GROWTH_BYTES)
            elif status != kernels.OK:
                raise _bad(kernels.STATUS_TEXT[status], table, row, self._file)
            elif row < rows and table[row, fields.MAGIC] < 2:
                done = self._translate_wrapper(raw, table, row, done)
                _check_order(table, row, first_offset, self._file)
                row += 1
        return row, done

    def _translate_wrapper(self, raw: Bytes, table: Table, row: int, done: int) -> int:
        at, file = int(table[row, fields.POSITION]), self._file
        header = header_of(table, row)
        data = formats.inner_bytes(raw, header, file, at, self.limit_bytes)
        inner = np.empty(len(data) + kernels.SLACK, np.uint8)
        inner[: len(data)] = np.frombuffer(data, np.uint8)
        count, first, last, status = legacy_kernels.scan_inner(inner, len(data))
        if status != kernels.OK:
            text = _INNER_TEXT.get(status, kernels.STATUS_TEXT[status])
            raise _bad(f"{text} (after {count} whole inner entries)", table, row, file)
        self._reserve(done, len(data) + legacy_kernels.GROWTH_BYTES * (count + 1))
        done, status = legacy_kernels.translate_wrapper(
            inner, count, first, last, table, row, self._data, done
        )
        if status != kernels.OK:
            raise _bad(f"inner entries: {kernels.STATUS_TEXT[status]}", table, row, file)
        return done

    def _decompress_batch(self, codec: int, data: memoryview, done: int, table: Table, row: int) -> int:
        room = max(8 * len(data), 1 << 16)
        while True:
            room = min(room, self.limit_bytes)
            self._reserve(done, room)
            usable = min(self._data.size - kernels.SLACK, done + self.limit_bytes)
            try:
                return decompress_into(codec, data, self._data[:usable], done)
            except DecompressionLimitError as error:
                if usable - done >= self.limit_bytes:
                    raise self._located(error, table, row) from None
                room = 4 * (usable - done)
            except DataError as error:
                raise self._located(error, table, row) from None

    def _located(self, error: DataError, table: Table, row: int) -> DataError:
        position, offset = int(table[row, fields.FILE_POSITION]), int(table[row, fields.BASE_OFFSET])
        return located_error(error, self._file, position, offset)

    def _reserve(self, used: int, room: int) -> None:
        if used + room + kernels.SLACK > self._data.size:
            size = min(2 * (used + room), max(used + room, self.limit_bytes))
            larger = np.empty(size + kernels.SLACK, np.uint8)
            larger[:used] = self._data[:used]
            self._data = larger


_INNER_TEXT = {
    kernels.BAD_COUNT: "a wrapper without a whole inner entry",
    kernels.BAD_RECORD: "compressed inside a compressed entry",
}


def _check_order(table: Table, row: int, first_offset: int, file: str) -> None:
    """Check that the range of a wrapper, known after decompression, does not overlap its neighbours."""
    due = int(table[row - 1, fields.LAST_OFFSET]) + 1 if row else first_offset
    next_base = table[row + 1, fields.BASE_OFFSET] if row + 1 < table.shape[0] else None
    first, last = int(table[row, fields.BASE_OFFSET]), int(table[row, fields.LAST_OFFSET])
    if first < due or (next_base is not None and next_base <= last):
        raise _bad(f"its messages {first} to {last} overlap those beside it", table, row, file)


def header_of(table: Table, row: int) -> BatchHeader:
    """Return a row of magic 0 or 1 as a header for `formats.inner_bytes`; `position` is in the file."""
    return formats.legacy_header(*table[row, _LEGACY_COLUMNS].tolist())


def _bad(text: str, table: Table, row: int, file: str) -> CorruptBatchError:
    offset = int(table[row, fields.LAST_OFFSET])
    return CorruptBatchError.damage(
        f"offset {offset}: {text}", "bad-records", file, int(table[row, fields.FILE_POSITION]), offset
    )
