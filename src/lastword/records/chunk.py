"""Whole batches of a file in memory, as kernels want them: raw bytes, plain bytes, and a table with one row
a batch.

A `ChunkReader` reads on and on into the same buffers, so a `Chunk` holds until the next one is asked for.
Every batch's length, magic, CRC and offsets are checked before anything looks at its records; batches
before a bad one are still given out, then the error is raised.
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
from lastword.errors import (
    CorruptBatchError,
    FileVanishedError,
    UnknownMagicError,
)
from lastword.kernels import table as fields
from lastword.kernels.batches import rows_that_fit, valid_rows, walk_batches
from lastword.kernels.crc32c import crc32c
from lastword.records.batch import BatchHeader
from lastword.records.uncompressed import PlainBuffer, Unwanted
from lastword.wire import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    LEGACY_CRC_AT,
    LENGTH_AT,
    MAGIC_AT,
    OVERHEAD_BYTES,
    SMALLEST_ENTRY_BYTES,
)

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]

CHUNK_BYTES = 1 << 20
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
"""In the order of a BatchHeader."""
_FIRST_ROWS = 1024
_MOST_ROWS = 16384


class Source(Protocol):
    """What a ChunkReader reads: a `files.Handle` is one."""

    def pread_into(self, buffer: memoryview, position: int) -> int: ...


class BytesSource:
    """A file's content that is already in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        part = self._data[position : position + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


