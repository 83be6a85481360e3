"""The exact offset map: records are inserted in order, and every superseded record is marked dead.

`slots` (uint64) refer to the entries in `arena` (uint8): 24 bits of the hash (the tag) and 40 bits of arena
position; 0 is empty. The number of slots need not be a power of two. A tag that matches is only a candidate:
the key's bytes decide.

The arena has one entry for each key, end to end:

    offset of the newest record   8 bytes
    its bytes on disk and flags   4 bytes (29 bits, NO_HORIZON, DUE, TOMBSTONE)
    copies                        1 byte: records of the key on disk, dead ones included; stays at 255
    removals                      1 byte: copies that the rewrite in progress leaves out
    key length                    1 byte, or 0xFF and 4 bytes
    key

DUE without TOMBSTONE: the key has no record that counts. It may have copies of aborted transactions, or
none. Without copies its entry is used for the key's next record, or is removed when room is made.

Prefetching hides the cache misses: while a record is inserted, the bit that a later record will set is being
loaded, the entry of a still later record, and the slot of one after that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastword.kernels import BAD_COUNT, BAD_OFFSET, BAD_RECORD, FULL, NO_SLACK, OK, SLACK
from lastword.kernels.columns import read_bounds, read_key
from lastword.kernels.hashing import NULL_KEY, key_hash, pair_digest
from lastword.kernels.key_batch import (
    ABORTED,
    DEAD_KEYLESS,
    DIGEST0,
    DIGEST1,
    DUE,
    KEY_LENGTH,
    KEY_POSITION,
    NO_HORIZON,
    OFFSET,
    RANGE_FIRST,
    RANGE_LAST,
    SEED0,
    SEED1,
    SIZE,
    SIZE_MASK,
    TOMBSTONE,
    KeyBatch,
)
from lastword.kernels.memory import (
    copy_wide,
    load8,
    load32,
    load64,
    multiply_high,
    not_negative,
    prefetch,
    store8,
    store32,
    store64,
)
from lastword.kernels.native import (
    I64,
    I64X2,
    READ_I64,
    READ_I64X2,
    READ_U8,
    READ_U64,
    U8,
    U64,
    inline,
    kernel,
)
from lastword.kernels.pages import PAGE_BITS, PAGE_WORDS, DeadBits, Pages, find_page, set_bit, test_bit
from lastword.kernels.table import ATTRIBUTES, BASE_OFFSET, COUNT, RECORDS_END, RECORDS_POSITION
from lastword.wire import CONTROL_BIT, INT64_MAX, SMALLEST_RECORD_BYTES

ARENA_START = 8  # 0 is the empty slot
COPIES_AT = 12
REMOVALS_AT = 13
LENGTH_AT = 14
FIXED_BYTES = 15
LONG_KEY = 255
MAX_COPIES = 255

KIND = DUE | TOMBSTONE
VACANT = DUE  # of KIND: no record counts
REMOVED = NO_HORIZON  # of a due tombstone: the rewrite in progress removes it
NO_OFFSET = INT64_MAX  # in a vacant entry


@inline
def entry_bytes(key_length):
    """Return the size of an entry for a key of this length."""
    return FIXED_BYTES + key_length + (4 if key_length >= LONG_KEY else 0)


@inline
def entry_key(arena, entry):
    """Return (key position, key length) of an entry."""
    size = load8(arena, entry + LENGTH_AT)
    if size == LONG_KEY:
        return entry + FIXED_BYTES + 4, load32(arena, entry + FIXED_BYTES)
    return entry + FIXED_BYTES, size


@inline
def write_entry(arena, entry, uncompressed, key_position, key_length):
    """Write a key with one copy; the caller stores offset and size. May write 7 bytes past the entry."""
    store8(arena, entry + COPIES_AT, 1)
    store8(arena, entry + REMOVALS_AT, 0)
    key_at = entry + FIXED_BYTES
    if key_length < LONG_KEY:
        store8(arena, entry + LENGTH_AT, key_length)
    else:
        store8(arena, entry + LENGTH_AT, LONG_KEY)
        store32(arena, entry + FIXED_BYTES, key_length)
        key_at += 4
    copy_wide(arena, key_at, uncompressed, key_position, key_length)


@inline
def same_key(arena, entry, uncompressed, key_position, key_length):
    """Return whether the entry's key and uncompressed[key_position:] are the same bytes."""
    at, size = entry_key(arena, entry)
    if size != key_length:
        return False
    done = 0
    while key_length - done >= 8:
        if load64(arena, at + done) != load64(uncompressed, key_position + done):
            return False
        done += 8
    if done < key_length:
        rest = np.uint64(8 * (8 - (key_length - done)))
        return ((load64(arena, at + done) ^ load64(uncompressed, key_position + done)) << rest) == np.uint64(
            0
        )
    return True


