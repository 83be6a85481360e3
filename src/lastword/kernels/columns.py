"""Records of a chunk into columns, and spans of bytes into Arrow's layout."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastword import wire
from lastword.kernels import BAD_COUNT, BAD_LENGTH, BAD_RECORD, FULL, NO_SLACK, OK, SLACK
from lastword.kernels import table as fields
from lastword.kernels.hashing import crc_of
from lastword.kernels.memory import (
    copy_wide,
    load8,
    load16_be,
    load32_be,
    load64_be,
    not_negative,
    read_varint,
    read_varlong,
)
from lastword.kernels.native import (
    I32,
    I64,
    I64X2,
    READ_I32,
    READ_I64,
    READ_I64X2,
    READ_U8,
    U8,
    inline,
    kernel,
)
from lastword.kernels.pages import DeadBits, bits_between, in_word, read_word


class ColumnArrays(NamedTuple):
    """The positions and facts of records, an entry for each record.

    Positions count in the chunk's `uncompressed` bytes. Lengths are -1 for null. `row` is the row of the
    batch in the table. Offset, timestamp and positions are int64, the others int32.
    """

    offset: I64
    timestamp: I64
    key_position: I64
    key_length: I32
    value_position: I64
    value_length: I32
    header_position: I64
    header_count: I32
    row: I32

    @classmethod
    def empty(cls, size: int) -> ColumnArrays:
        """Return arrays for `size` records."""
        wide, narrow = np.int64, np.int32
        types = (wide, wide, wide, narrow, wide, narrow, wide, narrow, narrow)
        return cls(*(np.empty(size, kind) for kind in types))


@inline
def read_bounds(data, position, end):
    """Return (body position, body end, valid) of the record at `position` in a batch that ends at `end`."""
    size, body = read_varint(data, position)
    return body, body + size, size >= wire.SMALLEST_RECORD_BYTES - 1 and size <= end - body


@inline
def read_deltas(data, body):
    """Return (timestamp delta, offset delta, position of the key's length, valid).

    Reads at most 16 bytes past `body`.
    """
    timestamp_delta, position, valid = read_varlong(data, body + 1)
    offset_delta, position = read_varint(data, position)
    return timestamp_delta, offset_delta, position, valid


@inline
def read_key(data, body, body_end):
    """Return (timestamp delta, offset delta, key position, key length, value length's position, valid).

    Reads at most 21 bytes past the body, which slack covers. The key's length is -1 for null; a key is
    inside the body.
    """
    timestamp_delta, offset_delta, position, valid = read_deltas(data, body)
    key_length, position = read_varint(data, position)
    present = max(key_length, 0)
    valid = valid and key_length >= -1 and present <= body_end - position
    return timestamp_delta, offset_delta, position, key_length, position + present, valid


@inline
def read_value(data, position, body_end):
    """Return (value position, value length, position after the value, valid) at the value's length."""
    value_length, position = read_varint(data, position)
    present = max(value_length, 0)
    return position, value_length, position + present, value_length >= -1 and present <= body_end - position


@inline
def skip_headers(data, position, body_end):
    """Return (position of the first header, count, valid) after checking every header.

    The body must end with the last header.
    """
    count, position = read_varint(data, position)
    first = position
    if count < 0 or count > body_end - position:
        return first, count, False
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0 or size > body_end - position:
            return first, count, False
        size, position = read_varint(data, position + size)
        if size < -1 or max(size, 0) > body_end - position:
            return first, count, False
        position += max(size, 0)
    return first, count, position == body_end


class KeyedRecord(NamedTuple):
    """The first part of a record, up to its key; the positions count in the bytes that were read."""

    body: int
    timestamp_delta: int
    offset_delta: int
    key_position: int
    key_length: int  # -1: null
    value_at: int  # position of the value's length
    end: int
    valid: bool


@inline
def read_keyed(data, position, end):
    """Return the first part of the record at `position` in a batch that ends at `end`."""
    body, body_end, bounded = read_bounds(data, position, end)
    delta, offset_delta, key_at, key_size, value_at, valid = read_key(data, body, body_end)
    return KeyedRecord(body, delta, offset_delta, key_at, key_size, value_at, body_end, bounded and valid)


class Record(NamedTuple):
    """A record; the positions count in the bytes that were read, and a length is -1 for null."""

    timestamp_delta: int
    offset_delta: int
    key_position: int
    key_length: int
    value_position: int
    value_length: int
    header_position: int
    header_count: int
    end: int
    valid: bool


@inline
def read_record(data, position, end, previous, span):
    """Return the record at `position`, checked.

    `previous` is the offset delta of the record before, `span` that of the batch's last record.
    """
    keyed = read_keyed(data, position, end)
    delta, valid = keyed.offset_delta, keyed.valid and previous < keyed.offset_delta <= span
    value_at, value_size, after = keyed.value_at, np.int64(-1), keyed.value_at
    if valid:
        value_at, value_size, after, valid = read_value(data, keyed.value_at, keyed.end)
    headers_at, headers = keyed.end, np.int64(0)
    if valid and (keyed.end - after != 1 or load8(data, after) != 0):
        headers_at, headers, valid = skip_headers(data, after, keyed.end)
    key_at, key_size = keyed.key_position, keyed.key_length
    parts = (keyed.timestamp_delta, delta, key_at, key_size, value_at, value_size, headers_at, headers)
    return Record(*parts, keyed.end, valid)


@inline
def records_of(uncompressed, table, row):
    """Return (position, end, number, status) of the records of a row, after checks of the first three."""
    position = table[row, fields.RECORDS_POSITION]
    end = table[row, fields.RECORDS_END]
    count = table[row, fields.COUNT]
    status = OK
    if position < 0 or position > end or end > uncompressed.size - SLACK:
        status = NO_SLACK
    elif count < 0 or count > (end - position) // wire.SMALLEST_RECORD_BYTES:
        status = BAD_COUNT
    return position, end, count, status


@inline
def _store(columns, i, record, offset, timestamp, row):
    columns.offset[i] = offset
    columns.timestamp[i] = timestamp
    columns.key_position[i] = record.key_position
    columns.key_length[i] = record.key_length
    columns.value_position[i] = record.value_position
    columns.value_length[i] = record.value_length
    columns.header_position[i] = record.header_position
    columns.header_count[i] = record.header_count
    columns.row[i] = row


@kernel
def decode_rows(
    uncompressed: READ_U8, table: READ_I64X2, rows: int, with_control: bool, columns: ColumnArrays
) -> tuple[int, int, int]:
    """Fill an entry of every column for each record of the first `rows` rows.

    Control batches are left out unless `with_control`. Returns (records, row, status). With a BAD_ status
    `row` is the malformed batch.
    """
    done = 0
    for row in range(rows):
        attributes = table[row, fields.ATTRIBUTES]
        if attributes & wire.CONTROL_BIT and not with_control:
            continue
        position, end, count, status = records_of(uncompressed, table, row)
        if status != OK:
            return done, row, status
        if count > columns.offset.size - done:
            return done, row, FULL
        base_offset = table[row, fields.BASE_OFFSET]
        span = table[row, fields.LAST_OFFSET] - base_offset
        base_timestamp = table[row, fields.BASE_TIMESTAMP]
        log_append = attributes & wire.LOG_APPEND_BIT != 0
        previous = -1
        for i in range(done, done + count):
            record = read_record(uncompressed, position, end, previous, span)
            if not record.valid:
                return done, row, BAD_RECORD
            position, previous = record.end, record.offset_delta
            timestamp = (
                table[row, fields.MAX_TIMESTAMP] if log_append else base_timestamp + record.timestamp_delta
            )
            _store(columns, i, record, base_offset + previous, timestamp, row)
        if position != end:
            return done, row, BAD_RECORD
        done += count
    return done, rows, OK


@kernel
def decode_live_rows(
    uncompressed: READ_U8,
    table: READ_I64X2,
    rows: int,
    dead: DeadBits,
    first_offset: int,
    with_tombstones: bool,
    columns: ColumnArrays,
) -> tuple[int, int, int]:
    """Fill an entry of every column for each record with a key whose bit is not set, from `first_offset` on.

    Control batches are left out, and without `with_tombstones` records without a value. All records are
    checked as in `decode_rows`, but those of a batch (magic 2) that is wholly dead are not read. Returns
    (records, row, status) as `decode_rows` does.
    """
    done = 0
    for row in range(rows):
        attributes = table[row, fields.ATTRIBUTES]
        if attributes & wire.CONTROL_BIT:
            continue
        base_offset = table[row, fields.BASE_OFFSET]
        gone = bits_between(dead, base_offset, table[row, fields.LAST_OFFSET])
        if 0 < table[row, fields.COUNT] <= gone and table[row, fields.MAGIC] == 2:
            continue
        position, end, count, status = records_of(uncompressed, table, row)
        if status != OK:
            return done, row, status
        if count - gone > columns.offset.size - done:
            return done, row, FULL
        span = table[row, fields.LAST_OFFSET] - base_offset
        base_timestamp = table[row, fields.BASE_TIMESTAMP]
        log_append = attributes & wire.LOG_APPEND_BIT != 0
        previous = -1
        word = np.uint64(0)
        word_number = np.int64(-1)
        for _ in range(count):
            record = read_record(uncompressed, position, end, previous, span)
            if not record.valid:
                return done, row, BAD_RECORD
            position, previous = record.end, record.offset_delta
            number = base_offset + previous
            if gone > 0 and number >> 6 != word_number:
                word_number = number >> 6
                word = read_word(dead, number)
            if in_word(word, number) or number < first_offset or record.key_length < 0:
                continue
            if record.value_length < 0 and not with_tombstones:
                continue
            timestamp = (
                table[row, fields.MAX_TIMESTAMP] if log_append else base_timestamp + record.timestamp_delta
            )
            _store(columns, not_negative(done), record, number, timestamp, row)
            done += 1
        if position != end:
            return done, row, BAD_RECORD
    return done, rows, OK


# Fields of a row of `refused`, int64[n, 2], which `check_records` fills.
INDEX = 0
TIME = 1  # the record's, if that is out of range; NO_KEY if the record has no key
NO_TIME = NO_KEY = -1  # a record without a time is never out of range


@kernel
def check_records(
    uncompressed: READ_U8,
    table: READ_I64X2,
    row: int,
    oldest: int,
    newest: int,
    needs_key: bool,
    most_body: int,
    refused: I64X2,
) -> tuple[int, int, int]:
    """Check every record of the batch of a row as its producer made it: offsets 0, 1, 2 to the last.

    Fills a row of `refused` for each record without a key, if `needs_key`, and for each whose time is not in
    [oldest, newest], as far as there is room. A record without a time (-1) may be anywhere.

    Returns (status, largest time, records that are refused). BAD_LENGTH: the body of a record has more than
    `most_body` bytes.
    """
    if row < 0 or row >= table.shape[0]:
        return FULL, NO_TIME, 0
    position, end, count, status = records_of(uncompressed, table, row)
    if status == OK and count != table[row, fields.LAST_OFFSET] - table[row, fields.BASE_OFFSET] + 1:
        status = BAD_COUNT
    if status != OK:
        return status, NO_TIME, 0
    base_timestamp = table[row, fields.BASE_TIMESTAMP]
    log_append = table[row, fields.ATTRIBUTES] & wire.LOG_APPEND_BIT != 0
    largest = np.int64(NO_TIME)
    wrong = 0
    for i in range(count):
        body, body_end, valid = read_bounds(uncompressed, position, end)
        if valid and body_end - body > most_body:
            return BAD_LENGTH, largest, wrong
        record = read_record(uncompressed, position, end, i - 1, i)
        if not record.valid:
            return BAD_RECORD, largest, wrong
        position = record.end
        time = table[row, fields.MAX_TIMESTAMP] if log_append else base_timestamp + record.timestamp_delta
        largest = max(largest, time)
        no_key = needs_key and record.key_length < 0
        if no_key or (time != NO_TIME and (time < oldest or time > newest)):
            if wrong < refused.shape[0]:
                refused[wrong, INDEX] = i
                refused[wrong, TIME] = NO_KEY if no_key else time
            wrong += 1
    if position != end:
        return BAD_RECORD, largest, wrong
    return OK, largest, wrong


# Fields of `record`, int64, which `find_record` fills. Positions count in the chunk's `uncompressed` bytes.
TIMESTAMP = 0
KEY_POSITION = 1
KEY_LENGTH = 2
VALUE_POSITION = 3
VALUE_LENGTH = 4
HEADER_COUNT = 5
RECORD_FIELDS = 6


@kernel
def find_record(
    uncompressed: READ_U8, table: READ_I64X2, row: int, offset: int, record: I64
) -> tuple[bool, int]:
    """Fill `record` with the fields of the record at `offset` in the batch of a row; lengths are -1 for null.

    Every record of the batch is checked as in `decode_rows`. Returns (found, status).
    """
    if row < 0 or row >= table.shape[0] or record.size < RECORD_FIELDS:
        return False, FULL
    position, end, count, status = records_of(uncompressed, table, row)
    if status != OK:
        return False, status
    wanted = offset - table[row, fields.BASE_OFFSET]
    span = table[row, fields.LAST_OFFSET] - table[row, fields.BASE_OFFSET]
    base_timestamp = table[row, fields.BASE_TIMESTAMP]
    log_append = table[row, fields.ATTRIBUTES] & wire.LOG_APPEND_BIT != 0
    previous = -1
    found = False
    for _ in range(count):
        part = read_record(uncompressed, position, end, previous, span)
        if not part.valid:
            return False, BAD_RECORD
        position, previous = part.end, part.offset_delta
        if previous == wanted:
            found = True
            record[TIMESTAMP] = (
                table[row, fields.MAX_TIMESTAMP] if log_append else base_timestamp + part.timestamp_delta
            )
            record[KEY_POSITION], record[KEY_LENGTH] = part.key_position, part.key_length
            record[VALUE_POSITION], record[VALUE_LENGTH] = part.value_position, part.value_length
            record[HEADER_COUNT] = part.header_count
    if position != end:
        return False, BAD_RECORD
    return found, OK


@kernel
def find_plain(
    raw: READ_U8, end: int, below: int, first: int, offset: int, bound: int, excluded: int, record: I64
) -> tuple[int, int]:
    """Fill `record` as `find_record` does, from the batches of magic 2 at the start of raw[:end].

    The batches up to that of the record are verified; behind the record nothing is checked but the base
    offset of the next batch, because no checksum covers one.

    Args:
        raw: The bytes.
        end: The end of the batches.
        below: The first batch begins at or above this offset.
        first: Last offset of the first batch; -1: it is not known.
        offset: The offset of the record.
        bound: All offsets are below; -1: there is none.
        excluded: The attributes of the batch have none of these bits.
        record: The fields.

    Returns:
        (Bytes of its batch, attributes); 0 bytes for all that the caller has to find in another way: a batch
        with excluded attributes, damage, a gap.
    """
    if end > raw.size - SLACK or record.size < RECORD_FIELDS:
        return 0, 0
    start = 0
    while True:
        if end - start < wire.HEADER_BYTES or load8(raw, start + wire.MAGIC_AT) != 2:
            return 0, 0
        size = load32_be(raw, start + wire.LENGTH_AT) + wire.OVERHEAD_BYTES
        base, delta = load64_be(raw, start), load32_be(raw, start + wire.LAST_OFFSET_DELTA_AT)
        if size < wire.HEADER_BYTES or size > end - start or base < below or delta < 0:
            return 0, 0
        last = base + delta
        crc = load32_be(raw, start + wire.CRC_AT) & 0xFFFFFFFF
        if last < base or crc_of(raw, start + wire.ATTRIBUTES_AT, size - wire.ATTRIBUTES_AT) != crc:
            return 0, 0
        if start == 0 and first >= 0 and last != first:
            return 0, 0
        if last >= offset:
            break
        below = last + 1
        start += size
    attributes = load16_be(raw, start + wire.ATTRIBUTES_AT)
    batch_end = start + size
    if base > offset or attributes & excluded != 0 or (bound >= 0 and last >= bound):
        return 0, 0
    if end - batch_end >= 8 and load64_be(raw, batch_end) <= last:
        return 0, 0
    position, wanted = start + wire.HEADER_BYTES, offset - base
    for _ in range(load32_be(raw, start + wire.COUNT_AT)):
        part = read_keyed(raw, position, batch_end)
        if not part.valid or part.offset_delta > wanted:
            return 0, 0
        if part.offset_delta == wanted:
            value_at, value_size, position, valid = read_value(raw, part.value_at, part.end)
            if not valid or part.end - position != 1 or load8(raw, position) != 0:
                return 0, 0
            is_append = attributes & wire.LOG_APPEND_BIT != 0
            record[TIMESTAMP] = load64_be(
                raw, start + (wire.MAX_TIMESTAMP_AT if is_append else wire.BASE_TIMESTAMP_AT)
            )
            if not is_append:
                record[TIMESTAMP] += part.timestamp_delta
            record[KEY_POSITION], record[KEY_LENGTH] = part.key_position, part.key_length
            record[VALUE_POSITION], record[VALUE_LENGTH] = value_at, value_size
            record[HEADER_COUNT] = 0
            return size, attributes
        position = part.end
    return 0, 0


@kernel
def decode_headers(
    uncompressed: READ_U8,
    header_position: READ_I64,
    header_count: READ_I32,
    name_position: I64,
    name_length: I32,
    value_position: I64,
    value_length: I32,
) -> int:
    """Fill an entry for each header of each record; return the number of headers.

    The columns come from `decode_rows`, which checked them.
    """
    done = 0
    for i in range(header_position.size):
        position = header_position[i]
        for _ in range(header_count[i]):
            size, position = read_varint(uncompressed, position)
            name_position[done] = position
            name_length[done] = size
            size, position = read_varint(uncompressed, position + size)
            value_position[done] = position
            value_length[done] = size
            position += max(size, 0)
            done += 1
    return done


@kernel
def span_bytes(length: READ_I32) -> tuple[int, int]:
    """Return (bytes of all spans, number of nulls); a negative length is a null."""
    total = 0
    nulls = 0
    for i in range(length.size):
        if length[i] < 0:
            nulls += 1
        else:
            total += length[i]
    return total, nulls


@kernel
def gather_spans(
    source: READ_U8, position: READ_I64, length: READ_I32, offsets: I32, data: U8, validity: U8
) -> int:
    """Copy each source[position:position + length] into `data`, one after another.

    `offsets` (int32[n + 1]) and `data` (SLACK bytes longer than needed) become an Arrow binary array. The
    caller zeroes `validity`; it gets a bit for each span that is not null, or is empty (size 0) if no span
    is null. Spans must be inside `source`, before its slack.
    """
    total = 0
    marked = validity.size > 0
    for i in range(position.size):
        offsets[i] = total
        size = length[i]
        if size >= 0:
            at = position[i]
            if at < 0 or size > source.size - SLACK - at or size > data.size - SLACK - total:
                return NO_SLACK
            copy_wide(data, total, source, at, size)
            total += size
            if marked:
                validity[i >> 3] |= 1 << (i & 7)
    offsets[position.size] = total
    return OK
