"""Paged bitmaps: a bit for each offset, in pages of 2^12 offsets that exist only where records do.

If offsets have no gaps, a page is found without a search. A page costs 16 bytes, and 512 more once a bit of
it is set.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastword.kernels.memory import count_bits
from lastword.kernels.native import BOOLS, I32, READ_I32, READ_I64, READ_U64X2, U64X2, inline, kernel

PAGE_BITS = 12
PAGE_WORDS = 1 << (PAGE_BITS - 6)

_PAGES_STORED = 7  # offset_map.PAGES_STORED: the field of `state` that counts the used rows of `bits`


class DeadBits(NamedTuple):
    """Bitmaps of dead records, as kernels read them.

    Attributes:
        ids: int64; the page numbers, ascending.
        slots: int32; the row of `bits` that holds the bits of a page, -1 while no bit is set.
        bits: uint64[slots, PAGE_WORDS].
    """

    ids: READ_I64
    slots: READ_I32
    bits: READ_U64X2


class Pages(NamedTuple):
    """Bitmaps while they grow: the arrays are longer than the pages in use, which `state` counts.

    Attributes:
        ids, slots, bits: As in `DeadBits`; `bits` has a row for every page that may be stored.
        segments: int32; the segment of the page's first record.
    """

    ids: READ_I64
    slots: I32
    segments: READ_I32
    bits: U64X2


@inline
def lower_page(page_ids, pages, page):
    """Return the index of the first page that is >= `page` (`pages` if there is none)."""
    low = 0
    high = pages
    while low < high:
        middle = (low + high) >> 1
        if page_ids[middle] < page:
            low = middle + 1
        else:
            high = middle
    return low


@inline
def find_page(page_ids, pages, offset):
    """Return the index of the page of an offset that has been registered."""
    page = offset >> PAGE_BITS
    guess = page - page_ids[0]
    if guess < pages and page_ids[guess] == page:
        return guess
    return lower_page(page_ids, pages, page)


@inline
def set_bit(pages, state, page, offset):
    """Set the offset's bit; return False if it was set before."""
    stored = np.int64(pages.slots[page])
    if stored < 0:
        stored = state[_PAGES_STORED]
        state[_PAGES_STORED] = stored + 1
        pages.slots[page] = stored
    place = (offset >> 6) & (PAGE_WORDS - 1)
    bit = np.uint64(1) << np.uint64(offset & 63)
    word = pages.bits[stored, place]
    if word & bit:
        return False
    pages.bits[stored, place] = word | bit
    return True


@inline
def read_word(dead, offset):
    """Return the 64 bits that hold the offset's bit, for `in_word`; 0 for an offset without a page."""
    ids = dead.ids
    pages = ids.size
    if pages == 0:
        return np.uint64(0)
    page = offset >> PAGE_BITS
    guess = page - ids[0]
    if guess < 0:
        return np.uint64(0)
    if guess >= pages or ids[guess] != page:
        guess = lower_page(ids, pages, page)
        if guess == pages or ids[guess] != page:
            return np.uint64(0)
    stored = dead.slots[guess]
    if stored < 0:
        return np.uint64(0)
    return dead.bits[stored, (offset >> 6) & (PAGE_WORDS - 1)]


@inline
def in_word(word, offset):
    """Return whether the offset's bit is set in its word."""
    return (word >> np.uint64(offset & 63)) & np.uint64(1) != np.uint64(0)


@inline
def test_bit(dead, offset):
    """Return whether the offset's bit is set; False for an offset without a page."""
    return in_word(read_word(dead, offset), offset)


@inline
def bits_between(dead, first, last):
    """Count the set bits of the offsets first..last."""
    ids = dead.ids
    pages = ids.size
    if pages == 0 or last < first:
        return 0
    total = 0
    first_page = first >> PAGE_BITS
    last_page = last >> PAGE_BITS
    index = first_page - ids[0]
    if index < 0 or index >= pages or ids[index] != first_page:
        index = lower_page(ids, pages, first_page)
    while index < pages and ids[index] <= last_page:
        stored = dead.slots[index]
        if stored >= 0:
            low = 0
            high = PAGE_WORDS - 1
            if ids[index] == first_page:
                low = (first >> 6) & (PAGE_WORDS - 1)
            if ids[index] == last_page:
                high = (last >> 6) & (PAGE_WORDS - 1)
            for place in range(low, high + 1):
                word = dead.bits[stored, place]
                if ids[index] == first_page and place == low:
                    word = (word >> np.uint64(first & 63)) << np.uint64(first & 63)
                if ids[index] == last_page and place == high:
                    shift = np.uint64(63 - (last & 63))
                    word = (word << shift) >> shift
                total += count_bits(word)
        index += 1
    return total


@kernel
def test_bits(dead: DeadBits, offsets: READ_I64, out: BOOLS) -> None:
    """Set out[i] to whether the bit of offsets[i] is set."""
    for i in range(offsets.size):
        out[i] = test_bit(dead, offsets[i])


@kernel
def count_between(dead: DeadBits, first: int, last: int) -> int:
    """Count the set bits of the offsets first..last."""
    return bits_between(dead, first, last)
