"""The transactions of a log for a cleaning, from one walk over headers and markers.

The walk is made when the scan reads the first batch of a transaction, so a log without transactions costs
nothing. It uses the log itself, not the transaction indexes: an index that lost an entry would let aborted
records replace committed ones. It ends at the limit, or above it where the last transaction ends that began
below it: a limit is never above the last stable offset, so every outcome is decided.

Aborted records are dead. A marker stays as long as any batch of its transaction is left, even an empty one:
until then it decides their outcome. The cleaning that finds none left gives the marker a delete horizon, and
the marker goes when that has passed, like a tombstone. These markers stay nevertheless:

- a marker that is the last batch of its producer: it holds the epoch, and fences off older ones. It stays
  whole; an emptied one would be useless to Kafka's replay. When the producer has been silent for
  `producer.id.expiration.ms`, the log has forgotten it, and the marker goes like any other;
- a marker at the very end of an output, for the file must cover its range;
- control records that are no markers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lastword.errors import CorruptFileError
from lastword.partition.leases import MAY_GO, NO_HORIZON, TombstoneFacts, held_by
from lastword.partition.producer_state import FIRST_NAMED_ID, PRODUCER_EXPIRATION_MS
from lastword.partition.transactions import (
    BatchColumns,
    Decisions,
    MarkerTracker,
    OpenTransactions,
    control_of,
)
from lastword.records.batch import BatchHeader
from lastword.records.record import ControlRecord
from lastword.segment import names
from lastword.segment.indexes import AbortedTransaction, decode_aborted
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TransactionFacts:
    """The control batches below the limit, by the offset of their record.

    Attributes:
        due: Go in this cleaning.
        without_horizon: Get their delete horizon in it.
        aborted: Aborted transactions of which a batch is left, as a transaction index names them.
        segments: Indexes of the segments that need a rewrite for any of this.
        spoke_ms: Producer id to the timestamp of its last batch or marker.
    """

    due: frozenset[int] = frozenset()
    without_horizon: frozenset[int] = frozenset()
    aborted: tuple[AbortedTransaction, ...] = ()
    segments: frozenset[int] = frozenset()
    spoke_ms: Mapping[int, int] = field(default_factory=dict)


NOTHING = TransactionFacts()


class Transactions:
    """The outcomes of batches, for `resolve`; afterwards `facts`."""

    def __init__(
        self,
        segments: Sequence[Segment],
        limit: int,
        now_ms: int,
        expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        """`segments`: all of the log, also above the limit. `expiration_ms`: expiry of silent producers."""
        self._segments = segments
        self._limit = limit
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms
        self._decisions: Decisions | None = None
        self._walked_from = 0
        self.facts = NOTHING

    def of_batches(self, batches: BatchColumns) -> NDArray[np.uint8]:
        """Return the outcomes of these batches.

        The first call makes the walk. So does a call for batches below it: a scan of new segments may be
        followed by one of the whole log.
        """
        first, decisions = int(batches.base_offsets[0]), self._decisions
        if decisions is None or first < self._walked_from:
            decisions = self.walk(first)
        return decisions.of_batches(batches)

    def walk(self, first_offset: int) -> Decisions:
        """Read headers and markers from the batch of this offset on: the first of any transaction."""
        walk = _Walk(self._segments, self._limit)
        walk.run(first_offset)
        self._walked_from = first_offset
        self._decisions, self.facts = walk.decisions(), walk.facts(self._now_ms, self._expiration_ms)
        return self._decisions


def walked(
    segments: Sequence[Segment], limit: int, now_ms: int, expiration_ms: int, first_offset: int
) -> TransactionFacts:
    """Return the facts by a walk from the first transactional batch on; below 0: the log has none."""
    transactions = Transactions(segments, limit, now_ms, expiration_ms)
    if first_offset >= 0:
        transactions.walk(first_offset)
    return transactions.facts


class _Control(NamedTuple):
    """A control batch of whose transaction no batch is left."""

    segment: int
    offset: int
    producer_id: int
    horizon_ms: int | None


@dataclass(slots=True)
class _Walk:
    """A walk over batches in offset order, from the first batch of any transaction or below."""

    segments: Sequence[Segment]
    limit: int
    open: OpenTransactions = field(default_factory=OpenTransactions)
    tracker: MarkerTracker = field(default_factory=MarkerTracker)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    may_go: list[_Control] = field(default_factory=list)
    emptied: list[tuple[int, int, int]] = field(default_factory=list)  # data: segment, offset, producer id
    last: dict[int, int] = field(default_factory=dict)  # producer id to the end of its last batch
    last_data: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)  # segment to the end of its last batch
    spoke_ms: dict[int, int] = field(default_factory=dict)

    def run(self, first_offset: int) -> None:
        """Read up to the limit, or to the end of the last transaction that began below it."""
        bases = [segment.base_offset for segment in self.segments]
        for number in range(max(bisect_right(bases, first_offset) - 1, 0), len(bases)):
            segment = self.segments[number]
            for header in segment.headers():
                if header.base_offset >= self.limit:
                    oldest = self.open.oldest()
                    if oldest is None or oldest >= self.limit:
                        return
                self._batch(number, segment, header)

    def _batch(self, number: int, segment: Segment, header: BatchHeader) -> None:
        marker = self._marker(segment, header) if header.control else None
        entry = self.open.update(header, marker)
        if entry is not None:
            self.aborted.append(entry)
        if header.base_offset < self.limit:
            self._below_limit(number, header, marker)

    def _below_limit(self, number: int, header: BatchHeader, marker: ControlRecord | None) -> None:
        offset, producer_id = header.last_offset, header.producer_id
        self.ends[number] = offset
        if producer_id >= 0:
            self.last[producer_id] = offset
            self.spoke_ms[producer_id] = header.max_timestamp
        if header.control:
            if self.tracker.control(header, marker):
                horizon_ms = 0 if marker is None else header.delete_horizon_ms  # emptied: nothing to wait for
                self.may_go.append(_Control(number, offset, producer_id, horizon_ms))
            return
        self.tracker.data(header)
        if producer_id >= 0:
            self.last_data[producer_id] = offset
            if header.count == 0:
                self.emptied.append((number, offset, producer_id))

    def _marker(self, segment: Segment, header: BatchHeader) -> ControlRecord | None:
        return control_of(segment.verified_batch(header), header, segment.file, position=0)

    def decisions(self) -> Decisions:
        """Return the outcomes of all transactions."""
        return Decisions(self.aborted, undecided=self.open.first_offsets())

    def facts(self, now_ms: int, expiration_ms: int) -> TransactionFacts:
        """Return which control batches go, stay, or get a horizon."""
        due, without_horizon, worth = set(), set(), set()
        for control in self.may_go:
            marker = TombstoneFacts(
                control.offset,
                now_ms if control.horizon_ms is None else control.horizon_ms,
                has_horizon=control.horizon_ms is not None,
                last_of_producer=self.last.get(control.producer_id) == control.offset
                and not is_forgotten(
                    control.producer_id, self.spoke_ms[control.producer_id], now_ms, expiration_ms
                ),
            )
            held = held_by(marker, now_ms)
            if held == MAY_GO:  # `ends_file` is known only when the output is written (`rewrite`)
                due.add(control.offset)
                if self.ends[control.segment] != control.offset:
                    worth.add(control.segment)
            elif held == NO_HORIZON:
                without_horizon.add(control.offset)
                worth.add(control.segment)
        for number, offset, producer_id in self.emptied:
            if offset not in (self.last_data[producer_id], self.ends[number]):
                worth.add(number)  # not its producer's last any more: its marker stays as long as this batch
        below = tuple(entry for entry in self.aborted if entry.last_offset < self.limit)
        return TransactionFacts(
            frozenset(due), frozenset(without_horizon), below, frozenset(worth), self.spoke_ms
        )


def is_forgotten(producer_id: int, spoke_ms: int, now_ms: int, expiration_ms: int) -> bool:
    """Return whether the log has forgotten a producer that was last active then. Named ones never are."""
    return producer_id < FIRST_NAMED_ID and now_ms - spoke_ms >= expiration_ms


def index_entries(
    facts: TransactionFacts, sources: Sequence[Segment], first_offset: int, next_offset: int
) -> list[AbortedTransaction]:
    """Return the transaction index of an output.

    Entries of the sources' own indexes are used for the transactions that still need one; for others, those
    of the walk.
    """
    wanted = [entry for entry in facts.aborted if first_offset <= entry.last_offset < next_offset]
    if not wanted:
        return []
    known: dict[tuple[int, int], AbortedTransaction] = {}
    for source in sources:
        data = source.stored.read(names.TXN_INDEX)
        if data is not None:
            try:
                entries = decode_aborted(data, source.stored.path(names.TXN_INDEX))
            except CorruptFileError:
                continue
            known.update({(entry.producer_id, entry.last_offset): entry for entry in entries})
    chosen = []
    for entry in wanted:
        there = known.get((entry.producer_id, entry.last_offset))
        sound = there is not None and there.first_offset <= entry.first_offset
        chosen.append(there if there is not None and sound else entry)
    return sorted(chosen, key=lambda entry: entry.last_offset)
