"""Records as columns: the position of each key, value and header list of a chunk, and conversions.

Readers, tools and Spark share `decode_columns`. From there `to_arrow` makes one Arrow batch without a Python
object per record; `raw_records` makes Python values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.arrow import pa
from lastword.kernels import table as fields
from lastword.kernels.columns import (
    ColumnArrays,
    decode_headers,
    decode_live_rows,
    decode_rows,
    gather_spans,
    span_bytes,
)
from lastword.kernels.pages import DeadBits
from lastword.records.chunk import Bytes, Chunk, Table
from lastword.records.record import RawRecord, raw_record
from lastword.wire import INT32_MAX, INT64_MAX, LOG_APPEND_BIT, SMALLEST_RECORD_BYTES

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]

ARROW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The columns of Spark's Kafka source, in its order."""


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The positions and facts of records, an entry for each record.

    Positions count in `chunk.uncompressed`; lengths are -1 for null; `row` is the batch in `chunk.table`.
    offset, timestamp (ms), the positions: int64; lengths, header_count, row: int32. Valid as long as the
    chunk.
    """

    offset: Int64s
    timestamp: Int64s
    key_position: Int64s
    key_length: Int32s
    value_position: Int64s
    value_length: Int32s
    header_position: Int64s
    header_count: Int32s
    row: Int32s

    def __len__(self) -> int:
        return int(self.offset.size)

    def select(self, rows: Any) -> RecordColumns:
        """Return the records that a slice, a bool mask or an array of indices selects."""
        return RecordColumns(*(getattr(self, name)[rows] for name in self.__slots__))


def decode_columns(chunk: Chunk, *, include_control: bool = False) -> RecordColumns:
    """Return columns of every record in the chunk, in order; control batches only on request.

    The arrays are reused by the next chunk of the same reader: `select` with a mask or indices copies.
    Raises CorruptBatchError.
    """
    arrays = _arrays_for(chunk, chunk.table if include_control else chunk.table[chunk.data_rows()])
    done, row, status = decode_rows(chunk.uncompressed, chunk.table, chunk.rows, include_control, arrays)
    if status != kernels.OK:
        chunk.raise_status(row, status)
    return RecordColumns(*(array[:done] for array in arrays))


def decode_live(chunk: Chunk, dead: DeadBits, first_offset: int, *, tombstones: bool) -> RecordColumns:
    """Return columns of the records with a key whose bit in `dead` is not set, from `first_offset` on.

    Records without a value only with `tombstones`. The arrays are reused as those of `decode_columns`.
    Batches whose records are all dead are not read: they need not be decompressed. Raises CorruptBatchError.
    """
    arrays = _arrays_for(chunk, chunk.table[chunk.data_rows()])
    done, row, status = decode_live_rows(
        chunk.uncompressed, chunk.table, chunk.rows, dead, first_offset, tombstones, arrays
    )
    if status != kernels.OK:
        chunk.raise_status(row, status)
    return RecordColumns(*(array[:done] for array in arrays))


def _arrays_for(chunk: Chunk, table: Table) -> ColumnArrays:
    """Return arrays with room for the records of these batches of a chunk."""
    room = (table[:, fields.RECORDS_END] - table[:, fields.RECORDS_POSITION]) // SMALLEST_RECORD_BYTES
    # At most as many as the bytes can hold.
    size = int(np.minimum(table[:, fields.COUNT], room).sum())
    arrays: ColumnArrays | None = chunk.scratch.get("columns")
    if arrays is None or arrays.offset.size < size:
        arrays = ColumnArrays.empty(max(size + size // 4, 1024))
        chunk.scratch["columns"] = arrays
    return arrays


def to_arrow(
    columns: RecordColumns,
    chunk: Chunk,
    names: Sequence[str] = ARROW_COLUMNS,
    *,
    topic: str = "",
    partition: int | Int32s = 0,
) -> pa.RecordBatch:
    """Return an Arrow batch with the named columns, in the shape of Spark's Kafka source.

    `headers` is null for a record without headers. The batch has its own memory. Timestamps are microseconds
    UTC; one outside their range becomes the nearest in range. `partition`: of all records, or of each record.
    """
    size = len(columns)
    arrays: list[pa.Array] = []
    for name in names:
        if name == "key":
            arrays.append(binary_array(chunk.uncompressed, columns.key_position, columns.key_length))
        elif name == "value":
            arrays.append(binary_array(chunk.uncompressed, columns.value_position, columns.value_length))
        elif name == "topic":
            arrays.append(_repeated(topic, size))
        elif name == "partition":
            arrays.append(_fixed(np.full(size, partition, np.int32), pa.int32()))
        elif name == "offset":
            arrays.append(_fixed(columns.offset.copy(), pa.int64()))
        elif name == "timestamp":
            arrays.append(_fixed(microseconds(columns.timestamp), pa.timestamp("us", tz="UTC")))
        elif name == "timestampType":
            arrays.append(_fixed(timestamp_types(columns, chunk), pa.int32()))
        elif name == "headers":
            arrays.append(_headers(columns, chunk))
        else:
            raise ValueError(f"no column {name!r}; there are {', '.join(ARROW_COLUMNS)}")
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def microseconds(timestamps: Int64s) -> Int64s:
    """Return timestamps in microseconds of timestamps in milliseconds.

    One that 64 bits of microseconds cannot hold (before the year -290308 or after 294247) becomes the first
    or the last that they hold.
    """
    most = INT64_MAX // 1000
    clipped: Int64s = np.minimum(np.maximum(timestamps, -most), most) * 1000
    return clipped


def timestamp_types(columns: RecordColumns, chunk: Chunk) -> Int32s:
    """Return the timestamp type of each record: 0 create, 1 log append, -1 none (magic 0)."""
    types: Int32s = ((chunk.table[:, fields.ATTRIBUTES] & LOG_APPEND_BIT) != 0).astype(np.int32)
    types[chunk.table[:, fields.MAGIC] == 0] = -1
    return types[columns.row]


def binary_array(source: Bytes, position: Int64s, length: Int32s) -> pa.Array:
    """Return an Arrow binary array of source[position:position + length]; a negative length is a null."""
    total, nulls = span_bytes(length)
    if total > INT32_MAX:
        raise ValueError("more than 2 GiB in one Arrow column: decode smaller chunks")
    size = int(position.size)
    offsets = np.empty(size + 1, np.int32)
    data = np.empty(total + kernels.SLACK, np.uint8)
    validity = np.zeros((size + 7) // 8 if nulls else 0, np.uint8)
    if gather_spans(source, position, length, offsets, data, validity) != kernels.OK:
        raise ValueError("a span is outside its buffer")
    valid = pa.py_buffer(validity) if nulls else None
    return pa.Array.from_buffers(
        pa.binary(), size, [valid, pa.py_buffer(offsets), pa.py_buffer(data)[:total]], null_count=int(nulls)
    )


def byte_strings(source: Bytes, position: Int64s, length: Int32s) -> list[bytes | None]:
    """As `binary_array`, without Arrow and as a list; the spans are valid."""
    data = source.tobytes()  # a slice of bytes is faster than one of an array
    spans = zip(position.tolist(), length.tolist(), strict=True)
    return [data[start : start + size] if size >= 0 else None for start, size in spans]


def _fixed(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)], null_count=0)


@lru_cache(maxsize=16)
def _repeated_block(text: str, size: int) -> pa.Array:
    encoded = text.encode()
    offsets = np.arange(size + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(
        pa.string(), size, [None, pa.py_buffer(offsets), pa.py_buffer(encoded * size)], null_count=0
    )


def _repeated(text: str, size: int) -> pa.Array:
    """Return `text`, `size` times: a slice of a cached block."""
    rounded = 1 << max(size - 1, 1023).bit_length()
    return _repeated_block(text, rounded)[:size]


def _header_spans(columns: RecordColumns, chunk: Chunk) -> tuple[Int64s, Int32s, Int64s, Int32s]:
    total = int(columns.header_count.sum())
    spans = (
        np.empty(total, np.int64),
        np.empty(total, np.int32),
        np.empty(total, np.int64),
        np.empty(total, np.int32),
    )
    decode_headers(
        chunk.uncompressed,
        np.ascontiguousarray(columns.header_position),
        np.ascontiguousarray(columns.header_count),
        *spans,
    )
    return spans


def _headers(columns: RecordColumns, chunk: Chunk) -> pa.Array:
    kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    counts = columns.header_count
    if not counts.any():
        return pa.nulls(len(columns), kind)
    name_position, name_length, value_position, value_length = _header_spans(columns, chunk)
    names = binary_array(chunk.uncompressed, name_position, name_length)
    try:
        names = names.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: as Java shows it
        names = pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
    values = binary_array(chunk.uncompressed, value_position, value_length)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    offsets = np.zeros(counts.size + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    present = np.packbits(counts > 0, bitorder="little")
    return pa.Array.from_buffers(
        kind, counts.size, [pa.py_buffer(present), pa.py_buffer(offsets)], children=[pairs]
    )


def raw_records(columns: RecordColumns, chunk: Chunk) -> list[RawRecord]:
    """Return the records as values that hold their own bytes."""
    data = chunk.uncompressed.data
    types = timestamp_types(columns, chunk)
    headers: list[tuple[tuple[str, bytes | None], ...]] | None = None
    if columns.header_count.any():
        headers = header_tuples(columns, chunk)
    records = []
    rows = zip(
        columns.offset.tolist(),
        columns.timestamp.tolist(),
        types.tolist(),
        columns.key_position.tolist(),
        columns.key_length.tolist(),
        columns.value_position.tolist(),
        columns.value_length.tolist(),
        strict=True,
    )
    for index, (offset, timestamp, kind, key_at, key_size, value_at, value_size) in enumerate(rows):
        key = bytes(data[key_at : key_at + key_size]) if key_size >= 0 else None
        value = bytes(data[value_at : value_at + value_size]) if value_size >= 0 else None
        records.append(raw_record(offset, timestamp, kind, key, value, headers[index] if headers else ()))
    return records


def header_tuples(columns: RecordColumns, chunk: Chunk) -> list[tuple[tuple[str, bytes | None], ...]]:
    """Return the headers of each record as (name, value) pairs."""
    data = chunk.uncompressed.data
    pairs = []
    for name_at, name_size, value_at, value_size in zip(
        *(spans.tolist() for spans in _header_spans(columns, chunk)), strict=True
    ):
        name = bytes(data[name_at : name_at + name_size]).decode("utf-8", "surrogateescape")
        pairs.append((name, bytes(data[value_at : value_at + value_size]) if value_size >= 0 else None))
    result = []
    start = 0
    for count in columns.header_count.tolist():
        result.append(tuple(pairs[start : start + count]))
        start += count
    return result
