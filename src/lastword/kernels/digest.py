"""Sums over records, modulo 2^64, that a certificate compares: of (key, offset) pairs, and of whole contents.

A sum does not depend on how records lie in batches, so it is the same before and after a rewrite that keeps
what it must.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import BAD_RECORD, NO_SLACK, OK, SLACK, inline, kernel
from lastword.kernels.columns import read_bounds, read_key
from lastword.kernels.crc32c import crc_of
from lastword.kernels.keyhash import NULL_KEY, key_hash, pair_digest
from lastword.kernels.memory import multiply_fold
from lastword.kernels.pages import bits_between, test_bit
from lastword.kernels.table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CONTROL,
    COUNT,
    LAST_OFFSET,
    LOG_APPEND,
    MAX_TIMESTAMP,
    PLAIN_END,
    PLAIN_POSITION,
)
from lastword.kernels.varint import varint_size

_MIX0 = np.uint64(0xA0761D6478BD642F)
_MIX1 = np.uint64(0xE7037ED1A0B428DB)
_MIX2 = np.uint64(0x8EBC6AF09C88C6E3)


@inline
def _bad_row(plain, table, row):
    return table[row, PLAIN_POSITION] < 0 or table[row, PLAIN_END] > plain.size - SLACK


@kernel
def sum_pairs(plain, table, rows, seed0, seed1):
    """(sum of the pair digests of every user record, records, row, status)."""
    total = np.uint64(0)
    records = 0
    for row in range(rows):
        if table[row, ATTRIBUTES] & CONTROL:
            continue
        if _bad_row(plain, table, row):
            return total, records, row, NO_SLACK
        position = table[row, PLAIN_POSITION]
        end = table[row, PLAIN_END]
        base_offset = table[row, BASE_OFFSET]
        for _ in range(table[row, COUNT]):
            body, body_end, sound = read_bounds(plain, position, end)
            if not sound:
                return total, records, row, BAD_RECORD
            _delta, offset_delta, key_at, key_length, _value_at, sound = read_key(plain, body, body_end)
            if not sound:
                return total, records, row, BAD_RECORD
            hashed = NULL_KEY
            if key_length >= 0:
                hashed = key_hash(plain, key_at, key_length, seed0, seed1)
            total += pair_digest(hashed, base_offset + offset_delta, seed0, seed1)
            records += 1
            position = body_end
        if position != end:
            return total, records, row, BAD_RECORD
    return total, records, rows, OK


@kernel
def sum_contents(plain, table, rows, page_ids, page_slots, page_bits):
    """(sum of the content digests of every user record whose bit is not set, records, row, status).

    A record's content is its offset, its absolute timestamp, and the bytes from its key's length to its end.
    A batch whose records are all dead is not looked into.
    """
    total = np.uint64(0)
    records = 0
    pages = page_ids.size
    for row in range(rows):
        attributes = table[row, ATTRIBUTES]
        if attributes & CONTROL:
            continue
        if _bad_row(plain, table, row):
            return total, records, row, NO_SLACK
        last = table[row, LAST_OFFSET]
        dead = bits_between(page_ids, pages, page_slots, page_bits, table[row, BASE_OFFSET], last)
        if 0 < dead == table[row, COUNT]:
            continue
        position = table[row, PLAIN_POSITION]
        end = table[row, PLAIN_END]
        base_offset = table[row, BASE_OFFSET]
        for _ in range(table[row, COUNT]):
            body, body_end, sound = read_bounds(plain, position, end)
            if not sound:
                return total, records, row, BAD_RECORD
            delta, offset_delta, key_at, key_length, _value_at, sound = read_key(plain, body, body_end)
            if not sound:
                return total, records, row, BAD_RECORD
            offset = base_offset + offset_delta
            if dead == 0 or not test_bit(page_ids, pages, page_slots, page_bits, offset):
                timestamp = table[row, BASE_TIMESTAMP] + delta
                if attributes & LOG_APPEND:
                    timestamp = table[row, MAX_TIMESTAMP]
                start = key_at - varint_size(key_length)
                mixed = np.uint64(crc_of(plain, start, body_end - start)) ^ _MIX0
                mixed = multiply_fold(mixed, np.uint64(offset) ^ _MIX1)
                total += multiply_fold(mixed ^ _MIX1, np.uint64(timestamp) ^ _MIX2)
                records += 1
            position = body_end
        if position != end:
            return total, records, row, BAD_RECORD
    return total, records, rows, OK
