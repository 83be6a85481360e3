"""Read the records of a range of offsets, oldest first: the loop under readers, restores and views.

A short range is decoded in plain Python, so that reading a few records loads no kernel; a long range by
chunks and kernels. Both give the same records. `reads` chooses the segments, and handles those that a rewrite
replaces meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lastword.errors import CorruptBatchError, DataError, FileVanishedError
from lastword.metrics import READ_BYTES
from lastword.partition.reads import read_batches, read_chunks
from lastword.partition.transactions import BatchOutcome, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchHeader, fields_of, payload_of, record_of
from lastword.records.formats import read_records
from lastword.records.record import RawRecord
from lastword.segment.segment import Segment
from lastword.wire import SMALLEST_RECORD_BYTES

if TYPE_CHECKING:
    from lastword.partition.log import PartitionLog
    from lastword.records.chunk import Chunk
    from lastword.records.columns import RecordColumns

PLAIN_BYTES = 16 << 20
PLAIN_BYTES_LOADED = 4 << 10
"""Most bytes of a short range: before the kernels are loaded, and afterwards."""
PLAIN_RECORDS = 100_000
PLAIN_RECORDS_NUMPY = 20_000
"""Most records of a short range before the kernels are loaded: without NumPy, and if the process has it.

Plain Python takes 4 us a record, the kernels 2 us, and their first use as long as this number of records; the
import of NumPy is more than a half of that.
"""
PLAIN_BYTES_REQUESTED = 256 << 10
"""Most bytes of a short range in a bucket, where the kernels' reader has more requests in flight."""
_SAMPLED_BATCHES = 32
NEAR_BYTES = 256 << 10
"""A record near a known position is searched for in this many bytes, which are one request in a bucket."""


def records(
    view: PartitionView,
    start: int,
    end: int,
    *,
    keys: frozenset[bytes] | None = None,
    plain: bool | None = None,
    committed: bool = True,
    follows: bool = False,
) -> Iterator[RawRecord]:
    """Yield records with start <= offset < end, of these `keys` if given, without control records.

    `committed`: without those of aborted transactions; the range must end at or below the last stable
    offset. `plain` True or False forces a way of decoding. `follows`: the records are new ones, and do not
    wait until the kernel of a lookup is loaded. Raises CorruptBatchError and its like where the log is
    damaged.
    """
    if start >= end:
        return iter(())
    if end - start == 1 and keys is None and plain is None and not follows and kernels_loaded():
        record = single(view, start, committed=committed)
        if record is not None:
            return iter((record,))
    chosen = is_short(view, start, end) if plain is None else plain
    outcomes = Outcomes(view, end) if committed else None
    return (_plain if chosen else _bulk)(view, start, end, keys, outcomes)


def single(log: PartitionLog | PartitionView, offset: int, *, committed: bool) -> RawRecord | None:
    """Return the record at an offset by one read; None if the range must be read as others are.

    Loads the kernels. `committed`: also None for a record of a transaction.
    """
    if log.damage is not None or not log.log_start <= offset < log.log_end:
        return None
    log_end = None if log.grows else log.log_end
    found: tuple[RawRecord, int] | None = _lookups().record_at(log, offset, not committed, log_end)
    if found is None:
        return None
    record, size = found
    READ_BYTES.add(size, log.topic)
    return record


@cache
def _lookups() -> ModuleType:
    """Return `lastword.partition.lookups`, which loads NumPy and the kernels."""
    from lastword.partition import lookups

    return lookups


