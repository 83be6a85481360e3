"""Kept records into the batches that replace theirs, driven by bits alone: no key is read.

A batch without a dead record is copied byte for byte. A batch with only dead records is dropped, or leaves
its 61-byte header where something must keep the end of the range. The others are cut at the boundaries of
their records. A rewritten batch keeps its base offset, last offset, producer and leader epoch. The caller
decides what happens to a control batch. Magic 2 only.

Small neighbours are joined into one batch: the kept records of a batch are appended to the batch before it.
Only offset and timestamp deltas are rewritten; every other byte of a record stays. `joinable` and `can_join`
alone decide which batches are joined: no field that Kafka stores once for a whole batch may differ between
them. Batches of a producer, of a transaction and of control records are never joined, because their
sequences, outcomes and markers refer to batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastword import wire
from lastword.kernels import BAD_RECORD, FULL, NO_SLACK, OK, SLACK
from lastword.kernels import table as fields
from lastword.kernels.columns import read_bounds, read_deltas, read_keyed, read_value
from lastword.kernels.hashing import crc_of, crc_of_four
from lastword.kernels.memory import (
    copy_exact,
    copy_wide,
    load8,
    read_varint,
    read_varlong,
    store8,
    store16_be,
    store32_be,
    store64_be,
    varint_size,
    write_varint,
)
from lastword.kernels.native import I64, I64X2, READ_I64, READ_I64X2, READ_U8, U8, inline, kernel
from lastword.kernels.pack import seal
from lastword.kernels.pages import DeadBits, bits_between, in_word, read_word, test_bit

# Fields of `joining` (int64).
TARGET_BYTES = 0
"""Uncompressed bytes that a joined batch is filled up to; 0: no batches are joined.

