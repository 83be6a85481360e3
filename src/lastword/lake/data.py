"""The data files of a table: rows into Parquet, positions and live rows out of it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lastword.arrow import bounded_columns, pa, pc, pq
from lastword.errors import CorruptFileError, LastwordError
from lastword.files.interface import PositionedFile
from lastword.objects.interface import ObjectStore
from lastword.units import KIB, MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE_BYTES = 64 * MIB
"""The size at which a data file ends. It is made in memory."""
GROUP_ROWS = 1 << 20
"""The most rows of a row group: readers skip row groups by their statistics."""
BUFFERED_BYTES = 16 * MIB
"""Rows that are collected before they become a row group, or are decoded at a time."""
BATCH_ROWS = 1 << 14
"""The most rows that are decoded at a time."""
PAGE_BYTES = 256 * KIB
"""Bytes of a page before compression. A smaller page than Arrow's 1 MiB stays in the cache of a core."""
POSITION_ROWS = 1 << 19
"""The most rows whose positions are decoded at a time."""
TAIL_BYTES = 256 * KIB
"""The bytes of a data file that are read with its footer. The positions of 100,000 rows are among them."""
POSITION = ("partition", "offset")
"""The columns that name the record of a row."""


@dataclass(slots=True)
class Written:
    """Data files that were written.

    Attributes:
        actions: The `add` action of each file.
        names: The name of each file.
        size_bytes: Bytes of all files.
    """

    actions: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, other: Written) -> None:
        """Add the files of another writer."""
        self.actions += other.actions
        self.names += other.names
        self.size_bytes += other.size_bytes


class DataWriter:
    """Writes rows to data files of about `FILE_BYTES`. `written` has the files.

    With `dry` the files are made and measured, but not stored.
    """

    def __init__(
        self, store: ObjectStore, schema: pa.Schema, prefix: str, now_ms: int, *, dry: bool = False
    ) -> None:
        self._store = store
        self._schema = schema
        self._prefix = prefix
        self._now_ms = now_ms
        self._dry = dry
        self.written = Written()
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._sink = _Pieces()
        self._parquet: Any = None
        self._bounds: dict[str, tuple[int, int]] = {}
        self._file_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if batch.num_rows == 0:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= BUFFERED_BYTES:
            self._flush()
            if self._sink.tell() >= FILE_BYTES:
                self._end_file()

    def close(self) -> Written:
        """End the last file; return all."""
        self._flush()
        self._end_file()
        return self.written

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        self._held, self._held_bytes = [], 0
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                self._schema,
                data_page_size=PAGE_BYTES,
                compression="snappy",
                use_dictionary=["partition"],
                column_encoding=_encodings(self._schema),
                write_statistics=bounded_columns(self._schema),
            )
        self._parquet.write_table(table, row_group_size=GROUP_ROWS)
        for name in POSITION:
            ends = pc.min_max(table.column(name)).as_py()
            low, high = self._bounds.get(name, (ends["min"], ends["max"]))
            self._bounds[name] = min(low, ends["min"]), max(high, ends["max"])
        self._file_rows += table.num_rows

    def _end_file(self) -> None:
        if self._parquet is None:
            return
        self._parquet.close()
        data, size = self._sink.pieces, self._sink.tell()
        name = f"{self._prefix}-{len(self.written.names):04}.parquet"
        self.written.names.append(name)
        if not self._dry:
            self._store.put(name, data)
        stats = {
            "numRecords": self._file_rows,
            "minValues": {name: low for name, (low, _) in self._bounds.items()},
            "maxValues": {name: high for name, (_, high) in self._bounds.items()},
            "nullCount": dict.fromkeys(POSITION, 0),
            "tightBounds": True,
        }
        self.written.actions.append(
            {
                "add": {
                    "path": name,
                    "partitionValues": {},
                    "size": size,
                    "modificationTime": self._now_ms,
                    "dataChange": True,
                    "stats": json.dumps(stats),
                }
            }
        )
        self.written.size_bytes += size
        self._sink, self._parquet = _Pieces(), None
        self._bounds, self._file_rows = {}, 0


def _encodings(schema: pa.Schema) -> dict[str, str]:
    """Return the encodings of columns. Lengths apart from their bytes are compressed in half the time."""
    texts = [column.name for column in schema if column.type in (pa.string(), pa.binary())]
    return {"offset": "DELTA_BINARY_PACKED", **dict.fromkeys(texts, "DELTA_LENGTH_BYTE_ARRAY")}


class _Pieces(io.RawIOBase):
    """A file in memory, in pieces of about 1 MiB. One buffer would be copied whenever it grows."""

    def __init__(self) -> None:
        self.pieces: list[bytearray] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        if not self.pieces or len(self.pieces[-1]) + len(data) > MIB:
            self.pieces.append(bytearray())
        self.pieces[-1] += data
        self._size += len(data)
        return len(data)


def _opened(store: ObjectStore, key: str, size: int) -> PositionedFile:
    """Open an object for Arrow. Its end is read once: the footer, maybe with the last columns."""
    tail_at = max(0, size - TAIL_BYTES)
    tail = memoryview(store.get_range(key, tail_at, size - tail_at))

    def read_at(size: int, position: int) -> bytes:
        if position >= tail_at:
            return bytes(tail[position - tail_at :][:size])
        return bytes(store.get_range(key, position, size)) if size else b""

    return PositionedFile(size, read_at)


class DataReader:
    """A data file, opened to read.

    Raises:
        CorruptFileError: The file is no Parquet file, or is damaged; from each method.
    """

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._path = f"{store.url}/{key}"
        with self._readable():
            self._file = pq.ParquetFile(pa.PythonFile(_opened(store, key, size), mode="r"), pre_buffer=True)

    @property
    def rows(self) -> int:
        """The number of rows, deleted ones included."""
        return int(self._file.metadata.num_rows)

    def positions(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """Yield the partition and the offset of each row, some rows at a time."""
        for batch in self._batches(POSITION_ROWS, list(POSITION)):
            partitions, offsets = (np.asarray(batch.column(name)) for name in POSITION)
            yield partitions.astype(np.int32, copy=False), offsets.astype(np.int64, copy=False)

    def live(self, dead: NDArray[np.bool_], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose bit in `dead` is not set, in the order of the file."""
        first = 0
        metadata = self._file.metadata
        size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        rows = max(1, min(BATCH_ROWS, self.rows * BUFFERED_BYTES // max(1, size)))
        for batch in self._batches(rows, schema.names):
            kept = batch.filter(pa.array(~dead[first : first + batch.num_rows]))
            first += batch.num_rows
            arrays = [kept.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _batches(self, rows: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        batches = self._file.iter_batches(batch_size=rows, columns=columns)
        while True:
            with self._readable():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except LastwordError:
            raise
        except (pa.ArrowException, OSError):
            raise CorruptFileError(
                f"{self._path} is damaged",
                remedy="restore the table to an older version, or choose another path",
                file=self._path,
            ) from None