def near(segment: Segment, position: int, offset: int, end: int, topic: str) -> RawRecord | None:
    """Return the record at an offset from a batch that begins at a position or behind it; None: not found.

    None also for a record of a transaction. For a segment in a bucket: `NEAR_BYTES` are one request. Raises
    CorruptBatchError and its like if there are other bytes.

    Args:
        segment: The segment.
        position: Position of a batch.
        offset: The offset.
        end: The segment has records below this offset.
        topic: For metrics.
    """
    segment.handle.pread(NEAR_BYTES, position)  # the handle keeps the bytes for the next reads
    for header in segment.headers(position):
        if header.last_offset < offset:
            continue
        if header.base_offset > offset or header.last_offset >= end or header.control or header.transactional:
            return None
        READ_BYTES.add(header.size, topic)
        return next((record for record in segment.records_of(header) if record.offset == offset), None)
    return None


def columns(
    view: PartitionView, start: int, end: int, *, committed: bool = True
) -> Iterator[tuple[Chunk, RecordColumns]]:
    """Yield the same records as chunks with their columns; each pair is valid until the next."""
    return _columns(view, start, end, Outcomes(view, end) if committed else None)


def _columns(
    view: PartitionView, start: int, end: int, outcomes: Outcomes | None
) -> Iterator[tuple[Chunk, RecordColumns]]:
    from lastword.records.columns import decode_columns

    for chunk in read_chunks(view, start, end, outcomes=outcomes):
        READ_BYTES.add(chunk.size_bytes, view.topic)
        decoded = decode_columns(chunk)
        hidden = outcomes.hidden(chunk) if outcomes is not None else None
        if hidden is not None and hidden.any():
            decoded = decoded.select(~hidden[decoded.row])
        if len(decoded) and (decoded.offset[0] < start or decoded.offset[-1] >= end):
            decoded = decoded.select((decoded.offset >= start) & (decoded.offset < end))
        if len(decoded):
            yield chunk, decoded
        start = max(start, chunk.next_offset)  # a rewrite may put what was read and what was not in one batch


def is_short(view: PartitionView, start: int, end: int) -> bool:
    """Return whether the range is so short that plain Python reads it faster."""
    loaded = _is_loaded("lastword.kernels")
    is_requested = view.files.file_cost_bytes > 0
    left = PLAIN_BYTES_LOADED if loaded else PLAIN_BYTES
    if is_requested:
        left = min(left, PLAIN_BYTES_REQUESTED)
    segments = view.segment_set.between(start, end)
    for segment in segments:
        size = segment.size
        if size > left:
            try:
                first = segment.position_of(start)
                size = segment.end_position_of(end) - first
            except FileVanishedError:
                pass  # rewritten since it was listed: the read lists again, this is only a guess
        left -= size
        if left < 0:
            return False
    if loaded or is_requested:
        return True
    most = PLAIN_RECORDS_NUMPY if _is_loaded("numpy") else PLAIN_RECORDS
    return end - start <= most or estimated_records(segments) <= most


def estimated_records(segments: Sequence[Segment]) -> float:
    """Estimate the records of segments by the first batches of the largest one: cleaning leaves gaps."""
    count = size = 0
    with suppress(DataError, FileVanishedError):  # the read reports it
        largest = max(segments, key=lambda segment: segment.size, default=None)
        for header in islice(() if largest is None else largest.headers(), _SAMPLED_BATCHES):
            count += header.count if header.count >= 0 else header.size // SMALLEST_RECORD_BYTES
            size += header.size
    return count * sum(segment.size for segment in segments) / max(size, 1)


def kernels_loaded() -> bool:
    """Return whether columns can be decoded without loading modules."""
    return _is_loaded("lastword.records.columns")


def _is_loaded(module: str) -> bool:
    return module in sys.modules


def first_end(view: PartitionView, start: int, end: int) -> int:
    """Return the offset behind the first batch of [start, end): at most `end`, which is also that of none."""
    for _, header, _ in read_batches(view, start, end):
        return min(header.next_offset, end)
    return end


