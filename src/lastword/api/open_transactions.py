"""Open transactions of a log directory: `LogDir.transactions`, and `LogDir.abort` ends one.

A transaction that no coordinator ends holds the log from its first offset on: committed readers stay there,
and nothing behind it is cleaned. Its partition has the producer id; the newest record of the producer in
`__transaction_state` has the transactional id and the state.

`abort` appends an ABORT marker to each partition in which the transaction is open. If the coordinator still
has the transaction, `abort` also stores that it ended, with the next epoch: its producer is fenced, and
cannot commit the rest. A transaction whose commit is decided is not aborted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword.errors import LastwordError, UsageError
from lastword.logdir.transaction_state import LAST_EPOCH, TRANSACTIONS_TOPIC, TransactionState
from lastword.partition.reads import read_batches
from lastword.protocol import decode_stored
from lastword.records.batch import BatchBuilder, BatchHeader
from lastword.records.formats import read_records
from lastword.records.record import marker_record
from lastword.values import Value, plural

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs, Topics
    from lastword.partition.log import PartitionLog
    from lastword.partition.producer_state import Producer
    from lastword.partition.view import PartitionView


@dataclass(frozen=True, slots=True)
class OpenTransaction(Value):
    """A transaction of one partition that has neither a commit nor an abort.

    Attributes:
        topic: The topic.
        partition: The partition.
        first_offset: Its first offset. Committed readers read up to here, and nothing behind it is cleaned.
        producer_id: Its producer.
        epoch: The epoch of the producer.
        timestamp: The time of its first batch, in ms.
        transactional_id: The transactional id; None if no coordinator has the producer.
        state: The state of the transactional id: a transaction that is not "Ongoing" there hangs.
        held_bytes: Bytes of the segments from the one of `first_offset` on, which no cleaning takes.
    """

    topic: str
    partition: int
    first_offset: int
    producer_id: int
    epoch: int
    timestamp: int
    transactional_id: str | None
    state: str | None
    held_bytes: int = 0

    text_columns = ("PARTITION", "TRANSACTIONAL ID", "STATE", "AGE")

    def cells(self) -> dict[str, str]:
        """Return a row of the table of open transactions."""
        return {
            "PARTITION": f"{self.topic}-{self.partition}",
            "FROM": str(self.first_offset),
            "PRODUCER": str(self.producer_id),
            "EPOCH": str(self.epoch),
            "TRANSACTIONAL ID": self.transactional_id or "-",
            "STATE": self.state or "-",
        }

    @classmethod
    def totals(cls, values: Sequence[OpenTransaction]) -> str:
        """Return the number of partitions with open transactions, and of their producers."""
        producers = len({transaction.producer_id for transaction in values})
        return f"{plural(len(values), 'open transaction')} of {plural(producers, 'producer')}"

    def __str__(self) -> str:
        known = "" if self.transactional_id is None else f" (transactional id {self.transactional_id!r})"
        return (
            f"{self.topic}-{self.partition}: the transaction of producer {self.producer_id}{known} is open "
            f"since offset {self.first_offset}"
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    """The newest state of a producer in `__transaction_state`."""

    partition: int
    key: bytes
    transactional_id: str
    state: TransactionState


def open_transactions(dirs: OpenDirs, topic: Topics, partition: int | None) -> list[OpenTransaction]:
    """See `LogDir.transactions`."""
    found = [
        (view, producer)
        for name, number in dirs.select(topic, partition)
        if (view := dirs.view(name, number)).stable_offset < view.log_end
        for producer in view.open_transactions
    ]
    stored = newest_states(dirs) if found else {}
    return [_transaction(view, producer, stored.get(producer.producer_id)) for view, producer in found]


def _transaction(view: PartitionView, producer: Producer, stored: _Stored | None) -> OpenTransaction:
    first = max(producer.transaction_start or 0, view.log_start)
    header = first_batch(view, first)
    return OpenTransaction(
        view.topic,
        view.partition,
        first,
        producer.producer_id,
        producer.epoch,
        producer.last_timestamp if header is None else header.base_timestamp,
        None if stored is None else stored.transactional_id,
        None if stored is None else stored.state.state,
        sum(held.size for held in view.segments if held.next_offset > first),
    )


def first_batch(view: PartitionView, offset: int) -> BatchHeader | None:
    """Return the header of the first batch with records, in the segment of an offset, that reaches it.

    None: there is none in that segment.
    """
    segment = view.segments[max(view.segment_set.floor(offset), 0)]
    headers = segment.headers(segment.position_of(offset))
    return next((h for h in headers if h.last_offset >= offset and h.count and not h.control), None)


def newest_states(dirs: OpenDirs) -> dict[int, _Stored]:
    """Return the newest state of each producer id. Records that cannot be decoded name no producer."""
    newest: dict[bytes, _Stored | None] = {}
    for number in dirs.topics().get(TRANSACTIONS_TOPIC, ()):
        view = dirs.view(TRANSACTIONS_TOPIC, number)
        for key, value in _records(view):
            newest[key] = None if value is None else _stored(number, key, value)
    return {stored.state.producer_id: stored for stored in newest.values() if stored is not None}


def _records(view: PartitionView) -> Iterator[tuple[bytes, bytes | None]]:
    for segment, header, data in read_batches(view, view.log_start):
        if not header.control:
            for record in read_records(data, header, segment.file, position=0):
                yield record.key or b"", record.value


def _stored(partition: int, key: bytes, value: bytes) -> _Stored | None:
    try:
        name = decode_stored("TransactionLogKey", key).transactional_id
        state = TransactionState.of_value(decode_stored("TransactionLogValue", value))
    except LastwordError:
        return None
    return _Stored(partition, key, name, state)


def abort(
    dirs: OpenDirs, topic: Topics, partition: int | None, producer: int | str, *, dry_run: bool = False
) -> list[OpenTransaction]:
    """See `LogDir.abort`."""
    found = open_transactions(dirs, None, None)
    chosen = [t for t in found if producer in (t.producer_id, t.transactional_id)]
    if topic is not None:
        inside = dirs.select(topic, partition)
        chosen = [t for t in chosen if (t.topic, t.partition) in inside]
    if not chosen:
        raise UsageError(
            f"no open transaction of {producer!r}", remedy="see the open ones: `lastword transactions DIR`"
        )
    ids = {t.producer_id for t in chosen if t.state in ("Ongoing", "PrepareAbort")}
    left = next((t for t in found if t.producer_id in ids and t not in chosen), None)
    if left is not None:  # its coordinator would take the transaction for ended in every partition
        raise UsageError(
            f"{left}, too: its coordinator has the transaction, which ends in all partitions together",
            remedy="name no topic and no partition",
        )
    decided = next((t for t in chosen if t.state == "PrepareCommit"), None)
    if decided is not None:
        raise UsageError(
            f"{decided}, but its commit is decided",
            remedy="let the coordinator finish it: start the broker, or `lastword serve DIR`",
        )
    if dry_run:
        return chosen
    dirs.require_writable()
    stored = newest_states(dirs)
    epochs: dict[int, int] = {}
    for transaction in chosen:
        producer_id, state = transaction.producer_id, stored.get(transaction.producer_id)
        is_known = state is not None and transaction.state in ("Ongoing", "PrepareAbort")
        if is_known and state is not None and producer_id not in epochs:
            epochs[producer_id] = _store_end(dirs, state)
        _append_abort(dirs, transaction, max(transaction.epoch, epochs.get(producer_id, 0)))
    return chosen


def _append_abort(dirs: OpenDirs, transaction: OpenTransaction, epoch: int) -> None:
    log = dirs.log(transaction.topic, transaction.partition)
    known = log.producer(transaction.producer_id)
    coordinator = 0 if known is None else max(known.coordinator_epoch, 0)
    producer = transaction.producer_id, epoch
    log.append_batch(marker(dirs.clock.now_ms(), producer, commit=False, coordinator_epoch=coordinator))
    log.sync()


def marker(now_ms: int, producer: tuple[int, int], *, commit: bool, coordinator_epoch: int) -> bytes:
    """Return the batch that ends the transaction of a producer, given by its id and epoch."""
    builder = BatchBuilder(
        producer_id=producer[0], producer_epoch=producer[1], transactional=True, control=True
    )
    builder.append(now_ms, *marker_record(commit=commit, coordinator_epoch=coordinator_epoch))
    return builder.build()


def _store_end(dirs: OpenDirs, stored: _Stored) -> int:
    """Store that a transaction was aborted; return the epoch that fences its producer."""
    log, epoch = dirs.log(TRANSACTIONS_TOPIC, stored.partition), min(stored.state.epoch, LAST_EPOCH) + 1
    store_state(
        log,
        stored.key,
        replace(
            stored.state,
            state="CompleteAbort",
            epoch=epoch,
            partitions=frozenset(),
            changed_ms=dirs.clock.now_ms(),
        ),
    )
    log.sync()
    return epoch


def store_state(log: PartitionLog, key: bytes, state: TransactionState) -> None:
    """Append a state to a partition of `__transaction_state`."""
    builder = BatchBuilder()
    builder.append(state.changed_ms, key, state.value())
    log.append_batch(builder.build())
