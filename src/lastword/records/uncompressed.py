"""The buffer of a chunk's uncompressed records: decompression, and translation of magic 0 and 1.

`records.chunk` calls it after the headers were walked. Afterwards a row of the table is complete: offsets,
count, and the positions of its records. Plain Python reads magic 0 and 1 through `records.legacy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptBatchError, DataError, DecompressionLimitError
from lastword.kernels import legacy as legacy_kernels
from lastword.kernels import table as fields
from lastword.kernels.lz4 import BLOCK_BYTES, decompress_lz4_rows
from lastword.records import legacy
from lastword.records.batch import BatchHeader
from lastword.records.compression import limit_of
from lastword.wire import CODEC_MASK, HEADER_BYTES, LZ4

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]
SkipRows = Callable[[Table], NDArray[np.uint8]]

_NONE = np.empty(0, np.uint8)


class RecordBuffer:
    """An array that grows to the size of the largest chunk, and is reused for every chunk.

    Args:
        file: Name of the file, for errors and for the bound on decompression.
        skip_rows: Returns, for a table, the batches (uint8, one a row) of which no record is needed.
    """

    def __init__(self, file: str, skip_rows: SkipRows | None = None) -> None:
        self._file = file  # for errors
        self._skip_rows = skip_rows
        self.limit_bytes = limit_of(file)  # bound of the records of a batch
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
                row, self._data, done = translate_rows(
                    raw,
                    table,
                    row,
                    self._data,
                    done,
                    self._room,
                    file=self._file,
                    limit=self.limit_bytes,
                    first_offset=first_offset,
                )
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
        from lastword.records.compression import too_large

        codec = int(table[row, fields.ATTRIBUTES]) & CODEC_MASK
        raise self._located(too_large(codec, int(table[row, fields.SIZE]), self.limit_bytes), table, row)

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
        places = [done]
        data = raw.data
        for number, (first, last) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True), row):
            if last > first:
                done += self._decompress_batch(codec, data[first:last], done, table, number)
            places.append(done)
        table[row:end, fields.RECORDS_POSITION] = places[:-1]
        table[row:end, fields.RECORDS_END] = places[1:]
        return end, done

    def _room(self, used: int, room: int) -> Bytes:
        self._reserve(used, room)
        return self._data

    def _decompress_batch(self, codec: int, data: memoryview, done: int, table: Table, row: int) -> int:
        from lastword.records.compression import decompress_into

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
        from lastword.records.compression import located_error

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


def translate_rows(
    raw: Bytes,
    table: Table,
    row: int,
    records: Bytes,
    done: int,
    room: Callable[[int, int], Bytes],
    *,
    file: str,
    limit: int,
    first_offset: int = 0,
) -> tuple[int, Bytes, int]:
    """Translate the rows of magic 0 and 1 from `row` on, up to the first of another magic.

    Returns (row reached, the record buffer, bytes used).

    Args:
        raw: The raw bytes of the chunk.
        table: The table of the chunk.
        row: The first row.
        records: The record buffer, with slack.
        done: Bytes of the record buffer in use.
        room: `room(used, n)` returns a record buffer with room for n more bytes and slack; the used bytes
            are kept.
        file: Name of the file, for errors.
        limit: Bound of a decompressed wrapper.
        first_offset: No record of the chunk's first row may be below it.

    Raises:
        DataError: With file, position and offset.
    """
    rows = table.shape[0]
    while row < rows and table[row, fields.MAGIC] < 2:
        row, done, status = legacy_kernels.translate_messages(raw, table, row, rows, records, done)
        if status == kernels.FULL:
            records = room(done, int(table[row, fields.SIZE]) + legacy_kernels.GROWTH_BYTES)
        elif status != kernels.OK:
            raise _bad(kernels.STATUS_TEXT[status], table, row, file)
        elif row < rows and table[row, fields.MAGIC] < 2:
            records, done = _wrapper(raw, table, row, records, done, room, file, limit)
            _check_order(table, row, first_offset, file)
            row += 1
    return row, records, done


def _wrapper(
    raw: Bytes,
    table: Table,
    row: int,
    records: Bytes,
    done: int,
    room: Callable[[int, int], Bytes],
    file: str,
    limit: int,
) -> tuple[Bytes, int]:
    at = int(table[row, fields.POSITION])
    data = legacy.inner_bytes(raw, header_of(table, row), file, position=at, limit_bytes=limit)
    inner = np.empty(len(data) + kernels.SLACK, np.uint8)
    inner[: len(data)] = np.frombuffer(data, np.uint8)
    count, first, last, status = legacy_kernels.scan_inner(inner, len(data))
    if status != kernels.OK:
        text = _INNER_TEXT.get(status, kernels.STATUS_TEXT[status])
        raise _bad(f"{text} (after {count} whole inner entries)", table, row, file)
    records = room(done, len(data) + legacy_kernels.GROWTH_BYTES * (count + 1))
    done, status = legacy_kernels.translate_wrapper(inner, count, first, last, table, row, records, done)
    if status != kernels.OK:
        raise _bad(f"inner entries: {kernels.STATUS_TEXT[status]}", table, row, file)
    return records, done


def _check_order(table: Table, row: int, first_offset: int, file: str) -> None:
    """Check that the range of a wrapper, known after decompression, does not overlap its neighbours."""
    due = int(table[row - 1, fields.LAST_OFFSET]) + 1 if row else first_offset
    next_base = table[row + 1, fields.BASE_OFFSET] if row + 1 < table.shape[0] else None
    first, last = int(table[row, fields.BASE_OFFSET]), int(table[row, fields.LAST_OFFSET])
    if first < due or (next_base is not None and next_base <= last):
        raise _bad(f"its messages {first} to {last} overlap those beside it", table, row, file)


def header_of(table: Table, row: int) -> BatchHeader:
    """Return a legacy row as a header for `records.legacy`; `position` is in the file."""
    position, size, offset, attributes, timestamp, crc, magic = (
        int(table[row, column])
        for column in (
            fields.FILE_POSITION,
            fields.SIZE,
            fields.LAST_OFFSET,
            fields.ATTRIBUTES,
            fields.MAX_TIMESTAMP,
            fields.CRC,
            fields.MAGIC,
        )
    )
    return BatchHeader(
        position=position,
        size=size,
        base_offset=offset,
        last_offset=offset,
        leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=attributes,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=1 if attributes & CODEC_MASK == 0 else legacy.UNKNOWN_COUNT,
    )


def _bad(text: str, table: Table, row: int, file: str) -> CorruptBatchError:
    offset = int(table[row, fields.LAST_OFFSET])
    return CorruptBatchError(
        f"offset {offset}: {text}",
        code="bad-records",
        remedy="restore the file from a copy; `lastword verify` lists all damage",
        file=file,
        position=int(table[row, fields.FILE_POSITION]),
        offset=offset,
    )
