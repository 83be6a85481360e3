"""Columns of keys, values and timestamps into ready batches, by one kernel: for bulk appends and Spark's
sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import RecordTooLargeError
from lastword.kernels import pack as loops
from lastword.kernels import table as fields

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 16384
_NOTHING = np.empty(0, np.int64)
_Spans = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]


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
    """Ready batches with all these records, in order: base offsets 0, leader epoch 0, no producer, CRC set.

    Args:
        keys, values: Arrow binary, large binary, string or large string arrays of one length; nulls are
        allowed. `null` arrays too. timestamps: int64 ms, one a record. headers: list<struct<key: string,
        value: binary>>, or None. codec: bits 0-2 of the attributes; level: of that codec,
        None for its own choice. batch_bytes: size that an uncompressed
        batch is filled to; a larger record gets a batch of its own. log_append_ms: makes batches of type
        LogAppendTime with this time.

    `rebase` gives them their offsets. Raises RecordTooLargeError for a record that no batch can hold.
    """
    count = len(keys)
    if len(values) != count or timestamps.size != count or (headers is not None and len(headers) != count):
        raise ValueError("keys, values, timestamps and headers must have the same length")
    if headers is None:
        first = _NOTHING
        names = notes = (_frozen(np.empty(1, np.uint8)), _NOTHING, _NOTHING)
    else:
        first, names, notes = _header_spans(headers)
    attributes = codec | (0 if log_append_ms is None else fields.LOG_APPEND)
    return _pack(
        _spans(keys),
        _spans(values),
        np.ascontiguousarray(timestamps, np.int64),
        (first, names, notes),
        attributes,
        -1 if log_append_ms is None else log_append_ms,
        batch_bytes,
        level,
    )


def _pack(
    keys: _Spans,
    values: _Spans,
    timestamps: NDArray[np.int64],
    headers: tuple[NDArray[np.int64], _Spans, _Spans],
    attributes: int,
    append_time: int,
    batch_bytes: int,
    level: int | None,
) -> list[bytearray]:
    first, names, notes = headers
    payload = sum(int(np.maximum(spans[2], 0).sum()) for spans in (keys, values, names, notes))
    # Fixed parts of a record: at most 31 bytes of varints and attributes; of a header: 10.
    most = payload + 31 * timestamps.size + 10 * int(names[1].size)
    batches_most = min(timestamps.size, 2 * most // max(batch_bytes, 1) + 1)
    size = most + fields.HEADER_BYTES * (batches_most + 1)
    ready: list[bytearray] = []
    record = 0
    out = np.empty(min(size, max(4 << 20, 2 * batch_bytes)) + kernels.SLACK, np.uint8)
    batches = np.empty((max(min(batches_most, 4096), 1), loops.PACKED_FIELDS), np.int64)
    while record < timestamps.size:
        after, _end, done, status = loops.pack_records(
            *keys,
            *values,
            timestamps,
            first,
            *names,
            *notes,
            attributes,
            append_time,
            batch_bytes,
            record,
            out,
            batches,
        )
        if status == kernels.BAD_RECORD:
            raise ValueError(f"record {after}: a header without a name, or a column that contradicts itself")
        if done == 0:
            if out.size > (1 << 31):
                raise RecordTooLargeError(f"record {record} does not fit any batch", remedy="split its value")
            out = np.empty(4 * out.size, np.uint8)
            continue
        view = out.data
        for position, size, *_ in batches[:done].tolist():
            ready.append(_finish(view[position : position + size], attributes & fields.CODEC, level))
        record = after
    return ready


def _finish(batch: memoryview, codec: int, level: int | None) -> bytearray:
    if codec == 0:
        return bytearray(batch)
    from lastword.records.compression import compress

    data = bytearray(batch[: fields.HEADER_BYTES]) + compress(
        codec, bytes(batch[fields.HEADER_BYTES :]), level
    )
    loops.seal_batch(np.frombuffer(data, np.uint8), 0, len(data))
    return data


def rebase(
    buffer: bytearray | NDArray[np.uint8], base_offset: int, leader_epoch: int
) -> tuple[int, int, int]:
    """Give the whole batches in `buffer` consecutive offsets, in place. Returns (next offset, largest
    timestamp, batches).
    """
    data = np.frombuffer(buffer, np.uint8) if not isinstance(buffer, np.ndarray) else buffer
    after, largest, batches, position = loops.rebase_batches(data, data.size, base_offset, leader_epoch)
    if position != data.size:
        raise ValueError(f"the buffer's bytes from {position} on are not a whole batch")
    return int(after), int(largest), int(batches)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: Arrow's memory is read-only, and one kind of array means one compiled kernel."""
    view = array.view()
    view.flags.writeable = False
    return view


def _spans(array: pa.Array) -> _Spans:
    """(data, positions, lengths) of a binary or string array; length -1 for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_null(array.type):
        array = array.cast(pa.binary())
    if not (
        pa.types.is_binary(array.type)
        or pa.types.is_string(array.type)
        or pa.types.is_large_binary(array.type)
        or pa.types.is_large_string(array.type)
    ):
        array = array.cast(pa.binary())
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _validity, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return _frozen(np.empty(1, np.uint8)), _NOTHING, _NOTHING
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
    return _frozen(data), offsets[:-1].copy(), lengths


def _header_spans(headers: pa.Array) -> tuple[NDArray[np.int64], _Spans, _Spans]:
    import pyarrow as pa

    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    # Nulls and slices make Arrow's offsets irregular: count per record, take the flattened pairs.
    import pyarrow.compute as pc

    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    first = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    pairs = headers.flatten()
    names, notes = pairs.flatten()
    return first, _spans(names), _spans(notes)
