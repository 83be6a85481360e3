"""The keys that are tracked: a running map with the segments it has taken, all keys of them or a sample.

Where the keys do not fit the memory, those are tracked whose salted hash lies in the first `share` of its
range. A sample decides the fate of no record: it is there to choose by (`statement.py`). Duplicates within
one segment are counted exactly all the same, when it is scanned.

Only a tombstone asks how many copies of its key are left. So a log without tombstones is rewritten without
telling the map what goes, which would look every dead record's key up; the first tombstone that comes after
such a rewrite costs one scan of the log, and from then on copies are counted. Until then keys that only
aborted transactions wrote leave the map when they would crowd it: only their copies were worth a place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastword.accounts.entries import Entry
from lastword.errors import CapacityError
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lastword.resolve import Resolution, SegmentFacts
    from lastword.resolve.facts import Fates
    from lastword.resolve.running import RunningResolution

_SMALLEST_SHARE = 2.0**-40
KEYS_DO_NOT_FIT = "its keys do not fit the memory"


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes that were read, and why all is to be taken anew; empty: it was taken."""

    read_bytes: int
    begun_anew: str


class Tracking:
    """The map, and an `Entry` for each segment that it has taken and that still lies in the log.

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
    entries: list[Entry]
    gone: int
    transactions_from: int
    counts_copies: bool
    uncounted: bool

    def __init__(self, map_bytes: int, salt: Callable[[], bytes], scratch: str | None = None) -> None:
        self.map_bytes = map_bytes
        self.scratch = scratch
        self._salt = salt
        self.begin_anew()

    def begin_anew(self, share: float = 1.0) -> None:
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
        found = self.running.resolution()
        return dataclasses.replace(found, segments=found.segments[self.gone :]) if self.gone else found

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

    def swapped(self, first: int, last: int, published: Segment, t: int) -> None:
        """Entries `first` to `last` are one segment now."""
        old = self.entries[first : last + 1]
        self.running.swapped(
            self.gone + first,
            self.gone + last,
            published.size,
            published.next_offset,
            forget=not self.counts_copies,
        )
        fresh = Entry.of(published, t)
        fresh.rent_at = fresh.rate_at = t
        fresh.generation = max(one.generation for one in old) + 1
        fresh.survived_ratio = published.size / max(sum(one.size_bytes for one in old), 1)
        self.entries[first : last + 1] = [fresh]
        self.uncounted |= not self.counts_copies

    def note_clear(self) -> None:
        """A segment without garbage holds no record that one below the limit has replaced, and never will."""
        if self.exact:
            for entry, one in zip(self.entries, self.facts(), strict=True):
                if not one.dead_records:
                    entry.clear_to = self.running.limit

    def alone(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these live tombstones, ascending, lie in the log and have no older copy of their key left,
        whatever was counted: every segment up to their own was clear of older copies since they came.
        """
        if not self.entries or any(one.aborted_records for one in self.facts()):
            return np.zeros(offsets.size, np.bool_)  # an aborted copy may lie above
        bases = np.array([one.base_offset for one in self.entries], np.int64)
        clear_to = np.minimum.accumulate(np.array([one.clear_to for one in self.entries], np.int64))
        at = np.searchsorted(bases, offsets, side="right") - 1
        return (at >= 0) & (clear_to[at] > offsets)

    def lowest_killer(self) -> int:
        """No record below this offset killed one that still is on disk."""
        lowest = self.running.limit
        for index, one in enumerate(self.facts(), self.gone):
            if one.dead_records:
                killer = self.running.lowest_killer(index)
                if killer is not None:
                    lowest = min(lowest, killer)
        return lowest

    # ---------------------------------------------------------------- scan

    def take(
        self,
        new: Sequence[Segment],
        t: int,
        fates: Fates | None,
        progress: Callable[[int, int], None] | None,
        chunk_bytes: int,
        threads: int,
        *,
        more: Sequence[Segment],
    ) -> Taken:
        """Take the segments `new`. Where keys do not fit, or copies have to be counted from now on, it begins
        anew: then nothing is taken. `more`: will be taken next."""
        noted = NotedFates(fates) if fates is not None else None
        read, why = self._scan(new, t, noted, progress, chunk_bytes, threads, more), ""
        if len(self.entries) == 0:
            why = KEYS_DO_NOT_FIT
        elif self._meets_first_tombstone() and self.uncounted:
            why = "its first tombstone came, and copies of keys had not been counted"
            first = self.transactions_from
            self.begin_anew()
            self.counts_copies, self.transactions_from = True, first
        if noted is not None and noted.first >= 0:
            first = self.transactions_from
            self.transactions_from = noted.first if first < 0 else min(first, noted.first)
        return Taken(read, why)

    def _meets_first_tombstone(self) -> bool:
        """Is there a tombstone, for the first time?"""
        if self.counts_copies or not self.exact:
            return False
        self.counts_copies = any(one.tombstones or one.due_tombstones for one in self.facts())
        return self.counts_copies

    def _scan(
        self,
        new: Sequence[Segment],
        t: int,
        fates: Fates | None,
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
            self.running.absorb(
                segments,
                fates=fates,
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
                self.entries += [Entry.of(one, t) for one in new]
                return sum(one.size for one in new)
            for number, one in enumerate(new, 1):
                absorb([one], [*new[number:], *more])
                read += one.size
                self.entries.append(self._sampled_entry(one, t, fates))
                read += one.size
            return read
        except MapFull:
            taken = sum(one.size_bytes for one in self.entries)
            coming = sum(one.size for one in (*new, *more) if one.base_offset >= self.running.limit)
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
        self.begin_anew(share)
        self.transactions_from = first

    def _sampled_entry(self, one: Segment, t: int, fates: Fates | None) -> Entry:
        """Duplicates within a segment are counted exactly, by a map of its own."""
        from lastword.resolve import resolve

        entry = Entry.of(one, t)
        seen = self.running.facts()[-1]
        alone = resolve([one], map_bytes=self.map_bytes, salt=self._salt(), now_ms=-1, fates=fates)
        entry.own_dead_bytes = alone.segments[0].dead_bytes
        entry.own_seen_bytes, entry.own_seen_records = seen.dead_bytes, seen.dead_records
        return entry


class NotedFates:
    """Fates, and where the first batch was met whose fate somebody asked for (`first`; -1: nowhere)."""

    def __init__(self, fates: Fates) -> None:
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
