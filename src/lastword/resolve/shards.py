"""A log resolved in parts: its keys are divided over shards by their hash, and each shard is resolved alone.

    extract   segments of a unit      ->  one file: for each shard the key batches of its records, with keys
    resolve   one shard of all units  ->  a bit for each of its rows, and its share of every segment's facts
    mark      one unit, all shards    ->  dead bitmaps of the unit
    merge     all shards              ->  facts of each segment

All records of a key go to the same shard, in their order. So a shard marks exactly the records of its keys
that a map of the whole log would mark, and the sums over the shards are the facts. Memory is bounded for a
log of any size: a unit is read in chunks, a shard that outgrows its map takes more passes, and bitmaps are
made for one unit at a time.

A shard has a few of all offsets: a number for each dead one takes bytes, and a bitmap over the offsets would
take as much for each shard as for all together. A bit for each row, dead or not, is a bit for each record of
the log, for any number of shards. The rows of the unit have the offsets.

The steps may be tasks on many machines (`spark.sharded`). Or `resolve_divided` does all of them
in one process, with one unit: this is the hash join of databases that partitions its input first. Then the
shards count into the same arrays, and set bits in the same bitmaps, so there is nothing to merge. Where a
certificate follows, the rows may have hashes in the place of keys (`_HashShards`).

The file of a unit has *sections*, one after another: each has rows of one shard (`kernels.key_batch`), in the
order of offsets. A section is written when the bin of its shard is full. After the sections follow an index,
int64[sections, INDEX_FIELDS], shard by shard; for each shard the number of its sections and the checksum of
its part of the index; and a footer: version, number of shards, and a checksum of all after the index. Every
section has a checksum, too.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptFileError
from lastword.kernels import hashing, key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.key_batch import ROW_BYTES
from lastword.kernels.pages import PAGE_BITS, PAGE_WORDS
from lastword.records.chunk import Chunk
from lastword.resolve.bitmaps import DeadBitmaps
from lastword.resolve.facts import (
    Resolution,
    Rules,
    SegmentCounts,
    SegmentFacts,
    SegmentSource,
    TransactionOutcomes,
    digest_seed_of,
)
from lastword.resolve.hash_map import HashResolver
from lastword.resolve.offset_map import words_of
from lastword.resolve.resolver import KeyBatchFiller, KeyScan, Resolver
from lastword.resolve.survivors import ScratchFile
from lastword.wire import INT64_MAX

_VERSION = 2
_FOOTER_BYTES = 24
_COUNT_BYTES = 16  # of a shard: sections, checksum of their part of the index

# Fields of a section's entry.
POSITION = 0
ROWS = 1
SIZE = 2
CRC = 3
INDEX_FIELDS = 4
ENTRY_BYTES = 8 * INDEX_FIELDS

BLOCK_BYTES = 32 << 20  # rows that a task keeps in memory before it writes them
SECTION_BYTES = 128 << 10  # at most, so that its rows stay in the processor's cache; a longer row has its own
_LEAST_BLOCK_BYTES = 64 << 10
MAX_SHARDS = 1 << 12
_RECORDS_OF_A_KEY = 4
_FEW_RECORDS = 1024


class SectionWriter:
    """Collects rows in a bin for each shard, and writes a bin as a section when it is full."""

    def __init__(self, out: ScratchFile, shards: int, block_bytes: int, *, by_hash: bool = False) -> None:
        bin_bytes = min(max(block_bytes // shards, 1), SECTION_BYTES)
        bin_stride = bin_bytes + key_batch.BIN_SLACK
        self._out = out
        self._by_hash = by_hash
        self._data = np.empty(shards * bin_stride + kernels.SLACK, np.uint8)
        self._bins = np.zeros((shards, key_batch.BIN_FIELDS), np.int64)
        self._bins[:, key_batch.BIN_START] = self._bins[:, key_batch.BIN_END] = np.arange(shards) * bin_stride
        self._bins[:, key_batch.BIN_LIMIT] = self._bins[:, key_batch.BIN_START] + bin_bytes
        self._index = [array("q") for _ in range(shards)]
        self._position = 0

    def add(self, chunk: Chunk, filler: KeyBatchFiller) -> None:
        """Add the records of a key batch; within a shard they keep their order."""
        count, record = int(filler.cursor[key_batch.FILLED]), 0
        while record < count:
            record, shard, status = key_batch.divide_key_batch(
                chunk.uncompressed, filler.arrays, record, count, self._bins, self._data, self._by_hash
            )
            if status == kernels.FULL and self._bins[shard, key_batch.BIN_ROWS]:
                self._write(shard)
            elif status == kernels.FULL:
                self._write_alone(chunk, filler, record, shard)
                record += 1
            elif status != kernels.OK:
                raise ValueError("a key is outside its chunk")

    def _write(self, shard: int) -> None:
        start, _, end, rows, _ = self._bins[shard].tolist()
        self._append(shard, self._data[start:end], rows)
        self._bins[shard, key_batch.BIN_END] = start
        self._bins[shard, key_batch.BIN_ROWS] = 0

    def _write_alone(self, chunk: Chunk, filler: KeyBatchFiller, record: int, shard: int) -> None:
        """Write a section with one record, which is longer than a bin."""
        key_bytes = max(int(filler.arrays.spans[key_batch.KEY_LENGTH, record]), 0)
        size = key_batch.LONG_HASH_ROW_BYTES if self._by_hash else key_batch.LONG_ROW_BYTES + key_bytes
        data = np.empty(size + kernels.SLACK, np.uint8)
        bins = np.zeros_like(self._bins)
        bins[:, key_batch.BIN_LIMIT] = size
        key_batch.divide_key_batch(
            chunk.uncompressed, filler.arrays, record, record + 1, bins, data, self._by_hash
        )
        self._append(shard, data[:size], 1)

    def _append(self, shard: int, data: NDArray[np.uint8], rows: int) -> None:
        self._index[shard].extend((self._position, rows, data.size, _crc_of(data)))
        self._out.append(data)
        self._position += data.size

    def finish(self) -> None:
        """Write the rest of all bins, and the index."""
        for shard in np.flatnonzero(self._bins[:, key_batch.BIN_ROWS]).tolist():
            self._write(shard)
        _write_index(self._out, [entries.tobytes() for entries in self._index])


def gather(unit: ScratchFile, out: ScratchFile, shards: int) -> None:
    """Copy a unit's file with the sections of each shard side by side, for storage that is read by ranges.

    `out` is an empty file. Raises CorruptFileError for a file that was changed.
    """
    position, indexes = 0, []
    for shard in range(shards):
        entries = read_index(unit, shard, shards).copy()
        for entry in entries:
            data = unit.pread(int(entry[SIZE]), int(entry[POSITION]))
            if crc32c(data) != entry[CRC]:
                raise damaged(unit, int(entry[POSITION]))
            entry[POSITION] = position
            out.append(data)
            position += len(data)
        indexes.append(entries.tobytes())
    _write_index(out, indexes)


def _write_index(out: ScratchFile, indexes: Sequence[bytes]) -> None:
    counts = [(len(entries) // ENTRY_BYTES, crc32c(entries)) for entries in indexes]
    tail = np.array([*counts, (_VERSION, len(counts))], np.int64).tobytes()
    checksum = np.array([crc32c(tail)], np.int64).tobytes()
    out.append(b"".join(indexes) + tail + checksum)


def read_index(unit: ScratchFile, shard: int, shards: int) -> NDArray[np.int64]:
    """Return the entries of a shard's sections, a row for each.

    Raises CorruptFileError for a file that was changed.
    """
    size = unit.size()
    tail_bytes = _FOOTER_BYTES + _COUNT_BYTES * shards
    tail = unit.pread(tail_bytes, max(size - tail_bytes, 0))
    if len(tail) == tail_bytes:
        values = np.frombuffer(tail, np.int64)
        version, stored_shards, crc = values[-3:].tolist()
        if (version, stored_shards) == (_VERSION, shards) and crc == crc32c(tail[:-8]):
            counts = values[:-3].reshape(-1, 2)[shard:]
            count, index_crc = counts[0].tolist()
            data = unit.pread(ENTRY_BYTES * count, size - tail_bytes - ENTRY_BYTES * int(counts[:, 0].sum()))
            if crc32c(data) == index_crc:
                return np.frombuffer(data, np.int64).reshape(-1, INDEX_FIELDS)
    raise damaged(unit, 0)


def _crc_of(data: NDArray[np.uint8]) -> int:
    return int(hashing.crc32c(data, 0, data.size))


def damaged(unit: ScratchFile, position: int) -> CorruptFileError:
    """Return the error of a scratch file whose bytes changed."""
    return CorruptFileError(
        "a scratch file of a cleaning is not as it was written",
        remedy="clean again: it starts from the beginning",
        file=unit.path,
        position=position,
    )


def hash_range(shard: int, shards: int) -> tuple[int, int]:
    """Return the first and last hash of a shard: shards have about equal parts of the range, in order."""
    first, end = (-(-(i << 32) // shards) << 32 for i in (shard, shard + 1))
    return first, end - 1


def extract(
    sources: Sequence[SegmentSource],
    following: int | None,
    out: ScratchFile,
    *,
    shards: int,
    salt: bytes,
    rules: Rules,
    outcomes: TransactionOutcomes | None,
    old_due: Sequence[bool] = (),
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
        old_due: For a cleaning, one for each source: whether its tombstones of magic 0 and 1 are due. These
            formats have no delete horizon. Empty: none is due.
        block_bytes: Bytes of rows to keep in memory before they are written.
    """
    scan = _Extraction(out, shards, salt, rules, block_bytes)
    scan.run(sources, following, outcomes, old_due, lambda _: None)
    return scan.counts.to_parts()


