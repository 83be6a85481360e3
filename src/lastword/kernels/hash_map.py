"""The map of hashes: which records of a log are the newest of their key, if the newest records come first.

`entries` (uint64) has two words for each slot: the salted hash of a key (0 is an empty slot), and the digest
hash of the same key, under other seeds. A record whose hash is there is dead, another one is the newest of
its key. No offset is needed: the order of the records decides.

Two keys with one hash are taken for one. So the sum of a segment starts with every record, by its own digest
hash, and a dead one is subtracted with the digest hash of the *entry*. If that is another key's, the sum of
the rewritten file differs, where each record is summed with its own key. Due tombstones are in no sum: the
digest hash of a dead one is compared with the entry's.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import BAD_RECORD, FULL, OK
from lastword.kernels.hashing import NULL_KEY, pair_digest
from lastword.kernels.key_batch import (
    ABORTED,
    DEAD,
    DEAD_KEYLESS,
    DIGEST0,
    DIGEST1,
    DUE,
    KEY_LENGTH,
    NO_HORIZON,
    OFFSET,
    SIZE,
    SIZE_MASK,
    TOMBSTONE,
    KeyBatch,
)
from lastword.kernels.memory import multiply_high, not_negative, prefetch
from lastword.kernels.native import I64, READ_I64, READ_U64, U64, U64X2, inline, kernel
from lastword.kernels.offset_map import (
    ABORTED_RECORDS,
    DEAD_BYTES,
    DEAD_RECORDS,
    DUE_TOMBSTONES,
    KEYLESS,
    MAX_ENTRIES,
    NEXT,
    PREFETCH_DISTANCE,
    PROBES,
    TOMBSTONES,
    TOMBSTONES_WITHOUT_HORIZON,
    USED,
    CountArrays,
)
from lastword.kernels.pages import PAGE_WORDS, find_page

ENTRY_WORDS = 2


@inline
def home_of(hashed, slots):
    """Return the word of `entries` where the search for a hash starts."""
    return ENTRY_WORDS * np.int64(multiply_high(hashed, np.uint64(slots)))


@kernel
def settle_keys(
    batch: KeyBatch,
    segment: int,
    entries: U64,
    state: I64,
    words: READ_U64,
    page_ids: READ_I64,
    bits: U64X2,
    counts: CountArrays,
) -> int:
    """Settle the first state[NEXT] records of a key batch, the last one first.

    All of them are in `segment`, and all that were settled before are newer. Dead records get the flag DEAD,
    and their bits are set in `bits` (a row for each of `page_ids`). Every record is counted for its segment.

    Returns a status. FULL: the entries have no room; the first state[NEXT] records are left. BAD_RECORD: a
    due tombstone has the hash of a newer record of another key.
    """
    hashes, spans, _page_ids, _homes = batch
    _bases, stats, digests = counts
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    slots = entries.size // ENTRY_WORDS
    left = state[NEXT]
    used = state[USED]
    free = state[MAX_ENTRIES] - used
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
                if size & DUE:
                    if entries[at + 1] != key_digest:
                        status = BAD_RECORD
                        break
                elif entries[at + 1] != key_digest:  # else both cancel
                    digest += pair_digest(key_digest, offset, digest0, digest1)
                    digest -= pair_digest(entries[at + 1], offset, digest0, digest1)
            else:
                if free == 0:
                    status = FULL
                    break
                entries[at] = hashed
                entries[at + 1] = key_digest
                free -= 1
                used += 1
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
