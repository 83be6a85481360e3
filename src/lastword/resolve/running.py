"""A resolution that is kept: later segments are added to it, and rewritten segments are replaced in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import offset_map as map_loops
from lastword.kernels import table as fields
from lastword.kernels.key_batch import TOMBSTONE
from lastword.kernels.offset_map import COPIES_AT, NO_OFFSET, CountArrays
from lastword.kernels.pages import PAGE_BITS
from lastword.records.chunk import Chunk
from lastword.resolve.bitmaps import DeadBitmaps, PageStore, check_pages
from lastword.resolve.facts import (
    LAST_HASH,
    MapFull,
    Resolution,
    Rules,
    SegmentCounts,
    SegmentFacts,
    SegmentSource,
    Tombstones,
    TransactionOutcomes,
    check_order,
    digest_seed_of,
    horizons_of,
)
from lastword.resolve.hash_map import HashResolver
from lastword.resolve.offset_map import NewestRecords, spill_in
from lastword.resolve.resolver import KeyScan, max_records_of
from lastword.resolve.survivors import Survivors
from lastword.resolve.whole import ScratchPlace, resolve_by_hashes

_FEW = 1024


class Horizons:
    """Delete horizons of the batches that hold tombstones.

    Rows of (base offset, last offset, horizon), ascending: int64[n, 3]. The table grows with every batch
    that has a horizon; `keep` removes the batches without a live tombstone.
    """

    def __init__(self, table: NDArray[np.int64] | None = None) -> None:
        self._start(np.empty((0, 3), np.int64) if table is None else table.reshape(-1, 3))

    def _start(self, table: NDArray[np.int64]) -> None:
        self._rows = [table]
        self._count = len(table)
        self._enough = max(2 * self._count, _FEW)

    @property
    def size_bytes(self) -> int:
        """Return the memory of the table."""
        return 24 * self._count

    @property
    def crowded(self) -> bool:
        """Return whether the table has doubled since `keep`."""
        return self._count > self._enough

    def add(self, chunk: Chunk) -> None:
        """Add the batches of a chunk above all others."""
        rows = horizons_of(chunk)
        if rows.size:
            self._rows.append(rows)
            self._count += len(rows)

    def table(self) -> NDArray[np.int64]:
        """Return the rows as one array."""
        if len(self._rows) != 1:
            self._rows = [np.concatenate(self._rows)]
        return self._rows[0]

    def of(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the horizon of each offset's batch, -1 if it has none."""
        table = self.table()
        horizons = np.full(offsets.size, -1, np.int64)
        if table.size:
            row = np.maximum(np.searchsorted(table[:, 0], offsets, side="right") - 1, 0)
            inside = (table[row, 0] <= offsets) & (offsets <= table[row, 1])
            horizons[inside] = table[row[inside], 2]
        return horizons

    def keep(self, offsets: NDArray[np.int64]) -> None:
        """Keep only the batches that hold one of these offsets (ascending)."""
        table = self.table()
        held = np.searchsorted(offsets, table[:, 0]) < np.searchsorted(offsets, table[:, 1], side="right")
        self._start(table[held])


__all__ = ["MapFull", "RunningResolution", "Tombstones"]

_GROWTH = 1.6  # of the slots, when a map that is kept is full
_LISTED_BYTES = 60  # memory for each live tombstone while they are listed
_LISTED_FREE_BYTES = 32 << 20  # of that memory, beside the map's budget
_MAX_VACANCIES = 0.2  # share of the entries that may be vacant


