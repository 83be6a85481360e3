"""The tracked keys of a ledger: a running map with the segments that it covers, of all keys or of a sample.

If the keys do not fit the memory, only those are tracked whose salted hash is in the first `share` of its
range. A sample decides about no record: it is used to choose (`estimates.py`), and takes a part of the memory
only. Duplicates within one segment are counted exactly in both cases, when the segment is scanned.

Only tombstones need the number of copies of their key. So a log without tombstones is rewritten without
reporting dropped records to the map, which would look up the key of every dead record. The first tombstone
after such a rewrite costs one scan of the log, and from then on copies are counted. Until then, keys that
only aborted transactions wrote leave the map if it needs room: the map holds them only to count copies.

`SegmentEntry` describes one segment: which file it is, its age, and the age of its garbage. The unit of ages
is that of the drive's time `write_clock`: bytes appended to the drive.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from lastword.errors import CapacityError, FileVanishedError
from lastword.segment import names
from lastword.segment.segment import Segment
from lastword.units import MIB, NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lastword.partition.transactions import BatchColumns
    from lastword.records.chunk import Chunk
    from lastword.resolve import Resolution, SegmentFacts
    from lastword.resolve.facts import TransactionOutcomes
    from lastword.resolve.running import RunningResolution
    from lastword.resolve.whole import ScratchPlace


_TAIL_BYTES = 512


@dataclass(slots=True)
class SegmentEntry:
    """One segment below the limit: which file it is, and its account.

    Attributes:
        death_rate: Recent growth of the garbage; below 0: not computed yet.
        death_rate_at: When `death_rate` was computed last.
        death_rate_dead: The garbage then.
        own_dead_bytes: In a sample: garbage within the segment itself when it was scanned.
        own_seen_bytes: The part of it that the sample found, in bytes.
        own_seen_records: The same in records.
        generation: How often the segment was rewritten.
        survived_ratio: Share of the sources' bytes that the last rewrite kept; below 0: there was none.
        clear_to: No older record of a key whose newest record is below this offset is left here.
    """

    base_offset: int
    inode: int
    size_bytes: int
    mtime_ms: int
    tail_crc: int
    written_at: int
    dead_bytes: float = 0.0
    garbage_age: float = 0.0
    garbage_age_at: int = 0
    death_rate: float = -1.0
    death_rate_at: int = 0
    death_rate_dead: float = 0.0
    oldest_dead_ms: int = -1
    own_dead_bytes: int = 0
    own_seen_bytes: int = 0
    own_seen_records: int = 0
    generation: int = 0
    survived_ratio: float = -1.0
    clear_to: int = -1

    @classmethod
    def of(cls, segment: Segment, write_clock: int) -> SegmentEntry:
        """Return the entry of a file that was read just now."""
        facts = segment.stored.facts()
        if facts is None:
            raise FileVanishedError(f"{segment.file} is gone", file=segment.file)
        return cls(
            base_offset=segment.base_offset,
            inode=facts.id.number,
            size_bytes=segment.size,
            mtime_ms=facts.mtime_ms,
            tail_crc=tail_crc(segment),
            written_at=write_clock,
        )

    def is_of(self, segment: Segment) -> bool:
        """Return whether the segment is this file, unchanged.

        Reads the file's facts: a segment that was appended to is younger than when it was opened, and the
        file of a view may have been replaced by another of its name.
        """
        facts = segment.stored.facts()
        return (
            self.base_offset == segment.base_offset
            and self.inode == segment.id.number
            and facts == ((self.inode, self.size_bytes), self.mtime_ms)
        )

    def accrue(self, dead: float, write_clock: int, now_ms: int, *, closed: bool) -> None:
        """Add the age of the garbage since the last update, and set the garbage as it is now.

        Args:
            dead: Garbage in bytes.
            write_clock: The drive's time.
            now_ms: The time.
            closed: Segments were added, so the death rate can be computed.
        """
        self.garbage_age += self.dead_bytes * (write_clock - self.garbage_age_at)
        self.garbage_age_at = write_clock
        self.dead_bytes = dead
        if dead <= 0:
            self.oldest_dead_ms = -1
        elif self.oldest_dead_ms < 0:
            self.oldest_dead_ms = now_ms
        passed = write_clock - self.death_rate_at
        if closed and passed > 0:
            recent = (dead - self.death_rate_dead) / passed
            age = max(write_clock - self.written_at, 1)
            if self.death_rate < 0:
                self.death_rate = recent
            else:
                self.death_rate += (1 - math.exp(-4 * passed / age)) * (recent - self.death_rate)
            self.death_rate = max(self.death_rate, 0.0)
            self.death_rate_at, self.death_rate_dead = write_clock, dead


def begin_ages(
    entries: Sequence[SegmentEntry], dead: Sequence[float], write_clock: int, bytes_above: int
) -> None:
    """Set the ages of segments that were scanned just now: all bytes above a segment were appended after it.

    Their garbage is assumed to have grown steadily since.

    Args:
        entries: The new segments.
        dead: Their garbage, in bytes.
        write_clock: The drive's time.
        bytes_above: Bytes of the log above the last of them.
    """
    above = bytes_above
    for entry, garbage in zip(reversed(entries), reversed(dead), strict=True):
        entry.written_at = write_clock - above
        entry.garbage_age_at = entry.death_rate_at = write_clock
        entry.garbage_age = garbage * above / 2
        entry.death_rate = garbage / above if above else -1.0
        entry.death_rate_dead = garbage
        above += entry.size_bytes


def keep_ages(entries: Sequence[SegmentEntry], old: Sequence[SegmentEntry]) -> None:
    """Copy the ages of segments from before a reset: a scan of keys does not yield them."""
    known = {entry.base_offset: entry for entry in old}
    for entry in entries:
        before = known.get(entry.base_offset)
        if before is not None and before.inode == entry.inode:
            entry.written_at, entry.generation = before.written_at, before.generation
            entry.oldest_dead_ms = before.oldest_dead_ms


def tail_crc(segment: Segment) -> int:
    """Return the checksum of a segment's last bytes, the end of its last batch."""
    if segment.size == 0:
        return 0
    length = min(segment.size, _TAIL_BYTES)
    return int(google_crc32c.value(segment.handle.pread(length, segment.size - length)))