# Fields of `state`, int64.
ARENA_END = 0  # first free byte of the arena
ARENA_LIMIT = 1  # one past the last byte that it may use
MAX_ENTRIES = 2  # limit of entries, from the number of slots
USED = 3  # entries
VACANCIES = 4  # of USED: keys without a record that counts
PROBES = 5  # slots read
PAGES = 6
PAGES_STORED = 7
NEXT = 8  # next record of the key batch
STATE_FIELDS = 9

# Columns of `stats`, int64, one row a segment.
DEAD_RECORDS = 0
DEAD_BYTES = 1
TOMBSTONES = 2
DUE_TOMBSTONES = 3
KEYLESS = 4
TOMBSTONES_WITHOUT_HORIZON = 5  # of TOMBSTONES
ABORTED_RECORDS = 6  # of DEAD_RECORDS: in batches whose transaction was aborted
LOWEST_SUPERSEDING = 7  # lowest offset of a record that superseded a record of the segment; NO_OFFSET: none
STAT_FIELDS = 8


class KeyMap(NamedTuple):
    """The arrays of the offset map.

    Attributes:
        arena: uint8, with slack; the entries.
        slots: uint64; tag and entry of a key, 0 if empty.
        state: int64[STATE_FIELDS].
        words: uint64[WORD_FIELDS]; seeds and the range of hashes (`key_batch`).
    """

    arena: U8
    slots: U64
    state: I64
    words: READ_U64


class CountArrays(NamedTuple):
    """The counts of each segment, a row for each segment.

    Attributes:
        bases: int64; base offsets, ascending.
        stats: int64[segments, STAT_FIELDS].
        digests: uint64; sum of the pair digests of the live records.
    """

    bases: READ_I64
    stats: I64X2
    digests: U64


PREFETCH_DISTANCE = 12  # records between the prefetches of slot, entry and bit, and the use
PREFETCH_PROBES = 6

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_TAG_SHIFT = np.uint64(40)
_TAG_MASK = np.uint64((1 << 24) - 1)
_ENTRY_MASK = np.uint64((1 << 40) - 1)


@inline
def first_slot(hashed, slots):
    """Return the slot where the search for a hash starts.

    The hash is spread first, because a pass may cover a narrow range of its top bits.
    """
    return np.int64(multiply_high(hashed * _SPREAD, np.uint64(slots)))


@inline
def end_of_segment(bases, segment):
    """Return the offset up to which records belong to a segment."""
    return bases[segment + 1] if segment + 1 < bases.size else INT64_MAX


@inline
def owner_of(pages, page, bases, offset):
    """Return the segment of an offset on this page."""
    owner = np.int64(pages.segments[page])
    while owner + 1 < bases.size and bases[owner + 1] <= offset:
        owner += 1
    return owner


@inline
def mark_dead(pages, state, stats, page, owner, offset, size):
    """Set the bit of a record, and count the record if the bit was not set."""
    if set_bit(pages, state, page, offset):
        stats[owner, DEAD_RECORDS] += 1
        stats[owner, DEAD_BYTES] += size & SIZE_MASK


@inline
def remove_live(counts, owner, flags, offset, key_digest, digest0, digest1):
    """Subtract the newest record of a key from the live records of its segment."""
    if flags & DUE:
        counts.stats[owner, DUE_TOMBSTONES] -= 1
    else:
        if flags & TOMBSTONE:
            counts.stats[owner, TOMBSTONES] -= 1
        if flags & NO_HORIZON:
            counts.stats[owner, TOMBSTONES_WITHOUT_HORIZON] -= 1
        counts.digests[owner] -= pair_digest(key_digest, offset, digest0, digest1)


@inline
def prefetch_slot(spans, hashes, homes, slots, i):
    """Compute the first slot of record i, and prefetch it."""
    if spans[KEY_LENGTH, i] >= 0:
        slot = first_slot(hashes[0, i], slots.size)
        homes[0, i] = slot
        prefetch(slots, slot)