def _plain(
    view: PartitionView, start: int, end: int, keys: frozenset[bytes] | None, outcomes: Outcomes | None
) -> Iterator[RawRecord]:
    listed = view.segment_set
    for segment, header, data, reached in _committed_batches(view, start, end, outcomes):
        start = max(start, reached)  # a rewrite may put what was read and what was not in one batch
        for record in read_records(data, header, segment.file, position=0):
            if record.offset < reached and view.segment_set is listed:
                raise _falls(segment, header, record.offset, reached)
            if start <= record.offset < end and (keys is None or record.key in keys):
                yield record


def newest_values(view: PartitionView, start: int, end: int) -> dict[bytes, bytes | None]:
    """Read a range in plain Python; return the newest value of each key, in the order of their offsets.

    The range must end at or below the last stable offset. None: the key's newest record is a tombstone.
    """
    return _newest(view, start, end, Outcomes(view, end), values=True)


def newest_records(
    view: PartitionView, start: int, end: int, *, tombstones: bool, committed: bool
) -> Iterator[RawRecord]:
    """Read a range in plain Python; yield the newest record of each key, in the order of their offsets."""
    outcomes = Outcomes(view, end) if committed else None
    for header, fields in _newest(view, start, end, outcomes, values=False).values():
        record = fields if header is None else record_of(header, fields)
        if tombstones or record.value is not None:
            yield record


def _newest(
    view: PartitionView, start: int, end: int, outcomes: Outcomes | None, *, values: bool
) -> dict[bytes, Any]:
    """Return the newest value of each key, or its header and fields: most records are superseded.

    None and a record stand for header and fields of a batch that is read record by record.
    """
    newest: dict[bytes, Any] = {}
    listed = view.segment_set
    for segment, header, data, reached in _committed_batches(view, start, end, outcomes):
        start = max(start, reached)
        if header.magic == 2 and start <= header.base_offset and header.next_offset <= end:
            payload = payload_of(data, header, segment.file, 0)
            for fields in fields_of(payload, header, segment.file):
                key = fields[3]
                if key is not None:
                    newest.pop(key, None)  # so that the dict stays in the order of offsets
                    newest[key] = fields[4] if values else (header, fields)
            continue
        for record in read_records(data, header, segment.file, position=0):
            if record.offset < reached and view.segment_set is listed:
                raise _falls(segment, header, record.offset, reached)
            if start <= record.offset < end and record.key is not None:
                newest.pop(record.key, None)
                newest[record.key] = record.value if values else (None, record)
    return newest


def _committed_batches(
    view: PartitionView, start: int, end: int, outcomes: Outcomes | None
) -> Iterator[tuple[Segment, BatchHeader, bytes, int]]:
    """Yield the verified batches whose records a read shows, each with the offset that was read before it."""
    reached = -1
    for segment, header, data in read_batches(view, start, end, outcomes=outcomes):
        READ_BYTES.add(header.size, view.topic)
        if header.next_offset <= reached:  # a damaged offset must not pass for what was read already
            raise _falls(segment, header, header.base_offset, reached)
        if not header.control and (outcomes is None or outcomes.of_header(header) is BatchOutcome.COMMITTED):
            yield segment, header, data, reached
        reached = header.next_offset


def _falls(segment: Segment, header: BatchHeader, offset: int, reached: int) -> CorruptBatchError:
    return CorruptBatchError.damage(
        f"offset {offset} follows {reached - 1}", "offsets-fall", segment.file, header.position, offset
    )


def _bulk(
    view: PartitionView, start: int, end: int, keys: frozenset[bytes] | None, outcomes: Outcomes | None
) -> Iterator[RawRecord]:
    from lastword.records.columns import raw_records

    if keys is None:
        for chunk, decoded in _columns(view, start, end, outcomes):
            yield from raw_records(decoded, chunk)
        return
    import numpy as np

    lengths = sorted({len(key) for key in keys})
    for chunk, decoded in _columns(view, start, end, outcomes):
        # Keys of other lengths need not become Python objects.
        for record in raw_records(decoded.select(np.isin(decoded.key_length, lengths)), chunk):
            if record.key in keys:
                yield record
