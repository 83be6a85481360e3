"""The map of hashes: an offset map without the bytes of keys, for a scan whose result is certified.

`entries` (uint64) has two words for each slot: the salted hash of a key (0 is an empty slot), and a word with
the key's newest record:

    offset minus that of the log's first record   40 bits
    NO_HORIZON, DUE, TOMBSTONE                    3 bits
    its bytes on disk                             21 bits

Two keys with one hash are taken for one. Then the older record is subtracted from the sum of its segment with
the digest of the other key, so that the certificate of the rewrite refuses the segment. Due tombstones are in
no sum: a due tombstone is listed with its digest, and if it is superseded, with the digest of the newer key.

Records wait in bins, divided by hash: the slots of a bin are neighbours. So the slots that one `insert_rows`
reads and writes stay in the processor's cache, whatever the size of the map. All records of a key go through
the same bin, in their order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastword.kernels import BAD_LENGTH, BAD_OFFSET, FULL, OK
from lastword.kernels.hashing import NULL_KEY, pair_digest
from lastword.kernels.key_batch import (
    ABORTED,
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
from lastword.kernels.native import I64, READ_U64, U64, U64X2, inline, kernel
from lastword.kernels.offset_map import (
    ABORTED_RECORDS,
    DUE_TOMBSTONES,
    KEYLESS,
    MAX_ENTRIES,
    NEXT,
    PAGES,
    PROBES,
    TOMBSTONES,
    TOMBSTONES_WITHOUT_HORIZON,
    USED,
    CountArrays,
    end_of_segment,
    mark_dead,
    owner_of,
    remove_live,
)
from lastword.kernels.pages import PAGE_BITS, PAGE_WORDS, Pages, find_page

ROW_WORDS = 3  # of a row in a bin: hash, digest hash, word of the entry
ENTRY_WORDS = 2
BIN_BITS = 6
BINS = 1 << BIN_BITS
OFFSET_BITS = 40
SIZE_BITS = 21
MAX_SIZE = (1 << SIZE_BITS) - 1
MAX_OFFSET = (1 << OFFSET_BITS) - 1
_FLAGS_SHIFT = 29 - SIZE_BITS  # of NO_HORIZON, DUE and TOMBSTONE between a size of the span and a word
_WORD_FLAGS = (NO_HORIZON | DUE | TOMBSTONE) >> _FLAGS_SHIFT
_OFFSET_SHIFT = np.uint64(64 - OFFSET_BITS)
_BIN_SHIFT = np.uint64(64 - BIN_BITS)

# Fields of `listed`, int64: the rows in use.
DUE_ROWS = 0
SUPERSEDED_ROWS = 1
LISTED_FIELDS = 2


class Bins(NamedTuple):
    """Records that wait for the map.

    Attributes:
        rows: uint64[BINS, ROW_WORDS * n]; n rows at most in each bin.
        ends: int64[BINS]; the words in use.
    """

    rows: U64X2
    ends: I64


class DueList(NamedTuple):
    """Due tombstones, with rows of (offset, digest hash); the caller gives room.

    Attributes:
        due: uint64[n, 2]; every due tombstone, with the digest of its own key.
        superseded: uint64[n, 2]; those that a newer record superseded, with the digest of that record's key.
        listed: int64[LISTED_FIELDS].
    """

    due: U64X2
    superseded: U64X2
    listed: I64


PREFETCH_DISTANCE = 16


@inline
def list_due(rows, listed, field, offset, key_digest):
    """Append a row to a list of due tombstones."""
    row = listed[field]
    rows[row, 0] = np.uint64(offset)
    rows[row, 1] = key_digest
    listed[field] = row + 1


@kernel
def collect_keys(
    batch: KeyBatch,
    filled: int,
    segment: int,
    first_offset: int,
    bins: Bins,
    due: DueList,
    state: I64,
    words: READ_U64,
    pages: Pages,
    counts: CountArrays,
) -> tuple[int, int]:
    """Append the first `filled` records of a key batch to their bins, from state[NEXT] on.

    What depends on the record alone is done here: its digest is added to the sum of its segment, and records
    that are dead from the start are marked. `segment` and the pages are as for `offset_map.insert_keys`.

    Returns (bin, status). FULL: the bin has no room for record state[NEXT]. BAD_LENGTH: that record has an
    offset or a size that does not fit an entry.
    """
    hashes, spans, _page_ids, _homes = batch
    rows, ends = bins
    bases, stats, digests = counts
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    known_pages = state[PAGES]
    room = rows.shape[1]
    digest = np.uint64(0)
    segment_end = end_of_segment(bases, segment)
    for number in range(state[NEXT], filled):
        i = not_negative(number)
        segment = not_negative(segment)
        offset = spans[OFFSET, i]
        size = spans[SIZE, i]
        if offset >= segment_end:
            digests[segment] += digest
            digest = np.uint64(0)
            while offset >= segment_end:
                segment += 1
                segment_end = end_of_segment(bases, segment)
        if spans[KEY_LENGTH, i] < 0:
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
        relative = offset - first_offset
        if relative < 0 or relative > MAX_OFFSET or size & SIZE_MASK > MAX_SIZE:
            state[NEXT] = i
            digests[segment] += digest
            return 0, BAD_LENGTH
        hashed = hashes[0, i]
        key_digest = hashes[1, i]
        place = np.int64(hashed >> _BIN_SHIFT)
        end = not_negative(ends[place])
        if end > room - ROW_WORDS:
            state[NEXT] = i
            digests[segment] += digest
            return place, FULL
        flags = (size >> _FLAGS_SHIFT) & _WORD_FLAGS
        rows[place, end] = max(hashed, np.uint64(1))
        rows[place, end + 1] = key_digest
        rows[place, end + 2] = np.uint64(relative) << _OFFSET_SHIFT | np.uint64(flags | (size & MAX_SIZE))
        ends[place] = end + ROW_WORDS
        if size & DUE:
            page = find_page(pages.ids, known_pages, offset)
            mark_dead(pages, state, stats, page, segment, offset, size)
            stats[segment, DUE_TOMBSTONES] += 1
            list_due(due.due, due.listed, DUE_ROWS, offset, key_digest)
        else:
            if size & TOMBSTONE:
                stats[segment, TOMBSTONES] += 1
            if size & NO_HORIZON:
                stats[segment, TOMBSTONES_WITHOUT_HORIZON] += 1
            digest += pair_digest(key_digest, offset, digest0, digest1)
    digests[segment] += digest
    state[NEXT] = filled
    return 0, OK


@inline
def prefetch_old_bit(rows, place, at, entries, slots, first_offset, state, pages):
    """Prefetch the bit of the record that the row at `at` probably supersedes."""
    slot = np.int64(multiply_high(rows[place, at], np.uint64(slots)))
    if entries[ENTRY_WORDS * slot] == rows[place, at]:
        offset = first_offset + np.int64(entries[ENTRY_WORDS * slot + 1] >> _OFFSET_SHIFT)
        page = (offset >> PAGE_BITS) - pages.ids[0]
        if 0 <= page < state[PAGES]:  # exact for a log without gaps, else a guess
            stored = np.int64(pages.slots[page])
            if stored >= 0:
                prefetch(pages.bits, stored * PAGE_WORDS + ((offset >> 6) & (PAGE_WORDS - 1)))


@kernel
def insert_rows(
    bins: Bins,
    place: int,
    first_offset: int,
    entries: U64,
    due: DueList,
    state: I64,
    words: READ_U64,
    pages: Pages,
    counts: CountArrays,
) -> int:
    """Insert the rows of a bin, from word state[NEXT] on, and empty the bin.

    A newer record of a hash supersedes the older one, as in `offset_map.insert_keys`. Returns OK, FULL or
    BAD_OFFSET; after FULL, state[NEXT] is the row that was not inserted.
    """
    rows, ends = bins
    bases, stats, _digests = counts
    digest0 = words[DIGEST0]
    digest1 = words[DIGEST1]
    known_pages = state[PAGES]
    slots = entries.size // ENTRY_WORDS
    max_entries = state[MAX_ENTRIES]
    used = state[USED]
    end = ends[place]
    start = state[NEXT]
    near = PREFETCH_DISTANCE * ROW_WORDS
    probes = 0
    for at in range(start, min(start + 2 * near, end), ROW_WORDS):
        prefetch(entries, ENTRY_WORDS * np.int64(multiply_high(rows[place, at], np.uint64(slots))))
    for number in range(start, end, ROW_WORDS):
        at = not_negative(number)
        if at + 2 * near < end:
            home = np.int64(multiply_high(rows[place, at + 2 * near], np.uint64(slots)))
            prefetch(entries, ENTRY_WORDS * home)
        if at + near < end:
            prefetch_old_bit(rows, place, at + near, entries, slots, first_offset, state, pages)
        hashed = rows[place, at]
        word = rows[place, at + 2]
        slot = not_negative(np.int64(multiply_high(hashed, np.uint64(slots))))
        probes += 1
        present = entries[ENTRY_WORDS * slot]
        while present != hashed and present != np.uint64(0):
            slot += 1
            if slot == slots:
                slot = 0
            probes += 1
            present = entries[ENTRY_WORDS * slot]
        if present == hashed:
            before = entries[ENTRY_WORDS * slot + 1]
            if before >= word:
                return BAD_OFFSET
            old = first_offset + np.int64(before >> _OFFSET_SHIFT)
            flags = (np.int64(before) & _WORD_FLAGS) << _FLAGS_SHIFT
            page = find_page(pages.ids, known_pages, old)
            owner = not_negative(owner_of(pages, page, bases, old))
            key_digest = rows[place, at + 1]
            mark_dead(pages, state, stats, page, owner, old, np.int64(before) & MAX_SIZE)
            remove_live(counts, owner, flags, old, key_digest, digest0, digest1)
            if flags & DUE:
                list_due(due.superseded, due.listed, SUPERSEDED_ROWS, old, key_digest)
        else:
            if used >= max_entries:
                state[NEXT] = at
                state[USED] = used
                state[PROBES] += probes
                return FULL
            entries[ENTRY_WORDS * slot] = hashed
            used += 1
        entries[ENTRY_WORDS * slot + 1] = word
    state[USED] = used
    state[PROBES] += probes
    state[NEXT] = 0
    ends[place] = 0
    return OK


@kernel
def move_entries(entries: READ_U64, larger: U64) -> None:
    """Fill `larger`, which is zeroed and has more slots, with the entries."""
    slots = larger.size // ENTRY_WORDS
    for at in range(0, entries.size, ENTRY_WORDS):
        hashed = entries[at]
        if hashed != np.uint64(0):
            slot = np.int64(multiply_high(hashed, np.uint64(slots)))
            while larger[ENTRY_WORDS * slot] != np.uint64(0):
                slot += 1
                if slot == slots:
                    slot = 0
            larger[ENTRY_WORDS * slot] = hashed
            larger[ENTRY_WORDS * slot + 1] = entries[at + 1]
