"""Resolve a log with a map of hashes: 20 bytes a key of any length, for a cleaning that certifies its result.

Two keys with one 64-bit hash would be taken for one. The certificate of the rewrite, or `HashScan.finish`,
finds such a pair (`kernels.hash_map` has the reason). A scan whose result is not certified takes the exact
map.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import hash_map as hash_loops
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels.hashing import digest_seeds, seeds
from lastword.records.chunk import Chunk
from lastword.resolve.facts import LAST_HASH, Resolution, Rules
from lastword.resolve.offset_map import MAX_LOAD
from lastword.resolve.resolver import KeyBatchFiller, KeyScan, Resolver

ENTRY_BYTES = 8 * hash_loops.ENTRY_WORDS
ROW_BYTES = 8 * hash_loops.ROW_WORDS
LEAST_MAP_BYTES = 1 << 20
"""A smaller budget is for the exact map alone: its keys seldom fit."""

_MOST_BIN_ROWS = 1 << 12
_LEAST_BIN_ROWS = 64
_BINS_SHARE = 6  # the bins take at most one part in this number of the budget
_DUE_SHARE = 4  # and the due tombstones
_RECORDS_OF_A_KEY = 4
_LEAST_GROWTH = 1.2


class HashesUnsure(Exception):
    """Hashes do not decide about this log: the exact map must."""


class HashScan(KeyScan):
    """A scan with a map of hashes and bins before it. Raises HashesUnsure."""

    def __init__(self, map_bytes: int, salt: bytes, digest_seed: int, rules: Rules) -> None:
        super().__init__(map_bytes, salt, digest_seed, rules)
        self._words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
        self._words[key_batch.SEED0], self._words[key_batch.SEED1] = seeds(salt, b"lastword map")
        self._words[key_batch.DIGEST0], self._words[key_batch.DIGEST1] = digest_seeds(digest_seed)
        self._words[key_batch.RANGE_LAST] = np.uint64(LAST_HASH)
        self._entries = np.empty(0, np.uint64)
        self._bins = hash_loops.Bins(np.empty((0, 0), np.uint64), np.zeros(hash_loops.BINS, np.int64))
        few = np.empty((0, 2), np.uint64)
        self._due = hash_loops.DueList(few, few, np.zeros(hash_loops.LISTED_FIELDS, np.int64))
        self._first_offset = -1
        self._peak_bytes = 0

    @property
    def distinct_keys(self) -> int:
        """Return the number of hashes."""
        return int(self.state[loops.USED])

    def words_for(self, chunk: Chunk, max_records: Callable[[Chunk], int]) -> NDArray[np.uint64]:
        """Return the seeds of key batches; makes bins and entries for the first chunk."""
        if self._first_offset < 0:
            self._first_offset = int(self.counts.bases[0])
            records = max_records(chunk)
            most = self.map_bytes // _BINS_SHARE // (ROW_BYTES * hash_loops.BINS)
            rows = max(min(records // hash_loops.BINS // 8, most, _MOST_BIN_ROWS), _LEAST_BIN_ROWS)
            bins = np.empty((hash_loops.BINS, rows * hash_loops.ROW_WORDS), np.uint64)
            self._bins = hash_loops.Bins(bins, self._bins.ends)
            slots = int(records / _RECORDS_OF_A_KEY / MAX_LOAD) + _LEAST_BIN_ROWS
            self._use(np.zeros(hash_loops.ENTRY_WORDS * min(slots, self._free_slots()), np.uint64))
        return self._words

    def insert(
        self, filler: KeyBatchFiller, chunk: Chunk, segment: int, make_room: Callable[[Chunk], None]
    ) -> None:
        """Put a key batch into the bins; insert those that are full into the map."""
        filled = int(filler.cursor[key_batch.FILLED])
        self.store.register(filler.arrays.page_ids[: int(filler.cursor[key_batch.PAGES_MET])], segment)
        self._make_room_for_due(filled)
        at = 0
        while True:
            self.state[loops.NEXT] = at
            place, status = hash_loops.collect_keys(
                filler.arrays,
                filled,
                segment,
                self._first_offset,
                self._bins,
                self._due,
                self.state,
                self._words,
                self.store.arrays,
                self.counts.arrays,
            )
            if status == kernels.OK:
                return
            if status != kernels.FULL:
                raise HashesUnsure("a record is too large or too far from the first one")
            at = int(self.state[loops.NEXT])
            self._insert_bin(int(place))

    def finish(self) -> None:
        """Insert the rest of all bins; check that due tombstones were superseded by records of their keys."""
        for place in np.flatnonzero(self._bins.ends).tolist():
            self._insert_bin(place)
        due, superseded, listed = self._due
        due = due[: listed[hash_loops.DUE_ROWS]]
        superseded = superseded[: listed[hash_loops.SUPERSEDED_ROWS]]
        at = np.searchsorted(due[:, 0], superseded[:, 0])  # ascending: they were listed in order
        if (due[at, 1] != superseded[:, 1]).any():
            raise HashesUnsure("two keys have one hash")

    def _insert_bin(self, place: int) -> None:
        self._make_room_for_superseded(int(self._bins.ends[place]) // hash_loops.ROW_WORDS)
        self.state[loops.NEXT] = 0
        while True:
            status = hash_loops.insert_rows(
                self._bins,
                place,
                self._first_offset,
                self._entries,
                self._due,
                self.state,
                self._words,
                self.store.arrays,
                self.counts.arrays,
            )
            if status == kernels.OK:
                return
            if status != kernels.FULL:
                raise HashesUnsure("offsets do not increase")
            self._grow()

    def _grow(self) -> None:
        slots = self._entries.size // hash_loops.ENTRY_WORDS
        more = min(2 * slots, self._free_slots() - slots)
        if more < _LEAST_GROWTH * slots:
            raise HashesUnsure(f"a map of {self.map_bytes} bytes is full with {self.distinct_keys} hashes")
        larger = np.zeros(hash_loops.ENTRY_WORDS * more, np.uint64)
        hash_loops.move_entries(self._entries, larger)
        self._use(larger, self._entries.nbytes)

    def _use(self, entries: NDArray[np.uint64], old_bytes: int = 0) -> None:
        self._entries = entries
        self.state[loops.MAX_ENTRIES] = int(entries.size // hash_loops.ENTRY_WORDS * MAX_LOAD)
        self._peak_bytes = max(self._peak_bytes, old_bytes + entries.nbytes + self._other_bytes)

    @property
    def _other_bytes(self) -> int:
        """Return the memory of the bins and of the rows of due tombstones."""
        return self._bins.rows.nbytes + ENTRY_BYTES * int(self._due.listed.sum())

    def _free_slots(self) -> int:
        """Return the slots of a map that takes the rest of the budget."""
        return (self.map_bytes - self._other_bytes) // ENTRY_BYTES

    def _make_room_for_due(self, rows: int) -> None:
        due, superseded, listed = self._due
        due = self._with_room(due, int(listed[hash_loops.DUE_ROWS]), rows)
        self._due = hash_loops.DueList(due, superseded, listed)

    def _make_room_for_superseded(self, rows: int) -> None:
        due, superseded, listed = self._due
        superseded = self._with_room(superseded, int(listed[hash_loops.SUPERSEDED_ROWS]), rows)
        self._due = hash_loops.DueList(due, superseded, listed)

    def _with_room(self, rows: NDArray[np.uint64], used: int, more: int) -> NDArray[np.uint64]:
        if used + more <= rows.shape[0]:
            return rows
        if ENTRY_BYTES * used > self.map_bytes // _DUE_SHARE:
            raise HashesUnsure("too many due tombstones to list")
        larger = np.empty((2 * (used + more), 2), np.uint64)
        larger[:used] = rows[:used]
        return larger

    def resolution(self, passes: int, distinct_keys: int, seconds: float) -> Resolution:
        """Return the result up to now."""
        result = super().resolution(passes, distinct_keys, seconds)
        return replace(
            result,
            map_bytes_used=self._peak_bytes,
            map_used_ratio=min(self.distinct_keys / max(self._free_slots() * MAX_LOAD, 1), 1.0),
            probes=int(self.state[loops.PROBES]),
        )


class HashResolver(Resolver):
    """One pass over all records with a map of hashes. Raises HashesUnsure."""

    scan: HashScan
    scan_kind = HashScan

    def run(self) -> Resolution:
        """Read all records and return the result."""
        started = time.perf_counter()
        self.take_all(1)
        self.scan.finish()
        return self.scan.resolution(1, self.scan.distinct_keys, time.perf_counter() - started)
