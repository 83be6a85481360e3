"""Records of a chunk in the form that the offset map takes: parsed, hashed, and with their flags.

A key batch does not depend on the content of the map, so one thread may fill key batches while another
thread inserts them. Or the records are written to scratch files first, divided over shards by the hash of
their keys (`divide_key_batch`), and become key batches again shard by shard (`fill_from_rows`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastword.kernels import BAD_RECORD, FULL, NO_SLACK, OK, SLACK
from lastword.kernels import table as fields
from lastword.kernels.columns import read_keyed, read_value, records_of
from lastword.kernels.hashing import key_hash
from lastword.kernels.memory import copy_wide, load32, load64, multiply_fold, store32, store64
from lastword.kernels.native import I64, I64X2, READ_I64X2, READ_U8, READ_U64, U8, U64X2, inline, kernel
from lastword.kernels.pages import PAGE_BITS
from lastword.wire import CONTROL_BIT, DELETE_HORIZON_BIT

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
DEAD = 1 << 42  # set by `hash_map.settle_keys`
RECORD_END = 4  # in the chunk's `uncompressed` bytes; the next record of the batch begins there
SPAN_FIELDS = 5

# In `outcomes` (`partition.transactions.BatchOutcome`): 0 is committed; all others stay out of the map.
OUTCOME_ABORTED = 1

# A section is a sequence of rows. A short row has 5 bytes: offset minus that of the row before (2), size (2),
# key length (1); then the key. A row that does not fit this form, and the first row of a section, has 21
# bytes: row flags (2), 0 (2), LONG_ROW (1), offset (8), size with NO_HORIZON, DUE and TOMBSTONE (4), key
# length (4); then the key. Hashes are not stored: computing them from the key is as fast as reading them.
ROW_BYTES = 5
LONG_ROW_BYTES = 21
LONG_ROW = 255
MAX_ROW_FIELD = (1 << 16) - 1
ROW_SIZE_MASK = (1 << 32) - 1
ROW_KEYLESS = 1
ROW_ABORTED = 2
ROW_DEAD_KEYLESS = 4

# Or the rows have hashes in the place of keys, for `hash_map`: the digest hash (8 bytes), the low 24 bits of
# the map's hash, of which the shard has high bits, offset minus that of the row before (12 bits), size (12
# bits). A row that does not fit this form has 0 in the place of the difference, row flags in the place of the
# size, and then offset (8 bytes) and size with flags (4 bytes).
HASH_ROW_BYTES = 14
LONG_HASH_ROW_BYTES = 26
HASH_BITS = 24
HASH_FIELD_BITS = 12

# Columns of `bins`, int64, one row a shard: a part of `data` in which a section is collected.
BIN_START = 0
BIN_LIMIT = 1
BIN_END = 2  # of the rows up to now
BIN_ROWS = 3
BIN_OFFSET = 4  # of the last row
BIN_FIELDS = 5
BIN_SLACK = 8  # bytes between a bin's limit and the next bin: wide stores may touch them


class KeyBatch(NamedTuple):
    """Consecutive records of a chunk for the map; at most n fit.

    Attributes:
        hashes: uint64[2, n]; hash of the map, hash of the digest.
        spans: int64[SPAN_FIELDS, n]; KEY_POSITION in the chunk's `uncompressed` bytes, KEY_LENGTH or -1,
            OFFSET, SIZE with flags, RECORD_END.
        page_ids: int64[n]; the bitmap pages of the records, ascending. In a first pass only.
        homes: int64[2, n]; scratch of `offset_map.insert_keys`.
    """

    hashes: U64X2
    spans: I64X2
    page_ids: I64
    homes: I64X2


@inline
def number_hash(offset, seed0, seed1):
    """Return the hash of a record without a key, so that a sample takes its share of such records."""
    return multiply_fold(np.uint64(offset) ^ seed0, seed1)


@kernel
def fill_key_batch(
    uncompressed: READ_U8,
    table: READ_I64X2,
    outcomes: READ_U8,
    rows: int,
    cursor: I64,
    words: READ_U64,
    batch: KeyBatch,
) -> int:
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
        attributes = table[row, fields.ATTRIBUTES]
        outcome = outcomes[row]
        aborted = outcome == OUTCOME_ABORTED
        # An ongoing transaction does not supersede anything yet. The bits of the records of an aborted one
        # were set in the first pass.
        if attributes & CONTROL_BIT or (outcome != 0 and not (aborted and first_pass)):
            row += 1
            continue
        position, end, count, status = records_of(uncompressed, table, row)
        base_offset = table[row, fields.BASE_OFFSET]
        span = table[row, fields.LAST_OFFSET] - base_offset
        if status != OK:
            cursor[ROW] = row
            return status
        share = table[row, fields.SIZE] / max(end - position, 1)
        previous = np.int64(-1)
        for _ in range(ordinal):
            record = read_keyed(uncompressed, position, end)
            if not record.valid:
                cursor[ROW] = row
                return BAD_RECORD
            position, previous = record.end, record.offset_delta
        has_horizon = attributes & DELETE_HORIZON_BIT != 0
        due_batch = has_horizon and table[row, fields.BASE_TIMESTAMP] <= now
        if table[row, fields.MAGIC] < 2:  # these have no field for a horizon: the segment's time decides
            has_horizon = True
            due_batch = old_due
        while ordinal < count and filled < capacity and met < room:
            record = read_keyed(uncompressed, position, end)
            if not record.valid or record.offset_delta <= previous or record.offset_delta > span:
                cursor[ROW] = row
                return BAD_RECORD
            _value_position, value_length, _after, valid = read_value(
                uncompressed, record.value_at, record.end
            )
            if not valid:
                cursor[ROW] = row
                return BAD_RECORD
            key_position, key_length = record.key_position, record.key_length
            previous = record.offset_delta
            offset = base_offset + previous
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
                size = min(np.int64((record.end - position) * share), SIZE_MASK)
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
                spans[RECORD_END, filled] = record.end
                filled += 1
            position = record.end
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


@kernel
def divide_key_batch(
    uncompressed: READ_U8, batch: KeyBatch, first: int, filled: int, bins: I64X2, data: U8, by_hash: bool
) -> tuple[int, int, int]:
    """Append records first..filled - 1 of a key batch, as rows, to the bins of their shards, in order.

    A record without a key belongs to a shard by its offset. `by_hash`: the rows have hashes, not keys.
    `bins` (int64[shards, BIN_FIELDS]) are parts of `data` (uint8, with slack), with BIN_SLACK bytes between
    them.

    Returns (record, shard, status). After FULL the bin of this shard has too little room for this record, and
    all records before it were appended. NO_SLACK: this record's key is outside `uncompressed`, or a bin is
    outside `data`.
    """
    hashes, spans, _pages, _homes = batch
    shards = bins.shape[0]
    most = (1 << HASH_FIELD_BITS) - 1 if by_hash else MAX_ROW_FIELD
    for shard in range(shards):
        start = bins[shard, BIN_START]
        end = bins[shard, BIN_END]
        if start < 0 or end < start or end > bins[shard, BIN_LIMIT]:
            return first, shard, NO_SLACK
        if bins[shard, BIN_LIMIT] > data.size - SLACK:
            return first, shard, NO_SLACK
    for i in range(first, filled):
        key_length = spans[KEY_LENGTH, i]
        key_position = spans[KEY_POSITION, i]
        offset = spans[OFFSET, i]
        size = spans[SIZE, i]
        if key_length < 0:
            shard = offset % shards
        else:
            shard = np.int64(((hashes[0, i] >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32))
            if key_position < 0 or key_length > uncompressed.size - SLACK - key_position:
                return i, shard, NO_SLACK
        at = bins[shard, BIN_END]
        room = bins[shard, BIN_LIMIT] - at
        delta = offset - bins[shard, BIN_OFFSET]
        short = bins[shard, BIN_ROWS] > 0 and 0 < delta <= most and size <= most and key_length >= 0
        flags = np.int64(0)
        if key_length < 0:
            flags |= ROW_KEYLESS
        if size & ABORTED:
            flags |= ROW_ABORTED
        if size & DEAD_KEYLESS:
            flags |= ROW_DEAD_KEYLESS
        if by_hash:
            if room < LONG_HASH_ROW_BYTES:
                return i, shard, FULL
            row = delta | size << HASH_FIELD_BITS if short else flags << HASH_FIELD_BITS
            low = hashes[0, i] & np.uint64((1 << HASH_BITS) - 1)
            store64(data, at, hashes[1, i])
            store64(data, at + 8, low | np.uint64(row) << np.uint64(HASH_BITS))
            at += HASH_ROW_BYTES
            if not short:
                store64(data, at, np.uint64(offset))
                store32(data, at + 8, size & ROW_SIZE_MASK)
                at += LONG_HASH_ROW_BYTES - HASH_ROW_BYTES
        elif short and key_length < LONG_ROW:
            if ROW_BYTES + key_length > room:
                return i, shard, FULL
            store64(data, at, np.uint64(delta | size << 16 | key_length << 32))
            at += ROW_BYTES
        else:
            if LONG_ROW_BYTES + max(key_length, 0) > room:
                return i, shard, FULL
            store64(data, at, np.uint64(flags | LONG_ROW << 32))
            store64(data, at + 5, np.uint64(offset))
            store64(data, at + 13, np.uint64((size & ROW_SIZE_MASK) | max(key_length, 0) << 32))
            at += LONG_ROW_BYTES
        if key_length > 0 and not by_hash:
            copy_wide(data, at, uncompressed, key_position, key_length)
            at += key_length
        bins[shard, BIN_END] = at
        bins[shard, BIN_ROWS] += 1
        bins[shard, BIN_OFFSET] = offset
    return filled, 0, OK


@kernel
def fill_from_rows(
    section: READ_U8, end: int, count: int, with_keyless: bool, words: READ_U64, cursor: I64, batch: KeyBatch
) -> int:
    """Fill `batch` with the records of a section: `count` rows in section[:end]; `section` has slack.

    Without `with_keyless`, records without a key are left out. Key positions count in `section`. Sets
    cursor[FILLED], and no pages. Returns OK, FULL, or BAD_RECORD if the rows do not end at `end`.
    """
    hashes, spans, _pages, _homes = batch
    seed0 = words[SEED0]
    seed1 = words[SEED1]
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    cursor[FILLED] = 0
    cursor[PAGES_MET] = 0
    if end < 0 or end > section.size - SLACK or count < 0 or count > end // ROW_BYTES:
        return BAD_RECORD
    if count > spans.shape[1]:
        return FULL
    position = 0
    offset = np.int64(0)
    filled = 0
    for _ in range(count):
        if end - position < ROW_BYTES:
            return BAD_RECORD
        row = np.int64(load64(section, position))
        key_length = (row >> 32) & 255
        keyed = True
        if key_length == LONG_ROW:
            if end - position < LONG_ROW_BYTES:
                return BAD_RECORD
            offset = np.int64(load64(section, position + 5))
            size = load32(section, position + 13)
            key_length = load32(section, position + 17)
            position += LONG_ROW_BYTES
            if row & ROW_ABORTED:
                size |= ABORTED
            if row & ROW_DEAD_KEYLESS:
                size |= DEAD_KEYLESS
            keyed = row & ROW_KEYLESS == 0
        else:
            offset += row & MAX_ROW_FIELD
            size = (row >> 16) & MAX_ROW_FIELD
            position += ROW_BYTES
        if key_length > end - position:
            return BAD_RECORD
        if keyed:
            hashes[0, filled] = key_hash(section, position, key_length, seed0, seed1)
            hashes[1, filled] = key_hash(section, position, key_length, digest0, digest1)
        elif not with_keyless:
            continue
        spans[KEY_POSITION, filled] = position
        spans[KEY_LENGTH, filled] = key_length if keyed else -1
        spans[OFFSET, filled] = offset
        spans[SIZE, filled] = size
        position += key_length
        filled += 1
    cursor[FILLED] = filled
    return OK if position == end else BAD_RECORD


@kernel
def fill_from_hashes(section: READ_U8, end: int, count: int, cursor: I64, batch: KeyBatch) -> int:
    """Fill `batch` with the records of a section of hashes: `count` rows in section[:end], with slack.

    The first hash has the row's bits of the map's hash above the low bits of the digest hash. A key has
    length 0. Sets cursor[FILLED]. Returns OK, FULL, or BAD_RECORD if the rows do not end at `end`.
    """
    hashes, spans, _pages, _homes = batch
    digest_bits = np.uint64(64 - HASH_BITS)
    field = np.int64((1 << HASH_FIELD_BITS) - 1)
    cursor[FILLED] = 0
    if end < 0 or end > section.size - SLACK or count < 0 or count > end // HASH_ROW_BYTES:
        return BAD_RECORD
    if count > spans.shape[1]:
        return FULL
    position = 0
    offset = np.int64(0)
    for i in range(count):
        if end - position < HASH_ROW_BYTES:
            return BAD_RECORD
        digest = load64(section, position)
        row = load64(section, position + 8)
        delta = np.int64(row >> np.uint64(HASH_BITS)) & field
        size = np.int64(row >> np.uint64(HASH_BITS + HASH_FIELD_BITS)) & field
        key_length = np.int64(0)
        position += HASH_ROW_BYTES
        offset += delta
        if delta == 0:
            if end - position < LONG_HASH_ROW_BYTES - HASH_ROW_BYTES:
                return BAD_RECORD
            flags = size
            offset = np.int64(load64(section, position))
            size = load32(section, position + 8)
            position += LONG_HASH_ROW_BYTES - HASH_ROW_BYTES
            if flags & ROW_KEYLESS:
                key_length = np.int64(-1)
            if flags & ROW_ABORTED:
                size |= ABORTED
            if flags & ROW_DEAD_KEYLESS:
                size |= DEAD_KEYLESS
        hashes[0, i] = row << digest_bits | digest & ((np.uint64(1) << digest_bits) - np.uint64(1))
        hashes[1, i] = digest
        spans[KEY_POSITION, i] = 0
        spans[KEY_LENGTH, i] = key_length
        spans[OFFSET, i] = offset
        spans[SIZE, i] = size
    cursor[FILLED] = count
    return OK if position == end else BAD_RECORD
