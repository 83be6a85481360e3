"""The map pass over a log: every record once (or once for each share of the hash range), oldest first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CapacityError, UnsupportedBatchError
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.partition.transactions import Fate
from lastword.records.chunk import CHUNK_BYTES, Chunk
from lastword.resolve.bitmaps import DeadBitmaps, PageStore
from lastword.resolve.offset_map import OffsetMap

_LAST_HASH = (1 << 64) - 1
_FILL = 0.9  # share of the map that a range is planned to fill
_WINDOW = 16  # chunks over which the rate of new keys is measured


class SegmentSource(Protocol):
    """One segment to resolve. `next_offset` is one past its last record, or the next segment's base."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def file(self) -> str: ...
    def chunk_reader(self, *, chunk_bytes: int = ..., verify: bool = ...) -> Iterator[Chunk]: ...


class Fates(Protocol):
    """What became of transactions; `partition.transactions.Decisions` is one. int64 columns of a chunk's
    table, gives uint8 of `Fate`."""

    def fates(
        self,
        attributes: NDArray[np.int64],
        producer_ids: NDArray[np.int64],
        base_offsets: NDArray[np.int64],
        last_offsets: NDArray[np.int64],
    ) -> NDArray[np.uint8]: ...


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What resolving found out about one segment.

    Bytes are shares of the file: a record counts with its batch's header in proportion, so dead and live
    bytes add up to `size_bytes`. `records` leaves control records out. `tombstones` are the live ones,
    `tombstones_without_horizon` those of them whose batch has no delete horizon yet, `due_tombstones` those
    that are dead because their horizon has passed, `keyless` the records without a key, `aborted_records`
    those that are dead because their transaction was aborted. `live_digest`: sum modulo 2^64 of the pair
    digests of all live records that are not of an undecided transaction. `last_of_producers`: (producer id,
    last offset of its last data batch here), for batches that have one.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    records: int
    dead_records: int
    live_bytes: int
    dead_bytes: int
    live_digest: int
    tombstones: int
    tombstones_without_horizon: int
    due_tombstones: int
    keyless: int
    control_batches: int
    last_of_producers: tuple[tuple[int, int], ...] = ()
    aborted_records: int = 0

    @property
    def live_records(self) -> int:
        return self.records - self.dead_records


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result: facts for each segment, and the bits.

    `distinct_keys` counts every key once, over all passes. `map_used_ratio` and `map_bytes_used` are peaks.
    """

    segments: tuple[SegmentFacts, ...]
    dead: DeadBitmaps
    passes: int
    distinct_keys: int
    map_bytes: int
    map_bytes_used: int
    map_used_ratio: float
    probes: int
    records: int
    keyless: int
    digest_seed: int
    seconds: float


def resolve(
    sources: Sequence[SegmentSource],
    *,
    map_bytes: int,
    salt: bytes,
    now_ms: int | None,
    fates: Fates | None = None,
    old_due: Sequence[bool] = (),
    progress: Callable[[int, int], None] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Resolution:
    """Find every dead record of a log.

    Args:
        sources: all its segments up to the limit of what may be resolved, by ascending base offset.
        map_bytes: memory for the map; too little of it only means more passes, never another result.
        salt: secret random bytes, new for each map.
        now_ms: for a cleaning: a tombstone whose batch has a delete horizon at or before it is dead itself,
            and so is a record without a
            key. Only for a log from its very start, so that no older copy is left behind. None: only
            replaced records are dead.
        fates: what became of the transactions in `sources`. Records of aborted ones have no say about keys
            and are dead at once. Those of undecided ones have no say either and stay; a cleaning must not
            meet any. None: there are no transactions.
        old_due: for a cleaning, one a source: whether tombstones of magic 0 and 1 there are due. These
            formats have no delete horizon. Empty: none is.
        progress: hears (bytes done, bytes in all of this pass and those before) after every chunk.

    Raises CorruptBatchError, UnknownMagicError, UnsupportedBatchError (a transaction without `fates`, or an
    undecided one in a cleaning).
    """
    return _Resolver(sources, map_bytes, salt, now_ms, progress, chunk_bytes, fates, old_due).run()


def fates_of(chunk: Chunk, fates: Fates | None, *, decided: bool = False) -> NDArray[np.uint8]:
    """The `Fate` of each batch of a chunk, uint8[rows]; also the cleaner's way to ask.

    UnsupportedBatchError for a transaction without `fates`, and with `decided` for an undecided one.
    """
    attributes = chunk.table[:, fields.ATTRIBUTES]
    special = (attributes & (fields.TRANSACTIONAL | fields.CONTROL)) != 0
    if not special.any():
        return np.zeros(chunk.rows, np.uint8)
    if fates is None:
        data = (attributes & (fields.TRANSACTIONAL | fields.CONTROL)) == fields.TRANSACTIONAL
        if data.any():
            _refuse(chunk, int(data.argmax()), "a transactional batch, and its outcome was not looked up")
        return np.where(special, np.uint8(Fate.CONTROL), np.uint8(0))
    found = fates.fates(
        *(
            chunk.table[:, column]
            for column in (fields.ATTRIBUTES, fields.PRODUCER_ID, fields.BASE_OFFSET, fields.LAST_OFFSET)
        )
    )
    if decided and (found == Fate.UNDECIDED).any():
        _refuse(chunk, int((found == Fate.UNDECIDED).argmax()), "a transactional batch, still undecided")
    return found


def _refuse(chunk: Chunk, row: int, text: str) -> NoReturn:
    offset = int(chunk.table[row, fields.BASE_OFFSET])
    raise UnsupportedBatchError(
        f"offset {offset} is in {text}",
        code="transactional",
        remedy="end below the last stable offset, with the decisions of the transaction indexes",
        file=chunk.file,
        position=int(chunk.table[row, fields.FILE_POSITION]),
        offset=offset,
    )


class _Resolver:
    def __init__(
        self,
        sources: Sequence[SegmentSource],
        map_bytes: int,
        salt: bytes,
        now_ms: int | None,
        progress: Callable[[int, int], None] | None,
        chunk_bytes: int,
        fates: Fates | None = None,
        old_due: Sequence[bool] = (),
    ) -> None:
        self.sources = sources
        self.fates = fates
        self.old_due = old_due or [False] * len(sources)
        self.bases = np.array([source.base_offset for source in sources], np.int64)
        if (self.bases[1:] <= self.bases[:-1]).any():
            raise ValueError("segments must have ascending base offsets")
        self.salt = salt
        self.map_bytes = map_bytes
        self.cleaning = now_ms is not None
        self.now_ms = now_ms if now_ms is not None else 0
        self.progress = progress
        self.chunk_bytes = chunk_bytes
        self.total_bytes = sum(source.size for source in sources)
        self.done_bytes = 0  # of this pass
        self.digest_seed = _digest_seed(salt)
        self.map: OffsetMap | None = None
        self.store = PageStore()
        self.stats = np.zeros((len(sources), loops.STAT_FIELDS), np.int64)
        self.digests = np.zeros(len(sources), np.uint64)
        self.records = np.zeros(len(sources), np.int64)
        self.control_batches = np.zeros(len(sources), np.int64)
        self.producers: list[dict[int, int]] = [{} for _ in sources]
        self.ends = self.bases.copy()
        self.hashes = np.empty((3, loops.PIECE), np.uint64)
        self.spans = np.empty((6, loops.PIECE), np.int64)
        self.recent: deque[tuple[int, int]] = deque(maxlen=_WINDOW)  # (bytes done, keys in the map)
        self.distinct_keys = 0

    def run(self) -> Resolution:
        started = time.perf_counter()
        first = 0
        passes = 0
        while True:
            passes += 1
            self._pass(first, passes)
            if self.map is None:  # no batch at all
                break
            last = self.map.hash_range[1]
            found = self.map.distinct_keys
            self.distinct_keys += found
            if last == _LAST_HASH:
                break
            width = last - first + 1
            share = _FILL * self.map.capacity() / max(found, 1)
            first = last + 1
            self.map.start_pass(first, min(first + max(int(width * share), 1) - 1, _LAST_HASH))
        return self._resolution(passes, time.perf_counter() - started)

    def _pass(self, first_hash: int, number: int) -> None:
        self.done_bytes = 0
        self.recent.clear()
        for segment, source in enumerate(self.sources):
            after = (
                source.base_offset if segment == 0 else max(source.base_offset, int(self.ends[segment - 1]))
            )
            for chunk in source.chunk_reader(chunk_bytes=self.chunk_bytes, verify=True):
                if number == 1:
                    self._count(chunk, segment, after)
                    after = chunk.next_offset
                self._take(chunk, segment, number == 1)
                self.done_bytes += chunk.size_bytes
                if self.progress is not None:
                    before = (number - 1) * self.total_bytes
                    self.progress(before + self.done_bytes, before + self.total_bytes)
            if number == 1:
                self.ends[segment] = max(after, source.base_offset)

    def _count(self, chunk: Chunk, segment: int, after: int) -> None:
        """What does not depend on keys; and no segment may hold offsets of its neighbours."""
        limit = self.bases[segment + 1] if segment + 1 < self.bases.size else np.iinfo(np.int64).max
        if chunk.table[0, fields.BASE_OFFSET] < after:
            chunk.raise_status(0, kernels.BAD_OFFSET)
        if chunk.table[-1, fields.LAST_OFFSET] >= limit:
            chunk.raise_status(chunk.rows - 1, kernels.BAD_OFFSET)
        data = chunk.data_rows()
        self.records[segment] += chunk.table[data, fields.COUNT].sum()
        self.control_batches[segment] += chunk.rows - int(data.sum())
        known = data & (chunk.table[:, fields.PRODUCER_ID] >= 0)
        if known.any():
            producers, last = (
                chunk.table[known, column].tolist() for column in (fields.PRODUCER_ID, fields.LAST_OFFSET)
            )
            self.producers[segment].update(zip(producers, last, strict=True))

    def _take(self, chunk: Chunk, segment: int, first_pass: bool) -> None:
        fates = fates_of(chunk, self.fates, decided=self.cleaning)
        offset_map = self.map
        if offset_map is None:
            offset_map = self.map = self._make_map(chunk)
        state = offset_map.state
        state[loops.SEGMENT] = segment
        state[loops.CLEANING] = self.cleaning
        state[loops.NOW] = self.now_ms
        state[loops.FIRST_PASS] = first_pass
        state[loops.OLD_DUE] = self.old_due[segment]
        state[loops.ROW] = 0
        state[loops.ORDINAL] = 0
        while True:
            status = loops.resolve_rows(
                chunk.plain,
                chunk.table,
                fates,
                chunk.rows,
                offset_map.block,
                state,
                offset_map.words,
                *self.store.arrays,
                self.bases,
                self.stats,
                self.digests,
                self.hashes,
                self.spans,
            )
            if status == kernels.OK:
                break
            if status == kernels.NEED_PAGES:
                self.store.grow(int(state[loops.PAGES]), int(state[loops.PAGES_STORED]))
            elif status == kernels.FULL:
                self._make_room(offset_map, chunk)
            else:
                chunk.raise_status(int(state[loops.ROW]), status)
        self.recent.append((self.done_bytes + chunk.size_bytes, offset_map.distinct_keys))

    def _make_map(self, chunk: Chunk) -> OffsetMap:
        """Slots for as many keys as the log can have records, if the budget holds them."""
        from lastword.records.columns import decode_columns

        data = chunk.data_rows()
        lengths = decode_columns(chunk).key_length
        keyed = lengths[lengths >= 0]
        key_bytes = float(keyed.mean()) if keyed.size else 24.0
        # Two bounds on the number of records: the offsets, and the bytes.
        offsets = max(self.sources[-1].next_offset - int(self.bases[0]), 1)
        counted = int(chunk.table[data, fields.COUNT].sum())
        by_size = 2 * counted * self.total_bytes // max(chunk.size_bytes, 1) + 64
        return OffsetMap(
            self.map_bytes,
            self.salt,
            self.digest_seed,
            most_records=min(offsets, by_size),
            key_bytes=key_bytes,
        )

    def _make_room(self, offset_map: OffsetMap, chunk: Chunk) -> None:
        """Regrow the slots, or else give up a part of the hash range: later passes will cover it."""
        if offset_map.distinct_keys == 0:
            raise CapacityError(
                f"a key does not fit the map of {offset_map.map_bytes} bytes",
                remedy="raise log.cleaner.dedupe.buffer.size",
                file=chunk.file,
            )
        if offset_map.make_room():
            return
        used = offset_map.distinct_keys
        done = max(self.done_bytes, 1)
        then_bytes, then_keys = self.recent[0] if self.recent else (0, 0)
        rate = max(used - then_keys, 0) / max(done - then_bytes, 1)
        expected = used + rate * max(self.total_bytes - done, 0)
        share = min(max(_FILL * used / expected, 1 / 64), 0.85)
        self.recent.clear()
        store = (self.store.page_ids, self.store.page_segments, self.bases, self.stats, self.digests)
        offset_map.narrow(share, store)

    def _resolution(self, passes: int, seconds: float) -> Resolution:
        segments = []
        for i, source in enumerate(self.sources):
            dead_bytes = int(self.stats[i, loops.DEAD_BYTES])
            segments.append(
                SegmentFacts(
                    base_offset=source.base_offset,
                    next_offset=source.next_offset,
                    size_bytes=source.size,
                    records=int(self.records[i]),
                    dead_records=int(self.stats[i, loops.DEAD_RECORDS]),
                    live_bytes=source.size - dead_bytes,
                    dead_bytes=dead_bytes,
                    live_digest=int(self.digests[i]),
                    tombstones=int(self.stats[i, loops.TOMBSTONES]),
                    tombstones_without_horizon=int(self.stats[i, loops.UNCLOCKED_TOMBSTONES]),
                    due_tombstones=int(self.stats[i, loops.DUE_TOMBSTONES]),
                    keyless=int(self.stats[i, loops.KEYLESS]),
                    control_batches=int(self.control_batches[i]),
                    last_of_producers=tuple(self.producers[i].items()),
                    aborted_records=int(self.stats[i, loops.ABORTED]),
                )
            )
        pages = stored = probes = used_bytes = 0
        ratio = 0.0
        if self.map is not None:
            self.map.note_peak()
            pages = int(self.map.state[loops.PAGES])
            stored = int(self.map.state[loops.PAGES_STORED])
            probes = self.map.probes
            used_bytes = self.map.peak_bytes
            ratio = min(self.map.peak_used / max(self.map.capacity(), 1), 1.0)
        return Resolution(
            segments=tuple(segments),
            dead=self.store.finish(pages, stored),
            passes=passes,
            distinct_keys=self.distinct_keys,
            map_bytes=self.map_bytes,
            map_bytes_used=used_bytes,
            map_used_ratio=ratio,
            probes=probes,
            records=int(self.records.sum()),
            keyless=int(self.stats[:, loops.KEYLESS].sum()),
            digest_seed=self.digest_seed,
            seconds=seconds,
        )


def _digest_seed(salt: bytes) -> int:
    import hashlib

    return int.from_bytes(hashlib.blake2b(salt, digest_size=8, person=b"lastword seed").digest(), "little")
