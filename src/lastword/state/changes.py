"""Bring a copy of the newest records to a later moment: what is newer, and what is not live any more.

The copy had every newest record below an offset, `since`. Records from there on are read as any newest
records. Below it only offsets count. The dead bitmaps show which of the copied records were superseded; a
record that a cleaning, a trim or retention has removed has no bit. But the copy had all live records of a
segment. So if it keeps as many of them as the segment has, it keeps exactly these, and the segment is not
read. Else its live offsets are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from lastword.partition import scan
from lastword.partition.moment import Range, at_one_moment
from lastword.partition.transactions import Decisions, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.chunk import SCAN_BYTES, Chunk
from lastword.records.columns import decode_live, raw_records
from lastword.records.record import RawRecord
from lastword.resolve import MapFull, Resolution
from lastword.resolve.facts import SegmentSource, TransactionOutcomes
from lastword.state.newest import BytesDone, NewestRecords, SegmentSlice, replayed, resolution_of, slices_of

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.segment.segment import Segment

_WINDOW = 1 << 22
"""Offsets whose dead bits are listed at a time."""
_MOST_SCANS = 1000
"""A kept scan begins again after this many: a resolution lists the counts of each."""
_TAIL_BYTES = 512
_NONE = np.empty(0, np.int64)


class KnownOffsets(Protocol):
    """The offsets of the records in a copy; `lake.vectors.Offsets` is one."""

    def discard(self, offsets: NDArray[np.int64]) -> None:
        """Remove offsets, which need not be there."""

    def count(self, first: int, end: int) -> int:
        """Return how many offsets are in [first, end)."""
        ...

    def keep(self, first: int, end: int, offsets: NDArray[np.int64]) -> None:
        """Remove from [first, end) all but these offsets."""


class KeptScan:
    """The key map and the dead bits of a partition, kept between reads: the next scans newer records only.

    Used by one read at a time. The scan begins again if a file that was scanned was replaced. The active
    segment may have grown.

    Attributes:
        log: The id of the topic, and how often the log had been cut before the first read. If one of them is
            another, make a new object.
    """

    def __init__(self, log: tuple[str, int]) -> None:
        self.log = log
        self._ledger: Ledger | None = None
        self._files: Sequence[object] = ()
        self._end: tuple[int, int, int, bytes] | None = None
        self._scans = 0

    @property
    def memory_bytes(self) -> int:
        """Return the memory that is kept."""
        return 0 if self._ledger is None else self._ledger.memory_bytes

    def resolution(
        self, view: PartitionView, start: int, end: int, outcomes: Outcomes, map_bytes: int
    ) -> Resolution | None:
        """Resolve a range; None if another way must: the keys do not fit, or nothing is saved or kept yet."""
        ledger, self._ledger = self._ledger, None  # a scan that fails leaves nothing
        files = [(segment.base_offset, segment.id, segment.stored.facts()) for segment in view.segments[:-1]]
        if ledger is None or not self.continues(view, files):
            ledger = saved_ledger(view, slices_of(view, start, end)[0], map_bytes, or_empty=self._scans > 0)
            self._scans, self._end = 0, None
        self._scans += 1
        if ledger is None:
            return None
        parts = slices_of(view, max(start, ledger.limit), end)[0]
        resolution = _added(ledger, parts, outcomes)
        if resolution is not None:
            ledger.shrink()
            self._ledger, self._files = ledger, files
            self._end = _end(parts[-1].segment, parts[-1].last) if parts else self._end
        return resolution

    def continues(self, view: PartitionView, files: Sequence[object]) -> bool:
        """Return whether the scanned files are there; those at the front may have been removed."""
        end, active = self._end, view.active
        if end is None or active is None or active.size < end[2] or self._scans >= _MOST_SCANS:
            return False
        scanned = self._files[max(len(self._files) - len(files), 0) :]
        return files == scanned and _end(active, end[2]) == end


def _end(segment: Segment, position: int) -> tuple[int, int, int, bytes]:
    """Return where a scan ended: the segment, the position, and the bytes before it."""
    size = min(position, _TAIL_BYTES)
    tail = bytes(segment.handle.pread(size, position - size))
    return segment.base_offset, segment.id.number, position, tail


def newer_parts(
    range_: Range,
    since: int,
    known: KnownOffsets,
    *,
    map_bytes: int,
    kept: KeptScan,
    progress: BytesDone | None = None,
) -> Generator[NewestRecords]:
    """Yield the newest records from `since` on; remove from `known` the offsets that are not live.

    Records without a key or a value are left out. A kept scan or a saved garbage index takes the place of the
    first pass, if it applies.

    Args:
        range_: From the log start to a committed end; settled.
        since: The end of the range of which `known` had all newest records. The log was not cut below it.
        known: The offsets of the copy, all below `since`. After the last item they are those of live records.
        map_bytes: Memory of the key map.
        kept: The scan of the read before, which this read continues.
        progress: Receives (bytes done, total bytes).
    """
    if range_.start >= range_.end:
        known.keep(0, since, _NONE)
    report = progress or (lambda done, total: None)

    def records_of(view: PartitionView, start: int, end: int) -> Iterator[NewestRecords]:
        if scan.is_short(view, start, end):
            short = scan.newest_records(view, start, end, tombstones=False, committed=True)
            yield _kept(known, 0, since, list(short))
            return
        parts, cut = slices_of(view, start, end)
        total = 2 * sum(part.size for part in parts)
        outcomes = Outcomes(view, end)
        resolution = kept.resolution(view, start, end, outcomes, map_bytes)
        if resolution is None:
            resolution = resolution_of(
                view, parts, outcomes, map_bytes, lambda done, _: report(min(done, total // 2), total)
            )
        tail = {
            record.key: record for record in replayed(view, cut, end, True, None) if record.key is not None
        }
        live = _LiveRecords(resolution, start, tail)
        known.keep(0, start, _NONE)
        first, done = start, total // 2
        part_ends = [*(part.base_offset for part in parts), cut][1:]  # none if no batch is in the range
        for part, part_end in zip(parts, part_ends, strict=True):
            newer, read = 0, 0
            if part_end > since:
                for chunk, records in live.read(part, max(since, start)):
                    newer += len(records)
                    yield records
                    read += chunk.size_bytes
                    report(min(done + read, total), total)
            live.keep(known, part, first, min(part_end, since), newer)
            first, done = max(first, part_end), done + part.size
            report(done, total)
        yield _kept(known, first, since, [record for record in tail.values() if record.value is not None])

    return at_one_moment(range_, records_of)


def _kept(known: KnownOffsets, first: int, since: int, records: list[RawRecord]) -> NewestRecords:
    """Keep the offsets of records in [first, since); return the records from `since` on."""
    known.keep(first, since, _offsets_of(NewestRecords(records), since))
    return NewestRecords([record for record in records if record.offset >= since])


class _LiveRecords:
    """The live records of the slices of a log, from the log start on, but for keys in `tail`."""

    def __init__(self, resolution: Resolution, start: int, tail: Mapping[bytes, RawRecord]) -> None:
        self._dead = resolution.dead
        self._facts = resolution.segments
        self._bases = [fact.base_offset for fact in resolution.segments]
        self._start = start
        self._tail = tail

    def read(self, part: SegmentSlice, first: int) -> Iterator[tuple[Chunk, NewestRecords]]:
        """Yield the records of a slice from an offset on, chunk by chunk."""
        at = min(max(part.first, part.segment.position_of(first)), part.last)
        for chunk in replace(part, first=at).chunk_reader(
            chunk_bytes=SCAN_BYTES, skip_rows=self._dead.wholly_dead
        ):
            columns = decode_live(chunk, self._dead.arrays, first, tombstones=False)
            if self._tail:
                records = [record for record in raw_records(columns, chunk) if record.key not in self._tail]
                yield chunk, NewestRecords(records)
            else:
                yield chunk, NewestRecords([], columns, chunk)

    def keep(self, known: KnownOffsets, part: SegmentSlice, first: int, end: int, newer: int) -> None:
        """Remove from [first, end), which is within a slice, what is not live.

        `newer`: how many records from `end` on are live in the slice.
        """
        if first >= end:
            return
        for low in range(first, end, _WINDOW):
            high = min(low + _WINDOW, end)
            known.discard(self._dead.window(low, high).offsets())
        values = self._values(part)
        if values is not None and known.count(first, end) + newer == values:
            return
        for chunk, records in self.read(part, first):
            reached = min(chunk.next_offset, end)
            known.keep(first, reached, _offsets_of(records, end))
            first = reached
            if first == end:
                return
        known.keep(first, end, _NONE)

    def _values(self, part: SegmentSlice) -> int | None:
        """Return how many rows of a copy a slice has, by its counts; None if these do not say it."""
        low, high = (bisect_left(self._bases, offset) for offset in (part.base_offset, part.next_offset))
        facts = self._facts[low:high]
        if (
            self._tail
            or part.base_offset < self._start
            or not facts
            or facts[0].base_offset != part.base_offset
        ):
            return None
        if any(fact.keyless for fact in facts):
            return None
        return sum(fact.live_records - fact.tombstones for fact in facts)


def _offsets_of(records: NewestRecords, end: int) -> NDArray[np.int64]:
    """Return the offsets below an end."""
    offsets = np.array([record.offset for record in records.records], np.int64)
    if records.columns is not None:
        offsets = records.columns.offset
    return offsets[offsets < end]


def from_accounts(
    view: PartitionView,
    sources: Sequence[SegmentSource],
    outcomes: TransactionOutcomes | None,
    map_bytes: int,
) -> Resolution | None:
    """Use the saved garbage index of a partition instead of the first pass; None if it does not apply.

    The index applies if it fits the log and does not extend beyond the end of the range. Only records above
    its limit are scanned. The index counts a tombstone whose delete horizon has passed, and a record without
    a key, as dead; a read without tombstones shows neither. It also counts records of aborted transactions as
    dead. With `outcomes` None those records must be shown, so the index of a log with transactions does not
    apply.
    """
    ledger = saved_ledger(view, sources, map_bytes)
    if ledger is None or (outcomes is None and ledger.transactions_from >= 0):
        return None
    above = [source for source in sources if source.base_offset >= ledger.limit and source.size]
    return _added(ledger, above, outcomes or Decisions())


def saved_ledger(
    view: PartitionView, sources: Sequence[SegmentSource], map_bytes: int, *, or_empty: bool = False
) -> Ledger | None:
    """Return the saved garbage index, if it applies; with `or_empty` an empty one if there is none."""
    from lastword.accounts.ledger import Ledger

    ledger = Ledger.open(view.files, view.directory, view.segments, map_bytes=map_bytes)
    applies = ledger.exact and (ledger.limit > 0 or or_empty)
    return ledger if applies and sources and ledger.limit <= sources[-1].next_offset else None


def _added(
    ledger: Ledger, sources: Sequence[SegmentSource], outcomes: TransactionOutcomes
) -> Resolution | None:
    """Scan what is above the limit of an index; return the resolution, None if its keys do not fit."""
    try:
        ledger.tracking.running.add_segments(sources, outcomes=outcomes)
        return ledger.resolution()
    except MapFull:
        return None
