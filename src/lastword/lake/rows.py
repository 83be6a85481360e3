"""The rows of a snapshot's data files: the records that they hold, and which of them have died."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lastword.lake.data import DataReader
from lastword.lake.table import DataFile
from lastword.lake.vectors import Offsets, bitmap_class, bitmap_of, numbers_of, read_vector
from lastword.objects.interface import Buffer, ObjectStore
from lastword.wire import INT32_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = tuple[NDArray[np.int32], NDArray[np.int64]]

KEPT_ROWS = 4 << 20
"""The positions of this many rows are kept, at 12 bytes each. Those of others are read again."""
Key = tuple[str, str | None]


class TableRows:
    """The rows of data files. Each method opens the files that it needs."""

    def __init__(self, store: ObjectStore, files: Sequence[DataFile]) -> None:
        self._store = store
        self.files = files
        self._stats = {file.key: _stats_of(file) for file in files}
        self._kept: dict[Key, list[Positions]] = {}
        self._kept_rows = 0
        self._vectors = _WholeFiles(store)
        self._deleted: dict[Key, Any] = {}

    def count(self, file: DataFile) -> int:
        """Return the rows of a file, deleted ones included."""
        known = self._stats[file.key].get("numRecords")
        return int(known) if known is not None else self.reader(file).rows

    def of(self, number: int) -> list[DataFile]:
        """Return the files that may have rows of a partition."""
        return [file for file in self.files if _may_hold(self._stats[file.key], number)]

    def reader(self, file: DataFile) -> DataReader:
        """Open a file."""
        return DataReader(self._store, file.object, file.size)

    def deleted(self, file: DataFile) -> Any:
        """Return the roaring bitmap of the rows that a file leaves out."""
        if file.vector is None:
            return bitmap_class()()
        if file.key not in self._deleted:
            self._deleted[file.key] = read_vector(self._vectors, file.vector)
        return self._deleted[file.key]

    def known(self, number: int) -> Offsets:
        """Return the offsets of the records of a partition that have a row."""
        known = Offsets()
        for file in self.of(number):
            deleted = numbers_of(self.deleted(file))
            first = 0
            for partitions, offsets in self._positions(file):
                live = partitions == number
                within = slice(*np.searchsorted(deleted, [first, first + live.size]))
                live[deleted[within] - first] = False
                known.add(offsets if live.all() else offsets[live])
                first += live.size
        return known

    def died(self, number: int, gone: Offsets) -> dict[Key, Any]:
        """Return the rows of a partition's records at some offsets, but for deleted ones: a bitmap a file."""
        died: dict[Key, Any] = {}
        for file in self.of(number):
            first, bitmap = 0, bitmap_class()()
            for partitions, offsets in self._positions(file):
                rows = np.flatnonzero(gone.mask(offsets))
                bitmap |= bitmap_of(first + rows[partitions[rows] == number])
                first += offsets.size
            bitmap -= self.deleted(file)
            if bitmap:
                died[file.key] = bitmap
        return died

    def _positions(self, file: DataFile) -> Iterable[Positions]:
        if file.key in self._kept or self._kept_rows + self.count(file) > KEPT_ROWS:
            return self._kept.get(file.key) or self.reader(file).positions()
        self._kept[file.key] = found = [*self.reader(file).positions()]
        self._kept_rows += self.count(file)
        return found


class _WholeFiles:
    """Files of vectors, each of which is read whole, once: it has the vectors of many data files."""

    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self._store = store
        self._read: dict[str, Buffer] = {}

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Return bytes of a file."""
        if key not in self._read:
            stored = self._store.get(key)
            assert stored is not None  # a read without a version
            self._read[key] = stored.data
        return memoryview(self._read[key])[start : start + size]


def _stats_of(file: DataFile) -> Mapping[str, Any]:
    stats: Mapping[str, Any] = json.loads(file.action.get("stats") or "{}")
    return stats


def _may_hold(stats: Mapping[str, Any], number: int) -> bool:
    low = (stats.get("minValues") or {}).get("partition", 0)
    high = (stats.get("maxValues") or {}).get("partition", INT32_MAX)
    return bool(low <= number <= high)
