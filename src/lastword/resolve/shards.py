"""A log resolved in parts: its keys are divided over shards by their hash, and a task resolves each shard.

    extract   segments of a unit      ->  one file: for each shard the key batches of its records, with keys
    resolve   one shard of all units  ->  its dead offsets, and its share of every segment's facts
    merge     all shards              ->  facts of each segment; bits of any range of offsets

All records of a key go to the same shard, in their order. So a shard marks exactly the records of its keys
that a map of the whole log would mark, and the sums over the shards are the facts. Memory is bounded for a
log of any size: a unit is read in chunks, a shard that outgrows its map takes more passes, and bits are made
for one range at a time (`bitmaps.bitmaps_of`).

The file of a unit has blocks, one after another. A block holds a *section* for each shard: rows (ROW_BYTES
each), then their keys. After the blocks follow an index, int64[shards, blocks, INDEX_FIELDS], the checksum
of each shard's part of it, and the numbers of shards and blocks with their checksum. Every section has a
checksum, too. A row is the hash, the digest, the offset, and one word of size, key length and flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptFileError
from lastword.files import Handle
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.columns import gather_spans
from lastword.kernels.hashing import digest_seeds, seeds
from lastword.kernels.pages import PAGE_BITS
from lastword.records.chunk import Chunk
from lastword.resolve.bitmaps import DeadBitmaps
from lastword.resolve.facts import (
    LAST_HASH,
    Resolution,
    Rules,
    SegmentCounts,
    SegmentFacts,
    SegmentSource,
    TransactionOutcomes,
    digest_seed_of,
    outcomes_of,
)
from lastword.resolve.resolver import MAX_RECORDS, KeyBatchFiller, Resolver
from lastword.wire import INT64_MAX

ROW_BYTES = 32
_FOOTER_BYTES = 24

# Fields of a section's entry.
POSITION = 0
ROWS = 1
KEY_BYTES = 2
CRC = 3
INDEX_FIELDS = 4

# The last word of a row: 32 bits of size and flags as in an arena entry, then 28 of the key's length.
_LENGTH = np.uint64(32)
_LENGTH_MASK = np.uint64((1 << 28) - 1)
_KEYLESS = np.uint64(1 << 60)
_ABORTED = np.uint64(1 << 61)
_DEAD_KEYLESS = np.uint64(1 << 62)
_LOW = np.uint64((1 << 32) - 1)


class SectionWriter:
    """Collects rows and keys by shard, and writes a block when there are enough."""

    def __init__(self, out: Handle, shards: int, block_bytes: int) -> None:
        self._out = out
        self._shards = shards
        self._block_bytes = block_bytes
        self._rows: list[list[NDArray[np.uint64]]] = [[] for _ in range(shards)]
        self._keys: list[list[NDArray[np.uint8]]] = [[] for _ in range(shards)]
        self._held = 0
        self._position = 0
        self._blocks: list[NDArray[np.int64]] = []

    def add(self, chunk: Chunk, filler: KeyBatchFiller) -> None:
        """Add the records of a key batch, sorted by shard; within a shard they keep their order."""
        count = int(filler.cursor[key_batch.FILLED])
        if not count:
            return
        lengths = filler.arrays.spans[key_batch.KEY_LENGTH, :count]
        keyless = lengths < 0
        number = np.uint64(self._shards)
        shard = (((filler.arrays.hashes[0, :count] >> np.uint64(32)) * number) >> np.uint64(32)).astype(
            np.uint16
        )
        shard[keyless] = (filler.arrays.spans[key_batch.OFFSET, :count][keyless] % self._shards).astype(
            np.uint16
        )
        order = np.argsort(shard, kind="stable")
        key_lengths = np.where(keyless, 0, lengths)[order]
        starts = np.zeros(count + 1, np.int32)
        keys = np.empty(int(key_lengths.sum()) + kernels.SLACK, np.uint8)
        nothing = np.empty(0, np.uint8)
        places = np.where(keyless, 0, filler.arrays.spans[key_batch.KEY_POSITION, :count])[order]
        sizes = key_lengths.astype(np.int32)
        if gather_spans(chunk.uncompressed, places, sizes, starts, keys, nothing) != kernels.OK:
            raise ValueError("a key is outside its chunk")
        rows = np.empty((count, 4), np.uint64)
        rows[:, 0] = filler.arrays.hashes[0, :count][order]
        rows[:, 1] = filler.arrays.hashes[1, :count][order]
        rows[:, 2] = filler.arrays.spans[key_batch.OFFSET, :count][order].view(np.uint64)
        sizes_and_flags = filler.arrays.spans[key_batch.SIZE, :count][order].view(np.uint64)
        rows[:, 3] = (sizes_and_flags & _LOW) | (key_lengths.astype(np.uint64) << _LENGTH)
        for flag, word in (
            (keyless[order], _KEYLESS),
            ((sizes_and_flags & np.uint64(key_batch.ABORTED)) != 0, _ABORTED),
            ((sizes_and_flags & np.uint64(key_batch.DEAD_KEYLESS)) != 0, _DEAD_KEYLESS),
        ):
            if flag.any():
                rows[flag, 3] |= word
        ends = np.searchsorted(shard[order], np.arange(self._shards + 1)).tolist()
        for i in range(self._shards):
            first, end = ends[i], ends[i + 1]
            if first < end:
                self._rows[i].append(rows[first:end])
                self._keys[i].append(keys[int(starts[first]) : int(starts[end])])
        self._held += rows.nbytes + keys.size
        if self._held >= self._block_bytes:
            self._write()

    def _write(self) -> None:
        index = np.zeros((self._shards, INDEX_FIELDS), np.int64)
        for i in range(self._shards):
            parts = [*(rows.view(np.uint8).ravel() for rows in self._rows[i]), *self._keys[i]]
            if not parts:
                continue
            data = np.concatenate(parts)
            count = sum(len(rows) for rows in self._rows[i])
            index[i] = self._position, count, data.size - ROW_BYTES * count, crc32c(data.tobytes())
            self._out.append(data)
            self._position += data.size
            self._rows[i].clear()
            self._keys[i].clear()
        self._blocks.append(index)
        self._held = 0

    def finish(self) -> None:
        """Write the last block and the index."""
        if self._held:
            self._write()
        blocks = len(self._blocks)
        index = np.zeros((self._shards, blocks, INDEX_FIELDS), np.int64)
        for number, block in enumerate(self._blocks):
            index[:, number] = block
        sums = [crc32c(index[i].tobytes()) for i in range(self._shards)]
        counts = np.array([self._shards, blocks], np.int64).tobytes()
        self._out.append(index.tobytes() + np.array(sums, np.int64).tobytes())
        self._out.append(counts + np.array([crc32c(counts)], np.int64).tobytes())


class Section(NamedTuple):
    """Records of one shard, in their order.

    Attributes:
        hashes: uint64[records, 2]; hash and digest of the key.
        offsets: int64.
        sizes: int64, with the flags of a key batch.
        key_positions: int64, in `keys`.
        key_lengths: int64, -1 for a record without a key.
        keys: uint8, followed by slack.
    """

    hashes: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    key_positions: NDArray[np.int64]
    key_lengths: NDArray[np.int64]
    keys: NDArray[np.uint8]

    def with_keys(self) -> Section:
        """Return the section without the records that have no key."""
        kept = self.key_lengths >= 0
        if kept.all():
            return self
        return Section(
            self.hashes[kept],
            self.offsets[kept],
            self.sizes[kept],
            self.key_positions[kept],
            self.key_lengths[kept],
            self.keys,
        )


def read_index(unit: Handle, shard: int, shards: int) -> NDArray[np.int64]:
    """Return the positions of a shard's sections, a row for each.

    Raises CorruptFileError for a file that was changed.
    """
    size = unit.size()
    tail = unit.pread(_FOOTER_BYTES, max(size - _FOOTER_BYTES, 0))
    if len(tail) == _FOOTER_BYTES:
        stored_shards, blocks, crc = np.frombuffer(tail, np.int64).tolist()
        if stored_shards == shards and crc == crc32c(tail[:16]):
            row = 8 * INDEX_FIELDS * blocks
            sums = size - _FOOTER_BYTES - 8 * shards
            data = unit.pread(row, sums - (shards - shard) * row)
            if crc32c(data) == int.from_bytes(unit.pread(8, sums + 8 * shard), "little"):
                return np.frombuffer(data, np.int64).reshape(-1, INDEX_FIELDS)
    raise _damaged(unit, 0)


def read_section(unit: Handle, entry: NDArray[np.int64]) -> Section:
    """Return the section of a row of the index. Raises the errors of `read_index`."""
    position, count, key_bytes, crc = entry.tolist()
    size = ROW_BYTES * count + key_bytes
    data = np.empty(size + kernels.SLACK, np.uint8)
    if unit.pread_into(data[:size].data, position) != size or crc32c(data[:size].tobytes()) != crc:
        raise _damaged(unit, position)
    rows = data[: ROW_BYTES * count].view(np.uint64).reshape(-1, 4)
    word = rows[:, 3]
    lengths = ((word >> _LENGTH) & _LENGTH_MASK).astype(np.int64)
    positions = np.cumsum(lengths) - lengths
    lengths[(word & _KEYLESS) != 0] = -1
    sizes = (word & _LOW).astype(np.int64)
    sizes[(word & _ABORTED) != 0] |= key_batch.ABORTED
    sizes[(word & _DEAD_KEYLESS) != 0] |= key_batch.DEAD_KEYLESS
    offsets = np.ascontiguousarray(rows[:, 2]).view(np.int64)
    return Section(rows[:, :2], offsets, sizes, positions, lengths, data[ROW_BYTES * count :])


def _damaged(unit: Handle, position: int) -> CorruptFileError:
    return CorruptFileError(
        "a scratch file of a cleaning is not as it was written",
        remedy="clean again: it starts from the beginning",
        file=unit.path,
        position=position,
    )


CHUNK_BYTES = 4 << 20
BLOCK_BYTES = 32 << 20  # rows and keys that a unit keeps in memory before it writes them
MAX_SHARDS = 1 << 12


def hash_range(shard: int, shards: int) -> tuple[int, int]:
    """Return the first and last hash of a shard: shards have about equal parts of the range, in order."""
    first, end = (-(-(i << 32) // shards) << 32 for i in (shard, shard + 1))
    return first, end - 1


def extract(
    sources: Sequence[SegmentSource],
    following: int | None,
    out: Handle,
    *,
    shards: int,
    salt: bytes,
    rules: Rules,
    outcomes: TransactionOutcomes | None,
    old_due: Sequence[bool] = (),
    progress: Callable[[int], None] | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> dict[str, Any]:
    """Write the key batches of neighbouring segments to `out`, an empty file.

    Returns the parts of the segment counts, which do not include keys yet. Raises the errors of `resolve`.

    Args:
        sources: The segments.
        following: Base offset of the segment after them, None if there is none.
        out: The file.
        shards: Number of shards.
        salt: As for `resolve`.
        rules: The rules of the resolution.
        outcomes: As for `resolve`.
        old_due: As for `resolve`.
        progress: Called with the bytes read, chunk by chunk.
        block_bytes: Bytes of rows and keys to keep in memory before they are written.
    """
    counts = SegmentCounts()
    counts.add(sources)
    writer = SectionWriter(out, shards, block_bytes)
    words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
    words[key_batch.SEED0], words[key_batch.SEED1] = seeds(salt, b"lastword map")
    words[key_batch.DIGEST0], words[key_batch.DIGEST1] = digest_seeds(digest_seed_of(salt))
    words[key_batch.RANGE_LAST] = np.uint64(LAST_HASH)
    filler = KeyBatchFiller(MAX_RECORDS)
    for segment, source in enumerate(sources):
        for chunk in source.chunk_reader(chunk_bytes=CHUNK_BYTES, verify=True):
            batch_outcomes = outcomes_of(chunk, outcomes, decided=rules.decided)
            filler.start(rules, first_pass=True, old_due=bool(old_due) and bool(old_due[segment]))
            chunk.decompress()
            counts.count(chunk, segment)
            if following is not None and chunk.next_offset > following:
                chunk.raise_status(chunk.rows - 1, kernels.BAD_OFFSET)
            while filler.fill(chunk, batch_outcomes, words):
                writer.add(chunk, filler)
            if progress is not None:
                progress(chunk.size_bytes)
    writer.finish()
    return counts.to_parts()


@dataclass(frozen=True, slots=True)
class Extent:
    """A segment as a shard needs it: its offsets and its size. It cannot be read."""

    base_offset: int
    next_offset: int
    size: int
    file: str

    def chunk_reader(self, *, chunk_bytes: int = 0, verify: bool = True) -> Iterator[Chunk]:
        """Raise ValueError: a shard reads no segments."""
        raise ValueError(f"{self.file} is not read again while its shards are resolved")


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The contribution of one shard.

    `dead`: offsets, ascending. `stats`, `digests`: a row for each segment, to be added up.
    """

    dead: NDArray[np.int64]
    stats: NDArray[np.int64]
    digests: NDArray[np.uint64]
    distinct_keys: int
    passes: int
    probes: int
    map_bytes_used: int
    map_used_ratio: float
    seconds: float


