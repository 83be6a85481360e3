"""`SegmentAppender`: writes batches at the end of a segment and their index entries behind them.

Bytes are written to the log first, then to the indexes: a reader beside the writer never finds an entry that
points at nothing. Index files hold their entries and nothing else. Kafka extends them in advance (20 MiB of
zeros for each active segment, which a crash leaves behind); a broker reads both.

Zeros behind the log. If single small appends are synced, an append also writes zeros behind itself
(`ZEROED_BYTES` at most), and the next batches are written over them: their syncs write data and no new size.
Zeros are no batch: a reader beside the writer ends in front of them, and recovery cuts them, here and in a
broker. They are removed, and the new size is synced, before the segment is
closed. So no closed segment and no cleanly closed log has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from lastword.errors import DiskFullError, FileVanishedError, LastwordError
from lastword.files import Handle
from lastword.records.batch import BatchHeader
from lastword.segment import names
from lastword.segment.indexes import (
    NO_TIMESTAMP,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    IndexBuilder,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from lastword.segment.scan import check_range
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles, SegmentId, StoredFacts, StoredSegment

if TYPE_CHECKING:
    import numpy as np

    Buffer = bytes | bytearray | memoryview


ZEROED_BYTES = 64 << 10
"""Zeros that an append writes behind itself at most; at least a page, and not more than the log has bytes."""
PAGE_BYTES = 4096
SMALL_SYNC_BYTES = PAGE_BYTES
"""Zeros are written if the last sync made at most as many bytes durable, and the append is not larger."""


class AssignedBatch(NamedTuple):
    """A batch of a file with its assigned offsets. `position` and `size` are in bytes of the file."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class SegmentEnd(NamedTuple):
    """Where a segment ends: size in bytes, next offset, largest timestamp in ms (-1 without one)."""

    size: int
    next_offset: int
    largest_timestamp: int


_new_end = tuple.__new__  # half the time of a call of the class


class _Opened:
    """A handle that is opened at its first use and kept: a `cached_property` without a lock (Python 3.11)."""

    def __init__(self, opening: Callable[[SegmentAppender], Handle]) -> None:
        self._opening = opening

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, appender: SegmentAppender, owner: type) -> Handle:
        handle = appender.__dict__[self._name] = self._opening(appender)
        return handle


