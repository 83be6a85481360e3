"""The map of hashes: which records of a log are the newest of their key, if the newest records come first.

`entries` (uint64) has two words for each slot: the salted hash of a key (0 is an empty slot), and the digest
hash of the same key, under other seeds, of which 63 bits are compared. A record whose hash is there is dead,
another one is the newest of its key. No offset is needed: the order of the records decides.

Two keys with one hash are taken for one. So the sum of a segment starts with every record, by its own digest
hash, and a dead one is subtracted with the digest hash of the *entry*. If that is another key's, the sum of
the rewritten file differs, where each record is summed with its own key. Due tombstones are in no sum: the
digest hash of a dead one is compared with the entry's. So is that of every dead record, if no certificate
follows: the sums would find no other pairs.

The newest records can be listed in the arena of an offset map (`offset_map`), with one copy each. Then the
lowest bit of a digest word is ALONE: the newest record is a tombstone, and no older record of the key was
met.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import BAD_RECORD, FULL, OK
from lastword.kernels.hashing import NULL_KEY, key_hash, pair_digest
from lastword.kernels.key_batch import (
    ABORTED,
    DEAD,
    DEAD_KEYLESS,
    DIGEST0,
    DIGEST1,
    DUE,
    KEY_LENGTH,
    KEY_POSITION,
    NO_HORIZON,
    OFFSET,
    SEED0,
    SEED1,
    SIZE,
    SIZE_MASK,
    TOMBSTONE,
    KeyBatch,
)
from lastword.kernels.memory import load32, multiply_high, not_negative, prefetch, store8, store32, store64
from lastword.kernels.native import I64, READ_I64, READ_U8, READ_U64, U8, U64, U64X2, inline, kernel
from lastword.kernels.offset_map import (
    ABORTED_RECORDS,
    ARENA_END,
    ARENA_LIMIT,
    ARENA_START,
    COPIES_AT,
    DEAD_BYTES,
    DEAD_RECORDS,
    DUE_TOMBSTONES,
    KEYLESS,
    KIND,
    MAX_COPIES,
    MAX_ENTRIES,
    NEXT,
    PREFETCH_DISTANCE,
    PROBES,
    TOMBSTONES,
    TOMBSTONES_WITHOUT_HORIZON,
    USED,
    CountArrays,
    entry_bytes,
    entry_key,
    write_entry,
)
from lastword.kernels.pages import PAGE_WORDS, find_page

ENTRY_WORDS = 2
ALONE = np.uint64(1)
NO_ARENA = -1
"""In state[ARENA_END]: the newest records are not listed, or the arena had too little room for them."""


@inline
def home_of(hashed, slots):
    """Return the word of `entries` where the search for a hash starts."""
    return ENTRY_WORDS * np.int64(multiply_high(hashed, np.uint64(slots)))


@kernel
def settle_keys(
    uncompressed: READ_U8,
    batch: KeyBatch,
    segment: int,
    entries: U64,
    state: I64,
    words: READ_U64,
    page_ids: READ_I64,
    bits: U64X2,
    counts: CountArrays,
    arena: U8,
    certified: bool,
) -> int:
    """Settle the first state[NEXT] records of a key batch, the last one first.

    The last of them is in `segment`, and all that were settled before are newer. Dead records get the flag
    DEAD, and their bits are set in `bits` (a row for each of `page_ids`). Every record is counted for its
    segment.
    The newest record of each key is listed in `arena`, unless state[ARENA_END] is NO_ARENA.

    Returns a status. FULL: the entries have no room; the first state[NEXT] records are left. BAD_RECORD: a
    due tombstone, or any record unless the sums are `certified`, has the hash of a newer record of another
    key.
    """
    hashes, spans, _page_ids, _homes = batch
    bases, stats, digests = counts
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    slots = entries.size // ENTRY_WORDS
    left = state[NEXT]
    used = state[USED]
    free = state[MAX_ENTRIES] - used
    arena_end = state[ARENA_END]
    arena_limit = state[ARENA_LIMIT]
    probes = 0
    dead_records = 0
    dead_bytes = 0
    digest = np.uint64(0)
    status = OK
    for number in range(max(left - PREFETCH_DISTANCE, 0), left):
        prefetch(entries, home_of(max(hashes[0, number], np.uint64(1)), slots))
    while left > 0:
        i = not_negative(left - 1)
        if i >= PREFETCH_DISTANCE:
            prefetch(entries, home_of(max(hashes[0, i - PREFETCH_DISTANCE], np.uint64(1)), slots))
        offset = spans[OFFSET, i]
        size = spans[SIZE, i]
        dead = False
        if offset < bases[segment] and segment > 0:
            stats[segment, DEAD_RECORDS] += dead_records
            stats[segment, DEAD_BYTES] += dead_bytes
            digests[segment] += digest
            dead_records = 0
            dead_bytes = 0
            digest = np.uint64(0)
            while offset < bases[segment] and segment > 0:
                segment -= 1
        if spans[KEY_LENGTH, i] < 0:
            if size & (ABORTED | DEAD_KEYLESS):
                dead = True
                stats[segment, ABORTED_RECORDS if size & ABORTED else KEYLESS] += 1
            else:
                stats[segment, KEYLESS] += 1
                if size & TOMBSTONE:
                    stats[segment, TOMBSTONES] += 1
                digest += pair_digest(NULL_KEY, offset, digest0, digest1)
        else:
            hashed = max(hashes[0, i], np.uint64(1))
            key_digest = hashes[1, i]
            at = not_negative(home_of(hashed, slots))
            probes += 1
            present = entries[at]
            while present != hashed and present != np.uint64(0):
                at += ENTRY_WORDS
                if at == ENTRY_WORDS * slots:
                    at = 0
                probes += 1
                present = entries[at]
            dead = present == hashed
            if dead:
                known = entries[at + 1]
                if known & ALONE:
                    entries[at + 1] = known & ~ALONE
                if known | ALONE != key_digest | ALONE:  # else both cancel
                    if size & DUE or not certified:
                        status = BAD_RECORD
                        break
                    digest += pair_digest(key_digest, offset, digest0, digest1)
                    digest -= pair_digest(known, offset, digest0, digest1)
            else:
                if free == 0:
                    status = FULL
                    break
                alone = ALONE if size & (TOMBSTONE | DUE) == TOMBSTONE else np.uint64(0)
                entries[at] = hashed
                entries[at + 1] = key_digest & ~ALONE | alone
                free -= 1
                used += 1
                if arena_end >= 0:
                    key_length = spans[KEY_LENGTH, i]
                    if entry_bytes(key_length) > arena_limit - arena_end:
                        arena_end = np.int64(NO_ARENA)
                    else:
                        write_entry(arena, arena_end, uncompressed, spans[KEY_POSITION, i], key_length)
                        store64(arena, arena_end, np.uint64(offset))
                        store32(arena, arena_end + 8, size)
                        arena_end += entry_bytes(key_length)
                if size & DUE:
                    dead = True
                    stats[segment, DUE_TOMBSTONES] += 1
                else:
                    if size & TOMBSTONE:
                        stats[segment, TOMBSTONES] += 1
                    if size & NO_HORIZON:
                        stats[segment, TOMBSTONES_WITHOUT_HORIZON] += 1
                    digest += pair_digest(key_digest, offset, digest0, digest1)
        if dead:
            page = find_page(page_ids, page_ids.size, offset)
            bits[page, (offset >> 6) & (PAGE_WORDS - 1)] |= np.uint64(1) << np.uint64(offset & 63)
            spans[SIZE, i] = size | DEAD
            dead_records += 1
            dead_bytes += size & SIZE_MASK
        left = i
    stats[segment, DEAD_RECORDS] += dead_records
    stats[segment, DEAD_BYTES] += dead_bytes
    digests[segment] += digest
    state[NEXT] = left
    state[USED] = used
    state[ARENA_END] = arena_end
    state[PROBES] += probes
    return status


@kernel
def move_entries(entries: READ_U64, larger: U64) -> None:
    """Fill `larger`, which is zeroed and has more slots, with the entries."""
    slots = larger.size // ENTRY_WORDS
    for at in range(0, entries.size, ENTRY_WORDS):
        hashed = entries[at]
        if hashed != np.uint64(0):
            to = home_of(hashed, slots)
            while larger[to] != np.uint64(0):
                to += ENTRY_WORDS
                if to == ENTRY_WORDS * slots:
                    to = 0
            larger[to] = hashed
            larger[to + 1] = entries[at + 1]


@kernel
def note_older_copies(arena: U8, state: READ_I64, entries: READ_U64, words: READ_U64) -> None:
    """Set the copies of each tombstone in the arena of which an older record was met to MAX_COPIES."""
    slots = entries.size // ENTRY_WORDS
    entry = np.int64(ARENA_START)
    while entry < state[ARENA_END]:
        key_at, key_length = entry_key(arena, entry)
        if load32(arena, entry + 8) & KIND == TOMBSTONE:
            hashed = max(key_hash(arena, key_at, key_length, words[SEED0], words[SEED1]), np.uint64(1))
            at = home_of(hashed, slots)
            while entries[at] != hashed:
                at += ENTRY_WORDS
                if at == ENTRY_WORDS * slots:
                    at = 0
            if entries[at + 1] & ALONE == np.uint64(0):
                store8(arena, entry + COPIES_AT, MAX_COPIES)
        entry = key_at + key_length
