"""Transactions of a log: which batches were committed or aborted, and which markers may be removed.

A transaction in one partition is the batches of one producer id from its first transactional batch up to the
next marker of that producer id, COMMIT or ABORT. A decision is bound to that range of offsets and not only to
the producer id: an entry of an aborted transaction never applies to a batch outside [first offset, marker],
wherever reading began. (Kafka's cleaner binds it to the producer id, and skips committed batches when its
scan begins behind a marker.)

    data  data  data  COMMIT   data  data  ABORT   data  data
    |---- committed ------|    |--- aborted ---|   |undecided|   <- the last stable offset is its first

- `Decisions`: the outcome of each batch, from the entries of transaction indexes or from a scan of the
  batches (`scan`);
- `OpenTransactions`: the undecided transactions while a log is written or replayed, and so the last stable
  offset;
- `MarkerTracker`: the markers that a cleaning may remove;
- `Outcomes`: the decisions of a range of a log, looked up for a committed read.

A marker may be removed only if there is no data batch of its transaction. An empty data *batch* counts as
data: so a marker stays for at least one cleaning longer than its last batch.

A committed read below the last stable offset meets decided transactions only. Most logs have none, so nothing
is looked up before the first transactional batch. Then one scan finds the outcomes. It reads the headers and
markers of the range, and of the log behind it until the transactions of the range are decided.

Reads do not use the transaction indexes. These have no checksum, and a reader cannot see whether one is
complete: a segment without aborted transactions has none. One wrong bit would show aborted records. They are
kept for brokers, and `verify` compares them with the log.

Outcomes stay valid when segments are rewritten later, because a decision is bound to offsets. The reverse
does not hold: a batch of an old file must not be judged by files from which a rewrite has removed the
markers. So after the scan every file must still be the listed one (FileVanishedError otherwise; the read
continues from its position with a new list). Files that are held open need no such check.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lastword.errors import CorruptBatchError, FileVanishedError
from lastword.partition.segment_store import SegmentSet
from lastword.records.batch import BatchHeader, fields_of, payload_of
from lastword.records.record import ControlRecord, parse_control
from lastword.segment.indexes import AbortedTransaction
from lastword.segment.segment import Segment
from lastword.wire import CONTROL_BIT, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lastword.records.chunk import Chunk


class BatchOutcome(IntEnum):
    """The outcome of a batch. A data batch outside any transaction is committed."""

    COMMITTED = 0
    ABORTED = 1
    UNDECIDED = 2
    CONTROL = 3


def control_of(
    buffer: Any, header: BatchHeader, file: str, *, position: int | None = None
) -> ControlRecord | None:
    """Return the record of a control batch; None for a data batch or an emptied marker.

    Raises CorruptBatchError. `position`: of the batch in `buffer`, by default its position in the file.
    """
    if not header.control:
        return None
    for _, delta, _, key, value, _ in fields_of(payload_of(buffer, header, file, position), header, file):
        return parse_control(key, value, file, header.position, header.base_offset + delta)
    return None


class OpenTransactions:
    """Transactions that have begun and are undecided, oldest first. Offsets must rise."""

    def __init__(self, first_offsets: dict[int, int] | None = None) -> None:
        """`first_offsets`: producer id -> first offset, for instance of a snapshot, in any order."""
        self._first: dict[int, int] = {}
        if first_offsets:
            self._first.update(sorted(first_offsets.items(), key=lambda item: item[1]))

    def __len__(self) -> int:
        return len(self._first)

    def first_offsets(self) -> dict[int, int]:
        """Return producer id -> first offset of its open transaction, oldest first."""
        return dict(self._first)

    def update(self, header: BatchHeader, marker: ControlRecord | None) -> AbortedTransaction | None:
        """Apply a batch: it may begin the transaction of its producer, or end it.

        Args:
            header: The batch.
            marker: The record of a control batch; None if it was emptied.

        Returns:
            The entry for the transaction index if the batch is a marker that aborts a transaction.
        """
        if not header.control and header.transactional:
            self._first.setdefault(header.producer_id, header.base_offset)
        if marker is None or not marker.marker:
            return None
        first = self._first.pop(header.producer_id, None)
        if first is None or marker.type != "abort":
            return None
        oldest = self.oldest()
        stable = header.next_offset if oldest is None else oldest
        return AbortedTransaction(header.producer_id, first, header.last_offset, stable)

    def oldest(self) -> int | None:
        """Return the first offset of the oldest open transaction; None if there is none."""
        return next(iter(self._first.values()), None)


class BatchColumns(NamedTuple):
    """Columns of the table of some batches: int64 arrays of one length."""

    attributes: np.ndarray
    producer_ids: np.ndarray
    base_offsets: np.ndarray
    last_offsets: np.ndarray

    @classmethod
    def of(cls, chunk: Chunk) -> BatchColumns:
        """Return the columns of the batches of a chunk."""
        from lastword.kernels import table as fields

        columns = (fields.ATTRIBUTES, fields.PRODUCER_ID, fields.BASE_OFFSET, fields.LAST_OFFSET)
        return cls(*(chunk.table[:, column] for column in columns))


class Decisions:
    """The outcome of every batch of a range of a log."""

    def __init__(
        self, aborted: Iterable[AbortedTransaction] = (), *, undecided: dict[int, int] | None = None
    ) -> None:
        """Index the decisions.

        Args:
            aborted: Every entry that overlaps the range.
            undecided: Producer id -> first offset of its open transaction; exact.
        """
        self.aborted = sorted(set(aborted), key=lambda entry: entry.last_offset)
        self.undecided = dict(undecided or {})
        self._ranges: dict[int, tuple[list[int], list[int]]] = {}
        for entry in sorted(self.aborted, key=lambda entry: (entry.first_offset, entry.last_offset)):
            firsts, lasts = self._ranges.setdefault(entry.producer_id, ([], []))
            firsts.append(entry.first_offset)
            lasts.append(entry.last_offset)

    def of_header(self, header: BatchHeader) -> BatchOutcome:
        """Return the outcome of one batch."""
        if header.control:
            return BatchOutcome.CONTROL
        if not header.transactional:
            return BatchOutcome.COMMITTED
        ranges = self._ranges.get(header.producer_id)
        if ranges is not None:
            at = bisect_right(ranges[0], header.base_offset) - 1
            if at >= 0 and header.last_offset <= ranges[1][at]:
                return BatchOutcome.ABORTED
        first = self.undecided.get(header.producer_id)
        if first is not None and first <= header.base_offset:
            return BatchOutcome.UNDECIDED
        return BatchOutcome.COMMITTED

    def of_batches(self, batches: BatchColumns) -> np.ndarray:
        """Return the outcomes of many batches as uint8 of `BatchOutcome`."""
        import numpy as np

        attributes, producer_ids, base_offsets, last_offsets = batches
        outcomes = np.zeros(len(attributes), np.uint8)
        transactional = (attributes & TRANSACTIONAL_BIT != 0) & (attributes & CONTROL_BIT == 0)
        if transactional.any():
            undecided = np.zeros(len(attributes), bool)
            aborted = np.zeros(len(attributes), bool)
            for producer_id in np.unique(producer_ids[transactional]).tolist():
                mine = transactional & (producer_ids == producer_id)
                first = self.undecided.get(producer_id)
                if first is not None:
                    undecided |= mine & (base_offsets >= first)
                ranges = self._ranges.get(producer_id)
                if ranges is not None:
                    firsts, lasts = (np.array(side, np.int64) for side in ranges)
                    at = np.searchsorted(firsts, base_offsets, side="right") - 1
                    aborted |= mine & (at >= 0) & (last_offsets <= lasts[at])
            outcomes[transactional & undecided] = BatchOutcome.UNDECIDED
            outcomes[aborted] = BatchOutcome.ABORTED
        outcomes[attributes & CONTROL_BIT != 0] = BatchOutcome.CONTROL
        return outcomes


def scan(
    batches: Iterable[tuple[BatchHeader, ControlRecord | None]], *, until: int | None = None
) -> Decisions:
    """Compute decisions from batches in offset order, without an index: one walk over headers and markers.

    The aborted entries are those of the transaction indexes, if the walk began at or below their
    transactions. `undecided` is exact as of the last batch.

    Args:
        batches: Each header, and for a control batch its record (None if it was emptied; see `control_of`).
        until: Stop once every transaction that began below this offset is decided.
    """
    open_transactions = OpenTransactions()
    aborted = []
    for header, marker in batches:
        if until is not None and header.base_offset >= until:
            oldest = open_transactions.oldest()
            if oldest is None or oldest >= until:
                break
        entry = open_transactions.update(header, marker)
        if entry is not None:
            aborted.append(entry)
    return Decisions(aborted, undecided=open_transactions.first_offsets())


class MarkerTracker:
    """The markers that a cleaning may remove, from the batches of a log below the last stable offset.

    The batches are given in offset order, from the first batch of any transaction on.
    """

    def __init__(self) -> None:
        self._with_data: set[int] = set()  # ids of producers with data since their last marker

    def data(self, header: BatchHeader) -> None:
        """Note a data batch, even an empty one."""
        if header.transactional:
            self._with_data.add(header.producer_id)

    def control(self, header: BatchHeader, marker: ControlRecord | None) -> bool:
        """Return whether a control batch may be removed once its delete horizon has passed.

        A batch without a horizon yet may then be given one. `marker`: its content, None if it was emptied.
        Emptied markers may be removed; control records that are no markers never.
        """
        if marker is None:
            return True
        has_data = header.producer_id in self._with_data
        if marker.marker:
            self._with_data.discard(header.producer_id)
        return marker.marker and not has_data


# ---------------------------------------------------------------- outcomes of a range of a log


KERNEL_BYTES = 8 << 20
"""Kernels are faster from this size on, even if they must be loaded (about 0.4 s, once a process)."""
KERNEL_BYTES_LOADED = 256 << 10


class ScannedLog(Protocol):
    """The parts of a log view that `Outcomes` reads."""

    is_held: bool

    @property
    def segment_set(self) -> SegmentSet:
        """The segments, in order."""

    @property
    def log_end(self) -> int:
        """Next offset of the log."""


class Outcomes:
    """The outcomes of transactions that overlap [start, end) offsets of a log.

    With an `end` above the stable offset, batches that are not known as aborted count as undecided. Every
    method may raise FileVanishedError, and DataError for damage.

    Args:
        log: The log.
        end: End of the range.
        start: Start of the range. None: that of the first batch with a transaction; no later one is below it.
    """

    def __init__(self, log: ScannedLog, end: int, *, start: int | None = None) -> None:
        self._log = log
        self._end = end
        self._start = start
        self._decisions: Decisions | None = None

    def of_header(self, header: BatchHeader) -> BatchOutcome:
        """Return the outcome of one batch."""
        if header.control:
            return BatchOutcome.CONTROL
        if not header.transactional:
            return BatchOutcome.COMMITTED
        return self._known(header.base_offset).of_header(header)

    def of_batches(self, batches: BatchColumns) -> NDArray[np.uint8]:
        """Return the outcomes of many batches, as `Decisions.of_batches` does."""
        data = (batches.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
        decisions = self._known(int(batches.base_offsets[data][0])) if data.any() else Decisions()
        return decisions.of_batches(batches)

    def hidden(self, chunk: Chunk) -> NDArray[np.bool_] | None:
        """Return which batches of a chunk a committed read leaves out; None if no data batch."""
        batches = BatchColumns.of(chunk)
        if not (batches.attributes & TRANSACTIONAL_BIT).any():
            return None
        outcomes = self.of_batches(batches)
        rows: NDArray[np.bool_] = outcomes != BatchOutcome.COMMITTED
        return rows

    def _known(self, offset: int) -> Decisions:
        """Return decisions about batches from the start of the range on, by default from `offset` on."""
        if self._decisions is None:
            log = self._log
            offset = offset if self._start is None else self._start
            segments = log.segment_set.starting_at(offset)
            decisions = scan(_special_batches(segments, offset, log.log_end), until=self._end)
            if not log.is_held:
                for segment in segments:
                    if segment.base_offset < self._end and not segment.is_in_place:
                        raise FileVanishedError(
                            f"{segment.file} was replaced since it was listed", file=segment.file
                        )
            self._decisions = decisions
        return self._decisions


def _special_batches(
    segments: tuple[Segment, ...], start: int, end: int
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    """Yield transactional and control batches from the batch at `start` on, markers with their content.

    Checksums and the order of offsets are verified: a damaged marker must not decide anything, and none may
    be missed.
    """
    for at, segment in enumerate(segments):
        due = segment.base_offset
        bound = segments[at + 1].base_offset if at + 1 < len(segments) else 1 << 63
        first = segment.position_of(start)
        for header, marker in producer_batches(segment, first, verify=True):
            if header.base_offset < due or header.last_offset >= bound:
                text = f"offsets {header.base_offset}-{header.last_offset} are not in [{due}, {bound})"
                raise CorruptBatchError.damage(
                    text, "offsets-fall", segment.file, header.position, header.base_offset
                )
            due = header.next_offset
            if header.base_offset >= end:
                return
            if header.transactional or header.control:
                yield header, marker


def producer_batches(
    segment: Segment, first: int, *, verify: bool
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    """Yield the batches of producers and transactions from position `first` on, markers with their content.

    They have a producer id, are transactional, or control batches; others may be among them. Kernels do
    it where there is so much to read that loading them pays: a small batch costs Python several microseconds.

    Args:
        segment: The segment to read.
        first: Position of a batch.
        verify: Check the checksum of every batch, also of those that are not yielded.

    Raises:
        DataError: A batch is damaged.
    """
    loaded = "lastword.kernels" in sys.modules
    many = segment.size - first > (KERNEL_BYTES_LOADED if loaded else KERNEL_BYTES)
    return (_by_kernels if many else _plainly)(segment, first, verify)


def _plainly(
    segment: Segment, first: int, verify: bool
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    for header in segment.headers(first):
        marker = None
        if verify or header.control:
            data = segment.verified_batch(header) if verify else segment.read_batch(header)
            marker = control_of(data, header, segment.file, position=0)
        yield header, marker


def _by_kernels(
    segment: Segment, first: int, verify: bool
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    from lastword.kernels import table as fields

    for chunk in segment.chunk_reader(first, verify=verify, decompress=False):
        wanted = (chunk.table[:, fields.ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0
        wanted |= chunk.table[:, fields.PRODUCER_ID] >= 0
        for row in wanted.nonzero()[0].tolist():
            header = chunk.header(row)
            marker = None
            if header.control:
                at = int(chunk.table[row, fields.POSITION])
                marker = control_of(chunk.raw.data, header, chunk.file, position=at)
            yield header, marker
