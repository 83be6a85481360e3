"""A log resolved in parts: its keys shared out over shards by their hash, each shard by a task of its own.

    extract   segments of a unit      ->  one file: for each shard what the map wants of its records, keys too
    resolve   one shard of all units  ->  its dead offsets, and its share of every segment's facts
    merge     all shards              ->  facts of each segment; bits of any range of offsets

A record goes to one shard, and all records of a key to the same one, in their order: so a shard's map finds
what the map of the whole log would have found, byte for byte of the keys, and sums of the shards' facts are
the facts. Memory is bounded whatever the log: a unit is read in chunks, a shard that outgrows its map is
passed over again, and bits are made for one range at a time.

A unit's file is blocks, one after another; a block holds a section for each shard, which is rows (ROW_BYTES
each) and then their keys. Behind the blocks a table says where: int64[shards, blocks, INDEX_FIELDS], then the
checksum of each shard's part of it, and last the numbers of shards and blocks with theirs. Every section has
a checksum too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptFileError
from lastword.files import Handle
from lastword.kernels import offset_map as loops
from lastword.kernels import piece
from lastword.kernels import table as fields
from lastword.kernels.gather import gather_spans
from lastword.kernels.keyhash import digest_seeds, seeds
from lastword.kernels.pages import PAGE_BITS, PAGE_WORDS
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
from lastword.resolve.tally import Tally

CHUNK_BYTES = 4 << 20
BLOCK_BYTES = 32 << 20  # of rows and keys that a unit keeps in memory before it writes them
ROW_BYTES = 32  # hash, digest, offset, and one word of size, key length and flags
MOST_SHARDS = 1 << 12
_FOOTER_BYTES = 24
_WINDOW = 1 << 20  # offsets whose bits are made at once: 8 bytes for each, some times over

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
_GONE = np.uint64(1 << 62)
_LOW = np.uint64((1 << 32) - 1)


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
    writer = _Sections(out, shards, block_bytes)
    words = np.zeros(piece.WORD_FIELDS, np.uint64)
    words[piece.SEED0], words[piece.SEED1] = seeds(salt, b"lastword map")
    words[piece.DIGEST0], words[piece.DIGEST1] = digest_seeds(digest_seed_of(salt))
    words[piece.RANGE_LAST] = np.uint64(LAST_HASH)
    made = Piece(MOST_RECORDS)
    for segment, source in enumerate(sources):
        for chunk in source.chunk_reader(chunk_bytes=CHUNK_BYTES, verify=True):
            found = fates_of(chunk, fates, decided=rules.decided)
            made.start(rules, first_pass=True, old_due=bool(old_due) and bool(old_due[segment]))
            chunk.inflate()
            tally.count(chunk, segment)
            if following is not None and chunk.next_offset > following:
                chunk.raise_status(chunk.rows - 1, kernels.BAD_OFFSET)
            while made.fill(chunk, found, words):
                writer.add(chunk, made)
            if progress is not None:
                progress(chunk.size_bytes)
    writer.finish()
    return tally.to_parts()


class _Sections:
    """Collects rows and keys by shard, and writes a block when enough came together."""

    def __init__(self, out: Handle, shards: int, block_bytes: int) -> None:
        self._out = out
        self._shards = shards
        self._block_bytes = block_bytes
        self._rows: list[list[NDArray[np.uint64]]] = [[] for _ in range(shards)]
        self._keys: list[list[NDArray[np.uint8]]] = [[] for _ in range(shards)]
        self._held = 0
        self._position = 0
        self._blocks: list[NDArray[np.int64]] = []

    def add(self, chunk: Chunk, made: Piece) -> None:
        """The records of a piece, sorted by shard; within one they keep their order."""
        count = int(made.cursor[piece.FILLED])
        if not count:
            return
        lengths = made.spans[piece.KEY_LENGTH, :count]
        keyless = lengths < 0
        number = np.uint64(self._shards)
        shard = (((made.hashes[0, :count] >> np.uint64(32)) * number) >> np.uint64(32)).astype(np.uint16)
        shard[keyless] = (made.spans[piece.OFFSET, :count][keyless] % self._shards).astype(np.uint16)
        order = np.argsort(shard, kind="stable")
        key_lengths = np.where(keyless, 0, lengths)[order]
        starts = np.zeros(count + 1, np.int32)
        keys = np.empty(int(key_lengths.sum()) + kernels.SLACK, np.uint8)
        nothing = np.empty(0, np.uint8)
        places = np.where(keyless, 0, made.spans[piece.KEY_POSITION, :count])[order]
        sizes = key_lengths.astype(np.int32)
        if gather_spans(chunk.plain, places, sizes, starts, keys, nothing) != kernels.OK:
            raise ValueError("a key lies outside its chunk")
        rows = np.empty((count, 4), np.uint64)
        rows[:, 0] = made.hashes[0, :count][order]
        rows[:, 1] = made.hashes[1, :count][order]
        rows[:, 2] = made.spans[piece.OFFSET, :count][order].view(np.uint64)
        sizes_and_flags = made.spans[piece.SIZE, :count][order].view(np.uint64)
        rows[:, 3] = (sizes_and_flags & _LOW) | (key_lengths.astype(np.uint64) << _LENGTH)
        for flag, word in (
            (keyless[order], _KEYLESS),
            ((sizes_and_flags & np.uint64(piece.ABORTED)) != 0, _ABORTED),
            ((sizes_and_flags & np.uint64(piece.GONE)) != 0, _GONE),
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
        self._sections = [(unit, _index_of(unit, shard, shards)) for unit in units]
        self._index = np.concatenate([index for _, index in self._sections] or [_NO_SECTION])
        self.total_bytes = int(self._index[:, ROWS].sum()) * ROW_BYTES + int(self._index[:, KEY_BYTES].sum())
        self._piece = Piece(1)

    def found(self) -> ShardFound:
        done = self.run()
        return ShardFound(
            dead=_dead_offsets(done.dead),
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
        rows, keys = _read_section(unit, entry)
        word = rows[:, 3]
        keyless = (word & _KEYLESS) != 0
        lengths = ((word >> _LENGTH) & _LENGTH_MASK).astype(np.int64)
        positions = np.cumsum(lengths) - lengths
        offsets = np.ascontiguousarray(rows[:, 2]).view(np.int64)
        sizes = (word & _LOW).astype(np.int64)
        sizes[(word & _ABORTED) != 0] |= piece.ABORTED
        sizes[(word & _GONE) != 0] |= piece.GONE
        lengths[keyless] = -1
        if not first_pass and keyless.any():  # they were counted the first time
            kept = ~keyless
            rows, positions, lengths = rows[kept], positions[kept], lengths[kept]
            offsets, sizes = offsets[kept], sizes[kept]
        made = self._piece
        count = offsets.size
        if count > made.spans.shape[1]:
            made = self._piece = Piece(count)
        made.hashes[:, :count] = rows[:, :2].T
        made.spans[piece.KEY_POSITION, :count] = positions
        made.spans[piece.KEY_LENGTH, :count] = lengths
        made.spans[piece.OFFSET, :count] = offsets
        made.spans[piece.SIZE, :count] = sizes
        table = np.full((1, fields.FIELDS), np.iinfo(np.int64).max)
        table[0, fields.FILE_POSITION] = entry[POSITION]
        chunk = Chunk(keys, keys, table, unit.path)
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
                made.pages[: pages.size] = pages
                made.cursor[piece.PAGES_MET] = pages.size
                made.cursor[piece.FILLED] = end
                self.walk.settle(made, chunk, segment, self.make_room, first=first)


_NO_SECTION = np.empty((0, INDEX_FIELDS), np.int64)


def _index_of(unit: Handle, shard: int, shards: int) -> NDArray[np.int64]:
    """The shard's entries, one a block."""
    size = unit.size()
    tail = unit.pread(_FOOTER_BYTES, max(size - _FOOTER_BYTES, 0))
    if len(tail) == _FOOTER_BYTES:
        found, blocks, crc = np.frombuffer(tail, np.int64).tolist()
        if found == shards and crc == crc32c(tail[:16]):
            row = 8 * INDEX_FIELDS * blocks
            sums = size - _FOOTER_BYTES - 8 * shards
            data = unit.pread(row, sums - (shards - shard) * row)
            if crc32c(data) == int.from_bytes(unit.pread(8, sums + 8 * shard), "little"):
                return np.frombuffer(data, np.int64).reshape(-1, INDEX_FIELDS)
    raise _damaged(unit, 0)


