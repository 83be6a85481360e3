"""The work in memory of a transactional id, and what its markers have."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from lastword.logdir.transaction_state import PREPARE_ABORT, PREPARE_COMMIT, Partition, TransactionState
from lastword.protocol import codes
from lastword.records.batch import CHECKED, BatchBuilder
from lastword.records.record import marker_record
from lastword.server.timers import NO_TIMER, RETRY_MS
from lastword.wire import ATTRIBUTES_AT, HEADER_BYTES, TRANSACTIONAL_BIT

DECIDED = (PREPARE_COMMIT, PREPARE_ABORT)
MOST_AWAITED = 1000
"""Most batches of a connection that are to be sent again, and hold back others."""


def transactional_producer(records: Any) -> tuple[tuple[int, int], int] | None:
    """Return the producer (id, epoch) and the sequence of a transactional batch; None for another batch."""
    if records is None or len(records) < HEADER_BYTES or records[16] != 2:
        return None
    attributes, _, _, _, producer_id, epoch, sequence, _ = CHECKED.unpack_from(records, ATTRIBUTES_AT)
    return ((producer_id, epoch), sequence) if attributes & TRANSACTIONAL_BIT else None


class Marker(NamedTuple):
    """What a marker has: the producer, whether it commits, and the epoch of its coordinator."""

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int

    def batch(self, now_ms: int) -> bytes:
        """Return the batch of the marker."""
        builder = BatchBuilder(
            producer_id=self.producer_id, producer_epoch=self.epoch, transactional=True, control=True
        )
        key, value = marker_record(commit=self.is_commit, coordinator_epoch=self.coordinator_epoch)
        builder.append(now_ms, key, value)
        return builder.build()


class TransactionalId:
    """A transactional id and its work in memory.

    Attributes:
        id: The transactional id.
        stored: Its state.
        is_busy: Its state is being changed: a sync or a new producer id is under way.
        is_synced: The sync of its state has not failed.
        appends: The Produce requests of its transaction that are in work.
        timer: Waits for the end of the time of a transaction; None before the first one.
        marked: The partitions that have the marker of the decided transaction.
        retry_ms: After this time markers that cannot be appended are tried again.
    """

    __slots__ = ("_idle", "appends", "id", "is_busy", "is_synced", "marked", "retry_ms", "stored", "timer")

    def __init__(self, transactional_id: str, stored: TransactionState) -> None:
        self.id = transactional_id
        self.stored = stored
        self.is_busy = False
        self.is_synced = True
        self.appends = 0
        self.timer = NO_TIMER
        self.marked: set[Partition] = set()
        self.retry_ms = RETRY_MS
        self._idle: list[asyncio.Future[None]] = []

    def error_of_write(self, partition: Partition) -> int:
        """Return the error of a write to a partition by the producer of the transaction; 0: it may write."""
        if self.is_busy or self.stored.state in DECIDED:
            return codes.CONCURRENT_TRANSACTIONS
        return 0 if partition in self.stored.partitions else codes.TRANSACTION_ABORTABLE

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Refuse other changes meanwhile."""
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    @contextlib.contextmanager
    def appending(self) -> Iterator[None]:
        """Hold back the markers meanwhile."""
        self.appends += 1
        try:
            yield
        finally:
            self.appends -= 1
            if not self.appends:
                for waiting in self._idle:
                    waiting.set_result(None)
                self._idle.clear()

    async def quiet(self) -> None:
        """Wait until no append is in work."""
        while self.appends:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiting)
            await waiting
