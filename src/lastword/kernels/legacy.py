"""Magic 0 and 1: headers into the batch table, and messages into the record layout of magic 2.

Afterwards every other kernel reads the old formats as it reads magic 2: a row's RECORDS_POSITION and
RECORDS_END bound records in the layout of magic 2, whose offsets and timestamps are deltas to the row's
BASE_OFFSET and BASE_TIMESTAMP. A row of these magics keeps MAGIC and, in ATTRIBUTES, the codec and
LOG_APPEND; it has no producer and no leader epoch (-1). The formats are described in `records.formats`.
"""

from __future__ import annotations

import numpy as np

from lastword import wire
from lastword.kernels import (
    BAD_COUNT,
    BAD_CRC,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSET,
    BAD_RECORD,
    FULL,
    NO_SLACK,
    OK,
    SLACK,
)
from lastword.kernels import table as fields
from lastword.kernels.memory import (
    copy_wide,
    load8,
    load32,
    load32_be,
    load64_be,
    store8,
    varint_size,
    write_varint,
)
from lastword.kernels.native import I64X2, READ_U8, U8, inline, kernel

GROWTH_BYTES = 8
"""Upper bound of the bytes by which a message grows in the layout of magic 2."""


def _crc_table() -> np.ndarray:
    """Return the tables of CRC-32: uint32[8, 256].

    Row 0 is the usual table (reflected 0xEDB88320); row k advances it by k more zero bytes.
    """
    table = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        table[0, byte] = value
    for k in range(1, 8):
        table[k] = table[0][table[k - 1] & 0xFF] ^ table[k - 1] >> np.uint32(8)
    return table


_CRC = _crc_table()


@inline
def crc32_of(data, position, size):
    """Return the CRC-32 of zlib as int64, eight bytes a step; unchecked."""
    crc = np.int64(0xFFFFFFFF)
    end = position + size
    while end - position >= 8:
        low = load32(data, position) ^ crc
        high = load32(data, position + 4)
        crc = np.int64(
            _CRC[7, low & 255]
            ^ _CRC[6, low >> 8 & 255]
            ^ _CRC[5, low >> 16 & 255]
            ^ _CRC[4, low >> 24 & 255]
            ^ _CRC[3, high & 255]
            ^ _CRC[2, high >> 8 & 255]
            ^ _CRC[1, high >> 16 & 255]
            ^ _CRC[0, high >> 24 & 255]
        )
        position += 8
    while position < end:
        crc = np.int64(_CRC[0, (crc ^ load8(data, position)) & 255]) ^ crc >> 8
        position += 1
    return crc ^ np.int64(0xFFFFFFFF)


@inline
def read_entry(raw, position, size, magic, file_position, next_offset, verify, table, row):
    """Fill a row from the whole entry raw[position:position+size] of magic 0 or 1; return a status.

    The row of a wrapper has LAST_OFFSET only: until `translate_wrapper` has read the inner entries,
    BASE_OFFSET is the same and COUNT is -1.
    """
    if size < wire.SMALLEST_ENTRY_BYTES + 8 * magic:
        return BAD_LENGTH
    offset = load64_be(raw, position)
    crc = load32_be(raw, position + wire.LEGACY_CRC_AT) & 0xFFFFFFFF
    if verify and crc32_of(raw, position + wire.MAGIC_AT, size - wire.MAGIC_AT) != crc:
        return BAD_CRC
    if offset < next_offset or offset == wire.INT64_MAX:
        return BAD_OFFSET
    attributes = load8(raw, position + wire.LEGACY_ATTRIBUTES_AT) & (
        wire.CODEC_MASK | wire.LOG_APPEND_BIT if magic == 1 else wire.CODEC_MASK
    )
    codec = attributes & wire.CODEC_MASK
    if codec > wire.LZ4:  # these magics do not have zstd
        return BAD_RECORD
    timestamp = load64_be(raw, position + wire.LEGACY_TIMESTAMP_AT) if magic == 1 else -1
    table[row, fields.POSITION] = position
    table[row, fields.FILE_POSITION] = file_position + position
    table[row, fields.SIZE] = size
    table[row, fields.BASE_OFFSET] = offset
    table[row, fields.LAST_OFFSET] = offset
    table[row, fields.ATTRIBUTES] = attributes
    table[row, fields.COUNT] = 1 if codec == 0 else -1
    table[row, fields.BASE_TIMESTAMP] = timestamp
    table[row, fields.MAX_TIMESTAMP] = timestamp
    table[row, fields.PRODUCER_ID] = -1
    table[row, fields.PRODUCER_EPOCH] = -1
    table[row, fields.BASE_SEQUENCE] = -1
    table[row, fields.LEADER_EPOCH] = -1
    table[row, fields.CRC] = crc
    table[row, fields.MAGIC] = magic
    table[row, fields.RECORDS_POSITION] = -1
    table[row, fields.RECORDS_END] = -1
    return OK