@inline
def prefetch_entry(spans, hashes, homes, slots, arena, i):
    """Find the probable entry of record i in its first slots, and prefetch it.

    Whether the key is new cannot be predicted, so a new key is no branch of its own: its empty slot stands
    for the bytes before the first entry.
    """
    entry = np.int64(0)
    if spans[KEY_LENGTH, i] >= 0:
        slot = homes[0, i]
        tag = hashes[0, i] & _TAG_MASK
        word = slots[slot]
        probes = 1
        while word != np.uint64(0) and word >> _TAG_SHIFT != tag and probes < PREFETCH_PROBES:
            slot += 1
            if slot == slots.size:
                slot = 0
            word = slots[slot]
            probes += 1
        entry = np.int64(word & _ENTRY_MASK)
        prefetch(arena, entry)
        prefetch(arena, entry + FIXED_BYTES + min(spans[KEY_LENGTH, i], 49))
    homes[1, i] = entry


@inline
def prefetch_bit(homes, arena, state, pages, i):
    """Prefetch the bit of the record that record i supersedes."""
    offset = np.int64(load64(arena, homes[1, i]))
    page = (offset >> PAGE_BITS) - pages.ids[0]
    if 0 <= page < state[PAGES]:  # exact for a log without gaps, else a guess
        stored = np.int64(pages.slots[page])
        if stored >= 0:
            prefetch(pages.bits, stored * PAGE_WORDS + ((offset >> 6) & (PAGE_WORDS - 1)))


