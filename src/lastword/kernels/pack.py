"""Records from columns into uncompressed batches of magic 2, laid out as by Kafka's own builder."""

from __future__ import annotations

from typing import NamedTuple

from lastword import wire
from lastword.kernels import BAD_RECORD, FULL, OK, SLACK
from lastword.kernels.hashing import crc_of
from lastword.kernels.memory import (
    copy_exact,
    store8,
    store16_be,
    store32_be,
    store64_be,
    varint_size,
    write_varint,
)
from lastword.kernels.native import I64X2, READ_I64, READ_U8, U8, inline, kernel

# Columns of `batches`, int64, one row a packed batch.
PACKED_POSITION = 0
PACKED_SIZE = 1
PACKED_COUNT = 2
PACKED_MAX_TIMESTAMP = 3
PACKED_FIELDS = 4


class Spans(NamedTuple):
    """The values of a column, as spans of `data` (uint8, read-only).

    A value is `length` bytes from `position` on; length -1 is null. Positions and lengths are int64.
    """

    data: READ_U8
    position: READ_I64
    length: READ_I64


class RecordSpans(NamedTuple):
    """Records to pack, an entry for each record; timestamps are int64 ms.

    The headers of record i are the entries header_first[i]..header_first[i + 1] of `header_names` and
    `header_values`. `header_first` (int64) is empty if no record has headers.
    """

    keys: Spans
    values: Spans
    timestamps: READ_I64
    header_first: READ_I64
    header_names: Spans
    header_values: Spans


@inline
def seal(data, position, size):
    """Set the length and the CRC of a batch."""
    store32_be(data, position + wire.LENGTH_AT, size - wire.OVERHEAD_BYTES)
    store32_be(
        data, position + wire.CRC_AT, crc_of(data, position + wire.ATTRIBUTES_AT, size - wire.ATTRIBUTES_AT)
    )


@inline
def _outside(source, position, length):
    return length > 0 and (position < 0 or position > source.size or length > source.size - position)


@kernel
def pack_records(
    records: RecordSpans,
    attributes: int,
    append_time: int,
    batch_bytes: int,
    first: int,
    out: U8,
    batches: I64X2,
) -> tuple[int, int, int, int]:
    """Write the records from `first` on into `out`; start a new batch when `batch_bytes` would be exceeded.

    `append_time` is the maximum timestamp of every batch if `attributes` has LOG_APPEND. Base offsets are 0,
    leader epochs 0, and there is no producer. Returns (next record, bytes written, batches written, status).
    FULL: `out` or `batches` is full; whole batches were written. BAD_RECORD: spans outside their data, or a
    header without a name.
    """
    key_data, key_position, key_length = records.keys
    value_data, value_position, value_length = records.values
    name_data, name_position, name_length = records.header_names
    note_data, note_position, note_length = records.header_values
    timestamp, header_first = records.timestamps, records.header_first
    total = timestamp.size
    position = 0
    done = 0
    record = first
    with_headers = header_first.size > 0
    while record < total:
        if done >= batches.shape[0]:
            return record, position, done, FULL
        start = position
        end = start + wire.HEADER_BYTES
        if out.size - SLACK - end < 0:
            return record, start, done, FULL
        base = timestamp[record]
        largest = base
        count = 0
        while record + count < total:
            i = record + count
            key_size = key_length[i]
            value_size = value_length[i]
            key_bytes = max(key_size, 0)
            value_bytes = max(value_size, 0)
            if _outside(key_data, key_position[i], key_bytes) or _outside(
                value_data, value_position[i], value_bytes
            ):
                return i, start, done, BAD_RECORD
            delta = timestamp[i] - base
            headers = 0
            header_bytes = 0
            if with_headers:
                headers = header_first[i + 1] - header_first[i]
                for j in range(header_first[i], header_first[i + 1]):
                    if name_length[j] < 0 or _outside(name_data, name_position[j], name_length[j]):
                        return i, start, done, BAD_RECORD
                    if _outside(note_data, note_position[j], note_length[j]):
                        return i, start, done, BAD_RECORD
                    header_bytes += varint_size(name_length[j]) + name_length[j]
                    header_bytes += varint_size(note_length[j]) + max(note_length[j], 0)
            body = (
                1
                + varint_size(delta)
                + varint_size(count)
                + varint_size(key_size)
                + key_bytes
                + varint_size(value_size)
                + value_bytes
                + varint_size(headers)
                + header_bytes
            )
            size = varint_size(body) + body
            if count > 0 and end - start + size > batch_bytes:
                break
            if size > out.size - SLACK - end:
                return record, start, done, FULL
            end = write_varint(out, end, body)
            store8(out, end, 0)
            end = write_varint(out, end + 1, delta)
            end = write_varint(out, end, count)
            end = write_varint(out, end, key_size)
            if key_bytes > 0:
                copy_exact(out, end, key_data, key_position[i], key_bytes)
                end += key_bytes
            end = write_varint(out, end, value_size)
            if value_bytes > 0:
                copy_exact(out, end, value_data, value_position[i], value_bytes)
                end += value_bytes
            end = write_varint(out, end, headers)
            if headers > 0:
                for j in range(header_first[i], header_first[i + 1]):
                    end = write_varint(out, end, name_length[j])
                    if name_length[j] > 0:
                        copy_exact(out, end, name_data, name_position[j], name_length[j])
                        end += name_length[j]
                    end = write_varint(out, end, note_length[j])
                    if note_length[j] > 0:
                        copy_exact(out, end, note_data, note_position[j], note_length[j])
                        end += note_length[j]
            largest = max(largest, timestamp[i])
            count += 1
        if attributes & wire.LOG_APPEND_BIT:
            largest = append_time
        store64_be(out, start, 0)
        store32_be(out, start + wire.LEADER_EPOCH_AT, 0)
        store8(out, start + wire.MAGIC_AT, 2)
        store16_be(out, start + wire.ATTRIBUTES_AT, attributes)
        store32_be(out, start + wire.LAST_OFFSET_DELTA_AT, count - 1)
        store64_be(out, start + wire.BASE_TIMESTAMP_AT, base)
        store64_be(out, start + wire.MAX_TIMESTAMP_AT, largest)
        store64_be(out, start + wire.PRODUCER_ID_AT, -1)
        store16_be(out, start + wire.PRODUCER_EPOCH_AT, -1)
        store32_be(out, start + wire.BASE_SEQUENCE_AT, -1)
        store32_be(out, start + wire.COUNT_AT, count)
        seal(out, start, end - start)
        batches[done, PACKED_POSITION] = start
        batches[done, PACKED_SIZE] = end - start
        batches[done, PACKED_COUNT] = count
        batches[done, PACKED_MAX_TIMESTAMP] = largest
        done += 1
        record += count
        position = end
    return record, position, done, OK


@kernel
def seal_batch(data: U8, position: int, size: int) -> bool:
    """Set length and CRC of the batch data[position:position + size]; return False if that is outside."""
    if position < 0 or size < wire.HEADER_BYTES or position > data.size or size > data.size - position:
        return False
    seal(data, position, size)
    return True
