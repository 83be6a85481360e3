"""Partitions as one log, so that one key map tells which keys lie in several of them.

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


class InARow:
    """Partitions as one log: the offsets of each are moved up behind those of the one before, by whole pages
    of bits."""

    def __init__(self, views: Sequence[PartitionView]) -> None:
        self._views = views
        self._moves: list[int] = []
        self._starts: list[int] = []
        self._outcomes = [Outcomes(view, view.log_end) for view in views]
        self.sources: list[_Moved] = []
        page = 1 << PAGE_BITS
        cursor = 0
        for view in views:
            first = view.segments[0].base_offset // page * page if view.segments else 0
            end = max((one.next_offset for one in view.segments), default=0)
            self._starts.append(cursor)
            self._moves.append(cursor - first)
            self.sources += [_Moved(segment, cursor - first) for segment in view.segments]
            cursor += -(-(end - first) // page) * page + page

    def fates(
        self,
        attributes: NDArray[np.int64],
        producer_ids: NDArray[np.int64],
        base_offsets: NDArray[np.int64],
        last_offsets: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        """The rows of one chunk, so of one partition."""
        i = int(np.searchsorted(self._starts, base_offsets[0], side="right")) - 1
        move = self._moves[i]
        return self._outcomes[i].fates(attributes, producer_ids, base_offsets - move, last_offsets - move)

    def bits(self, i: int, resolution: Resolution) -> DeadBitmaps:
        """The pages of partition `i`."""
        segments = self._views[i].segments
        if not segments:
            return resolution.dead.window(0, 0)
        first, end = segments[0].base_offset, max(one.next_offset for one in segments)
        return resolution.dead.window(first + self._moves[i], max(end, first + 1) + self._moves[i])


class _Moved:
    """A segment whose offsets are `move` higher."""

    def __init__(self, segment: Segment, move: int) -> None:
        self._segment = segment
        self._move = move
        self.base_offset, self.next_offset = segment.base_offset + move, segment.next_offset + move
        self.size, self.file = segment.size, segment.file

    def chunk_reader(self, **how: object) -> Iterator[Chunk]:
        for chunk in self._segment.chunk_reader(**how):  # type: ignore[arg-type]  # passed on as they came
            table = chunk.table.copy()
            table[:, fields.BASE_OFFSET] += self._move
            table[:, fields.LAST_OFFSET] += self._move
            yield Chunk(chunk.raw, chunk.plain, table, chunk.file, chunk.scratch)


def shared_keys(own: DeadBitmaps, ahead: DeadBitmaps, back: DeadBitmaps) -> tuple[int, int]:
    """Of a partition's keys: how many another partition has as well, and of how many of these this partition
    is the last that has them."""
    if not (own.page_ids.size == ahead.page_ids.size == back.page_ids.size):
        raise AssertionError("other pages than before")
    shared = last = 0
    for first in range(0, own.page_ids.size, _BLOCK_PAGES):
        block = slice(first, first + _BLOCK_PAGES)
        dead, after, before = (_words(one, block) for one in (own, ahead, back))
        shared += _ones((after | before) & ~dead)
        last += _ones(before & ~after)
    return shared, last


def _words(bits: DeadBitmaps, block: slice) -> NDArray[np.uint64]:
    slots = bits.page_slots[block]
    return np.where((slots >= 0)[:, None], bits.page_bits[np.maximum(slots, 0)], np.uint64(0))


def _ones(words: NDArray[np.uint64]) -> int:
    return int(np.unpackbits(words.view(np.uint8)).sum(dtype=np.int64))
