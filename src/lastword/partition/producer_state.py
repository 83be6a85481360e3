"""What a partition remembers of each producer: epoch, last sequences, open transaction. Nothing here opens
a file.

A producer with an id numbers its records: each batch has an epoch and the sequence of its first record;
sequences lie in 0 … 2^31-1 and wrap to 0. The state of a partition at an offset follows from the batches
below it, so it is rebuilt by replay (headers and markers are enough) from a snapshot (`snapshots`) or from
the log start.

Two ways in:

    leader   pending = state.begin(); pending.add(header, marker) for each batch: checks, may answer
    "duplicate"
             ... the bytes are written ...
             state.apply(pending): now it is so; gives the aborted transactions for the transaction index
    replay   state.update(header, marker) for each batch that lies in the log: what was accepted once is not
    judged again

A leader's rules: an older epoch is fenced; a new epoch starts at sequence 0; a known epoch goes on at the
last sequence + 1 (at 0 if the producer is known from a marker only); an unknown producer may start
anywhere. One of the last five batches of a producer sent again is a duplicate: it is answered with the
offsets it got and never appended again.

The last stable offset is the first offset of the oldest transaction that is undecided, or decided by a
marker that lies at or above the high watermark; without one it is the high watermark.

An emptied marker (the cleaner leaves one where it is a producer's last trace) has no content; its header
still tells producer id and epoch, and they are kept, so that an older epoch stays fenced after a rebuild.
Kafka's replay ignores it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lastword.errors import (
    CoordinatorFencedError,
    ProducerFencedError,
    SequenceGapError,
    TransactionStateError,
)
from lastword.partition.transactions import CompletedTransaction, OpenTransactions
from lastword.records.batch import BatchHeader
from lastword.records.record import ControlRecord
from lastword.segment.txn_index import AbortedTransaction
from lastword.wire import INT32_MAX

NO_PRODUCER = -1
NO_SEQUENCE = -1
NO_EPOCH = -1
FIRST_NAMED_ID = 1 << 62
PRODUCER_EXPIRATION_MS = 86_400_000  # Kafka's default
"""Producer ids from here on belong to producers with names (`api.producers`); no controller gives them. They
are never forgotten: whoever named one may come back after years."""
KEPT_BATCHES = 5
"""Batches of a producer that are known as duplicates when they come again: Kafka's bound of requests in
flight."""


def add_sequence(sequence: int, increment: int) -> int:
    """`sequence + increment`, wrapping from 2^31-1 to 0."""
    return (sequence + increment) & INT32_MAX


def subtract_sequence(sequence: int, decrement: int) -> int:
    """`sequence - decrement`, wrapping from 0 to 2^31-1."""
    return (sequence - decrement) & INT32_MAX


@dataclass(frozen=True, slots=True)
class SequencedBatch:
    """One remembered batch. `offset_delta` is last minus first offset; `timestamp` its maximum, ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return subtract_sequence(self.last_sequence, self.offset_delta)


