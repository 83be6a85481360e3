"""The exact offset map and the resolve loop: which records a newer one with the same key has replaced.

One block of bytes. From its bottom grows the arena, one entry for each distinct key:

    offset of the newest record   8 bytes
    its bytes on disk and flags   4 bytes (29 bits, UNCLOCKED, DUE, TOMBSTONE)
    key length                    1 byte, or 0xFF and 4 bytes
    key

At its top lie the slots, 8 bytes each: 24 bits of the hash (the tag) and 40 bits of arena position; 0 is
empty. Their number need not be a power of two. A tag that matches is only a candidate: the key's bytes
decide.

Three loops over a piece of records hide the cache misses: hash every key and ask for its slot; read the
slots and ask for the arena entries; only then go through the records in order.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import (
    BAD_COUNT,
    BAD_OFFSET,
    BAD_RECORD,
    FULL,
    NEED_PAGES,
    NO_SLACK,
    OK,
    SLACK,
    inline,
    kernel,
)
from lastword.kernels.columns import read_bounds, read_key, read_value
from lastword.kernels.keyhash import NULL_KEY, key_hash, pair_digest
from lastword.kernels.memory import (
    copy_wide,
    load8,
    load32,
    load64,
    multiply_high,
    prefetch,
    store8,
    store32,
    store64,
)
from lastword.kernels.pages import PAGE_BITS, find_page, set_bit
from lastword.kernels.table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CONTROL,
    COUNT,
    HORIZON,
    LAST_OFFSET,
    MAGIC,
    PLAIN_END,
    PLAIN_POSITION,
    SIZE,
    SMALLEST_RECORD_BYTES,
)

# Fields of `state`, int64.
ARENA_END = 0  # first free byte of the arena
SLOTS_START = 1  # byte where the slots start: the arena's limit
SLOTS = 2
USED = 3  # distinct keys held
MOST_USED = 4  # as many keys as the slots take
PROBES = 5  # slots looked at
PAGES = 6
PAGES_STORED = 7
ROW = 8  # where to go on in the chunk: row,
ORDINAL = 9  # and record in it
SEGMENT = 10
CLEANING = 11  # 1: NOW decides about tombstones, and records without a key go
NOW = 12
FIRST_PASS = 13
OLD_DUE = 14  # 1: tombstones of magic 0 and 1 of this segment have had their time
STATE_FIELDS = 15

# In `fates` (`partition.transactions.Fate`): 0 is committed; what is not stays out of the map.
FATE_ABORTED = 1

# Fields of `words`, uint64: seeds of the map's hash, seeds of the digest, first and last hash of this pass.
SEED0 = 0
SEED1 = 1
DIGEST0 = 2
DIGEST1 = 3
RANGE_FIRST = 4
RANGE_LAST = 5
WORD_FIELDS = 6

# Columns of `stats`, int64, one row a segment.
DEAD_RECORDS = 0
DEAD_BYTES = 1
TOMBSTONES = 2
DUE_TOMBSTONES = 3
KEYLESS = 4
UNCLOCKED_TOMBSTONES = 5  # of TOMBSTONES
ABORTED = 6  # of DEAD_RECORDS: in batches whose transaction was aborted
STAT_FIELDS = 7

ARENA_START = 8  # so that no entry lies at 0, the empty slot
FIXED_BYTES = 13  # of an entry: offset, size, short key length
LONG_KEY = 255
SIZE_MASK = (1 << 29) - 1
UNCLOCKED = 1 << 29  # a tombstone whose batch has no delete horizon
DUE = 1 << 30
TOMBSTONE = 1 << 31
PIECE = 512

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_TAG_SHIFT = np.uint64(40)
_TAG_MASK = np.uint64((1 << 24) - 1)
_ENTRY_MASK = np.uint64((1 << 40) - 1)


@inline
def first_slot(hashed, slots):
    """Where the search for a hash starts. Not by its top bits: a pass may cover a narrow range of them."""
    return np.int64(multiply_high(hashed * _SPREAD, np.uint64(slots)))


@inline
def entry_bytes(key_length):
    return FIXED_BYTES + key_length + (4 if key_length >= LONG_KEY else 0)


@inline
def entry_key(block, entry):
    """(key position, key length) of an arena entry."""
    size = load8(block, entry + 12)
    if size == LONG_KEY:
        return entry + 17, load32(block, entry + 13)
    return entry + 13, size


@inline
def same_key(block, entry, plain, key_position, key_length):
    """Are the entry's key and plain[key_position:] the same bytes?"""
    at, size = entry_key(block, entry)
    if size != key_length:
        return False
    done = 0
    while key_length - done >= 8:
        if load64(block, at + done) != load64(plain, key_position + done):
            return False
        done += 8
    if done < key_length:
        rest = np.uint64(8 * (8 - (key_length - done)))
        return ((load64(block, at + done) ^ load64(plain, key_position + done)) << rest) == np.uint64(0)
    return True


