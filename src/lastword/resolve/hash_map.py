"""Resolve a log from its newest record to its oldest, with a map of hashes.

A record whose key was met is dead, another one is the newest: so the fate of a record is known when it is
read, and `survivors` can copy what the rewrite needs while the chunk is in the processor's cache. The log is
then read, and decompressed, once. A key of any length takes 20 bytes.

Two keys with one 64-bit hash would be taken for one. The certificate of the rewrite, or the kernel, finds
such a pair (`kernels.hash_map` has the reason). Hashes that do not fit the memory are divided (`shards`). A
log that this scan cannot read is left to the exact map, which reads oldest first, and reports damage in that
order.

For a garbage index the scan lists the newest records in the arena of an offset map: after the rewrite there
are no other records with a key. A log with tombstones and aborted records is then left to the exact map: an
aborted record is a copy of its key, and need not be older than the tombstone.

A part of a segment begins at a batch that its index names. An index is not trusted: the batches of a part
must end where the next part begins, down to the first byte of the segment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.files import Handle
from lastword.kernels import hash_map as hash_loops
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.batches import rows_that_fit, walk_batches
from lastword.kernels.key_batch import KeyBatch
from lastword.kernels.pages import PAGE_WORDS
from lastword.partition.transactions import BatchColumns
from lastword.records.chunk import Chunk, RecordBuffer
from lastword.records.compression import limit_of
from lastword.records.pipeline import prepared, second_thread
from lastword.resolve.bitmaps import DeadBitmaps, union
from lastword.resolve.facts import (
    Resolution,
    Rules,
    SegmentCounts,
    SegmentSource,
    TransactionOutcomes,
    check_order,
    digest_seed_of,
    horizons_of,
    outcomes_of,
)
from lastword.resolve.offset_map import MAX_LOAD, words_of
from lastword.resolve.resolver import KeyBatchFiller, max_records_of
from lastword.resolve.survivors import Survivors
from lastword.wire import CODEC_MASK, CONTROL_BIT, INT64_MAX, TRANSACTIONAL_BIT

ENTRY_BYTES = 8 * hash_loops.ENTRY_WORDS
LEAST_MAP_BYTES = 1 << 20
"""A smaller budget is for the exact map alone: its keys seldom fit."""

PART_BYTES = 1 << 20
PLAIN_PARTS = 4
"""Parts that are read together while batches are not compressed."""
MOST_PART_BYTES = 32 << 20
"""The largest part. Where a batch, or the distance of two index entries, is larger, the exact map decides."""
_MOST_RECORDS = 1 << 21  # of a chunk: of any batch that is not very odd
_LEAST_SLOTS = 64
_RECORDS_OF_A_KEY = 4
_LEAST_GROWTH = 1.2
_FEWEST_DEAD = 1 / 2  # share of dead records from which on it pays to copy the survivors of a chunk
_FEWEST_DEAD_CODED = 1 / 8  # the same where a second reading decompresses again
_FIRST_ROWS = 1024
_FIRST_RECORDS = 1 << 14


class HashesUnsure(Exception):
    """Hashes do not decide about this log: the exact map must."""


class PartSource(SegmentSource, Protocol):
    """A segment that is read part by part."""

    @property
    def handle(self) -> Handle:
        """Return the file."""

    def cuts(self, part_bytes: int) -> list[int]:
        """Return the first position, those of batches about `part_bytes` apart, and the end."""


_NO_ARENA = np.empty(0, np.uint8)


class _Buffers:
    """The arrays of one part, reused for others."""

    def __init__(self) -> None:
        self.raw = np.empty(PART_BYTES + kernels.SLACK, np.uint8)
        self.table: NDArray[np.int64] = np.empty((_FIRST_ROWS, fields.FIELDS), np.int64)
        self.file = ""
        self.records = RecordBuffer("")
        self.filler = KeyBatchFiller(_FIRST_RECORDS)

    def read(self, source: PartSource, start: int, end: int) -> NDArray[np.int64]:
        """Read a part; return the table of its batches."""
        size = end - start
        if size > MOST_PART_BYTES:
            raise HashesUnsure(f"no index of {source.file} divides {size} bytes")
        if size + kernels.SLACK > self.raw.size:
            self.raw = np.empty(size + kernels.SLACK, np.uint8)
        done = 0
        while done < size:
            got = source.handle.pread_into(self.raw.data[done:size], start + done)
            if got <= 0:
                raise HashesUnsure(f"{source.file} is shorter than it was")
            done += got
        rows, used, base = 0, 0, source.base_offset
        while True:
            rows, used, base, status = walk_batches(
                self.raw, used, size, start, base, False, self.table, rows
            )
            if status != kernels.FULL:
                break
            larger = np.empty((4 * rows, fields.FIELDS), np.int64)
            larger[:rows] = self.table
            self.table = larger
        if status != kernels.OK or not rows:
            raise HashesUnsure(f"{source.file} has no whole batches between {start} and {end}")
        return self.table[:rows]

    def divided(self, table: NDArray[np.int64], file: str) -> list[Chunk]:
        """Return the batches that were read as chunks whose records keep to the bound on decompression.

        It is seldom more than one chunk. Each has its own buffer of records.
        """
        chunks: list[Chunk] = []
        if file != self.file:
            self.file, limit_bytes = file, limit_of(file)
            self.records.use_for(file, limit_bytes)
        none = np.empty(0, np.uint8)
        while table.shape[0]:
            rows = table.shape[0]
            coded = bool(np.bitwise_or.reduce(table[:, fields.ATTRIBUTES]) & CODEC_MASK)
            if coded:
                rows = int(rows_that_fit(self.raw, table, rows, none, self.records.limit_bytes))
            chunk = Chunk(self.raw, self.raw, table[:rows], file)
            chunk.unverified = True
            if coded:
                records = RecordBuffer(file) if chunks else self.records
                chunk.compressed = records, int(table[0, fields.BASE_OFFSET])
            chunks.append(chunk)
            table = table[rows:]
        return chunks


@dataclass(slots=True)
class _Part:
    """Batches of one part of a segment, read but not decompressed, and the buffers that they use."""

    segment: int
    chunk: Chunk
    outcomes: NDArray[np.uint8]
    filler: KeyBatchFiller
    words: NDArray[np.uint64]

    def prepare(self) -> None:
        """Verify, decompress and parse the batches."""
        chunk, filler = self.chunk, self.filler
        chunk.verify()
        chunk.decompress()
        filler.reserve(chunk, _MOST_RECORDS)
        filler.fill(chunk, self.outcomes, self.words)
        if filler.cursor[key_batch.ROW] < chunk.rows:
            raise HashesUnsure("too many records in one batch")


class HashResolver:
    """One pass over all records, newest first. Raises HashesUnsure, and errors of a damaged log.

    Args:
        survivors: Get what the rewrite needs of chunks with dead records; None: nothing is kept.
        lists_keys: List the newest records, and what else a garbage index has.
        certified: The sums of the segments are compared before the result is used. False: the map compares
            all 127 bits of both hashes itself.

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
        certified: bool = True,
    ) -> None:
        check_order(sources)
        self._sources = sources
        self._map_bytes = map_bytes
        self._rules = rules
        self._outcomes = outcomes
        self._progress = progress
        self._threads = threads
        self._survivors = survivors
        self._lists_keys = lists_keys
        self._certified = certified
        self.digest_seed = digest_seed_of(salt)
        self.counts = SegmentCounts()
        self.counts.add(sources)
        self._words = words_of(salt, self.digest_seed)
        self.state = np.zeros(loops.STATE_FIELDS, np.int64)
        self.state[loops.ARENA_END] = loops.ARENA_START if lists_keys else hash_loops.NO_ARENA
        self.arena = np.empty(map_bytes & ~7, np.uint8) if lists_keys else _NO_ARENA
        self.page_ids = [np.empty(0, np.int64)]
        self.horizons = [np.empty((0, 3), np.int64)]
        self.largest_bytes = 0
        self.entries = np.empty(0, np.uint64)
        self._peak_bytes = 0
        self._bitmaps: list[DeadBitmaps] = []  # of the chunks, newest first
        self._walked = False

    @property
    def distinct_keys(self) -> int:
        """Return the number of hashes."""
        return int(self.state[loops.USED])

    def run(self) -> Resolution:
        """Read all records and return the result."""
        started = time.perf_counter()
        total, done = sum(source.size for source in self._sources), 0
        with (
            second_thread("lastword-resolve", self._threads) as second,
            closing(prepared(self._read, _Part.prepare, second)) as parts,
        ):
            for part in parts:
                self._settle(part)
                done += part.chunk.size_bytes
                if self._progress is not None:
                    self._progress(done, total)
        if self._lists_keys and self.counts.stats[:, loops.TOMBSTONES].any():
            if self.counts.stats[:, loops.ABORTED_RECORDS].any() or self.arena_end < 0:
                raise HashesUnsure("tombstones with aborted records, or with more keys than fit the memory")
            hash_loops.note_older_copies(self.arena, self.state, self.entries, self._words)
        return self.resolution(union(self._bitmaps), 1, self.distinct_keys, time.perf_counter() - started)

    def resolution(self, dead: DeadBitmaps, passes: int, distinct_keys: int, seconds: float) -> Resolution:
        """Return the result up to now."""
        return Resolution(
            segments=self.counts.facts(),
            dead=dead,
            passes=passes,
            distinct_keys=distinct_keys,
            map_bytes=self._map_bytes,
            map_bytes_used=self._peak_bytes,
            map_used_ratio=min(self.distinct_keys / max(self._most_slots * MAX_LOAD, 1), 1.0),
            probes=int(self.state[loops.PROBES]),
            records=int(self.counts.records.sum()),
            keyless=int(self.counts.stats[:, loops.KEYLESS].sum()),
            digest_seed=self.digest_seed,
            seconds=seconds,
        )

    # ---------------------------------------------------------------- reading

    def _read(self, slots: int) -> Iterator[_Part]:
        buffers = cycle([_Buffers() for _ in range(slots)])
        parts = 1  # read together
        above = INT64_MAX  # no batch may end at or above it
        for segment in reversed(range(len(self._sources))):
            source = self._sources[segment]
            for each in self._sources[max(segment - 1, 0) : segment + 1][::-1]:
                each.handle.will_read_back()  # the one that follows, too: a request takes long
            positions = source.cuts(PART_BYTES)
            first = positions[0] if positions else 0
            while len(positions) > 1:
                used = next(buffers)
                end = positions[-1]
                del positions[-parts:]
                start = positions[-1] if positions else first
                table = used.read(source, start, end)
                if table[:, fields.MAGIC].min() < 2:
                    raise HashesUnsure("messages of magic 0 or 1")
                chunks = used.divided(table, source.file)
                parts = 1 if chunks[0].compressed else PLAIN_PARTS
                for number, chunk in enumerate(reversed(chunks)):
                    filler = used.filler if not number else KeyBatchFiller()
                    yield self._begun(segment, chunk, filler, above)
                    above = int(chunk.table[0, fields.BASE_OFFSET])

    def _begun(self, segment: int, chunk: Chunk, filler: KeyBatchFiller, above: int) -> _Part:
        self.counts.count(chunk, segment, above=above)
        has_transactions = chunk.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)
        if has_transactions and not self._certified:
            raise HashesUnsure("transactions of a read are walked from the oldest on")
        if has_transactions and self._outcomes and not self._walked:
            # The outcomes are those of a walk that begins at the first batch asked for: here at the oldest.
            oldest = np.array([self._sources[0].base_offset])
            self._outcomes.of_batches(BatchColumns(oldest * 0, oldest * 0 - 1, oldest, oldest))
            self._walked = True
        outcomes = outcomes_of(chunk, self._outcomes, decided=self._rules.decided)
        filler.start(self._rules, first_pass=True, old_due=False)
        return _Part(segment, chunk, outcomes, filler, self._words)

    # ---------------------------------------------------------------- settling

    def _settle(self, part: _Part) -> None:
        """Find the fates of a chunk's records, and keep what survives."""
        cursor, chunk = part.filler.cursor, part.chunk
        ids = part.filler.arrays.page_ids[: int(cursor[key_batch.PAGES_MET])].copy()
        bits = np.zeros((max(ids.size, 1), PAGE_WORDS), np.uint64)
        left = int(cursor[key_batch.FILLED])
        before = int(self.counts.stats[part.segment, loops.DEAD_RECORDS])
        if not self.entries.size:
            slots = int(max_records_of(self._sources, chunk) / _RECORDS_OF_A_KEY / MAX_LOAD) + _LEAST_SLOTS
            self._use(min(slots, self._most_slots))
        bitmaps = DeadBitmaps(ids, np.arange(ids.size, dtype=np.int32), bits)
        self.settle(chunk.uncompressed, part.filler.arrays, left, part.segment, bitmaps)
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
        self._bitmaps.append(bitmaps)
        fewest = left * (_FEWEST_DEAD_CODED if chunk.attributes & CODEC_MASK else _FEWEST_DEAD)
        if self._survivors is not None and dead >= fewest and not chunk.attributes & CONTROL_BIT:
            self._survivors.keep(part.segment, chunk, part.filler.arrays, left, self._room_beside())

    def restart(self, records: int) -> None:
        """Remove all keys, and prepare for a number of records.

        Make slots for all of them at once if the memory does not hold an old and a grown map together.
        """
        self.state[loops.USED] = 0
        keys = records // _RECORDS_OF_A_KEY
        if 2 * _RECORDS_OF_A_KEY * keys > self._most_slots * MAX_LOAD:
            keys = records
        slots = min(int(keys / MAX_LOAD) + _LEAST_SLOTS, self._most_slots)
        if slots > self.entries.size // hash_loops.ENTRY_WORDS:
            self.entries = np.empty(0, np.uint64)  # freed first: both together may be more than the budget
            self._use(slots)
        else:
            self.entries[:] = 0

    def settle(
        self, data: NDArray[np.uint8], batch: KeyBatch, count: int, segment: int, dead: DeadBitmaps
    ) -> None:
        """Find the fates of the first `count` records of a batch with keys in `data`: see `settle_keys`."""
        bits, counts = (dead.page_ids, dead.page_bits), self.counts.arrays
        self.state[loops.NEXT] = count
        while True:
            table = self.entries, self.state, self._words
            status = hash_loops.settle_keys(
                data, batch, segment, *table, *bits, counts, self.arena, self._certified
            )
            if status == kernels.OK:
                break
            if status != kernels.FULL:
                raise HashesUnsure("two keys have one hash")
            self._grow()

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
        if more < max(_LEAST_GROWTH * slots, 1):
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