def _read_section(unit: Handle, entry: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """(rows, keys with slack behind them)."""
    position, rows, key_bytes, crc = entry.tolist()
    size = ROW_BYTES * rows + key_bytes
    data = np.empty(size + kernels.SLACK, np.uint8)
    if unit.pread_into(data[:size].data, position) != size or crc32c(data[:size].tobytes()) != crc:
        raise _damaged(unit, position)
    return data[: ROW_BYTES * rows].view(np.uint64).reshape(-1, 4), data[ROW_BYTES * rows :]


def _damaged(unit: Handle, position: int) -> CorruptFileError:
    return CorruptFileError(
        "a scratch file of a cleaning is not as it was written",
        remedy="clean again: it starts anew",
        file=unit.path,
        position=position,
    )


def _dead_offsets(dead: DeadBitmaps) -> NDArray[np.int64]:
    stored = np.flatnonzero(dead.page_slots >= 0)
    found = [np.empty(0, np.int64)]
    for first in range(0, stored.size, 1024):
        pages = stored[first : first + 1024]
        bits = np.unpackbits(dead.page_bits[dead.page_slots[pages]].view(np.uint8), axis=1, bitorder="little")
        page, bit = np.nonzero(bits)
        found.append((dead.page_ids[pages][page] << PAGE_BITS) + bit)
    return np.concatenate(found)


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
        [tally.stats[:, loops.LOWEST_KILLER], *(s.stats[:, loops.LOWEST_KILLER] for s in shards)]
    )
    for one in shards:
        tally.stats += one.stats
        tally.digests += one.digests
    tally.stats[:, loops.LOWEST_KILLER] = lowest
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


