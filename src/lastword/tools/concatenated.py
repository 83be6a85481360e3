"""Partitions concatenated to one log, so that one key map finds the keys that are in several of them.

                         P0         P1         P2
    forwards    a key's newest record in P0 is dead there if P1 or P2 has the key, in P1 if P2 has it
    backwards   (P2, P1, P0)        in P2 if P1 or P0 has it, in P1 if P0 has it

A record that is its key's newest in its partition, alive forwards and dead backwards, is the last of a key
that lies in several, and each such key has exactly one. Dead either way means that another partition has the
key too. Both are counts of bits; no key is kept but in the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lastword.kernels import table as fields
from lastword.kernels.pages import PAGE_BITS
from lastword.partition.outcomes import Outcomes
from lastword.partition.view import PartitionView
from lastword.records.chunk import Chunk
from lastword.resolve import DeadBitmaps, Resolution
from lastword.segment.segment import Segment

_BLOCK_PAGES = 1024


class ConcatenatedLog:
    """Partitions as one log: the offsets of each are shifted above those of the previous partition, by whole
    pages of bits."""

    def __init__(self, views: Sequence[PartitionView]) -> None:
        self._views = views
        self._shifts: list[int] = []
        self._starts: list[int] = []
        self._outcomes = [Outcomes(view, view.log_end) for view in views]
        self.sources: list[_ShiftedSegment] = []
        page = 1 << PAGE_BITS
        cursor = 0
        for view in views:
            first = view.segments[0].base_offset // page * page if view.segments else 0
            end = max((segment.next_offset for segment in view.segments), default=0)
            self._starts.append(cursor)
            self._shifts.append(cursor - first)
            self.sources += [_ShiftedSegment(segment, cursor - first) for segment in view.segments]
            cursor += -(-(end - first) // page) * page + page

    def fates(
        self,
        attributes: NDArray[np.int64],
        producer_ids: NDArray[np.int64],
        base_offsets: NDArray[np.int64],
        last_offsets: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        """Return the outcomes of the batches of one chunk, which belong to one partition."""
        i = int(np.searchsorted(self._starts, base_offsets[0], side="right")) - 1
        shift = self._shifts[i]
        return self._outcomes[i].fates(attributes, producer_ids, base_offsets - shift, last_offsets - shift)

    def bits(self, i: int, resolution: Resolution) -> DeadBitmaps:
        """Return the dead bitmaps of partition `i`."""
        segments = self._views[i].segments
        if not segments:
            return resolution.dead.window(0, 0)
        first, end = segments[0].base_offset, max(segment.next_offset for segment in segments)
        return resolution.dead.window(first + self._shifts[i], max(end, first + 1) + self._shifts[i])


class _ShiftedSegment:
    """A segment whose offsets are `move` higher."""

    def __init__(self, segment: Segment, shift: int) -> None:
        self._segment = segment
        self._shift = shift
        self.base_offset, self.next_offset = segment.base_offset + shift, segment.next_offset + shift
        self.size, self.file = segment.size, segment.file

    def chunk_reader(self, **options: object) -> Iterator[Chunk]:
        for chunk in self._segment.chunk_reader(**options):  # type: ignore[arg-type]  # passed on as they came
            table = chunk.table.copy()
            table[:, fields.BASE_OFFSET] += self._shift
            table[:, fields.LAST_OFFSET] += self._shift
            yield Chunk(chunk.raw, chunk.uncompressed, table, chunk.file, chunk.scratch)


def shared_keys(own: DeadBitmaps, forward: DeadBitmaps, backward: DeadBitmaps) -> tuple[int, int]:
    """Count the keys of a partition that are also in another one, and those of them whose last partition it
    is."""
    if not (own.page_ids.size == forward.page_ids.size == backward.page_ids.size):
        raise AssertionError("other pages than before")
    shared = last = 0
    for first in range(0, own.page_ids.size, _BLOCK_PAGES):
        block = slice(first, first + _BLOCK_PAGES)
        dead, after, before = (_words(bitmaps, block) for bitmaps in (own, forward, backward))
        shared += _ones((after | before) & ~dead)
        last += _ones(before & ~after)
    return shared, last


def _words(bits: DeadBitmaps, block: slice) -> NDArray[np.uint64]:
    slots = bits.page_slots[block]
    return np.where((slots >= 0)[:, None], bits.page_bits[np.maximum(slots, 0)], np.uint64(0))


def _ones(words: NDArray[np.uint64]) -> int:
    return int(np.unpackbits(words.view(np.uint8)).sum(dtype=np.int64))
