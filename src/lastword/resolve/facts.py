"""The inputs and results of resolving: segments, rules, and the counts and facts of each segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import LastwordError, UnsupportedBatchError
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.hash_map import ENTRY_WORDS
from lastword.kernels.key_batch import HASH_ROW_BYTES, LONG_HASH_ROW_BYTES, LONG_ROW_BYTES, ROW_BYTES
from lastword.kernels.offset_map import NO_OFFSET
from lastword.partition.transactions import BatchColumns, BatchOutcome
from lastword.records.chunk import Chunk
from lastword.resolve.bitmaps import DeadBitmaps
from lastword.resolve.offset_map import ENTRY_BYTES, MAX_LOAD
from lastword.wire import CONTROL_BIT, DELETE_HORIZON_BIT, INT64_MAX, TRANSACTIONAL_BIT

LAST_HASH = (1 << 64) - 1
_SAMPLE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one resolution, apart from newer records of a key.

    Attributes:
        decided: An ongoing transaction is an error.
        drop_keyless: Records without a key are dead.
        now_ms: Tombstones below `due_below` are dead if their delete horizon is at or before this time: see
            reasons 3 to 5 in `partition.leases`.
        due_below: See `now_ms`.
        keep_copies: Aborted records count as copies of their keys.
        last_hash: Only keys up to this hash are read.
    """

    decided: bool = False
    drop_keyless: bool = False
    now_ms: int = 0
    due_below: int = 0
    keep_copies: bool = False
    last_hash: int = LAST_HASH

    @classmethod
    def of(cls, now_ms: int | None, due_below: int) -> Rules:
        """Return the rules of a cleaning at `now_ms`; without a time, those of a read."""
        if now_ms is None:
            return cls()
        return cls(decided=True, drop_keyless=True, now_ms=now_ms, due_below=due_below)


