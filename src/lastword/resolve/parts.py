"""Read a log from its newest chunk to its oldest: each chunk verified, decompressed and parsed, once.

A part of a segment begins at a batch that its index names. An index is not trusted: the batches of a part
must end where the next part begins, down to the first byte of the segment. A log that cannot be read in this
way, because of its formats, its index or damage, is read oldest first.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.files import Handle
from lastword.kernels import key_batch
from lastword.kernels import table as fields
from lastword.kernels.batches import rows_that_fit, walk_batches
from lastword.records.chunk import Chunk, RecordBuffer
from lastword.records.compression import limit_of
from lastword.records.pipeline import prepared, second_thread
from lastword.resolve.facts import (
    Rules,
    SegmentCounts,
    SegmentSource,
    TransactionOutcomes,
    check_order,
    outcomes_of,
)
from lastword.resolve.resolver import KeyBatchFiller
from lastword.wire import CODEC_MASK, CONTROL_BIT, INT64_MAX, TRANSACTIONAL_BIT

PART_BYTES = 1 << 20
PLAIN_PARTS = 4
"""Parts that are read together while batches are not compressed."""
MOST_PART_BYTES = 32 << 20
"""The largest part. A log with a larger batch, or distance of two index entries, is read oldest first."""
_MOST_RECORDS = 1 << 21  # of a chunk: of any batch that is not very odd
_FIRST_ROWS = 1024
_FIRST_RECORDS = 1 << 14


class OldestFirstNeeded(Exception):
    """The log cannot be read from its newest record."""


class PartSource(SegmentSource, Protocol):
    """A segment that is read part by part."""

    @property
    def handle(self) -> Handle:
        """Return the file."""
        ...

    def cuts(self, part_bytes: int) -> list[int]:
        """Return positions from 0 to the end of the file, of batches about `part_bytes` apart."""
        ...


class _Buffers:
    """The arrays of one part, reused for others."""

    def __init__(self) -> None:
        self.raw = np.empty(PART_BYTES + kernels.SLACK, np.uint8)
        self.table: NDArray[np.int64] = np.empty((_FIRST_ROWS, fields.FIELDS), np.int64)
        self.file = ""
        self.records = RecordBuffer("")
        self.filler = KeyBatchFiller(_FIRST_RECORDS)

    def read(self, source: PartSource, start: int, end: int) -> NDArray[np.int64]:
        """Read a part; return the table of its batches."""
        size = end - start
        if size > MOST_PART_BYTES:
            raise OldestFirstNeeded(f"no index of {source.file} divides {size} bytes")
        if size + kernels.SLACK > self.raw.size:
            self.raw = np.empty(size + kernels.SLACK, np.uint8)
        done = 0
        while done < size:
            got = source.handle.pread_into(self.raw.data[done:size], start + done)
            if got <= 0:
                raise OldestFirstNeeded(f"{source.file} is shorter than it was")
            done += got
        rows, used, base = 0, 0, source.base_offset
        while True:
            rows, used, base, status = walk_batches(
                self.raw, used, size, start, base, False, self.table, rows
            )
            if status != kernels.FULL:
                break
            larger = np.empty((4 * rows, fields.FIELDS), np.int64)
            larger[:rows] = self.table
            self.table = larger
        if status != kernels.OK or not rows:
            raise OldestFirstNeeded(f"{source.file} has no whole batches between {start} and {end}")
        return self.table[:rows]

    def divided(self, table: NDArray[np.int64], file: str) -> list[Chunk]:
        """Return the batches that were read as chunks whose records keep to the bound on decompression.

        It is seldom more than one chunk. Each has its own buffer of records.
        """
        chunks: list[Chunk] = []
        if file != self.file:
            self.file, limit_bytes = file, limit_of(file)
            self.records.use_for(file, limit_bytes)
        none = np.empty(0, np.uint8)
        while table.shape[0]:
            rows = table.shape[0]
            coded = bool(np.bitwise_or.reduce(table[:, fields.ATTRIBUTES]) & CODEC_MASK)
            if coded:
                rows = int(rows_that_fit(self.raw, table, rows, none, self.records.limit_bytes))
            chunk = Chunk(self.raw, self.raw, table[:rows], file)
            chunk.unverified = True
            if coded:
                records = RecordBuffer(file) if chunks else self.records
                chunk.compressed = records, int(table[0, fields.BASE_OFFSET])
            chunks.append(chunk)
            table = table[rows:]
        return chunks


@dataclass(slots=True)
class Part:
    """Batches of one part of a segment, read but not decompressed, and the buffers that they use."""

    segment: int
    chunk: Chunk
    outcomes: NDArray[np.uint8]
    filler: KeyBatchFiller
    words: NDArray[np.uint64]

    def prepare(self) -> None:
        """Verify, decompress and parse the batches."""
        chunk, filler = self.chunk, self.filler
        chunk.verify()
        chunk.decompress()
        filler.reserve(chunk, _MOST_RECORDS)
        filler.fill(chunk, self.outcomes, self.words)
        if filler.cursor[key_batch.ROW] < chunk.rows:
            raise OldestFirstNeeded("too many records in one batch")


class PartReader:
    """The chunks of a log, the newest first. Raises OldestFirstNeeded, and errors of a damaged log.

    Attributes:
        counts: Of each segment, what does not depend on keys.
    """

    def __init__(
        self,
        sources: Sequence[PartSource],
        rules: Rules,
        outcomes: TransactionOutcomes | None,
        words: NDArray[np.uint64],
    ) -> None:
        check_order(sources)
        self._sources = sources
        self._rules = rules
        self._outcomes = outcomes
        self._words = words
        self._walked = False
        self.counts = SegmentCounts()
        self.counts.add(sources)

    def parts(self, threads: int) -> Generator[Part]:
        """Yield all chunks, parsed; each is valid until the next one. Close the generator."""
        with (
            second_thread("lastword-resolve", threads) as second,
            closing(prepared(self._read, Part.prepare, second)) as parts,
        ):
            yield from parts

    def _read(self, slots: int) -> Iterator[Part]:
        buffers = cycle([_Buffers() for _ in range(slots)])
        parts = 1  # read together
        above = INT64_MAX  # no batch may end at or above it
        for segment in reversed(range(len(self._sources))):
            source = self._sources[segment]
            for each in self._sources[max(segment - 1, 0) : segment + 1][::-1]:
                each.handle.will_read_back()  # the one that follows, too: a request takes long
            positions = source.cuts(PART_BYTES)
            while len(positions) > 1:
                used = next(buffers)
                end = positions[-1]
                del positions[-min(parts, len(positions) - 1) :]
                start = positions[-1]
                table = used.read(source, start, end)
                if table[:, fields.MAGIC].min() < 2:
                    raise OldestFirstNeeded("messages of magic 0 or 1")
                chunks = used.divided(table, source.file)
                parts = 1 if chunks[0].compressed else PLAIN_PARTS
                for number, chunk in enumerate(reversed(chunks)):
                    filler = used.filler if not number else KeyBatchFiller()
                    yield self._begun(segment, chunk, filler, above)
                    above = int(chunk.table[0, fields.BASE_OFFSET])

    def _begun(self, segment: int, chunk: Chunk, filler: KeyBatchFiller, above: int) -> Part:
        self.counts.count(chunk, segment, above=above)
        if chunk.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) and self._outcomes and not self._walked:
            # The outcomes are those of a walk that begins at the first batch asked for: here at the oldest.
            oldest = np.array([self._sources[0].base_offset])
            self._outcomes.of_batches(np.zeros(1, np.int64), oldest * 0 - 1, oldest, oldest)
            self._walked = True
        outcomes = outcomes_of(chunk, self._outcomes, decided=self._rules.decided)
        filler.start(self._rules, first_pass=True, old_due=False)
        return Part(segment, chunk, outcomes, filler, self._words)
