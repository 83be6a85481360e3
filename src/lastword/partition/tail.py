"""The end of a log that grows: its active segment, that segment's transaction index, and what is remembered
of producers.

The state follows the bytes: batches, then the log end, then the transaction index, then the last stable
offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.errors import LastwordError
from lastword.files import Files
from lastword.partition.durability import Durability
from lastword.partition.health import Health
from lastword.partition.pending import Pending
from lastword.partition.producer_state import ProducerState
from lastword.partition.transactions import control_of
from lastword.segment import names
from lastword.segment.append import SegmentAppender
from lastword.segment.segment import Segment
from lastword.segment.txn_index import AbortedTransaction, TransactionIndex

if TYPE_CHECKING:
    import numpy as np


class Tail:
    """Of one open log, under its lock. `begin` puts another segment in place, `close` closes the files."""

    def __init__(
        self,
        files: Files,
        appender: SegmentAppender,
        producers: ProducerState,
        health: Health,
        durability: Durability,
    ) -> None:
        self._files = files
        self._health = health
        self._durability = durability
        self.log_start = 0
        self.begin(appender, producers)

    def begin(self, appender: SegmentAppender, producers: ProducerState) -> None:
        self.appender = appender
        self.producers = producers
        segment = appender.segment
        self.aborted = TransactionIndex(self._files, segment.path(names.TXN_INDEX), segment.base_offset)

    def find_stable_offset(self, log_start: int) -> None:
        self.log_start = log_start
        self.stable_offset = self.producers.last_stable_offset(self.log_end, log_start)

    @property
    def segment(self) -> Segment:
        return self.appender.segment

    @property
    def log_end(self) -> int:
        return self.appender.end.next_offset

    def write(self, pending: Pending) -> None:
        """One write of batches that have their offsets; then everything that follows from them."""
        if not pending.headers:
            return
        self._health.guarded(lambda: self.appender.append(pending.data, pending.headers))
        for header in pending.headers:
            if header.producer_id >= 0:
                marker = control_of(pending.data, header, self.segment.file)
                entry = self.producers.update(header, marker)
                if entry is not None:
                    self._index_aborted(entry)
        self.moved_on()

    def write_table(self, data: memoryview, table: np.ndarray) -> None:
        """The same for the rows of a batch table, none with a producer. File positions count from the first
        row's.
        """
        self._health.guarded(lambda: self.appender.append_table(data, table))
        self.moved_on()

    def moved_on(self) -> None:
        """The log end has: what is stable, and what a snapshot of the producers says, go with it."""
        self.producers.end_offset = self.log_end
        self.stable_offset = self.producers.last_stable_offset(self.log_end, self.log_start)

    def _index_aborted(self, entry: AbortedTransaction) -> None:
        """Note an aborted transaction beside its marker, which is in the log already. If that fails, the last
        stable offset stays where it was and the log takes no more: opening it again repairs the index.
        """
        try:
            if not self.aborted.entries:
                self._durability.directory_unsynced = True
            self.aborted.append(entry)
        except LastwordError as error:
            self._health.failed(error)
            raise

    def sync(self, end: int, *, indexes: bool) -> None:
        """Everything below `end`; the turn is taken."""
        self._durability.sync_files(self.appender, self.aborted, end, indexes=indexes)

    def close(self) -> Segment:
        """Close the files; return the segment, which takes no more batches."""
        self.aborted.close()
        return self.appender.close()
