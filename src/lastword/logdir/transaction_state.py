"""The state of a transactional id as `__transaction_state` has it, and producer ids that are given once.

The server's coordinator and `LogDir.transaction` store their decisions there, in Kafka's format.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lastword.errors import MalformedMessageError
from lastword.logdir.identity import PRODUCER_IDS
from lastword.logdir.log_dir import LogDirectory
from lastword.protocol import encode_stored, messages
from lastword.records.internal import TRANSACTION_STATES
from lastword.segment import names

TRANSACTIONS_TOPIC = "__transaction_state"
OWN_ID = "lastword.transaction"
"""The transactional id of `LogDir.transaction`: one for each directory. The server gives it to no client."""
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = TRANSACTION_STATES[:6]
VALUE_VERSION = 1
LAST_EPOCH = 0x7FFE
"""The last epoch that a client gets. The next one only fences it; then there is a new producer id."""
FIRST_PRODUCER_ID = 1 << 60
"""The ids of a directory begin at a random number above, where no broker's ids are."""
IDS_RESERVED = 1000

Partition = tuple[str, int]


def key_of(transactional_id: str) -> bytes:
    """Return the key of the records of a transactional id."""
    return encode_stored(messages.TransactionLogKey(transactional_id=transactional_id))


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


class ProducerIds:
    """Producer ids that are never given twice.

    Args:
        reserve: Reserves a block of ids before the first is given: `reserve_producer_ids`.
    """

    def __init__(self, reserve: Callable[[], int]) -> None:
        self._reserve = reserve
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
                self._next = self._reserve()
                self._end = self._next + IDS_RESERVED
            return self._take()

    def _take(self) -> int:
        self._next += 1
        return self._next - 1


def reserve_producer_ids(directory: LogDirectory) -> int:
    """Reserve IDS_RESERVED producer ids in `lastword.producer-ids` of a directory; return the first."""
    path = os.path.join(directory.path, names.PRODUCER_IDS)
    fields = PRODUCER_IDS.load(directory.files, path)
    if fields is None:
        fields = {"next": FIRST_PRODUCER_ID + random.SystemRandom().getrandbits(59)}
    with PRODUCER_IDS.reading(path):
        first = int(fields["next"])
    PRODUCER_IDS.save(directory.files, path, {"next": first + IDS_RESERVED})
    return first