def resolve_shard(
    extents: Sequence[Extent],
    units: Sequence[Handle],
    shard: int,
    shards: int,
    *,
    map_bytes: int,
    salt: bytes,
    rules: Rules,
) -> ShardResult:
    """Find the dead records of one shard.

    `extents`: all segments of the log; `units`: the files that `extract` wrote, in order. Raises
    CorruptFileError for a file that was changed.
    """
    return _ShardResolver(extents, units, shard, shards, map_bytes, salt, rules).result()


class _ShardResolver(Resolver):
    def __init__(
        self,
        extents: Sequence[Extent],
        units: Sequence[Handle],
        shard: int,
        shards: int,
        map_bytes: int,
        salt: bytes,
        rules: Rules,
    ) -> None:
        super().__init__(extents, map_bytes, salt, rules)
        self.hashes = hash_range(shard, shards)
        self._sections = [(unit, read_index(unit, shard, shards)) for unit in units]
        self._index = np.concatenate(
            [np.empty((0, INDEX_FIELDS), np.int64), *(index for _, index in self._sections)]
        )
        self.total_bytes = int(self._index[:, ROWS].sum()) * ROW_BYTES + int(self._index[:, KEY_BYTES].sum())
        self._filler = KeyBatchFiller(1)

    def result(self) -> ShardResult:
        done = self.run()
        return ShardResult(
            dead=done.dead.offsets(),
            stats=self.scan.counts.stats,
            digests=self.scan.counts.digests,
            distinct_keys=done.distinct_keys,
            passes=done.passes,
            probes=done.probes,
            map_bytes_used=done.map_bytes_used,
            map_used_ratio=done.map_used_ratio,
            seconds=done.seconds,
        )

    def take_all(self, number: int) -> None:
        records = int(self._index[:, ROWS].sum())
        if number == 1 and records:
            offset_map = self.scan.make_map(records, float(self._index[:, KEY_BYTES].sum()) / records)
            offset_map.start_pass(*self.hashes)
        self.done_bytes = 0
        self.recent.clear()
        for unit, index in self._sections:
            for entry in index:
                if entry[ROWS]:
                    self._take(unit, entry, first_pass=number == 1)
                    self.done_bytes += int(entry[ROWS]) * ROW_BYTES + int(entry[KEY_BYTES])
                    assert self.scan.map is not None
                    self.recent.append((self.done_bytes, self.scan.map.distinct_keys))

    def _take(self, unit: Handle, entry: NDArray[np.int64], *, first_pass: bool) -> None:
        section = read_section(unit, entry)
        if not first_pass:  # records without a key were counted in the first pass
            section = section.with_keys()
        offsets = section.offsets
        filler = self._filler
        count = offsets.size
        if count > filler.arrays.spans.shape[1]:
            filler = self._filler = KeyBatchFiller(count)
        filler.arrays.hashes[:, :count] = section.hashes.T
        filler.arrays.spans[key_batch.KEY_POSITION, :count] = section.key_positions
        filler.arrays.spans[key_batch.KEY_LENGTH, :count] = section.key_lengths
        filler.arrays.spans[key_batch.OFFSET, :count] = offsets
        filler.arrays.spans[key_batch.SIZE, :count] = section.sizes
        table = np.full((1, fields.FIELDS), INT64_MAX)
        table[0, fields.FILE_POSITION] = entry[POSITION]
        chunk = Chunk(section.keys, section.keys, table, unit.path)
        bases = self.scan.counts.bases
        edges = np.searchsorted(offsets, bases).tolist()
        begin = max(int(np.searchsorted(bases, offsets[0], side="right")) - 1, 0) if count else len(edges)
        for segment in range(begin, len(edges)):
            first = edges[segment]
            end = edges[segment + 1] if segment + 1 < len(edges) else count
            if first == count:
                break
            if first < end:
                pages = offsets[first:end] >> PAGE_BITS
                pages = pages[np.flatnonzero(np.diff(pages, prepend=-1))]
                filler.arrays.page_ids[: pages.size] = pages
                filler.cursor[key_batch.PAGES_MET] = pages.size
                filler.cursor[key_batch.FILLED] = end
                self.scan.insert(filler, chunk, segment, self.make_room, first=first)


