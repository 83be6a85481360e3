"""Delete horizons of the batches that hold tombstones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lastword.kernels import table as fields
from lastword.records.chunk import Chunk
from lastword.wire import CONTROL_BIT, DELETE_HORIZON_BIT

_FEW = 1024


class Horizons:
    """Rows of (base offset, last offset, horizon), ascending: int64[n, 3].

    Grows with every batch that has a horizon; `keep` leaves those that still hold a live tombstone.
    """

    def __init__(self, table: NDArray[np.int64] | None = None) -> None:
        self._start(np.empty((0, 3), np.int64) if table is None else table.reshape(-1, 3))

    def _start(self, table: NDArray[np.int64]) -> None:
        self._rows = [table]
        self._count = len(table)
        self._enough = max(2 * self._count, _FEW)

    @property
    def size_bytes(self) -> int:
        return 24 * self._count

    @property
    def crowded(self) -> bool:
        """Has the table doubled since it was last thinned out?"""
        return self._count > self._enough

    def add(self, chunk: Chunk) -> None:
        """The batches of a chunk above all others."""
        special = DELETE_HORIZON_BIT | CONTROL_BIT
        rows = (chunk.table[:, fields.ATTRIBUTES] & special == DELETE_HORIZON_BIT) & (
            chunk.table[:, fields.MAGIC] == 2
        )
        if rows.any():
            columns = [fields.BASE_OFFSET, fields.LAST_OFFSET, fields.BASE_TIMESTAMP]
            self._rows.append(chunk.table[rows][:, columns])
            self._count += len(self._rows[-1])

    def table(self) -> NDArray[np.int64]:
        if len(self._rows) != 1:
            self._rows = [np.concatenate(self._rows)]
        return self._rows[0]

    def of(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The horizon of each offset's batch, -1 where there is none."""
        table = self.table()
        found = np.full(offsets.size, -1, np.int64)
        if table.size:
            row = np.maximum(np.searchsorted(table[:, 0], offsets, side="right") - 1, 0)
            inside = (table[row, 0] <= offsets) & (offsets <= table[row, 1])
            found[inside] = table[row[inside], 2]
        return found

    def keep(self, offsets: NDArray[np.int64]) -> None:
        """Leave only the batches that hold one of these offsets (ascending)."""
        table = self.table()
        held = np.searchsorted(offsets, table[:, 0]) < np.searchsorted(offsets, table[:, 1], side="right")
        self._start(table[held])
