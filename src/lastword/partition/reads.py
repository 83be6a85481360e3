"""Read a range of offsets over segments that may be replaced meanwhile.

The writer's `PartitionLog` and the `PartitionView` without a lock both have a snapshot of segments and a way
to refresh it. A segment that vanished was replaced by one that holds at least the newest record of every key
at the same offsets. So reading continues at the offset that was reached: every record that survives is
yielded once, in order. If the log start was raised above that offset meanwhile, or the log was cut below the
end, records of the range are gone: that is an OffsetOutOfRangeError, not a gap.

For newest values this is not enough: see `moment`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, TypeVar

from lastword.errors import CorruptBatchError, FileVanishedError, OffsetOutOfRangeError
from lastword.files import Files
from lastword.partition.cut import read_note
from lastword.partition.segment_store import SegmentSet
from lastword.records.batch import BatchHeader
from lastword.segment.segment import DEFAULT_CHUNK_BYTES, Segment

if TYPE_CHECKING:
    from lastword.partition.transactions import Outcomes
    from lastword.records.chunk import Chunk
    from lastword.records.record import RawRecord


T = TypeVar("T")
SegmentBatch = tuple[Segment, BatchHeader, bytes]
PartsOf = Callable[[Segment, int | None, int], Iterator[tuple[int, T]]]

ATTEMPTS = 100
"""How often a read begins or goes on after a cleaning has replaced a file that it had listed."""


def read_again(read: Callable[[], T], renew: Callable[[], object] = lambda: None) -> T:
    """Return the result of `read`, which begins again if a cleaning replaced a file that it had listed.

    Args:
        read: Reads one or more logs. It changes nothing, or what it may change again, as a copy does. It
            makes its views, or uses those of `renew`.
        renew: Called before each repetition.

    Raises:
        FileVanishedError: Files were replaced again and again.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(FileVanishedError):
            return read()
        with suppress(FileVanishedError):
            renew()
    return read()


class Readable(Protocol):
    """A log that is open, or a view of one."""

    directory: str

    @property
    def files(self) -> Files:
        """Storage of the notes beside the segments."""

    @property
    def segment_set(self) -> SegmentSet:
        """The segments."""

    @property
    def log_start(self) -> int:
        """First offset that may be read."""

    @property
    def log_end(self) -> int:
        """The offset that the next record gets."""

    @property
    def grows(self) -> bool:
        """The last segment may be appended to meanwhile."""

    @property
    def damage(self) -> CorruptBatchError | None:
        """The error of a read that reaches the end of a log which must end elsewhere."""

    def refresh(self) -> None:
        """Take the segments of now."""


def read_chunks(
    log: Readable,
    start_offset: int,
    end_offset: int | None = None,
    *,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    outcomes: Outcomes | None = None,
) -> Iterator[Chunk]:
    """Return chunks of the batches that may hold records of [start, end) offsets. None: up to the log end.

    The first and the last batch may hold records outside of the range: the caller cuts by offset. A chunk is
    valid until the next one. `outcomes` has its batches when it is yielded.
    """
    end = log.log_end if end_offset is None else end_offset

    def chunks_of(segment: Segment, bound: int | None, offset: int) -> Iterator[tuple[int, Chunk]]:
        for chunk in _chunks_of(segment, bound, offset, end, chunk_bytes):
            _check_bound(segment, bound, chunk.next_offset)
            if outcomes is not None:
                outcomes.hidden(chunk)
            yield chunk.next_offset, chunk

    return _read(log, start_offset, end, chunks_of)


def _read(log: Readable, offset: int, end: int, parts_of: PartsOf[T]) -> Iterator[T]:
    """Yield the parts of each segment in order; go on behind the last one when a segment was replaced.

    `parts_of`: yields each part of a segment, from an offset on, with the offset behind it. Its second
    argument is the bound of the segment's offsets.
    """
    tries, log_start = 0, log.log_start
    while offset < end:
        try:
            for segment, bound in _bounded(log, offset):
                if segment.base_offset >= end:
                    return
                for next_offset, part in parts_of(segment, bound, offset):
                    offset, tries = max(offset, next_offset), 0
                    yield part
            check_reached(log, end)
            return
        except FileVanishedError:
            tries += 1
            if tries > ATTEMPTS:
                raise
            log.refresh()
            _check_ends(log, offset, end, log_start)


def _check_ends(log: Readable, offset: int, end: int, before: int) -> None:
    """Raise OffsetOutOfRangeError if records that the reader was to have are gone.

    The log start, which was at `before`, was raised above the reader's offset, or the log was cut below the
    end of the range.
    """
    if log.log_end < end:
        name = os.path.basename(os.path.normpath(log.directory))
        raise OffsetOutOfRangeError.above(name, end, log.log_end)
    if log.log_start > max(before, offset):
        name = os.path.basename(os.path.normpath(log.directory))
        why = read_note(log.files, log.directory, log.log_start)
        raise OffsetOutOfRangeError.below(name, offset, log.log_start, why)


def check_reached(log: Readable, end: int) -> None:
    """Raise `damage` of a log whose segments were all read, if `end` is above the end that is there."""
    damage = log.damage
    if damage is not None and damage.offset is not None and end > damage.offset:
        raise damage


