"""Chunks made ready for the map: reading, verifying, decompressing, parsing and hashing need nothing that it
holds, so a second thread may do that ahead (`records.pipeline`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import key_batch
from lastword.kernels import table as fields
from lastword.records.chunk import Chunk
from lastword.resolve.rules import LAST_HASH, Rules

FEW_RECORDS = 4096  # of a piece that is used again at once: it stays in the cache
MOST_RECORDS = 1 << 16  # of a piece that waits for its turn


class Piece:
    """Records made ready for the map, and where in their chunk the next ones begin. Used again and again."""

    def __init__(self, records: int = FEW_RECORDS) -> None:
        self.cursor = np.zeros(key_batch.CURSOR_FIELDS, np.int64)
        self._make(records)

    def _make(self, records: int) -> None:
        self.arrays = key_batch.KeyBatch(
            hashes=np.empty((2, records), np.uint64),
            spans=np.empty((key_batch.SPAN_FIELDS, records), np.int64),
            page_ids=np.empty(records, np.int64),
            homes=np.empty((2, records), np.int64),
        )

    def start(self, rules: Rules, *, first_pass: bool, old_due: bool) -> None:
        """At the beginning of a chunk."""
        self.cursor[key_batch.ROW] = 0
        self.cursor[key_batch.ORDINAL] = 0
        self.cursor[key_batch.DROP_KEYLESS] = rules.keyless_go
        self.cursor[key_batch.NOW] = rules.now_ms
        self.cursor[key_batch.OLD_DUE] = old_due
        self.cursor[key_batch.DUE_BELOW] = rules.due_below
        self.cursor[key_batch.FIRST_PASS] = first_pass
        self.cursor[key_batch.KEEP_COPIES] = rules.keep_copies
        self.cursor[key_batch.SAMPLED] = rules.last_hash != LAST_HASH

    def room_for(self, chunk: Chunk) -> None:
        """Room for all records of a chunk, within bounds."""
        counted = int(chunk.table[chunk.data_rows(), fields.COUNT].clip(0).sum())
        if counted > self.arrays.spans.shape[1]:
            self._make(min(counted, MOST_RECORDS))

    def fill(self, chunk: Chunk, fates: NDArray[np.uint8], words: NDArray[np.uint64]) -> bool:
        """The next records; False when there are none. Raises CorruptBatchError."""
        if self.cursor[key_batch.ROW] >= chunk.rows:
            return False
        status = key_batch.fill_key_batch(
            chunk.uncompressed, chunk.table, fates, chunk.rows, self.cursor, words, self.arrays
        )
        if status != kernels.OK:
            chunk.raise_status(int(self.cursor[key_batch.ROW]), status)
        return True


@dataclass(slots=True)
class Ready:
    """A chunk, and its pieces one after another. `fates`: of its batches; `words`: of the map."""

    segment: int
    chunk: Chunk
    piece: Piece
    fates: NDArray[np.uint8]
    words: NDArray[np.uint64]
    _waits: bool = False  # a piece that was filled and not taken

    def begin(self) -> None:
        """Fill the first piece."""
        self.chunk.decompress()
        self._waits = self._fill()

    def filled(self) -> bool:
        """Is there a piece for the map? Asked again, it is the next one."""
        waited, self._waits = self._waits, False
        return waited or self._fill()

    def _fill(self) -> bool:
        return self.piece.fill(self.chunk, self.fates, self.words)