@dataclass(frozen=True, slots=True)
class Producer:
    """One producer id's state. `batches`: the newest of its epoch, oldest first; `transaction_start`: None
    if none is open."""

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    batches: tuple[SequencedBatch, ...] = ()
    transaction_start: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    def duplicate_of(self, header: BatchHeader) -> SequencedBatch | None:
        """The remembered batch that `header` repeats, if any."""
        if header.producer_epoch != self.epoch or header.base_sequence < 0:
            return None
        wanted = (header.base_sequence, header.last_sequence)
        for batch in self.batches:
            if (batch.first_sequence, batch.last_sequence) == wanted:
                return batch
        return None

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Idle for that long, and no transaction open; a producer with a name never is."""
        return (
            self.transaction_start is None
            and self.producer_id < FIRST_NAMED_ID
            and now_ms - self.last_timestamp >= expiration_ms
        )

    def tells_the_same(self, other: Producer) -> bool:
        """Would a snapshot hold the same of both?"""
        return (
            self.epoch == other.epoch
            and self.coordinator_epoch == other.coordinator_epoch
            and self.last_timestamp == other.last_timestamp
            and self.batches[-1:] == other.batches[-1:]
            and self.transaction_start == other.transaction_start
        )

    def after_data(self, header: BatchHeader) -> Producer:
        delta = header.last_offset - header.base_offset
        batch = SequencedBatch(header.last_sequence, header.last_offset, delta, header.max_timestamp)
        kept = self.batches[1 - KEPT_BATCHES :] if header.producer_epoch == self.epoch else ()
        start = self.transaction_start
        if start is None and header.transactional:
            start = header.base_offset
        return Producer(
            self.producer_id,
            header.producer_epoch,
            self.coordinator_epoch,
            header.max_timestamp,
            (*kept, batch),
            start,
        )

    def after_marker(self, header: BatchHeader, marker: ControlRecord | None) -> Producer:
        """The state after a marker. An emptied one (None) is known by its header only: it decides no
        transaction."""
        epoch = marker.coordinator_epoch if marker is not None else None
        return Producer(
            self.producer_id,
            header.producer_epoch,
            self.coordinator_epoch if epoch is None else epoch,
            header.max_timestamp,
            self.batches if header.producer_epoch == self.epoch else (),
            self.transaction_start if marker is None else None,
        )


class PendingAppend:
    """What one append call is about to change. Checked before the write; nothing of the state changes until
    `apply`."""

    def __init__(self, known: dict[int, Producer]) -> None:
        self._known = known
        self._changed: dict[int, Producer] = {}
        self.batches: list[tuple[BatchHeader, ControlRecord | None]] = []

    def add(self, header: BatchHeader, marker: ControlRecord | None = None) -> SequencedBatch | None:
        """Checks the next batch of the call, which has its final offsets, by a leader's rules.

        Returns None if it is to be appended, or the earlier batch that it repeats: then leave it out and
        answer with that one's offsets. Raises SequenceGapError, ProducerFencedError, CoordinatorFencedError
        or TransactionStateError.
        """
        producer_id = header.producer_id
        if producer_id != NO_PRODUCER:
            producer = self._changed.get(producer_id) or self._known.get(producer_id) or Producer(producer_id)
            if header.control:
                _check_marker(producer, header, marker)
                self._changed[producer_id] = producer.after_marker(header, marker)
            else:
                earlier = producer.duplicate_of(header)
                if earlier is not None:
                    return earlier
                _check_data(producer, header)
                self._changed[producer_id] = producer.after_data(header)
        self.batches.append((header, marker))
        return None


class ProducerState:
    """All producers of one partition, as of `end_offset` (every batch below it is in)."""

    def __init__(self, end_offset: int = 0, producers: Iterable[Producer] = ()) -> None:
        self.reset(end_offset, producers)

    def reset(self, end_offset: int, producers: Iterable[Producer] = ()) -> None:
        """Starts over: nothing but `producers` is known at `end_offset`."""
        self.end_offset = end_offset
        self._producers = {producer.producer_id: producer for producer in producers}
        self._open = OpenTransactions(
            {
                p.producer_id: p.transaction_start
                for p in self._producers.values()
                if p.transaction_start is not None
            }
        )
        self._unreplicated: list[CompletedTransaction] = []

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def producers(self) -> list[Producer]:
        """Every producer, by producer id."""
        return [self._producers[producer_id] for producer_id in sorted(self._producers)]

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    # ------------------------------------------------------------ batches come in

    def begin(self) -> PendingAppend:
        """A leader's append call begins. One at a time, under the log's lock."""
        return PendingAppend(self._producers)

    def apply(self, pending: PendingAppend) -> list[AbortedTransaction]:
        """The batches of `pending` are in the log now. Returns what the transaction index gets, in order."""
        entries = [self.update(header, marker) for header, marker in pending.batches]
        return [entry for entry in entries if entry is not None]

    def update(self, header: BatchHeader, marker: ControlRecord | None = None) -> AbortedTransaction | None:
        """One batch that lies in the log, in offset order; `marker`: a control batch's record, None if it
        was emptied.

        Returns the entry for the transaction index if the batch is a marker that aborts a transaction.
        Refuses nothing.
        """
        self.end_offset = header.last_offset + 1
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return None
        producer = self._producers.get(producer_id) or Producer(producer_id)
        if not header.control:
            if header.transactional:
                self._open.begin(producer_id, header.base_offset)
            self._producers[producer_id] = producer.after_data(header)
            return None
        if marker is None:
            if header.producer_epoch >= producer.epoch:
                self._producers[producer_id] = producer.after_marker(header, None)
            return None
        self._producers[producer_id] = producer.after_marker(header, marker)
        completed = self._open.end(producer_id, header.last_offset, marker)
        if completed is None:
            return None
        self._unreplicated.append(completed)
        return self._open.index_entry(completed)

    def learn(self, producers: Iterable[Producer]) -> None:
        """What a sound snapshot says of this offset, met during a replay that began at an older one.

        It saw batches that cleaning has removed since, so where the two differ it is right. What it does not
        mention stays: a producer that the log has, and an open transaction above all, is never forgotten
        because a snapshot does not know it.
        """
        for producer in producers:
            known = self._producers.get(producer.producer_id)
            if known is None or not known.tells_the_same(producer):
                self._producers[producer.producer_id] = producer
        self._open = OpenTransactions(
            {
                p.producer_id: p.transaction_start
                for p in self._producers.values()
                if p.transaction_start is not None
            }
        )

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forgets producers idle for `expiration_ms` that have no open transaction; returns their ids."""
        gone = [p.producer_id for p in self._producers.values() if p.is_expired(now_ms, expiration_ms)]
        for producer_id in gone:
            del self._producers[producer_id]
        return gone

    # ------------------------------------------------------------ what is decided

    def open_transactions(self) -> dict[int, int]:
        """Producer id -> first offset of its undecided transaction, oldest first."""
        return self._open.first_offsets()

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Transactions whose markers lie below it hold the last stable offset back no longer."""
        if self._unreplicated:
            self._unreplicated = [done for done in self._unreplicated if done.last_offset >= high_watermark]

    def open_since(self) -> int | None:
        """First offset of the oldest undecided transaction; None if there is none."""
        return self._open.oldest()

    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is undecided, or whose marker the high watermark has
        not passed."""
        waiting = [done.first_offset for done in self._unreplicated]
        oldest = self._open.oldest()
        if oldest is not None:
            waiting.append(oldest)
        return min(waiting, default=None)

    def last_stable_offset(self, high_watermark: int, log_start: int = 0) -> int:
        """Where `read_committed` ends: everything below is decided. Never above the high watermark nor
        below the log start."""
        self.high_watermark_moved(high_watermark)
        unstable = self.first_unstable_offset() if self._unreplicated else self._open.oldest()
        if unstable is None:
            return high_watermark
        return min(max(unstable, log_start), high_watermark)


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