def _bounded(log: Readable, offset: int) -> Iterator[tuple[Segment, int | None]]:
    """Yield each segment with the bound of its offsets: the next segment's base offset, or the log end.

    No checksum covers a batch's base offset, so the bound finds a wrong one. An empty file whose index has
    entries was emptied. None for a last segment that may be growing.
    """
    segments = log.segment_set.starting_at(offset)
    log_end = None if log.grows else log.log_end
    for at, segment in enumerate(segments):
        closed = at + 1 < len(segments)
        bound = segments[at + 1].base_offset if closed else log_end
        if bound is not None and closed and segment.size == 0 and segment.offset_index.damaged:
            text = f"the file is empty, but its index is not: offsets up to {bound - 1} are lost"
            raise CorruptBatchError.damage(text, "emptied", segment.file, 0, segment.base_offset)
        yield segment, bound


def _check_bound(segment: Segment, bound: int | None, next_offset: int) -> None:
    """Raise CorruptBatchError, which names the batch, if a part of a segment reaches above the bound."""
    if bound is None or next_offset <= bound:
        return
    for header in segment.headers():
        if header.next_offset > bound:
            text = (
                f"offsets {header.base_offset}-{header.last_offset} do not belong here: "
                f"what follows begins with {bound}"
            )
            raise CorruptBatchError.damage(
                text, "offsets-fall", segment.file, header.position, header.base_offset
            )


def _chunks_of(
    segment: Segment, bound: int | None, start: int, end: int, chunk_bytes: int
) -> Iterator[Chunk]:
    first = segment.position_of(start)
    # A segment below the end is read to its last byte: a damaged offset must not hide a batch.
    last = segment.size if bound is not None and bound <= end else segment.end_position_of(end)
    if first >= last:
        return iter(())
    return segment.chunk_reader(first, last, chunk_bytes=chunk_bytes)


def read_batches(
    log: Readable, start_offset: int, end_offset: int | None = None, *, outcomes: Outcomes | None = None
) -> Iterator[SegmentBatch]:
    """Return batches in plain Python, for a few records: each with its segment, its header and its bytes.

    The header's position is that in the file; its checksum is verified. `outcomes` has it.
    """
    end = log.log_end if end_offset is None else end_offset

    def batches_of(segment: Segment, bound: int | None, offset: int) -> Iterator[tuple[int, SegmentBatch]]:
        for header in segment.headers(segment.position_of(offset)):
            _check_bound(segment, bound, header.next_offset)
            if not segment.begins_below(header, end, offset):
                return
            data = segment.verified_batch(header)
            if outcomes is not None:
                outcomes.of_header(header)
            offset = max(offset, header.next_offset)
            yield header.next_offset, (segment, header, data)

    return _read(log, start_offset, end, batches_of)


class Reads:
    """Read methods of an open log and of a view, which are `Readable`."""

    damage: CorruptBatchError | None = None
    """The error of a read that reaches the end of a log which must end elsewhere."""

    def check_end(self) -> None:
        """Raise `damage` if there is any: a plan or a figure over the whole log would miss records."""
        if self.damage is not None:
            raise self.damage

    chunks = read_chunks
    batches = read_batches

    @property
    def segments(self: Readable) -> tuple[Segment, ...]:
        """The segments."""
        return self.segment_set.segments

    def offset_at(self: Readable, timestamp: int) -> int | None:
        """Return the offset of the first record not older than `timestamp` (ms), or None."""
        record = record_at_time(self, timestamp)
        return None if record is None else max(record.offset, self.log_start)


def record_at_time(log: Readable, timestamp: int) -> RawRecord | None:
    """Return the first record from the log start on that is not older than `timestamp` (ms).

    None if all are older.
    """
    return read_again(lambda: _record_at_time(log, timestamp), log.refresh)


def record_of_largest_time(log: Readable) -> RawRecord | None:
    """Return the first record with the largest timestamp, from the log start on; None if there is none.

    A cleaning leaves batches without records, with their timestamps, and the log start may be inside a batch.
    If no record has the largest timestamp of all segments, the headers are read of those that may have that
    of the record.
    """
    largest = max(
        (segment.largest_timestamp for segment in log.segment_set.starting_at(log.log_start)), default=-1
    )
    if largest < 0:
        return None
    record = record_at_time(log, largest)
    return record or read_again(lambda: _record_of_largest_time(log), log.refresh)


def _record_of_largest_time(log: Readable) -> RawRecord | None:
    start, largest = log.log_start, -1
    segments = list(log.segment_set.starting_at(start))
    for segment in sorted(segments, key=attrgetter("largest_timestamp"), reverse=True):
        if segment.largest_timestamp > largest:
            headers = (h for h in segment.headers(0) if h.count and h.last_offset >= start)
            largest = max(largest, *(_largest_time(segment, header, start) for header in headers), -1)
    return _record_at_time(log, largest) if largest >= 0 else None


def _largest_time(segment: Segment, header: BatchHeader, start: int) -> int:
    """Return the largest timestamp of the records of a batch from `start` on; -1 if it has none."""
    if header.base_offset >= start:
        return header.max_timestamp
    records = segment.records_of(header)
    return max((record.timestamp for record in records if record.offset >= start), default=-1)


def _record_at_time(log: Readable, timestamp: int) -> RawRecord | None:
    start = log.log_start
    for segment in log.segment_set.starting_at(start):
        if segment.largest_timestamp < timestamp:
            continue
        position = segment.position_of_timestamp(timestamp)
        if position is None:
            continue
        if start > segment.base_offset:
            position = max(position, segment.position_of(start))
        for header in segment.headers(position):
            if header.max_timestamp < timestamp:
                continue
            for record in segment.records_of(header):
                if record.timestamp >= timestamp and record.offset >= start:
                    return record
    return None
