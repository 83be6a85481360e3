"""The state that a partition keeps of each producer: epoch, last sequences, open transaction. Opens no file.

A producer with an id numbers its records: each batch has an epoch and the sequence of its first record.
Sequences range over 0 … 2^31-1 and wrap to 0. The state of a partition at an offset follows from the batches
below it, so it is rebuilt by replay (headers and markers are enough) from a snapshot (`snapshots`) or from
the log start.

Two ways to update it:

    leader   pending = state.begin(); pending.add(header, marker) for each batch: checks, may return
    a duplicate; when the bytes are written, `update` as in a replay
    replay   state.update(header, marker) for each batch of the log: an accepted batch is not checked again

A leader's rules: an older epoch is fenced; a new epoch starts at sequence 0; a known epoch continues at the
last sequence + 1 (at 0 if the producer is known from a marker only); an unknown producer may start at any
sequence. If one of the last five batches of a producer is sent again, it is a duplicate: the result has the
offsets of the first copy, and nothing is appended. A snapshot has the newest of the five; the others are in
the log, and are read when a batch is refused without them (`ProducerState.complete`). A batch of a new
transaction repeats none of the transactions before: it is refused (`Producer.repeats_ended`), where a broker
takes it for a duplicate.

The last stable offset is the first offset of the oldest transaction that is undecided. Without one it is the
end of the log, which is the high watermark here: there are no followers.

An emptied marker (the cleaner leaves one if it is the last trace of a producer) has no content. Its header
has producer id and epoch, and they are kept, so that an older epoch stays fenced after a rebuild. Kafka's
replay ignores such a marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lastword.errors import (
    CoordinatorFencedError,
    ProducerFencedError,
    SequenceGapError,
    TransactionStateError,
)
from lastword.partition.transactions import OpenTransactions
from lastword.records.batch import BatchHeader
from lastword.records.record import ControlRecord
from lastword.segment.indexes import AbortedTransaction
from lastword.wire import INT32_MAX

NO_PRODUCER = -1
NO_SEQUENCE = -1
NO_EPOCH = -1
FIRST_NAMED_ID = 1 << 62
"""Producer ids from here on belong to named producers (`api.producers`); no controller assigns them.
They never expire, because a named producer may return after years."""
PRODUCER_EXPIRATION_MS = 86_400_000  # Kafka's default
KEPT_BATCHES = 5
"""How many batches of a producer are kept, to detect repeats: Kafka's bound of requests in flight."""


def add_sequence(sequence: int, increment: int) -> int:
    """Return `sequence + increment`, wrapping from 2^31-1 to 0."""
    return (sequence + increment) & INT32_MAX


def subtract_sequence(sequence: int, decrement: int) -> int:
    """Return `sequence - decrement`, wrapping from 0 to 2^31-1."""
    return (sequence - decrement) & INT32_MAX