@inline
def register_page(page_ids, page_slots, page_segments, state, page, segment):
    """Make the page known, which no known one follows; False if there is no room for it."""
    pages = state[PAGES]
    if pages >= page_ids.size:
        return False
    page_ids[pages] = page
    page_slots[pages] = -1
    page_segments[pages] = segment
    state[PAGES] = pages + 1
    return True


@inline
def kill_batch(plain, table, row, page_ids, page_slots, page_segments, page_bits, state, stats, segment):
    """Set the bit of every record of a batch whose transaction was aborted; gives a status.

    A bit is counted when it is set, so a batch may be given again after NEED_PAGES.
    """
    position = table[row, PLAIN_POSITION]
    end = table[row, PLAIN_END]
    count = table[row, COUNT]
    base_offset = table[row, BASE_OFFSET]
    span = table[row, LAST_OFFSET] - base_offset
    if position < 0 or position > end or end > plain.size - SLACK:
        return NO_SLACK
    if count < 0 or count > (end - position) // SMALLEST_RECORD_BYTES:
        return BAD_COUNT
    share = table[row, SIZE] / max(end - position, 1)
    previous = np.int64(-1)
    for _ in range(count):
        body, body_end, sound = read_bounds(plain, position, end)
        if not sound:
            return BAD_RECORD
        _delta, offset_delta, _key_position, _key_length, _value_at, sound = read_key(plain, body, body_end)
        if not sound or offset_delta <= previous or offset_delta > span:
            return BAD_RECORD
        previous = offset_delta
        offset = base_offset + offset_delta
        page = offset >> PAGE_BITS
        unknown = state[PAGES] == 0 or page > page_ids[state[PAGES] - 1]
        if unknown and not register_page(page_ids, page_slots, page_segments, state, page, segment):
            return NEED_PAGES
        found = find_page(page_ids, state[PAGES], offset)
        if set_bit(page_slots, page_bits, state, found, offset):
            stats[segment, DEAD_RECORDS] += 1
            stats[segment, ABORTED] += 1
            stats[segment, DEAD_BYTES] += min(np.int64((body_end - position) * share), SIZE_MASK)
        position = body_end
    return OK if position == end else BAD_RECORD


