"""The check before publication: the new segment must hold exactly the sources' live records.

The bitmaps take no part in the first comparison: the scan kept a sum of H(key, offset) over live records, and
subtracted a superseded record with the key of its successor. So a wrong bit, two keys taken for one, a lost
or an extra record all leave a difference. The second compares contents: the CRC of each survivor's bytes with
its offset and timestamp, summed over the sources (whose checksums were verified) and over the new file.
Control batches, which have no keys, have a sum of their own.

The third compares headers. The fields that a batch stores once for all its records (attributes, leader epoch,
producer and sequence, delete horizon) are multiplied into the digests of these records: as they must be
afterwards, computed from the source's header, and as they are in the new file. This costs one product per
batch, and holds however batches are joined. Last offsets and largest timestamps, which joining changes, are
looked up among those of the sources.

The sums over the new file are computed from the bytes of each append, after the append: checksums are
verified, records are decompressed and parsed, as a reader of the file would. The file itself is not read: its
pages would come from the page cache, where the append has just put these bytes. Its size is compared. The
same walk makes the indexes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.cleaner.engine.output import OutputSegment
from lastword.cleaner.engine.report import TombstonesWaiting
from lastword.cleaner.policy.groups import SegmentGroup
from lastword.errors import CertificateError
from lastword.kernels import table as fields
from lastword.kernels.digest import sum_contents, sum_pairs
from lastword.kernels.hashing import digest_seeds
from lastword.kernels.repack import RETAIN
from lastword.records.chunk import Chunk, ChunkReader
from lastword.resolve import DeadBitmaps, Resolution, SegmentSource
from lastword.resolve.hash_map import HashesUnsure
from lastword.resolve.survivors import NO_BEFORE, NOTHING_DEAD
from lastword.segment.bulk_walk import BulkIndexer
from lastword.segment.indexes import IndexBuilder

_MASK = (1 << 64) - 1
_MOST_ODD = 1 << 16
_NO_OFFSETS = np.empty(0, np.int64)


class Sums(NamedTuple):
    """The result of `kernels.digest.sum_contents` for a chunk."""

    contents: int = 0
    batches: int = 0
    controls: int = 0
    ends: NDArray[np.uint8] = np.empty(0, np.uint8)
    largest: NDArray[np.int64] = np.empty(0, np.int64)


def sums_of(
    chunk: Chunk,
    dead: DeadBitmaps,
    retain: NDArray[np.uint8],
    horizon_ms: int,
    before: NDArray[np.int64] = NO_BEFORE,
) -> Sums:
    """Return the sums over the survivors of a chunk by `retain` and the bits. Raises CorruptBatchError.

    `before`: as in a `RepackSource`.
    """
    ends, largest = np.empty(chunk.rows, np.uint8), np.empty(chunk.rows, np.int64)
    contents, batches, controls, _, row, status = sum_contents(
        chunk.uncompressed, chunk.table, before, chunk.rows, dead.arrays, retain, horizon_ms, ends, largest
    )
    if status != kernels.OK:
        chunk.raise_status(row, status)
    return Sums(int(contents), int(batches), int(controls), ends, largest)


@dataclass(frozen=True, slots=True)
class Certified:
    """The sums that sources and output agree on; digests are unsigned 64-bit sums."""

    records: int
    key_offset_digest: int
    content_digest: int
    batch_digest: int
    size_bytes: int
    next_offset: int
    control_digest: int
    strange_ends: int = 0
    strange_timestamps: int = 0


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The claims of a rewrite, which `certify` checks.

    Attributes:
        size_bytes: Bytes of the output.
        content_digest: Sum over the survivors as they are in the sources.
        batch_digest: Sum over the headers of batches as they must be afterwards.
        tombstones: Live tombstones.
        next_offset: The offset after the last batch that the output must hold.
        control_digest: Sum over the control batches that stay.
        markers: Records of the control batches that were removed.
        written: Sums over the bytes that were appended; None: a rewrite that only counts.
        kept_bytes: Bytes of the sources that were not read again.
    """

    size_bytes: int
    content_digest: int
    batch_digest: int
    tombstones: TombstonesWaiting
    next_offset: int
    control_digest: int
    markers: int
    written: Certified | None
    kept_bytes: int = 0