class SequencedBatch(NamedTuple):
    """A batch of a producer, as far as the producer state keeps it.

    Attributes:
        last_sequence: Sequence of its last record.
        last_offset: Offset of its last record.
        offset_delta: Last minus first offset.
        timestamp: Largest timestamp, ms.
    """

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @classmethod
    def of(cls, header: BatchHeader) -> SequencedBatch:
        """Return it for a data batch of the log."""
        delta = header.last_offset - header.base_offset
        return cls(header.last_sequence, header.last_offset, delta, header.max_timestamp)

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record."""
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return subtract_sequence(self.last_sequence, self.offset_delta)


@dataclass(frozen=True, slots=True)
class Producer:
    """The state of one producer id.

    Attributes:
        batches: The newest batches of its epoch, oldest first.
        transaction_start: First offset of its open transaction; None if none is open.
    """

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    batches: tuple[SequencedBatch, ...] = ()
    transaction_start: int | None = None

    @property
    def last_sequence(self) -> int:
        """Sequence of its newest record; `NO_SEQUENCE` without a batch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, header: BatchHeader) -> SequencedBatch | None:
        """Return the kept batch that `header` repeats; None if there is none."""
        if header.producer_epoch != self.epoch or header.base_sequence < 0:
            return None
        wanted = (header.base_sequence, header.last_sequence)
        for batch in self.batches:
            if (batch.first_sequence, batch.last_sequence) == wanted:
                return batch
        return None

    def repeats_ended(self, header: BatchHeader) -> bool:
        """Return whether a batch of a new transaction has sequences of transactions that have ended.

        That is no repeat: a client sends a batch again only until it ends the transaction. librdkafka 2.16.0
        removes a batch whose answer was lost from its queue when it aborts, and gives its sequences to the
        next batch. A broker takes that for the batch before, and the record is lost.
        """
        return (
            header.transactional
            and self.transaction_start is None
            and header.producer_epoch == self.epoch
            and header.base_sequence >= 0
            and bool(self.batches)
            and self.producer_id < FIRST_NAMED_ID
            and add_sequence(self.last_sequence, -header.base_sequence) <= INT32_MAX // 2
        )

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Return whether the producer was idle for `expiration_ms` without an open transaction.

        A named producer never expires.
        """
        return (
            self.transaction_start is None
            and self.producer_id < FIRST_NAMED_ID
            and now_ms - self.last_timestamp >= expiration_ms
        )

    def same_in_snapshot(self, other: Producer) -> bool:
        """Return whether a snapshot has equal entries for both producers."""
        return (
            self.epoch == other.epoch
            and self.coordinator_epoch == other.coordinator_epoch
            and self.last_timestamp == other.last_timestamp
            and self.batches[-1:] == other.batches[-1:]
            and self.transaction_start == other.transaction_start
        )

    def after_data(self, header: BatchHeader) -> Producer:
        """Return the state after a data batch."""
        kept = self.batches[1 - KEPT_BATCHES :] if header.producer_epoch == self.epoch else ()
        start = self.transaction_start
        if start is None and header.transactional:
            start = header.base_offset
        return Producer(
            self.producer_id,
            header.producer_epoch,
            self.coordinator_epoch,
            header.max_timestamp,
            (*kept, SequencedBatch.of(header)),
            start,
        )

    def after_marker(self, header: BatchHeader, marker: ControlRecord | None) -> Producer:
        """Return the state after a marker.

        An emptied marker (None) has only its header: it decides no transaction.
        """
        epoch = marker.coordinator_epoch if marker is not None else None
        return Producer(
            self.producer_id,
            header.producer_epoch,
            self.coordinator_epoch if epoch is None else epoch,
            header.max_timestamp,
            self.batches if header.producer_epoch == self.epoch else (),
            self.transaction_start if marker is None or not marker.marker else None,
        )


class PendingAppend:
    """The changes of one append call, checked before the write.

    The state itself changes only in `ProducerState.update`.
    """

    def __init__(self, known: dict[int, Producer]) -> None:
        self._known = known
        self._changed: dict[int, Producer] = {}

    def add(self, header: BatchHeader, marker: ControlRecord | None = None) -> SequencedBatch | None:
        """Check the next batch of the call by a leader's rules. The batch has its final offsets.

        Returns:
            None if the batch must be appended. Otherwise the earlier batch that it repeats: the caller does
            not append it, and returns the offsets of the earlier batch.

        Raises:
            SequenceGapError: A sequence is missing or repeated.
            ProducerFencedError: A newer epoch has written.
            CoordinatorFencedError: The marker is of an older coordinator.
            TransactionStateError: The batch is outside its producer's transaction, or has the sequence of
                one that has ended.
        """
        producer_id = header.producer_id
        if producer_id != NO_PRODUCER:
            producer = self._changed.get(producer_id) or self._known.get(producer_id) or Producer(producer_id)
            if header.control:
                _check_marker(producer, header, marker)
                self._changed[producer_id] = producer.after_marker(header, marker)
            else:
                if producer.repeats_ended(header):
                    raise TransactionStateError(
                        f"producer {producer_id} epoch {header.producer_epoch}: sequence "
                        f"{header.base_sequence} was in a transaction that has ended",
                        remedy="abort this transaction; the next one has a new epoch",
                        offset=header.base_offset,
                    )
                earlier = producer.duplicate_of(header)
                if earlier is not None:
                    return earlier
                _check_data(producer, header)
                self._changed[producer_id] = producer.after_data(header)
        return None


class ProducerState:
    """All producers of one partition as of `end_offset`: every batch below it is included."""

    def __init__(self, end_offset: int = 0, producers: Iterable[Producer] = ()) -> None:
        self.end_offset = end_offset
        self._producers = {producer.producer_id: producer for producer in producers}
        self._open = self._find_open()
        self._complete: set[int] = set()  # producers whose batches were read from the log

    def _find_open(self) -> OpenTransactions:
        starts = ((p.producer_id, p.transaction_start) for p in self._producers.values())
        return OpenTransactions({number: start for number, start in starts if start is not None})

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def producers(self) -> list[Producer]:
        """Every producer, ordered by producer id."""
        return [self._producers[producer_id] for producer_id in sorted(self._producers)]

    def get(self, producer_id: int) -> Producer | None:
        """Return a producer; None if there is no state of it."""
        return self._producers.get(producer_id)

    # ------------------------------------------------------------ updates

    def begin(self) -> PendingAppend:
        """Begin a leader's append call. One at a time, under the log's lock."""
        return PendingAppend(self._producers)

    def update(self, header: BatchHeader, marker: ControlRecord | None = None) -> AbortedTransaction | None:
        """Apply one batch of the log, in offset order. Refuses nothing.

        Args:
            header: The batch.
            marker: The record of a control batch; None if it was emptied.

        Returns:
            The entry for the transaction index if the batch is a marker that aborts a transaction.
        """
        self.end_offset = header.last_offset + 1
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return None
        producer = self._producers.get(producer_id) or Producer(producer_id)
        if not header.control:
            self._producers[producer_id] = producer.after_data(header)
        elif marker is not None or header.producer_epoch >= producer.epoch:
            self._producers[producer_id] = producer.after_marker(header, marker)
        return self._open.update(header, marker)

    def learn(self, producers: Iterable[Producer]) -> None:
        """Apply the producers of a valid snapshot that a replay from an older one meets at this offset.

        The snapshot includes batches that cleaning has removed since, so it overrides the replayed state. A
        producer that it lacks stays: the log's producers and open transactions must not be removed.
        """
        for producer in producers:
            known = self._producers.get(producer.producer_id)
            if known is None or not known.same_in_snapshot(producer):
                self._producers[producer.producer_id] = producer
        self._open = self._find_open()

    def complete(self, producer_id: int, read: Callable[[Producer], tuple[SequencedBatch, ...]]) -> bool:
        """Replace the batches of a producer of a snapshot, once, by those of the log.

        Args:
            producer_id: The producer.
            read: Returns the last batches of the producer.

        Returns:
            Whether there are more batches now.
        """
        producer = self._producers.get(producer_id)
        if producer is None or producer_id in self._complete:
            return False
        if not 0 < len(producer.batches) < KEPT_BATCHES:
            return False
        batches = read(producer)
        self._complete.add(producer_id)
        self._producers[producer_id] = replace(producer, batches=batches)
        return len(batches) > len(producer.batches)

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Remove producers that were idle for `expiration_ms` without an open transaction.

        Returns:
            Their ids.
        """
        gone = [p.producer_id for p in self._producers.values() if p.is_expired(now_ms, expiration_ms)]
        for producer_id in gone:
            del self._producers[producer_id]
        self._complete.difference_update(gone)
        return gone

    # ------------------------------------------------------------ transactions

    def open_transactions(self) -> dict[int, int]:
        """Return producer id -> first offset of its undecided transaction, oldest first."""
        return self._open.first_offsets()

    def open_since(self) -> int | None:
        """Return the first offset of the oldest undecided transaction; None if there is none."""
        return self._open.oldest()

    @property
    def stable_offset(self) -> int:
        """Return the end of a `read_committed` read: every transaction below is decided."""
        first = self._open.oldest()
        return self.end_offset if first is None else first


