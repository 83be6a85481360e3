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
looked up (`rewrite.Edges`).

Reading back also makes the indexes, so they index the bytes that are on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from lastword import kernels
from lastword.cleaner.engine.output import OutputSegment
from lastword.cleaner.engine.rewrite import Edges, Rewritten, Sums, sums_of
from lastword.cleaner.policy.groups import SegmentGroup
from lastword.errors import CertificateError
from lastword.kernels.digest import sum_pairs
from lastword.kernels.hashing import digest_seeds
from lastword.kernels.repack import RETAIN
from lastword.records.chunk import Chunk, ChunkReader
from lastword.records.pipeline import in_slots, prepared
from lastword.resolve import DeadBitmaps, Resolution, SegmentSource
from lastword.segment.bulk_walk import BulkIndexer

_MASK = (1 << 64) - 1
_NOTHING_DEAD = DeadBitmaps.of(np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Certified:
    """The sums that sources and output agree on; digests are unsigned 64-bit sums."""

    records: int
    key_offset_digest: int
    content_digest: int
    batch_digest: int
    next_offset: int
    control_digest: int
    strange_ends: int = 0
    strange_timestamps: int = 0


def certify(
    output: OutputSegment,
    rewritten: Rewritten,
    group: SegmentGroup,
    sources: Sequence[SegmentSource],
    resolution: Resolution,
    check: Callable[[], None] = lambda: None,
    second: Executor | None = None,
) -> Certified:
    """Read `output` back and compare; fills `output.indexes` on the way.

    Args:
        output: The new segment.
        rewritten: The claims of the rewrite.
        group: The rewritten group.
        sources: The segments below the limit.
        resolution: Their counts and digests.
        check: Called after every chunk; may raise to stop.
        second: A thread that helps.

    Raises:
        CertificateError: Anything differs.
    """
    certified = _read_back(output, rewritten.edges, resolution.digest_seed, check, second)
    facts = resolution.segments[group.first : group.last + 1]
    expected = Certified(
        records=sum(segment.live_records for segment in facts),
        key_offset_digest=sum(segment.live_digest for segment in facts) & _MASK,
        content_digest=rewritten.content_digest,
        batch_digest=rewritten.batch_digest,
        next_offset=rewritten.next_offset,
        control_digest=rewritten.control_digest,
    )
    if certified != expected:
        raise _refusal(
            output, certified, expected, [source.file for source in sources[group.first : group.last + 1]]
        )
    return certified


@dataclass(slots=True)
class _Summed:
    """A chunk of the new file, and sums over its records."""

    chunk: Chunk
    records: int = 0
    pairs: int = 0
    sums: Sums = field(default_factory=lambda: Sums())


def _read_back(
    output: OutputSegment, edges: Edges, digest_seed: int, check: Callable[[], None], second: Executor | None
) -> Certified:
    """Return the sums over the new file.

    A wrong checksum or order of offsets there raises an error of its own.
    """
    seeds = digest_seeds(digest_seed)
    reader = ChunkReader(output.handle, output.file, 0, output.handle.size(), first_offset=output.base_offset)

    def read(slots: int) -> Iterator[_Summed]:
        return map(_Summed, in_slots(reader, slots, verify_later=True))

    def sum_up(summed: _Summed) -> None:
        chunk = summed.chunk
        chunk.verify()
        chunk.decompress()
        pairs, records, row, status = sum_pairs(chunk.uncompressed, chunk.table, chunk.rows, *seeds)
        if status != kernels.OK:
            chunk.raise_status(row, status)
        summed.records, summed.pairs = int(records), int(pairs)
        summed.sums = sums_of(chunk, _NOTHING_DEAD, np.full(chunk.rows, RETAIN, np.uint8), -1)

    pairs = contents = records = batches = controls = strange_ends = strange_timestamps = 0
    indexer = BulkIndexer(output.indexes)
    with closing(prepared(read, sum_up, second)) as chunks:
        for summed in chunks:
            records += summed.records
            pairs += summed.pairs
            contents += summed.sums.contents
            batches += summed.sums.batches
            controls += summed.sums.controls
            ends, timestamps = edges.strange(summed.chunk.table, summed.sums.ends, summed.sums.largest)
            strange_ends += ends
            strange_timestamps += timestamps
            indexer.take(summed.chunk.table)
            check()
    indexer.finish()
    return Certified(
        records=records,
        key_offset_digest=pairs & _MASK,
        content_digest=contents & _MASK,
        batch_digest=batches & _MASK,
        next_offset=reader.next_offset,
        control_digest=controls & _MASK,
        strange_ends=strange_ends,
        strange_timestamps=strange_timestamps,
    )


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
    return CertificateError(
        f"the rewrite of {', '.join(files)} holds {'; '.join(differences)}. Nothing was published",
        remedy="keep the files named here and report: a bug of lastword's",
        file=files[0],
        offset=output.base_offset,
    )
