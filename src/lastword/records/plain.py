"""Records as kernels read them: the place where those of compressed and of old batches are unpacked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import DataError, DecompressionLimitError
from lastword.kernels import table as fields
from lastword.kernels.lz4 import BLOCK_BYTES, inflate_lz4_rows
from lastword.records.legacy_rows import inflate_rows

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]
Unwanted = Callable[[Table], NDArray[np.uint8]]

LEGACY_LIMIT_BYTES = 256 << 20
LZ4 = 3  # attribute bits
_NONE = np.empty(0, np.uint8)


class PlainBuffer:
    """One array that grows to what the largest chunk needs, and is used again for every chunk."""

    def __init__(self, file: str, unwanted: Unwanted | None = None) -> None:
        """`unwanted`: given a table, the batches (uint8, one a row) of which no record is needed."""
        self._file = file  # for errors
        self._unwanted = unwanted
        self._plain = np.empty(kernels.SLACK, np.uint8)

    def inflate(self, raw: Bytes, table: Table, first_offset: int) -> Bytes:
        """The records of every batch, one batch after another; `table` learns where each begins and ends.

        `first_offset`: no record of magic 0 or 1 may lie below it. The array holds until the next call.
        """
        rows = table.shape[0]
        unwanted = _NONE if self._unwanted is None else self._unwanted(table)
        done = row = 0
        while row < rows:
            row, done, status = inflate_lz4_rows(raw, table, row, rows, unwanted, self._plain, done)
            if status == kernels.OK:
                break
            if status == kernels.FULL:
                twice = 2 * (self._plain.size - kernels.SLACK - done)  # of what was not enough
                self._need_plain(done, max(twice, 8 * int(table[row, fields.SIZE]), 2 * BLOCK_BYTES))
            elif table[row, fields.MAGIC] < 2:
                row, self._plain, done = inflate_rows(
                    raw,
                    table,
                    row,
                    self._plain,
                    done,
                    self._room,
                    file=self._file,
                    limit=LEGACY_LIMIT_BYTES,
                    first_offset=first_offset,
                )
            else:
                row, done = self._inflate_alike(raw, table, row, unwanted, done)
        return self._plain

    def _inflate_alike(
        self, raw: Bytes, table: Table, row: int, unwanted: NDArray[np.uint8], done: int
    ) -> tuple[int, int]:
        """The batch at `row` and those after it with the same codec, through its library."""
        codec = int(table[row, fields.ATTRIBUTES]) & fields.CODEC
        alike = (table[row:, fields.MAGIC] == 2) & (table[row:, fields.ATTRIBUTES] & fields.CODEC == codec)
        if codec == LZ4:  # an odd one
            end = row + 1
        else:
            end = table.shape[0] if alike.all() else row + int(np.argmin(alike))
        starts = table[row:end, fields.POSITION] + fields.HEADER_BYTES
        ends = starts + table[row:end, fields.SIZE] - fields.HEADER_BYTES
        if unwanted.size:
            ends[unwanted[row:end] != 0] = 0
        places = [done]
        data = raw.data
        for number, (first, last) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True), row):
            if last > first:
                done += self._inflate_one(codec, data[first:last], done, table, number)
            places.append(done)
        table[row:end, fields.PLAIN_POSITION] = places[:-1]
        table[row:end, fields.PLAIN_END] = places[1:]
        return end, done

    def _room(self, used: int, room: int) -> Bytes:
        self._need_plain(used, room)
        return self._plain

    def _inflate_one(self, codec: int, data: memoryview, done: int, table: Table, row: int) -> int:
        from lastword.records.compression import decompress_into

        believable = min(max(64 << 20, 1024 * len(data)), (1 << 31) - 1)
        room = max(8 * len(data), 1 << 16)
        while True:
            room = min(room, believable)
            self._need_plain(done, room)
            usable = min(self._plain.size - kernels.SLACK, done + believable)
            try:
                return decompress_into(codec, data, self._plain[:usable], done)
            except DecompressionLimitError as error:
                if usable - done >= believable:
                    raise self._located(error, table, row) from None
                room = 4 * (usable - done)
            except DataError as error:
                raise self._located(error, table, row) from None

    def _located(self, error: DataError, table: Table, row: int) -> DataError:
        return type(error)(
            error.message,
            code=error.code,
            remedy=error.remedy,
            file=self._file,
            position=int(table[row, fields.FILE_POSITION]),
            offset=int(table[row, fields.BASE_OFFSET]),
        )

    def _need_plain(self, used: int, room: int) -> None:
        if used + room + kernels.SLACK > self._plain.size:
            larger = np.empty(2 * (used + room) + kernels.SLACK, np.uint8)
            larger[:used] = self._plain[:used]
            self._plain = larger