def merge_counts(units: Sequence[dict[str, Any]], shards: Sequence[ShardResult]) -> SegmentCounts:
    """Return the counts of the whole log, from the parts of `extract` and the shares of the shards."""
    parts: dict[str, Any] = {}
    segments = 0
    producers = []
    for unit in units:
        rows = np.asarray(unit["producers"], np.int64).reshape(-1, 3).copy()
        rows[:, 0] += segments
        producers.append(rows)
        segments += len(unit["bases"])
    for name in units[0]:
        parts[name] = np.concatenate([unit[name] for unit in units])
    parts["producers"] = np.concatenate(producers)
    counts = SegmentCounts.from_parts(parts)
    lowest = np.minimum.reduce(
        [counts.stats[:, loops.LOWEST_SUPERSEDING], *(s.stats[:, loops.LOWEST_SUPERSEDING] for s in shards)]
    )
    for shard in shards:
        counts.stats += shard.stats
        counts.digests += shard.digests
    counts.stats[:, loops.LOWEST_SUPERSEDING] = lowest
    return counts


def merge_resolutions(
    facts: tuple[SegmentFacts, ...],
    dead: DeadBitmaps,
    shards: Sequence[ShardResult],
    *,
    map_bytes: int,
    salt: bytes,
    seconds: float,
) -> Resolution:
    """Return the result of `resolve`, with `dead` for the whole log or for the range that is needed."""
    return Resolution(
        segments=facts,
        dead=dead,
        passes=1,
        distinct_keys=sum(shard.distinct_keys for shard in shards),
        map_bytes=map_bytes,
        map_bytes_used=max((shard.map_bytes_used for shard in shards), default=0),
        map_used_ratio=max((shard.map_used_ratio for shard in shards), default=0.0),
        probes=sum(shard.probes for shard in shards),
        records=sum(segment.records for segment in facts),
        keyless=sum(segment.keyless for segment in facts),
        digest_seed=digest_seed_of(salt),
        seconds=seconds,
    )
