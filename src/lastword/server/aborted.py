"""The aborted transactions of a committed fetch.

A transaction index has no checksum: one wrong bit would give a client aborted records, or keep committed ones
from it. If a segment from the start of a fetch on has an index, the transactions are read from the batches of
the segments, as readers do (`partition.transactions`), each segment once. The index gives only the first
offset of a transaction that began in an earlier segment than the fetch: there it decides nothing. The active
segment is read once, too; what this process appends to it later is known without reading it again.

A log without an index has no aborted transaction, and is not read.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from lastword.errors import CorruptFileError
from lastword.partition.transactions import producer_batches
from lastword.segment.indexes import AbortedTransaction
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from lastword.server.topics import ServedLog

MOST_SEGMENTS = 10_000
"""Most segments whose transactions are kept in memory."""


class Ended(NamedTuple):
    """A marker.

    `first`: the first offset of its transaction in the segment of the marker; None if there is none.
    """

    producer_id: int
    first: int | None
    last: int
    aborted: bool


class SegmentTransactions(NamedTuple):
    """The markers of a segment, and the transactions that are open at its end, by producer.

    `indexed`: the entries of its index before it was read. An active segment gets others later.
    """

    ended: list[Ended]
    undecided: dict[int, int]
    indexed: int


class AbortedTransactions:
    """The aborted transactions of all logs. Used by one thread at a time for each log."""

    def __init__(self) -> None:
        self._indexes: dict[tuple[object, ...], list[AbortedTransaction] | None] = {}
        self._read: dict[tuple[object, ...], SegmentTransactions] = {}

    def is_known(self, log: ServedLog, start: int) -> bool:
        """Return whether `of` reads no batches for the first segment of a fetch at `start`."""
        segments = log.segment_set.starting_at(start)
        first = segments[0]
        return _key(first) in self._read or not self._has_index(log, segments)

    def of(self, log: ServedLog, start: int, end: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that overlap [start, end).

        They are in the order of their first offsets: kafkajs 2.2.4 shows records of a transaction that is
        named behind one which began later. A broker has them in the order in which they ended.
        """
        segments = log.segment_set.starting_at(start)
        if not self._has_index(log, segments):
            return []
        found: dict[tuple[int, int], None] = {}
        undecided: dict[int, int] = {}
        met: set[int] = set()  # producers of which a marker was met
        for segment in segments:
            index = self._index(log, segment)
            read = self._transactions(segment, index or [])
            for marker in read.ended:
                first = undecided.pop(marker.producer_id, marker.first)
                if marker.aborted and marker.last >= start:
                    if marker.producer_id not in met:
                        first = _earlier(index or [], marker, segments[0].base_offset, first)
                    if first is not None and first < end:
                        found[marker.producer_id, first] = None
                met.add(marker.producer_id)
            if segment.active:
                for entry in (index or [])[read.indexed :]:
                    if entry.last_offset >= start and entry.first_offset < end:
                        found[entry.producer_id, entry.first_offset] = None
            for producer_id, first in read.undecided.items():
                undecided.setdefault(producer_id, first)
            if segment.next_offset >= end and all(first >= end for first in undecided.values()):
                break
        return sorted(found, key=itemgetter(1))

    def _has_index(self, log: ServedLog, segments: tuple[Segment, ...]) -> bool:
        return any(self._index(log, segment) != [] for segment in segments)

    def _index(self, log: ServedLog, segment: Segment) -> list[AbortedTransaction] | None:
        """Return the entries of the index of a segment; None if it cannot be read."""
        if segment.active:
            return log.aborted_of(segment)
        key = _key(segment)
        if key not in self._indexes:
            if len(self._indexes) > MOST_SEGMENTS:
                self._indexes.clear()
            try:
                self._indexes[key] = log.aborted_of(segment)
            except CorruptFileError:
                self._indexes[key] = None
        return self._indexes[key]

    def _transactions(self, segment: Segment, index: list[AbortedTransaction]) -> SegmentTransactions:
        key = _key(segment)
        if key not in self._read:
            if len(self._read) > MOST_SEGMENTS:
                self._read.clear()
            self._read[key] = _transactions(segment)._replace(indexed=len(index))
        return self._read[key]


def _key(segment: Segment) -> tuple[object, ...]:
    """Return what changes when a file is replaced, and when an active segment is closed."""
    return segment.file, segment.id, segment.active


def _earlier(
    index: list[AbortedTransaction], marker: Ended, base_offset: int, first: int | None
) -> int | None:
    """Return the first offset that the index has for a transaction, if that is below the fetched segments."""
    for entry in index:
        if (entry.producer_id, entry.last_offset) == (marker.producer_id, marker.last):
            return entry.first_offset if entry.first_offset < base_offset else first
    return first


def _transactions(segment: Segment) -> SegmentTransactions:
    """Read the transactions of a segment. Raises DataError."""
    undecided: dict[int, int] = {}
    ended = []
    for header, marker in producer_batches(segment, 0, verify=False):
        producer_id = header.producer_id
        if header.control:
            segment.verified_batch(header)
            if marker is None or marker.marker:  # an emptied marker ends its transaction without records
                aborted = marker is not None and marker.type == "abort"
                first = undecided.pop(producer_id, None)
                ended.append(Ended(producer_id, first, header.last_offset, aborted))
        elif header.transactional:
            undecided.setdefault(producer_id, header.base_offset)
    return SegmentTransactions(ended, undecided, 0)
