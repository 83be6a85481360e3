"""Resolve a log from its newest record to its oldest, with a map of hashes: for a cleaning that certifies it.

A record whose key was met is dead, another one is the newest: so the fate of a record is known when it is
read, and `survivors` can copy what the rewrite needs while the chunk is in the processor's cache. The log is
then read, and decompressed, once. A key of any length takes 20 bytes.

Two keys with one 64-bit hash would be taken for one. The certificate of the rewrite, or the kernel, finds
such a pair (`kernels.hash_map` has the reason). A scan whose result is not certified takes the exact map, and
so does a log that this scan cannot read: the exact map reads oldest first, and reports damage in that order.

For a garbage index the scan lists the newest records in the arena of an offset map: after the rewrite there
are no other records with a key. A log with tombstones and aborted records is then left to the exact map: an
aborted record is a copy of its key, and need not be older than the tombstone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from lastword import kernels
from lastword.kernels import hash_map as hash_loops
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels.hashing import digest_seeds, seeds
from lastword.kernels.pages import PAGE_WORDS
from lastword.resolve.bitmaps import DeadBitmaps, union
from lastword.resolve.facts import (
    LAST_HASH,
    Resolution,
    Rules,
    TransactionOutcomes,
    digest_seed_of,
    horizons_of,
)
from lastword.resolve.offset_map import MAX_LOAD
from lastword.resolve.parts import OldestFirstNeeded, Part, PartReader, PartSource
from lastword.resolve.resolver import max_records_of
from lastword.resolve.survivors import Survivors
from lastword.wire import CODEC_MASK, CONTROL_BIT

ENTRY_BYTES = 8 * hash_loops.ENTRY_WORDS
LEAST_MAP_BYTES = 1 << 20
"""A smaller budget is for the exact map alone: its keys seldom fit."""

_LEAST_SLOTS = 64
_RECORDS_OF_A_KEY = 4
_LEAST_GROWTH = 1.2
_FEWEST_DEAD = 1 / 2  # share of dead records from which on it pays to copy the survivors of a chunk
_FEWEST_DEAD_CODED = 1 / 8  # the same where a second reading decompresses again


class HashesUnsure(OldestFirstNeeded):
    """Hashes do not decide about this log: the exact map must."""


_NO_ARENA = np.empty(0, np.uint8)


class HashResolver:
    """One pass over all records, newest first. Raises HashesUnsure, and errors of a damaged log.

    Args:
        survivors: Get what the rewrite needs of chunks with dead records; None: nothing is kept.
        lists_keys: List the newest records, and what else a garbage index has.

    Attributes:
        counts: Of each segment.
        entries: The map.
        arena: With `lists_keys` the entries of an offset map, each with one copy; a tombstone with older
            records has MAX_COPIES. The next three are then those of all records.
        page_ids: Pages of the bitmaps, some more than once.
        horizons: Delete horizons by chunk, the newest first (`facts.horizons_of`).
        largest_bytes: Size of the largest record.
    """

    def __init__(
        self,
        sources: Sequence[PartSource],
        map_bytes: int,
        salt: bytes,
        rules: Rules,
        outcomes: TransactionOutcomes | None = None,
        progress: Callable[[int, int], None] | None = None,
        threads: int = 1,
        survivors: Survivors | None = None,
        lists_keys: bool = False,
    ) -> None:
        self._sources = sources
        self._map_bytes = map_bytes
        self._progress = progress
        self._threads = threads
        self._survivors = survivors
        self._lists_keys = lists_keys
        self.digest_seed = digest_seed_of(salt)
        self._words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
        self._words[key_batch.SEED0], self._words[key_batch.SEED1] = seeds(salt, b"lastword map")
        self._words[key_batch.DIGEST0], self._words[key_batch.DIGEST1] = digest_seeds(self.digest_seed)
        self._words[key_batch.RANGE_LAST] = np.uint64(LAST_HASH)
        self._reader = PartReader(sources, rules, outcomes, self._words)
        self.counts = self._reader.counts
        self.state = np.zeros(loops.STATE_FIELDS, np.int64)
        self.state[loops.ARENA_END] = loops.ARENA_START if lists_keys else hash_loops.NO_ARENA
        self.arena = np.empty(map_bytes & ~7, np.uint8) if lists_keys else _NO_ARENA
        self.page_ids = [np.empty(0, np.int64)]
        self.horizons = [np.empty((0, 3), np.int64)]
        self.largest_bytes = 0
        self.entries = np.empty(0, np.uint64)
        self._peak_bytes = 0
        self._bitmaps: list[DeadBitmaps] = []  # of the chunks, newest first

    @property
    def distinct_keys(self) -> int:
        """Return the number of hashes."""
        return int(self.state[loops.USED])

    def run(self) -> Resolution:
        """Read all records and return the result."""
        started = time.perf_counter()
        total, done = sum(source.size for source in self._sources), 0
        with closing(self._reader.parts(self._threads)) as parts:
            for part in parts:
                self._settle(part)
                done += part.chunk.size_bytes
                if self._progress is not None:
                    self._progress(done, total)
        if self._lists_keys and self.counts.stats[:, loops.TOMBSTONES].any():
            if self.counts.stats[:, loops.ABORTED_RECORDS].any() or self.arena_end < 0:
                raise HashesUnsure("tombstones with aborted records, or with more keys than fit the memory")
            hash_loops.note_older_copies(self.arena, self.state, self.entries, self._words)
        return Resolution(
            segments=self.counts.facts(),
            dead=union(self._bitmaps),
            passes=1,
            distinct_keys=self.distinct_keys,
            map_bytes=self._map_bytes,
            map_bytes_used=self._peak_bytes,
            map_used_ratio=min(self.distinct_keys / max(self._most_slots * MAX_LOAD, 1), 1.0),
            probes=int(self.state[loops.PROBES]),
            records=int(self.counts.records.sum()),
            keyless=int(self.counts.stats[:, loops.KEYLESS].sum()),
            digest_seed=self.digest_seed,
            seconds=time.perf_counter() - started,
        )

    # ---------------------------------------------------------------- settling

    def _settle(self, part: Part) -> None:
        """Find the fates of a chunk's records, and keep what survives."""
        cursor, chunk = part.filler.cursor, part.chunk
        ids = part.filler.arrays.page_ids[: int(cursor[key_batch.PAGES_MET])].copy()
        bits = np.zeros((max(ids.size, 1), PAGE_WORDS), np.uint64)
        left = int(cursor[key_batch.FILLED])
        before = int(self.counts.stats[part.segment, loops.DEAD_RECORDS])
        if not self.entries.size:
            slots = int(max_records_of(self._sources, chunk) / _RECORDS_OF_A_KEY / MAX_LOAD) + _LEAST_SLOTS
            self._use(min(slots, self._most_slots))
        self.state[loops.NEXT] = left
        while True:
            status = hash_loops.settle_keys(
                chunk.uncompressed,
                part.filler.arrays,
                part.segment,
                self.entries,
                self.state,
                self._words,
                ids,
                bits,
                self.counts.arrays,
                self.arena,
            )
            if status == kernels.OK:
                break
            if status != kernels.FULL:
                raise HashesUnsure("two keys have one hash")
            self._grow()
        if self._lists_keys:
            if self.arena_end < 0:
                self.arena = _NO_ARENA
            sizes = part.filler.arrays.spans[key_batch.SIZE, :left] & key_batch.SIZE_MASK
            self.counts.add_weight(part.segment, int(sizes.sum()))
            self.largest_bytes = max(self.largest_bytes, int(sizes.max(initial=0)))
            self.page_ids.append(ids)
            self.horizons.append(horizons_of(chunk))
        dead = int(self.counts.stats[part.segment, loops.DEAD_RECORDS]) - before
        if not dead:
            return
        self._bitmaps.append(DeadBitmaps(ids, np.arange(ids.size, dtype=np.int32), bits))
        fewest = left * (_FEWEST_DEAD_CODED if chunk.attributes & CODEC_MASK else _FEWEST_DEAD)
        if self._survivors is not None and dead >= fewest and not chunk.attributes & CONTROL_BIT:
            self._survivors.keep(part.segment, chunk, part.filler.arrays, left, self._room_beside())

    @property
    def arena_end(self) -> int:
        """Return where the listed entries end; below 0: none are listed, or they do not fit the memory."""
        return int(self.state[loops.ARENA_END])

    def _room_beside(self) -> int:
        """Return the bytes that survivors may take beside the map, and a list of as many keys as fit it."""
        full = int(self.state[loops.MAX_ENTRIES]) / max(self.distinct_keys, 1)
        return self._map_bytes - self.entries.nbytes - int(max(self.arena_end, 0) * full)

    @property
    def _most_slots(self) -> int:
        """Return the slots of a map that takes all of the budget."""
        return self._map_bytes // ENTRY_BYTES

    def _grow(self) -> None:
        slots = self.entries.size // hash_loops.ENTRY_WORDS
        free = self._most_slots - slots
        listed = max(self.arena_end, 0) // ENTRY_BYTES
        if free - listed < _LEAST_GROWTH * slots:
            self.state[loops.ARENA_END], self.arena = hash_loops.NO_ARENA, _NO_ARENA
            listed = 0
        free -= listed
        kept = self._survivors
        if kept is not None and ENTRY_BYTES * (free - 2 * slots) < kept.memory_bytes:
            kept.release()
        more = min(2 * slots, free)
        if more < _LEAST_GROWTH * slots:
            raise HashesUnsure(f"a map of {self._map_bytes} bytes is full with {self.distinct_keys} hashes")
        smaller = self.entries
        self._use(more, smaller.nbytes)
        hash_loops.move_entries(smaller, self.entries)

    def _use(self, slots: int, old_bytes: int = 0) -> None:
        self.entries = np.empty(hash_loops.ENTRY_WORDS * slots, np.uint64)  # not `zeros`: no huge pages
        self.entries[:] = 0
        self.state[loops.MAX_ENTRIES] = int(slots * MAX_LOAD)
        room = self._map_bytes - self.entries.nbytes
        self.state[loops.ARENA_LIMIT] = min(room, self.arena.size - kernels.SLACK)
        self._peak_bytes = max(self._peak_bytes, old_bytes + self.entries.nbytes)
