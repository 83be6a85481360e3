"""Resolve a whole log: read each record once, or once for each share of the hash range, oldest first.

Reading, verifying, decompressing, parsing and hashing a chunk do not depend on the content of the map, so a
second thread may do them ahead (`records.pipeline`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.key_batch import SIZE_MASK
from lastword.records.chunk import SCAN_BYTES, Chunk
from lastword.records.pipeline import in_slots, prepared, second_thread
from lastword.resolve.bitmaps import PageStore
from lastword.resolve.facts import (
    LAST_HASH,
    MapLoad,
    Resolution,
    Rules,
    SegmentCounts,
    SegmentSource,
    TransactionOutcomes,
    check_order,
    digest_seed_of,
    outcomes_of,
)
from lastword.resolve.offset_map import OffsetMap, too_large_key

CACHED_RECORDS = 1 << 15  # of a key batch that is inserted immediately: of 100 B each, those of one chunk
MAX_RECORDS = 1 << 16  # of a key batch that waits


class KeyBatchFiller:
    """Fills key batches from a chunk, one after another; reused for many chunks."""

    def __init__(self, records: int = CACHED_RECORDS) -> None:
        self.cursor = np.zeros(key_batch.CURSOR_FIELDS, np.int64)
        self._make(records)

    def _make(self, records: int) -> None:
        self.arrays = key_batch.KeyBatch(
            hashes=np.empty((2, records), np.uint64),
            spans=np.empty((key_batch.SPAN_FIELDS, records), np.int64),
            page_ids=np.empty(records, np.int64),
            homes=np.empty((2, records), np.int64),
        )

    def start(self, rules: Rules, *, first_pass: bool, old_due: bool) -> None:
        """Start at the beginning of a chunk."""
        self.cursor[key_batch.ROW] = 0
        self.cursor[key_batch.ORDINAL] = 0
        self.cursor[key_batch.DROP_KEYLESS] = rules.drop_keyless
        self.cursor[key_batch.NOW] = rules.now_ms
        self.cursor[key_batch.OLD_DUE] = old_due
        self.cursor[key_batch.DUE_BELOW] = rules.due_below
        self.cursor[key_batch.FIRST_PASS] = first_pass
        self.cursor[key_batch.KEEP_COPIES] = rules.keep_copies
        self.cursor[key_batch.SAMPLED] = rules.last_hash != LAST_HASH

    def reserve(self, chunk: Chunk, most: int = MAX_RECORDS) -> None:
        """Make room for all records of a chunk, but for `most` at most."""
        counted = int(chunk.table[chunk.data_rows(), fields.COUNT].clip(0).sum())
        if counted >= self.arrays.spans.shape[1]:
            self._make(min(counted + 1, most))

    def fill(self, chunk: Chunk, outcomes: NDArray[np.uint8], words: NDArray[np.uint64]) -> bool:
        """Fill in the next records; return False if there are none. Raises CorruptBatchError."""
        if self.cursor[key_batch.ROW] >= chunk.rows:
            return False
        status = key_batch.fill_key_batch(
            chunk.uncompressed, chunk.table, outcomes, chunk.rows, self.cursor, words, self.arrays
        )
        if status != kernels.OK:
            chunk.raise_status(int(self.cursor[key_batch.ROW]), status)
        return True


@dataclass(slots=True)
class PreparedChunk:
    """A chunk and its key batches, one after another.

    `outcomes` are those of its batches, `words` those of the map.
    """

    segment: int
    chunk: Chunk
    filler: KeyBatchFiller
    outcomes: NDArray[np.uint8]
    words: NDArray[np.uint64]
    _waits: bool = False  # a key batch was filled and not taken

    def begin(self) -> None:
        """Fill the first key batch."""
        self.chunk.decompress()
        self._waits = self._fill()

    def filled(self) -> bool:
        """Return whether a key batch is ready for the map; each call moves to the next one."""
        waited, self._waits = self._waits, False
        return waited or self._fill()

    def _fill(self) -> bool:
        return self.filler.fill(self.chunk, self.outcomes, self.words)


class KeyScan:
    """The map, the bits and the counts of a log, while its chunks are read in order.

    The map is made for the first chunk, whose keys determine how many will fit; `max_records(chunk)` returns
    how many may come. `make_room(chunk)` is called when the map is full, and must make room or raise.

    Attributes:
        batch_records: Records of a key batch, if one thread does all.
        largest_bytes: The size, as in the map, of the largest record with a copy there; -1: not known.
    """

    batch_records = CACHED_RECORDS
    largest_bytes = 0

    def __init__(self, map_bytes: int, salt: bytes, digest_seed: int, rules: Rules) -> None:
        self.map_bytes = map_bytes
        self.salt = salt
        self.digest_seed = digest_seed
        self.rules = rules
        self.counts = SegmentCounts()
        self.state = np.zeros(loops.STATE_FIELDS, np.int64)
        self.store = PageStore(self.state)
        self.map: OffsetMap | None = None
        self.spill: Callable[[int], NDArray[np.uint8]] | None = None

    def take(
        self,
        sources: Sequence[SegmentSource],
        outcomes: TransactionOutcomes | None,
        max_records: Callable[[Chunk], int],
        make_room: Callable[[Chunk], None],
        *,
        first_segment: int = 0,
        first_pass: bool = True,
        old_due: Sequence[bool] = (),
        threads: int = 1,
    ) -> Generator[Chunk]:
        """Insert all chunks of some segments; yield each when it was inserted.

        Close the generator: another thread may work for it.
        """

        def read(slots: int) -> Iterator[PreparedChunk]:
            fillers = cycle([KeyBatchFiller(self.batch_records) for _ in range(slots)])
            for segment, source in enumerate(sources, first_segment):
                reader = source.chunk_reader(chunk_bytes=SCAN_BYTES, verify=True)
                for chunk in in_slots(reader, slots):
                    yield begun(segment, chunk, next(fillers))

        def begun(segment: int, chunk: Chunk, filler: KeyBatchFiller) -> PreparedChunk:
            if first_pass:
                self.counts.count(chunk, segment)
            batch_outcomes = outcomes_of(chunk, outcomes, decided=self.rules.decided)
            due = bool(old_due) and bool(old_due[segment - first_segment])
            filler.start(self.rules, first_pass=first_pass, old_due=due)
            words = self.words_for(chunk, max_records)
            return PreparedChunk(segment, chunk, filler, batch_outcomes, words)

        def prepare(ready: PreparedChunk) -> None:
            if second is not None:
                ready.filler.reserve(ready.chunk)
            ready.begin()

        with (
            second_thread("lastword-resolve", threads) as second,
            closing(prepared(read, prepare, second)) as chunks,
        ):
            for ready in chunks:
                while ready.filled():
                    self.insert(ready.filler, ready.chunk, ready.segment, make_room)
                yield ready.chunk

    def words_for(self, chunk: Chunk, max_records: Callable[[Chunk], int]) -> NDArray[np.uint64]:
        """Return the seeds and the range of hashes of key batches.

        Makes the map for the first chunk, with slots for the records that may come, if the budget has room.
        """
        if self.map is None:
            from lastword.records.columns import decode_columns

            chunk.decompress()
            lengths = decode_columns(chunk).key_length
            keyed = lengths[lengths >= 0]
            self.make_map(max_records(chunk), float(keyed.mean()) if keyed.size else 24.0)
        assert self.map is not None
        return self.map.words

    def insert(
        self, filler: KeyBatchFiller, chunk: Chunk, segment: int, make_room: Callable[[Chunk], None]
    ) -> None:
        """Insert a key batch of `chunk` into the map; `segment` is that of its first record."""
        offset_map = self.map
        assert offset_map is not None
        filled = int(filler.cursor[key_batch.FILLED])
        self.store.register(filler.arrays.page_ids[: int(filler.cursor[key_batch.PAGES_MET])], segment)
        if self.rules.keep_copies:
            sizes = filler.arrays.spans[key_batch.SIZE, :filled] & SIZE_MASK
            self.counts.add_weight(segment, int(sizes.sum()))
            if self.largest_bytes >= 0:
                self.largest_bytes = max(self.largest_bytes, int(sizes.max(initial=0)))
        self.state[loops.NEXT] = 0
        while True:
            status = loops.insert_keys(
                chunk.uncompressed,
                filler.arrays,
                filled,
                segment,
                offset_map.arrays,
                self.store.arrays,
                self.counts.arrays,
            )
            if status == kernels.OK:
                return
            if status != kernels.FULL:
                offset = filler.arrays.spans[key_batch.OFFSET, int(self.state[loops.NEXT])]
                row = int(np.searchsorted(chunk.table[:, fields.LAST_OFFSET], offset))
                chunk.raise_status(row, status)
            make_room(chunk)

    def make_map(self, max_records: int, key_bytes: float) -> OffsetMap:
        """Make the map for this number of records and this average key size."""
        self.map = OffsetMap(
            self.map_bytes,
            self.salt,
            self.digest_seed,
            max_records=max_records,
            key_bytes=key_bytes,
            state=self.state,
            last_hash=self.rules.last_hash,
            spill=self.spill,
        )
        return self.map

    def resolution(self, passes: int, distinct_keys: int, seconds: float) -> Resolution:
        """Return the result up to now."""
        used_bytes = probes = 0
        ratio = 0.0
        if self.map is not None:
            self.map.note_peak()
            probes = self.map.probes
            used_bytes = self.map.peak_bytes
            ratio = min(self.map.peak_used / max(self.map.capacity(), 1), 1.0)
        return Resolution(
            segments=self.counts.facts(),
            dead=self.store.finish(),
            passes=passes,
            distinct_keys=distinct_keys,
            map_bytes=self.map_bytes,
            map_bytes_used=used_bytes,
            map_used_ratio=ratio,
            probes=probes,
            records=int(self.counts.records.sum()),
            keyless=int(self.counts.stats[:, loops.KEYLESS].sum()),
            digest_seed=self.digest_seed,
            seconds=seconds,
        )


def max_records_of(sources: Sequence[SegmentSource], chunk: Chunk) -> int:
    """Return a bound on the number of records in `sources`, whose first chunk is `chunk`.

    It is the smaller of two bounds: by offsets and by bytes.
    """
    counted = int(chunk.table[chunk.data_rows(), fields.COUNT].sum())
    by_size = 2 * counted * sum(source.size for source in sources) // max(chunk.size_bytes, 1) + 64
    if by_size <= sources[-1].base_offset - sources[0].base_offset:
        return by_size  # without a look at the end of the last one
    return min(max(sources[-1].next_offset - sources[0].base_offset, 1), by_size)


_FILL = 0.97  # share of the map that a range is planned to fill
_WINDOW = 16  # chunks over which the rate of new keys is measured


class Resolver:
    """Passes over the records of a log, or of a share of all keys.

    Attributes:
        hashes: The first and last hash of the share.
        growth: Most that the slots of the map grow by in one step.
        overfull: Called once, when the keys do not fit the map, before more passes are planned; may raise to
            resolve the log in shards instead (`whole.LogResolver`).
    """

    hashes = (0, LAST_HASH)
    growth = 1e9
    overfull: Callable[[MapLoad], None] | None = None
    scan_kind: type[KeyScan] = KeyScan

    def __init__(
        self,
        sources: Sequence[SegmentSource],
        map_bytes: int,
        salt: bytes,
        rules: Rules,
        outcomes: TransactionOutcomes | None = None,
        old_due: Sequence[bool] = (),
        progress: Callable[[int, int], None] | None = None,
        threads: int = 1,
    ) -> None:
        check_order(sources)
        self.sources = sources
        self.outcomes = outcomes
        self.old_due = old_due
        self.threads = threads
        self.progress = progress
        self.total_bytes = sum(source.size for source in sources)
        self.done_bytes = 0  # of this pass
        self.scan = self.scan_kind(map_bytes, salt, digest_seed_of(salt), rules)
        self.scan.counts.add(sources)
        self.recent: deque[tuple[int, int]] = deque(maxlen=_WINDOW)  # (bytes done, keys in the map)

    def run(self) -> Resolution:
        """Run all passes and return the result."""
        started = time.perf_counter()
        passes, keys = self.run_passes()
        return self.scan.resolution(passes, keys, time.perf_counter() - started)

    def run_passes(self) -> tuple[int, int]:
        """Run all passes; return their number, and the number of distinct keys."""
        first, end = self.hashes
        passes = keys = 0
        while True:
            passes += 1
            self.take_all(passes)
            offset_map = self.scan.map
            if offset_map is None:  # no batch at all
                break
            last = offset_map.hash_range[1]
            pass_keys = offset_map.distinct_keys
            keys += pass_keys
            if last >= end:
                break
            width = last - first + 1
            share = _FILL * offset_map.capacity() / max(pass_keys, 1)
            first = last + 1
            offset_map.start_pass(first, min(first + max(int(width * share), 1) - 1, end))
        return passes, keys

    def take_all(self, number: int) -> None:
        """Run pass `number`, from 1: insert every record in the map's range of hashes."""
        self.done_bytes = 0
        self.recent.clear()
        before = (number - 1) * self.total_bytes
        chunks = self.scan.take(
            self.sources,
            self.outcomes,
            partial(max_records_of, self.sources),
            self.make_room,
            first_pass=number == 1,
            old_due=self.old_due,
            threads=self.threads,
        )
        with closing(chunks):
            for chunk in chunks:
                self.done_bytes += chunk.size_bytes
                if self.scan.map is not None:
                    self.recent.append((self.done_bytes, self.scan.map.distinct_keys))
                if self.progress is not None:
                    self.progress(before + self.done_bytes, before + self.total_bytes)

    def make_room(self, chunk: Chunk) -> None:
        """Enlarge the slots, or else give up a part of the hash range: later passes will cover it."""
        offset_map = self.scan.map
        assert offset_map is not None
        used = offset_map.distinct_keys
        if used == 0 and offset_map.spill is None:
            raise too_large_key(offset_map.map_bytes, chunk.file)
        if offset_map.make_room(self.growth):
            return
        if used == 0:
            raise too_large_key(offset_map.map_bytes, chunk.file)
        done = max(self.done_bytes, 1)
        then_bytes, then_keys = self.recent[0] if self.recent else (0, 0)
        rate = max(used - then_keys, 0) / max(done - then_bytes, 1)
        expected = used + rate * max(self.total_bytes - done, 0)
        if self.overfull is not None:
            overfull, self.overfull = self.overfull, None
            fitting = offset_map.capacity()
            overfull(MapLoad.of([chunk], self.total_bytes, int(expected), fitting, self.done_bytes))
        share = min(max(_FILL * used / expected, 1 / 64), 0.85)
        self.recent.clear()
        offset_map.narrow(share, self.scan.store.arrays, self.scan.counts.arrays)
