"""Find keys of a log that Kafka's cleaner cannot distinguish: different bytes with the same MD5.

Kafka's map stores only the MD5 of a key, so a record of one such key removes all older records of the other.
The check is exact and takes bounded memory:

1. The log is resolved: one record of every key, the newest, stays live. This map compares the keys' bytes.
2. The first 8 bytes of the digests of live keys are sorted. Every committed key occurs once, so two equal
   prefixes belong to two keys. Prefixes that do not fit the memory are sorted in runs, in a scratch file, and
   compared range by range.
3. For equal prefixes only, whole digests and keys are compared.

If the keys do not fit the memory, step 1 reads the log once and writes the keys to a scratch file, and steps
2 and 3 read the keys from this file. Only keys of undecided transactions, which are not in the file, are read
from the end of the log. Else steps 2 and 3 read the log. Both files have no name; without room for them there
are more passes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from lastword.config.tables import DEFAULT_MAP_BYTES
from lastword.errors import LastwordError
from lastword.kernels import key_batch
from lastword.partition.transactions import BatchOutcome, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.columns import decode_columns
from lastword.resolve import DeadBitmaps, Resolution, ScratchPlace, outcomes_of
from lastword.resolve.facts import Rules
from lastword.resolve.shards import damaged
from lastword.resolve.survivors import ScratchFile
from lastword.resolve.whole import LogResolver, StoredKeys
from lastword.values import Value

_ENTRY_BYTES = 24  # a collected prefix, its share of the sorted copy, and temporary Python objects
_PREFIX_BYTES = 8
_ALL = 1 << 64

Keys = Callable[[], Iterator[list[tuple[int, bytes]]]]
"""Starts a walk over the live keys: lists of (offset, key)."""
Digests = dict[bytes, dict[bytes, int]]
"""The keys of each digest, with the offset of their newest record."""


@dataclass(frozen=True, slots=True)
class Md5Collision(Value):
    """Keys of one partition with one MD5 (hex digits), by offset.

    `offsets` are the offsets of their newest records.
    """

    topic: str
    partition: int
    md5: str
    keys: tuple[bytes, ...]
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        offsets = " and ".join(str(offset) for offset in self.offsets)
        return f"{self.topic}-{self.partition}: the keys at offsets {offsets} have one MD5, {self.md5}"


@dataclass(frozen=True, slots=True)
class Md5Check(Value):
    """The number of compared keys, of passes over the log and of bytes read, and the collisions."""

    keys: int
    passes: int
    read_bytes: int
    collisions: tuple[Md5Collision, ...]


def md5_collisions(
    view: PartitionView,
    *,
    memory_bytes: int = DEFAULT_MAP_BYTES,
    progress: Callable[[int], None] | None = None,
) -> Md5Check:
    """Find all collisions of a log.

    Args:
        view: The partition.
        memory_bytes: Memory budget.
        progress: Receives the bytes read in the current pass.

    Raises:
        DataError: The log is damaged.
        FileVanishedError: A cleaning replaced files meanwhile.
    """
    log = _LogKeys(view, progress)
    size = log.size
    place = ScratchPlace.for_read(view.directory)
    compared: list[Digests] = []

    def compare(keys: Keys, resolution: Resolution) -> None:
        compared.append(_compared(keys, _live_records(resolution), memory_bytes, place))

    def compare_stored(resolution: Resolution, stored: StoredKeys) -> None:
        undecided = _live_records(resolution) > resolution.distinct_keys
        compare(partial(log.stored, stored, undecided), resolution)

    resolver = LogResolver(
        view.segments,
        place,
        None if progress is None else lambda done, _: progress(min(done, size)),
        None,
        map_bytes=memory_bytes,
        salt=os.urandom(16),
        rules=Rules(),
        outcomes=Outcomes(view, view.log_end),
    )
    resolution = resolver.run(use_stored=compare_stored)
    if not compared:
        compare(partial(log.live, resolution.dead), resolution)
    collisions = [
        Md5Collision(view.topic, view.partition, digest.hex(), *_by_offset(keys))
        for digest, keys in compared[0].items()
        if len(keys) > 1
    ]
    collisions.sort(key=lambda collision: collision.offsets)
    passes = log.passes + (1 if resolution.scratch_bytes else resolution.passes)
    return Md5Check(
        resolution.distinct_keys,
        passes,
        resolver.given_up_bytes + size * passes + log.end_bytes,
        tuple(collisions),
    )


def _live_records(resolution: Resolution) -> int:
    """Return the number of keys, and of the records of undecided transactions, which have no key's place."""
    dead = sum(segment.dead_records for segment in resolution.segments)
    return resolution.records - resolution.keyless - dead


def _by_offset(keys: dict[bytes, int]) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    rows = sorted(keys.items(), key=lambda item: item[1])
    return tuple(key for key, _ in rows), tuple(offset for _, offset in rows)


