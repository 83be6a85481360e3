"""Build runs of many records, and merge runs, with NumPy, in bounded memory.

A build collects the entries of a window of records, sorts them by digest, and keeps the newest of each key. A
merge goes through the digests in slices: the entries of a slice are in neighbouring blocks of each run. So
the memory of both is that of a window or a slice, whatever the number of keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels.blake2b import digest_spans, initial_state
from lastword.keys.run import ENTRY_BYTES, PLACED_OFFSETS, PLAIN, Run, RunWriter, Sink, home_blocks
from lastword.partition import scan

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView
    from lastword.resolve.running import RunningResolution
    from lastword.segment.segment import Segment

Entries = NDArray[np.uint8]
"""Entries as rows of 24 bytes."""
WINDOW = 1 << 18
"""Records of a window: 6 MiB, and three times as much to sort them."""
SLICE = 1 << 17
"""About the entries of a slice of a merge: 3 MiB, and four times as much to read, sort and write them."""
SEARCHED = 1 << 16
"""About the entries in which keys are searched at a time: they fit the cache of a processor."""
PLACES_BYTES = 32 << 20
"""The most memory of the positions that a merge gives to its entries."""
_PLACE_BYTES = 8


def collected(
    view: PartitionView, start: int, end: int, salt: bytes, window: int = WINDOW
) -> Iterator[tuple[Entries, int]]:
    """Yield the entries of the committed records in [start, end), sorted, the newest of each key of a window.

    Each with the offset that it reaches.
    """
    parts: list[Entries] = []
    held = 0
    for chunk, columns in scan.columns(view, start, end):
        keyed = columns.select(columns.key_length >= 0)
        if len(keyed):
            is_tombstone = keyed.value_length < 0
            keys = chunk.uncompressed, keyed.offset, is_tombstone, keyed.key_position, keyed.key_length
            parts.append(_entries(salt, *keys))
            held += len(keyed)
        if held >= window:
            reached = int(columns.offset[-1]) + 1
            yield newest_first(parts), reached
            parts, held = [], 0
    if parts:
        yield newest_first(parts), end


def of_map(running: RunningResolution, salt: bytes, window: int = WINDOW) -> Iterator[Entries]:
    """Yield the entries of an exact resolution, sorted, those of about `window` keys at a time."""
    parts: list[Entries] = []
    held = 0
    for records in running.newest_records():
        parts.append(_entries(salt, *records))
        held += len(parts[-1])
        if held >= window:
            yield distinct(parts)
            parts, held = [], 0
    yield distinct(parts or [np.empty((0, ENTRY_BYTES), np.uint8)])


def _entries(
    salt: bytes,
    source: NDArray[np.uint8],
    offset: NDArray[np.int64],
    is_tombstone: NDArray[np.bool_],
    key_position: NDArray[np.int64],
    key_length: NDArray[np.int32],
) -> Entries:
    """Return the entries of records whose keys are in `source`, in their order."""
    entries = np.empty((len(offset), ENTRY_BYTES), np.uint8)
    entries[:, :16] = _digests(salt, source, key_position, key_length).view(np.uint8).reshape(-1, 16)
    words = (offset.astype(np.uint64) << np.uint64(1)) | is_tombstone
    entries[:, 16:] = words.view(np.uint8).reshape(-1, 8)
    return entries


def _digests(
    salt: bytes, source: NDArray[np.uint8], position: NDArray[np.int64], length: NDArray[np.int32]
) -> NDArray[np.uint64]:
    """Return two words for each of the keys in `source`."""
    digests, scratch = np.empty(2 * len(position), np.uint64), np.empty(24, np.uint64)
    status = digest_spans(source, position, length, initial_state(salt), scratch, digests)
    if status != kernels.OK:
        raise ValueError(f"a key is outside its chunk: {status}")
    return digests


def newest_first(parts: Sequence[Entries]) -> Entries:
    """Return the entries of parts in the order of the log, sorted by digest, the newest of each key alone."""
    return distinct([part[::-1] for part in reversed(parts)])


def distinct(parts: Sequence[Entries]) -> Entries:
    """Return entries sorted by digest. If several have a digest, the first of them in `parts` is kept."""
    entries = np.concatenate(parts) if len(parts) != 1 else np.ascontiguousarray(parts[0])
    if not len(entries):
        return entries
    words = entries.view(np.uint64).reshape(-1, 3)
    high, low = words[:, 0].byteswap(), words[:, 1]
    order = np.argsort(high, kind="stable")
    high = high[order]
    same = high[1:] == high[:-1]
    if same.any():
        low = low[order]
        if (low[1:][same] != low[:-1][same]).any():  # digests that are equal in their first half
            order = np.lexsort((words[:, 1], words[:, 0].byteswap()))
            high, low = words[order, 0], words[order, 1]
            same = high[1:] == high[:-1]
        first = np.concatenate(([True], ~(same & (low[1:] == low[:-1]))))
        order = order[first]
    kept: Entries = entries[order]
    return kept


def write(writer: RunWriter, entries: Entries, home: int) -> None:
    """Put sorted entries into a run of `home` blocks."""
    prefix = entries.view(np.uint64).reshape(-1, 3)[:, 0].byteswap() >> np.uint64(32)
    numbers = ((prefix * np.uint64(home)) >> np.uint64(32)).astype(np.int64)
    edges = np.flatnonzero(np.diff(numbers, prepend=-1))
    data = entries.tobytes()
    ends = [*edges[1:].tolist(), len(entries)]
    for number, first, last in zip(numbers[edges].tolist(), edges.tolist(), ends, strict=True):
        writer.put(number, data[first * ENTRY_BYTES : last * ENTRY_BYTES])


def write_run(sink: Sink, entries: Entries, salt: bytes, start: int, end: int) -> int:
    """Write a run of sorted entries; return its bytes."""
    home = home_blocks(len(entries))
    writer = RunWriter(sink, home, salt, new_tag())
    if len(entries):
        write(writer, entries, home)
    return writer.finish(start, end)


class Places:
    """The positions of records in the segments of a view, by their offset indexes.

    The log is divided into cells. Of the indexed batches that begin in one cell the first has an entry here,
    so that all entries take `PLACES_BYTES`. In a small log a cell is so small that each indexed batch has an
    entry; for 256 segments of 1 GiB it has 64 KiB, of the 256 KiB that a lookup reads.
    """

    def __init__(self, view: PartitionView, most_segments: int) -> None:
        """Take the first `most_segments` segments. Reads their offset indexes, one after the other."""
        placed = view.segments[:most_segments]
        self.base = view.log_start
        self.numbers = tuple(segment.id.number for segment in placed)
        ends = [*(segment.base_offset for segment in view.segments[1:]), view.log_end][: len(placed)]
        self._end = ends[-1] if ends else self.base
        cell_bytes = 1 + sum(segment.size for segment in placed) * _PLACE_BYTES // PLACES_BYTES
        most = 1 + sum(segment.size // cell_bytes + 2 for segment in placed)
        starts, positions = np.zeros(most, np.uint32), np.zeros(most, np.int32)
        positions[0], count = -1, 1
        for segment, end in zip(placed, ends, strict=True):
            of_cells = _first_of_cells(segment, end, cell_bytes)
            to = slice(count, count + len(of_cells[0]))
            starts[to], positions[to] = np.maximum(of_cells[0] - self.base, 0), of_cells[1]
            count = to.stop
        self._starts, self._positions = starts[:count], positions[:count]

    def pack(self, entries: Entries) -> Entries:
        """Return entries with a place in each word. Those below the log start are left out."""
        words = entries[:, 16:].copy().view(np.uint64).reshape(-1)
        offsets = (words >> np.uint64(1)).astype(np.int64)
        packed = np.ascontiguousarray(entries[offsets >= self.base])
        words, offsets = words[offsets >= self.base], offsets[offsets >= self.base]
        relative = offsets - self.base
        numbers = np.searchsorted(self._starts, relative.astype(np.uint32), "right") - 1
        positions = np.where(offsets < self._end, self._positions[numbers], -1).astype(np.int64)
        places = relative.astype(np.uint64) << np.uint64(32)
        places |= (positions + 1).astype(np.uint64) << np.uint64(1) | words & np.uint64(1)
        packed[:, 16:] = places.view(np.uint8).reshape(-1, 8)
        return packed


def _first_of_cells(
    segment: Segment, end: int, cell_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return from which offset on a record is read from which position, for each cell of a segment.

    That of the last indexed batch below the offset, or of the next one if these are far apart: then each
    batch is indexed. Offsets from `end` on are another segment's: their entries are damage.
    """
    last_offsets, positions = segment.offset_index.arrays()
    starts = np.concatenate(([segment.base_offset], segment.base_offset + last_offsets + 1))
    begins = np.concatenate((np.zeros(1, np.int64), positions))
    is_far = np.diff(begins, append=0) > scan.NEAR_BYTES // 2
    begins = np.where(is_far, np.append(positions, 0), begins)
    first = np.flatnonzero(np.diff(begins // cell_bytes, prepend=-1))
    first = first[starts[first] < end]
    return starts[first], begins[first]


def merge(
    sink: Sink,
    runs: Sequence[Run],
    salt: bytes,
    *,
    is_whole: bool,
    places: Places | None = None,
    slice_entries: int = SLICE,
) -> int:
    """Write the newest entry of each digest in neighbouring runs, which are given the newest first.

    Args:
        sink: Takes the run.
        runs: The runs.
        salt: Of their digests.
        is_whole: No older run is left, so that tombstones hide nothing and are left out.
        places: Gives the positions of the run; None: it has none.
        slice_entries: About as many entries are in memory at a time.
    """
    slices = max(1, -(-sum(run.entries for run in runs) // slice_entries))
    edges = [(number << 32) // slices for number in range(slices + 1)]
    if places is not None and runs[0].end - places.base >= PLACED_OFFSETS:
        places = None
    writer = None
    home = 0
    for low, high in pairwise(edges):
        entries = distinct([_slice(run, low, high) for run in runs])
        if is_whole:
            entries = entries[(entries[:, 16] & 1) == 0]
        if places is not None:
            entries = places.pack(entries)
        if writer is None:  # digests are uniform, so all slices have about as many entries
            home = home_blocks(int(len(entries) * slices * 1.01) if slices > 1 else len(entries))
            writer = RunWriter(sink, home, salt, new_tag(), PLAIN if places is None else places.base)
        if len(entries):
            write(writer, entries, home)
    assert writer is not None
    return writer.finish(runs[-1].start, runs[0].end)


def digests_of(keys: Sequence[bytes], salt: bytes) -> NDArray[np.uint64]:
    """Return the digests of keys: rows of two words, of which the first begins with the first byte."""
    length = np.fromiter(map(len, keys), np.int32, len(keys))
    position = np.cumsum(length, dtype=np.int64) - length
    source = np.frombuffer(b"".join(keys) + bytes(kernels.SLACK), np.uint8)
    return _digests(salt, source, position, length).reshape(-1, 2)


def find(run: Run, digests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the words of digests in their order, -1 for one without an entry. Reads the whole run.

    Raises:
        CorruptFileError: A block is damaged.
    """
    high, low = digests[:, 0].byteswap(), digests[:, 1]
    order = np.argsort(high)
    words = np.full(len(digests), -1, np.int64)
    slices = max(1, run.entries // SEARCHED)
    edges = [(number << 32) // slices for number in range(slices + 1)]
    cuts = np.searchsorted(high[order] >> np.uint64(32), edges).tolist()
    for (begin, end), (first, last) in zip(pairwise(edges), pairwise(cuts), strict=True):
        if first == last:
            continue
        entries = _slice(run, begin, end).view(np.uint64).reshape(-1, 3)
        heads, wanted = entries[:, 0].byteswap(), order[first:last]
        at, behind = (np.searchsorted(heads, high[wanted], side) for side in ("left", "right"))
        wanted, at = wanted[at < behind], at[at < behind]
        is_whole = entries[at, 1] == low[wanted]
        words[wanted[is_whole]] = entries[at[is_whole], 2].astype(np.int64)
        for number in wanted[~is_whole].tolist():  # an entry whose digest has the same first half
            word = run.find(digests[number].tobytes())
            words[number] = -1 if word is None else word
    return words


def _slice(run: Run, low: int, high: int) -> Entries:
    """Return the entries of a run whose digests begin with a number in [low, high)."""
    first, last = low * run.home >> 32, (high - 1) * run.home >> 32
    data = b"".join(run.span(first, last))
    entries = (
        np.frombuffer(data, np.uint8).reshape(-1, ENTRY_BYTES)
        if data
        else np.empty((0, ENTRY_BYTES), np.uint8)
    )
    prefix = entries.view(np.uint64).reshape(-1, 3)[:, 0].byteswap() >> np.uint64(32)
    inside: Entries = entries[(prefix >= low) & (prefix < high)]
    if run.base != PLAIN and len(inside):
        words = inside[:, 16:].copy().view(np.uint64).reshape(-1)
        words = (words >> np.uint64(32)) + np.uint64(run.base) << np.uint64(1) | words & np.uint64(1)
        inside[:, 16:] = words.view(np.uint8).reshape(-1, 8)
    return inside


def new_tag() -> int:
    """Return a random tag of a run."""
    return int.from_bytes(os.urandom(4), "little")