@inline
def read_spans(data, position, end, magic):
    """Return (timestamp, key position, key length, value position, value length, valid) of a message.

    The entry data[position:end] has at least the smallest size of its magic. Bytes after the value are
    ignored.
    """
    timestamp = load64_be(data, position + wire.LEGACY_TIMESTAMP_AT) if magic == 1 else -1
    at = position + wire.LEGACY_TIMESTAMP_AT + 8 * magic
    key_length = load32_be(data, at)
    key_at = at + 4
    if key_length < -1 or max(key_length, 0) > end - key_at - 4:
        return timestamp, key_at, key_length, key_at, np.int64(-1), False
    at = key_at + max(key_length, 0)
    value_length = load32_be(data, at)
    value_at = at + 4
    valid = value_length >= -1 and max(value_length, 0) <= end - value_at
    return timestamp, key_at, key_length, value_at, value_length, valid


@inline
def write_record(
    uncompressed, at, timestamp_delta, offset_delta, data, key_at, key_length, value_at, value_length
):
    """Write a record without headers in the layout of magic 2; return the position after it."""
    key_size = max(key_length, 0)
    value_size = max(value_length, 0)
    body = (
        2
        + varint_size(timestamp_delta)
        + varint_size(offset_delta)
        + varint_size(key_length)
        + key_size
        + varint_size(value_length)
        + value_size
    )
    at = write_varint(uncompressed, at, body)
    store8(uncompressed, at, 0)
    at = write_varint(uncompressed, at + 1, timestamp_delta)
    at = write_varint(uncompressed, at, offset_delta)
    at = write_varint(uncompressed, at, key_length)
    copy_wide(uncompressed, at, data, key_at, key_size)
    at = write_varint(uncompressed, at + key_size, value_length)
    copy_wide(uncompressed, at, data, value_at, value_size)
    store8(uncompressed, at + value_size, 0)
    return at + value_size + 1


@kernel
def translate_messages(
    raw: READ_U8, table: I64X2, row: int, rows: int, uncompressed: U8, done: int
) -> tuple[int, int, int]:
    """Write the records of uncompressed rows of magic 0 and 1, from `row` on, into uncompressed[done:].

    Stops at the first row of another kind. Returns (row reached, bytes of `uncompressed` used, status).
    FULL: call again from that row with a larger `uncompressed`. BAD_RECORD is about that row.
    """
    while row < rows:
        magic = table[row, fields.MAGIC]
        if magic > 1 or table[row, fields.ATTRIBUTES] & wire.CODEC_MASK:
            break
        position = table[row, fields.POSITION]
        end = position + table[row, fields.SIZE]
        if position < 0 or end > raw.size - SLACK:
            return row, done, NO_SLACK
        if end - position + GROWTH_BYTES > uncompressed.size - SLACK - done:
            return row, done, FULL
        _timestamp, key_at, key_length, value_at, value_length, valid = read_spans(raw, position, end, magic)
        if not valid:
            return row, done, BAD_RECORD
        table[row, fields.RECORDS_POSITION] = done
        done = write_record(uncompressed, done, 0, 0, raw, key_at, key_length, value_at, value_length)
        table[row, fields.RECORDS_END] = done
        row += 1
    return row, done, OK


