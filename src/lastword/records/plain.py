"""Records as kernels read them: the place where those of compressed and of old batches are unpacked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import DataError, DecompressionLimitError
from lastword.kernels import table as fields
from lastword.records.legacy_rows import inflate_rows

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]

LEGACY_LIMIT_BYTES = 256 << 20


class PlainBuffer:
    """One array that grows to what the largest chunk needs, and is used again for every chunk."""

    def __init__(self, file: str) -> None:
        self._file = file  # for errors
        self._plain = np.empty(0, np.uint8)

    def inflate(self, raw: Bytes, table: Table, first_offset: int) -> Bytes:
        """The records of every batch, one batch after another; `table` learns where each begins and ends.

        `first_offset`: no record of magic 0 or 1 may lie below it. The array holds until the next call.
        """
        data = raw.data
        done = row = 0
        while row < table.shape[0]:
            if table[row, fields.MAGIC] < 2:
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
                continue
            start = int(table[row, fields.POSITION]) + fields.HEADER_BYTES
            end = int(table[row, fields.POSITION] + table[row, fields.SIZE])
            codec = int(table[row, fields.ATTRIBUTES]) & fields.CODEC
            if codec and end > start:
                size = self._inflate_one(codec, data[start:end], done, table, row)
            else:
                size = end - start
                self._need_plain(done, size)
                self._plain[done : done + size] = raw[start:end]
            table[row, fields.PLAIN_POSITION] = done
            table[row, fields.PLAIN_END] = done + size
            done += size
            row += 1
        return self._plain

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