class SegmentAppender:
    """Append to the active segment; its end is `end`.

    One thread appends at a time: the partition's lock is held. Other threads may take `segment`, a frozen
    copy of the facts of that moment.
    """

    def __init__(
        self,
        segment: Segment,
        builder: IndexBuilder,
        handles: Iterable[Handle] = (),
        *,
        has_transaction_index: bool = True,
    ) -> None:
        """Append to a segment.

        Args:
            segment: The segment.
            builder: Its indexes up to its end.
            handles: Its open log and indexes; else each is opened at its first use.
            has_transaction_index: False: it has none, so the storage is not looked at.
        """
        self.base_offset = segment.base_offset
        self.file = segment.file
        self.aborted = TransactionIndex(segment.stored, is_absent=not has_transaction_index)
        self.end = SegmentEnd(segment.size, segment.next_offset, segment.largest_timestamp)
        """Replaced as a whole when the bytes are in the log: no other thread finds half of an append."""
        self._segment = segment
        self._builder = builder
        self.__dict__.update(zip(_HANDLES, handles, strict=False))
        self._index_bytes = len(segment.offset_index) * OFFSET_ENTRY_BYTES
        self._time_bytes = len(segment.time_index) * TIME_ENTRY_BYTES
        self.rolling_timestamp = segment.first_timestamp
        """Largest timestamp of the first batch: rolling by time counts from it. -1 without one."""
        self._ahead = segment.size  # up to here the drive has begun to sync
        self._synced_size = segment.size
        self._syncs_are_small = False
        self._zeroed_to = 0  # the file has zeros from the end up to here; 0: it ends with the last batch
        self._is_torn = False  # a change that did not come to its end may have left bytes behind the end
        self._finished: bytes | None = None  # the last entry of the time index, if `finish` has written it

    @classmethod
    def create(cls, stored: StoredSegment, *, index_interval_bytes: int) -> SegmentAppender:
        """Create an empty segment. FileTakenError if there is one. On failure nothing stays behind."""
        handles: list[Handle] = []
        try:
            for extension in _APPENDED:
                handles.append(stored.open_append(extension, create=True, exclusive=True))
            facts = _facts(handles[0])
        except LastwordError:
            _remove(stored, _APPENDED, handles)
            raise
        builder = IndexBuilder(stored.base_offset, index_interval_bytes)
        segment = _active(stored, facts, builder, stored.base_offset)
        return cls(segment, builder, handles)

    @classmethod
    def resume(
        cls, segment: Segment, *, index_interval_bytes: int, has_transaction_index: bool = True
    ) -> SegmentAppender:
        """Continue a segment that is valid to its last byte, with its indexes.

        A last time entry, which closing added, is removed: so the index stays what the rule makes of the log.
        """
        offsets, times = segment.offset_index, segment.time_index
        entries, indexed = times.size_bytes, offsets.last
        cuts_offsets = offsets.damaged or offsets.zero_tail_bytes > 0
        cuts_times = times.damaged or times.zero_tail_bytes > 0
        times.cut(indexed.offset if indexed.position else segment.base_offset - 1)
        last = times.last
        builder = IndexBuilder(
            segment.base_offset,
            index_interval_bytes,
            entry_position=indexed.position,
            time_entry=last.timestamp,
        )
        if last.timestamp != NO_TIMESTAMP:
            builder.seen(last.offset, last.timestamp)
        next_offset = segment.base_offset
        for header in segment.headers_from_last_indexed():
            check_range(header, segment.base_offset, segment.file)
            builder.seen(header.last_offset, header.max_timestamp)
            next_offset = header.next_offset
        segment = segment.ending_at(segment.size, next_offset, builder.largest_timestamp, active=True)
        appender = cls(segment, builder, has_transaction_index=has_transaction_index)
        if cuts_offsets:
            appender._index.truncate(offsets.size_bytes)
        if cuts_times or times.size_bytes < entries:
            appender._times.truncate(times.size_bytes)
        return appender

    # `resume` opens no file: a commit opens more logs than there are descriptors, and appends to one after
    # another.

    @_Opened
    def _log(self) -> Handle:
        """Open the log. FileVanishedError if it is not the one that was read."""
        handle = self._segment.stored.open_append(names.LOG)
        facts = handle.stat()
        if facts.inode != self._segment.id.number or facts.size != self.end.size:
            handle.close()
            raise FileVanishedError(f"{self.file} was replaced since it was opened", file=self.file)
        return handle

    @_Opened
    def _index(self) -> Handle:
        return self._segment.stored.open_append(names.INDEX, create=True)

    @_Opened
    def _times(self) -> Handle:
        return self._segment.stored.open_append(names.TIME_INDEX, create=True)

    @classmethod
    def from_file(
        cls, stored: SegmentFiles, file: str, batches: Sequence[AssignedBatch], *, index_interval_bytes: int
    ) -> SegmentAppender:
        """Make a finished file of exactly these batches the segment of its first offset, by renaming it.

        The file's new name is durable when it returns. The caller has checked that the log has no segment of
        that offset. On failure the file is where it was, unless a sync failed. The indexes are created before
        the rename, so that a concurrent reader finds the segment with its indexes, or not at all.

        FileTakenError if there are indexes of such a segment.
        """
        files, path = stored.files, stored.path(names.LOG)
        builder = IndexBuilder(stored.base_offset, index_interval_bytes)
        for batch in batches:
            builder.batch(batch.position, batch.last_offset, batch.max_timestamp)
        indexes = {names.INDEX: builder.offset_entries, names.TIME_INDEX: builder.time_entries}
        handles: list[Handle] = []
        try:
            for extension, entries in indexes.items():
                handles.append(stored.open_append(extension, create=True, exclusive=True))
                if entries:
                    handles[-1].append(bytes(entries))
            files.rename(file, path)
            try:
                log = stored.open_append(names.LOG)
                facts = _facts(log)
            except LastwordError:
                files.rename(path, file)
                raise
        except LastwordError:
            _remove(stored, indexes, handles)
            raise
        # Before anything is appended behind these batches: a power cut must not restore the file's old name.
        files.fsync_dir(stored.directory)
        files.fsync_dir(os.path.dirname(file))
        segment = _active(stored, facts, builder, batches[-1].last_offset + 1)
        builder.drop_entries()
        appender = cls(segment, builder, (log, *handles))
        appender.rolling_timestamp = batches[0].max_timestamp
        return appender

    @property
    def segment(self) -> Segment:
        """The active segment as it is now. It does not change: an append makes another one."""
        segment, end = self._segment, self.end
        if segment.size != end.size:
            segment = self._segment = segment.ending_at(*end, active=True)
        return segment

    def append(self, data: bytes | bytearray | memoryview, batches: Sequence[BatchHeader]) -> None:
        """Write `data`, which is exactly these batches; their positions count from its beginning.

        All or nothing: if there is no room for the indexes, the log is cut back too.
        """
        if not batches:
            return

        def index(start: int) -> None:
            for header in batches:
                self._builder.batch(start + header.position, header.last_offset, header.max_timestamp)

        self._append(data, index, batches[0].max_timestamp, batches[-1].next_offset)

    @property
    def last_unindexed_position(self) -> int:
        """The last position at which a batch gets no index entry.

        -1 if a single record may not be appended by `append_unindexed` or `append_indexed`: the segment is
        empty, was finished for a roll that failed, or has the rest of a change that failed.
        """
        if self._finished is not None or self._is_torn or not self.end.size:
            return -1
        return self._builder.last_unindexed_position

    def append_unindexed(self, batch: bytes, timestamp: int) -> None:
        """Write a batch of one record that begins at most at `last_unindexed_position`, as `append` does.

        Without an entry, the only other state of the indexes is the largest timestamp. The segment is not
        empty, so the rolling timestamp stays.
        """
        try:
            if self._zeroed_to or self._syncs_are_small or self._is_torn:
                self._write(batch)
            else:
                self._log.append(batch)
            size, offset, largest = self.end
            if timestamp > largest:
                largest = timestamp
                self._builder.seen(offset, timestamp)
            self.end = _new_end(SegmentEnd, (size + len(batch), offset + 1, largest))
        except BaseException:
            self._is_torn = True
            raise

    def append_indexed(self, batch: bytes, timestamp: int) -> None:
        """Write a batch of one record that begins above `last_unindexed_position`, as `append` does."""
        offset = self.end.next_offset
        self._append(
            batch, lambda start: self._builder.batch(start, offset, timestamp), timestamp, offset + 1
        )

    def append_table(self, data: memoryview, table: np.ndarray) -> None:
        """Write the batches of a table's rows.

        Their file positions count from the first row, and become those in this segment.
        """
        from lastword.kernels import table as fields
        from lastword.segment.bulk_walk import BulkIndexer

        def index(start: int) -> None:
            table[:, fields.FILE_POSITION] += start - table[0, fields.FILE_POSITION]
            indexer = BulkIndexer(self._builder)
            indexer.take(table)
            indexer.finish()

        first, last = int(table[0, fields.MAX_TIMESTAMP]), int(table[-1, fields.LAST_OFFSET])
        self._append(data, index, first, last + 1)

    def _append(
        self, data: Buffer, index: Callable[[int], object], first_timestamp: int, next_offset: int
    ) -> None:
        """Write the data, and its index entries, which `index` adds for data at a position of the log."""
        try:
            if self._finished is not None or self._is_torn:
                self._take_back()
            self._write(data)
            builder, start = self._builder, self.end.size
            before = len(builder.offset_entries), len(builder.time_entries)
            index(start)
            if len(builder.offset_entries) != before[0] or len(builder.time_entries) != before[1]:
                self._append_entries(*before)
            if start == 0:
                self.rolling_timestamp = first_timestamp
            self.end = SegmentEnd(start + len(data), next_offset, builder.largest_timestamp)
        except BaseException:
            self._is_torn = True  # also after an interrupt: the log may have bytes that `end` leaves out
            raise

    def _write(self, data: Buffer) -> None:
        """Write behind the last batch, over zeros if there are some. All or nothing."""
        if self._is_torn:
            self._take_back()
        size = self.end.size
        end = size + len(data)
        if self._syncs_are_small and end > self._zeroed_to and len(data) <= SMALL_SYNC_BYTES:
            zeros = min(ZEROED_BYTES, max(PAGE_BYTES, size), names.MAX_FILE_BYTES - end)
            try:
                self._overwrite(bytes(data) + bytes(zeros), size)
            except DiskFullError:  # there may be room for the data alone
                if self._is_torn:
                    raise
            else:
                self._zeroed_to = end + zeros
                return
        if not self._zeroed_to:
            self._log.append(data)
            return
        self._overwrite(data, size)
        if end >= self._zeroed_to:
            self._zeroed_to = 0

    def _overwrite(self, data: Buffer, size: int) -> None:
        """Write at `size`, where the last batch ends. If that fails, cut the file there."""
        try:
            self._log.pwrite(data, size)
        except LastwordError:
            self._is_torn = True  # a later append must not be followed by the rest of this one
            with suppress(LastwordError):
                self.remove_zeros()
            raise

    def remove_zeros(self) -> None:
        """Let the file end with the last batch. A sync follows before that counts."""
        if self._is_torn:
            self._take_back()
        elif self._zeroed_to:
            self._log.truncate(self.end.size)
            self._zeroed_to = 0

    def _append_entries(self, first_offset_byte: int, first_time_byte: int) -> None:
        """Write the builder's entries from these bytes on. If that fails, cut the log back."""
        new_offsets = bytes(self._builder.offset_entries[first_offset_byte:])
        new_times = bytes(self._builder.time_entries[first_time_byte:])
        try:
            if new_offsets:
                _append_at(self._index, new_offsets, self._index_bytes)
            if new_times:
                _append_at(self._times, new_times, self._time_bytes)
        except LastwordError:
            self._take_back()
            raise
        self._builder.drop_entries()
        self._index_bytes += len(new_offsets)
        self._time_bytes += len(new_times)
        self._segment.offset_index.extend(new_offsets)
        self._segment.time_index.extend(new_times)

    def _take_back(self) -> None:
        """Let the log and its indexes end with the last batch that `end` includes."""
        segment = self.segment
        offsets, times = segment.offset_index, segment.time_index
        self._log.truncate(segment.size)
        self._zeroed_to = 0
        offsets.cut(segment.size)
        times.cut(offsets.last.offset if len(offsets) else segment.base_offset - 1)
        self._index_bytes, self._time_bytes = offsets.size_bytes, times.size_bytes
        self._index.truncate(self._index_bytes)
        self._times.truncate(self._time_bytes)
        builder = IndexBuilder(
            segment.base_offset,
            self._builder.interval_bytes,
            entry_position=offsets.last.position,
            time_entry=times.last.timestamp,
        )
        builder.seen(times.last.offset, times.last.timestamp)
        for header in segment.headers(offsets.last.position):
            builder.seen(header.last_offset, header.max_timestamp)
        self._builder, self._finished, self._is_torn = builder, None, False

    def is_full(self, max_index_bytes: int, more: int = 0) -> bool:
        """Return whether an index is full after `more` entries and the last time entry."""
        offsets = self._index_bytes // OFFSET_ENTRY_BYTES + more
        times = self._time_bytes // TIME_ENTRY_BYTES + more
        return (
            offsets >= max_index_bytes // OFFSET_ENTRY_BYTES
            or times >= max_index_bytes // TIME_ENTRY_BYTES - 1
        )

    def open_to_sync(self, *, indexes: bool) -> None:
        """Open the files that will be synced. A failure here is not that of a sync, which stops the log.

        FileVanishedError if the log was replaced.
        """
        for name in _HANDLES if indexes else _HANDLES[:1]:
            getattr(self, name)

    def sync_log(self) -> None:
        """Make the log durable."""
        size = self.end.size
        self._log.fsync()
        if size != self._synced_size:
            is_small = 0 < size - self._synced_size <= SMALL_SYNC_BYTES
            self._syncs_are_small = is_small and self._log.growth_slows_sync
            self._synced_size = size

    def sync_ahead(self, least_bytes: int) -> None:
        """Let the drive begin with what was written, if that is `least_bytes`; a sync will follow."""
        size = self.end.size
        if size - self._ahead >= least_bytes:
            self._log.start_sync(self._ahead, size - self._ahead)
            self._ahead = size

    def sync_indexes(self) -> None:
        """Make the indexes durable."""
        self._index.fsync()
        self._times.fsync()
        if self.aborted.entries:
            self.aborted.sync()

    def finish(self) -> None:
        """Remove zeros, and add the last entry of the time index, which another append removes again."""
        self.remove_zeros()
        before = len(self._builder.time_entries)
        try:
            self._builder.finish()
            new = bytes(self._builder.time_entries[before:])
            if new:
                _append_at(self._times, new, self._time_bytes)
                self._time_bytes += len(new)
                self._finished = new
        except BaseException:
            self._is_torn = True
            raise

    def close(self) -> Segment:
        """Close the files and return the segment, which takes no more batches."""
        self.aborted.close()
        for handle in filter(None, map(self.__dict__.get, _HANDLES)):
            handle.close()
        if self._finished is not None:
            self._segment.time_index.extend(self._finished)
            self._finished = None
        return self.segment.ending_at(*self.end, active=False)


