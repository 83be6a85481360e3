"""Sums modulo 2^64 that a certificate compares: of (key, offset) pairs, of contents, of batch headers.

A sum does not depend on how records are spread over batches. So a rewrite that keeps every record that it
must keep does not change it.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import BAD_RECORD, NO_SLACK, OK, SLACK
from lastword.kernels import table as fields
from lastword.kernels.columns import read_keyed, read_value
from lastword.kernels.hashing import NULL_KEY, crc_of_short, key_hash, pair_digest
from lastword.kernels.memory import multiply_fold, varint_size
from lastword.kernels.native import I64, READ_I64X2, READ_U8, U8, inline, kernel
from lastword.kernels.pages import DeadBits, bits_between, in_word, read_word
from lastword.kernels.repack import DROP, RECORDS_BEFORE, SET_HORIZON, joinable
from lastword.wire import CODEC_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, LOG_APPEND_BIT

_MIX0 = np.uint64(0xA0761D6478BD642F)
_MIX1 = np.uint64(0xE7037ED1A0B428DB)
_MIX2 = np.uint64(0x8EBC6AF09C88C6E3)


@inline
def _is_outside(uncompressed, table, row):
    return (
        table[row, fields.RECORDS_POSITION] < 0 or table[row, fields.RECORDS_END] > uncompressed.size - SLACK
    )


@kernel
def sum_pairs(
    uncompressed: READ_U8, table: READ_I64X2, rows: int, seed0: np.uint64, seed1: np.uint64
) -> tuple[np.uint64, int, int, int]:
    """Return (sum of the pair digests of every user record, records, row, status)."""
    total = np.uint64(0)
    records = 0
    for row in range(rows):
        if table[row, fields.ATTRIBUTES] & CONTROL_BIT:
            continue
        if _is_outside(uncompressed, table, row):
            return total, records, row, NO_SLACK
        position = table[row, fields.RECORDS_POSITION]
        end = table[row, fields.RECORDS_END]
        base_offset = table[row, fields.BASE_OFFSET]
        for _ in range(table[row, fields.COUNT]):
            record = read_keyed(uncompressed, position, end)
            if not record.valid:
                return total, records, row, BAD_RECORD
            hashed = NULL_KEY
            if record.key_length >= 0:
                hashed = key_hash(uncompressed, record.key_position, record.key_length, seed0, seed1)
            total += pair_digest(hashed, base_offset + record.offset_delta, seed0, seed1)
            records += 1
            position = record.end
        if position != end:
            return total, records, row, BAD_RECORD
    return total, records, rows, OK


@inline
def _mix(digest, value):
    return multiply_fold(digest ^ np.uint64(value), _MIX1)


@inline
def _batch_digest(table, row, attributes, horizon_ms):
    """Return the digest of the fields that a batch stores once for all its records.

    Batches that may be joined agree on it. `attributes` and `horizon_ms` (0: none) are those after the
    rewrite. A batch that cannot be joined with another keeps its range of offsets, too.
    """
    digest = _mix(_MIX0, attributes)
    digest = _mix(digest, table[row, fields.MAGIC])
    digest = _mix(digest, table[row, fields.LEADER_EPOCH])
    digest = _mix(digest, table[row, fields.PRODUCER_ID])
    digest = _mix(digest, table[row, fields.PRODUCER_EPOCH])
    digest = _mix(digest, table[row, fields.BASE_SEQUENCE])
    digest = _mix(digest, horizon_ms)
    if table[row, fields.MAGIC] == 2 and not joinable(table, row):
        digest = _mix(digest, table[row, fields.BASE_OFFSET])
        digest = _mix(digest, table[row, fields.LAST_OFFSET])
    return digest


@inline
def content_digest(uncompressed, key_at, key_length, end, offset, timestamp):
    """Return the digest of a record: offset, timestamp, and the bytes from its key's length to its end."""
    start = key_at - varint_size(key_length)
    mixed = np.uint64(crc_of_short(uncompressed, start, end - start)) ^ _MIX0
    mixed = multiply_fold(mixed, np.uint64(offset) ^ _MIX1)
    return multiply_fold(mixed ^ _MIX1, np.uint64(timestamp) ^ _MIX2)


