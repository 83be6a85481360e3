"""The file that a unit of a log is extracted to: what the map wants of every record there, shard by shard.

Blocks, one after another; a block holds a *section* for each shard, which is rows (ROW_BYTES each) and then
their keys. Behind the blocks a table says where: int64[shards, blocks, INDEX_FIELDS], then the checksum of
each shard's part of it, and last the numbers of shards and blocks with theirs. Every section has a checksum
too. A row is the hash, the digest, the offset, and one word of size, key length and flags.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptFileError
from lastword.files import Handle
from lastword.kernels import key_batch
from lastword.kernels.columns import gather_spans
from lastword.records.chunk import Chunk
from lastword.resolve.pieces import Piece

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
_GONE = np.uint64(1 << 62)
_LOW = np.uint64((1 << 32) - 1)


class SectionWriter:
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
        count = int(made.cursor[key_batch.FILLED])
        if not count:
            return
        lengths = made.arrays.spans[key_batch.KEY_LENGTH, :count]
        keyless = lengths < 0
        number = np.uint64(self._shards)
        shard = (((made.arrays.hashes[0, :count] >> np.uint64(32)) * number) >> np.uint64(32)).astype(
            np.uint16
        )
        shard[keyless] = (made.arrays.spans[key_batch.OFFSET, :count][keyless] % self._shards).astype(
            np.uint16
        )
        order = np.argsort(shard, kind="stable")
        key_lengths = np.where(keyless, 0, lengths)[order]
        starts = np.zeros(count + 1, np.int32)
        keys = np.empty(int(key_lengths.sum()) + kernels.SLACK, np.uint8)
        nothing = np.empty(0, np.uint8)
        places = np.where(keyless, 0, made.arrays.spans[key_batch.KEY_POSITION, :count])[order]
        sizes = key_lengths.astype(np.int32)
        if gather_spans(chunk.uncompressed, places, sizes, starts, keys, nothing) != kernels.OK:
            raise ValueError("a key lies outside its chunk")
        rows = np.empty((count, 4), np.uint64)
        rows[:, 0] = made.arrays.hashes[0, :count][order]
        rows[:, 1] = made.arrays.hashes[1, :count][order]
        rows[:, 2] = made.arrays.spans[key_batch.OFFSET, :count][order].view(np.uint64)
        sizes_and_flags = made.arrays.spans[key_batch.SIZE, :count][order].view(np.uint64)
        rows[:, 3] = (sizes_and_flags & _LOW) | (key_lengths.astype(np.uint64) << _LENGTH)
        for flag, word in (
            (keyless[order], _KEYLESS),
            ((sizes_and_flags & np.uint64(key_batch.ABORTED)) != 0, _ABORTED),
            ((sizes_and_flags & np.uint64(key_batch.DEAD_KEYLESS)) != 0, _GONE),
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


class Section(NamedTuple):
    """Records of one shard, in their order.

    hashes         uint64[records, 2], hash and digest of the key
    offsets        int64
    sizes          int64, with the flags of a `Piece`
    key_positions  int64, in `keys`; key_lengths: int64, -1 for a record without a key
    keys           uint8, with slack behind them
    """

    hashes: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    key_positions: NDArray[np.int64]
    key_lengths: NDArray[np.int64]
    keys: NDArray[np.uint8]

    def with_keys(self) -> Section:
        """Without the records that have no key."""
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
    """Where a shard's sections are, a row each. CorruptFileError for a file that is not as it was written."""
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


def read_section(unit: Handle, entry: NDArray[np.int64]) -> Section:
    """The section that a row of the index tells of. Raises what `read_index` raises."""
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
    sizes[(word & _GONE) != 0] |= key_batch.DEAD_KEYLESS
    offsets = np.ascontiguousarray(rows[:, 2]).view(np.int64)
    return Section(rows[:, :2], offsets, sizes, positions, lengths, data[ROW_BYTES * count :])


def _damaged(unit: Handle, position: int) -> CorruptFileError:
    return CorruptFileError(
        "a scratch file of a cleaning is not as it was written",
        remedy="clean again: it starts anew",
        file=unit.path,
        position=position,
    )