@dataclass(frozen=True, slots=True)
class MapLoad:
    """The keys of a log against what its map holds, by a sample.

    Attributes:
        keys: Distinct keys, expected.
        fitting: How many of them fit the map.
        records: Records, expected.
        key_bytes: Bytes of a key, on average.
        source_bytes: Size of the segments.
        decoded_bytes: Expected size of all records, uncompressed.
        read_bytes: Bytes of the segments that were read when the map was full.
        long_rows: Records whose row in a scratch file is long: tombstones, and records without a key.
        by_hash: The map and the scratch file have hashes in the place of keys.
    """

    keys: int
    fitting: int
    records: int
    key_bytes: float
    source_bytes: int
    decoded_bytes: int
    read_bytes: int = 0
    long_rows: int = 0
    by_hash: bool = False

    @property
    def entry_bytes(self) -> int:
        """Return the memory of a map of all keys."""
        if self.by_hash:
            return int(self.keys * 8 * ENTRY_WORDS / MAX_LOAD)
        return int(self.keys * (self.key_bytes + ENTRY_BYTES))

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a scratch file with all keys and offsets."""
        if self.by_hash:
            long_bytes = self.long_rows * (LONG_HASH_ROW_BYTES - HASH_ROW_BYTES)
            return self.records * HASH_ROW_BYTES + long_bytes
        long_bytes = self.long_rows * (LONG_ROW_BYTES - ROW_BYTES)
        return int(self.records * (self.key_bytes + ROW_BYTES)) + long_bytes

    @classmethod
    def of(
        cls, chunks: Sequence[Chunk], source_bytes: int, keys: int, fitting: int, read_bytes: int = 0
    ) -> MapLoad:
        """Return the load of a log of `source_bytes` with records like those of `chunks`.

        `keys` is an estimate, of which more than the records are cut off.
        """
        from lastword.records.columns import decode_columns

        sampled = records = key_bytes = keyed = decoded = long_rows = 0
        for chunk in chunks:
            columns = decode_columns(chunk)
            lengths = columns.key_length
            sampled += chunk.size_bytes
            records += lengths.size
            key_bytes += int(lengths.clip(0).sum())
            keyed += int((lengths >= 0).sum())
            long_rows += int(((lengths < 0) | (columns.value_length < 0)).sum())
            data = chunk.table[chunk.data_rows()]
            decoded += int((data[:, fields.RECORDS_END] - data[:, fields.RECORDS_POSITION]).sum())
        scale = source_bytes / max(sampled, 1)
        return cls(
            keys=min(keys, int(records * scale)),
            fitting=max(fitting, 1),
            records=int(records * scale),
            key_bytes=key_bytes / max(keyed, 1),
            source_bytes=source_bytes,
            decoded_bytes=int(decoded * scale),
            read_bytes=read_bytes,
            long_rows=int(long_rows * scale),
        )

    @classmethod
    def sampled(cls, sources: Sequence[SegmentSource], map_bytes: int, keys: int | None = None) -> MapLoad:
        """Return the load of a log from a few chunks; without `keys`, as if all keys were distinct."""
        chunks = []
        for number in sorted({0, len(sources) // 2, len(sources) - 1}):
            with suppress(LastwordError):  # the scan reports damage
                chunk = next(iter(sources[number].chunk_reader(chunk_bytes=_SAMPLE_BYTES)), None)
                chunks += [] if chunk is None else [chunk]
        source_bytes = sum(source.size for source in sources)
        load = cls.of(chunks, source_bytes, INT64_MAX if keys is None else keys, 1)
        return replace(load, fitting=max(int(map_bytes / (load.key_bytes + ENTRY_BYTES)), 1))


class SegmentSource(Protocol):
    """One segment to resolve.

    `next_offset` is the offset after its last record, or the base offset of the next segment.
    """

    @property
    def base_offset(self) -> int:
        """Return the first offset that the segment may hold."""

    @property
    def next_offset(self) -> int:
        """Return the offset after the segment."""

    @property
    def size(self) -> int:
        """Return the bytes of the file."""

    @property
    def file(self) -> str:
        """Return the name of the file, for errors."""

    def chunk_reader(self, *, chunk_bytes: int = ..., verify: bool = ...) -> Iterator[Chunk]:
        """Return the chunks of the segment, in order."""


class TransactionOutcomes(Protocol):
    """The outcomes of transactions; `partition.transactions.Decisions` is one."""

    def of_batches(self, batches: BatchColumns) -> NDArray[np.uint8]:
        """Return the `BatchOutcome` of each batch."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts about one segment after resolving.

    Bytes are shares of the file: a record counts with a proportional part of its batch's header, so dead and
    live bytes add up to `size_bytes`. `records` excludes control records. `tombstones` are the live
    tombstones, `tombstones_without_horizon` those whose batch has no delete horizon yet, `due_tombstones`
    those that are dead because their horizon has passed. `keyless` are the records without a key,
    `aborted_records` those that are dead because their transaction was aborted. `live_digest` is the sum
    modulo 2^64 of the pair digests of all live records, except those of ongoing transactions.
    `last_of_producers` has (producer id, last offset of its last data batch here), for batches with a
    producer.
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
        """Return the number of records that are not dead."""
        return self.records - self.dead_records


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result: facts for each segment, and the dead bitmaps.

    `distinct_keys` counts every key once, over all passes. `map_used_ratio` and `map_bytes_used` are peaks.
    `scratch_bytes`: of the scratch file, if the log was read once and resolved in shards; `passes` then
    counts the maps of the shards.
    """

    segments: tuple[SegmentFacts, ...]
    dead: DeadBitmaps
    passes: int = 1
    distinct_keys: int = 0
    map_bytes: int = 0
    map_bytes_used: int = 0
    map_used_ratio: float = 0.0
    probes: int = 0
    records: int = 0
    keyless: int = 0
    digest_seed: int = 0
    seconds: float = 0.0
    scratch_bytes: int = 0


class MapFull(Exception):
    """The keys do not fit the budget: the running resolution must not be used any more."""

    def __init__(self, keys: int, map_bytes: int) -> None:
        super().__init__(f"a map of {map_bytes} bytes is full with {keys} keys")
        self.keys = keys
        self.map_bytes = map_bytes


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Live tombstones, ascending by offset.

    `copies`: records of the key on disk, the tombstone included; 255 means 255 or more. `horizon_ms`: the
    delete horizon of the batch when it was read, -1 if it had none.
    """

    offset: NDArray[np.int64]
    copies: NDArray[np.uint8]
    size_bytes: NDArray[np.int64]
    horizon_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.offset.size)

    def since(self, offset: int) -> Tombstones:
        """Return the tombstones at this offset and above."""
        at = int(np.searchsorted(self.offset, offset))
        return Tombstones(self.offset[at:], self.copies[at:], self.size_bytes[at:], self.horizon_ms[at:])


