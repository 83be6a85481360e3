"""`Sketch`: the number of records and of distinct keys in a part of a log, in a fixed amount of memory.

Counts are exact; keys are a theta sketch (of the `datasketches` package): the smallest `2**LG_K` hash values
of all keys. Sketches are values. Two sketches merge into the sketch of both parts, whatever the parts and
the order, and yield how many keys two parts have in common. So each task may sketch its share and send the
bytes, and the driver merges them. The format of `to_bytes` is ours; the keys in it are in Apache's compact
format.

A key is added as a 64-bit hash with a fixed seed, so that sketches of different processes can be merged.
Once a sketch is full, most hash values are above its threshold. They are removed in arrays, so only the few
that count are passed to the package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptFileError
from lastword.kernels.hashing import hash_spans, seeds

if TYPE_CHECKING:
    from lastword.records.chunk import Chunk

LG_K = 14
"""16 384 values: 0.8 % standard error, 128 KiB a sketch."""

_SALT = b"lastword sketch"  # fixed: sketches of different processes must agree about a key's hash
_THETA_SEED = 9001  # the package's default, which other readers of these bytes expect
_HEADER = struct.Struct("<4sB3x6qI")
_MAGIC, _VERSION = b"LWSK", 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated number of keys, with its standard deviation."""

    keys: float
    deviation: float

    @property
    def rounded(self) -> int:
        """Return the estimate as a whole number."""
        return max(0, round(self.keys))


class KeySet:
    """The keys of one part: a theta sketch. Immutable; `KeySet.union` and the like return new sets."""

    __slots__ = ("_sketch",)

    def __init__(self, sketch: Any = None) -> None:
        self._sketch = _theta().update_theta_sketch(LG_K).compact() if sketch is None else sketch

    @property
    def estimate(self) -> Estimate:
        """Return the estimated number of keys."""
        keys = self._sketch.get_estimate()
        if not self._sketch.is_estimation_mode():
            return Estimate(keys, 0.0)
        low, high = self._sketch.get_lower_bound(1), self._sketch.get_upper_bound(1)
        return Estimate(keys, (high - low) / 2)

    @staticmethod
    def union(parts: Iterable[KeySet]) -> KeySet:
        """Return the keys of all parts."""
        union = _theta().theta_union(LG_K)
        for part in parts:
            union.update(part._sketch)
        return KeySet(union.get_result())

    def common(self, other: KeySet) -> KeySet:
        """Return the keys that are in both sets."""
        common = _theta().theta_intersection()
        common.update(self._sketch)
        common.update(other._sketch)
        return KeySet(common.get_result())

    def without(self, other: KeySet) -> KeySet:
        """Return the keys that are not in `other`."""
        return KeySet(_theta().theta_a_not_b().compute(self._sketch, other._sketch))

    def to_bytes(self) -> bytes:
        """Return the serialized sketch."""
        return bytes(self._sketch.serialize())

    @classmethod
    def from_bytes(cls, data: bytes) -> KeySet:
        """Return the set of a serialized sketch."""
        return cls(_theta().compact_theta_sketch.deserialize(data))


