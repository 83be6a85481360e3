"""Rewrite a group of segments into one, by the dead bitmaps; no key is read.

Chunk by chunk of verified batches: a batch without dead records is copied byte for byte, one with dead
records only is left out, the others are cut. A batch keeps its base and last offset, codec, producer and
leader epoch. Its largest timestamp is computed again (create time), and it gets a delete horizon when a
tombstone survives its first cleaning.

Survivors of neighbouring batches are joined into one batch, of at most about `output.BATCH_BYTES` of
uncompressed records: small batches compress badly and cost a header each. Only batches without a difference
in what a batch stores once for all its records are joined, and never batches of producers, transactions or
control records (`kernels.repack`). A batch that lost nothing is joined only if it is small, with less than
half of that size; so a joined batch is left alone afterwards.

Two kinds of batch stay at least as a header of 61 bytes: the last one of the group, so that the file covers
its range of offsets, and the last one of each producer, whose sequence the log must keep until it forgets a
silent producer (`producer.id.expiration.ms`). `transactions` decides about control batches.

Entries of magic 0 and 1 keep magic and codec. A compressed one is cut inside. These formats have no empty
batch, so nothing takes the place of a dropped entry: the output ends where its last survivor does, and the
next segment's base covers the rest.

A chunk whose survivors the scan has kept (`resolve.survivors`) is not read again. It takes the same way, and
gives the same bytes.

Memory: one chunk in, one output buffer out, whatever the size of the group. With a second thread it is
`records.pipeline.SLOTS` chunks and two buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lastword.cleaner.engine.certificate import OutputSums, Rewritten, Sums, sums_of
from lastword.cleaner.engine.output import OutputSegment, Writer
from lastword.cleaner.engine.transactions import NOTHING, TransactionFacts, is_forgotten
from lastword.cleaner.policy.groups import SegmentGroup
from lastword.cleaner.policy.plan import Plan
from lastword.kernels import table as fields
from lastword.kernels.repack import AS_BITS, DROP, RETAIN, SET_HORIZON
from lastword.records.chunk import SCAN_BYTES, Chunk
from lastword.records.pipeline import in_slots, prepared
from lastword.resolve import Resolution, SegmentFacts
from lastword.resolve.survivors import NO_BEFORE, NOTHING_DEAD, KeptChunk, Survivors
from lastword.segment.segment import Segment
from lastword.wire import CONTROL_BIT, INT64_MAX

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class _SourceChunk:
    """A chunk of a source with the results of its inspection.

    Attributes:
        horizon_ms: Delete horizon for its tombstones without one; -1: none.
        sums: Over its survivors.
        retain: One uint8 per batch: what to do with it, other than by its bits.
        kept: The chunk's dead records were left out by the scan; None: all are there.
    """

    chunk: Chunk
    horizon_ms: int
    kept: KeptChunk | None = None
    sums: Sums = field(default_factory=lambda: Sums())
    retain: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))


def rewrite(
    group: SegmentGroup,
    sources: Sequence[Segment],
    resolution: Resolution,
    plan: Plan,
    output: OutputSegment | None,
    progress: Callable[[int], None],
    transactions: TransactionFacts = NOTHING,
    second: Executor | None = None,
    producers: Mapping[int, int] | None = None,
    survivors: Survivors | None = None,
) -> Rewritten:
    """Write the survivors of `group` to `output`; None only counts, to the byte.

    Args:
        group: The segments to rewrite.
        sources: The segments below the limit.
        resolution: Their counts, and the dead bitmaps.
        plan: The plan of the cleaning.
        output: The new segment, or None.
        progress: Called with the bytes read, chunk by chunk; may raise to stop.
        transactions: Which control batches go.
        second: A thread that reads, verifies and decompresses ahead; the result is the same.
        producers: Result of `last_of_producers` for the resolution, if several groups are rewritten.
        survivors: What the scan kept of the sources; the rest is read again.

    Raises:
        CorruptBatchError: A source does not match its checksums.
    """
    retained = last_of_producers(resolution.segments) if producers is None else producers
    facts = resolution.segments[group.first : group.last + 1]
    contents = batches = controls = markers = kept_bytes = 0
    certificate = None
    if output is not None:
        certificate = OutputSums(output.file, group.base_offset, output.indexes, resolution.digest_seed)
    ends_with_old = False

    def read(slots: int) -> Iterator[_SourceChunk]:
        for number, segment in enumerate(facts, group.first):
            clocks = segment.tombstones_without_horizon or number in transactions.segments
            horizon_ms = min(plan.now_ms + plan.delete_retention_ms, INT64_MAX) if clocks else -1
            source = sources[number]
            if number == group.first:
                sources[group.last].handle.ends_scan()
            position = 0
            for kept in () if survivors is None else survivors.take(number):
                for chunk in read_again(source, position, kept.start, slots):
                    yield _SourceChunk(chunk, horizon_ms)
                yield _SourceChunk(Chunk(kept.data, kept.data, kept.table, source.file), horizon_ms, kept)
                position = kept.end
            for chunk in read_again(source, position, source.size, slots):
                yield _SourceChunk(chunk, horizon_ms)

    def read_again(source: Segment, start: int, end: int, slots: int) -> Iterator[Chunk]:
        if start < end:
            skip_rows = resolution.dead.wholly_dead
            reader = source.chunk_reader(start, end, chunk_bytes=SCAN_BYTES, verify=True, skip_rows=skip_rows)
            yield from in_slots(reader, slots, verify_later=True)

    def inspect(source_chunk: _SourceChunk) -> None:
        chunk = source_chunk.chunk
        chunk.verify()
        chunk.decompress()
        retain = source_chunk.retain = _retain(chunk, group.next_offset, retained, transactions, plan)
        kept, horizon_ms = source_chunk.kept, source_chunk.horizon_ms
        if kept is None:
            source_chunk.sums = sums_of(chunk, resolution.dead, retain, horizon_ms)
        else:
            sums = sums_of(chunk, NOTHING_DEAD, retain, horizon_ms, kept.before)
            source_chunk.sums = sums._replace(contents=kept.contents)

    with closing(prepared(read, inspect, second)) as chunks:
        appended = None if certificate is None else certificate.take
        writer = Writer(output, resolution.dead, plan.max_message_bytes, chunks.defer, appended)
        for source_chunk in chunks:
            chunk = source_chunk.chunk
            contents += source_chunk.sums.contents
            batches += source_chunk.sums.batches
            controls += source_chunk.sums.controls
            if certificate is not None:
                certificate.allow(chunk.table, source_chunk.sums)
            if chunk.attributes & CONTROL_BIT:
                markers += int(chunk.table[source_chunk.retain == DROP, fields.COUNT].sum())
            kept = source_chunk.kept
            before = NO_BEFORE if kept is None else kept.before
            writer.take(chunk, source_chunk.retain, source_chunk.horizon_ms, before)
            ends_with_old = bool(chunk.table[-1, fields.MAGIC] < 2)
            source_bytes = chunk.size_bytes if kept is None else kept.end - kept.start
            kept_bytes += source_bytes if kept is not None else 0
            progress(source_bytes)
        writer.flush()
        chunks.drain()
    return Rewritten(
        size_bytes=writer.written_bytes,
        content_digest=contents & _MASK,
        batch_digest=batches & _MASK,
        tombstones=writer.tombstones(sum(f.tombstones for f in facts)),
        next_offset=max(writer.next_offset, group.base_offset) if ends_with_old else group.next_offset,
        control_digest=controls & _MASK,
        markers=markers,
        written=None if certificate is None else certificate.certified(),
        kept_bytes=kept_bytes,
    )


def last_of_producers(facts: Sequence[SegmentFacts]) -> dict[int, int]:
    """Return the last offset of the last data batch of each producer below the limit."""
    last: dict[int, int] = {}
    for segment in facts:
        last.update(segment.last_of_producers)
    return last


def _retain(
    chunk: Chunk, next_offset: int, producers: Mapping[int, int], transactions: TransactionFacts, plan: Plan
) -> NDArray[np.uint8]:
    """Return what the kernel does with each batch of the chunk, other than by its bits."""
    last_offsets = chunk.table[:, fields.LAST_OFFSET]
    retain = np.full(chunk.rows, AS_BITS, np.uint8)
    if not producers and not chunk.attributes & CONTROL_BIT:
        if last_offsets[-1] == next_offset - 1:  # no other batch ends there: offsets ascend
            retain[-1] = RETAIN
        return retain
    control = (chunk.table[:, fields.ATTRIBUTES] & CONTROL_BIT) != 0
    at_end = last_offsets == next_offset - 1
    retain[at_end & ~control] = RETAIN
    ids = chunk.table[:, fields.PRODUCER_ID]
    if producers and ids.max() >= 0:
        for row in np.flatnonzero((ids >= 0) & ~control).tolist():
            producer_id = int(ids[row])
            if producers[producer_id] != last_offsets[row]:
                continue
            spoke_ms = max(
                int(chunk.table[row, fields.MAX_TIMESTAMP]), transactions.spoke_ms.get(producer_id, -1)
            )
            if not is_forgotten(producer_id, spoke_ms, plan.now_ms, plan.producer_expiration_ms):
                retain[row] = RETAIN
    for row in np.flatnonzero(control).tolist():
        offset = int(last_offsets[row])
        if offset in transactions.due and not at_end[row]:
            retain[row] = DROP
        elif offset in transactions.without_horizon:
            retain[row] = SET_HORIZON
    return retain
