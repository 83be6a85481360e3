"""Records of a chunk in the form that the offset map takes: parsed, hashed, and with their flags.

A key batch does not depend on the content of the map, so one thread may fill key batches while another
thread inserts them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastword.kernels import BAD_COUNT, BAD_RECORD, NO_SLACK, OK, SLACK, inline, kernel
from lastword.kernels.columns import read_bounds, read_key, read_value
from lastword.kernels.hashing import key_hash
from lastword.kernels.memory import multiply_fold
from lastword.kernels.pages import PAGE_BITS
from lastword.kernels.table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    LAST_OFFSET,
    MAGIC,
    RECORDS_END,
    RECORDS_POSITION,
)
from lastword.kernels.table import SIZE as BATCH_BYTES
from lastword.wire import CONTROL_BIT, DELETE_HORIZON_BIT, SMALLEST_RECORD_BYTES

# Fields of `cursor`, int64: the start of the next key batch, the sizes of the last one, and the rules.
ROW = 0
ORDINAL = 1  # of the record in its row
FILLED = 2
PAGES_MET = 3
DROP_KEYLESS = 4  # 1: records without a key are dead
# Reasons to keep a tombstone, numbered as in `partition.leases`: 3 no horizon, 4 horizon, 5 lease.
NOW = 5  # 4: a horizon after it has not passed
OLD_DUE = 6  # 1: the horizon of tombstones of magic 0 and 1, from file times, has passed
DUE_BELOW = 7  # 5: a lease keeps tombstones from this offset on
FIRST_PASS = 8
KEEP_COPIES = 9  # 1: include keys of aborted records
SAMPLED = 10  # 1: take only a share of records without a key, too
CURSOR_FIELDS = 11

# Fields of `words`, uint64: seeds of the map's hash, seeds of the digest, first and last hash of this pass.
SEED0 = 0
SEED1 = 1
DIGEST0 = 2
DIGEST1 = 3
RANGE_FIRST = 4
RANGE_LAST = 5
WORD_FIELDS = 6

# Rows of `spans`.
KEY_POSITION = 0
KEY_LENGTH = 1
OFFSET = 2
SIZE = 3  # bytes on disk and flags, as in an entry of the arena, and two more flags:
SIZE_MASK = (1 << 29) - 1
NO_HORIZON = 1 << 29  # a tombstone whose batch has no delete horizon
DUE = 1 << 30
TOMBSTONE = 1 << 31
ABORTED = 1 << 40  # dead from the start: of an aborted transaction
DEAD_KEYLESS = 1 << 41  # dead from the start: without a key
SPAN_FIELDS = 4

# In `outcomes` (`partition.transactions.BatchOutcome`): 0 is committed; all others stay out of the map.
OUTCOME_ABORTED = 1


class KeyBatch(NamedTuple):
    """Consecutive records of a chunk for the map; at most n fit.

    Attributes:
        hashes: uint64[2, n]; hash of the map, hash of the digest.
        spans: int64[SPAN_FIELDS, n]; KEY_POSITION in the chunk's `uncompressed` bytes, KEY_LENGTH or -1,
            OFFSET, SIZE with flags.
        page_ids: int64[n]; the bitmap pages of the records, ascending. In a first pass only.
        homes: int64[2, n]; scratch of `offset_map.insert_keys`.
    """

    hashes: np.ndarray
    spans: np.ndarray
    page_ids: np.ndarray
    homes: np.ndarray


@inline
def number_hash(offset, seed0, seed1):
    """Return the hash of a record without a key, so that a sample takes its share of such records."""
    return multiply_fold(np.uint64(offset) ^ seed0, seed1)


@kernel
def fill_key_batch(uncompressed, table, outcomes, rows, cursor, words, batch):
    """Fill `batch` with the chunk's next records, from cursor[ROW] and cursor[ORDINAL] on.

    Stops after the first `rows` rows, or when `batch` is full. `outcomes` (uint8 for each row): the outcome
    of the batch's transaction. Returns a status; with a BAD_ status cursor[ROW] is the malformed batch.
    """
    hashes, spans, pages, _homes = batch
    first_pass = cursor[FIRST_PASS] != 0
    drop_keyless = cursor[DROP_KEYLESS] != 0
    old_due = cursor[OLD_DUE] != 0
    keep_copies = cursor[KEEP_COPIES] != 0
    sampled = cursor[SAMPLED] != 0
    now = cursor[NOW]
    due_below = cursor[DUE_BELOW]
    seed0 = words[SEED0]
    seed1 = words[SEED1]
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    range_first = words[RANGE_FIRST]
    range_width = words[RANGE_LAST] - range_first
    capacity = spans.shape[1]
    room = pages.size
    row = cursor[ROW]
    ordinal = cursor[ORDINAL]
    filled = 0
    met = 0
    last_page = np.int64(-1)
    cursor[FILLED] = 0
    cursor[PAGES_MET] = 0
    while row < rows and filled < capacity and met < room:
        attributes = table[row, ATTRIBUTES]
        count = table[row, COUNT]
        outcome = outcomes[row]
        aborted = outcome == OUTCOME_ABORTED
        # An ongoing transaction does not supersede anything yet. The bits of the records of an aborted one
        # were set in the first pass.
        if attributes & CONTROL_BIT or (outcome != 0 and not (aborted and first_pass)):
            row += 1
            continue
        position = table[row, RECORDS_POSITION]
        end = table[row, RECORDS_END]
        base_offset = table[row, BASE_OFFSET]
        span = table[row, LAST_OFFSET] - base_offset
        if position < 0 or position > end or end > uncompressed.size - SLACK:
            cursor[ROW] = row
            return NO_SLACK
        if count < 0 or count > (end - position) // SMALLEST_RECORD_BYTES:
            cursor[ROW] = row
            return BAD_COUNT
        share = table[row, BATCH_BYTES] / max(end - position, 1)
        previous = np.int64(-1)
        for _ in range(ordinal):
            body, body_end, valid = read_bounds(uncompressed, position, end)
            if not valid:
                cursor[ROW] = row
                return BAD_RECORD
            _delta, previous, _key_position, _key_length, _value_at, _valid = read_key(
                uncompressed, body, body_end
            )
            position = body_end
        has_horizon = attributes & DELETE_HORIZON_BIT != 0
        due_batch = has_horizon and table[row, BASE_TIMESTAMP] <= now
        if table[row, MAGIC] < 2:  # these have no field for a horizon: the segment's time decides
            has_horizon = True
            due_batch = old_due
        while ordinal < count and filled < capacity and met < room:
            body, body_end, valid = read_bounds(uncompressed, position, end)
            if not valid:
                cursor[ROW] = row
                return BAD_RECORD
            _delta, offset_delta, key_position, key_length, value_at, valid = read_key(
                uncompressed, body, body_end
            )
            if not valid or offset_delta <= previous or offset_delta > span:
                cursor[ROW] = row
                return BAD_RECORD
            previous = offset_delta
            _value_position, value_length, _after, valid = read_value(uncompressed, value_at, body_end)
            if not valid:
                cursor[ROW] = row
                return BAD_RECORD
            offset = base_offset + offset_delta
            if first_pass:
                page = offset >> PAGE_BITS
                if page != last_page:
                    pages[met] = page
                    met += 1
                    last_page = page
            if key_length >= 0 and (keep_copies or not aborted):
                hashed = key_hash(uncompressed, key_position, key_length, seed0, seed1)
                wanted = hashed - range_first <= range_width
                if wanted:
                    hashes[0, filled] = hashed
                    hashes[1, filled] = key_hash(uncompressed, key_position, key_length, digest0, digest1)
            else:
                wanted = first_pass
                if sampled:
                    wanted = number_hash(offset, seed0, seed1) - range_first <= range_width
            if wanted:
                size = min(np.int64((body_end - position) * share), SIZE_MASK)
                if aborted:
                    size |= ABORTED
                    if not keep_copies:
                        key_length = -1
                elif drop_keyless and key_length < 0:
                    size |= DEAD_KEYLESS
                elif value_length < 0:
                    size |= TOMBSTONE
                    if due_batch and offset < due_below:  # neither of 3, 4, 5
                        size |= DUE
                    elif not has_horizon:  # 3
                        size |= NO_HORIZON
                spans[KEY_POSITION, filled] = key_position
                spans[KEY_LENGTH, filled] = key_length
                spans[OFFSET, filled] = offset
                spans[SIZE, filled] = size
                filled += 1
            position = body_end
            ordinal += 1
        if ordinal == count:
            if position != end:
                cursor[ROW] = row
                return BAD_RECORD
            row += 1
            ordinal = 0
    cursor[ROW] = row
    cursor[ORDINAL] = ordinal
    cursor[FILLED] = filled
    cursor[PAGES_MET] = met
    return OK
