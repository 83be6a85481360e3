"""Transactional producers on a `LogBuilder`, and functions that read markers, empty batches and the entries
of the transaction indexes from the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.transactions import BatchOutcome, Decisions, control_of, scan
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder, BatchHeader
from lastword.records.record import RawRecord
from lastword.segment.indexes import AbortedTransaction, decode_aborted
from tests.build import LogBuilder, Text, raw
from tests.support import partitions
from tests.transactions import end_transaction


class Producer:
    """A producer that appends to `log` with sequences; the batches between two markers are a transaction."""

    def __init__(self, log: LogBuilder, producer_id: int = 7, epoch: int = 0) -> None:
        self.log, self.producer_id, self.epoch = log, producer_id, epoch
        self.sequence = 0

    def put(self, *pairs: tuple[Text, Text | None], transactional: bool = True) -> Producer:
        """Append a batch."""
        builder = BatchBuilder(
            self.log.codec,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=transactional,
        )
        for key, value in pairs:
            builder.append(self.log.clock.now_ms(), raw(key), raw(value))
        self.log.log.append_batch(builder.build())
        self.sequence += len(pairs)
        return self

    def commit(self) -> Producer:
        end_transaction(self.log.log, self.producer_id, self.epoch, commit=True)
        return self

    def abort(self) -> Producer:
        end_transaction(self.log.log, self.producer_id, self.epoch, commit=False)
        return self


class Marker(NamedTuple):
    offset: int
    type: str | None  # None: emptied
    clocked: bool


def headers(log: LogBuilder) -> list[tuple[BatchHeader, Any]]:
    """Return every header of the log, with the record of a control batch."""
    headers_and_markers = []
    for segment in PartitionView.load(DirectorySegments(log.files, log.directory)).segments:
        for header in segment.headers():
            data = segment.read_batch(header) if header.control else b""
            headers_and_markers.append((header, control_of(data, header, segment.file, position=0)))
    return headers_and_markers


def markers(log: LogBuilder) -> list[Marker]:
    return [
        Marker(h.last_offset, None if m is None else m.type, h.delete_horizon_ms is not None)
        for h, m in headers(log)
        if h.control
    ]


def empty_batches(log: LogBuilder) -> list[int]:
    """Return the last offsets of data batches without records."""
    return [h.last_offset for h, _ in headers(log) if not h.control and h.count == 0]


def entries(log: LogBuilder) -> list[AbortedTransaction]:
    """Return the entries of all transaction indexes on disk."""
    aborted = []
    for path in sorted(Path(log.directory).glob("*.txnindex")):
        aborted += decode_aborted(path.read_bytes(), path.name)
    return aborted


def data(log: LogBuilder) -> list[RawRecord]:
    """Return every data record, whatever the outcome of its transaction."""
    return partitions.records_of(Path(log.directory), log.files)


def offsets(log: LogBuilder) -> list[int]:
    return [record.offset for record in data(log)]


def committed(log: LogBuilder) -> dict[bytes, bytes]:
    """Return the newest values that a `read_committed` reader of the whole log gets."""
    decisions: Decisions = scan(headers(log))
    hidden: set[int] = set()
    for header, _ in headers(log):
        if decisions.of_header(header) in (BatchOutcome.ABORTED, BatchOutcome.UNDECIDED):
            hidden.update(range(header.base_offset, header.last_offset + 1))
    state: dict[bytes, bytes] = {}
    for record in data(log):
        if record.key is None or record.offset in hidden:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state