class _Extraction(KeyScan):
    """A scan that writes its key batches to a file, by shard, instead of inserting them into a map."""

    def __init__(
        self,
        out: ScratchFile,
        shards: int,
        salt: bytes,
        rules: Rules,
        block_bytes: int,
        *,
        by_hash: bool = False,
    ) -> None:
        super().__init__(0, salt, digest_seed_of(salt), rules)
        self._writer = SectionWriter(out, shards, block_bytes, by_hash=by_hash)
        self._words = words_of(salt, self.digest_seed)

    def run(
        self,
        sources: Sequence[SegmentSource],
        following: int | None,
        outcomes: TransactionOutcomes | None,
        old_due: Sequence[bool],
        progress: Callable[[int], None],
        threads: int = 1,
    ) -> None:
        """Read the segments and write the file; `progress` is called with the bytes of each chunk."""
        self.counts.add(sources)
        chunks = self.take(
            sources, outcomes, lambda chunk: 0, lambda chunk: None, old_due=old_due, threads=threads
        )
        with closing(chunks):
            for chunk in chunks:
                if following is not None and chunk.next_offset > following:
                    chunk.raise_status(chunk.rows - 1, kernels.BAD_OFFSET)
                progress(chunk.size_bytes)
        self._writer.finish()

    def words_for(self, chunk: Chunk, max_records: Callable[[Chunk], int]) -> NDArray[np.uint64]:
        return self._words

    def insert(
        self, filler: KeyBatchFiller, chunk: Chunk, segment: int, make_room: Callable[[Chunk], None]
    ) -> None:
        self.store.register(filler.arrays.page_ids[: int(filler.cursor[key_batch.PAGES_MET])], segment)
        self._writer.add(chunk, filler)


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

    `dead_rows`: for each unit the bits of the shard's rows there (`dead_offsets` reads them). `stats`,
    `digests`: a row for each segment, to be added up.
    """

    dead_rows: list[NDArray[np.uint8]]
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
    units: Sequence[ScratchFile],
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
    resolver = _ShardResolver(extents, map_bytes, salt, rules)
    resolver.start(units, shard, shards)
    resolver.row_offsets = {unit.path: [] for unit in units}
    done = resolver.run()
    dead_rows = []
    for unit in units:
        sections = resolver.row_offsets[unit.path]
        dead = [done.dead.mask(first + distances.astype(np.int64)) for first, distances in sections]
        dead_rows.append(np.packbits(np.concatenate([np.empty(0, np.bool_), *dead]), bitorder="little"))
    return ShardResult(
        dead_rows=dead_rows,
        stats=resolver.scan.counts.stats,
        digests=resolver.scan.counts.digests,
        distinct_keys=done.distinct_keys,
        passes=done.passes,
        probes=done.probes,
        map_bytes_used=done.map_bytes_used,
        map_used_ratio=done.map_used_ratio,
        seconds=done.seconds,
    )


def resolve_divided(
    sources: Sequence[SegmentSource],
    out: ScratchFile,
    shards: int,
    *,
    map_bytes: int,
    salt: bytes,
    rules: Rules,
    outcomes: TransactionOutcomes | None = None,
    old_due: Sequence[bool] = (),
    progress: Callable[[int, int], None] | None = None,
    threads: int = 1,
    by_hash: bool = False,
) -> Resolution:
    """Find every dead record of a log whose keys do not fit the map: read the log once, by a scratch file.

    The result is that of a `Resolver`, which has the other arguments. Also raises the errors of `read_index`.

    `out` is an empty file, which gets ROW_BYTES or some more, and the key, of each record. Each of the
    `shards` takes one pass if the map holds its keys.

    With `by_hash` the file gets hashes, HASH_ROW_BYTES or some more of each record, and the result is that of
    a `HashResolver`. Raises HashesUnsure if they do not decide, or if the map does not hold them.
    """
    started = time.perf_counter()
    source_bytes, done_bytes = sum(source.size for source in sources), 0

    def report(chunk_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += chunk_bytes
        if progress is not None:
            progress(done_bytes, source_bytes)

    block_bytes = max(map_bytes // 2, _LEAST_BLOCK_BYTES)
    extraction = _Extraction(out, shards, salt, rules, block_bytes, by_hash=by_hash)
    extraction.run(sources, None, outcomes, old_due, report, threads)
    resolver: _HashShards | _ShardResolver
    if by_hash:
        resolver = _HashShards(map_bytes, salt, rules, extraction)
    else:
        extents = [Extent(each.base_offset, each.next_offset, each.size, each.file) for each in sources]
        resolver = _ShardResolver(extents, map_bytes, salt, rules, extraction)
    del extraction  # frees the bins before the map is made
    scratch_bytes = out.size()
    passes = keys = 0
    for shard in range(shards):
        shard_passes, shard_keys = resolver.resolve(out, shard, shards)
        passes, keys = passes + shard_passes, keys + shard_keys
        if progress is not None:
            resolved_bytes = scratch_bytes * (shard + 1) // shards
            progress(source_bytes + resolved_bytes, source_bytes + scratch_bytes)
    resolution = resolver.finish(passes, keys, time.perf_counter() - started)
    return replace(resolution, scratch_bytes=scratch_bytes)


class _SectionReader:
    """Reads sections, one after another, into one buffer."""

    def __init__(self) -> None:
        self._data = np.empty(SECTION_BYTES + kernels.SLACK, np.uint8)
        self._filler = KeyBatchFiller()

    def read(
        self,
        unit: ScratchFile,
        entry: list[int],
        words: NDArray[np.uint64] | None,
        *,
        with_keyless: bool = True,
    ) -> tuple[NDArray[np.uint8], KeyBatchFiller]:
        """Read the section of an index entry; return its bytes and its key batch, valid until the next call.

        `words` are those of the map; None: the section has hashes. Raises CorruptFileError for a section that
        was changed.
        """
        position, rows, size, crc = entry
        if self._data.size < size + kernels.SLACK:
            self._data = np.empty(size + kernels.SLACK, np.uint8)
        data = self._data[:size]
        if unit.pread_into(data.data, position) != size or _crc_of(data) != crc:
            raise damaged(unit, position)
        if rows > self._filler.arrays.spans.shape[1]:
            self._filler = KeyBatchFiller(rows)
        filler = self._filler
        if words is None:
            status = key_batch.fill_from_hashes(self._data, size, rows, filler.cursor, filler.arrays)
        else:
            status = key_batch.fill_from_rows(
                self._data, size, rows, with_keyless, words, filler.cursor, filler.arrays
            )
        if status != kernels.OK:
            raise damaged(unit, position)
        return self._data, filler


def live_keys(
    unit: ScratchFile, shards: int, dead: DeadBitmaps
) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.int64]]]:
    """Yield the keys of the committed live records in a file that `resolve_divided` has resolved.

    Yields (bytes read, data, spans) for each section; `spans` are those of a `KeyBatch`, with positions in
    `data`. Both are valid until the next section. Raises CorruptFileError for a file that was changed.
    """
    sections = _SectionReader()
    words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
    for shard in range(shards):
        for entry in read_index(unit, shard, shards).tolist():
            data, filler = sections.read(unit, entry, words, with_keyless=False)
            spans = filler.arrays.spans[:, : int(filler.cursor[key_batch.FILLED])]
            yield entry[SIZE], data, spans[:, ~dead.mask(spans[key_batch.OFFSET])]


def dead_offsets(
    unit: ScratchFile, shard: int, shards: int, dead_rows: NDArray[np.uint8]
) -> Iterator[NDArray[np.int64]]:
    """Yield the dead offsets of a shard in a unit, by the bits of its rows, section by section.

    Raises CorruptFileError for a file that was changed, or that has another number of rows.
    """
    entries = read_index(unit, shard, shards)
    rows = int(entries[:, ROWS].sum())
    if dead_rows.size != (rows + 7) // 8:
        raise damaged(unit, 0)
    dead = np.unpackbits(dead_rows, count=rows, bitorder="little").view(np.bool_)
    sections, words = _SectionReader(), np.zeros(key_batch.WORD_FIELDS, np.uint64)
    first = 0
    for entry in entries.tolist():
        end = first + entry[ROWS]
        if dead[first:end].any():
            _, filler = sections.read(unit, entry, words, with_keyless=True)
            yield filler.arrays.spans[key_batch.OFFSET, : entry[ROWS]][dead[first:end]]
        first = end


class _ShardResolver(Resolver):
    """Passes over the sections of one shard after another.

    Args:
        extracted: The scan that read the log in this process: its pages and counts are continued.

    Attributes:
        row_offsets: By the path of a unit, the offsets of its rows, section by section: the first, and the
            distances from it. None: they are not needed.
    """

    growth = 2.0
    row_offsets: dict[str, list[tuple[np.int64, NDArray[Any]]]] | None = None

    def __init__(
        self,
        extents: Sequence[Extent],
        map_bytes: int,
        salt: bytes,
        rules: Rules,
        extracted: KeyScan | None = None,
    ) -> None:
        super().__init__(extents, map_bytes, salt, rules)
        if extracted is not None:
            self.scan.state, self.scan.store = extracted.state, extracted.store
            self.scan.counts = extracted.counts
        self._registered = extracted is not None
        self._sections = _SectionReader()

    def start(self, units: Sequence[ScratchFile], shard: int, shards: int) -> None:
        """Set the shard that `run_passes` resolves, from the files of all units, in order."""
        self.hashes = hash_range(shard, shards)
        self._entries = []
        for unit in units:
            entries = read_index(unit, shard, shards)
            if (np.diff(entries[:, POSITION]) == entries[:-1, SIZE]).all() and len(entries):
                unit.will_read(int(entries[0, POSITION]), int(entries[-1, POSITION] + entries[-1, SIZE]))
            self._entries += [(unit, entry) for entry in entries.tolist()]
        self.total_bytes = sum(entry[SIZE] for _, entry in self._entries)

    def resolve(self, unit: ScratchFile, shard: int, shards: int) -> tuple[int, int]:
        """Resolve a shard of one unit; return its passes and its keys."""
        self.start([unit], shard, shards)
        return self.run_passes() if self.total_bytes else (0, 0)

    def finish(self, passes: int, keys: int, seconds: float) -> Resolution:
        """Return the result of all shards."""
        return self.scan.resolution(passes, keys, seconds)

    def take_all(self, number: int) -> None:
        if number == 1 and self._entries:
            if self.scan.map is None:
                # Most logs have several records of a key. A small map stays in the processor's cache.
                records = sum(entry[ROWS] for _, entry in self._entries)
                slots_for = max(records // _RECORDS_OF_A_KEY, _FEW_RECORDS)
                self.scan.make_map(slots_for, self.total_bytes / records - ROW_BYTES)
            assert self.scan.map is not None
            self.scan.map.start_pass(*self.hashes)
        self.done_bytes = 0
        self.recent.clear()
        for unit, entry in self._entries:
            self._take(unit, entry, first_pass=number == 1)
            self.done_bytes += entry[SIZE]
            assert self.scan.map is not None
            self.recent.append((self.done_bytes, self.scan.map.distinct_keys))

    def _take(self, unit: ScratchFile, entry: list[int], *, first_pass: bool) -> None:
        offset_map = self.scan.map
        assert offset_map is not None
        # Records without a key were counted in the first pass.
        section, filler = self._sections.read(unit, entry, offset_map.words, with_keyless=first_pass)
        count = int(filler.cursor[key_batch.FILLED])
        if not count:
            return
        bases, offsets = self.scan.counts.bases, filler.arrays.spans[key_batch.OFFSET, :count]
        if first_pass and self.row_offsets is not None:
            distances = offsets - offsets[0]
            narrow = distances.astype(np.uint32) if distances[-1] < 1 << 32 else distances
            self.row_offsets[unit.path].append((offsets[0], narrow))
        if not self._registered:
            pages = offsets >> PAGE_BITS
            first = np.flatnonzero(np.diff(pages, prepend=-1))
            segments = np.searchsorted(bases, offsets[first], side="right") - 1
            self.scan.store.register(pages[first], segments.clip(0).astype(np.int32))
        segment = max(int(np.searchsorted(bases, offsets[0], side="right")) - 1, 0)
        table = np.full((1, fields.FIELDS), INT64_MAX)
        table[0, fields.FILE_POSITION] = entry[POSITION]
        self.scan.insert(filler, Chunk(section, section, table, unit.path), segment, self.make_room)


class _HashShards:
    """Resolves the shards of a file of hashes, each from its newest row to its oldest.

    `extracted` is the scan that wrote the file: its pages and counts are continued.
    """

    def __init__(self, map_bytes: int, salt: bytes, rules: Rules, extracted: KeyScan) -> None:
        self._map = HashResolver([], map_bytes, salt, rules)
        self._map.counts = extracted.counts
        pages = extracted.store.bitmaps().page_ids
        bits = np.zeros((max(pages.size, 1), PAGE_WORDS), np.uint64)
        self._dead = DeadBitmaps(pages, np.arange(pages.size, dtype=np.int32), bits)
        self._sections = _SectionReader()

    def resolve(self, unit: ScratchFile, shard: int, shards: int) -> tuple[int, int]:
        """Resolve a shard; return the number of its passes, 0 or 1, and of its keys."""
        index, bases = read_index(unit, shard, shards), self._map.counts.bases
        if not len(index):
            return 0, 0
        self._map.restart(int(index[:, ROWS].sum()))
        for entry in reversed(index.tolist()):
            data, filler = self._sections.read(unit, entry, None)
            last = filler.arrays.spans[key_batch.OFFSET, entry[ROWS] - 1]
            segment = max(int(np.searchsorted(bases, last, side="right")) - 1, 0)
            self._map.settle(data, filler.arrays, entry[ROWS], segment, self._dead)
        return 1, self._map.distinct_keys

    def finish(self, passes: int, keys: int, seconds: float) -> Resolution:
        """Return the result of all shards."""
        return self._map.resolution(self._dead, passes, keys, seconds)


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