def outcomes_of(
    chunk: Chunk, outcomes: TransactionOutcomes | None, *, decided: bool = False
) -> NDArray[np.uint8]:
    """Return the `BatchOutcome` of each batch of a chunk, uint8[rows].

    Raises UnsupportedBatchError for a transaction without `outcomes`, and with `decided` for an ongoing one.
    """
    if not chunk.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
        return np.zeros(chunk.rows, np.uint8)
    attributes = chunk.table[:, fields.ATTRIBUTES]
    special = (attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0
    if outcomes is None:
        data = (attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
        if data.any():
            _refuse(chunk, int(data.argmax()), "a transactional batch, and its outcome was not looked up")
        return np.where(special, np.uint8(BatchOutcome.CONTROL), np.uint8(0))
    result = outcomes.of_batches(BatchColumns.of(chunk))
    if decided and (result == BatchOutcome.UNDECIDED).any():
        _refuse(
            chunk, int((result == BatchOutcome.UNDECIDED).argmax()), "a transactional batch, still undecided"
        )
    return result


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


def horizons_of(chunk: Chunk) -> NDArray[np.int64]:
    """Return (base offset, last offset, delete horizon) of the data batches that have one: int64[n, 3]."""
    special = DELETE_HORIZON_BIT | CONTROL_BIT
    rows = (chunk.table[:, fields.ATTRIBUTES] & special == DELETE_HORIZON_BIT) & (
        chunk.table[:, fields.MAGIC] == 2
    )
    columns = [fields.BASE_OFFSET, fields.LAST_OFFSET, fields.BASE_TIMESTAMP]
    horizons: NDArray[np.int64] = chunk.table[rows][:, columns]
    return horizons


def digest_seed_of(salt: bytes) -> int:
    """Return the seed of the digests that belong to a map of this salt."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(salt, digest_size=8, person=b"lastword seed").digest(), "little")


def check_order(sources: Sequence[SegmentSource], first_offset: int = 0) -> None:
    """Raise ValueError unless the base offsets ascend, from at least `first_offset` on."""
    before = first_offset - 1
    for source in sources:
        if source.base_offset <= before:
            raise ValueError("segments must have ascending base offsets")
        before = source.base_offset


# ---------------------------------------------------------------- counts while a log is resolved


_COLUMNS = (
    "bases",
    "next_offsets",
    "sizes",
    "weights",
    "worths",
    "ends",
    "records",
    "control_batches",
    "control_bytes",
)


class SegmentCounts:
    """The counts of a log, a row for each segment. Kernels fill `bases`, `stats` and `digests`.

    `weights` is the sum of the sizes that the map holds for a segment's records, dead and live, if the caller
    counts it (`add_weight`). A rewrite does not change the sizes in the map: `worths` is their sum in the new
    file, and bytes are scaled by worths / weights. The weight is counted and not derived from the file's
    size, because fractions of bytes and markers without records would accumulate from rewrite to rewrite.
    """

    def __init__(self) -> None:
        empty = np.empty(0, np.int64)
        self.bases = self.next_offsets = self.sizes = self.weights = self.worths = empty
        self.ends = self.records = self.control_batches = self.control_bytes = empty
        self.stats = np.empty((0, loops.STAT_FIELDS), np.int64)
        self.digests = np.empty(0, np.uint64)
        self.producers: list[dict[int, int]] = []

    def __len__(self) -> int:
        return int(self.bases.size)

    @property
    def arrays(self) -> loops.CountArrays:
        """Return the counts for kernels; valid until rows are added or merged."""
        return loops.CountArrays(self.bases, self.stats, self.digests)

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory of the counts."""
        row = 8 * (len(_COLUMNS) + loops.STAT_FIELDS + 1)
        return row * len(self) + 100 * sum(map(len, self.producers))

    def add(self, sources: Sequence[SegmentSource]) -> None:
        """Add rows for more segments, above all others."""

        def more(name: str, values: list[int]) -> None:
            setattr(self, name, np.append(getattr(self, name), np.array(values, np.int64)))

        sizes = [source.size for source in sources]
        more("bases", [source.base_offset for source in sources])
        more("ends", [source.base_offset for source in sources])
        # Those of the others are counted: to read the end of a segment costs requests in a bucket.
        more("next_offsets", [s.base_offset if s.size else s.next_offset for s in sources])
        more("sizes", sizes)
        for name in ("weights", "worths", "records", "control_batches", "control_bytes"):
            more(name, [0] * len(sources))
        stats = np.zeros((len(sources), loops.STAT_FIELDS), np.int64)
        stats[:, loops.LOWEST_SUPERSEDING] = NO_OFFSET
        self.stats = np.concatenate([self.stats, stats])
        self.digests = np.append(self.digests, np.zeros(len(sources), np.uint64))
        self.producers += [{} for _ in sources]

    def count(self, chunk: Chunk, segment: int, *, above: int | None = None) -> None:
        """Count the fields of a chunk that do not depend on keys; check that segments do not overlap.

        `above`: chunks come newest first, and this is the first offset of the one before; None: they ascend.
        """
        after = int(self.bases[segment])
        limit = self.bases[segment + 1] if segment + 1 < self.bases.size else INT64_MAX
        if above is not None:
            limit = min(limit, above)
        else:
            after = max(after, int(self.ends[segment]), int(self.ends[segment - 1]) if segment else 0)
        if chunk.table[0, fields.BASE_OFFSET] < after:
            chunk.raise_status(0, kernels.BAD_OFFSET)
        if chunk.table[-1, fields.LAST_OFFSET] >= limit:
            chunk.raise_status(chunk.rows - 1, kernels.BAD_OFFSET)
        self.ends[segment] = max(int(self.ends[segment]), chunk.next_offset)
        self.next_offsets[segment] = self.ends[segment]
        if chunk.attributes & CONTROL_BIT:
            control = ~chunk.data_rows()
            self.records[segment] -= chunk.table[control, fields.COUNT].sum()
            self.control_batches[segment] += int(control.sum())
            self.control_bytes[segment] += chunk.table[control, fields.SIZE].sum()
        self.records[segment] += np.add.reduce(chunk.table[:, fields.COUNT])
        if np.maximum.reduce(chunk.table[:, fields.PRODUCER_ID]) >= 0:
            known = chunk.data_rows() & (chunk.table[:, fields.PRODUCER_ID] >= 0)
            producers, last = (
                chunk.table[known, column].tolist() for column in (fields.PRODUCER_ID, fields.LAST_OFFSET)
            )
            found = dict(zip(producers, last, strict=True))
            self.producers[segment] |= found if above is None else found | self.producers[segment]

    def add_weight(self, segment: int, size_bytes: int) -> None:
        """Add the size, as in the map, of records that were inserted."""
        self.weights[segment] += size_bytes
        self.worths[segment] += size_bytes

    def merge(self, first: int, last: int, size_bytes: int, next_offset: int, *, share: float = 1.0) -> None:
        """Merge segments `first` to `last`, which became one file without their dead records.

        `share`: the share of the keys that is in the map.
        """
        part = slice(first, last + 1)
        live = self.stats[part].sum(axis=0)
        live[[loops.DEAD_RECORDS, loops.DEAD_BYTES, loops.DUE_TOMBSTONES, loops.KEYLESS]] = 0
        live[loops.ABORTED_RECORDS] = 0
        live[loops.LOWEST_SUPERSEDING] = NO_OFFSET
        weight = (self.weights[part] - self.stats[part, loops.DEAD_BYTES]).sum()
        # Bytes of the file beyond the known sizes are markers, at most as many as before the rewrite.
        markers = min(float(self.control_bytes[part].sum()), max(size_bytes - float(weight) / share, 0))
        self.weights[first], self.worths[first] = weight, (size_bytes - markers) * share
        self.control_bytes[first] = markers
        self.records[first] = (self.records[part] - self.stats[part, loops.DEAD_RECORDS]).sum()
        self.control_batches[first] = self.control_batches[part].sum()
        self.digests[first] = self.digests[part].sum()
        self.stats[first] = live
        self.sizes[first] = size_bytes
        self.next_offsets[first] = next_offset
        self.ends[first] = self.ends[part].max()
        producers: dict[int, int] = {}
        for last_offsets in self.producers[part]:
            producers.update(last_offsets)
        self.producers[part] = [producers]
        if first == last:
            return
        for name in (*_COLUMNS, "stats", "digests"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old[: first + 1], old[last + 1 :]]))

    @property
    def is_scaled(self) -> bool:
        """Return whether any segment was rewritten."""
        return bool((self.weights != self.worths).any())

    def scaled(self, segments: NDArray[np.int64], size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert sizes from the map to bytes of the files that now hold the records."""
        weights, worths = self.weights[segments], self.worths[segments]
        changed = weights != worths
        scaled_bytes = size_bytes.copy()
        ratio = worths[changed] / np.maximum(weights[changed], 1)
        # Rounded: all bytes of a segment in the map become all bytes of its file.
        scaled_bytes[changed] = np.rint(size_bytes[changed] * ratio).astype(np.int64)
        return scaled_bytes

    def scaled_up(self, size_bytes: int) -> int:
        """Convert a size from the map to the most bytes that it is in any of the files."""
        return max(self.scaled(np.arange(len(self)), np.full(len(self), size_bytes)).tolist(), default=0) + 1

    def facts(self, first: int = 0, end: int | None = None) -> tuple[SegmentFacts, ...]:
        """Return the facts of each segment, or of those from index `first` to before `end`."""
        part = slice(first, end)
        dead_bytes = self.scaled(np.arange(len(self))[part], self.stats[part, loops.DEAD_BYTES])
        dead_bytes = np.clip(dead_bytes, 0, self.sizes[part])
        columns = (self.bases, self.next_offsets, self.sizes, self.records, self.digests)
        # Lists: reading single numbers from NumPy arrays takes ten times as long.
        lists = (column[part].tolist() for column in (*columns, self.control_batches, self.stats))
        rows = zip(dead_bytes.tolist(), *lists, self.producers[part], strict=True)
        return tuple(
            SegmentFacts(
                base_offset=base_offset,
                next_offset=next_offset,
                size_bytes=size_bytes,
                records=records,
                dead_records=stats[loops.DEAD_RECORDS],
                live_bytes=size_bytes - dead,
                dead_bytes=dead,
                live_digest=digest,
                tombstones=stats[loops.TOMBSTONES],
                tombstones_without_horizon=stats[loops.TOMBSTONES_WITHOUT_HORIZON],
                due_tombstones=stats[loops.DUE_TOMBSTONES],
                keyless=stats[loops.KEYLESS],
                control_batches=control_batches,
                last_of_producers=tuple(producers.items()),
                aborted_records=stats[loops.ABORTED_RECORDS],
            )
            for (
                dead,
                base_offset,
                next_offset,
                size_bytes,
                records,
                digest,
                control_batches,
                stats,
                producers,
            ) in rows
        )

    def to_parts(self) -> dict[str, Any]:
        """Return all counts as arrays by name."""
        pairs = [(i, *pair) for i, last_offsets in enumerate(self.producers) for pair in last_offsets.items()]
        parts = {name: getattr(self, name).copy() for name in (*_COLUMNS, "stats", "digests")}
        return parts | {"producers": np.array(pairs, np.int64).reshape(-1, 3)}

    @classmethod
    def from_parts(cls, parts: dict[str, Any]) -> SegmentCounts:
        """Return the counts from the arrays of `to_parts`; ValueError if their lengths differ."""
        counts = cls()
        for name in (*_COLUMNS, "stats", "digests"):
            kind = np.uint64 if name == "digests" else np.int64
            setattr(counts, name, np.array(parts[name], kind))
        rows = len(counts)
        if counts.stats.shape != (rows, loops.STAT_FIELDS) or any(
            getattr(counts, name).shape != (rows,) for name in (*_COLUMNS, "digests")
        ):
            raise ValueError("the arrays of segment counts have different lengths")
        counts.producers = [{} for _ in range(rows)]
        for segment, producer, offset in np.asarray(parts["producers"], np.int64).tolist():
            counts.producers[segment][producer] = offset
        return counts
