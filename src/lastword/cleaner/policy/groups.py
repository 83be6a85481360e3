"""The groups of a cleaning: neighbouring segments that are rewritten together.

A cleaning has each segment's exact garbage (`SegmentFacts` of the scan), so a segment without garbage is
not touched. A segment *needs* a rewrite when it holds a dead record, or a live tombstone in a batch without a
delete horizon; so does a segment with a transaction marker for which either is true (`worth`). There is no
other reason, so an insert-only log is never rewritten.

Neighbours that need a rewrite share one output when their survivors fit. A segment that needs none joins only
when it is small: moving up to a twentieth of `segment.bytes` is the price of one file less. In a crowded log
(more than 3 files for each full one, and 64) small neighbours are merged although nothing in them is dead;
otherwise a log rolled by the clock would collect files without end. Merging moves whole runs into one full
file, so a byte is moved about once.

An empty segment (Kafka's cleaner leaves one for a group without survivors) goes into a neighbour's output:
the next segment's base covers its offsets.

Limits of an output are Kafka's: `segment.bytes`, both indexes within `segment.index.bytes`, offsets within
2^31 of its base. One group gives one segment. The compressed size of the survivors is known only when they
are written; so a group's sources, unchanged, also fit one file by the limits that no file may exceed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from lastword.segment.names import MAX_FILE_BYTES, MAX_RELATIVE_OFFSET

SMALL_RATIO = 0.05
"""A clean segment of at most this share of `segment.bytes` is rewritten with its neighbours: one file less is
worth that many bytes moved."""
SMALL_RATIO_WHEN_CROWDED = 0.5
FILES_FOR_ONE = 3
FILES_FREE = 64
TIME_INDEX_ENTRY_BYTES = 12


class GroupFacts(Protocol):
    """The facts of a segment by which it is grouped; `resolve.SegmentFacts` has them."""

    @property
    def base_offset(self) -> int:
        """Return the first offset of the segment's range."""

    @property
    def next_offset(self) -> int:
        """Return the offset after the segment's range."""

    @property
    def size_bytes(self) -> int:
        """Return the size of its .log file."""

    @property
    def dead_records(self) -> int:
        """Return the number of dead records."""

    @property
    def live_bytes(self) -> int:
        """Return the bytes that a rewrite keeps."""

    @property
    def tombstones_without_horizon(self) -> int:
        """Return the number of live tombstones without a delete horizon."""


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Bounds of one output segment, in bytes."""

    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int

    def fit(self, live_bytes: int) -> bool:
        """Return whether a segment of `live_bytes` may exist.

        Indexes get an entry per interval, the time index one more.
        """
        if live_bytes > self.segment_bytes:
            return False
        return self._indexed(live_bytes)

    def hold(self, source_bytes: int) -> bool:
        """Return whether one file can hold any part of this many source bytes.

        Live bytes of compressed records are only shares of their batches: the survivors may take most of the
        batch, if the dead records compressed better.
        """
        return source_bytes <= MAX_FILE_BYTES and self._indexed(source_bytes)

    def _indexed(self, size_bytes: int) -> bool:
        entries = size_bytes // max(self.index_interval_bytes, 1) + 1
        return entries * TIME_INDEX_ENTRY_BYTES <= self.segment_index_bytes


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Segments that become one segment.

    Attributes:
        first: Index of the first among the segments of the cleaning.
        last: Index of the last one.
        size_bytes: Bytes of the sources.
        live_bytes: Bytes of the survivors, before recompression and horizons.
    """

    first: int
    last: int
    base_offset: int
    next_offset: int
    size_bytes: int
    live_bytes: int

    @property
    def count(self) -> int:
        """Return the number of segments."""
        return self.last - self.first + 1


def needs_rewrite(facts: GroupFacts) -> bool:
    """Return whether a segment has a dead record, or a tombstone that needs a delete horizon."""
    return facts.dead_records > 0 or facts.tombstones_without_horizon > 0


