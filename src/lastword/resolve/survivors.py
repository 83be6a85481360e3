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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import DiskFullError
from lastword.files import Handle
from lastword.files.scratch import Scratch
from lastword.kernels import table as fields
from lastword.kernels.hashing import crc32c
from lastword.kernels.key_batch import KeyBatch
from lastword.kernels.repack import BEFORE_FIELDS, RepackSource
from lastword.kernels.survivors import copy_survivors
from lastword.records.chunk import Chunk
from lastword.resolve.bitmaps import DeadBitmaps

NO_BEFORE = np.empty((0, BEFORE_FIELDS), np.int64)
NOTHING_DEAD = DeadBitmaps.of([])
_NOTHING = np.empty(0, np.uint8)
_BLOCK_BYTES = 16 << 20


ScratchFile = Handle | Scratch
"""A file to append to and to read, for one scan or for the tasks of a job."""


@dataclass(slots=True)
class KeptChunk:
    """A chunk without its dead records.

    Attributes:
        start: Where it begins in the file of its segment.
        end: Where it ends there.
        contents: Sum of the content digests of the survivors.
        table: As that of a chunk, with positions in `data`.
        before: As in a `RepackSource`.
        data: The kept bytes, with slack.
        in_file: Where the last three are in the scratch file; None: they are here.
    """

    start: int
    end: int
    contents: int
    table: NDArray[np.int64]
    before: NDArray[np.int64]
    data: NDArray[np.uint8]
    in_file: InFile | None = None


class InFile(NamedTuple):
    """A kept chunk in the scratch file: `size` kept bytes, and `rows` of both tables behind them."""

    position: int
    size: int
    rows: int
    crc: int


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
        # Without the rows of batches of which not even a header may stay.
        needed = (table[:, fields.COUNT] > 0) | (chunk.table[:, fields.COUNT] == 0)
        needed |= table[:, fields.PRODUCER_ID] >= 0
        needed[-1] = True  # it may end its group
        table, before = table[needed], before[needed]
        data = self._block[self._used : end + kernels.SLACK]
        table[:, fields.POSITION] -= self._used
        table[:, fields.RECORDS_POSITION : fields.RECORDS_END + 1] -= self._used
        first, last = chunk.table[0], chunk.table[-1]
        start, behind = int(first[fields.FILE_POSITION]), int(last[fields.FILE_POSITION] + last[fields.SIZE])
        kept = KeptChunk(start, behind, int(contents), table, before, data)
        if self._file is None:
            self._used = end
            self.memory_bytes += table.nbytes + before.nbytes
        elif not self._write(kept, end - self._used):
            self._full = True
            return
        self._chunks.setdefault(segment, []).append(kept)

    def release(self) -> None:
        """Forget the chunks in memory: the map needs the room."""
        for segment, chunks in self._chunks.items():
            self._chunks[segment] = [kept for kept in chunks if kept.in_file is not None]
        if self._file is None:
            self._block, self._used = np.empty(0, np.uint8), 0
        self.memory_bytes = 0

    def take(self, segment: int) -> Iterator[KeptChunk]:
        """Yield a segment's kept chunks that can be read, ascending, and forget them."""
        chunks = self._chunks.pop(segment, [])
        while chunks:
            kept = chunks.pop()
            if kept.in_file is None or self._read(kept, kept.in_file):
                yield kept

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

    def _write(self, kept: KeptChunk, size: int) -> bool:
        """Move a chunk from memory to the file; return False if there is no room."""
        assert self._file is not None
        tables = [part.view(np.uint8).ravel() for part in (kept.table, kept.before)]
        packed = np.concatenate([kept.data[:size], *tables])
        if self._written + packed.size > self._room:
            return False
        try:
            self._file.append(packed.data)
        except DiskFullError:
            return False
        crc = int(crc32c(packed, 0, packed.size))
        kept.in_file = InFile(self._written, size, kept.table.shape[0], crc)
        kept.table, kept.before, kept.data = NO_BEFORE, NO_BEFORE, _NOTHING
        self._written += packed.size
        return True

    def _read(self, kept: KeptChunk, place: InFile) -> bool:
        """Move a chunk from the file to memory; return False if it is damaged."""
        assert self._file is not None
        widths = fields.FIELDS, BEFORE_FIELDS
        size = place.size + 8 * place.rows * sum(widths)
        packed = np.empty(size + kernels.SLACK, np.uint8)
        done = 0
        while done < size:
            got = self._file.pread_into(packed.data[done:size], place.position + done)
            if got <= 0:
                return False
            done += got
        if crc32c(packed, 0, size) != place.crc:
            return False
        both = packed[place.size : size].copy().view(np.int64)
        kept.table, kept.before = (
            part.reshape(place.rows, -1) for part in np.split(both, [place.rows * fields.FIELDS])
        )
        kept.data, kept.in_file = packed[: place.size + kernels.SLACK], None
        return True