@kernel
def insert_keys(
    uncompressed: READ_U8,
    batch: KeyBatch,
    filled: int,
    segment: int,
    key_map: KeyMap,
    pages: Pages,
    counts: CountArrays,
) -> int:
    """Insert the first `filled` records of a key batch into the map, from state[NEXT] on.

    `segment` is that of the first record; later records may be in later segments. The pages of the records
    are registered. Every record adds its pair digest to the sum of its segment. A
    newer record of a key supersedes the older one: the older record's bit is set, its bytes are counted, and
    its digest, made with the newer record's key, is subtracted.

    Returns OK, FULL or BAD_OFFSET. After FULL and BAD_OFFSET state[NEXT] is the record that was not
    inserted; all before it were.
    """
    hashes, spans, _page_ids, homes = batch
    arena, slots, state, words = key_map
    bases, stats, digests = counts
    arena_limit = state[ARENA_LIMIT]
    max_entries = state[MAX_ENTRIES]
    places = slots.size
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    range_first = words[RANGE_FIRST]
    range_width = words[RANGE_LAST] - range_first
    known_pages = state[PAGES]
    digest = np.uint64(0)
    segment_end = end_of_segment(bases, segment)
    start = state[NEXT]
    for i in range(start, min(start + 3 * PREFETCH_DISTANCE, filled)):
        prefetch_slot(spans, hashes, homes, slots, i)
    for i in range(start, min(start + 2 * PREFETCH_DISTANCE, filled)):
        prefetch_entry(spans, hashes, homes, slots, arena, i)
    for i in range(start, min(start + PREFETCH_DISTANCE, filled)):
        prefetch_bit(homes, arena, state, pages, i)
    for number in range(start, filled):
        i = not_negative(number)
        segment = not_negative(segment)
        if i + 3 * PREFETCH_DISTANCE < filled:
            prefetch_slot(spans, hashes, homes, slots, i + 3 * PREFETCH_DISTANCE)
        if i + 2 * PREFETCH_DISTANCE < filled:
            prefetch_entry(spans, hashes, homes, slots, arena, i + 2 * PREFETCH_DISTANCE)
        if i + PREFETCH_DISTANCE < filled:
            prefetch_bit(homes, arena, state, pages, i + PREFETCH_DISTANCE)
        key_length = spans[KEY_LENGTH, i]
        offset = spans[OFFSET, i]
        size = spans[SIZE, i]
        if offset >= segment_end:
            digests[segment] += digest
            digest = np.uint64(0)
            while offset >= segment_end:
                segment += 1
                segment_end = end_of_segment(bases, segment)
        if key_length < 0:
            if size & (ABORTED | DEAD_KEYLESS):
                page = find_page(pages.ids, known_pages, offset)
                mark_dead(pages, state, stats, page, segment, offset, size)
                stats[segment, ABORTED_RECORDS if size & ABORTED else KEYLESS] += 1
            else:
                stats[segment, KEYLESS] += 1
                if size & TOMBSTONE:
                    stats[segment, TOMBSTONES] += 1
                digest += pair_digest(NULL_KEY, offset, digest0, digest1)
            continue
        hashed = hashes[0, i]
        if hashed - range_first > range_width:  # the range was narrowed after the batch was filled
            continue
        tag = hashed & _TAG_MASK
        key_digest = hashes[1, i]
        key_position = spans[KEY_POSITION, i]
        slot = not_negative(homes[0, i])
        probes = 1
        new = False
        while True:
            word = slots[slot]
            if word == np.uint64(0):
                entry = state[ARENA_END]
                need = entry_bytes(key_length)
                if state[USED] >= max_entries or need > arena_limit - entry:
                    state[NEXT] = i
                    digests[segment] += digest
                    return FULL
                slots[slot] = (tag << _TAG_SHIFT) | np.uint64(entry)
                write_entry(arena, entry, uncompressed, key_position, key_length)
                state[ARENA_END] = entry + need
                state[USED] += 1
                new = True
                break
            if word >> _TAG_SHIFT == tag:
                entry = np.int64(word & _ENTRY_MASK)
                if same_key(arena, entry, uncompressed, key_position, key_length):
                    break
            slot += 1
            if slot == places:
                slot = 0
            probes += 1
        state[PROBES] += probes
        if size & ABORTED:  # supersedes nothing, but is a copy on disk
            if new:
                store64(arena, entry, np.uint64(NO_OFFSET))
                store32(arena, entry + 8, VACANT)
                state[VACANCIES] += 1
            else:
                copies = load8(arena, entry + COPIES_AT)
                store8(arena, entry + COPIES_AT, min(copies + 1, MAX_COPIES))
            page = find_page(pages.ids, known_pages, offset)
            mark_dead(pages, state, stats, page, segment, offset, size)
            stats[segment, ABORTED_RECORDS] += 1
            continue
        if not new:
            old = np.int64(load64(arena, entry))
            flags = load32(arena, entry + 8)
            if flags & KIND == VACANT:
                state[VACANCIES] -= 1
            else:
                if old >= offset:
                    state[NEXT] = i
                    return BAD_OFFSET
                page = find_page(pages.ids, known_pages, old)
                owner = not_negative(owner_of(pages, page, bases, old))
                mark_dead(pages, state, stats, page, owner, old, flags)
                if offset < stats[owner, LOWEST_SUPERSEDING]:
                    stats[owner, LOWEST_SUPERSEDING] = offset
                remove_live(counts, owner, flags, old, key_digest, digest0, digest1)
            copies = load8(arena, entry + COPIES_AT)
            store8(arena, entry + COPIES_AT, min(copies + 1, MAX_COPIES))
        store64(arena, entry, np.uint64(offset))
        store32(arena, entry + 8, size)
        if size & DUE:
            page = find_page(pages.ids, known_pages, offset)
            mark_dead(pages, state, stats, page, segment, offset, size)
            stats[segment, DUE_TOMBSTONES] += 1
        else:
            if size & TOMBSTONE:
                stats[segment, TOMBSTONES] += 1
            if size & NO_HORIZON:
                stats[segment, TOMBSTONES_WITHOUT_HORIZON] += 1
            digest += pair_digest(key_digest, offset, digest0, digest1)
    digests[segment] += digest
    state[NEXT] = filled
    return OK