def _check_data(producer: Producer, header: BatchHeader) -> None:
    who = f"producer {producer.producer_id} epoch {header.producer_epoch}"
    if header.base_sequence < 0 or header.producer_epoch < 0:
        raise SequenceGapError(
            f"{who}: sequence {header.base_sequence} is none",
            remedy="give epoch and sequence, both from 0 on, with a producer id",
        )
    if header.producer_epoch < producer.epoch:
        raise ProducerFencedError(
            f"{who}: epoch {producer.epoch} has written already",
            remedy="another instance took over: stop this one",
        )
    if producer.epoch == NO_EPOCH:
        expected = header.base_sequence  # unknown: its earlier batches may have been removed
    elif header.producer_epoch > producer.epoch or not producer.batches:
        expected = 0
    else:
        expected = add_sequence(producer.last_sequence, 1)
    if header.base_sequence != expected:
        raise SequenceGapError(
            f"{who}: sequence {header.base_sequence} came, {expected} is next",
            remedy="repeat the missing or failed batches first, in order",
            offset=header.base_offset,
        )
    if producer.transaction_start is not None and not header.transactional:
        raise TransactionStateError(
            f"{who}: a batch outside the transaction that it opened at offset {producer.transaction_start}",
            remedy="end the transaction first",
            offset=header.base_offset,
        )


def _check_marker(producer: Producer, header: BatchHeader, marker: ControlRecord | None) -> None:
    who = f"producer {producer.producer_id} epoch {header.producer_epoch}"
    if header.producer_epoch < producer.epoch:
        raise ProducerFencedError(
            f"{who}: a marker of an older epoch than {producer.epoch}",
            remedy="the transaction was fenced already: nothing to do",
            offset=header.base_offset,
        )
    epoch = marker.coordinator_epoch if marker is not None else None
    if epoch is not None and epoch < producer.coordinator_epoch:
        raise CoordinatorFencedError(
            f"{who}: a marker of coordinator epoch {epoch}, known is {producer.coordinator_epoch}",
            remedy="a newer coordinator owns this transaction: nothing to do",
            offset=header.base_offset,
        )
