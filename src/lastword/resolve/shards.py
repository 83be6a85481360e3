"""A log resolved in parts: its keys shared out over shards by their hash, each shard by a task of its own.

    extract   segments of a unit      ->  one file: for each shard what the map wants of its records, keys too
    resolve   one shard of all units  ->  its dead offsets, and its share of every segment's facts
    merge     all shards              ->  facts of each segment; bits of any range of offsets

A record goes to one shard, and all records of a key to the same one, in their order: so a shard's map finds
what the map of the whole log would have found, byte for byte of the keys, and sums of the shards' facts are
the facts. Memory is bounded whatever the log: a unit is read in chunks, a shard that outgrows its map is
passed over again, and bits are made for one range at a time (`bitmaps.bits_of`). What a unit's file looks
like is told in `sections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.files import Handle
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.hashing import digest_seeds, seeds
from lastword.kernels.pages import PAGE_BITS
from lastword.records.chunk import Chunk
from lastword.resolve.bitmaps import DeadBitmaps
from lastword.resolve.facts import (
    Fates,
    Resolution,
    SegmentFacts,
    SegmentSource,
    digest_seed_of,
    fates_of,
)
from lastword.resolve.pieces import MOST_RECORDS, Piece
from lastword.resolve.resolver import Resolver
from lastword.resolve.rules import LAST_HASH, Rules
from lastword.resolve.sections import (
    INDEX_FIELDS,
    KEY_BYTES,
    POSITION,
    ROW_BYTES,
    ROWS,
    SectionWriter,
    read_index,
    read_section,
)
from lastword.resolve.tally import Tally
from lastword.wire import INT64_MAX

CHUNK_BYTES = 4 << 20
BLOCK_BYTES = 32 << 20  # of rows and keys that a unit keeps in memory before it writes them
MOST_SHARDS = 1 << 12


def hash_range(shard: int, shards: int) -> tuple[int, int]:
    """First and last hash of a shard: shards have about equal parts of the range, in order."""
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
    fates: Fates | None,
    old_due: Sequence[bool] = (),
    progress: Callable[[int], None] | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> dict[str, Any]:
    """Write what the map wants of every record of neighbouring segments to `out`, an empty file.

    `following`: base offset of the segment after them, None if there is none. `progress` hears the bytes
    read, chunk by chunk. Returns the parts of a tally with one row a segment, which know nothing of keys yet.
    Raises what `resolve` raises.
    """
    tally = Tally()
    tally.add(sources)
    writer = SectionWriter(out, shards, block_bytes)
    words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
    words[key_batch.SEED0], words[key_batch.SEED1] = seeds(salt, b"lastword map")
    words[key_batch.DIGEST0], words[key_batch.DIGEST1] = digest_seeds(digest_seed_of(salt))
    words[key_batch.RANGE_LAST] = np.uint64(LAST_HASH)
    made = Piece(MOST_RECORDS)
    for segment, source in enumerate(sources):
        for chunk in source.chunk_reader(chunk_bytes=CHUNK_BYTES, verify=True):
            found = fates_of(chunk, fates, decided=rules.decided)
            made.start(rules, first_pass=True, old_due=bool(old_due) and bool(old_due[segment]))
            chunk.decompress()
            tally.count(chunk, segment)
            if following is not None and chunk.next_offset > following:
                chunk.raise_status(chunk.rows - 1, kernels.BAD_OFFSET)
            while made.fill(chunk, found, words):
                writer.add(chunk, made)
            if progress is not None:
                progress(chunk.size_bytes)
    writer.finish()
    return tally.to_parts()


@dataclass(frozen=True, slots=True)
class Extent:
    """A segment as a shard knows it: its offsets and its size; nobody reads it."""

    base_offset: int
    next_offset: int
    size: int
    file: str

    def chunk_reader(self, *, chunk_bytes: int = 0, verify: bool = True) -> Iterator[Chunk]:
        raise ValueError(f"{self.file} is not read again while its shards are resolved")


@dataclass(frozen=True, slots=True)
class ShardFound:
    """What one shard adds.

    `dead`: offsets, ascending. `stats`, `digests`: a row each segment, to be added up.
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
) -> ShardFound:
    """Find the dead records of one shard. `extents`: all segments of the log; `units`: the files that
    `extract` made of them, in order. CorruptFileError for a file that is not as it was written.
    """
    return _ShardResolver(extents, units, shard, shards, map_bytes, salt, rules).found()


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
        self._piece = Piece(1)

    def found(self) -> ShardFound:
        done = self.run()
        return ShardFound(
            dead=done.dead.offsets(),
            stats=self.walk.tally.stats,
            digests=self.walk.tally.digests,
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
            offset_map = self.walk.make_map(records, float(self._index[:, KEY_BYTES].sum()) / records)
            offset_map.start_pass(*self.hashes)
        self.done_bytes = 0
        self.recent.clear()
        for unit, index in self._sections:
            for entry in index:
                if entry[ROWS]:
                    self._take(unit, entry, first_pass=number == 1)
                    self.done_bytes += int(entry[ROWS]) * ROW_BYTES + int(entry[KEY_BYTES])
                    assert self.walk.map is not None
                    self.recent.append((self.done_bytes, self.walk.map.distinct_keys))

    def _take(self, unit: Handle, entry: NDArray[np.int64], *, first_pass: bool) -> None:
        section = read_section(unit, entry)
        if not first_pass:  # those without a key were counted the first time
            section = section.with_keys()
        offsets = section.offsets
        made = self._piece
        count = offsets.size
        if count > made.arrays.spans.shape[1]:
            made = self._piece = Piece(count)
        made.arrays.hashes[:, :count] = section.hashes.T
        made.arrays.spans[key_batch.KEY_POSITION, :count] = section.key_positions
        made.arrays.spans[key_batch.KEY_LENGTH, :count] = section.key_lengths
        made.arrays.spans[key_batch.OFFSET, :count] = offsets
        made.arrays.spans[key_batch.SIZE, :count] = section.sizes
        table = np.full((1, fields.FIELDS), INT64_MAX)
        table[0, fields.FILE_POSITION] = entry[POSITION]
        chunk = Chunk(section.keys, section.keys, table, unit.path)
        bases = self.walk.tally.bases
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
                made.arrays.page_ids[: pages.size] = pages
                made.cursor[key_batch.PAGES_MET] = pages.size
                made.cursor[key_batch.FILLED] = end
                self.walk.settle(made, chunk, segment, self.make_room, first=first)


def merged_tally(units: Sequence[dict[str, Any]], shards: Sequence[ShardFound]) -> Tally:
    """The tally of the whole log, from the parts that `extract` returned and the shards' shares."""
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
    tally = Tally.from_parts(parts)
    lowest = np.minimum.reduce(
        [tally.stats[:, loops.LOWEST_SUPERSEDING], *(s.stats[:, loops.LOWEST_SUPERSEDING] for s in shards)]
    )
    for one in shards:
        tally.stats += one.stats
        tally.digests += one.digests
    tally.stats[:, loops.LOWEST_SUPERSEDING] = lowest
    return tally


def merged_resolution(
    facts: tuple[SegmentFacts, ...],
    dead: DeadBitmaps,
    shards: Sequence[ShardFound],
    *,
    map_bytes: int,
    salt: bytes,
    seconds: float,
) -> Resolution:
    """What `resolve` would have found, with `dead` for all of it or for the range that is asked about."""
    return Resolution(
        segments=facts,
        dead=dead,
        passes=1,
        distinct_keys=sum(one.distinct_keys for one in shards),
        map_bytes=map_bytes,
        map_bytes_used=max((one.map_bytes_used for one in shards), default=0),
        map_used_ratio=max((one.map_used_ratio for one in shards), default=0.0),
        probes=sum(one.probes for one in shards),
        records=sum(one.records for one in facts),
        keyless=sum(one.keyless for one in facts),
        digest_seed=digest_seed_of(salt),
        seconds=seconds,
    )
