"""The tracked keys of a ledger: a running map with the segments it covers, all keys of them or a sample.

If the keys do not fit the memory, only those are tracked whose salted hash is in the first `share` of its
range. A sample decides about no record: it is used to choose (`estimates.py`). Duplicates within one segment
are counted exactly in both cases, when the segment is scanned.

Only tombstones need the number of copies of their key. So a log without tombstones is rewritten without
reporting dropped records to the map, which would look up the key of every dead record. The first tombstone
after such a rewrite costs one scan of the log, and from then on copies are counted. Until then keys that only
aborted transactions wrote leave the map when they would crowd it: only their copies needed a place.

`SegmentEntry` describes one segment: which file it is, its age, and the cost of its garbage. Ages and rent
are in units of the drive's time `write_clock`: bytes appended to it.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from lastword.errors import CapacityError, FileVanishedError
from lastword.segment import names
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lastword.resolve import Resolution, SegmentFacts
    from lastword.resolve.facts import TransactionOutcomes
    from lastword.resolve.running import RunningResolution


_MAGIC_POSITION = 16  # of a batch's format, the same in all of them
_TAIL_BYTES = 512


@dataclass(slots=True)
class SegmentEntry:
    """One segment below the limit: which file it is, and its account.

    rate_at, rate_dead   when `death_rate` was taken last, and the garbage then
    rate                 below 0: not taken yet
    own_*                of a sample: garbage within the segment itself when it was scanned, and the part of
                         it that the sample saw (bytes, records)
    generation           how often it was rewritten
    survived_ratio       share of its sources' bytes that the last rewrite kept; below 0: there was none
    clear_to             of each key whose newest record lies below this offset no older one is left here
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
        """Of a file that was read just now."""
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
        """Is it this very file, as it was left? Asks the file, for a segment that was appended to is younger
        than when it was opened; and one of a view may have been replaced by another of its name since."""
        facts = segment.stored.facts()
        return (
            self.base_offset == segment.base_offset
            and self.inode == segment.id.number
            and facts == ((self.inode, self.size_bytes), self.mtime_ms)
        )

    def accrue(self, dead: float, write_clock: int, now_ms: int, *, closed: bool) -> None:
        """Charge the rent since the last look, and take the garbage as it is now. `closed`: something was
        absorbed, so the rate at which it grows can be told."""
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
    """Ages of segments that were scanned just now: what lies above each was appended after it. Their garbage
    is taken to have grown steadily since.

    bytes_above  of the log above the last of them
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
    """Of a ledger that began anew: how old a segment is, keys do not say."""
    known = {entry.base_offset: entry for entry in old}
    for entry in entries:
        before = known.get(entry.base_offset)
        if before is not None and before.inode == entry.inode:
            entry.written_at, entry.generation = before.written_at, before.generation


def tail_crc(segment: Segment) -> int:
    """Checksum of a segment's last bytes, the end of its last batch."""
    if segment.size == 0:
        return 0
    length = min(segment.size, _TAIL_BYTES)
    return int(google_crc32c.value(segment.handle.pread(length, segment.size - length)))


def has_old(segment: Segment) -> bool:
    """Are there messages of magic 0 or 1? Looks at the first batch and at the last one of the index."""
    places = (0, segment.offset_index.last.position)
    magics = [segment.handle.pread(1, position + _MAGIC_POSITION) for position in places]
    return any(magic in (b"\0", b"\1") for magic in magics)


def private_path(directory: str, name: str) -> str:
    return os.path.join(directory, names.PRIVATE, name)


_SMALLEST_SHARE = 2.0**-40
KEYS_DO_NOT_FIT = "its keys do not fit the memory"


@dataclass(frozen=True, slots=True)
class TakenSegments:
    """Bytes that were read, and why all is to be taken anew; empty: it was taken."""

    read_bytes: int
    reset_because: str


