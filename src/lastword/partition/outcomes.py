"""What a committed read shows: which batches of a range of offsets belong to aborted transactions.

A reader below the last stable offset meets decided transactions only. Most logs have none at all, so nothing
is looked up before the first transactional batch. Then one walk over the headers and markers of the range,
and of what follows until its transactions are decided, finds the outcomes.

The transaction indexes are not used. They have no checksum, and no reader can see from one whether it is
complete: a segment without aborted transactions has none. One wrong bit would show aborted records. They are
kept for brokers, and `verify` compares them with the log.

What is found stays right whatever is rewritten later, for a decision is bound to offsets. But the other
direction would not do: a batch of an old file judged by markers that a rewrite has already removed. So
after looking, every file looked at must still be the one that was listed (FileVanishedError if not; the read
begins again from where it was). This is not needed where the batches were looked at in files that are held
open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from lastword.errors import CorruptBatchError, FileVanishedError
from lastword.files import Files
from lastword.partition.replay import producer_batches
from lastword.partition.segment_set import SegmentSet
from lastword.partition.transactions import Decisions, Fate, scan
from lastword.records.batch import BatchHeader
from lastword.records.control import ControlRecord
from lastword.segment.segment import Segment
from lastword.wire import CONTROL_BIT, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lastword.records.chunk import Chunk


class Readable(Protocol):
    @property
    def files(self) -> Files: ...

    is_held: bool

    @property
    def segment_set(self) -> SegmentSet: ...
    @property
    def log_end(self) -> int: ...


class Outcomes:
    """Of the transactions that touch [start, end) offsets of a log. `end` above the stable offset: what is
    there and not known as aborted counts as undecided.

    `fates` is what `resolve` asks. Every question may raise FileVanishedError, and DataError for damage.
    """

    def __init__(self, log: Readable, end: int) -> None:
        self._log = log
        self._end = end
        self._decisions: Decisions | None = None

    def fate(self, header: BatchHeader) -> Fate:
        if header.control:
            return Fate.CONTROL
        if not header.transactional:
            return Fate.COMMITTED
        return self._known(header.base_offset).fate(header)

    def fates(
        self,
        attributes: NDArray[np.int64],
        producer_ids: NDArray[np.int64],
        base_offsets: NDArray[np.int64],
        last_offsets: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        """As `Decisions.fates`."""
        data = (attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
        decisions = self._known(int(base_offsets[data][0])) if data.any() else Decisions()
        return decisions.fates(attributes, producer_ids, base_offsets, last_offsets)

    def hidden(self, chunk: Chunk) -> NDArray[np.bool_] | None:
        """Which batches of a chunk a committed read leaves out; None: none of those with data."""
        from lastword.kernels import table as fields

        attributes = chunk.table[:, fields.ATTRIBUTES]
        if not (attributes & TRANSACTIONAL_BIT).any():
            return None
        columns = (fields.ATTRIBUTES, fields.PRODUCER_ID, fields.BASE_OFFSET, fields.LAST_OFFSET)
        found = self.fates(*(chunk.table[:, column] for column in columns))
        return found != Fate.COMMITTED

    def _known(self, offset: int) -> Decisions:
        """Decisions about batches from `offset` on; asked for in rising order."""
        if self._decisions is None:
            log = self._log
            segments = log.segment_set.starting_at(offset)
            found = scan(_special_batches(segments, offset, log.log_end), until=self._end)
            if not log.is_held:
                for segment in segments:
                    if segment.base_offset < self._end and not segment.is_in_place:
                        raise FileVanishedError(
                            f"{segment.file} was replaced since it was listed", file=segment.file
                        )
            self._decisions = found
        return self._decisions


def _special_batches(
    segments: tuple[Segment, ...], start: int, end: int
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    """Transactional and control batches from the batch that holds `start` on, markers with their content.

    Checksums and the order of offsets are verified: a damaged marker must not decide anything, nor one be
    missed.
    """
    for at, segment in enumerate(segments):
        due = segment.base_offset
        bound = segments[at + 1].base_offset if at + 1 < len(segments) else 1 << 63
        first = segment.position_of(start) if start > segment.base_offset else 0
        for header, marker in producer_batches(segment, first, verify=True):
            if header.base_offset < due or header.last_offset >= bound:
                raise CorruptBatchError(
                    f"offsets {header.base_offset}-{header.last_offset} do not lie in [{due}, {bound})",
                    code="offsets-fall",
                    remedy="restore the file from a copy; `lastword verify` lists all damage",
                    file=segment.file,
                    position=header.position,
                    offset=header.base_offset,
                )
            due = header.next_offset
            if header.base_offset >= end:
                return
            if header.transactional or header.control:
                yield header, marker
