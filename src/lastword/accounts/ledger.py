"""The garbage accounts of one partition: kept in memory between rounds, saved over restarts, never believed
when anything does not fit.

A ledger holds the running map and bits of `resolve.running` up to its limit (`tracking.py`), and for each
segment below it what choosing asks for: rent, rate, age, generation (`entries.py`). Each closed segment is
scanned once, when it falls below the limit; from then on its garbage is known exactly, or, where the keys do
not fit the memory, estimated from a sample of them.

    look      `fit` (does the log still lie there as it was left?), `add_segments` (what is new), `mark_due`
    choose    `account`
    rewrite   `resolution`, `sources` (tell the map what a rewrite drops), after each durable swap `swapped`
    keep      `save`, where that costs less than the scan it spares; in the middle of a long one too

While a rewrite is under way the map only notes what goes; `swapped` counts it, `give_up` forgets it. A round
that fails in the very swap cannot know which of the two holds: it spoils the ledger, which is thrown away.
What was saved before is then true of the log, or does not fit it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.accounts import snapshot
from lastword.accounts.estimates import Survivorship, dead_bytes, indexed_bytes, segment_accounts
from lastword.accounts.tombstones import Deletes
from lastword.accounts.tracking import SegmentEntry, Tracking, begin_ages, has_old, keep_ages, private_path
from lastword.accounts.values import PartitionAccount
from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.partition.leases import NO_FLOOR
from lastword.records.chunk import CHUNK_BYTES, Chunk, ChunkReader
from lastword.segment import names
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from lastword.config import TopicConfig
    from lastword.resolve import DeadBitmaps, Resolution, SegmentFacts
    from lastword.resolve.facts import TransactionOutcomes
    from lastword.resolve.running import RunningResolution


PORTION_BYTES = 256 << 20
"""A long scan takes whole segments of about so much at once; stopped, it goes on behind what was kept."""


class Ledger:
    """Accounts of the partition in `directory`. Not safe from several threads at once.

    tracking, deletes  the map with its segments; tombstones and their clocks
    rebuilt_because  why nothing that was saved is used; empty: it was, or there was nothing
    scanned_bytes    read from the log since the ledger was made or saved
    keep             asked in the middle of a long scan, where all that was taken is true: it may save it
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
        scratch: str | None = None,
        rebuilt_because: str = "",
    ) -> None:
        self.files = files
        self.directory = directory
        self.rebuilt_because = rebuilt_because
        self.invalid = False
        self.write_clock = 0
        self.reached = (-1, 0)
        self.scanned_bytes = 0
        self.survivorship = Survivorship.load(files, private_path(directory, names.SURVIVORSHIP))
        self._learned = False
        self.keep: Callable[[], None] | None = None
        self.tracking = Tracking(map_bytes, salt, scratch)
        self.deletes = Deletes(self.tracking)
        self._changed = True

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        segments: Sequence[Segment],
        *,
        map_bytes: int,
        salt: Callable[[], bytes] = lambda: os.urandom(16),
        scratch: str | None = None,
    ) -> Ledger:
        """What was saved, if it speaks of `segments` (all of the log, ascending) as they are; else a fresh
        one. Never raises for what the file holds. `scratch`: as of `Tracking`."""
        try:
            saved = snapshot.load_ledger(files, directory, map_bytes, scratch)
            if saved is None:
                return cls(files, directory, map_bytes=map_bytes, salt=salt, scratch=scratch)
            ledger = cls(files, directory, map_bytes=map_bytes, salt=salt, scratch=scratch)
            why = ledger._restore(saved, segments)
        except CorruptFileError as error:
            why = f"damaged: {error.message}"
        except (KeyError, TypeError, ValueError, IndexError):
            why = "damaged: what it holds does not belong together"
        if why:
            return cls(files, directory, map_bytes=map_bytes, salt=salt, scratch=scratch, rebuilt_because=why)
        return ledger

    # ---------------------------------------------------------------- what it knows

    @property
    def limit(self) -> int:
        """One past the last offset that was taken."""
        return self.tracking.running.limit

    @property
    def exact(self) -> bool:
        return self.tracking.exact

    @property
    def entries(self) -> list[SegmentEntry]:
        return self.tracking.entries

    @property
    def counts_copies(self) -> bool:
        """Must a rewrite tell the map what it drops? Only for a log that has, or had, tombstones."""
        return self.tracking.counts_copies

    @property
    def transactions_from(self) -> int:
        """Where transactions begin; -1: the log has none."""
        return self.tracking.transactions_from

    @property
    def memory_bytes(self) -> int:
        return self.tracking.running.memory_bytes + self.deletes.clocks.memory_bytes + 200 * len(self.entries)

    def facts(self) -> tuple[SegmentFacts, ...]:
        """Of the segments below the limit. Of a sample they count tracked keys only."""
        return self.tracking.facts()

    def resolution(self) -> Resolution:
        """As if the log had been resolved now, up to the limit. Only while `exact`."""
        return self.tracking.resolution()

    # ---------------------------------------------------------------- look

    def fit(self, segments: Sequence[Segment]) -> bool:
        """Does the log still lie there as it was left? If not, the ledger begins anew.

        Segments that left at the front are no surprise: what is known of the others stays true. But when
        they outweigh those that are left, beginning anew is cheaper than carrying their keys along.
        """
        known = len(self.entries)
        why = self.tracking.misfit(segments)
        if len(self.entries) != known:
            self._touched()
        if not why and not self.invalid:
            return True
        self.reset(why or "a round did not come to its end")
        return False

    def reset(self, why: str) -> None:
        """Throw away what is known."""
        self.rebuilt_because = why
        self.invalid = False
        self.tracking.reset()
        self.deletes = Deletes(self.tracking)
        self._changed = True

    def discard(self) -> None:
        """Throw away what was saved, too. It may be wrong: a rewrite by it did not hold its certificate."""
        self.files.unlink(private_path(self.directory, names.ACCOUNTS), missing_ok=True)
        self.reset("a rewrite by it did not hold its certificate")

    def hold_back(self, floor: int) -> None:
        """A reader has yet to read from `floor` on: no tombstone there counts as garbage any more."""
        due = self.deletes.due
        if due.size and int(due[-1]) >= floor:
            self.deletes.revive(floor)
            self._touched()

    def add_segments(
        self,
        segments: Sequence[Segment],
        limit: int,
        *,
        write_clock: int,
        now_ms: int,
        fates: TransactionOutcomes | None = None,
        progress: Callable[[int, int], None] | None = None,
        bytes_above: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        threads: int = 1,
    ) -> int:
        """Scan the segments (of all of the log's, ascending) that lie between the own limit and `limit`;
        returns the bytes read. `fit` comes first.

        Nothing there may ever be taken back: it is synced, closed and decided. `write_clock`: the drive's
        time; `bytes_above`: of the log above `limit`, so that the age of each segment can be told; `threads`:
        as for `resolve`.
        """
        below = [
            segment for segment in segments if segment.next_offset <= limit and segment.base_offset < limit
        ]
        new = [segment for segment in below if segment.base_offset >= self.limit]
        self.write_clock = max(self.write_clock, write_clock)
        if not new:
            self._accrue(now_ms)
            return 0
        known, old = len(self.entries), list(self.entries)
        portions = _portions(new)
        left_bytes = sum(segment.size for segment in new)
        read_bytes, because = 0, ""

        def tell(done_bytes: int, total_bytes: int) -> None:
            if progress is not None:
                progress(read_bytes + done_bytes, read_bytes + total_bytes + left_bytes)

        while portions:
            portion = portions.popleft()
            left_bytes -= sum(segment.size for segment in portion)
            self.invalid = True  # a scan that is given up in its middle leaves no account
            taken = self.tracking.take(
                portion,
                self.write_clock,
                fates,
                tell,
                chunk_bytes,
                threads,
                more=[segment for each in portions for segment in each],
            )
            self.invalid = False
            read_bytes += taken.read_bytes
            self.scanned_bytes += taken.read_bytes
            if taken.reset_because:
                remembered, self.deletes = self.deletes.remembered, Deletes(self.tracking)
                self.deletes.remembered = remembered
                known, because = 0, taken.reset_because
                self.rebuilt_because = because
                portions, left_bytes = _portions(below), sum(segment.size for segment in below)
                continue
            self._touched()
            last = next((segment for segment in reversed(portion) if segment.size), None)
            if last is not None:
                self.deletes.ends_old = has_old(last)
            begin_ages(
                self.entries[known:], self._dead_bytes()[known:], self.write_clock, bytes_above + left_bytes
            )
            if because:
                keep_ages(self.entries, old)
            if portions and self.keep is not None and self.deletes.remembered is None:
                self.keep()
        self._accrue(now_ms, closed=True)
        return read_bytes

    def _accrue(self, now_ms: int, *, closed: bool = False) -> None:
        for entry, dead in zip(self.entries, self._dead_bytes(), strict=True):
            entry.accrue(dead, self.write_clock, now_ms, closed=closed)
        self.tracking.note_clear()

    def mark_due(self, now_ms: int, delete_retention_ms: int, *, floor: int = NO_FLOOR) -> int:
        """Tombstones whose time has come are garbage from now on; returns how many became so.

        `floor`: the lowest offset that a reader with a lease has yet to read. In a log that ends with a
        message of an old format that one stays: no empty batch could take its place, and without it the
        log's end would be out of reach.
        """
        if not self.exact:
            return 0
        count = self.deletes.mark(now_ms, delete_retention_ms, floor)
        if count:
            self._touched()
            self._accrue(now_ms)
        return count

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
        segments = segment_accounts(
            self.tracking, self._dead_bytes(), self.deletes.blocked_bytes(self.facts())
        )
        return PartitionAccount(
            topic=topic,
            partition=partition,
            drive=drive,
            segments=segments,
            total_bytes=total_bytes,
            limit=self.limit,
            log_start=log_start,
            segment_bytes=config.segment_bytes,
            min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            quarantined=quarantined,
            strategy=strategy,
            file_bytes=indexed_bytes(config),
        )

    def _dead_bytes(self) -> list[float]:
        return dead_bytes(self.tracking, self.write_clock, self.survivorship)

    def blocked_segments(self) -> frozenset[int]:
        """Base offsets of the segments that hold a tombstone which an older copy of its key holds back."""
        facts = self.facts()
        held = self.deletes.blocked_bytes(facts)
        return frozenset(segment.base_offset for segment, size in zip(facts, held, strict=True) if size)

    # ---------------------------------------------------------------- rewrite

    def sources(self, segments: Sequence[Segment], dead: DeadBitmaps) -> list[Segment]:
        """The same segments, to be rewritten: each chunk that is read tells the map what it loses, if copies
        count. Then comes `swapped` or `give_up`."""
        if not self.exact or not self.counts_copies:
            return list(segments)
        return [Watched(segment, self.tracking.running, dead) for segment in segments]

    def give_up(self) -> None:
        """The rewrite under way was not published: its sources stay as they are."""
        if self.exact:
            self.tracking.running.discard_removals()

    def swapped(self, first_base: int, last_base: int, published: Segment, alpha: float) -> None:
        """Those segments, and all between, are one now, durably."""
        bases = [entry.base_offset for entry in self.entries]
        first, last = bases.index(first_base), bases.index(last_base)
        old = self.entries[first : last + 1]
        for entry, dead in zip(old, self._dead_bytes()[first : last + 1], strict=True):
            self.survivorship.observe(
                self.write_clock - entry.written_at, entry.size_bytes, round(entry.size_bytes - dead), alpha
            )
        end = self.facts()[last].next_offset
        self.tracking.swapped(first, last, published, self.write_clock)
        self.tracking.note_clear()
        self.deletes.rewritten(first_base, end)
        self._learned = True
        self._touched()

    def first_dirty_for_kafka(self) -> int:
        """What a Kafka that takes over may count as clean: no record that killed one which still is on disk
        lies below. With a higher one it would drop a tombstone and keep the old value."""
        if not self.exact or self.invalid:
            return self.tracking.first_offset
        return self.tracking.lowest_killer()

    # ---------------------------------------------------------------- keep

    @property
    def worth_saving(self) -> bool:
        """Is there something new, and did more bytes go into it than saving costs?"""
        return self._changed and not self.invalid and self.scanned_bytes >= self.memory_bytes

    def save(self, into: str | None = None) -> bool:
        """Write the snapshot, durably; False where nothing changed. Where it would be larger than the log
        that it spares to read, the clocks of tombstones alone are written: a log that is opened for one round
        at a time would otherwise start them again each time, and no tombstone would ever go. False if none
        runs.

        `into`: a directory other than the partition's private one, for accounts that are true only when the
        swaps that they know of are done.
        """
        if self.invalid or not self._changed or not self.entries:
            return False
        whole = self.memory_bytes <= 2 * sum(entry.size_bytes for entry in self.entries) + 65536
        if not whole and not (self.exact and self.deletes.running()[0].size):
            return False
        more = {"t": self.write_clock, "seen": list(self.reached)}
        snapshot.save_ledger(self.files, self.directory, self.tracking, self.deletes, more, into, whole=whole)
        if self._learned:
            private = into or private_path(self.directory, "")
            self.survivorship.save(self.files, os.path.join(private, names.SURVIVORSHIP))
            self._learned = False
        self._changed = False
        self.scanned_bytes = 0
        return True

    def _restore(self, saved: snapshot.SavedAccounts, segments: Sequence[Segment]) -> str:
        """Take what was saved, if it is of these segments; else why not."""
        why = (
            snapshot.restore_ledger(saved, self.tracking, self.deletes)
            or self.tracking.misfit(segments)
            or snapshot.mismatch(self.tracking, segments)
        )
        if why:
            return why
        header = saved.header
        self.write_clock = int(header["t"])
        self.reached = (int(header["seen"][0]), int(header["seen"][1]))
        if header["map"] is None:
            remembered = self.deletes.running()
            self.reset("")
            self.deletes.remembered = remembered
        self._changed = False
        return ""

    def _touched(self) -> None:
        self.deletes.touched()
        self._changed = True


class Watched(Segment):
    """The same file and open handle. Each chunk that is read goes through `running.count_removals`."""

    def __init__(self, segment: Segment, running: RunningResolution, dead: DeadBitmaps) -> None:
        self.__dict__.update(segment.__dict__)
        self._running = running
        self._dead = dead

    def chunk_reader(self, *args: Any, **options: Any) -> Iterator[Chunk]:
        options.pop("skip_rows", None)  # of a dead record the key is wanted: it has one copy less
        reader = super().chunk_reader(*args, **options)
        assert isinstance(reader, ChunkReader)
        reader.set_observer(partial(self._running.count_removals, dead=self._dead))
        return reader


def _portions(segments: Sequence[Segment]) -> deque[list[Segment]]:
    portions: deque[list[Segment]] = deque()
    size = PORTION_BYTES
    for segment in segments:
        if size >= PORTION_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(segment)
        size += segment.size
    return portions
