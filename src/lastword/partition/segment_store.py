"""`SegmentSet`, the segments of a log, and `SegmentStore`: how the set changes.

Readers, plans, cleanings, states and the open log stand above this interface and do not depend on its
implementation. `DirectorySegments` is the directory of a partition: segments are files, and a change is a
sequence of renames and syncs that recovery can finish or undo. A store of immutable objects changes by one
compare-and-swap of its list of segments.

Notes beside the segments (leases, quarantine, garbage accounts, producer snapshots, leader epochs) are not
part of the set. They are small files of `directory` in `files`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lastword.errors import CorruptBatchError
from lastword.files import FileFacts, Files
from lastword.segment.append import AssignedBatch, SegmentAppender
from lastword.segment.segment import Segment
from lastword.segment.stored import StoredSegment


class SegmentSet(Sequence[Segment]):
    """The segments of a log in order of their base offsets. Immutable: a change of the log makes another set.

    So a reader keeps its set, and never sees half of a change.
    """

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
        """The segments as a tuple."""
        return self._segments

    @property
    def active(self) -> Segment:
        """The last segment, to which records are appended."""
        return self._segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return sum(s.size for s in self._segments)

    def floor(self, offset: int) -> int:
        """Return the index of the last segment that begins at or below `offset`; -1 if all begin above."""
        return bisect_right(self._bases, offset) - 1

    def holding(self, offset: int) -> tuple[Segment, int | None] | None:
        """Return the segment of `floor`, and the base offset of the next one, if there is any."""
        bases = self._bases
        number = bisect_right(bases, offset)
        if not number:
            return None
        return self._segments[number - 1], bases[number] if number < len(bases) else None

    def index_of(self, base_offset: int) -> int:
        """Return the index of the segment with this base offset; -1 if there is none."""
        index = self.floor(base_offset)
        return index if index >= 0 and self._bases[index] == base_offset else -1

    def starting_at(self, offset: int) -> tuple[Segment, ...]:
        """Return the segments that hold `offset` and everything above."""
        return self._segments[max(self.floor(offset), 0) :]

    def between(self, start: int, end: int) -> tuple[Segment, ...]:
        """Return the segments that may hold an offset in [start, end)."""
        return self._segments[max(self.floor(start), 0) : self.floor(end - 1) + 1]

    def below(self, offset: int) -> tuple[Segment, ...]:
        """Return the segments that begin below `offset`."""
        return self._segments[: bisect_left(self._bases, offset)]

    def with_last(self, segment: Segment) -> SegmentSet:
        """Return the set with another state of its last segment."""
        if segment is self._segments[-1]:
            return self
        changed = SegmentSet.__new__(SegmentSet)
        changed._segments, changed._bases = (*self._segments[:-1], segment), self._bases
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
        changed._segments = (*self._segments[:first], *new, *self._segments[end:])
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
        token: Value that `SegmentStore.is_current` compares. None: the segments are those of an open log.
        snapshots: Offsets of the producer snapshots listed with the segments. None: they were not listed.
        topic: Facts of the file with the topic's id, which no topic that is recreated has; None: not known.
        cuts: The number of cuts of the log end noted before the segments were listed; None: not known.
    """

    segments: SegmentSet
    log_start: int
    log_end: int
    damage: CorruptBatchError | None = None
    token: object = None
    snapshots: Sequence[int] | None = None
    topic: FileFacts | None = None
    cuts: int | None = None


class PrivateSegment(NamedTuple):
    """A segment that is built outside of the log.

    Attributes:
        location: Names it for `SegmentStore.output`, also in another process.
        stored: Its bytes.
    """

    location: str
    stored: StoredSegment


class SegmentStore(Protocol):
    """The segments of one partition. Reading takes no lock; there is one writer, which changes the set.

    Attributes:
        files: Storage of the notes beside the segments.
        directory: Path of these notes; its last part is the name of the partition.
    """

    @property
    def files(self) -> Files:
        """Storage of the notes."""

    @property
    def directory(self) -> str:
        """Path of the notes."""

    # -------------------------------------------------------------- read

    def load(self) -> LogVersion:
        """Return the segments of now: one version, never parts of two.

        Raises:
            FileVanishedError: There is no such log.
            BusyError: The log changed again and again.
        """

    def is_current(self, version: LogVersion) -> bool:
        """Return whether the log still ends as in `version`. Segments before the last may be others."""

    def pin(self, segments: Sequence[Segment]) -> None:
        """Keep segments readable until the last reference to them is gone, also when they are replaced.

        Raises:
            FileVanishedError: One was replaced since it was listed.
        """

    # -------------------------------------------------------------- append

    def create(self, base_offset: int, *, index_interval_bytes: int) -> SegmentAppender:
        """Begin an empty segment at the log end.

        The log has no segment of this base offset: what is stored under it was left by a begin that failed,
        and is removed.
        """

    def ingest(
        self, file: str, batches: Sequence[AssignedBatch], *, index_interval_bytes: int
    ) -> SegmentAppender:
        """Make a file of `files`, which holds these batches, the last segment; durable when it returns."""

    def stored(self, base_offset: int) -> StoredSegment:
        """Return what is stored under a base offset of the log; its facts are None if there is nothing."""

    def sync(self, segment: Segment) -> None:
        """Make all bytes of a closed segment durable."""

    def sync_names(self) -> None:
        """Make durable which segments there are."""

    # -------------------------------------------------------------- build in private

    def create_output(self, base_offset: int, within: str | None = None) -> PrivateSegment:
        """Return an empty private segment. `within`: a location that the caller has made for outputs."""

    def output(self, location: str, base_offset: int) -> StoredSegment:
        """Return a private segment that was built, also in another process."""

    def discard(self, location: str) -> None:
        """Remove a private segment that is not published, or what is left of one that was."""

    def discard_outputs(self) -> None:
        """Remove every private segment. For the only cleaning of the partition."""

    def free_bytes(self) -> int:
        """Return how many bytes outputs may take."""

    # -------------------------------------------------------------- change the set

    def replace(self, sources: Sequence[Segment], output: Segment) -> Segment:
        """Put a complete, durable private segment in the place of its sources: all of them, or none.

        Args:
            sources: Closed neighbours of the log.
            output: It has the base offset of the first source.

        Returns:
            The segment as it is in the log. After an error, `after_failed_replace` has the outcome.
        """

    def after_failed_replace(self, segments: SegmentSet) -> SegmentSet:
        """Finish or undo a `replace` that failed; return the segments. `segments`: those before it."""

    def remove_front(self, gone: Sequence[Segment], kept: list[str]) -> None:
        """Remove the first segments of the log, durably.

        `kept` gets the paths in `files` that keep their bytes for reads that have begun, also if the call
        fails half-way; the caller removes them later.
        """

    def truncate(
        self, segments: SegmentSet, offset: int, epoch: int, *, index_interval_bytes: int
    ) -> SegmentSet:
        """Remove the batches that reach `offset`, durably, and return what is left.

        A crash in here leaves the log longer, and never with a hole. Afterwards the log ends at `offset`: an
        empty batch of leader epoch `epoch` takes the offsets that are missing below.
        """

    def remove_all(self, segments: SegmentSet) -> None:
        """Remove every segment, the newest first."""