class _LogKeys:
    """Walks over the keys of the live records of a log.

    Attributes:
        size: Bytes of the log.
        passes: Walks over the whole log.
        end_bytes: Bytes that were read for keys of undecided transactions only.
    """

    def __init__(self, view: PartitionView, progress: Callable[[int], None] | None) -> None:
        self.size = view.segment_set.size
        self.passes = 0
        self.end_bytes = 0
        self._view = view
        self._progress = progress

    def live(self, dead: DeadBitmaps) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the live keys of each chunk of the log."""
        self.passes += 1
        done = 0
        for segment in self._view.segments:
            for chunk in segment.chunk_reader():
                columns = decode_columns(chunk)
                columns = columns.select((columns.key_length >= 0) & ~dead.mask(columns.offset))
                yield _pairs(chunk.uncompressed, columns.offset, columns.key_position, columns.key_length)
                done += chunk.size_bytes
                if self._progress is not None:
                    self._progress(done)

    def stored(self, stored: StoredKeys, undecided: bool) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the live keys of each section of a scratch file; then those that are undecided."""
        done = 0
        for size, data, spans in stored():
            yield _pairs(
                data, spans[key_batch.OFFSET], spans[key_batch.KEY_POSITION], spans[key_batch.KEY_LENGTH]
            )
            done += size
            if self._progress is not None:
                self._progress(min(done, self.size))
        if undecided:
            yield from self._undecided()

    def _undecided(self) -> Iterator[list[tuple[int, bytes]]]:
        view, start = self._view, self._view.stable_offset
        outcomes = Outcomes(view, view.log_end)
        for segment in view.segment_set.starting_at(start):
            first = segment.position_of(start)
            for chunk in segment.chunk_reader(first):
                self.end_bytes += chunk.size_bytes
                undecided = outcomes_of(chunk, outcomes) == BatchOutcome.UNDECIDED
                if undecided.any():
                    columns = decode_columns(chunk)
                    columns = columns.select((columns.key_length >= 0) & undecided[columns.row])
                    yield _pairs(chunk.uncompressed, columns.offset, columns.key_position, columns.key_length)


def _pairs(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], positions: NDArray[np.int64], lengths: NDArray[Any]
) -> list[tuple[int, bytes]]:
    """Return (offset, key) of each record."""
    rows = zip(offsets.tolist(), positions.tolist(), (positions + lengths).tolist(), strict=True)
    return [(offset, data[start:end].tobytes()) for offset, start, end in rows]


def _digest(key: bytes) -> bytes:
    return hashlib.md5(key, usedforsecurity=False).digest()


def _compared(keys: Keys, most_keys: int, memory_bytes: int, place: ScratchPlace) -> Digests:
    """Return the keys of each digest whose prefix two of `keys` share. There are at most `most_keys` keys."""
    shared_prefixes = _all_shared(keys, most_keys, memory_bytes, place)
    digests: Digests = {}
    for pairs in keys() if shared_prefixes else ():
        for offset, key in pairs:
            digest = _digest(key)
            if int.from_bytes(digest[:_PREFIX_BYTES], "big") in shared_prefixes:
                same = digests.setdefault(digest, {})
                same[key] = max(offset, same.get(key, offset))
    return digests


def _all_shared(keys: Keys, most_keys: int, memory_bytes: int, place: ScratchPlace) -> set[int]:
    """Return the prefixes that two keys share: from runs in a scratch file, or in a pass for each range."""
    parts = max(1, -(-most_keys * _ENTRY_BYTES // memory_bytes))
    edges = [part * _ALL // parts for part in range(parts + 1)]
    if parts > 1 and most_keys * _PREFIX_BYTES <= place.free_bytes() // 2:
        path = ""
        try:
            with place.open() as out:
                path = out.path
                return _shared_in_runs(keys, edges, max(memory_bytes // _ENTRY_BYTES, 1), out)
        except LastwordError as error:
            if path and error.file != path:
                raise
    shared: set[int] = set()
    for first, end in pairwise(edges):
        low, high = np.uint64(first), np.uint64(end - 1)
        shared |= _shared([part[(part >= low) & (part <= high)] for part in _prefixes(keys)])
    return shared


def _prefixes(keys: Keys) -> Iterator[NDArray[np.uint64]]:
    for pairs in keys():
        joined = b"".join([_digest(key)[:_PREFIX_BYTES] for _, key in pairs])
        yield np.frombuffer(joined, ">u8").astype(np.uint64)


def _shared(parts: list[NDArray[np.uint64]]) -> set[int]:
    """Return the numbers that occur twice. Empties `parts`."""
    if not parts:
        return set()
    prefixes = np.concatenate(parts)
    parts.clear()
    prefixes.sort()
    return set(prefixes[1:][prefixes[1:] == prefixes[:-1]].tolist())


def _shared_in_runs(keys: Keys, edges: list[int], run_keys: int, out: ScratchFile) -> set[int]:
    """Write all prefixes to `out` in sorted runs, and compare them range by range.

    Args:
        keys: The keys.
        edges: The borders of the ranges: each fits the memory.
        run_keys: About the prefixes of a run.
        out: An empty file.

    Raises:
        CorruptFileError: The file was changed.
    """
    borders = np.array(edges[1:-1], np.uint64)
    runs: list[list[tuple[int, int, int]]] = []  # (position, bytes, checksum) of each range of each run
    waiting: list[NDArray[np.uint64]] = []
    count = 0

    def write() -> None:
        run = np.sort(np.concatenate(waiting))
        ranges = [part.tobytes() for part in np.split(run, np.searchsorted(run, borders))]
        runs.append([(out.append(part), len(part), crc32c(part)) for part in ranges])

    for prefixes in _prefixes(keys):
        waiting.append(prefixes)
        count += prefixes.size
        if count >= run_keys:
            write()
            waiting, count = [], 0
    if waiting:
        write()
    shared: set[int] = set()
    for ranges in zip(*runs, strict=True):
        parts = []
        for position, size, crc in ranges:
            data = out.pread(size, position)
            if crc32c(data) != crc:
                raise damaged(out, position)
            parts.append(np.frombuffer(data, np.uint64))
        shared |= _shared(parts)
    return shared
