"""`Segment`: the batches from one base offset on, and what can be found in them without decoding records.

A segment is named by its base offset and consists of `.log`, `.index` and `.timeindex`. The log is the truth.
The indexes only give a position to begin at: it is checked to be a valid batch that begins low enough before
it is used, and without an index a search begins at the first byte. So a damaged index costs time, never a
wrong answer.

The object holds facts, and reads bytes through `stored`. The log is opened when it is first read. If another
log is stored under the base offset by then (a rewrite was published meanwhile), that is `FileVanishedError`:
the list that this segment is from is old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from lastword.errors import DataError, FileVanishedError
from lastword.files import Handle
from lastword.records.batch import BatchHeader
from lastword.records.formats import UNKNOWN_COUNT, check_crc, crc_ok, read_records
from lastword.segment import names
from lastword.segment.indexes import (
    LOADED,
    NO_TIMESTAMP,
    SEARCHED_BYTES,
    SEARCHES_OF_LOAD,
    Index,
    OffsetEntry,
    OffsetIndex,
    OffsetSearch,
    TimeIndex,
    TimeSearch,
)
from lastword.segment.scan import first_header, headers, whole_batch
from lastword.segment.stored import SegmentId, StoredFacts, StoredSegment

if TYPE_CHECKING:
    from lastword.records.chunk import Chunk, SkipRows
    from lastword.records.record import RawRecord

DEFAULT_CHUNK_BYTES = 1 << 20


class Trusted(NamedTuple):
    """A position where a batch begins, and its header if its checksum was verified."""

    position: int
    header: BatchHeader | None


class Segment:
    """One segment of a log, as it was at one moment. Its facts do not change.

    Attributes:
        stored: Where its bytes are.
        file: The name of its log, for messages.
        size: Bytes that may be read: those of the log, or the end of the last valid batch of a log that is
            being written.
        active: Appends go to the segment, so its log may be longer than `size`.
    """

    def __init__(
        self,
        stored: StoredSegment,
        facts: StoredFacts,
        *,
        next_offset: int | None = None,
        largest_timestamp: int | None = None,
        active: bool = False,
        indexes: tuple[OffsetIndex, TimeIndex] | None = None,
    ) -> None:
        self.stored: Final = stored
        self.base_offset: Final = stored.base_offset
        self.file: Final = stored.path(names.LOG)
        self.size: Final = facts.id.size
        self.mtime_ms: Final = facts.mtime_ms
        self.active: Final = active
        self._stored_id = facts.id
        self._next_offset = next_offset
        self._largest_timestamp = largest_timestamp
        self._handle: Handle | None = None
        offsets, times = indexes or (None, None)
        self._offset_index, self._time_index = self._held(offsets), self._held(times)
        self._offset_search: OffsetSearch | None = None
        self._time_search: TimeSearch | None = None
        self._searches_left = 0
        self._last_trusted: BatchHeader | None = None

    @classmethod
    def load(
        cls,
        stored: StoredSegment,
        *,
        next_offset: int | None = None,
        largest_timestamp: int | None = None,
        active: bool = False,
    ) -> Segment:
        """Return the segment as it is stored now; facts that are not given are read when they are needed.

        Raises:
            FileVanishedError: There is none.
            NotAPartitionError: Its file is a link, or no regular file.
        """
        facts = stored.facts()
        if facts is None:
            path = stored.path(names.LOG)
            raise FileVanishedError(f"{path} is gone", file=path)
        return cls(stored, facts, next_offset=next_offset, largest_timestamp=largest_timestamp, active=active)

    def ending_at(
        self, size: int, next_offset: int | None = None, largest_timestamp: int | None = None, *, active: bool
    ) -> Segment:
        """Return the segment with another end. Both share the open file and the indexes."""
        if active and self._handle is not None:
            # The bytes behind the end are zeros, or an append of a killed writer.
            self._handle.may_shrink_to(size)
        return self._with(
            size=size, active=active, _next_offset=next_offset, _largest_timestamp=largest_timestamp
        )

    def with_mtime_now(self) -> Segment:
        """Return the segment with the modification time that its log has now."""
        return self._with(mtime_ms=self.mtime_now_ms())

    def read_through(self, stored: StoredSegment, wrap: Callable[[Handle], Handle]) -> Segment:
        """Return the segment, read through another object. `wrap` is called with its log, if that is open."""
        return self._with(stored=stored, _handle=None if self._handle is None else wrap(self._handle))

    def _with(self, **changed: object) -> Segment:
        segment = Segment.__new__(Segment)
        segment.__dict__ = self.__dict__ | changed
        if segment.active != self.active:
            segment._offset_index = segment._held(self._offset_index())
            segment._time_index = segment._held(self._time_index())
            segment._offset_search = segment._time_search = None
        return segment

    def _held(self, index: Index | None) -> Callable[[], Index | None]:
        """Return a function that returns the index, that of a closed segment as long as it is loaded."""
        return LOADED.keep(index) if index is not None and not self.active else lambda: index

    def __repr__(self) -> str:
        return f"Segment({self.file!r}, {self.size} bytes)"

    # -------------------------------------------------------------- facts

    @property
    def id(self) -> SegmentId:
        """Which stored segment it is, as far as it may be read."""
        return SegmentId(self._stored_id.number, self.size)

    @property
    def is_in_place(self) -> bool:
        """True if the segment is still the one that is stored under its base offset. It may have grown."""
        facts = self.stored.facts()
        return facts is not None and facts.id.number == self._stored_id.number

    @property
    def next_offset(self) -> int:
        """One above the last batch's last offset; the base offset of an empty segment."""
        if self._next_offset is None:
            next_offset = self.base_offset
            for header in self.headers(self._trusted(self.offset_search.last).position):
                next_offset = header.next_offset
            self._next_offset = next_offset
        return self._next_offset

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp in ms; -1 if no record has one. Reads from where the time index ends."""
        if self._largest_timestamp is None:
            last = self.time_search.last
            start, largest = 0, NO_TIMESTAMP
            if last.timestamp != NO_TIMESTAMP and self._reaches(last.timestamp, last.offset):
                start, largest = self.position_of(last.offset), last.timestamp
            for header in self.headers(start):
                largest = max(largest, header.max_timestamp)
            self._largest_timestamp = largest
        return self._largest_timestamp

    @property
    def known_timestamp(self) -> int:
        """A lower bound of `largest_timestamp` that reads nothing; -1 if there is none.

        In a bucket a small time index is in the manifest, whose checksum covers it. The bound is enough to
        keep the segment, and nothing more: the log is read before its records are removed.
        """
        if self._largest_timestamp is not None:
            return self._largest_timestamp
        data = self.stored.checked(names.TIME_INDEX)
        return NO_TIMESTAMP if data is None else TimeIndex(data, self.base_offset).last.timestamp

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch, from which rolling by time counts; -1 if there is none."""
        if not self.size:
            return NO_TIMESTAMP
        return first_header(self.handle, self.file, self.size).max_timestamp

    def mtime_now_ms(self) -> int:
        """Return the modification time of the log now: an append makes it younger than when it was loaded."""
        facts = self.stored.facts()
        return self.mtime_ms if facts is None else facts.mtime_ms

    # -------------------------------------------------------------- files

    @property
    def handle(self) -> Handle:
        """The log, opened at first use and closed with the last reference to it."""
        handle = self._handle
        if handle is None:
            # The log of an active segment may have grown, or have lost zeros behind its end. That of a closed
            # segment keeps its size: another size under its number is another log, for a file system reuses
            # the inode of a removed file.
            number, size = self._stored_id
            handle = self.stored.open_read()
            facts = handle.stat()
            is_listed = facts.size >= self.size if self.active else facts.size == max(self.size, size)
            if facts.inode != number or not is_listed:
                handle.close()
                raise FileVanishedError(f"{self.file} was replaced since it was listed", file=self.file)
            if self.active:
                handle.may_shrink_to(self.size)
            self._handle = handle
        return handle

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index as a whole; it is loaded if it is not in memory."""
        index = self._offset_index()
        if index is None:
            data = self.stored.read(names.INDEX) or b""
            index = OffsetIndex(data, self.base_offset, self.size)
            self._offset_index = self._held(index)
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The time index as a whole; it is loaded if it is not in memory."""
        index = self._time_index()
        if index is None:
            index = TimeIndex(self.stored.read(names.TIME_INDEX) or b"", self.base_offset)
            self._time_index = self._held(index)
        return index

    @property
    def offset_search(self) -> OffsetSearch:
        """The offset index for one lookup.

        If the index of a large closed segment is not in memory, its file is searched, until the searches have
        taken as much time as loading it takes.
        """
        index = self._offset_index()
        if index is not None:
            return index
        search = self._offset_search
        if search is None and (handle := self._open_index(names.INDEX)) is not None:
            search = self._offset_search = OffsetSearch.in_file(handle, self.base_offset, self.size)
            self._searches_left = search.size_bytes // SEARCHES_OF_LOAD
        if search is None or self._searches_left <= 0:
            self._offset_search = None
            return self.offset_index
        self._searches_left -= 1
        return search

    @property
    def time_search(self) -> TimeSearch:
        """The time index for one lookup. That of a large closed segment is searched in its file."""
        index = self._time_index()
        if index is not None:
            return index
        search = self._time_search
        if search is None and (handle := self._open_index(names.TIME_INDEX)) is not None:
            search = self._time_search = TimeSearch.in_file(handle, self.base_offset)
        return self.time_index if search is None else search

    def _open_index(self, extension: str) -> Handle | None:
        return None if self.active or self.size < SEARCHED_BYTES else self.stored.open_index(extension)

    # -------------------------------------------------------------- reading

    def headers(self, start_position: int = 0, end_position: int | None = None) -> Iterator[BatchHeader]:
        """Yield the headers of the batches from `start_position`, the first byte of a batch, in order."""
        end = self.size if end_position is None else end_position
        if start_position >= end:
            return iter(())
        return headers(self.handle, self.file, start_position, end)

    def read_batch(self, header: BatchHeader) -> bytes:
        """Return the bytes of a batch that `headers` yielded, from its header on."""
        return self.handle.pread(header.size, header.position)

    def verified_batch(self, header: BatchHeader) -> bytes:
        """Return the bytes of a batch; raise CorruptBatchError (`bad-crc`) unless its checksum is right."""
        data = self.read_batch(header)
        check_crc(data, header, self.file, 0)
        return data

    def records_of(self, header: BatchHeader) -> Iterator[RawRecord]:
        """Return the records of a batch, in order; raise CorruptBatchError if it is damaged."""
        return read_records(self.verified_batch(header), header, self.file, position=0)

    def chunk_reader(
        self,
        start_position: int = 0,
        end_position: int | None = None,
        *,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        verify: bool = True,
        decompress: bool = True,
        skip_rows: SkipRows | None = None,
    ) -> Iterator[Chunk]:
        """Yield chunks of whole batches. A chunk is valid until the next one.

        Args:
            start_position: First byte of a batch.
            end_position: End of a batch; None: the end of the segment.
            chunk_bytes: Size of a chunk.
            verify: Verify checksums.
            decompress: False: only the headers of the batches can be used.
            skip_rows: Returns, by a chunk's table, the batches of which only the headers are used.
        """
        from lastword.records.chunk import ChunkReader

        end = self.size if end_position is None else end_position
        return iter(
            ChunkReader(
                self.handle,
                self.file,
                start_position,
                end,
                chunk_bytes=chunk_bytes,
                verify=verify,
                decompress=decompress,
                skip_rows=skip_rows,
            )
        )

    def cuts(self, part_bytes: int) -> list[int]:
        """Return positions from 0 to `size`, of indexed batches about `part_bytes` apart."""
        positions = [0]
        for position in self.offset_index.positions():
            if position - positions[-1] >= part_bytes:
                positions.append(position)
        return [*positions, self.size] if self.size else []

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch whose last offset is not below `offset`.

        `size` if there is none. If the index has an entry for each batch, and these were read before, no byte
        is read; neither is for an offset that is not above the base offset.
        """
        if offset <= self.base_offset:
            return 0
        index = self.offset_search
        number = index.find(offset)
        end = self._end_of_indexed(index, number) if number >= 0 else 0
        if end:
            entry = index.at(number)
            if entry.offset == offset:
                return entry.position
            following = index.at(number + 1) if number + 1 < len(index) else None
            if (
                following is not None
                and following.position == end
                and self._end_of_indexed(index, number + 1)
            ):
                return end
        for header in self.headers(end or self._trusted(index.lookup(offset)).position):
            if header.last_offset >= offset:
                return header.position
        return self.size

    def indexed_position(self, position: int) -> int:
        """Return the position of the last batch at or below `position` that has an index entry; else 0."""
        index = self.offset_search
        number = index.number_at(position)
        return index.at(number).position if number >= 0 and self._end_of_indexed(index, number) else 0

    def _end_of_indexed(self, index: OffsetSearch, number: int) -> int:
        """Return the position behind the batch of an index entry.

        0 if no valid batch there ends with the entry's offset. With an index in memory each batch is read
        once: a segment's bytes do not change.
        """
        ends = index.ends
        if ends is None:
            return max(self._indexed_end(index.at(number)), 0)
        if number >= len(ends):
            ends.extend(repeat(0, len(index) - len(ends)))
        if not ends[number]:
            ends[number] = self._indexed_end(index.at(number))
        return max(ends[number], 0)

    def _indexed_end(self, entry: OffsetEntry) -> int:
        """Return as `_end_of_indexed`, but -1 if the batch is not valid; 0: it is behind this end."""
        if entry.position >= self.size:
            return 0  # of a batch behind this end of an active segment
        header = self._valid_batch(entry.position)
        if header is None or header.base_offset < self.base_offset or header.last_offset != entry.offset:
            return -1
        return header.end

    def end_position_of(self, offset: int) -> int:
        """Return the position behind the last batch that may hold a record below `offset`."""
        if offset >= self.next_offset:
            return self.size
        due = 0
        for header in self.headers(self._trusted(self.offset_search.lookup(offset)).position):
            if not self.begins_below(header, offset, due):
                return header.position
            due = header.next_offset
        return self.size

    def end_before(self, offset: int) -> int:
        """Return the next offset of the last batch that is wholly below `offset`; else the base offset."""
        end = self.base_offset
        position, header = self._trusted(self.offset_search.lookup(offset - 1))
        if header is not None and header.last_offset >= offset:
            position = 0  # the entry has a wrong offset, and the batch that is looked for is before it
        for header in self.headers(position):
            if header.last_offset >= offset:
                break
            end = header.next_offset
        return end

    def first_offset_of(self, header: BatchHeader) -> int:
        """Return the first offset of a batch.

        A compressed entry of magic 0 or 1 has only its last offset, and is decompressed: CorruptBatchError if
        it cannot be.
        """
        if header.count != UNKNOWN_COUNT:
            return header.base_offset
        return next(read_records(self.read_batch(header), header, self.file, position=0)).offset

    def begins_below(self, header: BatchHeader, offset: int, due: int = 0) -> bool:
        """Return whether the batch may hold a record below `offset`. It does not begin below `due`."""
        if header.base_offset < offset or header.count != UNKNOWN_COUNT or due >= offset:
            return header.base_offset < offset
        try:
            return self.first_offset_of(header) < offset
        except DataError:
            return True  # a read of the batch raises the error

    def position_of_timestamp(self, timestamp: int) -> int | None:
        """Return the position of the first batch whose largest timestamp reaches `timestamp`, or None."""
        times = self.time_search.lookup(timestamp - 1)
        start = 0
        if times.timestamp != NO_TIMESTAMP and self._reaches(times.timestamp, times.offset):
            start = self.position_of(times.offset)
        for header in self.headers(start):
            if header.max_timestamp >= timestamp:
                return header.position
        return None

    def last_trusted(self) -> Trusted:
        """Return the last batch in the offset index: a search for the end begins there."""
        trusted = self._trusted(self.offset_search.last)
        self._last_trusted = trusted.header
        return trusted

    def headers_from_last_indexed(self) -> Iterator[BatchHeader]:
        """Yield the headers from the last batch in the offset index on.

        If that is the last batch, and `last_trusted` has verified it, nothing is read.
        """
        position, known = self.offset_search.last.position, self._last_trusted
        if known is not None and (known.position, known.end) == (position, self.size):
            return iter((known,))
        return self.headers(position)

    def _trusted(self, entry: OffsetEntry) -> Trusted:
        """Return the entry's batch if it is valid and begins low enough; else the segment's start."""
        if entry.position:
            header = self._valid_batch(entry.position)
            if header is not None and self.base_offset <= header.base_offset <= entry.offset:
                return Trusted(entry.position, header)
        return Trusted(0, None)

    def _valid_batch(self, position: int) -> BatchHeader | None:
        if position >= self.size:
            return None
        try:
            batch = whole_batch(self.handle, self.file, position, self.size)
        except DataError:
            return None
        if batch is None:
            return None
        header, data = batch
        return header if len(data) == header.size and crc_ok(data, header, 0) else None

    def _reaches(self, timestamp: int, offset: int) -> bool:
        """Return whether a batch holds `offset` and has this largest timestamp.

        If not, the time index is not that of the log. Brokers before 3.0 name the offset of the record with
        that timestamp, others the batch's last offset.
        """
        for header in self.headers(self._trusted(self.offset_search.lookup(offset)).position):
            if header.last_offset >= offset:
                return self.begins_below(header, offset + 1) and header.max_timestamp == timestamp
        return False
