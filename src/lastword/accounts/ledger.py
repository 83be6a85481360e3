"""The garbage accounts of one partition: kept in memory between cleanings, saved over restarts.

A ledger holds the running map and bitmaps of `resolve.running` up to its limit (`tracking.py`), and for each
segment below it the figures by which runs are chosen: age of the garbage, death rate, generation. Each closed
segment is scanned once, when it falls below the limit. From then on its garbage is known exactly, or, if the
keys do not fit the memory, estimated from a sample of them. Accounts that do not fit the log are discarded.

    refresh   `fit` (is the log unchanged below the limit?), `add_segments` (new ones), `mark_due`
    choose    `account`
    rewrite   `resolution`, `sources` (report what a rewrite drops), after each durable swap `swapped`
    keep      `save`, if that costs less than the scan that it avoids; also in the middle of a long scan;
              `move` to the next private copy of a log in a bucket

During a rewrite the map only records which records are dropped; `swapped` applies this, `give_up` discards
it. After a swap that fails it is unknown which files are there: the ledger is invalid and is discarded. The
accounts that were saved before are then right for the log, or do not fit it.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lastword.accounts import PartitionAccount, snapshot
from lastword.accounts.estimates import Survivorship, dead_bytes, indexed_bytes, segment_accounts
from lastword.accounts.tombstones import Clocks, Deletes
from lastword.accounts.tracking import (
    KEYS_DO_NOT_FIT,
    SegmentEntry,
    Tracking,
    begin_ages,
    keep_ages,
    private_path,
)
from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.partition.leases import NO_FLOOR
from lastword.records.chunk import Chunk, ChunkReader
from lastword.segment import names
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from lastword.config import TopicConfig
    from lastword.resolve import DeadBitmaps, Resolution, SegmentFacts
    from lastword.resolve.facts import TransactionOutcomes
    from lastword.resolve.running import RunningResolution
    from lastword.resolve.whole import ScratchPlace


Saved = Literal["nothing", "clocks", "whole"]

PORTION_BYTES = 256 << 20
"""A long scan takes portions of whole segments of about this size. Stopped, it continues after the last saved
one."""


class Ledger:
    """The garbage accounts of the partition in `directory`. Not safe from several threads at the same time.

    Attributes:
        tracking: The map with its segments.
        deletes: Tombstones and their clocks.
        rebuilt_because: Why saved accounts are not used; empty: they are, or there are none.
        scanned_bytes: Bytes read from the log since the ledger was made or saved.
        scanned_segments: Segments that were scanned since.
        loaded_to: The offset up to which the accounts were loaded; -1: none were.
        saved: What is saved of the accounts of these segments: "whole", "clocks" (of tombstones; with the
            ages of garbage), or "nothing", also if a file is there that describes other segments.
        keep: Called during a long scan after each portion, when the accounts are valid: may save them.
        write_clock: The drive's time at the last update.
        reached: The end of the log then: base offset and size of its active segment.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        map_bytes: int,
        salt: Callable[[], bytes] = lambda: os.urandom(16),
        scratch: str | None = None,
    ) -> None:
        self.files = files
        self.directory = directory
        self.rebuilt_because = ""
        self.invalid = False
        self.loaded_to = -1
        self.write_clock = 0
        self.reached = (-1, 0)
        self.scanned_bytes = self.scanned_segments = 0
        self.saved: Saved = "nothing"
        self._saved_clocks: Clocks | None = None
        self._aged: list[SegmentEntry] = []  # saved without the map: the next scan takes over their ages
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
        """Return the saved accounts if they fit `segments`, else empty ones. Never raises for a damaged file.

        Args:
            files: File system.
            directory: Directory of the partition.
            segments: All segments of the log, ascending.
            map_bytes: Memory for the key map.
            salt: Returns a secret for the map's hash.
            scratch: Directory for the map's keys; None: in memory.
        """
        make = partial(cls, files, directory, map_bytes=map_bytes, salt=salt, scratch=scratch)
        ledger, why = make(), ""
        try:
            saved = snapshot.load_ledger(files, directory, map_bytes, scratch)
            if saved is None:
                return ledger
            why = ledger._restore(saved, segments)
        except CorruptFileError as error:
            why = f"damaged: {error.message}"
        except (KeyError, TypeError, ValueError, IndexError):
            why = "damaged: what it holds does not belong together"
        if why:
            ledger = make()
            ledger.rebuilt_because = why
        else:
            ledger.loaded_to = ledger.limit
        return ledger

    # ---------------------------------------------------------------- state

    @property
    def limit(self) -> int:
        """Return the offset after the last scanned offset."""
        return self.tracking.running.limit

    @property
    def exact(self) -> bool:
        """Return whether every key is tracked, not a sample."""
        return self.tracking.exact

    @property
    def entries(self) -> list[SegmentEntry]:
        """Return the entry of each segment below the limit."""
        return self.tracking.entries

    @property
    def by_hash(self) -> bool:
        """Return whether a map of hashes made the accounts, and the cleaning is not `certified` yet."""
        return self.tracking.running.by_hash

    @property
    def transactions_from(self) -> int:
        """Return the offset of the first transactional batch; -1: the log has none."""
        return self.tracking.transactions_from

    def lacks(self, held: Ledger | None) -> bool:
        """Return whether the accounts in memory cover more than was loaded here, so that figures may differ.

        A cleaning by those reads less. It may group small segments otherwise: the shares of compressed
        batches were counted when they were appended.
        """
        return held is not None and held is not self and held.exact and held.limit > self.loaded_to

    def shrink(self) -> None:
        """Release memory that is not needed between two uses."""
        self.tracking.running.shrink()

    @property
    def memory_bytes(self) -> int:
        """Return the memory of map, bitmaps, clocks and entries."""
        return self.tracking.running.memory_bytes + self.deletes.clocks.memory_bytes + 200 * len(self.entries)

    def facts(self) -> tuple[SegmentFacts, ...]:
        """Return the counts of the segments below the limit. In a sample they count tracked keys only."""
        return self.tracking.facts()

    def resolution(self) -> Resolution:
        """Return the result of a full scan up to the limit, as of now. Only while `exact`."""
        return self.tracking.resolution()

    # ---------------------------------------------------------------- refresh

    def fit(self, segments: Sequence[Segment]) -> bool:
        """Check that the log below the limit is unchanged; otherwise reset the ledger, and return False.

        Segments that were removed at the front do not invalidate the others. But when the removed ones
        outweigh the rest, a reset is cheaper than keeping their keys.
        """
        known = len(self.entries)
        why = self.tracking.misfit(segments)
        if len(self.entries) != known:
            self._touched()
        if not why and not self.invalid:
            return True
        self.reset(why or "a cleaning did not end")
        return False

    def reset(self, why: str) -> None:
        """Discard all accounts in memory."""
        self.rebuilt_because = why
        self.invalid = False
        self.saved = "nothing"
        self.tracking.reset()
        self.deletes = Deletes(self.tracking)
        self._aged = []
        self._changed = True

    def discard(self) -> None:
        """Discard the saved accounts, too.

        They may be wrong: a rewrite by them failed its certificate.
        """
        self.files.unlink(private_path(self.directory, names.ACCOUNTS), missing_ok=True)
        self.reset("a rewrite by it failed its certificate")

    def remember(self, account: PartitionAccount) -> None:
        """Take over the ages of segments and of their garbage from an account: a scan does not yield them.

        Args:
            account: That of an earlier scan, whose map was not saved.
        """
        known = {(segment.base_offset, segment.size_bytes): segment for segment in account.segments}
        for entry in self.entries:
            before = known.get((entry.base_offset, entry.size_bytes))
            if before is None:
                continue
            entry.written_at, entry.death_rate = before.written_at, before.death_rate
            passed = max(self.write_clock - before.garbage_age_at, 0)
            entry.garbage_age = before.garbage_age + before.dead_bytes * passed
            if before.oldest_dead_ms >= 0 and entry.oldest_dead_ms >= 0:
                entry.oldest_dead_ms = min(before.oldest_dead_ms, entry.oldest_dead_ms)

    def hold_back(self, floor: int) -> None:
        """Make tombstones from `floor` on live again: a reader has yet to read them."""
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
        outcomes: TransactionOutcomes | None = None,
        progress: Callable[[int, int], None] | None = None,
        bytes_above: int = 0,
        threads: int = 1,
        sample: bool = True,
        place: ScratchPlace | None = None,
    ) -> int:
        """Scan the segments between the ledger's limit and `limit`; return the bytes read. Call `fit` first.

        Nothing below `limit` may ever be taken back: it is synced, closed and decided.

        Args:
            segments: All segments of the log, ascending.
            limit: The new limit.
            write_clock: The drive's time.
            now_ms: The time, for the age of garbage.
            outcomes: Outcomes of transactions.
            progress: Called with (done, total) bytes.
            bytes_above: Bytes of the log above `limit`, from which the ages of segments are computed.
            threads: As for `resolve`.
            sample: False: keys that do not fit the memory leave empty accounts, not accounts of a sample.
            place: Where survivors are kept, if a rewrite of all garbage follows. Then a map of hashes may
                make the accounts of a log without accounts (`by_hash`). None: the exact map makes them.
        """
        if not sample and not self.exact and not self.entries:
            return 0
        below = [segment for segment in segments if segment.base_offset < limit]
        ends = segments[len(below)].base_offset <= limit if len(below) < len(segments) else False
        if below and not ends and below[-1].next_offset > limit:  # else it ends where the next one begins
            below.pop()
        # Not by the limit: an empty segment at the end begins where the limit is.
        known_to = self.entries[-1].base_offset if self.entries else -1
        new = [segment for segment in below if segment.base_offset > known_to]
        self.write_clock = max(self.write_clock, write_clock)
        if not new:
            self._accrue(now_ms)
            return 0
        known, old = len(self.entries), [*self._aged, *self.entries]
        if known or not self.exact:
            place = None
        portions = _portions(new) if place is None else deque([new])
        left_bytes = sum(segment.size for segment in new)
        read_bytes, because = 0, ""

        def report_progress(done_bytes: int, total_bytes: int) -> None:
            if progress is not None:
                progress(read_bytes + done_bytes, read_bytes + total_bytes + left_bytes)

        while portions:
            portion = portions.popleft()
            left_bytes -= sum(segment.size for segment in portion)
            self.invalid = True  # a scan that is given up in its middle leaves no account
            taken_bytes, why = self.tracking.take(
                portion,
                self.write_clock,
                outcomes,
                report_progress,
                threads,
                more=[segment for later in portions for segment in later],
                place=place,
            )
            self.invalid = False
            read_bytes += taken_bytes
            self.scanned_bytes += taken_bytes
            self.scanned_segments += len(portion)
            if why:
                saved_clocks, self.deletes = self.deletes.saved_clocks, Deletes(self.tracking)
                self.deletes.saved_clocks = saved_clocks
                known, because, place = 0, why, None
                self.saved = "nothing"
                self.rebuilt_because = because
                if not sample and not self.exact:
                    return read_bytes
                portions, left_bytes = _portions(below), sum(segment.size for segment in below)
                continue
            self._touched()
            if any(segment.size for segment in portion):
                self.deletes.ends_old = self.tracking.running.ends_old
            begin_ages(
                self.entries[known:], self._dead_bytes()[known:], self.write_clock, bytes_above + left_bytes
            )
            if because or self._aged:
                keep_ages(self.entries, old)
            if portions and self.keep is not None and self.deletes.saved_clocks is None:
                self.keep()
        self._aged = []
        self._accrue(now_ms, closed=True)
        return read_bytes

    def _accrue(self, now_ms: int, *, closed: bool = False) -> None:
        for entry, dead in zip(self.entries, self._dead_bytes(), strict=True):
            entry.accrue(dead, self.write_clock, now_ms, closed=closed)
        self.tracking.note_clear()

    def mark_due(self, now_ms: int, delete_retention_ms: int, *, floor: int = NO_FLOOR) -> int:
        """Mark tombstones that may go now as garbage; return how many became so.

        Args:
            now_ms: The time.
            delete_retention_ms: How long a tombstone without older copies stays.
            floor: The lowest offset that a reader with a lease has yet to read. In a log that ends with a
                message of magic 0 or 1, that message stays: no empty batch could take its place, and without
                it the log's end would be out of reach.
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
        self, config: TopicConfig, *, topic: str, partition: int, drive: str, total_bytes: int, log_start: int
    ) -> PartitionAccount:
        """Return the accounts of the partition, which is not in quarantine, as a value."""
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
            file_bytes=indexed_bytes(config),
        )

    def _dead_bytes(self, first: int = 0, end: int | None = None) -> list[float]:
        return dead_bytes(self.tracking, self.write_clock, self.survivorship, first, end)

    def blocked_segments(self) -> frozenset[int]:
        """Return the base offsets of segments with a tombstone that an older copy of its key blocks."""
        facts = self.facts()
        held = self.deletes.blocked_bytes(facts)
        return frozenset(segment.base_offset for segment, size in zip(facts, held, strict=True) if size)

    # ---------------------------------------------------------------- rewrite

    def sources(self, segments: Sequence[Segment], dead: DeadBitmaps) -> list[Segment]:
        """Return the segments for a rewrite.

        If copies count, each chunk that is read reports its dropped records; `swapped` or `give_up` must
        follow.
        """
        if not self.exact or not self.tracking.counts_copies or self.by_hash:
            return list(segments)
        return [Watched(segment, self.tracking.running, dead) for segment in segments]

    def certified(self) -> None:
        """Keep accounts that are `by_hash`, without all keys empty ones: all garbage was published."""
        if self.tracking.running.lacks_keys:
            self.reset(KEYS_DO_NOT_FIT)
            return
        self.tracking.running.certified()
        self.tracking.uncounted = False

    def give_up(self) -> None:
        """Drop the reports of a rewrite that was not published: its sources stay."""
        if self.exact:
            self.tracking.running.discard_removals()

    def swapped(self, first_base: int, last_base: int, published: Segment, alpha: float) -> None:
        """Replace the entries of a range of segments by that of the published one, which is durable.

        Accounts without entries stay empty.

        Args:
            first_base: Base offset of the first replaced segment.
            last_base: Base offset of the last one.
            published: The new segment.
            alpha: Weight of the observed survivorship.
        """
        if not self.entries:
            return
        # Nothing here takes time for every segment: there may be as many swaps.
        first, last = self._index_of(first_base), self._index_of(last_base)
        old = self.entries[first : last + 1]
        for entry, dead in zip(old, self._dead_bytes(first, last + 1), strict=True):
            self.survivorship.observe(
                self.write_clock - entry.written_at, entry.size_bytes, round(entry.size_bytes - dead), alpha
            )
        end = self.tracking.facts(last, last + 1)[0].next_offset
        self.tracking.swapped(first, last, published, self.write_clock)
        self.tracking.note_clear(first, first + 1)
        self.deletes.rewritten(first_base, end)
        self._learned = True
        self.saved = "nothing"
        self._touched()

    def _index_of(self, base_offset: int) -> int:
        index = bisect_left(self.entries, base_offset, key=lambda entry: entry.base_offset)
        if index == len(self.entries) or self.entries[index].base_offset != base_offset:
            raise ValueError(f"no segment at {base_offset} is accounted")
        return index

    def first_dirty_for_kafka(self) -> int:
        """Return the highest cleaner checkpoint that is safe to hand to a broker.

        Below it no record supersedes a record that is still on disk. With a higher checkpoint, Kafka would
        drop a tombstone and keep the old value.
        """
        if not self.exact or self.invalid:
            return self.tracking.first_offset
        return self.tracking.lowest_superseding()

    # ---------------------------------------------------------------- keep

    @property
    def worth_saving(self) -> bool:
        """Return whether accounts changed, and more bytes were scanned for them than saving writes."""
        return self._changed and not self.invalid and self.scanned_bytes >= self.memory_bytes

    def save(self, into: str | None = None) -> bool:
        """Write the accounts, durably; return False if nothing was written.

        If they would cost more than the scan that they avoid, only the clocks of tombstones and the ages of
        garbage are written: otherwise those of a log that is opened for one cleaning at a time would start
        again each time. No tombstone would ever go, and no garbage pass `max.compaction.lag.ms`. Where a
        written byte has a price (`Files.derived_cost`), accounts that are not saved remove a file that
        describes other segments, which a reader would fetch and discard.

        Args:
            into: A directory other than the partition's private one, for accounts that are true only after
                the swaps that they include.
        """
        if self.invalid or not self._changed or not self.entries:
            return False
        if into is None and self.files.derived_cost and self._learned:
            self._save_survivorship(private_path(self.directory, ""))
        clocks = self.deletes.running() if self.exact else None
        whole = self._pays()
        if not whole:
            # In a bucket the summary has the ages.
            ages = not self.files.derived_cost and any(entry.oldest_dead_ms >= 0 for entry in self.entries)
            if clocks is None or not clocks[0].size:
                if into is None and self.files.derived_cost and self.saved == "nothing":
                    self.files.unlink(private_path(self.directory, names.ACCOUNTS), missing_ok=True)
                if not ages:
                    return False
            elif into is None and self.files.derived_cost and self.saved != "nothing":
                saved = self._saved_clocks
                if saved is not None and all(map(np.array_equal, clocks, saved)):
                    return False
                whole = self.saved == "whole"  # which the clocks alone would replace
        more = {"t": self.write_clock, "seen": list(self.reached)}
        snapshot.save_ledger(self.files, self.directory, self.tracking, self.deletes, more, into, whole=whole)
        if self._learned:
            self._save_survivorship(into or private_path(self.directory, ""))
        self._changed = False
        self.scanned_bytes = self.scanned_segments = 0
        self.saved, self._saved_clocks = "whole" if whole else "clocks", clocks
        return True

    def _pays(self) -> bool:
        """Return whether the whole accounts cost less than the scan that they avoid.

        Both are bytes and files: the accounts are one file, a scan reads each segment.
        """
        log_bytes = sum(entry.size_bytes for entry in self.entries)
        if not self.files.derived_cost:
            return self.memory_bytes <= 2 * log_bytes + 65536
        scan_bytes, segments = log_bytes, len(self.entries)
        if self.saved == "whole":
            scan_bytes, segments = self.scanned_bytes, self.scanned_segments
        more_files = max(segments - self.files.derived_cost, 0.0)
        scan_cost = scan_bytes + more_files * self.files.file_cost_bytes
        return self.files.derived_cost * self.memory_bytes <= scan_cost

    def _save_survivorship(self, private: str) -> None:
        if not self.files.exists(private):
            self.files.mkdir(private)
        self.survivorship.save(self.files, os.path.join(private, names.SURVIVORSHIP))
        self._learned = False

    def leave(self) -> None:
        """Let go of a private copy of a log in a bucket, with the memory of its new files, until `move`."""
        del self.files
        self.keep = None

    def unsaved(self) -> None:
        """Note that the saved accounts are gone: the next `save` does not build on them."""
        self.saved = "nothing"
        self._changed = True

    def move(self, files: Files) -> None:
        """Go on in another private copy, in which the segments are the same objects."""
        self.files = files

    def _restore(self, saved: snapshot.SavedAccounts, segments: Sequence[Segment]) -> str:
        """Restore saved accounts if they fit the segments; otherwise return the reason why not."""
        why = (
            snapshot.restore_ledger(saved, self.tracking, self.deletes)
            or self.tracking.misfit(segments)
            or snapshot.mismatch(self.files, self.tracking, segments)
        )
        if why:
            return why
        header = saved.header
        self.write_clock = int(header["t"])
        self.reached = (int(header["seen"][0]), int(header["seen"][1]))
        clocks = self._saved_clocks = self.deletes.running()
        if header["map"] is None:
            aged = self.entries
            self.reset("")
            self.deletes.saved_clocks, self._aged = clocks, aged
        self.saved = "clocks" if header["map"] is None else "whole"
        self._changed = False
        return ""

    def _touched(self) -> None:
        self.deletes.touched()
        self._changed = True


class Watched(Segment):
    """A segment for a rewrite: each chunk that is read goes through `running.count_removals`."""

    def __init__(self, segment: Segment, running: RunningResolution, dead: DeadBitmaps) -> None:
        self.__dict__.update(segment.__dict__)
        self._running = running
        self._dead = dead

    def chunk_reader(self, *args: Any, **options: Any) -> Iterator[Chunk]:
        """Return a reader that reports the dropped records of each chunk."""
        options.pop("skip_rows", None)  # the keys of dead records are needed: each has one copy less
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
