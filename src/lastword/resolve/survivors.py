"""The survivors of chunks, from the scan to the rewrite: in memory, then in a scratch file.

They only save a second reading. A chunk that is not here is read again from its segment: it has too few dead
records, there was no room, or its bytes in the file are damaged. The rewrite takes the content digest of each
chunk from here, made from the verified source: so the certificate refuses survivors that were changed in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import DiskFullError
from lastword.kernels import table as fields
from lastword.kernels.hashing import crc32c
from lastword.kernels.key_batch import KeyBatch
from lastword.kernels.repack import BEFORE_FIELDS, RepackSource
from lastword.kernels.survivors import copy_survivors
from lastword.records.chunk import Chunk
from lastword.resolve.bitmaps import DeadBitmaps

NO_BEFORE = np.empty((0, BEFORE_FIELDS), np.int64)
NOTHING_DEAD = DeadBitmaps.of([])
_BLOCK_BYTES = 16 << 20


class ScratchFile(Protocol):
    """A file to append to and to read: a `files.Handle` is one."""

    def append(self, data: memoryview) -> int:
        """Write all of `data` at the end."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Read from `position` into `buffer`; return the number of bytes."""


@dataclass(slots=True)
class KeptChunk:
    """A chunk without its dead records.

    Attributes:
        start: Where it begins in the file of its segment.
        end: Where it ends there.
        table: As that of a chunk, with positions in the kept bytes.
        before: As in a `RepackSource`.
        contents: Sum of the content digests of the survivors.
        data: The kept bytes, with slack; None: they are in the scratch file.
        position: There.
        size: Bytes there.
        crc: Their CRC-32C, in the file.
    """

    start: int
    end: int
    table: NDArray[np.int64]
    before: NDArray[np.int64]
    contents: int
    data: NDArray[np.uint8] | None
    position: int
    size: int
    crc: int = 0


class Survivors:
    """Kept chunks by segment; to be closed.

    Args:
        open_file: Returns a context with an empty scratch file.
        most_bytes: Returns how large that file may become; 0: there is none.
    """

    def __init__(
        self, open_file: Callable[[], AbstractContextManager[ScratchFile]], most_bytes: Callable[[], int]
    ) -> None:
        self._open_file = open_file
        self._most_bytes = most_bytes
        self._file: ScratchFile | None = None
        self._room = -1  # in the file, once it is open
        self._written = 0
        self._full = False
        self._stack = ExitStack()
        self._chunks: dict[int, list[KeptChunk]] = {}
        self._block = np.empty(0, np.uint8)
        self._used = 0  # of the block
        self.memory_bytes = 0

    def keep(self, segment: int, chunk: Chunk, batch: KeyBatch, filled: int, memory_bytes: int) -> None:
        """Keep the survivors of a chunk, if there is room. Chunks come newest first.

        Args:
            segment: That of the chunk.
            chunk: Data batches of magic 2.
            batch: All its records, settled.
            filled: Their number.
            memory_bytes: How much memory all may take.
        """
        if self._full:
            return
        table, before = np.empty_like(chunk.table), np.empty((chunk.rows, BEFORE_FIELDS), np.int64)
        source = RepackSource(chunk.raw, chunk.uncompressed, chunk.table, NO_BEFORE)
        while True:
            end, contents, row, status = copy_survivors(
                source, chunk.rows, batch, filled, self._block, self._used, table, before
            )
            if status == kernels.OK:
                break
            if status != kernels.FULL:
                chunk.raise_status(row, status)
            sizes = chunk.table[:, fields.SIZE] + chunk.table[:, fields.RECORDS_END]
            most = int((sizes - chunk.table[:, fields.RECORDS_POSITION]).sum()) + 2 * kernels.SLACK
            if not self._next_block(most, memory_bytes):
                self._full = True
                return
        size = end - self._used
        table[:, fields.POSITION] -= self._used
        table[:, fields.RECORDS_POSITION : fields.RECORDS_END + 1] -= self._used
        data: NDArray[np.uint8] | None = self._block[self._used : end + kernels.SLACK]
        position = crc = 0
        if self._file is None:
            self._used = end
        elif self._write(self._block[:end].data):
            data, position, crc = None, self._written - size, int(crc32c(self._block, 0, size))
        else:
            self._full = True
            return
        first, last = chunk.table[0], chunk.table[-1]
        self._chunks.setdefault(segment, []).append(
            KeptChunk(
                int(first[fields.FILE_POSITION]),
                int(last[fields.FILE_POSITION] + last[fields.SIZE]),
                table,
                before,
                int(contents),
                data,
                position,
                size,
                crc,
            )
        )

    def release(self) -> None:
        """Forget the chunks in memory: the map needs the room."""
        for segment, chunks in self._chunks.items():
            self._chunks[segment] = [kept for kept in chunks if kept.data is None]
        if self._file is None:
            self._block, self._used = np.empty(0, np.uint8), 0
        self.memory_bytes = 0

    def take(self, segment: int) -> Iterator[tuple[KeptChunk, NDArray[np.uint8]]]:
        """Yield a segment's kept chunks that can be read, ascending, with their bytes, and forget them."""
        chunks = self._chunks.pop(segment, [])
        while chunks:
            kept = chunks.pop()
            data = kept.data
            if data is None:
                assert self._file is not None
                data = np.empty(kept.size + kernels.SLACK, np.uint8)
                done = 0
                while done < kept.size:
                    got = self._file.pread_into(data.data[done : kept.size], kept.position + done)
                    if got <= 0:
                        break
                    done += got
                if done < kept.size or crc32c(data, 0, kept.size) != kept.crc:
                    continue
            yield kept, data

    def close(self) -> None:
        """Forget everything, and remove the file."""
        self._chunks.clear()
        self._block = np.empty(0, np.uint8)
        self._stack.close()

    def _next_block(self, least: int, memory_bytes: int) -> bool:
        """Begin a new block; return False if there is no room for one."""
        room = memory_bytes - self.memory_bytes
        if self._file is None and least > room and not self._use_file():
            return False
        size = least if self._file is not None else max(least, min(_BLOCK_BYTES, room))
        self._block, self._used = np.empty(size, np.uint8), 0
        if self._file is None:
            self.memory_bytes += size
        return True

    def _use_file(self) -> bool:
        if self._room < 0:
            self._room = self._most_bytes()
            if self._room > 0:
                with suppress(DiskFullError):
                    self._file = self._stack.enter_context(self._open_file())
        return self._file is not None

    def _write(self, data: memoryview) -> bool:
        assert self._file is not None
        if self._written + len(data) > self._room:
            return False
        try:
            self._file.append(data)
        except DiskFullError:
            return False
        self._written += len(data)
        return True