@dataclass(slots=True)
class Sketch:
    """Counts and keys of a part of a log.

    Attributes:
        records: All records except control records.
        keyless: Records without a key.
        tombstones: Records with a key and a null value.
        keyed: Records with a key that are not of an aborted or an ongoing transaction.
        keyed_bytes: Their share of the bytes on disk.
        size_bytes: All bytes.
        keys: The distinct keys of `keyed`.
    """

    records: int = 0
    keyless: int = 0
    tombstones: int = 0
    keyed: int = 0
    keyed_bytes: int = 0
    size_bytes: int = 0
    keys: KeySet = field(default_factory=KeySet)

    @staticmethod
    def merged(parts: Iterable[Sketch]) -> Sketch:
        """Merge the sketches of several parts. The parts must not overlap: records are added up."""
        chosen = list(parts)
        return Sketch(
            records=sum(part.records for part in chosen),
            keyless=sum(part.keyless for part in chosen),
            tombstones=sum(part.tombstones for part in chosen),
            keyed=sum(part.keyed for part in chosen),
            keyed_bytes=sum(part.keyed_bytes for part in chosen),
            size_bytes=sum(part.size_bytes for part in chosen),
            keys=KeySet.union(part.keys for part in chosen),
        )

    def to_bytes(self) -> bytes:
        """Encode for another process; `from_bytes` decodes it."""
        keys = self.keys.to_bytes()
        counts = (
            self.records,
            self.keyless,
            self.tombstones,
            self.keyed,
            self.keyed_bytes,
            self.size_bytes,
        )
        checked = _HEADER.pack(_MAGIC, _VERSION, *counts, 0) + keys
        return _HEADER.pack(_MAGIC, _VERSION, *counts, google_crc32c.value(checked)) + keys

    @classmethod
    def from_bytes(cls, data: bytes) -> Sketch:
        """Decode; CorruptFileError if `to_bytes` did not write these bytes."""
        try:
            magic, version, *numbers, crc = _HEADER.unpack_from(data)
        except struct.error:
            raise _corrupt(f"{len(data)} bytes are too few") from None
        if magic != _MAGIC or version != _VERSION:
            raise _corrupt(f"begins with {data[:5]!r}")
        keys = data[_HEADER.size :]
        checked = _HEADER.pack(magic, version, *numbers, 0) + keys
        if google_crc32c.value(checked) != crc:
            raise _corrupt("its checksum is wrong")
        records, keyless, tombstones, keyed, keyed_bytes, size_bytes = numbers
        return cls(records, keyless, tombstones, keyed, keyed_bytes, size_bytes, KeySet.from_bytes(keys))


class Sketcher:
    """Makes a `Sketch` from chunks."""

    def __init__(self) -> None:
        self._theta = _theta().update_theta_sketch(LG_K)
        self._counts = Sketch()
        self._keyed_bytes = 0.0

    def add(self, chunk: Chunk, committed: NDArray[np.bool_] | None = None) -> None:
        """Add a chunk; CorruptBatchError if it is damaged.

        Args:
            chunk: The chunk.
            committed: A bool for each batch: its records are committed. None: all are.
        """
        from lastword.records.columns import decode_columns

        columns = decode_columns(chunk)
        keyed = columns.key_length >= 0
        counts = self._counts
        counts.records += len(columns)
        counts.keyless += len(columns) - int(keyed.sum())
        counts.tombstones += int((keyed & (columns.value_length < 0)).sum())
        counts.size_bytes += chunk.size_bytes
        if committed is not None:
            keyed &= committed[columns.row]
        keyed_count = int(keyed.sum())
        if not keyed_count:
            return
        counts.keyed += keyed_count
        self._keyed_bytes += chunk.size_bytes * keyed_count / len(columns)
        hashes = np.empty(keyed_count, np.uint64)
        status = hash_spans(
            chunk.uncompressed, columns.key_position[keyed], columns.key_length[keyed], *_seeds(), hashes
        )
        if status != kernels.OK:
            chunk.raise_status(0, status)
        self._take(hashes)

    def _take(self, hashes: NDArray[np.uint64]) -> None:
        values = hashes.view(np.int64)
        update = self._theta.update
        low = theta_hashes(values) < np.uint64(self._theta.theta64)
        for value in np.unique(values[low]).tolist():
            update(value)

    def sketch(self) -> Sketch:
        """Return the sketch of all added chunks."""
        counts = self._counts
        return Sketch(
            counts.records,
            counts.keyless,
            counts.tombstones,
            counts.keyed,
            round(self._keyed_bytes),
            counts.size_bytes,
            KeySet(self._theta.compact()),
        )


def theta_hashes(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash 64-bit integers as a theta sketch does.

    The hash is the upper 63 bits of the first half of their 128-bit Murmur3 hash. A sketch keeps the hashes
    below its threshold.
    """
    with np.errstate(over="ignore"):
        word = values.view(np.uint64) * np.uint64(0x87C37B91114253D5)
        word = (word << np.uint64(31) | word >> np.uint64(33)) * np.uint64(0x4CF5AD432745937F)
        second = np.uint64(_THETA_SEED) ^ np.uint64(8)
        first = (word ^ np.uint64(_THETA_SEED) ^ np.uint64(8)) + second
        return (_mixed(first) + _mixed(first + second)) >> np.uint64(1)


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


def _seeds() -> tuple[np.uint64, np.uint64]:
    return seeds(_SALT, b"lastword keys")


def _theta() -> Any:
    import datasketches

    return datasketches


def _corrupt(text: str) -> CorruptFileError:
    return CorruptFileError(f"no sketch: {text}", remedy="make it again from the log")
