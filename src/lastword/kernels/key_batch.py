"""Records of a chunk in the form that the offset map takes: parsed, hashed, and with their flags.

A key batch does not depend on the content of the map, so one thread may fill key batches while another
thread inserts them. Or the records are written to scratch files first, divided over shards by the hash of
their keys (`divide_key_batch`), and become key batches again shard by shard (`fill_from_rows`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastword.kernels import BAD_COUNT, BAD_RECORD, FULL, NO_SLACK, OK, SLACK, inline, kernel
from lastword.kernels.columns import read_bounds, read_key, read_value
from lastword.kernels.hashing import key_hash
from lastword.kernels.memory import copy_exact, load8, load64, multiply_fold, store8, store64
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

# A row of a section, four words: hash of the map, hash of the digest, offset, and the word of the others:
ROW_WORDS = 4
ROW_BYTES = 8 * ROW_WORDS
ROW_SIZE_MASK = (1 << 32) - 1  # size with NO_HORIZON, DUE and TOMBSTONE
ROW_LENGTH_SHIFT = 32
ROW_LENGTH_MASK = (1 << 28) - 1  # of the key
ROW_KEYLESS = 1 << 60
ROW_ABORTED = 1 << 61
ROW_DEAD_KEYLESS = 1 << 62


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


@inline
def copy_key(target, target_position, source, position, size):
    """Copy a key without writing past it; the source is read up to 7 bytes past it."""
    if size > 64:
        copy_exact(target, target_position, source, position, size)
    elif size >= 8:
        last = size - 8
        done = 0
        while done < last:
            store64(target, target_position + done, load64(source, position + done))
            done += 8
        store64(target, target_position + last, load64(source, position + last))
    else:
        for i in range(size):
            store8(target, target_position + i, load8(source, position + i))


@kernel
def divide_key_batch(uncompressed, batch, filled, ends, rows, keys):
    """Write the first `filled` records of a key batch as rows, shard by shard, and their keys likewise.

    Within a shard the records keep their order. A record without a key belongs to a shard by its offset. Row
    0 of `ends` (int64[2, shards]) becomes the end of each shard in `rows` (uint64[n, ROW_WORDS]), row 1 its
    end in `keys` (uint8, with slack).

    Returns OK, NO_SLACK if a key is outside `uncompressed`, or FULL if `rows` or `keys` is too small.
    """
    hashes, spans, _pages, homes = batch
    shards = ends.shape[1]
    for shard in range(shards):
        ends[0, shard] = 0
        ends[1, shard] = 0
    for i in range(filled):
        key_length = spans[KEY_LENGTH, i]
        if key_length < 0:
            shard = spans[OFFSET, i] % shards
        else:
            position = spans[KEY_POSITION, i]
            if position < 0 or key_length > uncompressed.size - SLACK - position:
                return NO_SLACK
            shard = np.int64(((hashes[0, i] >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32))
            ends[1, shard] += key_length
        ends[0, shard] += 1
        homes[0, i] = shard
    row = np.int64(0)
    byte = np.int64(0)
    for shard in range(shards):  # from counts to starts
        count = ends[0, shard]
        size = ends[1, shard]
        ends[0, shard] = row
        ends[1, shard] = byte
        row += count
        byte += size
    if row > rows.shape[0] or byte > keys.size - SLACK:
        return FULL
    for i in range(filled):
        shard = homes[0, i]
        row = ends[0, shard]
        ends[0, shard] = row + 1
        size = spans[SIZE, i]
        word = size & ROW_SIZE_MASK
        if size & ABORTED:
            word |= ROW_ABORTED
        if size & DEAD_KEYLESS:
            word |= ROW_DEAD_KEYLESS
        key_length = spans[KEY_LENGTH, i]
        if key_length < 0:
            word |= ROW_KEYLESS
            rows[row, 0] = np.uint64(0)
            rows[row, 1] = np.uint64(0)
        else:
            word |= key_length << ROW_LENGTH_SHIFT
            byte = ends[1, shard]
            ends[1, shard] = byte + key_length
            copy_key(keys, byte, uncompressed, spans[KEY_POSITION, i], key_length)
            rows[row, 0] = hashes[0, i]
            rows[row, 1] = hashes[1, i]
        rows[row, 2] = np.uint64(spans[OFFSET, i])
        rows[row, 3] = np.uint64(word)
    return OK


@kernel
def fill_from_rows(section, count, with_keyless, cursor, batch):
    """Fill `batch` with the records of a section: `count` rows, then their keys; `section` has slack.

    Without `with_keyless`, records without a key are left out. Key positions count in `section`. Sets
    cursor[FILLED], and no pages. Returns OK, NO_SLACK if the section is too short, or FULL.
    """
    hashes, spans, _pages, _homes = batch
    end = section.size - SLACK
    cursor[FILLED] = 0
    cursor[PAGES_MET] = 0
    if count < 0 or count > end // ROW_BYTES:
        return NO_SLACK
    if count > spans.shape[1]:
        return FULL
    position = count * ROW_BYTES
    filled = 0
    for i in range(count):
        at = i * ROW_BYTES
        word = np.int64(load64(section, at + 24))
        key_length = (word >> ROW_LENGTH_SHIFT) & ROW_LENGTH_MASK
        if key_length > end - position:
            return NO_SLACK
        size = word & ROW_SIZE_MASK
        if word & ROW_ABORTED:
            size |= ABORTED
        if word & ROW_DEAD_KEYLESS:
            size |= DEAD_KEYLESS
        if word & ROW_KEYLESS:
            if not with_keyless:
                continue
            spans[KEY_LENGTH, filled] = -1
        else:
            spans[KEY_LENGTH, filled] = key_length
        hashes[0, filled] = load64(section, at)
        hashes[1, filled] = load64(section, at + 8)
        spans[KEY_POSITION, filled] = position
        spans[OFFSET, filled] = np.int64(load64(section, at + 16))
        spans[SIZE, filled] = size
        position += key_length
        filled += 1
    cursor[FILLED] = filled
    return OK