class _AppendedBytes:
    """The bytes of the last append, as the source of a ChunkReader."""

    def __init__(self) -> None:
        self._start = 0
        self._data = memoryview(b"")

    @property
    def end(self) -> int:
        """Return the position behind the bytes."""
        return self._start + len(self._data)

    def put(self, data: memoryview) -> None:
        """Set the bytes that were appended behind those before."""
        self._start, self._data = self.end, data

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Copy from `position` in the file into `buffer`; return the number of bytes."""
        first = position - self._start
        part = self._data[first : first + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


class OutputSums:
    """Sums over an output, append by append; fills its indexes.

    The thread that reads the sources calls `allow`, the thread that appends calls `take`.

    Args:
        file: The output's .log file, for errors.
        base_offset: No batch may start below it.
        indexes: Get an entry for each batch that is due one.
        digest_seed: Seed of the scan's digests.
    """

    def __init__(self, file: str, base_offset: int, indexes: IndexBuilder, digest_seed: int) -> None:
        self._file = file
        self._base_offset = base_offset
        self._seeds = digest_seeds(digest_seed)
        self._indexer = BulkIndexer(indexes)
        self._appended = _AppendedBytes()
        self._reader: ChunkReader | None = None
        self._records = self._pairs = self._contents = self._batches = self._controls = 0
        self._strange_ends = self._strange_timestamps = 0
        self._lock = threading.Lock()
        self._ends: list[NDArray[np.int64]] = []
        self._odd_timestamps: set[int] | None = set()

    def allow(self, table: NDArray[np.int64], sums: Sums) -> None:
        """Allow the last offsets and largest timestamps of a source's chunk, before it is rewritten.

        A joined batch ends where one of its sources did. Its largest timestamp is that of its records; a
        source whose header has another one may pass that on.
        """
        odd = table[:, fields.MAX_TIMESTAMP] != sums.largest
        with self._lock:
            self._ends.append(table[:, fields.LAST_OFFSET][sums.ends != 0])
            if self._odd_timestamps is not None and odd.any():
                self._odd_timestamps.update(table[odd, fields.MAX_TIMESTAMP].tolist())
                if len(self._odd_timestamps) > _MOST_ODD:
                    self._odd_timestamps = None  # a writer that never sets it right: not compared

    def take(self, data: memoryview) -> None:
        """Add the bytes of an append: whole batches. They may change afterwards.

        A wrong checksum or order of offsets raises an error of its own.
        """
        self._appended.put(data)
        if self._reader is None:
            self._reader = ChunkReader(
                self._appended, self._file, 0, self._appended.end, first_offset=self._base_offset
            )
        else:
            self._reader.extend(self._appended.end)
        for chunk in self._reader:
            self._add(chunk)

    def certified(self) -> Certified:
        """Return the sums over all appends, and complete the indexes."""
        self._indexer.finish()
        return Certified(
            records=self._records,
            key_offset_digest=self._pairs & _MASK,
            content_digest=self._contents & _MASK,
            batch_digest=self._batches & _MASK,
            size_bytes=self._appended.end,
            next_offset=self._base_offset if self._reader is None else self._reader.next_offset,
            control_digest=self._controls & _MASK,
            strange_ends=self._strange_ends,
            strange_timestamps=self._strange_timestamps,
        )

    def _add(self, chunk: Chunk) -> None:
        pairs, records, row, status = sum_pairs(chunk.uncompressed, chunk.table, chunk.rows, *self._seeds)
        if status != kernels.OK:
            chunk.raise_status(row, status)
        sums = sums_of(chunk, NOTHING_DEAD, np.full(chunk.rows, RETAIN, np.uint8), -1)
        self._records += int(records)
        self._pairs += int(pairs)
        self._contents += sums.contents
        self._batches += sums.batches
        self._controls += sums.controls
        self._check_edges(chunk.table, sums)
        self._indexer.take(chunk.table)

    def _check_edges(self, table: NDArray[np.int64], sums: Sums) -> None:
        """Count the batches with a last offset or a largest timestamp that was not allowed."""
        offsets = table[:, fields.LAST_OFFSET][sums.ends != 0]
        odd = table[:, fields.MAX_TIMESTAMP] != sums.largest
        with self._lock:
            if offsets.size:
                allowed = np.concatenate(self._ends) if self._ends else _NO_OFFSETS
                reached = np.searchsorted(allowed, offsets, side="right")
                known = reached > 0
                known[known] = allowed[reached[known] - 1] == offsets[known]
                self._strange_ends += int(offsets.size - known.sum())
                self._ends = [allowed[reached[-1] :]]  # later batches end above
            if self._odd_timestamps is not None and odd.any():
                self._strange_timestamps += sum(
                    timestamp not in self._odd_timestamps
                    for timestamp in table[odd, fields.MAX_TIMESTAMP].tolist()
                )


def certify(
    output: OutputSegment,
    rewritten: Rewritten,
    group: SegmentGroup,
    sources: Sequence[SegmentSource],
    resolution: Resolution,
    *,
    by_hash: bool = False,
) -> Certified:
    """Compare what `output` holds with what it must hold.

    Args:
        output: The new segment.
        rewritten: The claims of the rewrite, and the sums over the appended bytes.
        group: The rewritten group.
        sources: The segments below the limit.
        resolution: Their counts and digests.
        by_hash: The scan had hashes in the place of keys.

    Raises:
        CertificateError: Anything differs.
        HashesUnsure: With `by_hash`: only the keys differ, as they do if two keys have one hash.
    """
    certified = rewritten.written
    assert certified is not None
    facts = resolution.segments[group.first : group.last + 1]
    expected = Certified(
        records=sum(segment.live_records for segment in facts),
        key_offset_digest=sum(segment.live_digest for segment in facts) & _MASK,
        content_digest=rewritten.content_digest,
        batch_digest=rewritten.batch_digest,
        size_bytes=output.handle.size(),
        next_offset=rewritten.next_offset,
        control_digest=rewritten.control_digest,
    )
    if certified != expected:
        files = [source.file for source in sources[group.first : group.last + 1]]
        refusal = _refusal(output, certified, expected, files)
        if by_hash and certified == replace(expected, key_offset_digest=certified.key_offset_digest):
            raise HashesUnsure(refusal.message)
        raise refusal
    return certified


def _refusal(
    output: OutputSegment, certified: Certified, expected: Certified, files: list[str]
) -> CertificateError:
    differences = []
    if certified.records != expected.records:
        differences.append(f"{certified.records} records instead of {expected.records}")
    if certified.key_offset_digest != expected.key_offset_digest:
        differences.append("other keys or offsets than the live ones of the sources")
    if certified.content_digest != expected.content_digest:
        differences.append("other contents than those records have in the sources")
    if (
        certified.content_digest == expected.content_digest
        and certified.batch_digest != expected.batch_digest
    ):
        differences.append("other epochs, producers, flags or horizons of batches than they must have")
    if certified.strange_ends:
        differences.append(f"{certified.strange_ends} last offsets that no batch of the sources has")
    if certified.strange_timestamps:
        differences.append(
            f"{certified.strange_timestamps} largest timestamps that no record of the batch has"
        )
    if certified.control_digest != expected.control_digest:
        differences.append("other transaction markers than those that stay")
    if certified.next_offset != expected.next_offset:
        differences.append(f"next offset {certified.next_offset} instead of {expected.next_offset}")
    if certified.size_bytes != expected.size_bytes:
        differences.append(f"{expected.size_bytes} bytes instead of the {certified.size_bytes} appended")
    return CertificateError(
        f"the rewrite of {', '.join(files)} holds {'; '.join(differences)}. Nothing was published",
        remedy="keep the files named here and report: a bug of lastword's",
        file=files[0],
        offset=output.base_offset,
    )