def private_path(directory: str, name: str) -> str:
    """Return the path of a private file of a partition."""
    return os.path.join(directory, names.PRIVATE, name)


_SMALLEST_SHARE = 2.0**-40
_SAMPLE_RATIO = 1 / 8
_SAMPLE_BYTES = 8 * MIB
"""A sample takes this part of the map's memory, but not less than this many bytes."""
KEYS_DO_NOT_FIT = "its keys do not fit the memory"
HASHES_UNSURE = "a map of hashes does not decide about its keys"


class Tracking:
    """The map, and a `SegmentEntry` for each segment that it covers and that is still in the log.

    Attributes:
        scratch: Directory of the keys; None: in memory.
        share: Share of the keys that are tracked; 1: all of them, and every figure is exact.
        gone: Leading segments of the map that have left the log at its front.
        transactions_from: Offset of the first transactional batch or marker; -1: none was found.
        counts_copies: A tombstone was found, so rewrites report dropped records to the map.
        uncounted: A rewrite did not report, or aborted copies were dropped: the copies in the map are wrong.
    """

    running: RunningResolution
    share: float
    entries: list[SegmentEntry]
    gone: int
    transactions_from: int
    counts_copies: bool
    uncounted: bool

    def __init__(self, map_bytes: int, salt: Callable[[], bytes], scratch: str | None = None) -> None:
        self.map_bytes = map_bytes
        self.scratch = scratch
        self._salt = salt
        self._crowding_keys = 0
        self.reset()

    def reset(self, share: float = 1.0) -> None:
        """Discard the map; start with an empty one for this share of the keys."""
        from lastword.resolve.running import RunningResolution

        self.running = RunningResolution(
            map_bytes=self.budget_bytes(share), salt=self._salt(), share=share, scratch=self.scratch
        )
        self.share = share
        self.entries = []
        self.gone = 0
        self.transactions_from = -1
        self.counts_copies = False
        self.uncounted = False

    def budget_bytes(self, share: float) -> int:
        """Return the memory of a map for this share of the keys.

        The error of an estimate falls with the root of the sampled keys: 100,000 of them err by 0.3 %. A
        larger sample would only cost memory, and the bytes of each save.
        """
        if share >= 1.0:
            return self.map_bytes
        return min(max(int(self.map_bytes * _SAMPLE_RATIO), _SAMPLE_BYTES), self.map_bytes)

    @property
    def exact(self) -> bool:
        """Return whether all keys are tracked."""
        return self.share >= 1.0

    @property
    def expected_keys(self) -> int:
        """Return the number of distinct keys, computed from the tracked share of them.

        Without segments: from the part of the log whose keys filled the map, which gives too many if keys
        occur again later. 0: not known.
        """
        return int(self.running.distinct_keys / self.share) if self.entries else self._crowding_keys

    @property
    def first_offset(self) -> int:
        """Return the base offset of the first segment; 0 if there is none."""
        return self.entries[0].base_offset if self.entries else 0

    def facts(self, first: int = 0, end: int | None = None) -> tuple[SegmentFacts, ...]:
        """Return the counts of the segments in the log, or of the entries `first` to before `end`.

        In a sample they count tracked keys only.
        """
        return self.running.facts(self.gone + first, None if end is None else self.gone + end)

    def resolution(self) -> Resolution:
        """Return the result of a full scan, as of now. ValueError for a sample."""
        if not self.exact:
            raise ValueError("a sample decides about no record")
        resolution = self.running.resolution()
        return (
            dataclasses.replace(resolution, segments=resolution.segments[self.gone :])
            if self.gone
            else resolution
        )

    def misfit(self, segments: Sequence[Segment]) -> str:
        """Return why the segments are not the accounted ones; empty: they are.

        Drops segments that left the log at its front.
        """
        if not self.entries:
            return ""
        first = segments[0].base_offset if segments else 0
        left = sum(entry.base_offset < first for entry in self.entries)
        if left == len(self.entries):
            return "all its segments have left the log"
        for entry, segment in zip(self.entries[left:], segments, strict=False):
            if not entry.is_of(segment):
                return f"{segment.file} is not the file that was accounted"
        if len(segments) < len(self.entries) - left:
            return "the log lost segments"
        more = segments[len(self.entries) - left :]
        if more and more[0].base_offset < self.running.limit:
            return "a segment below the limit was not accounted"
        del self.entries[:left]
        self.gone += left
        if self.gone > len(self.entries):
            return "most of its segments have left the log"
        return ""

    def swapped(self, first: int, last: int, published: Segment, write_clock: int) -> None:
        """Replace the entries `first` to `last` by that of one published segment."""
        old = self.entries[first : last + 1]
        self.running.replace_segments(
            self.gone + first,
            self.gone + last,
            published.size,
            published.next_offset,
            forget=not self.counts_copies,
        )
        fresh = SegmentEntry.of(published, write_clock)
        fresh.garbage_age_at = fresh.death_rate_at = write_clock
        fresh.generation = max(entry.generation for entry in old) + 1
        fresh.survived_ratio = published.size / max(sum(entry.size_bytes for entry in old), 1)
        self.entries[first : last + 1] = [fresh]
        self.uncounted |= not self.counts_copies

    def note_clear(self, first: int = 0, end: int | None = None) -> None:
        """Record which segments, or which of the entries `first` to before `end`, have no garbage.

        Such a segment holds no record that another below the limit supersedes, and never will.
        """
        if self.exact:
            for entry, segment in zip(self.entries[first:end], self.facts(first, end), strict=True):
                if not segment.dead_records:
                    entry.clear_to = self.running.limit

    def alone(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these live tombstones, ascending, have no older copy of their key left in the log.

        Independent of counted copies: every segment up to their own was without older copies since they were
        appended.
        """
        if not self.entries or any(segment.aborted_records for segment in self.facts()):
            return np.zeros(offsets.size, np.bool_)  # an aborted copy may be above
        bases = np.array([entry.base_offset for entry in self.entries], np.int64)
        clear_to = np.minimum.accumulate(np.array([entry.clear_to for entry in self.entries], np.int64))
        at = np.searchsorted(bases, offsets, side="right") - 1
        return (at >= 0) & (clear_to[at] > offsets)

    def lowest_superseding(self) -> int:
        """Return an offset below which no record supersedes a record that is still on disk."""
        lowest = self.running.limit
        for index, segment in enumerate(self.facts(), self.gone):
            if segment.dead_records:
                superseding = self.running.lowest_superseding(index)
                if superseding is not None:
                    lowest = min(lowest, superseding)
        return lowest

    # ---------------------------------------------------------------- scan

    def take(
        self,
        new: Sequence[Segment],
        write_clock: int,
        outcomes: TransactionOutcomes | None,
        progress: Callable[[int, int], None] | None,
        threads: int,
        *,
        more: Sequence[Segment],
        place: ScratchPlace | None = None,
    ) -> tuple[int, str]:
        """Add the segments `new`; return the bytes that were read, and why all must be added again.

        If their keys do not fit, or copies must be counted from now on, everything is reset and nothing is
        added. The reason is empty if they were added.

        Args:
            new: The segments.
            write_clock: The drive's time.
            outcomes: Outcomes of transactions.
            progress: Called with (done, total) bytes.
            threads: As for `resolve`.
            more: Segments that will be added next.
            place: `new` is a whole log: let a map of hashes decide, with this place for survivors.
        """
        noted = NotedOutcomes(outcomes) if outcomes is not None else None
        read, why = self._scan(new, write_clock, noted, progress, threads, more, place), ""
        if len(self.entries) == 0:
            why = KEYS_DO_NOT_FIT if place is None else HASHES_UNSURE
        elif self._meets_first_tombstone() and self.uncounted:
            why = "the log has its first tombstone, and copies of keys had not been counted"
            first = self.transactions_from
            self.reset()
            self.counts_copies, self.transactions_from = True, first
        if noted is not None and noted.first >= 0:
            first = self.transactions_from
            self.transactions_from = noted.first if first < 0 else min(first, noted.first)
        return read, why

    def _meets_first_tombstone(self) -> bool:
        """Return whether there is a tombstone, for the first time."""
        if self.counts_copies or not self.exact:
            return False
        self.counts_copies = any(segment.tombstones or segment.due_tombstones for segment in self.facts())
        return self.counts_copies

    def _scan(
        self,
        new: Sequence[Segment],
        write_clock: int,
        outcomes: TransactionOutcomes | None,
        progress: Callable[[int, int], None] | None,
        threads: int,
        more: Sequence[Segment],
        place: ScratchPlace | None,
    ) -> int:
        """Scan the segments; return the bytes read. Without an entry afterwards, the keys did not fit."""
        from lastword.resolve.running import MapFull

        read = done = 0

        def report_progress(done_bytes: int, total_bytes: int) -> None:
            nonlocal done
            done = done_bytes
            if progress is not None:
                progress(read + done_bytes, read + total_bytes)

        def absorb(segments: Sequence[Segment], more: Sequence[Segment]) -> None:
            self.running.add_segments(
                segments,
                outcomes=outcomes,
                progress=report_progress,
                threads=threads,
                forget=not self.counts_copies,
                more=more,
            )

        try:
            if place is not None:
                if not self.running.add_whole(
                    new, place, outcomes=outcomes, progress=report_progress, threads=threads
                ):
                    return done
            elif self.exact:
                absorb(new, more)
            if self.exact:
                self.uncounted |= self.running.forgot_copies
                self.entries += [SegmentEntry.of(segment, write_clock) for segment in new]
                return sum(segment.size for segment in new)
            for number, segment in enumerate(new, 1):
                counted = SelfCounted(segment, self.map_bytes, self._salt(), outcomes)
                absorb([counted], [*new[number:], *more])
                read += segment.size
                if counted.dead_bytes is None:
                    read += segment.size
                self.entries.append(self._sampled_entry(counted, write_clock))
            return read
        except MapFull as full:
            taken = sum(entry.size_bytes for entry in self.entries)
            coming = sum(
                segment.size for segment in (*new, *more) if segment.base_offset >= self.running.limit
            )
            taken_ratio = (taken + done) / max(taken + coming, 1)
            self._crowding_keys = int(full.keys / self.share / max(min(taken_ratio, 1.0), 1 / 64))
            self._sample(taken_ratio)
            return read + done

    def _sample(self, taken_ratio: float) -> None:
        """Reset with a share of the keys, which did not fit. `taken_ratio` of the log filled the map."""
        fitting = self.share * max(min(taken_ratio, 1.0), 1 / 64)
        share = fitting / 2 * self.budget_bytes(0.0) / self.budget_bytes(self.share)
        if share < _SMALLEST_SHARE:
            raise CapacityError(
                f"no key fits a map of {self.map_bytes} bytes", remedy="raise log.cleaner.dedupe.buffer.size"
            )
        first = self.transactions_from
        self.reset(share)
        self.transactions_from = first

    def _sampled_entry(self, segment: SelfCounted, write_clock: int) -> SegmentEntry:
        """Return the entry of a segment; its own duplicates are counted exactly, by a map of its own."""
        entry = SegmentEntry.of(segment, write_clock)
        (seen,) = self.running.facts(-1)
        entry.own_dead_bytes = segment.counted_alone() if segment.dead_bytes is None else segment.dead_bytes
        entry.own_seen_bytes, entry.own_seen_records = seen.dead_bytes, seen.dead_records
        return entry


class SelfCounted(Segment):
    """A segment whose own duplicates are counted while another scan reads it.

    Its chunks go through a map of the segment's keys on their way to the other scan, so that one reading
    serves both.

    Attributes:
        dead_bytes: Garbage within the segment itself, after it was read; None: its keys do not fit the map.
    """

    def __init__(
        self, segment: Segment, map_bytes: int, salt: bytes, outcomes: TransactionOutcomes | None
    ) -> None:
        self.__dict__.update(segment.__dict__)
        self.dead_bytes: int | None = None
        self._segment = segment
        self._map_bytes = map_bytes
        self._salt = salt
        self._outcomes = outcomes

    def chunk_reader(self, *args: Any, **options: Any) -> Iterator[Chunk]:
        """Yield the chunks of the segment."""
        from lastword.resolve.facts import MapFull, Rules, digest_seed_of
        from lastword.resolve.resolver import KeyScan, max_records_of

        reader = self._segment.chunk_reader(*args, **options)
        source = _ReadOnce(self._segment, reader)
        scan = KeyScan(self._map_bytes, self._salt, digest_seed_of(self._salt), Rules.of(-1, NEVER))
        scan.counts.add([self._segment])

        def full(chunk: Chunk) -> None:
            assert scan.map is not None
            if not scan.map.make_room():
                raise MapFull(scan.map.distinct_keys, self._map_bytes)

        try:
            yield from scan.take([source], self._outcomes, partial(max_records_of, [source]), full)
        except MapFull:
            assert source.last is not None
            yield source.last  # it did not reach the other scan
            yield from reader
        else:
            self.dead_bytes = scan.counts.facts()[0].dead_bytes

    def counted_alone(self) -> int:
        """Return the garbage within the segment itself, by a scan in passes."""
        from lastword.resolve import resolve

        scanned = resolve(
            [self._segment], map_bytes=self._map_bytes, salt=self._salt, now_ms=-1, outcomes=self._outcomes
        )
        return scanned.segments[0].dead_bytes


class _ReadOnce(Segment):
    """A segment whose chunks another reader reads, for one scan.

    Attributes:
        last: The chunk that was yielded last.
    """

    def __init__(self, segment: Segment, reader: Iterator[Chunk]) -> None:
        self.__dict__.update(segment.__dict__)
        self.last: Chunk | None = None
        self._reader = reader

    def chunk_reader(self, *args: Any, **options: Any) -> Iterator[Chunk]:
        """Yield the chunks that the reader has left."""
        for chunk in self._reader:
            self.last = chunk
            yield chunk


class NotedOutcomes:
    """Outcomes, and the offset of the first batch of a transaction that was looked up (`first`; -1: none)."""

    def __init__(self, outcomes: TransactionOutcomes) -> None:
        self._outcomes = outcomes
        self.first = -1

    def of_batches(self, batches: BatchColumns) -> NDArray[np.uint8]:
        """Return the outcomes of these batches."""
        if batches.attributes.any():
            first = int(batches.base_offsets[0])
            self.first = first if self.first < 0 else min(self.first, first)
        return self._outcomes.of_batches(batches)
