"""Appending ready batches: one by one in plain Python, or many as one table by kernels. The bytes are the
same, and so are the indexes and the errors.

The table path takes a call whose batches are all plainly sound and have no producer; whatever else comes goes
the plain way, which says what is wrong. It copies the batches into one buffer, lets a kernel check and number
them there, and writes them with one write for each segment they go to.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, RecordTooLargeError
from lastword.partition.block import Block
from lastword.partition.pending import Batch, Pending, repeated
from lastword.partition.producer_state import SequencedBatch
from lastword.partition.rolling import RollRule
from lastword.partition.tail import Tail
from lastword.records.batch import computed_crc
from lastword.wire import ATTRIBUTES_AT, CRC_AT

if TYPE_CHECKING:
    import numpy as np

FEW = 4
"""Up to here plain Python is as fast."""
LOADING_BYTES = 64 << 20
"""After so many bytes in calls of more than a few the kernels are loaded, which takes about 0.4 s."""
KEPT_BYTES = 17 << 20
"""Each thread keeps a buffer up to this size: fresh memory for each call would cost as much as the copy."""
SYNC_AHEAD_BYTES = 2 << 20
"""So much is handed to the drive at once while more comes, if a sync follows."""

_BASE_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")
_kept = threading.local()


class AppendedBatch(NamedTuple):
    """Where a batch lies now. `timestamp` (ms): its largest, or that of the append if the topic says so.

    Of a producer's batch that came again: where it has been since it came first.
    """

    base_offset: int
    last_offset: int
    timestamp: int


class Appending:
    """Of one open log, under its lock.

    roll           closes the active segment and begins the next
    epoch          the leader epoch of what is appended
    assign_epoch   notes where it begins; called when it is sure that something is appended
    """

    def __init__(
        self,
        name: str,
        tail: Tail,
        rule: RollRule,
        config: TopicConfig,
        clock: Clock,
        roll: Callable[[], None],
        epoch: Callable[[], int],
        assign_epoch: Callable[[], None],
    ) -> None:
        self._name = name
        self._tail = tail
        self._rule = rule
        self.config = config
        self._clock = clock
        self._roll = roll
        self.epoch = epoch
        self._assign_epoch = assign_epoch
        self._plain_bytes = 0  # that the table path would have taken, had the kernels been loaded

    def append(self, batches: Sequence[Batch], *, sync_follows: bool = False) -> list[AppendedBatch]:
        """Everything is checked before the first byte is written."""
        self._check_sizes(batches)
        found = self._append_table(batches, sync_follows) if self._suits_table(batches) else None
        if found is None:
            self._check_checksums(batches)
            earlier = repeated(self._tail.producers, batches, self._tail.log_end)
            found = self._append_each(batches, earlier)
        return found

    # -------------------------------------------------------------- checks

    def _check_sizes(self, batches: Sequence[Batch]) -> None:
        limit = min(self.config.max_message_bytes, self.config.segment_bytes)
        largest = max(map(len, batches), default=0)
        if largest > limit:
            first = next(len(data) for data in batches if len(data) > limit)
            which = "max.message.bytes" if limit == self.config.max_message_bytes else "segment.bytes"
            raise RecordTooLargeError(
                f"{self._name}: a batch of {first} bytes is larger than {which} = {limit}",
                remedy=f"smaller records, or raise {which}",
            )

    def _check_checksums(self, batches: Sequence[Batch]) -> None:
        """What is too short to have one is told by who reads its header."""
        for data in batches:
            if len(data) > ATTRIBUTES_AT:
                stored = _CRC.unpack_from(data, CRC_AT)[0]
                computed = computed_crc(data, len(data))
                if stored != computed:
                    offset = _BASE_OFFSET.unpack_from(data)[0]
                    raise CorruptBatchError.crc("<append>", 0, offset, stored, computed)

    def _suits_table(self, batches: Sequence[Batch]) -> bool:
        if len(batches) <= FEW or self._stamp() is not None:
            return False
        if "lastword.kernels" in sys.modules:
            return True
        if isinstance(batches, Block):  # large batches: plain Python is nearly as fast
            return False
        self._plain_bytes += sum(map(len, batches))
        return self._plain_bytes > LOADING_BYTES

    def _stamp(self) -> int | None:
        return self._clock.now_ms() if self.config.message_timestamp_type == "LogAppendTime" else None

    # -------------------------------------------------------------- one by one

    def _append_each(
        self, batches: Sequence[Batch], earlier: Sequence[SequencedBatch | None] | None
    ) -> list[AppendedBatch]:
        tail, most = self._tail, self.config.segment_index_bytes
        epoch = self.epoch()
        if batches:
            self._assign_epoch()
        appended: list[AppendedBatch] = []
        pending = Pending(tail.log_end)
        for number, data in enumerate(batches):
            if earlier is not None and (known := earlier[number]) is not None:
                appended.append(AppendedBatch(known.first_offset, known.last_offset, known.timestamp))
                continue
            if pending.headers and tail.appender.is_full(most, len(pending.headers)):
                tail.write(pending)  # to know exactly how full the indexes are
                pending = Pending(tail.log_end)
            header = pending.add(data, epoch, self._stamp())
            if self._rule.must_roll(tail.appender, header, pending):
                begun = pending.take_last()
                tail.write(pending)
                self._roll()
                pending = Pending(tail.log_end)
                header = pending.add(begun, epoch, self._stamp())
            if pending.first_timestamp is None:
                pending.first_timestamp = header.max_timestamp
            appended.append(AppendedBatch(header.base_offset, header.last_offset, header.max_timestamp))
        tail.write(pending)
        return appended

    # -------------------------------------------------------------- as one table

    def _append_table(self, batches: Sequence[Batch], sync_follows: bool) -> list[AppendedBatch] | None:
        """None if there is a batch that the table path does not take: nothing was done then."""
        import numpy as np

        from lastword.kernels import ready
        from lastword.kernels import table as fields

        tail = self._tail
        sizes = np.fromiter(map(len, batches), np.int64, len(batches))
        buffer, data = _gathered(batches, int(sizes.sum()))
        table = np.empty((sizes.size, fields.FIELDS), np.int64)
        if ready.place_ready(buffer, sizes, tail.log_end, self.epoch(), table) < sizes.size:
            return None
        self._assign_epoch()
        first, unasked = 0, 0
        while first < sizes.size:
            if tail.appender.is_full(self.config.segment_index_bytes, sizes.size - first):
                break
            end = self._rule.rows_before(tail.appender, table, first, unasked)
            if end > first:
                self._write_rows(data, table[first:end], sync_follows)
            if end < sizes.size:
                self._roll()
            first, unasked = end, 1
        placed = table[:first, (fields.BASE_OFFSET, fields.LAST_OFFSET, fields.MAX_TIMESTAMP)]
        appended = list(map(AppendedBatch._make, placed.tolist()))
        if first < sizes.size:  # an index is nearly full: batch by batch it is known exactly when
            appended += self._append_each(batches[first:], None)
        return appended

    def _write_rows(self, data: memoryview, rows: np.ndarray, sync_follows: bool) -> None:
        from lastword.kernels import table as fields

        start = int(rows[0, fields.POSITION])
        end = int(rows[-1, fields.POSITION] + rows[-1, fields.SIZE])
        self._tail.write_table(data[start:end], rows)
        if sync_follows:
            self._tail.appender.sync_ahead(SYNC_AHEAD_BYTES)


def _gathered(batches: Sequence[Batch], size: int) -> tuple[np.ndarray, memoryview]:
    """The batches one behind another in this thread's buffer, with slack behind them; or in their own."""
    import numpy as np

    from lastword.kernels import SLACK

    if isinstance(batches, Block):
        return np.frombuffer(batches.buffer, np.uint8), memoryview(batches.buffer)
    buffer = getattr(_kept, "buffer", None)
    if buffer is None or buffer.size < size + SLACK:
        buffer = np.empty(max(size + SLACK, min(2 * size, KEPT_BYTES)), np.uint8)
        _kept.buffer = buffer if buffer.size <= KEPT_BYTES else None
    data = buffer.data
    position = 0
    for batch in batches:
        end = position + len(batch)
        data[position:end] = batch
        position = end
    return buffer, data
