"""`SegmentSet`, the segments of a log, and `LogVersion`, the log at one moment.

`directory_segments` reads and changes them. Notes beside the segments (leases, quarantine, garbage accounts,
producer snapshots, leader epochs) are not part of the set.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lastword.errors import CorruptBatchError
from lastword.files import FileFacts
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles


class SegmentSet(Sequence[Segment]):
    """The segments of a log in order of their base offsets. Immutable: a change of the log makes another set.

    So a reader keeps its set, and never sees half of a change.
    """

    __slots__ = ("_bases", "segments")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = tuple(sorted(segments, key=lambda s: s.base_offset))
        self._bases = [s.base_offset for s in self.segments]

    def __len__(self) -> int:
        return len(self.segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.segments[index]

    @property
    def active(self) -> Segment:
        """The last segment, to which records are appended."""
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return sum(s.size for s in self.segments)

    def floor(self, offset: int) -> int:
        """Return the index of the last segment that begins at or below `offset`; -1 if all begin above."""
        return bisect_right(self._bases, offset) - 1

    def holding(self, offset: int) -> tuple[Segment, int | None] | None:
        """Return the segment of `floor`, and the base offset of the next one, if there is any."""
        bases = self._bases
        number = bisect_right(bases, offset)
        if not number:
            return None
        return self.segments[number - 1], bases[number] if number < len(bases) else None

    def index_of(self, base_offset: int) -> int:
        """Return the index of the segment with this base offset; -1 if there is none."""
        index = self.floor(base_offset)
        return index if index >= 0 and self._bases[index] == base_offset else -1

    def starting_at(self, offset: int) -> tuple[Segment, ...]:
        """Return the segments that hold `offset` and everything above."""
        return self.segments[max(self.floor(offset), 0) :]

    def between(self, start: int, end: int) -> tuple[Segment, ...]:
        """Return the segments that may hold an offset in [start, end)."""
        return self.segments[max(self.floor(start), 0) : self.floor(end - 1) + 1]

    def below(self, offset: int) -> tuple[Segment, ...]:
        """Return the segments that begin below `offset`."""
        return self.segments[: bisect_left(self._bases, offset)]

    def with_last(self, segment: Segment) -> SegmentSet:
        """Return the set with another state of its last segment."""
        if segment is self.segments[-1]:
            return self
        changed = SegmentSet.__new__(SegmentSet)
        changed.segments, changed._bases = (*self.segments[:-1], segment), self._bases
        return changed

    def with_added(self, segment: Segment) -> SegmentSet:
        """Return the set with one more segment, which begins above all others."""
        return self._spliced(len(self), len(self), (segment,))

    def with_replaced(self, old: Sequence[Segment], new: Sequence[Segment]) -> SegmentSet:
        """Return the set with `new`, in order, in the place of `old`, which are neighbours in the set."""
        first = self.floor(old[0].base_offset)
        return self._spliced(first, first + len(old), new)

    def _spliced(self, first: int, end: int, new: Sequence[Segment]) -> SegmentSet:
        """Return the set with `new` in the place of the segments `first` to `end`; nothing is sorted."""
        changed = SegmentSet.__new__(SegmentSet)
        changed.segments = (*self.segments[:first], *new, *self.segments[end:])
        changed._bases = [*self._bases[:first], *(s.base_offset for s in new), *self._bases[end:]]
        return changed


@dataclass(frozen=True, slots=True)
class LogVersion:
    """The segments of a log at one moment.

    Attributes:
        segments: In order. The last one ends with its last valid batch.
        log_start: First offset that may be read.
        log_end: The offset that the next record gets.
        damage: The error of a read that reaches the end of a log which must end elsewhere.
        listed_bytes: Size of the last segment's file. None: the segments are those of an open log.
        snapshots: Offsets of the producer snapshots listed with the segments. None: they were not listed.
        topic: Facts of the file with the topic's id, which no topic that is recreated has; None: not known.
        cuts: The number of cuts of the log end noted before the segments were listed; None: not known.
    """

    segments: SegmentSet
    log_start: int
    log_end: int
    damage: CorruptBatchError | None = None
    listed_bytes: int | None = None
    snapshots: Sequence[int] | None = None
    topic: FileFacts | None = None
    cuts: int | None = None


class PrivateSegment(NamedTuple):
    """A segment that is built outside of the log.

    Attributes:
        location: Its directory, which `DirectorySegments.output` takes, also in another process.
        stored: Its files.
    """

    location: str
    stored: SegmentFiles
