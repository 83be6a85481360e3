"""An ordered set of segments is the log: floor search over their base offsets, and lookups that go on over
gaps.

Immutable: whoever changes the log makes a new one. So a reader keeps the one it has, and never sees a half of
a change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from lastword.segment.segment import Segment


class SegmentSet(Sequence[Segment]):
    """Segments in order of their base offsets, no two the same."""

    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = tuple(sorted(segments, key=lambda s: s.base_offset))
        self._bases = [s.base_offset for s in self._segments]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._segments[index]

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return sum(s.size for s in self._segments)

    def floor(self, offset: int) -> int:
        """Index of the last segment that begins at or below `offset`; -1 if all begin above."""
        return bisect_right(self._bases, offset) - 1

    def starting_at(self, offset: int) -> tuple[Segment, ...]:
        """The segments in which `offset` and everything above it lie."""
        return self._segments[max(self.floor(offset), 0) :]

    def below(self, offset: int) -> tuple[Segment, ...]:
        """The segments that begin below `offset`."""
        return self._segments[: bisect_left(self._bases, offset)]

    def with_last(self, segment: Segment) -> SegmentSet:
        """Return the set with another state of its last segment."""
        if segment is self._segments[-1]:
            return self
        changed = SegmentSet.__new__(SegmentSet)
        changed._segments, changed._bases = (*self._segments[:-1], segment), self._bases
        return changed

    def with_added(self, segment: Segment) -> SegmentSet:
        return SegmentSet((*self._segments, segment))

    def with_replaced(self, old: Sequence[Segment], new: Sequence[Segment]) -> SegmentSet:
        gone = {id(segment) for segment in old}
        return SegmentSet([*(s for s in self._segments if id(s) not in gone), *new])