@kernel
def rebuild_slots(key_map: KeyMap, homes: I64X2) -> int:
    """Fill the (zeroed) slots from the arena; `homes` (int64[2, n]) is scratch.

    BAD_RECORD if the arena is not a sequence of entries, or their number is not that of `state`: its bytes
    may come from a file.
    """
    arena, slots, state, words = key_map
    places = slots.size
    entry = np.int64(ARENA_START)
    end = state[ARENA_END]
    if end > arena.size - SLACK or state[USED] > state[MAX_ENTRIES] or state[USED] >= places:
        return BAD_RECORD
    used = 0
    while entry < end:
        # In groups: the slots of a whole group are prefetched before the first is used.
        filled = 0
        while entry < end and filled < homes.shape[1]:
            if end - entry < FIXED_BYTES or used == state[USED]:
                return BAD_RECORD
            if load8(arena, entry + LENGTH_AT) == LONG_KEY and end - entry < FIXED_BYTES + 4:
                return BAD_RECORD
            key_at, key_length = entry_key(arena, entry)
            if key_length > end - key_at:
                return BAD_RECORD
            hashed = key_hash(arena, key_at, key_length, words[SEED0], words[SEED1])
            slot = first_slot(hashed, places)
            prefetch(slots, slot)
            homes[0, filled] = slot
            homes[1, filled] = np.int64(((hashed & _TAG_MASK) << _TAG_SHIFT) | np.uint64(entry))
            filled += 1
            used += 1
            entry = key_at + key_length
        for i in range(filled):
            slot = homes[0, i]
            while slots[slot] != np.uint64(0):
                slot += 1
                if slot == places:
                    slot = 0
            slots[slot] = np.uint64(homes[1, i])
    return OK if used == state[USED] else BAD_RECORD


@kernel
def drop_entries(key_map: KeyMap, pages: Pages, counts: CountArrays) -> None:
    """Remove from the arena the keys outside the range of hashes in `words`, and vacant keys without copies.

    The newest record of a key outside the range is subtracted from the live records. Afterwards the slots
    are stale: zero them and call `rebuild_slots`.
    """
    arena, _slots, state, words = key_map
    range_first = words[RANGE_FIRST]
    range_width = words[RANGE_LAST] - range_first
    entry = np.int64(ARENA_START)
    kept = entry
    end = state[ARENA_END]
    used = 0
    vacancies = 0
    while entry < end:
        key_at, key_length = entry_key(arena, entry)
        size = entry_bytes(key_length)
        hashed = key_hash(arena, key_at, key_length, words[SEED0], words[SEED1])
        flags = load32(arena, entry + 8)
        vacant = flags & KIND == VACANT
        if hashed - range_first <= range_width:
            if not vacant or load8(arena, entry + COPIES_AT) > 0:
                if kept != entry:
                    for i in range(size):  # the ranges may overlap: byte by byte
                        store8(arena, kept + i, load8(arena, entry + i))
                kept += size
                used += 1
                vacancies += vacant
        elif not vacant:
            offset = np.int64(load64(arena, entry))
            owner = owner_of(pages, find_page(pages.ids, state[PAGES], offset), counts.bases, offset)
            key_digest = key_hash(arena, key_at, key_length, words[DIGEST0], words[DIGEST1])
            remove_live(counts, owner, flags, offset, key_digest, words[DIGEST0], words[DIGEST1])
        entry += size
    state[ARENA_END] = kept
    state[USED] = used
    state[VACANCIES] = vacancies


@inline
def find_entry(key_map, data, position, length):
    """Return the entry of a key, or -1."""
    arena, slots, _state, words = key_map
    hashed = key_hash(data, position, length, words[SEED0], words[SEED1])
    slot = first_slot(hashed, slots.size)
    while True:
        word = slots[slot]
        if word == np.uint64(0):
            return np.int64(-1)
        entry = np.int64(word & _ENTRY_MASK)
        if word >> _TAG_SHIFT == hashed & _TAG_MASK and same_key(arena, entry, data, position, length):
            return entry
        slot += 1
        if slot == slots.size:
            slot = 0


@kernel
def find_key(key_map: KeyMap, key: READ_U8, key_length: int) -> int:
    """Return the entry of key[:key_length], or -1; `key` has slack."""
    if key_length < 0 or key_length > key.size - SLACK:
        return np.int64(-1)
    return find_entry(key_map, key, 0, key_length)


# ---------------------------------------------------------------- copies of keys on disk, and tombstones

# A rewrite that removes dead records is counted in two steps: `count_removals` while the rewrite reads its
# sources, and `apply_removals` when its output has replaced them or was discarded.


@kernel
def list_tombstones(
    arena: READ_U8, state: READ_I64, entries: I64, offsets: I64, copies: U8, size_bytes: I64
) -> int:
    """List the live tombstones in the order of the arena, as many as fit; return their number."""
    done = 0
    entry = np.int64(ARENA_START)
    while entry < state[ARENA_END]:
        flags = load32(arena, entry + 8)
        if flags & KIND == TOMBSTONE:
            if done < entries.size:
                entries[done] = entry
                offsets[done] = np.int64(load64(arena, entry))
                copies[done] = load8(arena, entry + COPIES_AT)
                size_bytes[done] = flags & SIZE_MASK
            done += 1
        key_at, key_length = entry_key(arena, entry)
        entry = key_at + key_length
    return done