@dataclass(slots=True)
class Chunk:
    """Whole batches. `raw`: bytes as on disk; `plain`: the same array, or the inflated records when any
    batch is compressed.

    `table`: int64[rows, FIELDS], columns named in `kernels.table`. Both buffers have slack after their last
    batch. `unverified`: checksums wait for `verify`; `compressed`: while records wait for `inflate`, where
    they are to go and the first offset due.
    """

    raw: Bytes
    uncompressed: Bytes
    table: Table
    file: str
    scratch: dict[str, Any] = field(default_factory=dict, repr=False)
    compressed: tuple[PlainBuffer, int] | None = field(default=None, repr=False)
    unverified: bool = False

    def verify(self) -> None:
        """Check the batches' checksums, if that was left to whoever looks at the records. Raises
        CorruptBatchError.
        """
        if self.unverified:
            sound = valid_rows(self.raw, self.table, self.rows)
            if sound < self.rows:
                position = int(self.table[sound, fields.FILE_POSITION])
                raise _bad_crc(self.raw, int(self.table[sound, fields.POSITION]), self.file, position)
            self.unverified = False

    def inflate(self) -> None:
        """Put the records where kernels can read them, if they are compressed still. Raises
        CorruptBatchError and DecompressionLimitError.
        """
        if self.compressed is not None:
            buffer, first_offset = self.compressed
            self.uncompressed = buffer.inflate(self.raw, self.table, first_offset)
            self.compressed = None

    @property
    def rows(self) -> int:
        """Number of batches."""
        return int(self.table.shape[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches on disk."""
        return int(self.table[:, fields.SIZE].sum())

    @property
    def next_offset(self) -> int:
        """One past the last batch's last offset."""
        return int(self.table[-1, fields.LAST_OFFSET]) + 1

    def header(self, row: int) -> BatchHeader:
        """The header of batch `row`; `position` is in the file."""
        values = self.table[row].tolist()
        return BatchHeader(*(values[column] for column in _HEADER_COLUMNS))

    def data_rows(self) -> NDArray[np.bool_]:
        """Which batches hold users' records, not control records."""
        return (self.table[:, fields.ATTRIBUTES] & CONTROL_BIT) == 0

    def raise_status(self, row: int, status: int) -> NoReturn:
        """Raise the error for a kernel's bad status about batch `row`."""
        position = int(self.table[row, fields.FILE_POSITION])
        offset = int(self.table[row, fields.BASE_OFFSET])
        if status == kernels.NO_SLACK:
            raise ValueError("a chunk's buffers need slack after their last batch")
        text = kernels.STATUS_TEXT[status]
        raise CorruptBatchError(
            f"offset {offset}: {text} in this batch",
            code=text.replace(" ", "-"),
            remedy="restore the file from a copy; `lastword verify` lists all damage",
            file=self.file,
            position=position,
            offset=offset,
        )


class ChunkReader:
    """Iterates over the batches of `source` between two positions, about `chunk_bytes` at a time.

    Args:
        source: a handle with `pread_into(buffer, position)`.
        file: its name, for errors.
        start_position, end_position: where a batch starts, and where the bytes to read end.
        verify: check every CRC. Lengths, magic and offsets are checked always.
        inflate: False gives chunks of which only the headers can be used: compressed records stay so.
        unwanted: given a chunk's table, which of its batches (uint8, one a row) nobody will look into:
            where batches are compressed, theirs are not inflated, and have no bytes in `plain`.
        max_batch_bytes: a larger batch is an error; None: whatever fits the file.
        first_offset: no batch may start below it.
        stop_at_partial_tail: end quietly at a batch whose bytes are not all there, as a reader of a growing
            file must.

    Raises CorruptBatchError, UnknownMagicError or DecompressionLimitError, with file, position and offset;
    FileVanishedError after the whole batches of a source that ends before `end_position`: a truncation made
    it shorter, so its owner lists the files again. With `stop_at_partial_tail` that is a quiet end.
    `position` is where the next chunk starts, `next_offset` one past the last batch read.
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
        inflate: bool = True,
        unwanted: Unwanted | None = None,
        max_batch_bytes: int | None = None,
        first_offset: int = 0,
        stop_at_partial_tail: bool = False,
    ) -> None:
        self.position = start_position
        self.next_offset = first_offset
        self._source = source
        self._file = file
        self._end = end_position
        self._is_short = False  # the source ended before `end_position`
        self._verify = verify
        self._verify_later = False
        self._inflates = inflate
        self._unwanted = unwanted
        self._max_batch_bytes = max_batch_bytes
        self._stop_at_partial_tail = stop_at_partial_tail
        capacity = max(min(chunk_bytes, end_position - start_position), HEADER_BYTES)
        self._raw = np.empty(capacity + kernels.SLACK, np.uint8)
        self._have = 0  # bytes in `_raw`, the first of them from `position`
        self._used = 0  # of those, bytes given out
        self._plain = PlainBuffer(file, unwanted)
        self._splits = True  # may give fewer batches than were read
        self._table: Table = np.empty((_FIRST_ROWS, fields.FIELDS), np.int64)
        self._scratch: dict[str, Any] = {}
        self._shown_to: Callable[[Chunk], None] | None = None
        self._waiting: deque[tuple[Bytes, PlainBuffer, Table, dict[str, Any]]] = deque()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        self._drop_used()
        while self.position < self._end:
            self._fill()
            rows, used, next_offset, status = self._walk()
            if rows:
                rows, used, next_offset = self._within_limit(rows, used, next_offset)
                self._used = used
                first_offset, self.next_offset = self.next_offset, next_offset
                chunk = self._chunk(rows, first_offset)
                if self._shown_to is not None:
                    chunk.inflate()
                    self._shown_to(chunk)
                return chunk
            if status == kernels.MORE and self._grow():
                continue
            if status in (kernels.OK, kernels.MORE) and (self._is_short or self._stop_at_partial_tail):
                break
            self._raise(status)
        if self._is_short and not self._stop_at_partial_tail:
            raise FileVanishedError(
                f"{self._file} became shorter while it was read",
                remedy="read again",
                file=self._file,
                position=self.position,
            )
        raise StopIteration

    def in_lanes(self, lanes: int, *, verify_later: bool = False) -> None:
        """Read into as many sets of buffers in turn: a chunk holds until the `lanes`-th one after it is asked
        for, so that threads can be busy with several. Records stay compressed until `Chunk.inflate`, and with
        `verify_later` checksums may wait for `Chunk.verify`.
        """
        self._verify_later = verify_later
        for _ in range(lanes - 1):
            table: Table = np.empty((_FIRST_ROWS, fields.FIELDS), np.int64)
            plain = PlainBuffer(self._file, self._unwanted)
            self._waiting.append((np.empty(self._raw.size, np.uint8), plain, table, {}))

    def show_to(self, hear: Callable[[Chunk], None]) -> None:
        """`hear` gets each chunk before it is given out, with its records inflated."""
        self._shown_to = hear

    def _drop_used(self) -> None:
        if self._used:
            rest = self._have - self._used
            before = self._raw
            if self._waiting:
                self._waiting.append((self._raw, self._plain, self._table, self._scratch))
                self._raw, self._plain, self._table, self._scratch = self._waiting.popleft()
                if self._raw.size < before.size:
                    self._raw = np.empty(before.size, np.uint8)
            self._raw[:rest] = before[self._used : self._have]
            self.position += self._used
            self._have = rest
            self._used = 0

    def _fill(self) -> None:
        want = min(self._raw.size - kernels.SLACK, self._end - self.position)
        view = self._raw.data
        while self._have < want:
            got = self._source.pread_into(view[self._have : want], self.position + self._have)
            if got <= 0:  # shorter than its owner said: what is there may still be whole batches
                self._end = self.position + self._have
                self._is_short = True
                return
            self._have += got

    def _walk(self) -> tuple[int, int, int, int]:
        """(batches, bytes, next offset, status) of what was read: whole and sound batches, up to a status."""
        rows, used, next_offset, status = self._walk_from(0, 0, self.next_offset, verify=False)
        if not self._verify:
            return rows, used, next_offset, status
        table = self._table[:rows]
        new = table[:, fields.MAGIC] == 2
        sound = rows if new.all() else int(np.argmin(new))
        if sound < rows or not self._leaves_checksums:
            sound = int(valid_rows(self._raw, table, sound))
        if sound < rows:
            used = int(table[sound, fields.POSITION])
            next_offset = int(table[sound - 1, fields.LAST_OFFSET]) + 1 if sound else self.next_offset
        elif status in (kernels.OK, kernels.MORE, kernels.FULL):
            return rows, used, next_offset, status
        # Old batches, and whatever is wrong: one after another, a batch's checksum before its offsets.
        return self._walk_from(sound, used, next_offset, verify=True)

    def _within_limit(self, rows: int, used: int, next_offset: int) -> tuple[int, int, int]:
        """(batches, bytes, next offset) of a chunk whose records surely keep to the bound on decompression:
        what is read at a time takes no more memory than one batch may."""
        if rows == 1 or not self._inflates or not self._splits:
            return rows, used, next_offset
        table = self._table[:rows]
        if not (table[:, fields.ATTRIBUTES] & CODEC_MASK).any():
            return rows, used, next_offset
        within = int(
            rows_that_fit(self._raw, table, rows, self._plain.unwanted(table), self._plain.limit_bytes)
        )
        if within == rows:
            return rows, used, next_offset
        return within, int(table[within, fields.POSITION]), int(table[within - 1, fields.LAST_OFFSET]) + 1

    @property
    def _leaves_checksums(self) -> bool:
        return self._verify and self._verify_later and self._shown_to is None

    def _walk_from(self, row: int, used: int, next_offset: int, *, verify: bool) -> tuple[int, int, int, int]:
        while True:
            row, used, next_offset, status = walk_batches(
                self._raw, used, self._have, self.position, next_offset, verify, self._table, row
            )
            if status != kernels.FULL or row >= _MOST_ROWS:
                return row, used, next_offset, status
            larger = np.empty((4 * row, fields.FIELDS), np.int64)
            larger[:row] = self._table
            self._table = larger

    def _grow(self) -> bool:
        """Make room for the first batch; False when the bytes to read do not hold all of it."""
        left = self._end - self.position
        if self._have < 17:
            return self._have < left
        size = self._first_size()
        if self._max_batch_bytes is not None and size > self._max_batch_bytes:
            self._raise(kernels.BAD_LENGTH)
        if size > left or size <= self._have:
            return False
        larger = np.empty(size + kernels.SLACK, np.uint8)
        larger[: self._have] = self._raw[: self._have]
        self._raw = larger
        return True

    def _first_size(self) -> int:
        return (
            int.from_bytes(self._raw[LENGTH_AT:LEADER_EPOCH_AT].tobytes(), "big", signed=True)
            + OVERHEAD_BYTES
        )

    def _chunk(self, rows: int, first_offset: int) -> Chunk:
        table = self._table[:rows]
        if self._max_batch_bytes is not None and (table[:, fields.SIZE] > self._max_batch_bytes).any():
            row = int(np.argmax(table[:, fields.SIZE] > self._max_batch_bytes))
            Chunk(self._raw, self._raw, table, self._file).raise_status(row, kernels.BAD_LENGTH)
        chunk = Chunk(self._raw, self._raw, table, self._file, self._scratch)
        old = (table[:, fields.MAGIC] < 2).any()
        chunk.unverified = self._leaves_checksums and not old
        coded = old or (table[:, fields.ATTRIBUTES] & CODEC_MASK).any()
        if coded and self._inflates:
            chunk.compressed = self._plain, first_offset
            if old or not self._waiting:  # the table of old ones says nothing before
                chunk.inflate()
        return chunk

    def _raise(self, status: int) -> NoReturn:
        """Raise for the batch at `position`, which is at the start of `_raw`."""
        head = self._raw[: min(self._have, HEADER_BYTES)].tobytes()
        offset = int.from_bytes(head[:8], "big", signed=True)
        at: dict[str, Any] = {"file": self._file, "position": self.position, "offset": offset}
        remedy = "restore the file from a copy; `lastword verify` lists all damage"
        if status == kernels.MORE:
            left = self._end - self.position
            raise CorruptBatchError(
                f"the last {left} bytes are not a whole batch",
                code="truncated",
                remedy="open the log for writing: recovery cuts a torn tail",
                **at,
            )
        if status == kernels.BAD_MAGIC:
            raise UnknownMagicError(
                f"offset {offset} has unknown magic {head[MAGIC_AT]}",
                remedy="restore the file from a copy, or use a version that knows this format",
                **at,
            )
        if status == kernels.BAD_CRC:
            raise _bad_crc(self._raw, 0, self._file, self.position)
        detail = f"; at least {self.next_offset} was due" if status == kernels.BAD_OFFSET else ""
        raise CorruptBatchError(
            f"offset {offset}: {kernels.STATUS_TEXT[status]}{detail}",
            code=kernels.STATUS_TEXT[status].replace(" ", "-"),
            remedy=remedy,
            **at,
        )


def _bad_crc(raw: Bytes, at: int, file: str, position: int) -> CorruptBatchError:
    """For the batch at raw[at:], which lies at `position` in its file."""
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
    """All batches in `data` as one chunk; raises as ChunkReader does. `data` must hold at least one batch."""
    reader = ChunkReader(BytesSource(data), file, 0, len(data), chunk_bytes=max(len(data), 1), verify=verify)
    reader._splits = False
    reader._table = np.empty((max(len(data) // SMALLEST_ENTRY_BYTES, 1), fields.FIELDS), np.int64)
    chunk = next(reader)
    if reader._used != len(data):
        next(reader)
    return chunk