_APPENDED = (names.LOG, names.INDEX, names.TIME_INDEX)
_HANDLES = ("_log", "_index", "_times")


def _append_at(index: Handle, entries: bytes, size: int) -> None:
    """Append entries to an index whose entries have `size` bytes; other bytes behind these are removed."""
    if index.append(entries) != size:
        index.truncate(size)
        index.append(entries)


def _facts(handle: Handle) -> StoredFacts:
    facts = handle.stat()
    return StoredFacts(SegmentId(facts.inode, facts.size), facts.mtime_ms)


def _remove(stored: StoredSegment, extensions: Iterable[str], handles: Iterable[Handle]) -> None:
    """Close and remove what was made; the handles are of the first extensions."""
    for extension, handle in zip(extensions, handles, strict=False):
        handle.close()
        stored.remove(extension)


def _active(stored: StoredSegment, facts: StoredFacts, built: IndexBuilder, next_offset: int) -> Segment:
    """Return the segment of a log whose batches are those that an index builder met."""
    base_offset = built.base_offset
    return Segment(
        stored,
        facts,
        next_offset=next_offset,
        largest_timestamp=built.largest_timestamp,
        active=True,
        indexes=(
            OffsetIndex(bytes(built.offset_entries), base_offset, facts.id.size),
            TimeIndex(bytes(built.time_entries), base_offset),
        ),
    )