def is_crowded(files: int, size_bytes: int, segment_bytes: int) -> bool:
    """Return whether a log has enough files that neighbours merge although nothing in them is dead.

    The limit is `FILES_FOR_ONE` files for each file that `size_bytes` would fill, and `FILES_FREE`.
    """
    return files > FILES_FOR_ONE * -(-size_bytes // segment_bytes) + FILES_FREE


def group(
    facts: Sequence[GroupFacts], limits: OutputLimits, worth: Collection[int] = ()
) -> tuple[SegmentGroup, ...]:
    """Return the groups to rewrite, in offset order; segments in none of them stay as they are.

    Args:
        facts: The segments, in offset order.
        limits: Bounds of an output.
        worth: Indexes of segments that need a rewrite for another reason than their facts.
    """
    total_bytes = sum(segment.size_bytes for segment in facts)
    crowded = is_crowded(len(facts), total_bytes, limits.segment_bytes)
    small_bytes = int(limits.segment_bytes * (SMALL_RATIO_WHEN_CROWDED if crowded else SMALL_RATIO))
    groups: list[SegmentGroup] = []
    run = _Run(facts)

    def needs(i: int) -> bool:
        return i in worth or needs_rewrite(facts[i])

    def close() -> None:
        nonlocal run
        needed = any(needs(i) for i in range(run.first, run.end))
        if needed or (crowded and run.count > 1):
            groups.append(run.group())
        run = _Run(facts)

    for i, segment in enumerate(facts):
        if not needs(i) and segment.live_bytes > small_bytes:
            close()
            continue
        if run.count and not run.fits(segment, limits):
            close()
        run.add(i)
    close()
    return tuple(groups)


def cut(facts: Sequence[GroupFacts], first: int, last: int, limits: OutputLimits) -> tuple[SegmentGroup, ...]:
    """Return a chosen run as groups that fit: as few as possible, and about equal."""
    live = sum(segment.live_bytes for segment in facts[first : last + 1])
    fewest = _filled(facts, first, last, limits, limits.segment_bytes)
    for slack in (1.0, 1.1, 1.25, 1.5):
        even = _filled(facts, first, last, limits, int(slack * live / len(fewest)) + 1)
        if len(even) == len(fewest):
            return even
    return fewest


def _filled(
    facts: Sequence[GroupFacts], first: int, last: int, limits: OutputLimits, most_bytes: int
) -> tuple[SegmentGroup, ...]:
    groups: list[SegmentGroup] = []
    run = _Run(facts)
    for i in range(first, last + 1):
        above = run.live_bytes + facts[i].live_bytes > most_bytes
        if run.count and (above or not run.fits(facts[i], limits)):
            groups.append(run.group())
            run = _Run(facts)
        run.add(i)
    groups.append(run.group())
    return tuple(groups)


class _Run:
    """Neighbouring segments, with sums that are kept: a run may have every segment of the log."""

    def __init__(self, facts: Sequence[GroupFacts]) -> None:
        self._facts = facts
        self.first = self.end = 0
        self.size_bytes = self.live_bytes = 0

    @property
    def count(self) -> int:
        return self.end - self.first

    def add(self, i: int) -> None:
        if not self.count:
            self.first = i
        self.end = i + 1
        self.size_bytes += self._facts[i].size_bytes
        self.live_bytes += self._facts[i].live_bytes

    def fits(self, segment: GroupFacts, limits: OutputLimits) -> bool:
        if segment.next_offset - 1 - self._facts[self.first].base_offset > MAX_RELATIVE_OFFSET:
            return False
        return limits.fit(self.live_bytes + segment.live_bytes) and limits.hold(
            self.size_bytes + segment.size_bytes
        )

    def group(self) -> SegmentGroup:
        chosen = self._facts[self.first : self.end]
        base_offset = chosen[0].base_offset
        return SegmentGroup(
            first=self.first,
            last=self.end - 1,
            base_offset=base_offset,
            next_offset=max((s.next_offset for s in chosen if s.size_bytes), default=base_offset),
            size_bytes=self.size_bytes,
            live_bytes=self.live_bytes,
        )