@kernel
def resolve_rows(
    plain,
    table,
    fates,
    rows,
    block,
    state,
    words,
    page_ids,
    page_slots,
    page_segments,
    page_bits,
    bases,
    stats,
    digests,
    hashes,
    spans,
):
    """Put the records of the chunk's first `rows` rows into the map, from state[ROW] and state[ORDINAL] on.

    `fates` (uint8 a row): what became of the batch's transaction; 0 is committed, or none.
    Every record met adds its pair digest to its segment's sum; a newer record of a key kills the older one:
    its bit is set, its bytes counted, and its digest, made with the killer's key, subtracted. `hashes`
    (uint64[3, PIECE]) and `spans` (int64[6, PIECE]) are scratch. Returns a status; state[ROW] and
    state[ORDINAL] then say where it stopped, everything before has been done.
    """
    segment = state[SEGMENT]
    cleaning = state[CLEANING] != 0
    old_due = cleaning and state[OLD_DUE] != 0
    now = state[NOW]
    first_pass = state[FIRST_PASS] != 0
    slots_start = state[SLOTS_START]
    slots = state[SLOTS]
    most_used = state[MOST_USED]
    seed0 = words[SEED0]
    seed1 = words[SEED1]
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    range_first = words[RANGE_FIRST]
    range_width = words[RANGE_LAST] - range_first
    capacity = spans.shape[1]
    row = state[ROW]
    ordinal = state[ORDINAL]
    position = np.int64(-1)  # in plain; -1: at the start of `row`
    previous = np.int64(-1)
    digest = np.uint64(0)
    last_page = page_ids[state[PAGES] - 1] if state[PAGES] > 0 else np.int64(-1)

    while row < rows:
        # Gather a piece: parse, hash, ask for slots.
        filled = 0
        while row < rows and filled < capacity:
            attributes = table[row, ATTRIBUTES]
            count = table[row, COUNT]
            if attributes & CONTROL:
                row += 1
                ordinal = 0
                position = -1
                continue
            fate = fates[row]
            if fate != 0:
                # The records of an aborted transaction replace nothing and are dead at once; what an
                # undecided one will have replaced is not known yet. Later passes find the bits set.
                if fate == FATE_ABORTED and first_pass:
                    status = kill_batch(
                        plain,
                        table,
                        row,
                        page_ids,
                        page_slots,
                        page_segments,
                        page_bits,
                        state,
                        stats,
                        segment,
                    )
                    last_page = page_ids[state[PAGES] - 1] if state[PAGES] > 0 else np.int64(-1)
                    if status != OK:
                        state[ROW] = row
                        state[ORDINAL] = 0
                        if status == NEED_PAGES and filled > 0:
                            state[ROW] = spans[4, 0]
                            state[ORDINAL] = spans[5, 0]
                        digests[segment] += digest
                        return status
                row += 1
                ordinal = 0
                position = -1
                continue
            end = table[row, PLAIN_END]
            base_offset = table[row, BASE_OFFSET]
            span = table[row, LAST_OFFSET] - base_offset
            if position < 0:
                position = table[row, PLAIN_POSITION]
                previous = -1
                if position < 0 or position > end or end > plain.size - SLACK:
                    state[ROW] = row
                    return NO_SLACK
                if count < 0 or count > (end - position) // SMALLEST_RECORD_BYTES:
                    state[ROW] = row
                    return BAD_COUNT
                for _ in range(ordinal):
                    _body, body_end, sound = read_bounds(plain, position, end)
                    if not sound:
                        state[ROW] = row
                        return BAD_RECORD
                    position = body_end
            share = table[row, SIZE] / max(end - table[row, PLAIN_POSITION], 1)
            clocked = attributes & HORIZON != 0
            due_batch = cleaning and clocked and table[row, BASE_TIMESTAMP] <= now
            if table[row, MAGIC] < 2:  # no place for a horizon: the segment's time decides
                clocked = True
                due_batch = old_due
            while ordinal < count and filled < capacity:
                body, body_end, sound = read_bounds(plain, position, end)
                if not sound:
                    state[ROW] = row
                    return BAD_RECORD
                _delta, offset_delta, key_position, key_length, value_at, sound = read_key(
                    plain, body, body_end
                )
                if not sound or offset_delta <= previous or offset_delta > span:
                    state[ROW] = row
                    return BAD_RECORD
                previous = offset_delta
                _value_position, value_length, _after, sound = read_value(plain, value_at, body_end)
                if not sound:
                    state[ROW] = row
                    return BAD_RECORD
                offset = base_offset + offset_delta
                page = offset >> PAGE_BITS
                if page > last_page:
                    if not register_page(page_ids, page_slots, page_segments, state, page, segment):
                        # Nothing of this piece is done yet: start it again once there are more pages.
                        if filled > 0:
                            state[ROW] = spans[4, 0]
                            state[ORDINAL] = spans[5, 0]
                        else:
                            state[ROW] = row
                            state[ORDINAL] = ordinal
                        digests[segment] += digest
                        return NEED_PAGES
                    last_page = page
                if key_length >= 0:
                    hashed = key_hash(plain, key_position, key_length, seed0, seed1)
                    wanted = hashed - range_first <= range_width
                    if wanted:
                        slot = first_slot(hashed, slots)
                        prefetch(block, slots_start + (slot << 3))
                        hashes[0, filled] = hashed
                        hashes[1, filled] = key_hash(plain, key_position, key_length, digest0, digest1)
                        hashes[2, filled] = np.uint64(slot)
                else:
                    wanted = first_pass
                if wanted:
                    size = min(np.int64((body_end - position) * share), SIZE_MASK)
                    if value_length < 0:
                        size |= TOMBSTONE
                        if due_batch:
                            size |= DUE
                        elif not clocked:
                            size |= UNCLOCKED
                    spans[0, filled] = key_position
                    spans[1, filled] = key_length
                    spans[2, filled] = offset
                    spans[3, filled] = size
                    spans[4, filled] = row
                    spans[5, filled] = ordinal
                    filled += 1
                position = body_end
                ordinal += 1
            if ordinal == count:
                if position != end:
                    state[ROW] = row
                    return BAD_RECORD
                row += 1
                ordinal = 0
                position = -1

        # Ask for the arena entries that the slots point to.
        for i in range(filled):
            if spans[1, i] >= 0:
                found = load64(block, slots_start + (np.int64(hashes[2, i]) << 3))
                if found >> _TAG_SHIFT == hashes[0, i] & _TAG_MASK:
                    entry = np.int64(found & _ENTRY_MASK)
                    prefetch(block, entry)
                    prefetch(block, entry + FIXED_BYTES + min(spans[1, i], 51))

        # In order: insert or replace.
        for i in range(filled):
            key_length = spans[1, i]
            offset = spans[2, i]
            size = spans[3, i]
            if key_length < 0:
                if cleaning:
                    page = find_page(page_ids, state[PAGES], offset)
                    if set_bit(page_slots, page_bits, state, page, offset):
                        stats[segment, DEAD_RECORDS] += 1
                        stats[segment, DEAD_BYTES] += size & SIZE_MASK
                        stats[segment, KEYLESS] += 1
                else:
                    stats[segment, KEYLESS] += 1
                    if size & TOMBSTONE:
                        stats[segment, TOMBSTONES] += 1
                    digest += pair_digest(NULL_KEY, offset, digest0, digest1)
                continue
            tag = hashes[0, i] & _TAG_MASK
            key_digest = hashes[1, i]
            slot = np.int64(hashes[2, i])
            key_position = spans[0, i]
            probes = 1
            while True:
                at = slots_start + (slot << 3)
                found = load64(block, at)
                if found == np.uint64(0):
                    entry = state[ARENA_END]
                    need = entry_bytes(key_length)
                    if state[USED] >= most_used or need > slots_start - entry:
                        state[ROW] = spans[4, i]
                        state[ORDINAL] = spans[5, i]
                        digests[segment] += digest
                        return FULL
                    store64(block, at, (tag << _TAG_SHIFT) | np.uint64(entry))
                    key_at = entry + FIXED_BYTES
                    if key_length < LONG_KEY:
                        store8(block, entry + 12, key_length)
                    else:
                        store8(block, entry + 12, LONG_KEY)
                        store32(block, entry + 13, key_length)
                        key_at += 4
                    # Wide copies may write 7 bytes past the entry: free bytes, unless the slots begin there.
                    if slots_start - (entry + need) >= 8:
                        copy_wide(block, key_at, plain, key_position, key_length)
                    else:
                        for j in range(key_length):
                            store8(block, key_at + j, load8(plain, key_position + j))
                    state[ARENA_END] = entry + need
                    state[USED] += 1
                    break
                if found >> _TAG_SHIFT == tag:
                    entry = np.int64(found & _ENTRY_MASK)
                    if same_key(block, entry, plain, key_position, key_length):
                        old = np.int64(load64(block, entry))
                        old_size = load32(block, entry + 8)
                        if old >= offset:
                            state[ROW] = spans[4, i]
                            return BAD_OFFSET
                        page = find_page(page_ids, state[PAGES], old)
                        owner = page_segments[page]
                        while owner + 1 < bases.size and bases[owner + 1] <= old:
                            owner += 1
                        if set_bit(page_slots, page_bits, state, page, old):
                            stats[owner, DEAD_RECORDS] += 1
                            stats[owner, DEAD_BYTES] += old_size & SIZE_MASK
                        if old_size & DUE:
                            stats[owner, DUE_TOMBSTONES] -= 1
                        else:
                            if old_size & TOMBSTONE:
                                stats[owner, TOMBSTONES] -= 1
                            if old_size & UNCLOCKED:
                                stats[owner, UNCLOCKED_TOMBSTONES] -= 1
                            digests[owner] -= pair_digest(key_digest, old, digest0, digest1)
                        break
                slot += 1
                if slot == slots:
                    slot = 0
                probes += 1
            state[PROBES] += probes
            store64(block, entry, np.uint64(offset))
            store32(block, entry + 8, size)
            if size & DUE:
                page = find_page(page_ids, state[PAGES], offset)
                if set_bit(page_slots, page_bits, state, page, offset):
                    stats[segment, DEAD_RECORDS] += 1
                    stats[segment, DEAD_BYTES] += size & SIZE_MASK
                stats[segment, DUE_TOMBSTONES] += 1
            else:
                if size & TOMBSTONE:
                    stats[segment, TOMBSTONES] += 1
                if size & UNCLOCKED:
                    stats[segment, UNCLOCKED_TOMBSTONES] += 1
                digest += pair_digest(key_digest, offset, digest0, digest1)

    digests[segment] += digest
    state[ROW] = row
    state[ORDINAL] = 0
    return OK


