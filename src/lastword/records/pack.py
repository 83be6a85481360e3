"""Encoded batches from columns of records, by one kernel: for bulk appends and Spark's sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.arrow import pa, pc
from lastword.errors import RecordTooLargeError
from lastword.kernels import pack as loops
from lastword.kernels.pack import RecordSpans, Spans
from lastword.records.compression import compress
from lastword.wire import HEADER_BYTES, LOG_APPEND_BIT

BATCH_BYTES = 16384
_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class AppendColumns:
    """Columns of records to append, in the form that the kernel takes."""

    spans: RecordSpans

    @classmethod
    def of(
        cls, keys: pa.Array, values: pa.Array, timestamps: NDArray[np.int64], headers: pa.Array | None = None
    ) -> AppendColumns:
        """Convert Arrow columns of one length.

        Args:
            keys: A binary, large binary, string, large string or null array. Nulls are allowed.
            values: As `keys`.
            timestamps: int64 ms, one a record.
            headers: list<struct<key: string, value: binary>>, or None.
        """
        count = len(keys)
        if (
            len(values) != count
            or timestamps.size != count
            or (headers is not None and len(headers) != count)
        ):
            raise ValueError("keys, values, timestamps and headers must have the same length")
        if headers is None:
            none = Spans(_frozen(np.empty(1, np.uint8)), _NOTHING, _NOTHING)
            header_columns = _NOTHING, none, none
        else:
            header_columns = _header_spans(headers)
        times = np.ascontiguousarray(timestamps, np.int64)
        return cls(RecordSpans(_spans(keys), _spans(values), times, *header_columns))

    def __len__(self) -> int:
        return int(self.spans.timestamps.size)

    def take(self, rows: NDArray[np.int64]) -> AppendColumns:
        """Return the records `rows`, in that order; no bytes are copied."""
        keys, values, timestamps, first, names, header_values = self.spans
        if first.size:
            counts = np.diff(first)[rows]
            begins = np.zeros(rows.size + 1, np.int64)
            np.cumsum(counts, out=begins[1:])
            pairs = np.arange(begins[-1]) + np.repeat(first[:-1][rows] - begins[:-1], counts)
            first, names, header_values = begins, _taken(names, pairs), _taken(header_values, pairs)
        keys, values = _taken(keys, rows), _taken(values, rows)
        return AppendColumns(RecordSpans(keys, values, timestamps[rows], first, names, header_values))

    @property
    def max_bytes(self) -> int:
        """Return an upper bound of the bytes that all records take."""
        keys, values, _timestamps, _first, names, header_values = self.spans
        payload = sum(
            int(np.maximum(spans.length, 0).sum()) for spans in (keys, values, names, header_values)
        )
        # Fixed parts of a record: at most 31 bytes of varints and attributes; of a header: 10.
        return payload + 31 * len(self) + 10 * int(names.position.size)


@dataclass(frozen=True, slots=True)
class EncodedRun:
    """Encoded batches, one behind another, of `sizes` bytes each.

    Valid until the next run is made.
    """

    data: memoryview
    sizes: list[int]
    records: int

    def batches(self) -> Iterator[memoryview]:
        """Yield the bytes of each batch."""
        end = 0
        for size in self.sizes:
            end += size
            yield self.data[end - size : end]


class Workspace:
    """The memory that records are packed into.

    If it is kept for many calls, the cost of its first touch arises only once.
    """

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of(self, size: int) -> NDArray[np.uint8]:
        """Return at least `size` bytes."""
        if self._bytes.size < size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes


def pack_arrow(
    keys: pa.Array,
    values: pa.Array,
    timestamps: NDArray[np.int64],
    headers: pa.Array | None = None,
    *,
    codec: int = 0,
    level: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    log_append_ms: int | None = None,
) -> list[bytearray]:
    """Return encoded batches with all these records (see `AppendColumns.of`), each in its own buffer."""
    columns = AppendColumns.of(keys, values, timestamps, headers)
    runs = pack(columns, codec=codec, level=level, batch_bytes=batch_bytes, log_append_ms=log_append_ms)
    return [bytearray(batch) for run in runs for batch in run.batches()]


def pack(
    columns: AppendColumns,
    *,
    codec: int = 0,
    level: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    log_append_ms: int | None = None,
    workspace: Workspace | None = None,
) -> Iterator[EncodedRun]:
    """Yield encoded batches with all these records, in order.

    Base offsets are 0, leader epochs 0, there is no producer, and the CRC is set. A log assigns the offsets.

    Args:
        columns: The records.
        codec: Bits 0-2 of the attributes.
        level: Level of that codec; None for its own choice.
        batch_bytes: Size that an uncompressed batch is filled to; a larger record gets a batch of its own.
        log_append_ms: Makes batches of type LogAppendTime with this time.
        workspace: Memory to pack into.

    Raises:
        RecordTooLargeError: No batch can hold a record.
    """
    attributes = codec | (0 if log_append_ms is None else LOG_APPEND_BIT)
    append_time = -1 if log_append_ms is None else log_append_ms
    workspace = workspace or Workspace()
    most, count = columns.max_bytes, len(columns)
    batches_most = min(count, 2 * most // max(batch_bytes, 1) + 1)
    size = most + HEADER_BYTES * (batches_most + 1)
    out = workspace.of(min(size, max(4 << 20, 2 * batch_bytes)) + kernels.SLACK)
    batches = np.empty((max(min(batches_most, 4096), 1), loops.PACKED_FIELDS), np.int64)
    record = 0
    while record < count:
        after, end, done, status = loops.pack_records(
            columns.spans, attributes, append_time, batch_bytes, record, out, batches
        )
        if status == kernels.BAD_RECORD:
            raise ValueError(f"record {after}: a header without a name, or a column that contradicts itself")
        if done == 0:
            if out.size > (1 << 31):
                raise RecordTooLargeError(f"record {record} does not fit any batch", remedy="split its value")
            out = workspace.of(4 * out.size)
            continue
        yield _run(out.data[:end], batches[:done], codec, level)
        record = after


def _run(data: memoryview, table: NDArray[np.int64], codec: int, level: int | None) -> EncodedRun:
    records = int(table[:, loops.PACKED_COUNT].sum())
    uncompressed = EncodedRun(data, table[:, loops.PACKED_SIZE].tolist(), records)
    if codec == 0:
        return uncompressed
    packed = [_compressed(batch, codec, level) for batch in uncompressed.batches()]
    return EncodedRun(memoryview(b"".join(packed)), list(map(len, packed)), records)


def _compressed(batch: memoryview, codec: int, level: int | None) -> bytearray:
    data = bytearray(batch[:HEADER_BYTES]) + compress(codec, bytes(batch[HEADER_BYTES:]), level)
    loops.seal_batch(np.frombuffer(data, np.uint8), 0, len(data))
    return data


def _taken(spans: Spans, rows: NDArray[np.int64]) -> Spans:
    return Spans(spans.data, spans.position[rows], spans.length[rows])


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view.

    Arrow's memory is read-only, and one kind of array means one compiled kernel.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def _spans(array: pa.Array) -> Spans:
    """Return the spans of a binary or string array."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if not (large or pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        array = array.cast(pa.binary())
    _validity, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return Spans(_frozen(np.empty(1, np.uint8)), _NOTHING, _NOTHING)
    kind = np.int64 if large else np.int32
    offsets = np.frombuffer(offset_buffer, kind)[array.offset : array.offset + len(array) + 1].astype(
        np.int64
    )
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[pc.is_null(array).to_numpy(zero_copy_only=False)] = -1
    if data_buffer is None or data_buffer.size == 0:
        data = np.empty(1, np.uint8)
    else:
        data = np.frombuffer(data_buffer, np.uint8)
    return Spans(_frozen(data), offsets[:-1].copy(), lengths)


def _header_spans(headers: pa.Array) -> tuple[NDArray[np.int64], Spans, Spans]:
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    # Nulls and slices make Arrow's offsets irregular: count per record, take the flattened pairs.
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    first = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    pairs = headers.flatten()
    fields = pairs.flatten()
    names, values = (fields[pairs.type.get_field_index(name)] for name in ("key", "value"))
    return first, _spans(names), _spans(values)
