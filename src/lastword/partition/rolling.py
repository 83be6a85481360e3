"""When a segment is closed and the next one begun: Kafka's rule, for one batch and for a table of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.partition.appending import Pending
from lastword.records.batch import BatchHeader
from lastword.segment.append import SegmentAppender
from lastword.segment.names import MAX_FILE_BYTES, MAX_RELATIVE_OFFSET
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    import numpy as np

    from lastword.partition.ingest_file import AssignedBatch


class RollRule:
    """Decide when the active segment is closed. `begin_segment` draws its jitter and starts its clock.

    A batch begins a new segment if it would make the active one larger than `segment.bytes`, its offsets do
    not fit into four bytes from the base, the segment is older than `segment.ms` (by the first batch's
    timestamp; without one by the clock), or an index is full.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._created_ms = 0
        self._roll_ms = 0

    def begin_segment(self, config: TopicConfig) -> None:
        self._created_ms = self._clock.now_ms()
        limit = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacts else config.segment_ms
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self._roll_ms = limit - (self._rng.randrange(jitter_ms) if jitter_ms else 0)

    def must_roll(
        self, config: TopicConfig, appender: SegmentAppender, header: BatchHeader, pending: Pending
    ) -> bool:
        """Does the last pending batch begin a new segment? The others before it count as written."""
        size = appender.end.size
        before = size + header.position  # bytes of the segment in front of this batch
        if before + header.size > min(config.segment_bytes, MAX_FILE_BYTES):
            return before > 0
        if header.last_offset - appender.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if before == 0:
            return False
        began = pending.first_timestamp if size == 0 else appender.rolling_timestamp
        if began is not None and began >= 0:
            waited = header.max_timestamp - began
        else:
            waited = self._clock.now_ms() - self._created_ms
        if waited > self._roll_ms:
            return True
        return appender.is_full(config.segment_index_bytes)

    def rows_before(
        self, config: TopicConfig, appender: SegmentAppender, table: np.ndarray, first: int, unasked: int
    ) -> int:
        """Return the row (exclusive) up to which a batch table's rows from `first` on go into the active
        segment, the first `unasked` of them in any case. Its indexes have room for all of them.
        """
        from lastword.kernels import table as fields

        size = appender.end.size
        began = int(table[first, fields.MAX_TIMESTAMP]) if not size else appender.rolling_timestamp
        by_clock = began < 0
        return int(
            fields.rows_before_roll(
                table,
                first,
                unasked,
                table.shape[0],
                size,
                min(config.segment_bytes, MAX_FILE_BYTES),
                min(appender.base_offset + MAX_RELATIVE_OFFSET, INT64_MAX),
                0 if by_clock else min(began + self._roll_ms, INT64_MAX),
                by_clock and self._clock.now_ms() - self._created_ms > self._roll_ms,
                by_clock,
            )
        )

    def is_one_segment(self, config: TopicConfig, batches: Sequence[AssignedBatch]) -> bool:
        """Would a new segment take all of the batches? Their positions count from its beginning."""
        first, last = batches[0], batches[-1]
        if (
            last.position + last.size > min(config.segment_bytes, MAX_FILE_BYTES)
            or last.last_offset - first.base_offset > MAX_RELATIVE_OFFSET
        ):
            return False
        latest = max(one.max_timestamp for one in batches)
        return first.max_timestamp < 0 or latest - first.max_timestamp <= self._roll_ms

    def is_due(self, appender: SegmentAppender) -> bool:
        """Is the active segment older than `segment.ms`, by the clock?"""
        began = appender.rolling_timestamp
        began = began if began >= 0 else self._created_ms
        return appender.end.size > 0 and self._clock.now_ms() - began > self._roll_ms