class RunningResolution:
    """Map, bits and facts of a log up to `limit`, to which later segments can be added. Not thread-safe.

    Records without a key and those of aborted transactions are dead from the start. A tombstone is dead
    after `mark_due`, whatever the horizon of its batch.

    `limit` is the offset after the last offset that was added. `exact`: every key is in the map, and bits and
    counts of copies are right. There is one exception: if `forget` was allowed and the map needed room
    (`forgot_copies`), copies are not counted for keys that only aborted transactions wrote. After an error of
    `add_segments` the object must not be used again.

    `by_hash`: the segments were added by `add_whole`, and nothing has certified the result. `survivors` is
    then what a rewrite need not read again, to be closed by the caller. `lacks_keys`: there was no room for
    the keys; the object can be used for one rewrite of all garbage.

    Args:
        map_bytes: Budget of the map; memory is allocated as keys arrive.
        salt: Secret random bytes, new for each map.
        share: Below 1, only keys whose salted hash is in the first `share` of the range are read, and as
            large a share of the records without a key. Dead and live counts, bytes and tombstones are then
            those of the sample: divide them by `share`. `records` counts all. A sample never decides about a
            record.
        scratch: A directory for the keys, in a mapped file without a name; then `map_bytes` bounds the slots
            alone, and a full drive is a DiskFullError.
    """

    def __init__(
        self, *, map_bytes: int, salt: bytes, share: float = 1.0, scratch: str | None = None
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"a share is in (0, 1], unlike {share}")
        self.limit = 0
        self.exact = share == 1
        self.ends_old = False
        """The last batch that was added is a message of magic 0 or 1."""
        self.seconds = 0.0
        self._share = share
        last_hash = LAST_HASH if share == 1 else int(LAST_HASH * share)
        rules = Rules(decided=True, drop_keyless=True, keep_copies=True, last_hash=last_hash)
        self._scan = KeyScan(map_bytes, salt, digest_seed_of(salt), rules)
        self._scan.spill = spill_in(scratch)
        self._horizons = Horizons()
        self._removals: tuple[int, int] | None = None  # range of offsets given to `count_removals`
        self.forgot_copies = False
        self.by_hash = self.lacks_keys = False
        self._has_due = False
        self.survivors: Survivors | None = None

    @property
    def largest_bytes(self) -> int:
        """The most bytes of its file that a record with a key takes; -1: not known."""
        largest = self._scan.largest_bytes
        return largest if largest < 0 else self._scan.counts.scaled_up(largest)

    # ---------------------------------------------------------------- growing

    def add_segments(
        self,
        sources: Sequence[SegmentSource],
        *,
        outcomes: TransactionOutcomes | None = None,
        progress: Callable[[int, int], None] | None = None,
        threads: int = 1,
        forget: bool = False,
        more: Sequence[SegmentSource] = (),
    ) -> None:
        """Add whole segments at or above `limit`, by ascending base offset, without ongoing transactions.

        Args:
            sources: The segments.
            outcomes: As for `resolve`.
            progress: Called with (bytes done, bytes in all) after every chunk; may raise to stop.
            threads: As for `resolve`.
            forget: Before the map is full, remove keys without a record, though the log has aborted copies
                of them.
            more: Segments that will be added next, so that the map need not shrink and grow in between.

        Raises:
            MapFull: The keys do not fit. Also raises the errors of `resolve`.
        """
        self._idle()
        if not sources:
            return
        if self._scan.map is not None:
            self._scan.map.expand()
        check_order(sources, self.limit)
        started = time.perf_counter()

        def most(chunk: Chunk) -> int:
            return int(max_records_of([*sources, *more], chunk) * self._share) + 1

        first = len(self._scan.counts)
        self._scan.counts.add(sources)
        total, done = sum(source.size for source in sources), 0
        chunks = self._scan.take(
            sources,
            outcomes,
            most,
            partial(self._make_room, forget=forget),
            first_segment=first,
            threads=threads,
        )
        with closing(chunks):
            for chunk in chunks:
                self._horizons.add(chunk)
                self.ends_old = bool(chunk.table[-1, fields.MAGIC] < 2)
                self._check_tombstones()
                done += chunk.size_bytes
                if progress is not None:
                    progress(done, total)
        self.limit = max(sources[-1].next_offset, int(self._scan.counts.ends[-1]))
        if self._scan.map is not None and not more:
            self._scan.map.trim()
        if self._horizons.crowded:
            self._horizons.keep(self._live_tombstones()[1])
        self.seconds += time.perf_counter() - started

    def add_whole(
        self,
        sources: Sequence[SegmentSource],
        place: ScratchPlace,
        *,
        outcomes: TransactionOutcomes | None = None,
        progress: Callable[[int, int], None] | None = None,
        threads: int = 1,
    ) -> bool:
        """Add all segments of a log, newest first and read once, by a map of hashes (`resolve.hash_map`).

        For a rewrite of all garbage that certifies each output. Then the caller calls `certified`; if the
        rewrite does not end, this object must not be used any more. A key has one copy, but MAX_COPIES if its
        newest record is a tombstone and there are older ones. `place` is for survivors.

        Returns False if the exact map must decide; nothing was added, then. Raises MapFull if there are too
        many tombstones to list.
        """
        started, scan = time.perf_counter(), self._scan
        found = resolve_by_hashes(
            sources,
            place,
            map_bytes=scan.map_bytes,
            salt=scan.salt,
            rules=Rules(decided=True, drop_keyless=True),
            outcomes=outcomes,
            progress=progress,
            threads=threads,
            lists_keys=True,
        )
        if found is None:
            return False
        resolver, resolution, self.survivors = found
        self._take_over(resolver, resolution)
        self.limit = max(sources[-1].next_offset, int(scan.counts.ends[-1]))
        self.by_hash = True
        self.seconds += time.perf_counter() - started
        try:
            self._check_tombstones()
        except MapFull:
            if self.survivors is not None:
                self.survivors.close()
            raise
        return True

    def _take_over(self, resolver: HashResolver, resolution: Resolution) -> None:
        scan, dead, end = self._scan, resolution.dead, resolver.arena_end
        offset_map = scan.make_map(1, 24.0)
        self.lacks_keys = end < 0 or not offset_map.use_listed(resolver.arena, end, resolver.distinct_keys)
        offset_map.peak_bytes = resolution.map_bytes_used + max(end, 0)
        scan.counts, scan.largest_bytes = resolver.counts, resolver.largest_bytes
        ids = np.unique(np.concatenate(resolver.page_ids))
        slots = np.full(ids.size, -1, np.int32)
        slots[np.searchsorted(ids, dead.page_ids)] = dead.page_slots
        scan.store = PageStore(scan.state, DeadBitmaps(ids, slots, dead.page_bits))
        owners = np.searchsorted(scan.counts.bases, ids << PAGE_BITS, side="right") - 1
        scan.store.page_segments[: ids.size] = np.maximum(owners, 0)
        self._horizons = Horizons(np.concatenate(resolver.horizons[::-1]))

    def _check_tombstones(self) -> None:
        """Raise MapFull if there are too many tombstones to list.

        Above a limit, the memory to list them counts against the map's budget: a log of tombstones alone
        would take twice the budget.
        """
        offset_map = self._scan.map
        if offset_map is None:
            return
        count = int(self._scan.counts.stats[:, map_loops.TOMBSTONES].sum())
        room = offset_map.map_bytes - offset_map.anonymous_bytes + _LISTED_FREE_BYTES
        if count * _LISTED_BYTES > room:
            raise MapFull(offset_map.distinct_keys, offset_map.map_bytes)

    def _make_room(self, chunk: Chunk, *, forget: bool) -> None:
        offset_map = self._scan.map
        assert offset_map is not None
        if offset_map.make_room(_GROWTH):
            return
        self.forgot_copies |= forget and offset_map.forget_vacant()
        vacancies = int(self._scan.state[map_loops.VACANCIES])
        offset_map.drop(self._scan.store.arrays, self._scan.counts.arrays)
        if int(self._scan.state[map_loops.VACANCIES]) == vacancies:
            raise MapFull(offset_map.distinct_keys, offset_map.map_bytes)

    # ---------------------------------------------------------------- facts

    def resolution(self) -> Resolution:
        """Return the result of `resolve` on all segments together; later changes do not affect it."""
        keys = 0 if self._scan.map is None else self._scan.map.distinct_keys
        return self._scan.resolution(1, keys, self.seconds)

    @property
    def dead(self) -> DeadBitmaps:
        """Return the bits as they are now, without a copy; valid until the next change."""
        return self._scan.store.bitmaps()

    def facts(self, first: int = 0, end: int | None = None) -> tuple[SegmentFacts, ...]:
        """Return the facts of each segment, ascending, or of those from index `first` to before `end`.

        The bytes of a rewritten segment are shares of its new file.
        """
        return self._scan.counts.facts(first, end)

    def lowest_superseding(self, segment_index: int) -> int | None:
        """Return the lowest offset of a record that superseded a record still in that segment's file."""
        offset = int(self._scan.counts.stats[segment_index, map_loops.LOWEST_SUPERSEDING])
        return None if offset == NO_OFFSET else offset

    def tombstones(self) -> Tombstones:
        """Return all live tombstones: one pass over the keys."""
        offsets, copies, size_bytes = self._live_tombstones()[1:]
        counts = self._scan.counts
        if counts.is_scaled:
            segments = np.searchsorted(counts.bases, offsets, side="right") - 1
            size_bytes = counts.scaled(segments, size_bytes)
        return Tombstones(offsets, copies, size_bytes, self._horizons.of(offsets))

    @property
    def distinct_keys(self) -> int:
        """Return the keys in the map that have a record."""
        return 0 if self._scan.map is None else self._scan.map.distinct_keys

    def newest_records(self) -> Iterator[NewestRecords]:
        """Yield the newest record of each key below `limit`, some at a time, in no order. Only if `exact`."""
        return iter(()) if self._scan.map is None else self._scan.map.newest_records()

    def shrink(self) -> None:
        """Release the room that few keys and pages do not need, until more segments are added."""
        self._scan.store.shrink()
        if self._scan.map is not None:
            self._scan.map.shrink()

    @property
    def memory_bytes(self) -> int:
        """Return the anonymous memory of all that is kept."""
        kept = self._scan.store.size_bytes + self._scan.counts.size_bytes + self._horizons.size_bytes
        return kept + (0 if self._scan.map is None else self._scan.map.anonymous_bytes)

    def _live_tombstones(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
        """Return (entry, offset, copies, size in the map) of the live tombstones, by ascending offset.

        There may be as many as keys, so they are sorted column by column, and only if needed.
        """
        count = int(self._scan.counts.stats[:, map_loops.TOMBSTONES].sum())
        entries, offsets, sizes = (np.empty(count, np.int64) for _ in range(3))
        copies = np.empty(count, np.uint8)
        if self._scan.map is not None and count:
            listed = map_loops.list_tombstones(
                self._scan.map.arena, self._scan.state, entries, offsets, copies, sizes
            )
            if listed != count:
                raise ValueError(f"{listed} live tombstones in the map, {count} in its segments")
        if (offsets[1:] < offsets[:-1]).any():
            order = np.argsort(offsets)
            entries = entries[order]
            offsets = offsets[order]
            copies = copies[order]
            sizes = sizes[order]
        return entries, offsets, copies, sizes

    # ---------------------------------------------------------------- tombstones and rewrites

    def mark_due(self, offsets: Sequence[int] | NDArray[np.int64]) -> None:
        """Mark these live tombstones dead; each must be the only record of its key.

        Raises ValueError, and changes nothing, if an offset is not such a tombstone.
        """
        self._idle()
        wanted = np.unique(np.asarray(offsets, np.int64))
        if not wanted.size:
            return
        entries, live, copies, _ = self._live_tombstones()
        at = np.minimum(np.searchsorted(live, wanted), max(live.size - 1, 0))
        good = np.zeros(wanted.size, np.bool_) if not live.size else (live[at] == wanted) & (copies[at] == 1)
        if not good.all():
            offset = int(wanted[~good][0])
            raise ValueError(f"offset {offset} is not a live tombstone that is its key's only record")
        offset_map = self._scan.map
        assert offset_map is not None
        map_loops.mark_due(offset_map.arrays, entries[at], self._scan.store.arrays, self._scan.counts.arrays)
        self._has_due = True

    def certified(self) -> None:
        """Unset `by_hash`: all garbage has left the log, also due tombstones, which no rewrite reported."""
        self.by_hash = False
        if self._has_due and self._scan.map is not None:
            self._scan.map.vacate_due()
            self._tidy(forget=False)

    def revive(self, offsets: NDArray[np.int64]) -> None:
        """Make tombstones live again that `mark_due` marked and no newer record superseded.

        Offsets of other tombstones are ignored. The batches count as having a delete horizon.
        """
        self._idle()
        scan, offset_map = self._scan, self._scan.map
        if offset_map is None:
            return
        at, due, size_bytes = offset_map.due_tombstones()
        chosen = np.isin(due, offsets)
        at, due, size_bytes = at[chosen], due[chosen], size_bytes[chosen]
        # Marking them due with separate arrays counts what has to be added back.
        offset_map.set_flags(at, TOMBSTONE | size_bytes)
        stats, digests = np.zeros_like(scan.counts.stats), np.zeros_like(scan.counts.digests)
        map_loops.mark_due(
            offset_map.arrays, at, scan.store.arrays, CountArrays(scan.counts.bases, stats, digests)
        )
        offset_map.set_flags(at, TOMBSTONE | size_bytes)
        scan.store.unset(due)
        owners = np.searchsorted(scan.counts.bases, due, side="right") - 1
        np.add.at(stats[:, map_loops.DEAD_RECORDS], owners, 1)
        np.add.at(stats[:, map_loops.DEAD_BYTES], owners, size_bytes)
        scan.counts.stats -= stats
        scan.counts.digests -= digests

    def set_only_copies(self, offsets: NDArray[np.int64]) -> None:
        """Set the copies of the keys of these live tombstones (ascending) to one, whatever was counted.

        Counts stay at 255, and copies in segments that retention deleted are never subtracted.
        """
        if offsets.size and self._scan.map is not None:
            entries, live, _, _ = self._live_tombstones()
            self._scan.map.arena[entries[np.searchsorted(live, offsets)] + COPIES_AT] = 1

    def count_removals(self, chunk: Chunk, dead: DeadBitmaps) -> None:
        """Count the dead records of this chunk as removed by the rewrite in progress.

        The count takes effect in `replace_segments`; until then nothing may be added or marked. `dead`: the
        bits by which the rewrite removes records.
        """
        first, after = int(chunk.table[0, fields.BASE_OFFSET]), chunk.next_offset
        low, high = self._removals or (first, after)
        self._removals = min(low, first), max(high, after)
        offset_map = self._scan.map
        if offset_map is None:
            return
        row, status = map_loops.count_removals(
            chunk.uncompressed, chunk.table, chunk.rows, offset_map.arrays, dead.arrays
        )
        if status != kernels.OK:
            chunk.raise_status(row, status)

    def discard_removals(self) -> None:
        """Discard the counted removals: the rewrite was not published, and its sources stay."""
        self._apply_removals(published=False)

    def replace_segments(
        self, first: int, last: int, size_bytes: int, next_offset: int, *, forget: bool = False
    ) -> None:
        """Replace segments `first` to `last` (indexes) by one file without their dead records.

        The map keeps the old sizes of the records; facts scale them to the new file. A vacant key without
        copies leaves the map; with `forget` also a vacant key with copies.
        """
        counts, store = self._scan.counts, self._scan.store
        if not 0 <= first <= last < len(counts):
            raise ValueError(f"segments {first} to {last} of {len(counts)}")
        start = int(counts.bases[first])
        end = int(counts.bases[last + 1]) if last + 1 < len(counts) else self.limit
        if self._removals is not None and (self._removals[0] < start or self._removals[1] > end):
            raise ValueError("removals of other segments are counted as well: one rewrite at a time")
        self._apply_removals(published=True)
        counts.merge(first, last, size_bytes, next_offset, share=self._share)
        store.clear(start, end)
        segments = store.page_segments[: store.pages]
        segments[(segments > first) & (segments <= last)] = first
        segments[segments > last] -= last - first
        self._tidy(forget)

    def _apply_removals(self, *, published: bool) -> None:
        """Apply the counted removals, or discard them. Without a rewrite, no pass over the keys is needed."""
        counted, self._removals = self._removals is not None, None
        if counted and self._scan.map is not None:
            map_loops.apply_removals(self._scan.map.arena, self._scan.state, published)

    def _tidy(self, forget: bool) -> None:
        vacancies, used = (int(self._scan.state[field]) for field in (map_loops.VACANCIES, map_loops.USED))
        if self._scan.map is not None and vacancies > _MAX_VACANCIES * used:
            self.forgot_copies |= forget and self._scan.map.forget_vacant()
            self._scan.map.drop(self._scan.store.arrays, self._scan.counts.arrays)

    def _idle(self) -> None:
        if self._removals is not None:
            raise ValueError("a rewrite is under way: `replace_segments` or `discard_removals` comes first")

    # ---------------------------------------------------------------- saving

    def to_parts(self) -> dict[str, Any]:
        """Return all state as arrays and numbers, without slack. Not while a rewrite is in progress.

        The keys are not copied, which would take as much memory again: write them before anything changes.
        """
        self._idle()
        scan = self._scan
        scan.store.compact()
        bits = scan.store.finish()
        parts: dict[str, Any] = {f"tally_{name}": part for name, part in scan.counts.to_parts().items()}
        parts |= {
            "salt": np.frombuffer(scan.salt, np.uint8).copy(),
            "share": self._share,
            "limit": self.limit,
            "largest": scan.largest_bytes,
            "page_ids": bits.page_ids,
            "page_slots": bits.page_slots,
            "page_bits": bits.page_bits,
            "page_segments": scan.store.page_segments[: scan.store.pages].copy(),
            "horizons": self._horizons.table(),
        }
        if scan.map is not None:
            used, vacancies = (int(scan.state[field]) for field in (map_loops.USED, map_loops.VACANCIES))
            parts |= {"arena": scan.map.arena[: scan.map.arena_bytes], "keys": used, "vacancies": vacancies}
        return parts

    @classmethod
    def from_parts(
        cls, parts: Mapping[str, Any], *, map_bytes: int, scratch: str | None = None, take_over: bool = False
    ) -> RunningResolution:
        """Return the resolution from the parts of `to_parts`, with another budget.

        `take_over`: the caller no longer uses the arrays. Keys at the beginning of an array of `map_bytes`
        are then used without a copy. Raises MapFull, and ValueError for parts that do not match.
        """
        resolution = cls(
            map_bytes=map_bytes,
            salt=np.asarray(parts["salt"], np.uint8).tobytes(),
            share=float(parts["share"]),
            scratch=scratch,
        )
        scan = resolution._scan
        scan.counts = SegmentCounts.from_parts({k[6:]: v for k, v in parts.items() if k.startswith("tally_")})
        resolution.limit = int(parts["limit"])
        scan.largest_bytes = int(parts["largest"])
        bits = DeadBitmaps(*(np.asarray(parts[f"page_{name}"]) for name in ("ids", "slots", "bits")))
        check_pages(bits, np.asarray(parts["page_segments"]), len(scan.counts))
        scan.store = PageStore(scan.state, bits)
        scan.store.page_segments[: bits.page_ids.size] = parts["page_segments"]
        resolution._horizons = Horizons(np.asarray(parts["horizons"], np.int64))
        if "arena" in parts:
            keys = int(parts["keys"])
            offset_map = scan.make_map(1, 24.0)
            arena, vacancies = np.asarray(parts["arena"], np.uint8), int(parts["vacancies"])
            if not offset_map.load(arena, keys, vacancies, take_over=take_over):
                raise MapFull(keys, map_bytes)
        return resolution
