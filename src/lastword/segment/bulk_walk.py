"""Walk a large file by kernels: its valid batches from the beginning on, and their index entries.

The walk stops before the first batch that is not valid, and before a batch of magic 0 or 1. `SoundWalk`
continues there and has the reason. Imported only if a file is large enough to pay for loading the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lastword import kernels
from lastword.files import Handle
from lastword.kernels import table as fields
from lastword.kernels.batches import valid_rows, walk_batches
from lastword.segment.indexes import IndexBuilder
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.segment.scan import Gap
from lastword.wire import HEADER_BYTES, LEADER_EPOCH_AT, LENGTH_AT, OVERHEAD_BYTES

_BLOCK_BYTES = 1 << 20
_ROWS = 8192
_GOES_ON = (kernels.OK, kernels.MORE, kernels.FULL)


@dataclass(slots=True)
class BulkWalk:
    """Result of a walk: `position` and `next_offset` behind the last valid batch, and facts of all."""

    position: int
    next_offset: int
    batches: int = 0
    producers: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    gap: Gap | None = None


def walk(
    handle: Handle, end: int, base_offset: int, builder: IndexBuilder, *, contiguous_from: int | None = None
) -> BulkWalk:
    """Walk the file from its first byte and give its batches to `builder`, which must be new.

    `contiguous_from`: as in `SoundWalk`.
    """
    result = BulkWalk(0, base_offset)
    table = np.empty((_ROWS, fields.FIELDS), np.int64)
    indexer = BulkIndexer(builder)
    buffer = np.empty(min(_BLOCK_BYTES, end) + kernels.SLACK, np.uint8)
    limit = base_offset + MAX_RELATIVE_OFFSET
    status = kernels.OK
    while result.position < end and status in _GOES_ON:
        want = min(buffer.size - kernels.SLACK, end - result.position)
        have = handle.pread_into(buffer.data[:want], result.position)
        rows, _used, _next, status = walk_batches(
            buffer, 0, have, result.position, result.next_offset, False, table, 0
        )
        good = valid_rows(buffer, table, _plain_rows(table, rows, limit))
        if good:
            indexer.take(table[:good])
            if contiguous_from is not None and result.gap is None:
                result.gap = _first_gap(table[:good], result.next_offset, contiguous_from)
            _note(result, table[:good])
        if good < rows or have < want:
            break
        if not rows:
            larger = _size_of_first(buffer, have) if status == kernels.MORE else 0
            if larger <= have or larger > end - result.position:
                break
            buffer = np.empty(larger + kernels.SLACK, np.uint8)
    indexer.finish()
    return result


def _plain_rows(table: np.ndarray, rows: int, limit: int) -> int:
    """Return how many rows from the first on are of magic 2 and in the segment's range."""
    odd = np.flatnonzero((table[:rows, fields.MAGIC] != 2) | (table[:rows, fields.LAST_OFFSET] > limit))
    return int(odd[0]) if odd.size else rows


def _first_gap(table: np.ndarray, next_offset: int, contiguous_from: int) -> Gap | None:
    """Return the first gap, as `SoundWalk` does; `next_offset`: of the batch before the first row."""
    if int(table[-1, fields.LAST_OFFSET]) < contiguous_from:
        return None
    due = np.empty(table.shape[0], np.int64)
    due[0] = next_offset
    due[1:] = table[:-1, fields.LAST_OFFSET] + 1
    wrong = (table[:, fields.BASE_OFFSET] != due) | (due < contiguous_from)
    wrong &= table[:, fields.LAST_OFFSET] >= contiguous_from
    rows = np.flatnonzero(wrong)
    if not rows.size:
        return None
    row = int(rows[0])
    return Gap(int(table[row, fields.FILE_POSITION]), int(table[row, fields.BASE_OFFSET]), int(due[row]))


class BulkIndexer:
    """Give the rows of batch tables to an `IndexBuilder`, in file order. `finish` is the last call."""

    def __init__(self, builder: IndexBuilder) -> None:
        self._builder = builder
        self._state = np.array(builder.state, np.int64)
        self._entries = np.empty((0, 2), np.int64), np.empty((0, 2), np.int64)

    def take(self, table: np.ndarray) -> None:
        """Add the entries of these rows."""
        for first in range(0, table.shape[0], _ROWS):
            self._take(table[first : first + _ROWS])

    def _take(self, table: np.ndarray) -> None:
        rows = table.shape[0]
        if rows > self._entries[0].shape[0]:
            self._entries = np.empty((rows, 2), np.int64), np.empty((rows, 2), np.int64)
        builder, entries = self._builder, self._entries
        offsets, times = fields.index_rows(table, rows, builder.interval_bytes, self._state, *entries)
        offset_cells = np.empty((offsets, 2), ">i4")
        offset_cells[:, 0] = entries[0][:offsets, 0] - builder.base_offset
        offset_cells[:, 1] = entries[0][:offsets, 1]
        builder.offset_entries += offset_cells.tobytes()
        time_cells = np.empty(times, [("timestamp", ">i8"), ("offset", ">i4")])
        time_cells["timestamp"] = entries[1][:times, 0]
        time_cells["offset"] = entries[1][:times, 1] - builder.base_offset
        builder.time_entries += time_cells.tobytes()

    def finish(self) -> None:
        """Set the state of the builder behind the last row."""
        self._builder.resume(self._state.tolist())


def _note(result: BulkWalk, table: np.ndarray) -> None:
    last = table[-1]
    result.position = int(last[fields.FILE_POSITION] + last[fields.SIZE])
    result.next_offset = int(last[fields.LAST_OFFSET]) + 1
    result.batches += table.shape[0]
    result.producers = result.producers or bool((table[:, fields.PRODUCER_ID] >= 0).any())
    epoch_before = result.epochs[-1][0] if result.epochs else -1
    if (table[:, fields.LEADER_EPOCH] > epoch_before).any():
        for epoch, offset in table[:, (fields.LEADER_EPOCH, fields.BASE_OFFSET)].tolist():
            if epoch > epoch_before:
                result.epochs.append((epoch, offset))
                epoch_before = epoch


def _size_of_first(buffer: np.ndarray, have: int) -> int:
    return (
        int.from_bytes(buffer[LENGTH_AT:LEADER_EPOCH_AT].tobytes(), "big", signed=True) + OVERHEAD_BYTES
        if have >= HEADER_BYTES
        else 0
    )