@kernel
def mark_due(key_map: KeyMap, entries: READ_I64, pages: Pages, counts: CountArrays) -> None:
    """Set the bits of the tombstones in these entries: their delete horizons have passed."""
    arena, _slots, state, words = key_map
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    for i in range(entries.size):
        entry = entries[i]
        offset = np.int64(load64(arena, entry))
        flags = load32(arena, entry + 8)
        page = find_page(pages.ids, state[PAGES], offset)
        owner = owner_of(pages, page, counts.bases, offset)
        key_at, key_length = entry_key(arena, entry)
        key_digest = key_hash(arena, key_at, key_length, digest0, digest1)
        remove_live(counts, owner, flags, offset, key_digest, digest0, digest1)
        mark_dead(pages, state, counts.stats, page, owner, offset, flags)
        counts.stats[owner, DUE_TOMBSTONES] += 1
        store32(arena, entry + 8, TOMBSTONE | DUE | (flags & SIZE_MASK))


@kernel
def count_removals(
    uncompressed: READ_U8, table: READ_I64X2, rows: int, key_map: KeyMap, dead: DeadBits
) -> tuple[int, int]:
    """Add a removal to the key of each dead record in the chunk's first `rows` rows.

    `dead` are the bits by which the rewrite removes records. Returns (row, status).
    """
    arena, _slots, _state, words = key_map
    range_first = words[RANGE_FIRST]
    range_width = words[RANGE_LAST] - range_first
    for row in range(rows):
        if table[row, ATTRIBUTES] & CONTROL_BIT:
            continue
        position = table[row, RECORDS_POSITION]
        end = table[row, RECORDS_END]
        count = table[row, COUNT]
        if position < 0 or position > end or end > uncompressed.size - SLACK:
            return row, NO_SLACK
        if count < 0 or count > (end - position) // SMALLEST_RECORD_BYTES:
            return row, BAD_COUNT
        for _ in range(count):
            body, body_end, valid = read_bounds(uncompressed, position, end)
            if not valid:
                return row, BAD_RECORD
            _delta, offset_delta, key_at, key_length, _value_at, valid = read_key(
                uncompressed, body, body_end
            )
            if not valid:
                return row, BAD_RECORD
            offset = table[row, BASE_OFFSET] + offset_delta
            if key_length >= 0 and test_bit(dead, offset):
                hashed = key_hash(uncompressed, key_at, key_length, words[SEED0], words[SEED1])
                if hashed - range_first <= range_width:
                    entry = find_entry(key_map, uncompressed, key_at, key_length)
                    if entry >= 0:
                        removals = load8(arena, entry + REMOVALS_AT)
                        store8(arena, entry + REMOVALS_AT, min(removals + 1, MAX_COPIES))
                        flags = load32(arena, entry + 8)
                        if flags & KIND == TOMBSTONE | DUE and np.int64(load64(arena, entry)) == offset:
                            store32(arena, entry + 8, flags | REMOVED)
            position = body_end
    return rows, OK


@kernel
def apply_removals(arena: U8, state: I64, published: bool) -> None:
    """Subtract the counted removals from the copies, or discard them if the rewrite was not `published`.

    A key whose due tombstone was removed becomes vacant.
    """
    entry = np.int64(ARENA_START)
    while entry < state[ARENA_END]:
        removals = load8(arena, entry + REMOVALS_AT)
        if removals > 0:
            store8(arena, entry + REMOVALS_AT, 0)
            flags = load32(arena, entry + 8)
            is_removed = flags & KIND == TOMBSTONE | DUE and flags & REMOVED != 0
            if published:
                copies = load8(arena, entry + COPIES_AT)
                if copies < MAX_COPIES:
                    store8(arena, entry + COPIES_AT, max(copies - removals, 0))
                if is_removed:
                    store64(arena, entry, np.uint64(NO_OFFSET))
                    store32(arena, entry + 8, VACANT)
                    state[VACANCIES] += 1
            elif is_removed:
                store32(arena, entry + 8, flags & ~REMOVED)
        key_at, key_length = entry_key(arena, entry)
        entry = key_at + key_length