@kernel
def rebuild(block, state, words):
    """Fill the (zeroed) slots from the arena, after their number has changed."""
    slots_start = state[SLOTS_START]
    slots = state[SLOTS]
    entry = np.int64(ARENA_START)
    end = state[ARENA_END]
    while entry < end:
        key_at, key_length = entry_key(block, entry)
        hashed = key_hash(block, key_at, key_length, words[SEED0], words[SEED1])
        slot = first_slot(hashed, slots)
        while load64(block, slots_start + (slot << 3)) != np.uint64(0):
            slot += 1
            if slot == slots:
                slot = 0
        store64(block, slots_start + (slot << 3), ((hashed & _TAG_MASK) << _TAG_SHIFT) | np.uint64(entry))
        entry += entry_bytes(key_length)


@kernel
def drop_outside(block, state, words, page_ids, page_segments, bases, stats, digests):
    """Take out of the arena every key whose hash lies outside the range in `words`; its newest record no
    longer counts as met.

    The slots are stale after that: zero them and `rebuild`.
    """
    range_first = words[RANGE_FIRST]
    range_width = words[RANGE_LAST] - range_first
    entry = np.int64(ARENA_START)
    kept = entry
    end = state[ARENA_END]
    used = 0
    while entry < end:
        key_at, key_length = entry_key(block, entry)
        size = entry_bytes(key_length)
        hashed = key_hash(block, key_at, key_length, words[SEED0], words[SEED1])
        if hashed - range_first <= range_width:
            if kept != entry:
                for i in range(size):  # moves down over itself: byte by byte
                    store8(block, kept + i, load8(block, entry + i))
            kept += size
            used += 1
        else:
            offset = np.int64(load64(block, entry))
            flags = load32(block, entry + 8)
            owner = page_segments[find_page(page_ids, state[PAGES], offset)]
            while owner + 1 < bases.size and bases[owner + 1] <= offset:
                owner += 1
            if flags & DUE:
                stats[owner, DUE_TOMBSTONES] -= 1
            else:
                if flags & TOMBSTONE:
                    stats[owner, TOMBSTONES] -= 1
                if flags & UNCLOCKED:
                    stats[owner, UNCLOCKED_TOMBSTONES] -= 1
                key_digest = key_hash(block, key_at, key_length, words[DIGEST0], words[DIGEST1])
                digests[owner] -= pair_digest(key_digest, offset, words[DIGEST0], words[DIGEST1])
        entry += size
    state[ARENA_END] = kept
    state[USED] = used


@kernel
def find_key(block, state, words, key, key_length):
    """Offset of the newest record of key[:key_length], or -1; `key` has slack."""
    if key_length < 0 or key_length > key.size - SLACK:
        return np.int64(-1)
    hashed = key_hash(key, 0, key_length, words[SEED0], words[SEED1])
    slot = first_slot(hashed, state[SLOTS])
    while True:
        found = load64(block, state[SLOTS_START] + (slot << 3))
        if found == np.uint64(0):
            return np.int64(-1)
        entry = np.int64(found & _ENTRY_MASK)
        if found >> _TAG_SHIFT == hashed & _TAG_MASK and same_key(block, entry, key, 0, key_length):
            return np.int64(load64(block, entry))
        slot += 1
        if slot == state[SLOTS]:
            slot = 0
