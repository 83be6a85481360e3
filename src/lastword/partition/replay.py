"""The producer state of a log from its newest useful snapshot and the batches behind it.

    replay   what opening does: the state at the log end, the aborted transactions of the segments whose
             transaction index must be built again, the state at segment bases that want a snapshot
    Stability   what a reader without a lock does: up to where every transaction is decided

Replay begins at the newest sound snapshot at or below `limit` (without one, at the first segment) and reads
headers and markers only. Younger snapshots that it passes are believed where they know more: they saw
batches that cleaning has removed since (`ProducerState.learn`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from lastword.errors import BusyError, CorruptFileError, FileVanishedError, StorageError
from lastword.files import Files
from lastword.partition.producer_state import Producer, ProducerState
from lastword.partition.segment_set import SegmentSet
from lastword.partition.snapshots import Snapshots
from lastword.partition.transactions import control_of
from lastword.records.batch import BatchHeader
from lastword.records.control import ControlRecord
from lastword.records.formats import check_crc
from lastword.segment.segment import Segment
from lastword.segment.txn_index import AbortedTransaction
from lastword.wire import CONTROL_BIT, TRANSACTIONAL_BIT

KERNEL_BYTES = 8 << 20
"""Kernels are faster from this size on, even if they must be loaded (about 0.4 s, once a process)."""
KERNEL_BYTES_LOADED = 256 << 10

_TRIES = 100


@dataclass(slots=True)
class Replayed:
    """What `replay` found. `aborted`: by base of the segment that holds the marker; `at_bases`: the producers
    as of a segment's base; `damaged`: offsets of snapshots that are none; `exact`: the snapshot at the log
    end says all there is to say."""

    state: ProducerState
    aborted: dict[int, list[AbortedTransaction]] = field(default_factory=dict)
    at_bases: dict[int, list[Producer]] = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)
    exact: bool = False


def replay(
    store: Snapshots,
    segments: SegmentSet,
    log_end: int,
    *,
    limit: int | None = None,
    barren: Collection[int] = (),
    bases: Collection[int] = (),
    is_expired: Callable[[Producer], bool] = lambda producer: False,
) -> Replayed:
    """State at `log_end`. Changes nothing on disk.

    `limit`: replay must begin at or below it, for the sake of `aborted`; None: as late as possible.
    `barren`: bases of segments known to hold no batch with a producer id; they are not read. `bases`: those
    whose producers are wanted.
    `is_expired`: producers of snapshots that are left out.
    """
    first = segments[0].base_offset if len(segments) else log_end
    offsets = [offset for offset in store.offsets() if first <= offset <= log_end]
    found = Replayed(ProducerState(first))

    def producers_at(offset: int) -> list[Producer] | None:
        if offset in found.damaged:
            return None
        try:
            return [p for p in store.read(offset) if not is_expired(p)]
        except CorruptFileError:
            found.damaged.append(offset)
        except StorageError:  # removed since the listing
            pass
        return None

    start = log_end if limit is None else limit
    for offset in reversed([offset for offset in offsets if offset <= start]):
        producers = producers_at(offset)
        if producers is not None:
            found.state = ProducerState(offset, producers)
            found.exact = offset == log_end
            break
    state = found.state
    later = [offset for offset in offsets if offset > state.end_offset]

    def pass_snapshots(offset: int) -> None:
        while later and later[0] <= offset:
            producers = producers_at(later.pop(0))
            if producers is not None:
                state.learn(producers)

    for segment in segments.starting_at(state.end_offset) if state.end_offset < log_end else ():
        pass_snapshots(segment.base_offset)
        if segment.base_offset in bases and segment.base_offset >= state.end_offset:
            found.at_bases[segment.base_offset] = state.producers
        if segment.base_offset in barren:
            continue
        aborted = found.aborted.setdefault(segment.base_offset, [])
        for header, marker in producer_batches_between(segment, state.end_offset, log_end):
            pass_snapshots(header.base_offset)
            entry = state.update(header, marker)
            if entry is not None:
                aborted.append(entry)
    pass_snapshots(log_end)
    state.end_offset = log_end
    return found


class Readable(Protocol):
    @property
    def files(self) -> Files: ...

    directory: str
    log_start: int
    log_end: int

    @property
    def segment_set(self) -> SegmentSet: ...
    def refresh(self) -> None: ...


class Stability:
    """The last stable offset of a log that others may be changing. Asked again when it has grown, it reads
    only what was added.
    """

    def __init__(self) -> None:
        self._state: ProducerState | None = None

    def offset(self, log: Readable) -> int:
        """For the log as it is seen now; it is refreshed if its files vanish."""
        for _ in range(_TRIES):
            try:
                if not len(log.segment_set):
                    return log.log_end
                self._state = self._at_end(log)
                first = self._state.open_since()
                return log.log_end if first is None else max(first, log.log_start)
            except FileVanishedError:
                self._state = None  # it may have taken in a part
                log.refresh()
        raise BusyError(f"{log.directory} kept changing while it was read", remedy="try again")

    def _at_end(self, log: Readable) -> ProducerState:
        state = self._state
        if state is None or state.end_offset > log.log_end:
            return replay(Snapshots(log.files, log.directory), log.segment_set, log.log_end).state
        if state.end_offset < log.log_end:
            for segment in log.segment_set.starting_at(state.end_offset):
                for header, marker in producer_batches_between(segment, state.end_offset, log.log_end):
                    state.update(header, marker)
            state.end_offset = log.log_end
        return state


def producer_batches_between(
    segment: Segment, start: int, end: int
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    """Yield the headers in [start, end) offsets that have a producer id, markers with their content."""
    position = segment.position_of(start) if start > segment.base_offset else 0
    for header, marker in producer_batches(segment, position, verify=False):
        if header.last_offset >= end:
            return
        if header.producer_id >= 0 and header.base_offset >= start:
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
            data = segment.read_batch(header)
            if verify:
                check_crc(data, header, segment.file, position=0)
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