@kernel
def sum_contents(
    uncompressed: READ_U8,
    table: READ_I64X2,
    before: READ_I64X2,
    rows: int,
    dead_bits: DeadBits,
    retain: READ_U8,
    horizon_ms: int,
    ends: U8,
    largest: I64,
) -> tuple[np.uint64, np.uint64, np.uint64, int, int, int]:
    """Sum the digests of the records whose bit is not set, and of the batches that they leave behind.

    The records of a batch that are all dead are not read. `before` is that of a `repack.RepackSource`.
    `retain` and `horizon_ms` mean what they mean in `repack.repack_rows`; -1 and RETAIN for all rows take the
    batches as they are.

    The digest of each batch is multiplied into the digests of its records. So it is bound to each of them,
    and the sum stays the same when batches that agree on it are joined. Batches without records, and control
    batches, are summed separately.

    `ends` (uint8 for each row) is 1 for a batch that may be joined with others and keeps a record:
    afterwards its last offset is the last offset of a batch, or of none. `largest` (int64 for each row) is
    the largest timestamp of its records, or the header's field where the records do not determine it, and for
    a batch that lost records already: a rewrite never passes on the field of such a batch.

    Returns (contents, batches, controls, records, row, status).
    """
    total = np.uint64(0)
    batches = np.uint64(0)
    controls = np.uint64(0)
    records = 0
    for row in range(rows):
        attributes = table[row, fields.ATTRIBUTES]
        control = attributes & CONTROL_BIT != 0
        ends[row] = 0
        largest[row] = table[row, fields.MAX_TIMESTAMP]
        if control and retain[row] == DROP:
            continue
        count = table[row, fields.COUNT]
        first, last = table[row, fields.BASE_OFFSET], table[row, fields.LAST_OFFSET]
        dead = 0
        if not control:
            dead = bits_between(dead_bits, first, last)
        dropped = before[row, RECORDS_BEFORE] - count if before.shape[0] else 0  # left out by the scan
        if 0 < dead + dropped == count + dropped:
            # The header stays: it keeps the end of a range, or a producer's sequence. Magic 2 only.
            if retain[row] and table[row, fields.MAGIC] == 2:
                timestamp = table[row, fields.MAX_TIMESTAMP] if table[row, fields.PRODUCER_ID] >= 0 else -1
                batches += _empty_digest(
                    table, row, attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT), -1, timestamp
                )
            continue
        if count == 0 and not control:
            if retain[row]:
                timestamp = table[row, fields.MAX_TIMESTAMP]
                batches += _empty_digest(table, row, attributes, table[row, fields.BASE_TIMESTAMP], timestamp)
            continue
        if _is_outside(uncompressed, table, row):
            return total, batches, controls, records, row, NO_SLACK
        sets_horizon = (
            horizon_ms >= 0 and attributes & DELETE_HORIZON_BIT == 0 and table[row, fields.MAGIC] == 2
        )
        has_horizon = sets_horizon and control and retain[row] == SET_HORIZON and count > 0
        position = table[row, fields.RECORDS_POSITION]
        end = table[row, fields.RECORDS_END]
        records_digest = np.uint64(0)
        largest_timestamp = np.iinfo(np.int64).min
        word = np.uint64(0)
        word_number = np.int64(-1)
        for _ in range(count):
            record = read_keyed(uncompressed, position, end)
            if not record.valid:
                return total, batches, controls, records, row, BAD_RECORD
            offset = first + record.offset_delta
            timestamp = table[row, fields.BASE_TIMESTAMP] + record.timestamp_delta
            largest_timestamp = max(largest_timestamp, timestamp)
            if dead > 0 and offset >> 6 != word_number:
                word_number = offset >> 6
                word = read_word(dead_bits, offset)
            if not in_word(word, offset):
                if attributes & LOG_APPEND_BIT:
                    timestamp = table[row, fields.MAX_TIMESTAMP]
                records_digest += content_digest(
                    uncompressed, record.key_position, record.key_length, record.end, offset, timestamp
                )
                if sets_horizon and not has_horizon and not control:
                    _at, value_length, _after, valid = read_value(uncompressed, record.value_at, record.end)
                    if not valid:
                        return total, batches, controls, records, row, BAD_RECORD
                    has_horizon = value_length < 0
                if not control:
                    records += 1
            position = record.end
        if position != end:
            return total, batches, controls, records, row, BAD_RECORD
        if table[row, fields.MAGIC] == 2 and attributes & LOG_APPEND_BIT == 0 and count > 0 and dropped == 0:
            largest[row] = largest_timestamp
        horizon = np.int64(0)
        if has_horizon:
            attributes |= DELETE_HORIZON_BIT
            horizon = horizon_ms
        elif attributes & DELETE_HORIZON_BIT:
            horizon = table[row, fields.BASE_TIMESTAMP]
        digest = _batch_digest(table, row, attributes, horizon)
        if control:
            timestamp = table[row, fields.MAX_TIMESTAMP]
            if has_horizon and attributes & LOG_APPEND_BIT == 0:
                timestamp = largest_timestamp
            controls += _mix(_mix(_mix(digest, records_digest), count), timestamp)
        else:
            total += records_digest
            batches += records_digest * (digest | np.uint64(1))
            ends[row] = table[row, fields.MAGIC] == 2 and joinable(table, row)
    return total, batches, controls, records, rows, OK


@inline
def _empty_digest(table, row, attributes, base_timestamp, largest):
    """Return the digest of a batch without records, with the fields that it has after the rewrite."""
    digest = _batch_digest(table, row, attributes, base_timestamp)
    digest = _mix(_mix(digest, table[row, fields.BASE_OFFSET]), table[row, fields.LAST_OFFSET])
    return _mix(digest, largest)