If records differ in size, a joined batch may exceed this by less than as much again.
"""
MAX_BYTES = 1
"""Upper bound of a joined batch, growth of its records included."""
OPEN_ROW = 2
"""The last batch written, if it may take more records; else -1."""
OPEN_UNCOMPRESSED = 3
"""Bytes of its records in `side` while the output has them compressed; -1: they are uncompressed."""
JOINING_FIELDS = 4

_RECORD_GROWTH = 16  # a timestamp delta, an offset delta and a length, each in its longest form


@inline
def joinable(table, row):
    """Return whether this batch may be joined with any other."""
    return (
        table[row, fields.MAGIC] == 2
        and table[row, fields.ATTRIBUTES] & (wire.CONTROL_BIT | wire.TRANSACTIONAL_BIT) == 0
        and table[row, fields.PRODUCER_ID] < 0
        and table[row, fields.PRODUCER_EPOCH] < 0
        and table[row, fields.BASE_SEQUENCE] < 0
    )


@inline
def can_join(out_table, first, table, row, attributes, base_timestamp):
    """Return whether the records of `row` may be appended to batch `first`.

    Both are joinable. `attributes` and `base_timestamp` are those of `row` after its rewrite.
    """
    if out_table[first, fields.ATTRIBUTES] != attributes:  # codec, timestamp type, delete horizon
        return False
    if out_table[first, fields.LEADER_EPOCH] != table[row, fields.LEADER_EPOCH]:
        return False
    if attributes & wire.DELETE_HORIZON_BIT and out_table[first, fields.BASE_TIMESTAMP] != base_timestamp:
        return False
    if (
        attributes & wire.LOG_APPEND_BIT
        and out_table[first, fields.MAX_TIMESTAMP] != table[row, fields.MAX_TIMESTAMP]
    ):
        return False
    return table[row, fields.LAST_OFFSET] - out_table[first, fields.BASE_OFFSET] <= wire.INT32_MAX


@inline
def kept_bytes(uncompressed, table, row, dead):
    """Return (bytes of the batch's kept records as they are on disk, status)."""
    position = table[row, fields.RECORDS_POSITION]
    end = table[row, fields.RECORDS_END]
    size = 0
    for _ in range(table[row, fields.COUNT]):
        record = read_keyed(uncompressed, position, end)
        if not record.valid:
            return 0, BAD_RECORD
        if not test_bit(dead, table[row, fields.BASE_OFFSET] + record.offset_delta):
            size += record.end - position
        position = record.end
    return size, OK


@inline
def fits_open_batch(joining, open_bytes, kept_size, most_size, most_records):
    """Return whether about `kept_size` bytes, at most `most_size`, fit the open batch."""
    return (
        open_bytes + kept_size <= joining[TARGET_BYTES]
        and open_bytes + most_size + _RECORD_GROWTH * most_records <= joining[MAX_BYTES]
    )


@inline
def append_kept(uncompressed, table, row, dead, out, write, out_table, first):
    """Write the kept records of `row` at `write`, after those of batch `first` of `out_table`.

    Updates the row and the header of that batch, except the checksum. Returns (end, records written,
    status).
    """
    position = table[row, fields.RECORDS_POSITION]
    end = table[row, fields.RECORDS_END]
    old_base = table[row, fields.BASE_TIMESTAMP]
    log_append = table[row, fields.ATTRIBUTES] & wire.LOG_APPEND_BIT != 0
    new_base = out_table[first, fields.BASE_TIMESTAMP]
    moved = table[row, fields.BASE_OFFSET] - out_table[first, fields.BASE_OFFSET]
    largest = out_table[first, fields.MAX_TIMESTAMP]
    kept = 0
    word = np.uint64(0)
    word_number = np.int64(-1)
    for _ in range(table[row, fields.COUNT]):
        body, body_end, valid = read_bounds(uncompressed, position, end)
        if not valid:
            return 0, 0, BAD_RECORD
        delta, offset_delta, rest, valid = read_deltas(uncompressed, body)
        key_length, key_at = read_varint(uncompressed, rest)
        if not valid or key_length < -1 or max(key_length, 0) > body_end - key_at:
            return 0, 0, BAD_RECORD
        offset = table[row, fields.BASE_OFFSET] + offset_delta
        if offset >> 6 != word_number:
            word_number = offset >> 6
            word = read_word(dead, offset)
        if not in_word(word, offset):
            if new_base != old_base:
                timestamp = table[row, fields.MAX_TIMESTAMP] if log_append else old_base + delta
                delta = timestamp - new_base
            if not log_append:
                largest = max(largest, new_base + delta)
            offset_delta += moved
            size = 1 + varint_size(delta) + varint_size(offset_delta) + body_end - rest
            write = write_varint(out, write, size)
            store8(out, write, load8(uncompressed, body))
            write = write_varint(out, write + 1, delta)
            write = write_varint(out, write, offset_delta)
            copy_wide(out, write, uncompressed, rest, body_end - rest)
            write += body_end - rest
            kept += 1
        position = body_end
    if position != end:
        return 0, 0, BAD_RECORD
    start = out_table[first, fields.POSITION]
    out_table[first, fields.LAST_OFFSET] = table[row, fields.LAST_OFFSET]
    out_table[first, fields.COUNT] += kept
    out_table[first, fields.MAX_TIMESTAMP] = largest
    out_table[first, fields.SIZE] = write - start
    out_table[first, fields.RECORDS_END] = write
    store32_be(out, start + wire.LENGTH_AT, write - start - wire.OVERHEAD_BYTES)
    store32_be(
        out,
        start + wire.LAST_OFFSET_DELTA_AT,
        table[row, fields.LAST_OFFSET] - out_table[first, fields.BASE_OFFSET],
    )
    store64_be(out, start + wire.MAX_TIMESTAMP_AT, largest)
    store32_be(out, start + wire.COUNT_AT, out_table[first, fields.COUNT])
    return write, kept, OK


# The class of a batch after the rewrite.
DROPPED = 0
VERBATIM = 1
MIXED = 2
EMPTIED = 3
JOINED = 4
"""Several batches were joined. The records are uncompressed, and the checksum is not set yet."""

# `retain`: what the caller requires of a batch.
AS_BITS = 0
RETAIN = 1
"""A data batch leaves at least its header."""
DROP = 2
"""A control batch is dropped."""
SET_HORIZON = 3
"""A control batch gets the delete horizon."""


# Columns of `before`, int64, one row a batch: of a batch whose dead records were left out.
RECORDS_BEFORE = 0
SIZE_BEFORE = 1
"""Bytes of its records, uncompressed."""
BEFORE_FIELDS = 2


class RepackSource(NamedTuple):
    """The arrays of a chunk.

    Attributes:
        raw, uncompressed: uint8, with slack.
        table: The batches.
        before: int64[rows, BEFORE_FIELDS], if dead records were left out (`survivors`); else without rows.
    """

    raw: READ_U8
    uncompressed: READ_U8
    table: READ_I64X2
    before: READ_I64X2


class RepackOutput(NamedTuple):
    """The arrays that rewritten batches are written to.

    Attributes:
        data: uint8, with slack; the batches.
        table: int64[rows, FIELDS]; a row for each batch, with positions in `data`.
        classes: int64 for each row of `table`; VERBATIM, MIXED, EMPTIED or JOINED.
        joining: int64[JOINING_FIELDS]; the limits of joined batches, and the batch that may still grow.
        side: uint8, half of TARGET_BYTES and slack; scratch of the kernel.
    """

    data: U8
    table: I64X2
    classes: I64
    joining: I64
    side: U8


@inline
def _growth_bound(table, row):
    """Return an upper bound of a rewritten batch: each record's timestamp delta and length may grow."""
    return (
        wire.HEADER_BYTES
        + table[row, fields.RECORDS_END]
        - table[row, fields.RECORDS_POSITION]
        + 16 * table[row, fields.COUNT]
    )


@inline
def _rewrite(source, row, dead, horizon_ms, out, start):
    """Return (size, kept, maximum timestamp, attributes, base timestamp, status); `out` has room."""
    raw, uncompressed, table, _before = source
    position = table[row, fields.RECORDS_POSITION]
    end = table[row, fields.RECORDS_END]
    attributes = table[row, fields.ATTRIBUTES]
    base_offset = table[row, fields.BASE_OFFSET]
    old_base = table[row, fields.BASE_TIMESTAMP]
    log_append = attributes & wire.LOG_APPEND_BIT != 0
    control = attributes & wire.CONTROL_BIT != 0  # the record of a marker stays; its bit has no meaning
    largest = table[row, fields.MAX_TIMESTAMP] if log_append else -1
    new_base = old_base
    # The base timestamp changes only if a horizon replaces it; otherwise runs of records are copied.
    if attributes & wire.DELETE_HORIZON_BIT == 0 and horizon_ms >= 0:
        new_base = horizon_ms
        attributes |= wire.DELETE_HORIZON_BIT
    write = start + wire.HEADER_BYTES
    kept = 0
    run = -1
    word = np.uint64(0)
    word_number = np.int64(-1)
    for _ in range(table[row, fields.COUNT]):
        record = read_keyed(uncompressed, position, end)
        if not record.valid:
            return 0, 0, 0, 0, 0, BAD_RECORD
        offset = base_offset + record.offset_delta
        if not control and offset >> 6 != word_number:
            word_number = offset >> 6
            word = read_word(dead, offset)
        if in_word(word, offset):
            if run >= 0:
                copy_wide(out, write, uncompressed, run, position - run)
                write += position - run
                run = -1
        else:
            timestamp = table[row, fields.MAX_TIMESTAMP] if log_append else old_base + record.timestamp_delta
            if not log_append and (kept == 0 or timestamp > largest):
                largest = timestamp
            kept += 1
            if new_base == old_base:
                if run < 0:
                    run = position
            else:
                # Read again: a valid delta may have a longer form than the shortest.
                _delta, rest, _valid = read_varlong(uncompressed, record.body + 1)
                new_delta = timestamp - new_base
                write = write_varint(out, write, 1 + varint_size(new_delta) + record.end - rest)
                store8(out, write, load8(uncompressed, record.body))
                write = write_varint(out, write + 1, new_delta)
                copy_wide(out, write, uncompressed, rest, record.end - rest)
                write += record.end - rest
        position = record.end
    if position != end:
        return 0, 0, 0, 0, 0, BAD_RECORD
    if run >= 0:
        copy_wide(out, write, uncompressed, run, position - run)
        write += position - run
    copy_exact(out, start, raw, table[row, fields.POSITION], wire.HEADER_BYTES)
    store16_be(out, start + wire.ATTRIBUTES_AT, attributes)
    store64_be(out, start + wire.BASE_TIMESTAMP_AT, new_base)
    store64_be(out, start + wire.MAX_TIMESTAMP_AT, largest)
    store32_be(out, start + wire.COUNT_AT, kept)
    seal(out, start, write - start)
    return write - start, kept, largest, attributes, new_base, OK


@inline
def _empty(raw, table, row, out, start):
    """Write the header alone; return its attributes.

    It has no codec, no horizon, no base timestamp and no records. All other fields stay.
    """
    attributes = table[row, fields.ATTRIBUTES] & ~(wire.CODEC_MASK | wire.DELETE_HORIZON_BIT)
    copy_exact(out, start, raw, table[row, fields.POSITION], wire.HEADER_BYTES)
    store16_be(out, start + wire.ATTRIBUTES_AT, attributes)
    store64_be(out, start + wire.BASE_TIMESTAMP_AT, -1)
    store32_be(out, start + wire.COUNT_AT, 0)
    seal(out, start, wire.HEADER_BYTES)
    return attributes


@inline
def _has_kept_tombstone(uncompressed, table, row, dead):
    """Return (found, status)."""
    position = table[row, fields.RECORDS_POSITION]
    end = table[row, fields.RECORDS_END]
    for _ in range(table[row, fields.COUNT]):
        record = read_keyed(uncompressed, position, end)
        if not record.valid:
            return False, BAD_RECORD
        _value_position, value_length, _after, valid = read_value(uncompressed, record.value_at, record.end)
        if not valid:
            return False, BAD_RECORD
        if value_length < 0 and not test_bit(dead, table[row, fields.BASE_OFFSET] + record.offset_delta):
            return True, OK
        position = record.end
    return False, OK


@kernel
def repack_rows(
    source: RepackSource,
    rows: int,
    row: int,
    retain: READ_U8,
    dead: DeadBits,
    horizon_ms: int,
    output: RepackOutput,
    out_position: int,
    out_row: int,
) -> tuple[int, int, int, int, int]:
    """Rewrite the batches row..rows of `source` into the output, from out_position on.

    `retain` (uint8[rows]): AS_BITS, RETAIN for a data batch that must leave at least its header, DROP or
    SET_HORIZON for a control batch. `dead`: the bits of the dead records. `horizon_ms` >= 0: a batch that
    keeps a tombstone and has no delete horizon yet, or has SET_HORIZON, is rewritten with this horizon; -1:
    no horizon is set. `out_row`: rows in use of the output's table. A MIXED or JOINED batch whose ATTRIBUTES
    name a codec is written with uncompressed records: the caller compresses and seals it. The caller seals
    every JOINED batch (`seal_joined`).

    `output.joining` keeps between calls which batch may still grow. A caller that empties the output keeps
    that row or sets OPEN_ROW to -1. A batch that is cut anyway is joined to the one before it if both fit. A
    whole batch is joined only if it is *small*, with less than half of TARGET_BYTES: so each rewrite of a
    whole batch makes a batch at least twice as large, and a record is moved by joining no more often than
    batches can double.

    Returns (row, out position, out row, records kept, status). FULL: make room in the output
    (`bytes_needed`) or in its table, and call again.
    """
    raw, uncompressed, table, before = source
    out, out_table, classes, joining, side = output
    target_bytes = joining[TARGET_BYTES]
    total = 0
    while row < rows:
        size = table[row, fields.SIZE]
        position = table[row, fields.POSITION]
        records_end = table[row, fields.RECORDS_END]
        if position < 0 or size < wire.HEADER_BYTES or size > raw.size - SLACK - position:
            return row, out_position, out_row, total, NO_SLACK
        if records_end > uncompressed.size - SLACK or table[row, fields.RECORDS_POSITION] < 0:
            return row, out_position, out_row, total, NO_SLACK
        room = out.size - SLACK - out_position - side.size
        if out_row >= out_table.shape[0] or size > room or _growth_bound(table, row) > room:
            return row, out_position, out_row, total, FULL
        attributes = table[row, fields.ATTRIBUTES]
        count = table[row, fields.COUNT]
        records_bytes = records_end - table[row, fields.RECORDS_POSITION]
        kind = VERBATIM
        horizon = -1
        dead_records = 0
        if before.shape[0]:
            dead_records = before[row, RECORDS_BEFORE] - count
            count = before[row, RECORDS_BEFORE]
            records_bytes = before[row, SIZE_BEFORE]
        if attributes & wire.CONTROL_BIT != 0:
            if retain[row] == DROP:
                kind = DROPPED
            elif (
                retain[row] == SET_HORIZON
                and attributes & wire.DELETE_HORIZON_BIT == 0
                and horizon_ms >= 0
                and count > 0
            ):
                kind = MIXED
                horizon = horizon_ms
        else:
            if count == 0:
                kind = VERBATIM if retain[row] else DROPPED
            else:
                dead_records += bits_between(
                    dead, table[row, fields.BASE_OFFSET], table[row, fields.LAST_OFFSET]
                )
                if dead_records >= count:
                    kind = EMPTIED if retain[row] else DROPPED
                else:
                    if dead_records > 0:
                        kind = MIXED
                    if horizon_ms >= 0 and attributes & wire.DELETE_HORIZON_BIT == 0:
                        has_tombstone, status = _has_kept_tombstone(uncompressed, table, row, dead)
                        if status != OK:
                            return row, out_position, out_row, total, status
                        if has_tombstone:
                            kind = MIXED
                            horizon = horizon_ms
        joins = target_bytes > 0 and count > 0 and kind in (VERBATIM, MIXED) and joinable(table, row)
        if kind == VERBATIM and (2 * records_bytes >= target_bytes or records_bytes > side.size - SLACK):
            joins = False
        first = joining[OPEN_ROW]
        if joins and first >= 0:
            new_attributes = attributes
            new_base = table[row, fields.BASE_TIMESTAMP]
            if horizon >= 0:
                new_attributes |= wire.DELETE_HORIZON_BIT
                new_base = horizon
            if can_join(out_table, first, table, row, new_attributes, new_base):
                start = out_table[first, fields.POSITION]
                beside = joining[OPEN_UNCOMPRESSED]
                open_bytes = wire.HEADER_BYTES + beside if beside >= 0 else out_table[first, fields.SIZE]
                kept_size, status = records_bytes, OK
                if kind == MIXED and records_bytes <= target_bytes:
                    # An estimate, without reading each record.
                    kept_size = records_bytes * (count - dead_records) // count
                elif kind == MIXED:
                    kept_size, status = kept_bytes(uncompressed, table, row, dead)
                if status != OK:
                    return row, out_position, out_row, total, status
                most_size = kept_size if records_bytes > target_bytes else records_bytes
                if fits_open_batch(joining, open_bytes, kept_size, most_size, count):
                    if beside >= 0:
                        copy_exact(out, start + wire.HEADER_BYTES, side, 0, beside)
                        joining[OPEN_UNCOMPRESSED] = -1
                    out_position, kept, status = append_kept(
                        uncompressed, table, row, dead, out, start + open_bytes, out_table, first
                    )
                    if status != OK:
                        return row, out_position, out_row, total, status
                    classes[first] = JOINED
                    total += kept
                    row += 1
                    continue
        if kind != DROPPED:
            joining[OPEN_ROW] = out_row if joins else -1
            joining[OPEN_UNCOMPRESSED] = -1
            for j in range(fields.FIELDS):
                out_table[out_row, j] = table[row, j]
            written = size
            if kind == VERBATIM:
                copy_exact(out, out_position, raw, position, size)
                total += count
                if joins and attributes & wire.CODEC_MASK:
                    copy_exact(side, 0, uncompressed, table[row, fields.RECORDS_POSITION], records_bytes)
                    joining[OPEN_UNCOMPRESSED] = records_bytes
            elif kind == EMPTIED:
                out_table[out_row, fields.ATTRIBUTES] = _empty(raw, table, row, out, out_position)
                out_table[out_row, fields.BASE_TIMESTAMP] = -1
                out_table[out_row, fields.COUNT] = 0
                written = wire.HEADER_BYTES
            else:
                written, kept, largest, attributes, base, status = _rewrite(
                    source, row, dead, horizon, out, out_position
                )
                if status != OK:
                    return row, out_position, out_row, total, status
                out_table[out_row, fields.ATTRIBUTES] = attributes
                out_table[out_row, fields.BASE_TIMESTAMP] = base
                out_table[out_row, fields.MAX_TIMESTAMP] = largest
                out_table[out_row, fields.COUNT] = kept
                total += kept
            out_table[out_row, fields.SIZE] = written
            out_table[out_row, fields.POSITION] = out_position
            out_table[out_row, fields.FILE_POSITION] = out_position
            out_table[out_row, fields.RECORDS_POSITION] = out_position + wire.HEADER_BYTES
            out_table[out_row, fields.RECORDS_END] = out_position + written
            classes[out_row] = kind
            out_row += 1
            out_position += written
        row += 1
    return row, out_position, out_row, total, OK


@inline
def _store_crc(data, table, row, crc):
    store32_be(data, table[row, fields.POSITION] + wire.CRC_AT, crc)


@inline
def _checked_part(table, row):
    """Return (position, size) of the bytes that the checksum of a batch covers."""
    return table[row, fields.POSITION] + wire.ATTRIBUTES_AT, table[row, fields.SIZE] - wire.ATTRIBUTES_AT


@kernel
def seal_joined(data: U8, table: READ_I64X2, classes: READ_I64, rows: int) -> int:
    """Set the checksums of the JOINED batches without a codec in the first `rows` rows.

    Four are computed side by side, as in `batches.valid_rows`. Returns a status.
    """
    row0 = row1 = row2 = row3 = 0
    waiting = 0
    for row in range(rows):
        if classes[row] != JOINED or table[row, fields.ATTRIBUTES] & wire.CODEC_MASK:
            continue
        position, size = table[row, fields.POSITION], table[row, fields.SIZE]
        if position < 0 or size < wire.HEADER_BYTES or size > data.size - SLACK - position:
            return NO_SLACK
        row0, row1, row2, row3 = row1, row2, row3, row
        waiting += 1
        if waiting == 4:
            position0, size0 = _checked_part(table, row0)
            position1, size1 = _checked_part(table, row1)
            position2, size2 = _checked_part(table, row2)
            position3, size3 = _checked_part(table, row3)
            crcs = crc_of_four(data, position0, size0, position1, size1, position2, size2, position3, size3)
            _store_crc(data, table, row0, crcs[0])
            _store_crc(data, table, row1, crcs[1])
            _store_crc(data, table, row2, crcs[2])
            _store_crc(data, table, row3, crcs[3])
            waiting = 0
    while waiting > 0:
        position, size = _checked_part(table, row3)
        _store_crc(data, table, row3, crc_of(data, position, size))
        row1, row2, row3 = row0, row1, row2
        waiting -= 1
    return OK


@kernel
def bytes_needed(table: READ_I64X2, row: int, side: READ_U8) -> int:
    """Return the free bytes that `repack_rows` needs in its output before it takes this batch."""
    return max(table[row, fields.SIZE], _growth_bound(table, row)) + side.size + SLACK


@kernel
def mark_dead_rows(table: READ_I64X2, rows: int, dead: DeadBits, marks: U8) -> None:
    """Set marks[row] to 1 for each data batch (magic 2) whose records are all dead, else 0."""
    for row in range(rows):
        count = table[row, fields.COUNT]
        marks[row] = 0
        if (
            table[row, fields.MAGIC] == 2
            and table[row, fields.ATTRIBUTES] & wire.CONTROL_BIT == 0
            and count > 0
        ):
            first, last = table[row, fields.BASE_OFFSET], table[row, fields.LAST_OFFSET]
            marks[row] = bits_between(dead, first, last) >= count