class Tracking:
    """The map, and an `SegmentEntry` for each segment that it has taken and that still lies in the log.

    scratch            directory where keys lie; None: in memory
    share              of the keys that are tracked; 1: all of them, and everything is exact
    gone               leading segments of the map that have left the log at its front
    transactions_from  offset of the first transactional batch or marker; -1: none was met
    counts_copies      a tombstone was met, so rewrites tell the map what goes
    uncounted          there was a rewrite that did not, or aborted copies were forgotten: the copies in the
                       map are wrong
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
        self.reset()

    def reset(self, share: float = 1.0) -> None:
        from lastword.resolve.running import RunningResolution

        self.running = RunningResolution(
            map_bytes=self.map_bytes, salt=self._salt(), share=share, scratch=self.scratch
        )
        self.share = share
        self.entries = []
        self.gone = 0
        self.transactions_from = -1
        self.counts_copies = False
        self.uncounted = False

    @property
    def exact(self) -> bool:
        return self.share >= 1.0

    @property
    def first_offset(self) -> int:
        return self.entries[0].base_offset if self.entries else 0

    def facts(self) -> tuple[SegmentFacts, ...]:
        """Of the segments that lie in the log. Of a sample they count tracked keys only."""
        return self.running.facts()[self.gone :]

    def resolution(self) -> Resolution:
        if not self.exact:
            raise ValueError("a sample decides about no record")
        resolution = self.running.resolution()
        return (
            dataclasses.replace(resolution, segments=resolution.segments[self.gone :])
            if self.gone
            else resolution
        )

    def misfit(self, segments: Sequence[Segment]) -> str:
        """Drops what left at the front; else why the rest of the log is not what was taken."""
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
            return "a segment lies below the limit that was not accounted"
        del self.entries[:left]
        self.gone += left
        if self.gone > len(self.entries):
            return "most of its segments have left the log"
        return ""

    def swapped(self, first: int, last: int, published: Segment, write_clock: int) -> None:
        """Entries `first` to `last` are one segment now."""
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

    def note_clear(self) -> None:
        """A segment without garbage holds no record that one below the limit has replaced, and never will."""
        if self.exact:
            for entry, segment in zip(self.entries, self.facts(), strict=True):
                if not segment.dead_records:
                    entry.clear_to = self.running.limit

    def alone(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these live tombstones, ascending, lie in the log and have no older copy of their key left,
        whatever was counted: every segment up to their own was clear of older copies since they came.
        """
        if not self.entries or any(segment.aborted_records for segment in self.facts()):
            return np.zeros(offsets.size, np.bool_)  # an aborted copy may lie above
        bases = np.array([entry.base_offset for entry in self.entries], np.int64)
        clear_to = np.minimum.accumulate(np.array([entry.clear_to for entry in self.entries], np.int64))
        at = np.searchsorted(bases, offsets, side="right") - 1
        return (at >= 0) & (clear_to[at] > offsets)

    def lowest_killer(self) -> int:
        """No record below this offset killed one that still is on disk."""
        lowest = self.running.limit
        for index, segment in enumerate(self.facts(), self.gone):
            if segment.dead_records:
                killer = self.running.lowest_superseding(index)
                if killer is not None:
                    lowest = min(lowest, killer)
        return lowest

    # ---------------------------------------------------------------- scan

    def take(
        self,
        new: Sequence[Segment],
        write_clock: int,
        fates: TransactionOutcomes | None,
        progress: Callable[[int, int], None] | None,
        chunk_bytes: int,
        threads: int,
        *,
        more: Sequence[Segment],
    ) -> TakenSegments:
        """Take the segments `new`. Where keys do not fit, or copies have to be counted from now on, it begins
        anew: then nothing is taken. `more`: will be taken next."""
        noted = NotedFates(fates) if fates is not None else None
        read, why = self._scan(new, write_clock, noted, progress, chunk_bytes, threads, more), ""
        if len(self.entries) == 0:
            why = KEYS_DO_NOT_FIT
        elif self._meets_first_tombstone() and self.uncounted:
            why = "its first tombstone came, and copies of keys had not been counted"
            first = self.transactions_from
            self.reset()
            self.counts_copies, self.transactions_from = True, first
        if noted is not None and noted.first >= 0:
            first = self.transactions_from
            self.transactions_from = noted.first if first < 0 else min(first, noted.first)
        return TakenSegments(read, why)

    def _meets_first_tombstone(self) -> bool:
        """Is there a tombstone, for the first time?"""
        if self.counts_copies or not self.exact:
            return False
        self.counts_copies = any(segment.tombstones or segment.due_tombstones for segment in self.facts())
        return self.counts_copies

    def _scan(
        self,
        new: Sequence[Segment],
        write_clock: int,
        fates: TransactionOutcomes | None,
        progress: Callable[[int, int], None] | None,
        chunk_bytes: int,
        threads: int,
        more: Sequence[Segment],
    ) -> int:
        """The bytes read. Without an entry afterwards: the keys did not fit, and fewer will be looked at."""
        from lastword.resolve.running import MapFull

        read = done = 0

        def tell(done_bytes: int, total_bytes: int) -> None:
            nonlocal done
            done = done_bytes
            if progress is not None:
                progress(read + done_bytes, read + total_bytes)

        def absorb(segments: Sequence[Segment], more: Sequence[Segment]) -> None:
            self.running.add_segments(
                segments,
                outcomes=fates,
                progress=tell,
                chunk_bytes=chunk_bytes,
                threads=threads,
                forget=not self.counts_copies,
                more=more,
            )

        try:
            if self.exact:
                absorb(new, more)
                self.uncounted |= self.running.forgot_copies
                self.entries += [SegmentEntry.of(segment, write_clock) for segment in new]
                return sum(segment.size for segment in new)
            for number, segment in enumerate(new, 1):
                absorb([segment], [*new[number:], *more])
                read += segment.size
                self.entries.append(self._sampled_entry(segment, write_clock, fates))
                read += segment.size
            return read
        except MapFull:
            taken = sum(entry.size_bytes for entry in self.entries)
            coming = sum(
                segment.size for segment in (*new, *more) if segment.base_offset >= self.running.limit
            )
            self._sample((taken + done) / max(taken + coming, 1))
            return read + done

    def _sample(self, taken_ratio: float) -> None:
        """The keys do not fit: begin anew with a share of them. `taken_ratio` of the log filled the map."""
        share = self.share * max(min(taken_ratio, 1.0), 1 / 64) / 2
        if share < _SMALLEST_SHARE:
            raise CapacityError(
                f"no key fits a map of {self.map_bytes} bytes", remedy="raise log.cleaner.dedupe.buffer.size"
            )
        first = self.transactions_from
        self.reset(share)
        self.transactions_from = first

    def _sampled_entry(
        self, segment: Segment, write_clock: int, fates: TransactionOutcomes | None
    ) -> SegmentEntry:
        """Duplicates within a segment are counted exactly, by a map of its own."""
        from lastword.resolve import resolve

        entry = SegmentEntry.of(segment, write_clock)
        seen = self.running.facts()[-1]
        alone = resolve([segment], map_bytes=self.map_bytes, salt=self._salt(), now_ms=-1, outcomes=fates)
        entry.own_dead_bytes = alone.segments[0].dead_bytes
        entry.own_seen_bytes, entry.own_seen_records = seen.dead_bytes, seen.dead_records
        return entry


class NotedFates:
    """Outcomes, and the position of the first batch whose outcome was read (`first`; -1: none)."""

    def __init__(self, fates: TransactionOutcomes) -> None:
        self._fates = fates
        self.first = -1

    def fates(
        self,
        attributes: NDArray[np.int64],
        producer_ids: NDArray[np.int64],
        base_offsets: NDArray[np.int64],
        last_offsets: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        first = int(base_offsets[0])
        self.first = first if self.first < 0 else min(self.first, first)
        return self._fates.fates(attributes, producer_ids, base_offsets, last_offsets)
