"""Dead bitmaps: a bit for each offset, set if the record there is dead."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lastword.kernels.offset_map import PAGES, PAGES_STORED
from lastword.kernels.pages import PAGE_BITS, PAGE_WORDS, DeadBits, Pages, count_between, test_bits
from lastword.kernels.repack import mark_dead_rows

_FIRST_PAGES = 1024
_PAGES_PER_STEP = 1024


class DeadBitmaps:
    """Bits over the offsets of a whole log, in pages of 4096 offsets that exist only where records are.

    `page_ids` is int64 ascending, `page_slots` int32 (-1: no bit set), `page_bits` uint64[slots, 64];
    kernels take them as `arrays`. A page costs 16 bytes, and 512 more once a bit of it is set. The bitmaps
    can be pickled, so a part (`window`) can be sent to a task.
    """

    def __init__(
        self, page_ids: NDArray[np.int64], page_slots: NDArray[np.int32], page_bits: NDArray[np.uint64]
    ) -> None:
        self.page_ids = page_ids
        self.page_slots = page_slots
        self.page_bits = page_bits

    @classmethod
    def of(cls, offsets: NDArray[np.int64] | list[int]) -> DeadBitmaps:
        """Return bitmaps with exactly these bits set."""
        values = np.sort(np.asarray(offsets, np.int64))
        words = values >> 6
        first = np.flatnonzero(np.diff(words, prepend=-1))
        words, pages = words[first], words[first] >> PAGE_BITS - 6
        new = np.diff(pages, prepend=-1) != 0
        bits = np.zeros((max(int(new.sum()), 1), PAGE_WORDS), np.uint64)
        if first.size:
            ones = np.left_shift(np.uint64(1), (values & 63).astype(np.uint64))
            bits[np.cumsum(new) - 1, words & (PAGE_WORDS - 1)] = np.bitwise_or.reduceat(ones, first)
        return cls(pages[new], np.arange(int(new.sum()), dtype=np.int32), bits)

    @property
    def arrays(self) -> DeadBits:
        """Return the bitmaps for kernels."""
        return DeadBits(self.page_ids, self.page_slots, self.page_bits)

    def mask(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each offset whether its bit is set; False for an offset without a record."""
        out = np.zeros(offsets.size, np.bool_)
        test_bits(self.arrays, np.ascontiguousarray(offsets, np.int64), out)
        return out

    def count(self, first_offset: int, next_offset: int) -> int:
        """Count the dead records in [first_offset, next_offset)."""
        return int(count_between(self.arrays, first_offset, next_offset - 1))

    def wholly_dead(self, table: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return 1 for each batch of a table whose records are all dead (magic 2), else 0."""
        marks = np.empty(table.shape[0], np.uint8)
        mark_dead_rows(table, table.shape[0], self.arrays, marks)
        return marks

    def offsets(self) -> NDArray[np.int64]:
        """Return the offsets whose bits are set, ascending. Takes 8 bytes for each offset, and some MiB."""
        stored = np.flatnonzero(self.page_slots >= 0)
        offsets = [np.empty(0, np.int64)]
        for first in range(0, stored.size, _PAGES_PER_STEP):
            pages = stored[first : first + _PAGES_PER_STEP]
            bits = self.page_bits[self.page_slots[pages]].view(np.uint8)
            page, bit = np.nonzero(np.unpackbits(bits, axis=1, bitorder="little"))
            offsets.append((self.page_ids[pages][page] << PAGE_BITS) + bit)
        return np.concatenate(offsets)

    def window(self, first_offset: int, next_offset: int) -> DeadBitmaps:
        """Return a copy of the pages that overlap [first_offset, next_offset)."""
        low = int(np.searchsorted(self.page_ids, first_offset >> PAGE_BITS))
        high = int(np.searchsorted(self.page_ids, (next_offset - 1) >> PAGE_BITS, side="right"))
        slots = self.page_slots[low:high].copy()
        stored = slots >= 0
        bits = self.page_bits[slots[stored]] if stored.any() else np.zeros((1, PAGE_WORDS), np.uint64)
        slots[stored] = np.arange(int(stored.sum()), dtype=np.int32)
        return DeadBitmaps(self.page_ids[low:high].copy(), slots, bits)


def union(parts: Iterable[DeadBitmaps]) -> DeadBitmaps:
    """Return bitmaps with the bits of all parts, each of which stores a row for each of its pages."""
    parts = [part for part in parts if part.page_ids.size]
    if not parts:
        return DeadBitmaps.of([])
    page_ids = np.unique(np.concatenate([part.page_ids for part in parts]))
    bits = np.zeros((page_ids.size, PAGE_WORDS), np.uint64)
    for part in parts:
        bits[np.searchsorted(page_ids, part.page_ids)] |= part.page_bits
    return DeadBitmaps(page_ids, np.arange(page_ids.size, dtype=np.int32), bits)


class PageStore:
    """The growing arrays of bitmaps while they are made.

    `page_bits` has a row for every page that could be stored; the system allocates only rows that are
    written. The numbers of pages and of rows in use are fields of `state`, which the kernels share.

    Args:
        state: The state of the offset map.
        bitmaps: Pages to start with; the caller then fills `page_segments`.
    """

    def __init__(self, state: NDArray[np.int64], bitmaps: DeadBitmaps | None = None) -> None:
        known = 0 if bitmaps is None else bitmaps.page_ids.size
        stored = 0 if bitmaps is None else int((bitmaps.page_slots >= 0).sum())
        size = max(known, _FIRST_PAGES)
        self._state = state
        self._free_rows = 0  # rows that a page has released; the others belong to a page each
        self.page_ids = np.empty(size, np.int64)
        self.page_slots = np.empty(size, np.int32)
        self.page_segments = np.zeros(size, np.int32)
        self.page_bits = np.zeros((size, PAGE_WORDS), np.uint64)
        if bitmaps is not None:
            self.page_ids[:known] = bitmaps.page_ids
            self.page_slots[:known] = bitmaps.page_slots
            self.page_bits[:stored] = bitmaps.page_bits[:stored]
        state[PAGES] = known
        state[PAGES_STORED] = stored

    @property
    def pages(self) -> int:
        """Return the number of registered pages."""
        return int(self._state[PAGES])

    @property
    def stored(self) -> int:
        """Return the number of rows of bits in use."""
        return int(self._state[PAGES_STORED])

    @property
    def arrays(self) -> Pages:
        """Return the pages for kernels; valid until the store grows."""
        return Pages(self.page_ids, self.page_slots, self.page_segments, self.page_bits)

    @property
    def size_bytes(self) -> int:
        """Return the memory that is allocated for the pages."""
        return 16 * self.pages + 8 * PAGE_WORDS * self.stored

    def register(self, page_ids: NDArray[np.int64], segments: NDArray[np.int32] | int) -> None:
        """Register pages, ascending, with the segment of the first record of each."""
        pages = self.pages
        if pages and page_ids.size and page_ids[0] <= self.page_ids[pages - 1]:
            new = page_ids > self.page_ids[pages - 1]
            segments = np.broadcast_to(segments, page_ids.shape)[new]
            page_ids = page_ids[new]
        if not page_ids.size:
            return
        end = pages + page_ids.size
        if end + self._free_rows > self.page_ids.size:
            self.compact()
        if end > self.page_ids.size:
            self._grow(end)
        self.page_ids[pages:end] = page_ids
        self.page_slots[pages:end] = -1
        self.page_segments[pages:end] = segments
        self._state[PAGES] = end

    def clear(self, first_offset: int, next_offset: int) -> None:
        """Unset the bits of a range.

        The rows of pages without a bit are freed once they are half of all rows, or once a kernel, which
        takes a new row for each page without one, could need more rows than there are.
        """
        ids = self.page_ids[: self.pages]
        low = int(np.searchsorted(ids, first_offset >> PAGE_BITS))
        high = int(np.searchsorted(ids, (next_offset - 1) >> PAGE_BITS, side="right"))
        for page in range(low, high) if next_offset > first_offset else ():
            row = int(self.page_slots[page])
            if row < 0:
                continue
            start = int(ids[page]) << PAGE_BITS
            self.page_bits[row] &= ~_range_mask(first_offset - start, next_offset - start)
            if not self.page_bits[row].any():
                self.page_slots[page] = -1
                self._free_rows += 1
        if self.stored <= 2 * self._free_rows or self.pages + self._free_rows > self.page_ids.size:
            self.compact()

    def unset(self, offsets: NDArray[np.int64]) -> None:
        """Unset these bits, which are set."""
        rows = self.page_slots[np.searchsorted(self.page_ids[: self.pages], offsets >> PAGE_BITS)]
        bits = np.left_shift(np.uint64(1), (offsets & 63).astype(np.uint64))
        np.bitwise_and.at(self.page_bits, (rows, (offsets >> 6) & (PAGE_WORDS - 1)), ~bits)

    def compact(self) -> None:
        """Remove the rows of bits that no page refers to."""
        used = np.flatnonzero(self.page_slots[: self.pages] >= 0)
        self._free_rows = 0
        if used.size < self.stored:
            bits = np.zeros(self.page_bits.shape, np.uint64)  # `zeros_like` would touch every row
            bits[: used.size] = self.page_bits[self.page_slots[used]]
            self.page_slots[used] = np.arange(used.size, dtype=np.int32)
            self.page_bits = bits
            self._state[PAGES_STORED] = used.size

    def shrink(self) -> None:
        """Release the room that a store of few pages began with; the next page makes it again."""
        if 2 * self.pages > self.page_ids.size or self.page_ids.size > _FIRST_PAGES:
            return
        self.compact()  # a page without a row needs room for one
        size = max(self.pages, 1)
        for name in ("page_ids", "page_slots", "page_segments", "page_bits"):
            setattr(self, name, getattr(self, name)[:size].copy())

    def bitmaps(self) -> DeadBitmaps:
        """Return the bits without a copy; valid until the next change."""
        pages = self.pages
        return DeadBitmaps(self.page_ids[:pages], self.page_slots[:pages], self.page_bits)

    def finish(self) -> DeadBitmaps:
        """Return a copy of the bits."""
        return DeadBitmaps(
            self.page_ids[: self.pages].copy(),
            self.page_slots[: self.pages].copy(),
            self.page_bits[: max(self.stored, 1)].copy(),
        )

    def _grow(self, pages: int) -> None:
        known, stored = self.pages, self.stored
        size = max(2 * self.page_ids.size, pages, _FIRST_PAGES)
        for name in ("page_ids", "page_slots", "page_segments"):
            old = getattr(self, name)
            new = np.empty(size, old.dtype)
            new[:known] = old[:known]
            setattr(self, name, new)
        bits = np.zeros((size, PAGE_WORDS), np.uint64)
        bits[:stored] = self.page_bits[:stored]
        self.page_bits = bits


def check_pages(bits: DeadBitmaps, segments: NDArray[np.int32], rows: int) -> None:
    """Check what kernels rely on: ValueError for pages out of order, or with invalid rows."""
    ids, slots = bits.page_ids, bits.page_slots
    valid = ids.shape == slots.shape == segments.shape and bits.page_bits.ndim == 2
    valid = valid and not (ids[1:] <= ids[:-1]).any() and bits.page_bits.shape[1:] == (64,)
    if valid and ids.size:
        valid = bool(segments.min() >= 0 and segments.max() < rows and slots.max() < bits.page_bits.shape[0])
    if not valid:
        raise ValueError("the pages of a resolution do not fit together")


def _range_mask(first: int, end: int) -> NDArray[np.uint64]:
    """Return the words of a page with the bits [first, end) set; either may be outside the page."""
    bits = np.zeros(1 << PAGE_BITS, np.uint8)
    bits[max(first, 0) : max(end, 0)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint64)
