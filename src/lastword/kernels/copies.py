"""Copies of keys on disk, and tombstones: what the arena stores of them, and how a rewrite changes it.

A rewrite that removes dead records is counted in two steps: `count_removals` while the rewrite reads its
sources, and `apply_removals` when its output has replaced them or was discarded.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import BAD_COUNT, BAD_RECORD, NO_SLACK, OK, SLACK, kernel
from lastword.kernels.columns import read_bounds, read_key
from lastword.kernels.hashing import key_hash
from lastword.kernels.key_batch import (
    DIGEST0,
    DIGEST1,
    DUE,
    RANGE_FIRST,
    RANGE_LAST,
    SEED0,
    SEED1,
    SIZE_MASK,
    TOMBSTONE,
)
from lastword.kernels.memory import load8, load32, load64, store8, store32, store64
from lastword.kernels.offset_map import (
    ARENA_END,
    ARENA_START,
    COPIES_AT,
    DUE_TOMBSTONES,
    KIND,
    MAX_COPIES,
    NO_OFFSET,
    PAGES,
    REMOVALS_AT,
    REMOVED,
    VACANCIES,
    VACANT,
    entry_key,
    find_entry,
    mark_dead,
    owner_of,
    remove_live,
)
from lastword.kernels.pages import find_page, test_bit
from lastword.kernels.table import ATTRIBUTES, BASE_OFFSET, COUNT, RECORDS_END, RECORDS_POSITION
from lastword.wire import CONTROL_BIT, SMALLEST_RECORD_BYTES


@kernel
def list_tombstones(arena, state, entries, offsets, copies, size_bytes):
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
def mark_due(key_map, entries, pages, counts):
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
def count_removals(uncompressed, table, rows, key_map, dead):
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
def apply_removals(arena, state, published):
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
