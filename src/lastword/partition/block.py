"""Read whole encoded batches of a file into one buffer, to check and append them without copying each batch.

Uses the kernels if they are loaded. Without them it is nearly as fast: the batches of a staged file are large
and therefore few.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload

from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.records.batch import check_crc, read_header

BLOCK_BYTES = 8 << 20
SLACK_BYTES = 64
"""Bytes behind the last batch that kernels may read."""
_LENGTH_END = 12
"""End of a batch's first two fields: base offset, and the length of the rest."""


class Block(Sequence[memoryview]):
    """Batches of one buffer, from its beginning. Valid until `blocks_of` yields the next block."""

    def __init__(self, buffer: bytearray, sizes: list[int]) -> None:
        self.buffer = buffer
        self.sizes = sizes
        self._view = memoryview(buffer)
        self._ends = list(accumulate(sizes))

    @property
    def size_bytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, which: int) -> memoryview: ...
    @overload
    def __getitem__(self, which: slice) -> list[memoryview]: ...
    def __getitem__(self, which: int | slice) -> memoryview | list[memoryview]:
        if isinstance(which, slice):
            return [self[number] for number in range(*which.indices(len(self)))]
        end = self._ends[which]
        return self._view[end - self.sizes[which] : end]

    def check(self, file: str) -> None:
        """Verify the checksum of each batch. CorruptBatchError for the first wrong one.

        Changes offsets and epochs in the buffer, which no checksum covers.
        """
        if "lastword.kernels" in sys.modules and self._is_valid():
            return
        for batch in self:
            check_crc(batch, read_header(batch, 0, len(batch), file), file)

    def _is_valid(self) -> bool:
        """Verify with a kernel, which releases the interpreter's lock and assigns offsets.

        False may also mean a kind of batch that the kernel does not support.
        """
        import numpy as np

        from lastword.kernels import table as fields
        from lastword.kernels.batches import assign_offsets

        table = np.empty((len(self), fields.FIELDS), np.int64)
        sizes = np.array(self.sizes, np.int64)
        return bool(assign_offsets(np.frombuffer(self.buffer, np.uint8), sizes, 0, 0, table) == sizes.size)


def blocks_of(files: Files, path: str) -> Iterator[Block]:
    """Yield all batches of a file, BLOCK_BYTES at a time, or a single larger batch. Verifies no checksum.

    CorruptFileError if the remaining bytes do not begin with a whole batch.
    """
    with files.open_read(path) as handle:
        size, position = handle.size(), 0
        buffer = bytearray(max(min(BLOCK_BYTES, size), _LENGTH_END) + SLACK_BYTES)
        while position < size:
            have = handle.pread_into(memoryview(buffer)[:-SLACK_BYTES], position)
            sizes, end = _whole_batches(buffer, have)
            if not sizes:
                wanted = _size_at(buffer, 0)
                if have < _LENGTH_END or wanted > size - position or wanted <= have:
                    raise CorruptFileError(
                        f"{path} position {position}: no whole batch", file=path, position=position
                    )
                buffer = bytearray(wanted + SLACK_BYTES)
                continue
            yield Block(buffer, sizes)
            position += end


def _whole_batches(buffer: bytearray, have: int) -> tuple[list[int], int]:
    """Return the sizes of the whole batches in the first `have` bytes, and the end of the last."""
    sizes, end = [], 0
    while have - end >= _LENGTH_END:
        size = _size_at(buffer, end)
        if size > have - end:
            break
        sizes.append(size)
        end += size
    return sizes, end


def _size_at(buffer: bytearray, position: int) -> int:
    return int.from_bytes(buffer[position + 8 : position + _LENGTH_END], "big") + _LENGTH_END
