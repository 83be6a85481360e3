"""A resolution that is kept: later segments are added to it, and rewritten ones change places in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import copies as loops
from lastword.kernels import offset_map as fields
from lastword.kernels.key_batch import TOMBSTONE
from lastword.kernels.offset_map import COPIES_AT, NO_OFFSET, CountArrays
from lastword.kernels.table import BASE_OFFSET
from lastword.records.chunk import CHUNK_BYTES, Chunk
from lastword.resolve.bitmaps import DeadBitmaps, PageStore, check_pages
from lastword.resolve.facts import (
    Fates,
    MapFull,
    Resolution,
    SegmentFacts,
    SegmentSource,
    Tombstones,
    check_order,
    digest_seed_of,
)
from lastword.resolve.horizons import Horizons
from lastword.resolve.rules import LAST_HASH, Rules
from lastword.resolve.spill import spill_in
from lastword.resolve.tally import Tally
from lastword.resolve.walk import Walk, records_at_most

__all__ = ["MapFull", "RunningResolution", "Tombstones"]

_GROWTH = 1.6  # of the slots, when a map that is kept is full
_LISTED_BYTES = 60  # memory for each live tombstone while they are listed and looked at
_LISTED_FREE_BYTES = 32 << 20  # of it, beside the map's budget
_MOST_VACANCIES = 0.2  # share of the entries that may wait to be used again


class RunningResolution:
    """Map, bits and facts of a log up to `limit`, to which later segments can be added. Not thread-safe.

    Records without a key and those of aborted transactions are dead at once. A tombstone is dead when
    `mark_due` says so, whatever the horizon of its batch.

    Args:
        map_bytes: budget of the map; memory is taken as keys come.
        salt: secret random bytes, new for each map.
        share: below 1, only keys whose salted hash lies in the first `share` of the range are looked at, and
            as large a share of the records without a key. Dead and live counts, bytes and tombstones are
            then those of the sample: divide them by `share`. `records` counts all. A sample never decides
            about a record.
        scratch: a directory for the keys, in a mapped file without a name; then `map_bytes` bounds the slots
            alone, and a full drive is a DiskFullError.
        threads: as for `resolve`.

    `limit` is one past the last offset taken. `exact`: every key is in the map, bits and copies are the
    truth; but where `forget` was allowed and room was wanted (`forgot_copies`), no copies are counted of keys
    that only aborted transactions wrote. After an error of `absorb` the object must not be used again.
    """

    def __init__(
        self, *, map_bytes: int, salt: bytes, share: float = 1.0, scratch: str | None = None, threads: int = 1
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"a share lies in (0, 1], unlike {share}")
        self.limit = 0
        self.exact = share == 1
        self.seconds = 0.0
        self._share = share
        self._threads = threads
        last_hash = LAST_HASH if share == 1 else int(LAST_HASH * share)
        rules = Rules(decided=True, keyless_go=True, keep_copies=True, last_hash=last_hash)
        self._walk = Walk(map_bytes, salt, digest_seed_of(salt), rules)
        self._walk.spill = spill_in(scratch)
        self._horizons = Horizons()
        self._going: tuple[int, int] | None = None  # offsets from and to that `dropping` has heard of
        self.forgot_copies = False

    # ---------------------------------------------------------------- growing

    def absorb(
        self,
        sources: Sequence[SegmentSource],
        *,
        fates: Fates | None = None,
        progress: Callable[[int, int], None] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        threads: int = 0,
        forget: bool = False,
        more: Sequence[SegmentSource] = (),
    ) -> None:
        """Take in whole segments at or above `limit`, by ascending base offset, all of them decided.

        `progress` hears (bytes done, bytes in all) after every chunk, and may raise to stop. Raises MapFull,
        and what `resolve` raises. `threads`: for this call; 0: as the object was made. `forget`: before the
        map is full, keys without a record leave it, though aborted copies of them lie in the log. `more`:
        what will be taken in next, so that the map need not shrink and grow meanwhile.
        """
        self._idle()
        if not sources:
            return
        check_order(sources, self.limit)
        started = time.perf_counter()

        def most(chunk: Chunk) -> int:
            return int(records_at_most([*sources, *more], chunk) * self._share) + 1

        first = len(self._walk.tally)
        self._walk.tally.add(sources)
        total, done = sum(source.size for source in sources), 0
        chunks = self._walk.take(
            sources,
            fates,
            most,
            partial(self._make_room, forget=forget),
            first_segment=first,
            chunk_bytes=chunk_bytes,
            threads=threads or self._threads,
        )
        with closing(chunks):
            for chunk in chunks:
                self._horizons.add(chunk)
                self._check_tombstones()
                done += chunk.size_bytes
                if progress is not None:
                    progress(done, total)
        self.limit = max(sources[-1].next_offset, int(self._walk.tally.ends[-1]))
        if self._walk.map is not None and not more:
            self._walk.map.trim()
        if self._horizons.crowded:
            self._horizons.keep(self._live_tombstones()[1])
        self.seconds += time.perf_counter() - started

    def _check_tombstones(self) -> None:
        """Beyond some, what they cost to list comes out of the map's budget: a log of nothing else would
        take twice of it.
        """
        offset_map = self._walk.map
        if offset_map is None:
            return
        count = int(self._walk.tally.stats[:, fields.TOMBSTONES].sum())
        room = offset_map.map_bytes - offset_map.anonymous_bytes + _LISTED_FREE_BYTES
        if count * _LISTED_BYTES > room:
            raise MapFull(offset_map.distinct_keys, offset_map.map_bytes)

    def _make_room(self, chunk: Chunk, *, forget: bool) -> None:
        offset_map = self._walk.map
        assert offset_map is not None
        if offset_map.make_room(_GROWTH):
            return
        self.forgot_copies |= forget and offset_map.forget_vacant()
        vacancies = int(self._walk.state[fields.VACANCIES])
        offset_map.drop(self._walk.store.arrays, self._walk.tally.arrays)
        if int(self._walk.state[fields.VACANCIES]) == vacancies:
            raise MapFull(offset_map.distinct_keys, offset_map.map_bytes)

    # ---------------------------------------------------------------- what it knows

    def resolution(self) -> Resolution:
        """What `resolve` would have found in all segments at once; later changes do not touch it."""
        keys = 0 if self._walk.map is None else self._walk.map.distinct_keys
        return self._walk.resolution(1, keys, self.seconds)

    def facts(self) -> tuple[SegmentFacts, ...]:
        """About each segment, ascending; the bytes of one that was rewritten are shares of its new file."""
        return self._walk.tally.facts()

    def lowest_killer(self, segment_index: int) -> int | None:
        """The lowest offset of a record that replaced one which is still in that segment's file."""
        found = int(self._walk.tally.stats[segment_index, fields.LOWEST_SUPERSEDING])
        return None if found == NO_OFFSET else found

    def tombstones(self) -> Tombstones:
        """All live ones: one pass over the keys."""
        offsets, copies, size_bytes = self._live_tombstones()[1:]
        tally = self._walk.tally
        if tally.is_scaled:
            segments = np.searchsorted(tally.bases, offsets, side="right") - 1
            size_bytes = tally.scaled(segments, size_bytes)
        return Tombstones(offsets, copies, size_bytes, self._horizons.of(offsets))

    @property
    def distinct_keys(self) -> int:
        """Keys in the map that have a record."""
        return 0 if self._walk.map is None else self._walk.map.distinct_keys

    @property
    def memory_bytes(self) -> int:
        """Anonymous memory of all that is kept."""
        kept = self._walk.store.size_bytes + self._walk.tally.size_bytes + self._horizons.size_bytes
        return kept + (0 if self._walk.map is None else self._walk.map.anonymous_bytes)

    def _live_tombstones(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
        """(entry, offset, copies, size as the map knows it), by ascending offset. There may be as many as
        keys: one column after another is put in order, if they are not.
        """
        count = int(self._walk.tally.stats[:, fields.TOMBSTONES].sum())
        entries, offsets, sizes = (np.empty(count, np.int64) for _ in range(3))
        copies = np.empty(count, np.uint8)
        if self._walk.map is not None and count:
            found = loops.list_tombstones(
                self._walk.map.arena, self._walk.state, entries, offsets, copies, sizes
            )
            if found != count:
                raise ValueError(f"{found} live tombstones in the map, {count} in its segments")
        if (offsets[1:] < offsets[:-1]).any():
            order = np.argsort(offsets)
            entries = entries[order]
            offsets = offsets[order]
            copies = copies[order]
            sizes = sizes[order]
        return entries, offsets, copies, sizes

    # ---------------------------------------------------------------- tombstones and rewrites

    def mark_due(self, offsets: Sequence[int] | NDArray[np.int64]) -> None:
        """These live tombstones, of whose keys nothing else is left, are dead now.

        ValueError, and nothing changed, if one of them is no such tombstone.
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
        offset_map = self._walk.map
        assert offset_map is not None
        loops.mark_due(offset_map.arrays, entries[at], self._walk.store.arrays, self._walk.tally.arrays)

    def revive(self, offsets: NDArray[np.int64]) -> None:
        """Those of these tombstones that `mark_due` took for dead, and that no newer record has replaced, are
        live again. Their batches count as having a delete horizon."""
        self._idle()
        walk, offset_map = self._walk, self._walk.map
        if offset_map is None:
            return
        at, found, size_bytes = offset_map.due_tombstones()
        wanted = np.isin(found, offsets)
        at, found, size_bytes = at[wanted], found[wanted], size_bytes[wanted]
        # What marking them takes off their segments, told to arrays of its own, is what comes back.
        offset_map.set_flags(at, TOMBSTONE | size_bytes)
        stats, digests = np.zeros_like(walk.tally.stats), np.zeros_like(walk.tally.digests)
        loops.mark_due(
            offset_map.arrays, at, walk.store.arrays, CountArrays(walk.tally.bases, stats, digests)
        )
        offset_map.set_flags(at, TOMBSTONE | size_bytes)
        walk.store.unset(found)
        owners = np.searchsorted(walk.tally.bases, found, side="right") - 1
        np.add.at(stats[:, fields.DEAD_RECORDS], owners, 1)
        np.add.at(stats[:, fields.DEAD_BYTES], owners, size_bytes)
        walk.tally.stats -= stats
        walk.tally.digests -= digests

    def left_alone(self, offsets: NDArray[np.int64]) -> None:
        """Of the keys of these live tombstones (ascending) nothing else is left, whatever was counted.
        Copies stick at 255, and those of segments that have left the log at its front are never dropped.
        """
        if offsets.size and self._walk.map is not None:
            entries, live, _, _ = self._live_tombstones()
            self._walk.map.arena[entries[np.searchsorted(live, offsets)] + COPIES_AT] = 1

    def dropping(self, chunk: Chunk, dead: DeadBitmaps) -> None:
        """A rewrite leaves the dead records of this chunk out. Counts once `swapped` is called; until then
        nothing may be absorbed or marked. `dead`: the bits that the rewrite goes by.
        """
        first, after = int(chunk.table[0, BASE_OFFSET]), chunk.next_offset
        low, high = self._going or (first, after)
        self._going = min(low, first), max(high, after)
        offset_map = self._walk.map
        if offset_map is None:
            return
        row, status = loops.count_removals(
            chunk.uncompressed, chunk.table, chunk.rows, offset_map.arrays, dead.arrays
        )
        if status != kernels.OK:
            chunk.raise_status(row, status)

    def abandon(self) -> None:
        """The rewrite under way was given up: its sources stay."""
        self._settle_going(gone=False)

    def swapped(
        self, first: int, last: int, size_bytes: int, next_offset: int, *, forget: bool = False
    ) -> None:
        """Segments `first` to `last` (indexes) are one file now, without their dead records.

        The map keeps the sizes that their records had; facts scale them to the new file. A key of which
        nothing is left leaves the map; `forget`: so does one without a record, whatever is counted of it.
        """
        tally, store = self._walk.tally, self._walk.store
        if not 0 <= first <= last < len(tally):
            raise ValueError(f"segments {first} to {last} of {len(tally)}")
        start = int(tally.bases[first])
        end = int(tally.bases[last + 1]) if last + 1 < len(tally) else self.limit
        if self._going is not None and (self._going[0] < start or self._going[1] > end):
            raise ValueError("records of other segments are about to go as well: one rewrite at a time")
        self._settle_going(gone=True)
        tally.merge(first, last, size_bytes, next_offset, share=self._share)
        store.clear(start, end)
        segments = store.page_segments[: store.pages]
        segments[(segments > first) & (segments <= last)] = first
        segments[segments > last] -= last - first
        self._tidy(forget)

    def _settle_going(self, *, gone: bool) -> None:
        """Nothing to do, and no pass over the keys, where no rewrite told what it leaves out."""
        noted, self._going = self._going is not None, None
        if noted and self._walk.map is not None:
            loops.apply_removals(self._walk.map.arena, self._walk.state, gone)

    def _tidy(self, forget: bool) -> None:
        vacancies, used = (int(self._walk.state[field]) for field in (fields.VACANCIES, fields.USED))
        if self._walk.map is not None and vacancies > _MOST_VACANCIES * used:
            self.forgot_copies |= forget and self._walk.map.forget_vacant()
            self._walk.map.drop(self._walk.store.arrays, self._walk.tally.arrays)

    def _idle(self) -> None:
        if self._going is not None:
            raise ValueError("a rewrite is under way: `swapped` or `abandon` comes first")

    # ---------------------------------------------------------------- kept in a file

    def to_parts(self) -> dict[str, Any]:
        """All of it as arrays and numbers, without slack. Not while a rewrite is under way.

        The keys are no copy, which would take as much memory again: write them before anything changes.
        """
        self._idle()
        walk = self._walk
        walk.store.compact()
        bits = walk.store.finish()
        parts: dict[str, Any] = {f"tally_{name}": part for name, part in walk.tally.to_parts().items()}
        parts |= {
            "salt": np.frombuffer(walk.salt, np.uint8).copy(),
            "share": self._share,
            "limit": self.limit,
            "page_ids": bits.page_ids,
            "page_slots": bits.page_slots,
            "page_bits": bits.page_bits,
            "page_segments": walk.store.page_segments[: walk.store.pages].copy(),
            "horizons": self._horizons.table(),
        }
        if walk.map is not None:
            used, vacancies = (int(walk.state[field]) for field in (fields.USED, fields.VACANCIES))
            parts |= {"arena": walk.map.arena[: walk.map.arena_bytes], "keys": used, "vacancies": vacancies}
        return parts

    @classmethod
    def from_parts(
        cls,
        parts: Mapping[str, Any],
        *,
        map_bytes: int,
        scratch: str | None = None,
        threads: int = 1,
        give: bool = False,
    ) -> RunningResolution:
        """What `to_parts` gave, with a budget of its own. Raises MapFull; ValueError for parts that do not
        fit together.

        `give`: nobody else uses the arrays any more. Keys that are the beginning of an array of `map_bytes`
        are then taken over, not copied.
        """
        made = cls(
            map_bytes=map_bytes,
            salt=np.asarray(parts["salt"], np.uint8).tobytes(),
            share=float(parts["share"]),
            scratch=scratch,
            threads=threads,
        )
        walk = made._walk
        walk.tally = Tally.from_parts({k[6:]: v for k, v in parts.items() if k.startswith("tally_")})
        made.limit = int(parts["limit"])
        bits = DeadBitmaps(*(np.asarray(parts[f"page_{name}"]) for name in ("ids", "slots", "bits")))
        check_pages(bits, np.asarray(parts["page_segments"]), len(walk.tally))
        walk.store = PageStore(walk.state, bits)
        walk.store.page_segments[: bits.page_ids.size] = parts["page_segments"]
        made._horizons = Horizons(np.asarray(parts["horizons"], np.int64))
        if "arena" in parts:
            keys = int(parts["keys"])
            offset_map = walk.make_map(1, 24.0)
            arena, vacancies = np.asarray(parts["arena"], np.uint8), int(parts["vacancies"])
            if not offset_map.load(arena, keys, vacancies, give=give):
                raise MapFull(keys, map_bytes)
        return made
