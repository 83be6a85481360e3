"""Find keys of a log that Kafka's cleaner cannot distinguish: different bytes with the same MD5.

Kafka's map stores only the MD5 of a key, so a record of one such key removes all older records of the other.
The check is exact and takes bounded memory:

1. The log is resolved: one record of every key, the newest, stays live. This map compares the keys' bytes.
2. The first 8 bytes of the digests of live keys are sorted, in as many passes over ranges of digests as the
   memory budget requires. Every key occurs once, so two equal prefixes belong to two keys.
3. For equal prefixes only, one more pass compares whole digests and keys.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lastword.config.tables import DEFAULT_MAP_BYTES
from lastword.partition.transactions import Outcomes
from lastword.partition.view import PartitionView
from lastword.records.columns import decode_columns
from lastword.resolve import Resolution, resolve
from lastword.values import Value

_ENTRY_BYTES = 24  # a collected prefix, its share of the sorted copy, and temporary Python objects
_ALL = 1 << 64


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
    size = sum(segment.size for segment in view.segments)
    resolution = resolve(
        view.segments,
        map_bytes=memory_bytes,
        salt=os.urandom(16),
        now_ms=None,
        outcomes=Outcomes(view, view.log_end),
        progress=None if progress is None else lambda done, _: progress(min(done, size)),
    )
    walk = _Live(view, resolution, progress)
    parts = max(1, -(-resolution.distinct_keys * _ENTRY_BYTES // memory_bytes))
    shared_prefixes: set[int] = set()
    for part in range(parts):
        shared_prefixes |= _shared_prefixes(walk, part * _ALL // parts, (part + 1) * _ALL // parts)
    keys_by_digest = _compared(walk, shared_prefixes) if shared_prefixes else {}
    collisions = [
        Md5Collision(view.topic, view.partition, digest.hex(), *_by_offset(keys))
        for digest, keys in keys_by_digest.items()
        if len(keys) > 1
    ]
    collisions.sort(key=lambda collision: collision.offsets)
    return Md5Check(
        resolution.distinct_keys,
        resolution.passes + walk.passes,
        size * (resolution.passes + walk.passes),
        tuple(collisions),
    )


def _by_offset(keys: dict[bytes, int]) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    rows = sorted(keys.items(), key=lambda item: item[1])
    return tuple(key for key, _ in rows), tuple(offset for _, offset in rows)


@dataclass(slots=True)
class _Live:
    """Passes over the keys of live records."""

    view: PartitionView
    resolution: Resolution
    progress: Callable[[int], None] | None
    passes: int = 0

    def chunks(self) -> Iterator[list[tuple[int, bytes]]]:
        """Yield a list of (offset, key) for each chunk."""
        self.passes += 1
        done = 0
        for segment in self.view.segments:
            for chunk in segment.chunk_reader():
                columns = decode_columns(chunk)
                live = (columns.key_length >= 0) & ~self.resolution.dead.mask(columns.offset)
                columns = columns.select(live)
                data = chunk.uncompressed
                ends = columns.key_position + columns.key_length
                yield [
                    (offset, data[start:end].tobytes())
                    for offset, start, end in zip(
                        columns.offset.tolist(), columns.key_position.tolist(), ends.tolist(), strict=True
                    )
                ]
                done += chunk.size_bytes
                if self.progress is not None:
                    self.progress(done)


def _digest(key: bytes) -> bytes:
    return hashlib.md5(key, usedforsecurity=False).digest()


def _shared_prefixes(walk: _Live, first: int, end: int) -> set[int]:
    """Return the prefixes in [first, end) that two live keys share."""
    parts: list[NDArray[np.uint64]] = []
    for keys in walk.chunks():
        prefixes = np.frombuffer(b"".join([_digest(key)[:8] for _, key in keys]), ">u8").astype(np.uint64)
        parts.append(prefixes[(prefixes >= np.uint64(first)) & (prefixes <= np.uint64(end - 1))])
    if not parts:
        return set()
    prefixes = np.concatenate(parts)
    parts.clear()
    prefixes.sort()
    return set(prefixes[1:][prefixes[1:] == prefixes[:-1]].tolist())


def _compared(walk: _Live, shared_prefixes: set[int]) -> dict[bytes, dict[bytes, int]]:
    """Return the keys of each digest whose prefix is shared, with the offsets of their newest records."""
    keys_by_digest: dict[bytes, dict[bytes, int]] = {}
    for keys in walk.chunks():
        for offset, key in keys:
            digest = _digest(key)
            if int.from_bytes(digest[:8], "big") in shared_prefixes:
                keys_by_digest.setdefault(digest, {})[key] = offset
    return keys_by_digest
