"""Small batches into one: the kept records of a batch behind those of the batch before it.

Only offset and timestamp deltas are written anew; every other byte of a record stays. Which batches may be
one is decided here and nowhere else (`joinable`, `alike`): nothing that Kafka keeps once for a whole batch
may differ between them, and no batch of a producer, of a transaction or of control records takes part, for
their sequences, fates and markers are told by batch.
"""

from __future__ import annotations

from lastword.kernels import BAD_RECORD, OK, inline
from lastword.kernels.columns import read_bounds, read_key
from lastword.kernels.memory import copy_wide, load8, store8, store32_be, store64_be
from lastword.kernels.pages import test_bit
from lastword.kernels.table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    COUNT,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    MAX_TIMESTAMP,
    PLAIN_END,
    PLAIN_POSITION,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
)
from lastword.kernels.varint import read_varint, read_varlong, varint_size, write_varint
from lastword.wire import (
    CONTROL_BIT,
    COUNT_AT,
    DELETE_HORIZON_BIT,
    INT32_MAX,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_APPEND_BIT,
    MAX_TIMESTAMP_AT,
    OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
)

# Fields of `joining` (int64).
TARGET_BYTES = 0
"""Plain bytes that a joined batch is filled up to; 0: nothing is joined. Where records differ in size it may
end above it, by less than as much again.
"""
MOST_BYTES = 1
"""No joined batch is larger, whatever its records grow by."""
OPEN_ROW = 2
"""The last batch written, if it may take more records; -1: it may not."""
OPEN_PLAIN = 3
"""Bytes of its records in `side`, while the output has them compressed; -1: the output has them plain."""
JOINING_FIELDS = 4

_RECORD_GROWTH = 16  # a timestamp delta, an offset delta and a length, each in its longest form


@inline
def joinable(table, row):
    """May this batch be one with another at all?"""
    return (
        table[row, MAGIC] == 2
        and table[row, ATTRIBUTES] & (CONTROL_BIT | TRANSACTIONAL_BIT) == 0
        and table[row, PRODUCER_ID] < 0
        and table[row, PRODUCER_EPOCH] < 0
        and table[row, BASE_SEQUENCE] < 0
    )


@inline
def alike(out_table, first, table, row, attributes, base_timestamp):
    """May the records of `row` follow those of batch `first`? Both are joinable; `attributes` and
    `base_timestamp` are what `row` has when it is rewritten.
    """
    if out_table[first, ATTRIBUTES] != attributes:  # codec, kind of timestamp, whether there is a horizon
        return False
    if out_table[first, LEADER_EPOCH] != table[row, LEADER_EPOCH]:
        return False
    if attributes & DELETE_HORIZON_BIT and out_table[first, BASE_TIMESTAMP] != base_timestamp:
        return False
    if attributes & LOG_APPEND_BIT and out_table[first, MAX_TIMESTAMP] != table[row, MAX_TIMESTAMP]:
        return False
    return table[row, LAST_OFFSET] - out_table[first, BASE_OFFSET] <= INT32_MAX


@inline
def kept_bytes(plain, table, row, dead):
    """(bytes of the batch's kept records as they lie there, status)"""
    position = table[row, PLAIN_POSITION]
    end = table[row, PLAIN_END]
    size = 0
    for _ in range(table[row, COUNT]):
        body, body_end, sound = read_bounds(plain, position, end)
        if not sound:
            return 0, BAD_RECORD
        _delta, offset_delta, _key_at, _key_length, _value_at, sound = read_key(plain, body, body_end)
        if not sound:
            return 0, BAD_RECORD
        if not test_bit(dead, table[row, BASE_OFFSET] + offset_delta):
            size += body_end - position
        position = body_end
    return size, OK


@inline
def room_for(joining, open_bytes, kept_size, most_size, most_records):
    """Do about `kept_size` bytes, at most `most_size` of `most_records`, fit the open batch?"""
    return (
        open_bytes + kept_size <= joining[TARGET_BYTES]
        and open_bytes + most_size + _RECORD_GROWTH * most_records <= joining[MOST_BYTES]
    )


@inline
def append_kept(plain, table, row, dead, out, write, out_table, first):
    """Write the kept records of `row` at `write`, behind those of batch `first` of `out_table`, and bring
    that batch's row and header up to date, but for the checksum. Returns (end, records written, status).
    """
    position = table[row, PLAIN_POSITION]
    end = table[row, PLAIN_END]
    old_base = table[row, BASE_TIMESTAMP]
    log_append = table[row, ATTRIBUTES] & LOG_APPEND_BIT != 0
    new_base = out_table[first, BASE_TIMESTAMP]
    moved = table[row, BASE_OFFSET] - out_table[first, BASE_OFFSET]
    largest = out_table[first, MAX_TIMESTAMP]
    kept = 0
    for _ in range(table[row, COUNT]):
        body, body_end, sound = read_bounds(plain, position, end)
        if not sound:
            return 0, 0, BAD_RECORD
        _delta, _offset_delta, _key_at, _key_length, _value_at, sound = read_key(plain, body, body_end)
        if not sound:
            return 0, 0, BAD_RECORD
        delta, rest, _sound = read_varlong(plain, body + 1)
        offset_delta, rest = read_varint(plain, rest)
        if not test_bit(dead, table[row, BASE_OFFSET] + offset_delta):
            if new_base != old_base:
                timestamp = table[row, MAX_TIMESTAMP] if log_append else old_base + delta
                delta = timestamp - new_base
            if not log_append:
                largest = max(largest, new_base + delta)
            offset_delta += moved
            size = 1 + varint_size(delta) + varint_size(offset_delta) + body_end - rest
            write = write_varint(out, write, size)
            store8(out, write, load8(plain, body))
            write = write_varint(out, write + 1, delta)
            write = write_varint(out, write, offset_delta)
            copy_wide(out, write, plain, rest, body_end - rest)
            write += body_end - rest
            kept += 1
        position = body_end
    if position != end:
        return 0, 0, BAD_RECORD
    start = out_table[first, POSITION]
    out_table[first, LAST_OFFSET] = table[row, LAST_OFFSET]
    out_table[first, COUNT] += kept
    out_table[first, MAX_TIMESTAMP] = largest
    out_table[first, SIZE] = write - start
    out_table[first, PLAIN_END] = write
    store32_be(out, start + LENGTH_AT, write - start - OVERHEAD_BYTES)
    store32_be(out, start + LAST_OFFSET_DELTA_AT, table[row, LAST_OFFSET] - out_table[first, BASE_OFFSET])
    store64_be(out, start + MAX_TIMESTAMP_AT, largest)
    store32_be(out, start + COUNT_AT, out_table[first, COUNT])
    return write, kept, OK
