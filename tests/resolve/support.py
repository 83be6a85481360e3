"""Segments in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lastword.kernels.hashing import seeds
from lastword.records.chunk import BytesSource, Chunk, ChunkReader
from tests.naive.batches import walk


class MemoryLog(BytesSource):
    """The handle of a segment in memory."""

    def will_read_back(self) -> None:
        """Do nothing: everything is in memory."""


class MemorySegment:
    """A SegmentSource over bytes; `chunk_bytes` here overrides the reader's, so that chunks are small."""

    def __init__(
        self, data: bytes, base_offset: int, next_offset: int, chunk_bytes: int | None = None
    ) -> None:
        self.data = data
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size = len(data)
        self.file = f"{base_offset:020d}.log"
        self._chunk_bytes = chunk_bytes

    def chunk_reader(self, *, chunk_bytes: int = 1 << 20, verify: bool = True) -> Iterator[Chunk]:
        size = self._chunk_bytes or chunk_bytes
        return ChunkReader(BytesSource(self.data), self.file, 0, self.size, chunk_bytes=size, verify=verify)

    @property
    def handle(self) -> MemoryLog:
        return MemoryLog(self.data)

    def cuts(self, part_bytes: int) -> list[int]:
        positions = [0]
        for header in walk(self.data)[0]:
            if header.position - positions[-1] >= (self._chunk_bytes or part_bytes):
                positions.append(header.position)
        return [*positions, self.size] if self.size else []


def segments(
    batches: Sequence[bytes], cuts: Sequence[int], chunk_bytes: int | None = None
) -> list[MemorySegment]:
    """Return the batches as consecutive segments; a new segment starts at each index in `cuts`."""
    edges = sorted({0, *(cut for cut in cuts if cut < len(batches))})
    memory_segments = []
    for start, end in zip(edges, [*edges[1:], len(batches)], strict=True):
        data = b"".join(batches[start:end])
        headers = walk(data)[0]
        base = headers[0].base_offset if headers else 0
        after = headers[-1].last_offset + 1 if headers else 0
        memory_segments.append(MemorySegment(data, base, after, chunk_bytes))
    return memory_segments


def colliding_key(salt: bytes, number: int) -> bytes:
    """Return one of 2^64 keys with one hash in a map of this salt.

    The hash multiplies the first word, combined with the second seed, by the second word: by zero here.
    """
    second = int(seeds(salt, b"lastword map")[1])
    return second.to_bytes(8, "little") + number.to_bytes(8, "little") + b"the last sixteen"
