"""Look up many offsets together: their positions, and their records, each batch read and verified once.

The offsets are sorted; one search in the index of each segment finds the entries around them. Only the
stretches between these entries are read, one after another into one buffer, and decoded by the kernels. An
index is not trusted: a lookup is complete if a valid batch covers the offset, or two neighbouring batches
leave it out. Other offsets are searched the slow way, which begins at an entry that was checked.

A single offset takes a shorter way (`record_at`): a bisection of the segments and another of the index find
the stretch, one read fetches it, one kernel verifies its batches, and another finds the record.

Loads NumPy and the kernels: imported where many offsets are looked up.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lastword.errors import DataError, FileVanishedError
from lastword.files import Handle
from lastword.kernels import OK, SLACK
from lastword.kernels import table as fields
from lastword.kernels.batches import walk_batches
from lastword.kernels.columns import HEADER_COUNT, RECORD_FIELDS, find_plain, find_record
from lastword.kernels.lz4 import decompress_lz4_rows
from lastword.metrics import READ_BYTES
from lastword.partition.reads import Readable, read_again, read_batches
from lastword.partition.transactions import BatchOutcome, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.batch import payload_of, read_header
from lastword.records.chunk import CHUNK_BYTES, Chunk, ChunkReader
from lastword.records.columns import decode_columns, raw_records
from lastword.records.formats import read_records
from lastword.records.record import CREATE_TIME, LOG_APPEND_TIME, RawRecord, raw_record
from lastword.segment.segment import Segment
from lastword.wire import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_BIT,
    TRANSACTIONAL_BIT,
)

Int64s = NDArray[np.int64]

_LARGE_STEP_BYTES = 8192


def positions_of(log: Readable, offsets: Sequence[int] | Int64s) -> tuple[Int64s, Int64s]:
    """Return for each offset the number of its segment in `log.segment_set`, and the position to read from.

    Reads the indexes alone. -1 and 0 for an offset below the first segment.
    """
    wanted = np.asarray(offsets, np.int64)
    segments = log.segment_set
    bases = np.array([segment.base_offset for segment in segments], np.int64)
    numbers = np.searchsorted(bases, wanted, "right") - 1
    positions = np.zeros(wanted.size, np.int64)
    if len(segments) == 1:
        positions = segments[0].offset_index.positions_of(wanted)
    else:
        for number in np.unique(numbers[numbers >= 0]).tolist():
            in_segment = numbers == number
            positions[in_segment] = segments[number].offset_index.positions_of(wanted[in_segment])
    positions[numbers < 0] = 0
    return numbers, positions


def records_at(
    log: PartitionView, offsets: Sequence[int] | Int64s, *, committed: bool = False
) -> list[RawRecord | None]:
    """Return the record at each offset, in the given order.

    None for a gap that a cleaning left, a control record, or an offset outside the log. `committed`: also
    None for a record of an aborted transaction, or from the last stable offset on. The checksum of each batch
    that is read is verified: CorruptBatchError.
    """
    wanted, inverse = np.unique(np.asarray(offsets, np.int64), return_inverse=True)
    search = _Search(log, committed)

    def find() -> None:
        end = min(log.stable_offset, log.log_end) if committed else log.log_end
        search.find(wanted[(wanted >= log.log_start) & (wanted < end)], end)

    read_again(find, log.refresh)
    each = [search.records.get(offset) for offset in wanted.tolist()]
    return [each[number] for number in inverse.tolist()]


class _Search:
    """A search for the records at many offsets of a log, which are collected by offset in `records`."""

    def __init__(self, log: PartitionView, committed: bool) -> None:
        self.records: dict[int, RawRecord] = {}
        self._log = log
        self._committed = committed
        self._outcomes: Outcomes | None = None

    def find(self, wanted: Int64s, end: int) -> None:
        """Find the records at offsets that rise, all below `end`."""
        segments = self._log.segment_set
        if not wanted.size or not len(segments):
            return
        bases = np.array([segment.base_offset for segment in segments], np.int64)
        if self._committed:
            # A stretch may begin before its first wanted offset, but in the same segment.
            first = max(int(np.searchsorted(bases, wanted[0], "right")) - 1, 0)
            self._outcomes = Outcomes(self._log, end, start=int(bases[first]))
        cuts = [*np.searchsorted(wanted, bases).tolist(), wanted.size]
        for number, segment in enumerate(segments):
            left = wanted[cuts[number] : cuts[number + 1]]
            size = segment.size
            if left.size and size:
                steps = _Index(segment, size)
                bound = segments[number + 1].base_offset if number + 1 < len(segments) else None
                for back in (0, 1) if steps.are_large else (1,):
                    try:
                        left = self._read(segment, steps, left, back, bound)
                    except DataError:
                        break  # `_find_single` raises the error if the damage hits a wanted record
                    if not left.size:
                        break
            for offset in left.tolist():
                self._find_single(offset)

    def _find_single(self, offset: int) -> None:
        for segment, header, data in read_batches(self._log, offset, offset + 1):
            READ_BYTES.add(len(data), self._log.topic)
            outcomes = self._outcomes
            if header.control or (
                outcomes is not None and outcomes.of_header(header) is not BatchOutcome.COMMITTED
            ):
                continue
            for record in read_records(data, header, segment.file, position=0):
                if record.offset == offset:
                    self.records[offset] = record

    def _read(self, segment: Segment, steps: _Index, wanted: Int64s, back: int, bound: int | None) -> Int64s:
        """Read the stretches for these offsets and collect their records.

        Returns:
            The offsets that the valid batches neither cover nor leave out; all of them if the file holds
            offsets that are not below `bound`.
        """
        begins, ends = steps.of(wanted, back)
        source = _Stretches(segment.handle, begins, ends)
        end = source.joints[-1]
        rows: list[Int64s] = []
        kept: dict[int, RawRecord] = {}
        for chunk in ChunkReader(source, segment.file, 0, end, chunk_bytes=min(end, CHUNK_BYTES)):
            rows.append(chunk.table[:, (fields.BASE_OFFSET, fields.LAST_OFFSET, fields.FILE_POSITION)])
            READ_BYTES.add(chunk.size_bytes, self._log.topic)
            self._keep(chunk, wanted, kept)
        first, last, position = np.concatenate(rows).T
        if bound is not None and last[-1] >= bound:
            return wanted
        self.records |= kept
        row = np.searchsorted(last, wanted)
        at = np.minimum(row, last.size - 1)
        covered = (row < last.size) & (first[at] <= wanted)
        # Left out: between two neighbours, before the file's first batch, or behind its last one.
        between = (row > 0) & (row < last.size) & ~np.isin(position, source.joints)[at]
        before = (row == 0) & (begins[0] == 0)
        behind = (row == last.size) & (ends[-1] == steps.edges[-1])
        missing: Int64s = wanted[~(covered | between | before | behind)]
        return missing

    def _keep(self, chunk: Chunk, wanted: Int64s, records: dict[int, RawRecord]) -> None:
        begin, end = np.searchsorted(wanted, (chunk.table[0, fields.BASE_OFFSET], chunk.next_offset)).tolist()
        if begin == end:
            return
        columns = decode_columns(chunk)
        hidden = self._outcomes.hidden(chunk) if self._outcomes is not None else None
        if hidden is not None and hidden.any():
            columns = columns.select(~hidden[columns.row])
        if not len(columns):
            return
        offsets = wanted[begin:end]
        at = np.minimum(np.searchsorted(columns.offset, offsets), len(columns) - 1)
        for record in raw_records(columns.select(at[columns.offset[at] == offsets]), chunk):
            records[record.offset] = record


_SINGLE_BYTES = 64 << 10
_SINGLE_ROWS = 256
_BASE_OFFSET = struct.Struct(">q")
_NO_ROWS = np.empty(0, np.uint8)


class _ThreadArrays:
    """Memory for `record_at`: arrays for the kernels, and memoryviews of them, whose items cost less."""

    __slots__ = (
        "buffer",
        "cells",
        "data",
        "fields",
        "last_offsets",
        "record",
        "records",
        "table",
        "unpacked",
    )

    def __init__(self) -> None:
        self.buffer = np.empty(_SINGLE_BYTES + SLACK, np.uint8)
        self.data = self.buffer.data
        self.unpacked = np.empty(_SINGLE_BYTES + SLACK, np.uint8)
        self.records = self.unpacked.data
        self.table = np.zeros((_SINGLE_ROWS, fields.FIELDS), np.int64)
        self.cells = self.table.reshape(-1).data
        self.last_offsets = self.table[:, fields.LAST_OFFSET].data
        self.record = np.zeros(RECORD_FIELDS, np.int64)
        self.fields = self.record.data


class _OfThread(threading.local):
    """The scratch memory of a thread."""

    def __init__(self) -> None:
        self.scratch = _ThreadArrays()


_of_thread = _OfThread()


def record_at(
    log: Readable, offset: int, transactional: bool = True, log_end: int | None = None
) -> tuple[RawRecord, int] | None:
    """Return the record at an offset of the log and its batch's size, if one read of a batch finds it.

    None for everything that the caller has to read or report in another way: a large batch, an index that
    does not fit, damage, a gap, a control batch, headers, another magic than 2.

    Args:
        log: The log.
        offset: The offset, from the log start on and below the log end.
        transactional: False: also None for a record of a transaction.
        log_end: The last batch must end below this offset.
    """
    holding = log.segment_set.holding(offset)
    if holding is None:
        return None
    segment, bound = holding
    if bound is None:
        bound = -1 if log_end is None else log_end
    before, begin, entry, position, end = segment.offset_search.around(offset)
    size = segment.size
    if end < 0:
        end = size
    excluded = CONTROL_BIT if transactional else CONTROL_BIT | TRANSACTIONAL_BIT
    try:
        if position - begin > _LARGE_STEP_BYTES:
            # Large batches have an entry each: the offset is probably in that of the entry.
            last = before if before >= 0 else segment.base_offset - 1
            single = _in_stretch(segment, offset, position, min(end, size), last, entry, bound, excluded)
            if single is not None:
                return single
        below = segment.base_offset - 1
        return _in_stretch(segment, offset, begin, min(end, size), below, before, bound, excluded)
    except (DataError, FileVanishedError):
        return None


def _in_stretch(
    segment: Segment, offset: int, begin: int, end: int, below: int, first: int, bound: int, excluded: int
) -> tuple[RawRecord, int] | None:
    """Return the record at an offset and its batch's size, if a stretch of a file has the batch.

    Args:
        segment: The segment.
        offset: The offset.
        begin: Position of a batch.
        end: The batch of the offset ends at this position or before.
        below: The first batch begins above this offset.
        first: Last offset of the first batch, if it has an index entry; else -1.
        bound: Base offset of the next segment; -1: there is none.
        excluded: The attributes of the batch have none of these bits.
    """
    scratch = _of_thread.scratch
    data, table = scratch.data, scratch.table
    size = min(end - begin, _SINGLE_BYTES)
    if size < HEADER_BYTES or segment.handle.pread_into(data[:size], begin) != size:
        return None
    if not data[ATTRIBUTES_AT + 1] & CODEC_MASK:
        batch_bytes, attributes = find_plain(
            scratch.buffer, size, below + 1, first, offset, bound, excluded | CODEC_MASK, scratch.record
        )
        if batch_bytes:
            return _scratch_record(scratch, data, offset, attributes), batch_bytes
    rows, position, _, _ = walk_batches(scratch.buffer, 0, size, begin, below + 1, True, table, 0)
    row = bisect_left(scratch.last_offsets, offset, 0, rows)
    if row == rows or (first >= 0 and scratch.last_offsets[0] != first):
        return None
    cells, at = scratch.cells, row * fields.FIELDS
    last = cells[at + fields.LAST_OFFSET]
    # No checksum covers a base offset: the neighbours confirm it. The walk ends before a batch that does not.
    if row + 1 == rows and position + 8 <= size and _BASE_OFFSET.unpack_from(data, position)[0] <= last:
        return None
    if cells[at + fields.BASE_OFFSET] > offset or (bound >= 0 and last >= bound):
        return None
    attributes, batch_bytes = cells[at + fields.ATTRIBUTES], cells[at + fields.SIZE]
    if attributes & excluded or cells[at + fields.MAGIC] != 2:
        return None
    source, records = scratch.buffer, data
    if attributes & CODEC_MASK:
        source, records = scratch.unpacked, scratch.records
        _, _, status = decompress_lz4_rows(scratch.buffer, table, row, row + 1, _NO_ROWS, source, 0)
        if status != OK:
            position = cells[at + fields.POSITION]
            header = read_header(data, position, size, segment.file, file_position=begin + position)
            unpacked = payload_of(data, header, segment.file, position)
            if len(unpacked) > _SINGLE_BYTES:
                return None
            records[: len(unpacked)] = unpacked
            cells[at + fields.RECORDS_POSITION], cells[at + fields.RECORDS_END] = 0, len(unpacked)
    found, status = find_record(source, table, row, offset, scratch.record)
    if not found or status != OK or scratch.fields[HEADER_COUNT]:
        return None
    return _scratch_record(scratch, records, offset, attributes), batch_bytes


def _scratch_record(scratch: _ThreadArrays, data: memoryview, offset: int, attributes: int) -> RawRecord:
    """Return the record that was found in `data`, with the fields in the scratch memory."""
    timestamp, key_at, key_size, value_at, value_size, _ = scratch.fields.tolist()  # faster than iteration
    return raw_record(
        offset,
        timestamp,
        LOG_APPEND_TIME if attributes & LOG_APPEND_BIT else CREATE_TIME,
        data[key_at : key_at + key_size].tobytes() if key_size >= 0 else None,
        data[value_at : value_at + value_size].tobytes() if value_size >= 0 else None,
    )


class _Index:
    """The stretches of a file from one index entry to the next; the first begins at position 0.

    An entry names the last offset of the batch at its position, or of several from there on. So an offset
    is behind the last entry below it, and not behind the stretch of the first entry that is not.
    """

    def __init__(self, segment: Segment, size: int) -> None:
        offsets, positions = segment.offset_index.arrays()
        inside = int(np.searchsorted(positions, size))
        self._offsets = offsets[:inside] + segment.base_offset
        self.edges = np.concatenate(([0], positions[:inside], [size]))
        # Batches of more than index.interval.bytes have an entry each: the offset is in that very one.
        self.are_large = size > _LARGE_STEP_BYTES * (inside + 1)

    def of(self, wanted: Int64s, back: int) -> tuple[Int64s, Int64s]:
        """Return begin and end of the stretches that hold these offsets, and `back` stretches before each.

        Neighbouring stretches are joined.
        """
        last = np.searchsorted(self._offsets, wanted) + 1
        last = np.unique(np.minimum(last, self.edges.size - 2))
        steps = np.unique(np.concatenate([np.maximum(last - less, 0) for less in range(back + 1)]))
        if steps[0] == 1 and back == 0:
            steps = np.concatenate(([0], steps))  # the batches in front of the first entry have none
        begins = np.flatnonzero(np.diff(steps, prepend=-2) > 1)
        ends = np.append(begins[1:], steps.size) - 1
        return self.edges[steps[begins]], self.edges[steps[ends] + 1]


class _Stretches:
    """Parts of a file, one after another, as a source for a ChunkReader."""

    def __init__(self, handle: Handle, begins: Int64s, ends: Int64s) -> None:
        self._handle = handle
        self._begins = begins.tolist()
        self.joints: list[int] = [0, *np.cumsum(ends - begins).tolist()]

    def pread_into(self, buffer: memoryview, position: int) -> int:
        part = bisect_right(self.joints, position) - 1
        size = min(len(buffer), self.joints[part + 1] - position)
        return self._handle.pread_into(buffer[:size], self._begins[part] + position - self.joints[part])
