"""The arena of the offset map: one entry for each key that was met, end to end in a block of bytes.

    offset of the newest record   8 bytes
    its bytes on disk and flags   4 bytes (29 bits, UNCLOCKED, DUE, TOMBSTONE)
    copies                        1 byte: records of the key on disk, the dead ones too; sticks at 255
    going                         1 byte: those of them that the rewrite under way leaves out
    key length                    1 byte, or 0xFF and 4 bytes
    key

DUE without TOMBSTONE: the key has no record that counts. It may have copies still, of aborted transactions,
or none at all: then its entry waits to be used again, or to be left out when room is made.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import inline
from lastword.kernels.memory import copy_wide, load8, load32, load64, store8, store32
from lastword.wire import INT64_MAX

ARENA_START = 8  # so that no entry lies at 0, the empty slot
COPIES_AT = 12
GOING_AT = 13
LENGTH_AT = 14
FIXED_BYTES = 15
LONG_KEY = 255
MOST_COPIES = 255

SIZE_MASK = (1 << 29) - 1
UNCLOCKED = 1 << 29  # a tombstone whose batch has no delete horizon
DUE = 1 << 30
TOMBSTONE = 1 << 31
KIND = DUE | TOMBSTONE
VACANT = DUE  # of KIND: no record counts
LEAVING = UNCLOCKED  # of a tombstone that is due: the rewrite under way leaves it out
NO_OFFSET = INT64_MAX  # in a vacant entry


@inline
def entry_bytes(key_length):
    return FIXED_BYTES + key_length + (4 if key_length >= LONG_KEY else 0)


@inline
def entry_key(arena, entry):
    """(key position, key length) of an entry."""
    size = load8(arena, entry + LENGTH_AT)
    if size == LONG_KEY:
        return entry + FIXED_BYTES + 4, load32(arena, entry + FIXED_BYTES)
    return entry + FIXED_BYTES, size


@inline
def write_entry(arena, entry, plain, key_position, key_length):
    """The key, with one copy; the caller stores offset and size. May write 7 bytes past the entry."""
    store8(arena, entry + COPIES_AT, 1)
    store8(arena, entry + GOING_AT, 0)
    key_at = entry + FIXED_BYTES
    if key_length < LONG_KEY:
        store8(arena, entry + LENGTH_AT, key_length)
    else:
        store8(arena, entry + LENGTH_AT, LONG_KEY)
        store32(arena, entry + FIXED_BYTES, key_length)
        key_at += 4
    copy_wide(arena, key_at, plain, key_position, key_length)


@inline
def same_key(arena, entry, plain, key_position, key_length):
    """Are the entry's key and plain[key_position:] the same bytes?"""
    at, size = entry_key(arena, entry)
    if size != key_length:
        return False
    done = 0
    while key_length - done >= 8:
        if load64(arena, at + done) != load64(plain, key_position + done):
            return False
        done += 8
    if done < key_length:
        rest = np.uint64(8 * (8 - (key_length - done)))
        return ((load64(arena, at + done) ^ load64(plain, key_position + done)) << rest) == np.uint64(0)
    return True
