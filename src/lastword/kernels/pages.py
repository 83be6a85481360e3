"""Paged bitmaps: one bit for an offset, in pages of 2^12 offsets that exist only where records do.

`page_ids` (int64) are the page numbers, ascending; `page_slots` (int32) says which row of `page_bits`
(uint64[slots, PAGE_WORDS]) holds a page's bits, -1 while none is set; `page_segments` (int32) is the
segment of the page's first record. Dense offsets are found without a search; a page costs 512 bytes once a
bit of it is set, 16 before.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import inline, kernel
from lastword.kernels.memory import count_bits

PAGE_BITS = 12
PAGE_WORDS = 1 << (PAGE_BITS - 6)

_PAGES_STORED = 7  # offset_map.PAGES_STORED: the field of `state` that counts the used rows of page_bits


@inline
def lower_page(page_ids, pages, page):
    """Index of the first page that is >= `page` (`pages` if there is none)."""
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
    """Index of the page of an offset that has been registered."""
    page = offset >> PAGE_BITS
    guess = page - page_ids[0]
    if guess < pages and page_ids[guess] == page:
        return guess
    return lower_page(page_ids, pages, page)


@inline
def set_bit(page_slots, page_bits, state, page, offset):
    """Set the offset's bit; False when it was set before. `page_bits` has a row for every registered page."""
    stored = np.int64(page_slots[page])
    if stored < 0:
        stored = state[_PAGES_STORED]
        state[_PAGES_STORED] = stored + 1
        page_slots[page] = stored
    place = (offset >> 6) & (PAGE_WORDS - 1)
    bit = np.uint64(1) << np.uint64(offset & 63)
    word = page_bits[stored, place]
    if word & bit:
        return False
    page_bits[stored, place] = word | bit
    return True


@inline
def test_bit(page_ids, pages, page_slots, page_bits, offset):
    """Is the offset's bit set? False too for an offset that no page covers."""
    if pages == 0:
        return False
    page = offset >> PAGE_BITS
    guess = page - page_ids[0]
    if guess < 0:
        return False
    if guess >= pages or page_ids[guess] != page:
        guess = lower_page(page_ids, pages, page)
        if guess == pages or page_ids[guess] != page:
            return False
    stored = page_slots[guess]
    if stored < 0:
        return False
    word = page_bits[stored, (offset >> 6) & (PAGE_WORDS - 1)]
    return (word >> np.uint64(offset & 63)) & np.uint64(1) != np.uint64(0)


@inline
def bits_between(page_ids, pages, page_slots, page_bits, first, last):
    """How many bits of the offsets first..last are set."""
    if pages == 0 or last < first:
        return 0
    total = 0
    first_page = first >> PAGE_BITS
    last_page = last >> PAGE_BITS
    index = first_page - page_ids[0]
    if index < 0 or index >= pages or page_ids[index] != first_page:
        index = lower_page(page_ids, pages, first_page)
    while index < pages and page_ids[index] <= last_page:
        stored = page_slots[index]
        if stored >= 0:
            low = 0
            high = PAGE_WORDS - 1
            if page_ids[index] == first_page:
                low = (first >> 6) & (PAGE_WORDS - 1)
            if page_ids[index] == last_page:
                high = (last >> 6) & (PAGE_WORDS - 1)
            for place in range(low, high + 1):
                word = page_bits[stored, place]
                if page_ids[index] == first_page and place == low:
                    word = (word >> np.uint64(first & 63)) << np.uint64(first & 63)
                if page_ids[index] == last_page and place == high:
                    shift = np.uint64(63 - (last & 63))
                    word = (word << shift) >> shift
                total += count_bits(word)
        index += 1
    return total


@kernel
def test_bits(page_ids, page_slots, page_bits, offsets, out):
    """out[i] = is the bit of offsets[i] set."""
    for i in range(offsets.size):
        out[i] = test_bit(page_ids, page_ids.size, page_slots, page_bits, offsets[i])


@kernel
def count_between(page_ids, page_slots, page_bits, first, last):
    """How many bits of the offsets first..last are set."""
    return bits_between(page_ids, page_ids.size, page_slots, page_bits, first, last)