@kernel
def scan_inner(inner: READ_U8, size: int) -> tuple[int, int, int, int]:
    """Check the decompressed entries inner[:size] of a wrapper, with their CRCs.

    Returns (whole entries, first offset, last offset as stored, status). An incomplete entry at the end is
    left out. BAD_COUNT: no entry is whole. BAD_RECORD: an entry is compressed. `inner` has slack.
    """
    count, first, last = 0, np.int64(-1), np.int64(-1)
    if size < 0 or size > inner.size - SLACK:
        return count, first, last, NO_SLACK
    position = 0
    while size - position >= wire.OVERHEAD_BYTES:
        offset = load64_be(inner, position)
        length = load32_be(inner, position + wire.LENGTH_AT)
        if length < wire.SMALLEST_LENGTH:
            return count, first, last, BAD_LENGTH
        if length > size - position - wire.OVERHEAD_BYTES:
            break
        magic = load8(inner, position + wire.MAGIC_AT)
        if magic > 1:
            return count, first, last, BAD_MAGIC
        if length < wire.SMALLEST_LENGTH + 8 * magic:
            return count, first, last, BAD_LENGTH
        if load8(inner, position + wire.LEGACY_ATTRIBUTES_AT) & wire.CODEC_MASK:
            return count, first, last, BAD_RECORD
        if (
            crc32_of(inner, position + wire.MAGIC_AT, length - 4)
            != load32_be(inner, position + wire.LEGACY_CRC_AT) & 0xFFFFFFFF
        ):
            return count, first, last, BAD_CRC
        if offset < 0 or (count > 0 and offset <= last):
            return count, first, last, BAD_OFFSET
        if count == 0:
            first = offset
        last = offset
        count += 1
        position += wire.OVERHEAD_BYTES + length
    if count == 0:
        return count, first, last, BAD_COUNT
    return count, first, last, OK


@kernel
def translate_wrapper(
    inner: READ_U8, count: int, first: int, last: int, table: I64X2, row: int, uncompressed: U8, done: int
) -> tuple[int, int]:
    """Write the records of a wrapper's inner entries into uncompressed[done:], and complete its row.

    `count`, `first` and `last` come from `scan_inner`. Returns (bytes of `uncompressed` used, status). The
    caller provides room for the inner bytes and GROWTH_BYTES for each message.
    """
    shift = np.int64(0)
    wrapper_offset = table[row, fields.LAST_OFFSET]
    if table[row, fields.MAGIC] == 1 and wrapper_offset != 0:
        if wrapper_offset < last:
            return done, BAD_OFFSET
        shift = wrapper_offset - last
    if last - first > wire.INT32_MAX:
        return done, BAD_OFFSET
    log_append = table[row, fields.ATTRIBUTES] & wire.LOG_APPEND_BIT != 0
    base_timestamp = table[row, fields.BASE_TIMESTAMP]
    start = done
    position = 0
    for _ in range(count):
        end = position + wire.OVERHEAD_BYTES + load32_be(inner, position + wire.LENGTH_AT)
        if end - position + GROWTH_BYTES > uncompressed.size - SLACK - done:
            return start, FULL
        timestamp, key_at, key_length, value_at, value_length, valid = read_spans(
            inner, position, end, load8(inner, position + wire.MAGIC_AT)
        )
        if not valid:
            return start, BAD_RECORD
        delta = 0 if log_append else timestamp - base_timestamp
        offset_delta = load64_be(inner, position) - first
        done = write_record(
            uncompressed, done, delta, offset_delta, inner, key_at, key_length, value_at, value_length
        )
        position = end
    table[row, fields.BASE_OFFSET] = first + shift
    table[row, fields.LAST_OFFSET] = max(last + shift, wrapper_offset)
    table[row, fields.COUNT] = count
    table[row, fields.RECORDS_POSITION] = start
    table[row, fields.RECORDS_END] = done
    return done, OK
