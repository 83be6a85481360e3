"""The garbage accounts of one partition: kept in memory between rounds, saved over restarts, never believed
when anything does not fit.

A ledger holds the running map and bits of `resolve.running` up to its limit, and for each segment below it
what choosing asks for: rent, rate, age, generation. Each closed segment is scanned once, when it falls below
the limit; from then on its garbage is known exactly.

    look      `fit` (does the log still lie there as it was left?), `absorb` (what is new), `mark_due`
    choose    `account`
    rewrite   `resolution`, `sources` (tell the map what a rewrite drops), after each durable swap `swapped`
    keep      `save`, where that costs less than the scan it spares

Only a tombstone asks how many copies of its key are left. So a log without tombstones is rewritten without
telling the map what goes, which would look every dead record's key up; the first tombstone that comes after
such a rewrite costs one scan of the log, and from then on copies are counted.

While a rewrite is under way the map only notes what goes; `swapped` counts it, `give_up` forgets it. A round
that fails in the very swap cannot know which of the two holds: it spoils the ledger, which is thrown away.
What was saved before is then true of the log, or does not fit it.

Where the keys do not fit the memory, a sample of them is tracked: those whose salted hash lies in the first
`share` of its range. The dead of the sample, divided by the share, are the dead: an estimate to choose by. It
decides the fate of no record. Duplicates within one segment are counted exactly all the same, when it is
scanned. With too few sampled keys for a segment the estimate of the whole log is spread over the segments by
`survivorship`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from lastword.accounts import snapshot
from lastword.accounts.clocks import TombstoneClocks
from lastword.accounts.survivorship import Survivorship
from lastword.accounts.values import PartitionAccount, SegmentAccount
from lastword.errors import CapacityError, CorruptFileError, FileVanishedError
from lastword.files import Files
from lastword.records.chunk import CHUNK_BYTES, Chunk
from lastword.segment import names
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from lastword.config import TopicConfig
    from lastword.resolve import DeadBitmaps, Resolution, SegmentFacts
    from lastword.resolve.facts import Fates
    from lastword.resolve.running import RunningResolution

NO_FLOOR = (1 << 63) - 1
FEWEST_SAMPLED_KEYS = 250
"""Below this a segment thought clean may stay so for long: then the estimate of the whole is spread."""
_VERSION = 2
_MAGIC_POSITION = 16  # of a batch's format, the same in all of them
_TAIL_BYTES = 512
_SMALLEST_SHARE = 2.0**-40


@dataclass(slots=True)
class Entry:
    """One segment below the limit: which file it is, and its account.

    rate_at, rate_dead   when `rate` was taken last, and the garbage then
    rate                 below 0: not taken yet
    own_*                of a sample: garbage within the segment itself when it was scanned, and the part of
                         it that the sample saw (bytes, records)
    generation           how often it was rewritten
    survived_ratio       share of its sources' bytes that the last rewrite kept; below 0: there was none
    """

    base_offset: int
    inode: int
    size_bytes: int
    mtime_ms: int
    tail_crc: int
    written_at: int
    dead_bytes: float = 0.0
    rent: float = 0.0
    rent_at: int = 0
    rate: float = -1.0
    rate_at: int = 0
    rate_dead: float = 0.0
    oldest_dead_ms: int = -1
    own_dead_bytes: int = 0
    own_seen_bytes: int = 0
    own_seen_records: int = 0
    generation: int = 0
    survived_ratio: float = -1.0

    def is_of(self, segment: Segment) -> bool:
        """Is it this very file, as it was left? Asks the file, for a segment that was appended to is younger
        than when it was opened."""
        facts = segment.files.stat(segment.file)
        return (
            self.base_offset == segment.base_offset
            and facts is not None
            and (self.inode, self.size_bytes, self.mtime_ms) == (facts.inode, facts.size, facts.mtime_ms)
        )


class Ledger:
    """Accounts of the partition in `directory`. Not safe from several threads at once.

    rebuilt_because  why nothing that was saved is used; empty: it was, or there was nothing
    share            of the keys that are tracked; 1: all of them, and everything is exact
    scanned_bytes    read from the log since the ledger was made or saved
    t, seen          the drive's time at the last look, and how far the log went then: base offset and size of
                     its active segment
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        map_bytes: int,
        salt: Callable[[], bytes] = lambda: os.urandom(16),
        rebuilt_because: str = "",
    ) -> None:
        self.files = files
        self.directory = directory
        self.map_bytes = map_bytes
        self.rebuilt_because = rebuilt_because
        self.spoiled = False
        self.t = 0
        self.seen = (-1, 0)
        self.scanned_bytes = 0
        self.survivorship = Survivorship.load(files, _path(directory, names.SURVIVORSHIP))
        self._salt = salt
        self._learned = False
        self._fresh()

    def _fresh(self, share: float = 1.0) -> None:
        from lastword.resolve.running import RunningResolution

        self.running: RunningResolution = RunningResolution(
            map_bytes=self.map_bytes, salt=self._salt(), share=share
        )
        self.share = share
        self.entries: list[Entry] = []
        self.clocks = TombstoneClocks(most=max(self.map_bytes // 8 // 16, 1024))
        self.due: NDArray[np.int64] = np.empty(0, np.int64)
        self.transactions_from = -1
        self.ends_old = False
        self._counts_copies = False  # a tombstone was met, so rewrites tell the map what goes
        self._uncounted = False  # there was a rewrite that did not: the copies in the map are too many
        self._gone = 0  # leading segments of `running` that have left the log at its front
        self._changed = True
        self._tombstones: Any = None

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        segments: Sequence[Segment],
        *,
        map_bytes: int,
        salt: Callable[[], bytes] = lambda: os.urandom(16),
    ) -> Ledger:
        """What was saved, if it speaks of `segments` (all of the log, ascending) as they are; else a fresh
        one. Never raises for what the file holds."""
        path = _path(directory, names.ACCOUNTS)
        try:
            found = snapshot.load(files, path, room={"map_arena": map_bytes & ~7})
            if found is None:
                return cls(files, directory, map_bytes=map_bytes, salt=salt)
            ledger = cls(files, directory, map_bytes=map_bytes, salt=salt)
            why = ledger._restore(found, segments)
        except CorruptFileError as error:
            why = f"damaged: {error.message}"
        except (KeyError, TypeError, ValueError, IndexError):
            why = "damaged: what it holds does not belong together"
        if why:
            return cls(files, directory, map_bytes=map_bytes, salt=salt, rebuilt_because=why)
        return ledger

    # ---------------------------------------------------------------- what it knows

    @property
    def limit(self) -> int:
        """One past the last offset that was taken."""
        return self.running.limit

    @property
    def exact(self) -> bool:
        return self.share >= 1.0

    @property
    def counts_copies(self) -> bool:
        """Must a rewrite tell the map what it drops? Only for a log that has, or had, tombstones."""
        return self._counts_copies

    @property
    def memory_bytes(self) -> int:
        return self.running.memory_bytes + self.clocks.memory_bytes + 200 * len(self.entries)

    def facts(self) -> tuple[SegmentFacts, ...]:
        """Of the segments below the limit. Of a sample they count tracked keys only."""
        return self.running.facts()[self._gone :]

    def resolution(self) -> Resolution:
        """As if the log had been resolved now, up to the limit. Only while `exact`."""
        if not self.exact:
            raise ValueError("a sample decides about no record")
        found = self.running.resolution()
        return dataclasses.replace(found, segments=found.segments[self._gone :]) if self._gone else found

    def tombstones(self) -> Any:
        """Live ones, ascending by offset; of segments that have left the log, too."""
        if self._tombstones is None:
            self._tombstones = self.running.tombstones()
        return self._tombstones

    # ---------------------------------------------------------------- look

    def fit(self, segments: Sequence[Segment]) -> bool:
        """Does the log still lie there as it was left? If not, the ledger begins anew.

        Segments that left at the front are no surprise: what is known of the others stays true. But when
        they outweigh those that are left, beginning anew is cheaper than carrying their keys along.
        """
        why = self._misfit(segments)
        if not why and not self.spoiled:
            return True
        self.begin_anew(why or "a round did not come to its end")
        return False

    def begin_anew(self, why: str) -> None:
        """Throw away what is known."""
        self.rebuilt_because = why
        self.spoiled = False
        self._fresh()

    def hold_back(self, floor: int) -> bool:
        """A reader has yet to read from `floor` on. If a tombstone there counts as garbage already, the
        ledger begins anew, for what it took off its key is not kept: True."""
        if not self.due.size or int(self.due[-1]) < floor:
            return False
        self.rebuilt_because = "a lease was taken below a tombstone that was due"
        self._fresh()
        return True

    def _misfit(self, segments: Sequence[Segment]) -> str:
        """Drops what left at the front; else why the rest is not what was accounted."""
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
        if more and more[0].base_offset < self.limit:
            return "a segment lies below the limit that was not accounted"
        self._leave(left)
        if self._gone > len(self.entries):
            return "most of its segments have left the log"
        return ""

    def _leave(self, count: int) -> None:
        if count:
            del self.entries[:count]
            self._gone += count
            self._changed = True

    def absorb(
        self,
        segments: Sequence[Segment],
        limit: int,
        *,
        t: int,
        now_ms: int,
        fates: Fates | None = None,
        progress: Callable[[int, int], None] | None = None,
        bytes_above: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> int:
        """Scan the segments (of all of the log's, ascending) that lie between the own limit and `limit`;
        returns the bytes read. `fit` comes first.

        Nothing there may ever be taken back: it is synced, closed and decided. `t`: the drive's time;
        `bytes_above`: of the log above `limit`, so that the age of each segment can be told.
        """
        below = [one for one in segments if one.next_offset <= limit and one.base_offset < limit]
        new = [one for one in below if one.base_offset >= self.limit]
        self.t = max(self.t, t)
        if not new:
            self._accrue(now_ms)
            return 0
        noted = _Noted(fates) if fates is not None else None
        known, old, share = len(self.entries), self.entries, self.share
        self.spoiled = True  # a scan that is given up in its middle leaves no account
        read = self._scan(below, new, noted, progress, chunk_bytes)
        self.spoiled = False
        if self._meets_first_tombstone() and self._uncounted:
            transactions_from, before = self.transactions_from, self.entries[:known]
            self.begin_anew("its first tombstone came, and copies of keys had not been counted")
            self._counts_copies = True
            self.transactions_from = transactions_from
            self.spoiled = True
            read += self._scan(below, below, noted, progress, chunk_bytes)
            self.spoiled = False
            known, old = 0, before
            share = -1.0  # ages are known, although the ledger began anew
        if self.share != share:
            known = 0
        if noted is not None and noted.first >= 0:
            first = self.transactions_from
            self.transactions_from = noted.first if first < 0 else min(first, noted.first)
        self._touched()
        self.scanned_bytes += read
        last = next((one for one in reversed(new) if one.size), None)
        if last is not None:
            self.ends_old = _has_old(last)
        self._begin(known, bytes_above)
        if self.share != share:
            self._keep_ages(old)
        self._accrue(now_ms, closed=True)
        return read

    def _meets_first_tombstone(self) -> bool:
        """Is there a tombstone, for the first time in the ledger's life?"""
        if self._counts_copies or not self.exact:
            return False
        self._counts_copies = any(one.tombstones or one.due_tombstones for one in self.running.facts())
        return self._counts_copies

    def _scan(
        self,
        below: Sequence[Segment],
        new: Sequence[Segment],
        fates: Fates | None,
        progress: Callable[[int, int], None] | None,
        chunk_bytes: int,
    ) -> int:
        from lastword.resolve.running import MapFull

        read, done = 0, 0

        def tell(done_bytes: int, total_bytes: int) -> None:
            nonlocal done
            done = done_bytes
            if progress is not None:
                progress(read + done_bytes, read + total_bytes)

        wanted = list(new)
        while True:
            try:
                if self.exact:
                    self.running.absorb(wanted, fates=fates, progress=tell, chunk_bytes=chunk_bytes)
                    self.entries += [_entry(one, self.t) for one in wanted]
                    return read + sum(one.size for one in wanted)
                for one in wanted:
                    self.running.absorb([one], fates=fates, progress=tell, chunk_bytes=chunk_bytes)
                    read += one.size
                    self.entries.append(self._sampled_entry(one, fates))
                    read += one.size
                return read
            except MapFull:
                taken = sum(one.size_bytes for one in self.entries) + done
                read += done
                self._sample(taken / max(sum(one.size for one in below), 1))
                wanted = list(below)

    def _sample(self, taken_ratio: float) -> None:
        """The keys do not fit: begin anew with a share of them. `taken_ratio` of the log filled the map."""
        share = self.share * max(min(taken_ratio, 1.0), 1 / 64) / 2
        if share < _SMALLEST_SHARE:
            raise CapacityError(
                f"no key fits a map of {self.map_bytes} bytes", remedy="raise log.cleaner.dedupe.buffer.size"
            )
        first = self.transactions_from
        self._fresh(share)
        self.transactions_from = first

    def _sampled_entry(self, one: Segment, fates: Fates | None) -> Entry:
        """Duplicates within a segment are counted exactly, by a map of its own."""
        from lastword.resolve import resolve

        entry = _entry(one, self.t)
        seen = self.running.facts()[-1]
        alone = resolve([one], map_bytes=self.map_bytes, salt=self._salt(), now_ms=-1, fates=fates)
        entry.own_dead_bytes = alone.segments[0].dead_bytes
        entry.own_seen_bytes, entry.own_seen_records = seen.dead_bytes, seen.dead_records
        return entry

    def _keep_ages(self, old: Sequence[Entry]) -> None:
        """Of a ledger that began anew with fewer keys: how old a segment is, keys do not say."""
        known = {one.base_offset: one for one in old}
        for entry in self.entries:
            before = known.get(entry.base_offset)
            if before is not None and before.inode == entry.inode:
                entry.written_at, entry.generation = before.written_at, before.generation

    def _begin(self, known: int, bytes_above: int) -> None:
        """Ages of the segments that were scanned just now: what lies above each was appended after it. Their
        garbage is taken to have grown steadily since.
        """
        above = bytes_above
        estimates = self._dead_bytes()
        for entry, dead in zip(reversed(self.entries[known:]), reversed(estimates[known:]), strict=True):
            entry.written_at = self.t - above
            entry.rent_at = entry.rate_at = self.t
            entry.rent = dead * above / 2
            entry.rate = dead / above if above else -1.0
            entry.rate_dead = dead
            above += entry.size_bytes

    def _accrue(self, now_ms: int, *, closed: bool = False) -> None:
        """Charge the rent since the last look, and take the garbage as it is now."""
        for entry, dead in zip(self.entries, self._dead_bytes(), strict=True):
            entry.rent += entry.dead_bytes * (self.t - entry.rent_at)
            entry.rent_at = self.t
            entry.dead_bytes = dead
            if dead <= 0:
                entry.oldest_dead_ms = -1
            elif entry.oldest_dead_ms < 0:
                entry.oldest_dead_ms = now_ms
            passed = self.t - entry.rate_at
            if closed and passed > 0:
                recent = (dead - entry.rate_dead) / passed
                age = max(self.t - entry.written_at, 1)
                if entry.rate < 0:
                    entry.rate = recent
                else:
                    entry.rate += (1 - math.exp(-4 * passed / age)) * (recent - entry.rate)
                entry.rate = max(entry.rate, 0.0)
                entry.rate_at, entry.rate_dead = self.t, dead

    def mark_due(self, now_ms: int, delete_retention_ms: int, *, floor: int = NO_FLOOR) -> int:
        """Tombstones whose time has come are garbage from now on; returns how many became so.

        `floor`: the lowest offset that a reader with a lease has yet to read. In a log that ends with a
        message of an old format that one stays: no empty batch could take its place, and without it the
        log's end would be out of reach.
        """
        if not self.exact:
            return 0
        found = self.tombstones()
        self.clocks.update(found, now_ms)
        keep = self.limit - 1 if self.ends_old else -1
        due = self.clocks.due(found, now_ms, delete_retention_ms, floor=floor, keep=keep)
        due = due[due >= self._first_offset]
        if due.size:
            self.running.mark_due(due)
            self.due = np.union1d(self.due, due)
            self._touched()
            self.clocks.update(self.tombstones(), now_ms)
            self._accrue(now_ms)
        return int(due.size)

    def due_ms(self, offset: int, delete_retention_ms: int) -> int | None:
        """When the tombstone at `offset` may go, in ms since 1970 (0: it is garbage already); None while no
        clock runs for it."""
        if (self.due == offset).any():
            return 0
        at = int(np.searchsorted(self.clocks.offset, offset))
        if at == len(self.clocks) or self.clocks.offset[at] != offset:
            return None
        return int(self.clocks.due_ms(self.tombstones(), delete_retention_ms)[at])

    def next_due(self, delete_retention_ms: int) -> tuple[int, int]:
        """(offset, ms) of the tombstone that is due next; (-1, -1) while no clock runs. After `mark_due`."""
        return self.clocks.first_due(self.tombstones(), delete_retention_ms)

    # ---------------------------------------------------------------- choose

    def account(
        self,
        config: TopicConfig,
        *,
        topic: str,
        partition: int,
        drive: str,
        total_bytes: int,
        log_start: int,
        quarantined: bool = False,
        strategy: str = "generational",
    ) -> PartitionAccount:
        """All that choosing asks for, as a value."""
        facts = self.facts()
        blocked = self._blocked_bytes(facts)
        segments = []
        for entry, one, dead, held in zip(self.entries, facts, self._dead_bytes(), blocked, strict=True):
            died = max(one.dead_records - entry.own_seen_records, 0) / self.share
            noise = math.sqrt((1 / self.share - 1) * died) / one.records if one.records else 0.0
            segments.append(
                SegmentAccount(
                    base_offset=one.base_offset,
                    next_offset=one.next_offset,
                    size_bytes=entry.size_bytes,
                    records=one.records,
                    dead_records=one.dead_records if self.exact else min(round(died), one.records),
                    dead_bytes=round(dead),
                    tombstones=round(one.tombstones / self.share),
                    blocked_tombstone_bytes=held,
                    rent=entry.rent,
                    rent_at=entry.rent_at,
                    written_at=entry.written_at,
                    rate=max(entry.rate, 0.0),
                    oldest_dead_ms=entry.oldest_dead_ms,
                    exact=self.exact,
                    error_ratio=min(noise, 1.0),
                )
            )
        return PartitionAccount(
            topic=topic,
            partition=partition,
            drive=drive,
            segments=tuple(segments),
            total_bytes=total_bytes,
            limit=self.limit,
            log_start=log_start,
            segment_bytes=config.segment_bytes,
            min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            quarantined=quarantined,
            strategy=strategy,
        )

    def _dead_bytes(self) -> list[float]:
        """Garbage of each segment; of a sample as estimated."""
        facts = self.facts()
        if self.exact:
            return [float(one.dead_bytes) for one in facts]
        found = [
            min(
                entry.own_dead_bytes + max(one.dead_bytes - entry.own_seen_bytes, 0) / self.share,
                float(entry.size_bytes),
            )
            for entry, one in zip(self.entries, facts, strict=True)
        ]
        records = sum(one.records for one in facts)
        if records and self.share * records / len(facts) < FEWEST_SAMPLED_KEYS:
            sizes = [entry.size_bytes for entry in self.entries]
            ages = [self.t - entry.written_at for entry in self.entries]
            live = self.survivorship.spread(sizes, ages, sum(sizes) - sum(found))
            return [max(size - one, 0.0) for size, one in zip(sizes, live, strict=True)]
        return found

    def _blocked_bytes(self, facts: Sequence[SegmentFacts]) -> list[int]:
        if not facts or not self.exact or not any(one.tombstones for one in facts):
            return [0] * len(facts)
        found = self.tombstones()
        held = (found.copies > 1) & (found.offset >= self._first_offset)
        bases = np.array([one.base_offset for one in facts], np.int64)
        at = np.searchsorted(bases, found.offset[held], side="right") - 1
        return np.bincount(at, found.size_bytes[held], len(facts)).astype(np.int64).tolist()

    def blocked_segments(self) -> frozenset[int]:
        """Base offsets of the segments that hold a tombstone which an older copy of its key holds back."""
        facts = self.facts()
        held = self._blocked_bytes(facts)
        return frozenset(one.base_offset for one, size in zip(facts, held, strict=True) if size)

    @property
    def _first_offset(self) -> int:
        return self.entries[0].base_offset if self.entries else 0

    # ---------------------------------------------------------------- rewrite

    def sources(self, segments: Sequence[Segment], dead: DeadBitmaps) -> list[Watched]:
        """The same segments, to be rewritten: each chunk that is read tells the map what it loses. Then comes
        `swapped` or `give_up`."""
        return [Watched(one, self, dead) for one in segments]

    def due_between(self, first_offset: int, next_offset: int) -> int:
        """Highest offset of a tombstone that goes when this range is rewritten; -1: none does."""
        within = self.due[(self.due >= first_offset) & (self.due < next_offset)]
        return int(within[-1]) if within.size else -1

    def give_up(self) -> None:
        """The rewrite under way was not published: its sources stay as they are."""
        if self.exact:
            self.running.abandon()

    def swapped(self, first_base: int, last_base: int, published: Segment, alpha: float) -> None:
        """Those segments, and all between, are one now, durably."""
        bases = [one.base_offset for one in self.entries]
        first, last = bases.index(first_base), bases.index(last_base)
        old = self.entries[first : last + 1]
        for entry, dead in zip(old, self._dead_bytes()[first : last + 1], strict=True):
            self.survivorship.observe(
                self.t - entry.written_at, entry.size_bytes, round(entry.size_bytes - dead), alpha
            )
        end = self.facts()[last].next_offset
        self.running.swapped(self._gone + first, self._gone + last, published.size, published.next_offset)
        self._uncounted |= not self._counts_copies
        fresh = _entry(published, self.t)
        fresh.rent_at = fresh.rate_at = self.t
        fresh.generation = max(one.generation for one in old) + 1
        fresh.survived_ratio = published.size / max(sum(one.size_bytes for one in old), 1)
        self.entries[first : last + 1] = [fresh]
        self.due = self.due[(self.due < first_base) | (self.due >= end)]
        self._learned = True
        self._touched()

    def first_dirty_for_kafka(self) -> int:
        """What a Kafka that takes over may count as clean: no record that killed one which still is on disk
        lies below. With a higher one it would drop a tombstone and keep the old value."""
        if not self.exact or self.spoiled:
            return self._first_offset
        lowest = self.limit
        for index, one in enumerate(self.facts(), self._gone):
            if one.dead_records:
                killer = self.running.lowest_killer(index)
                if killer is not None:
                    lowest = min(lowest, killer)
        return lowest

    # ---------------------------------------------------------------- keep

    @property
    def worth_saving(self) -> bool:
        """Is there something new, and did more bytes go into it than saving costs?"""
        return self._changed and not self.spoiled and self.scanned_bytes >= self.memory_bytes

    def save(self) -> bool:
        """Write the snapshot, durably; False where nothing changed, or where it would be larger than the log
        that it spares to read. The order: private directory, file, rename, directory."""
        log_bytes = sum(one.size_bytes for one in self.entries)
        if self.spoiled or not self._changed or not self.entries or self.memory_bytes > 2 * log_bytes + 65536:
            return False
        private = os.path.join(self.directory, names.PRIVATE)
        if not self.files.exists(private):
            self.files.mkdir(private)
            self.files.fsync_dir(self.directory)
        header: dict[str, Any] = {
            "version": _VERSION,
            "t": self.t,
            "seen": list(self.seen),
            "share": self.share,
            "gone": self._gone,
            "transactions_from": self.transactions_from,
            "ends_old": self.ends_old,
            "counts_copies": self._counts_copies,
            "uncounted": self._uncounted,
            "segments": [list(dataclasses.astuple(one)) for one in self.entries],
        }
        arrays: dict[str, NDArray[Any]] = {
            "clock_offset": self.clocks.offset,
            "clock_since_ms": self.clocks.since_ms,
            "due": self.due,
        }
        plain: dict[str, Any] = {}
        for name, value in self.running.to_parts().items():
            if isinstance(value, np.ndarray):
                arrays[f"map_{name}"] = value
            else:
                plain[name] = value
        header["map"] = plain
        snapshot.save(self.files, _path(self.directory, names.ACCOUNTS), header, arrays)
        if self._learned:
            self.survivorship.save(self.files, _path(self.directory, names.SURVIVORSHIP))
            self._learned = False
        self._changed = False
        self.scanned_bytes = 0
        return True

    def _restore(self, found: snapshot.Snapshot, segments: Sequence[Segment]) -> str:
        """Take what was saved, if it is of these segments; else why not."""
        from lastword.resolve.running import MapFull, RunningResolution

        header, arrays = found.header, found.arrays
        if header["version"] != _VERSION:
            return "saved by another version"
        entries = [Entry(*values) for values in header["segments"]]
        parts: dict[str, Any] = dict(header["map"])
        parts.update({n.removeprefix("map_"): a for n, a in arrays.items() if n.startswith("map_")})
        self.entries = entries
        self.share = float(header["share"])
        try:
            self.running = RunningResolution.from_parts(parts, map_bytes=self.map_bytes, give=True)
        except MapFull:
            return "it does not fit the memory that it may take now"
        self._gone = int(header["gone"])
        why = self._misfit(segments)
        if why:
            return why
        for entry, segment in zip(self.entries, segments, strict=False):
            if tail_crc(segment) != entry.tail_crc:
                return f"{segment.file} ends otherwise than when it was accounted"
        if [one.base_offset for one in self.facts()] != [one.base_offset for one in self.entries]:
            return "its map is of other segments"
        self.clocks.offset, self.clocks.since_ms = arrays["clock_offset"], arrays["clock_since_ms"]
        self.due = arrays["due"]
        self.transactions_from = int(header["transactions_from"])
        self.ends_old = bool(header["ends_old"])
        self._counts_copies = bool(header["counts_copies"])
        self._uncounted = bool(header["uncounted"])
        self.t = int(header["t"])
        self.seen = (int(header["seen"][0]), int(header["seen"][1]))
        self._changed = False
        return ""

    def _touched(self) -> None:
        self._tombstones = None
        self._changed = True


class Watched(Segment):
    """A segment that is being rewritten; see `Ledger.sources`."""

    def __init__(self, segment: Segment, ledger: Ledger, dead: DeadBitmaps) -> None:
        self.__dict__.update(segment.__dict__)  # the same file, and the same open handle
        self._ledger = ledger
        self._dead = dead

    def chunk_reader(self, *args: Any, **options: Any) -> Iterator[Chunk]:
        tells = self._ledger.exact and self._ledger.counts_copies
        if tells:
            options.pop("unwanted", None)  # of a dead record the key is wanted: it has one copy less
        for chunk in super().chunk_reader(*args, **options):
            if tells:
                self._ledger.running.dropping(chunk, self._dead)
            yield chunk


class _Noted:
    """Fates, and where the first batch was met whose fate somebody asked for."""

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


def tail_crc(segment: Segment) -> int:
    """Checksum of a segment's last bytes, the end of its last batch."""
    if segment.size == 0:
        return 0
    length = min(segment.size, _TAIL_BYTES)
    return int(google_crc32c.value(segment.handle.pread(length, segment.size - length)))


def _has_old(segment: Segment) -> bool:
    """Are there messages of magic 0 or 1? Looks at the first batch and at the last one of the index."""
    places = (0, segment.offset_index.last.position)
    found = [segment.handle.pread(1, position + _MAGIC_POSITION) for position in places]
    return any(magic in (b"\0", b"\1") for magic in found)


def saved_entries(files: Files, directory: str) -> list[Entry]:
    """What was saved of each segment, unchecked: for figures that nothing relies on."""
    header = snapshot.load_header(files, _path(directory, names.ACCOUNTS))
    try:
        if header is not None and header["version"] == _VERSION:
            return [Entry(*values) for values in header["segments"]]
    except (KeyError, TypeError):
        pass
    return []


def saved_clock(files: Files, directory: str) -> int:
    """The drive's time when the accounts of a partition were saved; 0 if there are none."""
    header = snapshot.load_header(files, _path(directory, names.ACCOUNTS))
    try:
        return max(int(header["t"]), 0) if header is not None else 0
    except (KeyError, TypeError, ValueError):
        return 0


def _entry(segment: Segment, t: int) -> Entry:
    facts = segment.files.stat(segment.file)
    if facts is None:
        raise FileVanishedError(f"{segment.file} is gone", file=segment.file)
    return Entry(
        base_offset=segment.base_offset,
        inode=facts.inode,
        size_bytes=segment.size,
        mtime_ms=facts.mtime_ms,
        tail_crc=tail_crc(segment),
        written_at=t,
    )


def _path(directory: str, name: str) -> str:
    return os.path.join(directory, names.PRIVATE, name)