def bits_of(parts: Sequence[NDArray[np.int64]], first_offset: int, next_offset: int) -> DeadBitmaps:
    """Bitmaps of a range of offsets from ascending lists of dead ones, a list for each shard."""
    ids: list[NDArray[np.int64]] = []
    bits: list[NDArray[np.uint64]] = []
    start = first_offset >> PAGE_BITS << PAGE_BITS
    while start < next_offset:
        end = min(start + _WINDOW, next_offset)
        edges = [np.searchsorted(part, [start, end]) for part in parts]
        offsets = np.concatenate(
            [part[a:b] for part, (a, b) in zip(parts, edges, strict=True)] or [_NO_OFFSETS]
        )
        if offsets.size:
            pages = (offsets - start) >> PAGE_BITS
            there = np.zeros((end - start >> PAGE_BITS) + 1, np.bool_)
            there[pages] = True
            found = np.flatnonzero(there)
            slot = np.cumsum(there) - 1
            flat = np.zeros(found.size << PAGE_BITS, np.uint8)
            flat[(slot[pages] << PAGE_BITS) + (offsets & ((1 << PAGE_BITS) - 1))] = 1
            ids.append(found + (start >> PAGE_BITS))
            bits.append(np.packbits(flat, bitorder="little").view(np.uint64).reshape(-1, PAGE_WORDS))
            start = end
        else:  # nothing here: on to the next offset that is dead
            following = [int(part[b]) for part, (_, b) in zip(parts, edges, strict=True) if b < part.size]
            start = max(end, min(following, default=next_offset) >> PAGE_BITS << PAGE_BITS)
    if not ids:
        return DeadBitmaps.of(_NO_OFFSETS)
    page_ids = np.concatenate(ids)
    return DeadBitmaps(page_ids, np.arange(page_ids.size, dtype=np.int32), np.concatenate(bits))


def joined(parts: Iterable[DeadBitmaps]) -> DeadBitmaps:
    """Bitmaps of neighbouring ranges (`bits_of`), in their order, as one; two ranges may share a page."""
    ids: list[NDArray[np.int64]] = []
    bits: list[NDArray[np.uint64]] = []
    for part in parts:
        page_ids, page_bits = part.page_ids, part.page_bits
        if page_ids.size and ids and ids[-1][-1] == page_ids[0]:
            bits[-1][-1] |= page_bits[0]
            page_ids, page_bits = page_ids[1:], page_bits[1:]
        if page_ids.size:
            ids.append(page_ids)
            bits.append(page_bits)
    if not ids:
        return DeadBitmaps.of(_NO_OFFSETS)
    every = np.concatenate(ids)
    return DeadBitmaps(every, np.arange(every.size, dtype=np.int32), np.concatenate(bits))


_NO_OFFSETS = np.empty(0, np.int64)
