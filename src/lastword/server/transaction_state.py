"""The state of a transactional id: its record, and its work in memory. Producer ids that are given once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from lastword.errors import MalformedMessageError
from lastword.logdir import LogDirectory
from lastword.logdir.identity import PRODUCER_IDS
from lastword.protocol import codes, encode_stored, messages
from lastword.records.batch import CHECKED
from lastword.records.internal import TRANSACTION_STATES
from lastword.segment import names
from lastword.server.timers import Timer
from lastword.wire import ATTRIBUTES_AT, HEADER_BYTES, TRANSACTIONAL_BIT

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = TRANSACTION_STATES[:6]
DECIDED = (PREPARE_COMMIT, PREPARE_ABORT)
VALUE_VERSION = 1
LAST_EPOCH = 0x7FFE
"""The last epoch that a client gets. The next one only fences it; then there is a new producer id."""
RETRY_MS = 500
"""After this time a marker that could not be appended is tried again."""
FIRST_PRODUCER_ID = 1 << 60
"""The ids of a directory begin at a random number above, where no broker's ids are."""
IDS_RESERVED = 1000

Partition = tuple[str, int]


def key_of(transactional_id: str) -> bytes:
    """Return the key of the records of a transactional id."""
    return encode_stored(messages.TransactionLogKey(transactional_id=transactional_id))


def transactional_producer(records: Any) -> tuple[int, int] | None:
    """Return producer id and epoch of a transactional batch; None for another batch, or if there is none."""
    if records is None or len(records) < HEADER_BYTES or records[16] != 2:
        return None
    attributes, _, _, _, producer_id, epoch, _, _ = CHECKED.unpack_from(records, ATTRIBUTES_AT)
    return (producer_id, epoch) if attributes & TRANSACTIONAL_BIT else None


class Marker(NamedTuple):
    """What a marker has: the producer, whether it commits, and the epoch of its coordinator."""

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int


@dataclass(frozen=True)
class TransactionState:
    """The state of a transactional id, as a record has it; `last_epoch` is kept in memory only.

    Attributes:
        producer_id: The producer id.
        epoch: The epoch; -1 before the first InitProducerId was answered.
        timeout_ms: A transaction that is open for longer is aborted.
        state: One of `TRANSACTION_STATES`.
        partitions: The partitions of the transaction.
        start_ms: When the transaction began; -1 without one.
        changed_ms: When the state was stored.
        previous_producer_id: The producer id before the last change.
        next_producer_id: The producer id after the end of the transaction, if the epochs are exhausted.
        last_epoch: The epoch before, which a repeated request has.
        client_version: The version of the transaction.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: str = EMPTY
    partitions: frozenset[Partition] = frozenset()
    start_ms: int = -1
    changed_ms: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    last_epoch: int = -1
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Return whether no client may get the next epoch."""
        return self.epoch >= LAST_EPOCH

    def may_be_renewed_by(self, producer_id: int, epoch: int) -> bool:
        """Return whether InitProducerId may come from this producer."""
        return (
            self.epoch == -1
            or producer_id == self.producer_id
            or (producer_id == self.previous_producer_id and epoch >= LAST_EPOCH)
        )

    def by_topic(self) -> dict[str, list[int]]:
        """Return the partitions of each topic, sorted."""
        topics: dict[str, list[int]] = {}
        for name, number in sorted(self.partitions):
            topics.setdefault(name, []).append(number)
        return topics

    def value(self) -> bytes:
        """Return the value of the record."""
        partitions = None
        if self.state != EMPTY:
            partitions = [
                messages.TransactionLogValue.PartitionsSchema(topic=name, partition_ids=numbers)
                for name, numbers in self.by_topic().items()
            ]
        value = messages.TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=TRANSACTION_STATES.index(self.state),
            transaction_partitions=partitions,
            transaction_last_update_timestamp_ms=self.changed_ms,
            transaction_start_timestamp_ms=self.start_ms,
            client_transaction_version=self.client_version,
        )
        return encode_stored(value, VALUE_VERSION)

    @classmethod
    def of_value(cls, value: Any) -> TransactionState:
        """Return the state that the value of a record has.

        Raises:
            MalformedMessageError: Another program wrote the record.
        """
        if not 0 <= value.transaction_status < len(TRANSACTION_STATES):
            raise MalformedMessageError(
                f"a transaction in state {value.transaction_status}",
                remedy="another program wrote this record",
                position=0,
            )
        return cls(
            producer_id=value.producer_id,
            epoch=value.producer_epoch,
            timeout_ms=value.transaction_timeout_ms,
            state=TRANSACTION_STATES[value.transaction_status],
            partitions=frozenset(
                (topic.topic, number)
                for topic in value.transaction_partitions or ()
                for number in topic.partition_ids
            ),
            start_ms=value.transaction_start_timestamp_ms,
            changed_ms=value.transaction_last_update_timestamp_ms,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            client_version=value.client_transaction_version,
        )


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
        self.timer: Timer | None = None
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


class ProducerIds:
    """Producer ids that are never given twice.

    A block of ids is reserved in `lastword.producer-ids` of the first directory before the first is given.
    """

    def __init__(self, directory: LogDirectory) -> None:
        self._files = directory.files
        self._path = os.path.join(directory.path, names.PRODUCER_IDS)
        self._rng = random.SystemRandom()
        self._next = self._end = 0
        self._lock = threading.Lock()

    def next_reserved(self) -> int | None:
        """Return a new id; None if a block has to be reserved first."""
        with self._lock:
            return self._take() if self._next < self._end else None

    def next(self) -> int:
        """Return a new id; reserves a block, durably, if there is none."""
        with self._lock:
            if self._next >= self._end:
                fields = PRODUCER_IDS.load(self._files, self._path)
                if fields is None:
                    fields = {"next": FIRST_PRODUCER_ID + self._rng.getrandbits(59)}
                with PRODUCER_IDS.reading(self._path):
                    first = int(fields["next"])
                PRODUCER_IDS.save(self._files, self._path, {"next": first + IDS_RESERVED})
                self._next, self._end = first, first + IDS_RESERVED
            return self._take()

    def _take(self) -> int:
        self._next += 1
        return self._next - 1
