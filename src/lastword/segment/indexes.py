"""The three indexes of a segment: offsets, times, and aborted transactions.

```
<base>.index       8 bytes    i32 last offset of a batch - base   i32 position of that batch in the .log
<base>.timeindex   12 bytes   i64 timestamp (ms)                  i32 last offset of a batch - base
<base>.txnindex    34 bytes   i16 version (0)   i64 producer id   i64 first offset of the transaction
                              i64 last offset: that of its ABORT marker
                              i64 last stable offset when the marker was appended
```

Big endian, no header, no checksum.

Offsets and times are sparse: a rule says which batches get an entry. In the offset index, offsets and
positions ascend strictly; an entry is valid if a batch that ends with its offset begins at its position. An
entry (T, o) of the time index means: T was the largest timestamp of the segment when the entry was written,
and the batch that ends with o was the first to reach it. Timestamps ascend strictly, offsets never fall; so
no record before that batch is younger than T.

Indexes are derived data: written after the bytes that they point at, synced before the recovery point passes
these bytes, and rebuilt from the log if they do not fit. Kafka extends the files of an active segment with
zeros. No batch is ever indexed at position 0, so a zero position ends the offset index; a zero entry that
breaks the order ends the time index.

The indexes of an active segment are in memory. Those of closed segments are loaded when they are used, and
`LOADED` bounds their memory: the first loaded are dropped first. A large index that is not loaded is searched
in its file, by a read for each step (`OffsetSearch.in_file`), until that has cost as much as loading it. An
index is never mapped: a file that another process truncates would kill this one.

**The rule** (`IndexBuilder`), the same for appending, rebuilding and cleaning, so that their files have the
same bytes: a batch is indexed if it begins more than `index.interval.bytes` after the batch that was indexed
before it. The first comparison is with position 0, so the first batch never is. With an offset entry goes a
time entry, if the largest timestamp rose since the last one. A closed segment gets a last time entry with its
largest timestamp.

**Aborted transactions.** The transaction index has an entry for each *aborted* transaction, in the segment
that holds the marker, even if all its data is in older segments; most segments have no such file. Last
offsets rise from entry to entry. A fragment at the end (a torn append) is ignored, and cut before the next
append. Reads take the outcomes of transactions from the log; the file is kept for brokers, and `verify`
compares it with the log.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from operator import le, lt
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lastword.errors import CorruptFileError, FileVanishedError
from lastword.files import Handle
from lastword.segment import names
from lastword.segment.stored import StoredSegment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
NO_TIMESTAMP = -1
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OBJECT_BYTES = 512
"""Memory of an index without its entries."""


class _Column:
    """One field of all entries of an index file. Each is read when it is used.

    A field that is negative, or cannot be read because the file was replaced or cut, is 0: no entry is at
    position 0.
    """

    __slots__ = ("_field", "_handle", "_start", "_step", "count")

    def __init__(self, handle: Handle, field: struct.Struct, start: int, step: int) -> None:
        """The field of the first entry is at byte `start` of the file; entries have `step` bytes."""
        self._handle = handle
        self._field = field
        self._start = start
        self._step = step
        self.count = 0
        with suppress(FileVanishedError):  # its idle descriptor was closed, and the file replaced
            self.count = handle.size() // step

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        field = self._field
        try:
            data = self._handle.pread(field.size, self._start + number * self._step)
        except FileVanishedError:
            return 0
        return max(int(field.unpack(data)[0]), 0) if len(data) == field.size else 0


if TYPE_CHECKING:
    Column = array[int] | _Column


# ---------------------------------------------------------------- offsets


class OffsetEntry(NamedTuple):
    """`offset` is the last offset of the batch that starts at `position`."""

    offset: int
    position: int


_entry = tuple.__new__
"""Makes an `OffsetEntry` of a pair, in a third of the time of its constructor."""


def _ascending(offsets: array[int], positions: array[int], log_size: int) -> int:
    """Return how many entries from the first on rise in both columns and point into the log."""
    valid = len(offsets)
    if valid and (offsets[0] < 0 or positions[0] <= 0):
        return 0
    for column in (offsets, positions):
        if _rises(column):
            continue
        for number, (value, following) in enumerate(pairwise(column[:valid])):
            if following <= value:
                valid = number + 1
                break
    return min(valid, bisect_left(positions, log_size, 0, valid))


def _rises(column: array[int]) -> bool:
    """Return whether the numbers ascend strictly. NumPy compares many of them, if it is loaded already."""
    from_buffer = getattr(sys.modules.get("numpy"), "frombuffer", None) if len(column) > 1000 else None
    if from_buffer is None:
        return all(map(lt, column, column[1:]))
    numbers = from_buffer(column, column.typecode)
    return bool((numbers[1:] > numbers[:-1]).all())


class OffsetSearch:
    """Single lookups of an offset index, whose entries are in memory or in their file.

    Attributes:
        base_offset: Base offset of the segment.
        ends: Of the indexed batches that were read, the positions behind them; 0: not yet, -1: not valid.
            None: they are not kept.
    """

    __slots__ = ("__weakref__", "_offsets", "_positions", "base_offset", "ends")

    base_offset: int
    _offsets: Column
    _positions: Column
    ends: array[int] | None

    @staticmethod
    def in_file(handle: Handle, base_offset: int, log_size: int) -> OffsetSearch:
        """Return a search in the file of a closed segment, which reads a few entries and no others.

        Their order is not checked. A bisection has compared the entry that it returns, so its offset is not
        above the one that was looked up; the caller checks the batch. Entries at or above position
        `log_size`, and a zero tail, are left out.
        """
        search = OffsetSearch()
        search.base_offset, search.ends = base_offset, None
        positions = _Column(handle, _INT32, 4, OFFSET_ENTRY_BYTES)
        positions.count = bisect_left(positions, log_size, key=lambda at: at if at > 0 else log_size)
        search._positions = positions
        search._offsets = _Column(handle, _INT32, 0, OFFSET_ENTRY_BYTES)
        search._offsets.count = positions.count
        return search

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries: the file without its zero tail."""
        return len(self._offsets) * OFFSET_ENTRY_BYTES

    @property
    def last(self) -> OffsetEntry:
        """The last entry; (base, 0) for an empty index."""
        count = len(self._offsets)
        return self.at(count - 1) if count else OffsetEntry(self.base_offset, 0)

    def lookup(self, offset: int) -> OffsetEntry:
        """Return the entry with the largest offset not above `offset`; (base, 0) if there is none."""
        offsets, base = self._offsets, self.base_offset
        number = bisect_right(offsets, offset - base) - 1
        if number < 0:
            return OffsetEntry(base, 0)
        return _entry(OffsetEntry, (base + offsets[number], self._positions[number]))

    def around(self, offset: int) -> tuple[int, int, int, int, int]:
        """Return the last entry below `offset`, the first that is not, and the position of the one after it.

        An entry is its offset and its position: (-1, 0) below the first, (-1, -1) above the last. The
        position is -1 if there is none.
        """
        offsets, positions, base = self._offsets, self._positions, self.base_offset
        number, count = bisect_left(offsets, offset - base), len(offsets)
        below, start = (base + offsets[number - 1], positions[number - 1]) if number else (-1, 0)
        if number == count:
            return below, start, -1, -1, -1
        end = positions[number + 1] if number + 1 < count else -1
        return below, start, base + offsets[number], positions[number], end

    def find(self, offset: int) -> int:
        """Return the number of the entry that `lookup` returns; -1 if there is none."""
        return bisect_right(self._offsets, offset - self.base_offset) - 1

    def at(self, number: int) -> OffsetEntry:
        """Return the entry with this number."""
        return _entry(OffsetEntry, (self.base_offset + self._offsets[number], self._positions[number]))

    def number_at(self, position: int) -> int:
        """Return the number of the last entry whose position is not above `position`; -1 if there is none."""
        return bisect_right(self._positions, position) - 1


class OffsetIndex(OffsetSearch):
    """The valid entries of an offset index, in memory.

    Attributes:
        damaged: The file has bytes behind the valid entries that are not zero.
        zero_tail_bytes: Zeros behind the valid entries.
    """

    __slots__ = ("damaged", "zero_tail_bytes")

    _offsets: array[int]
    _positions: array[int]
    ends: array[int]

    def __init__(self, data: bytes, base_offset: int, log_size: int) -> None:
        """Parse a file. Entries at or above position `log_size` belong to bytes that are gone."""
        self.base_offset = base_offset
        whole = len(data) - len(data) % OFFSET_ENTRY_BYTES
        cells = array("i", data[:whole])
        if sys.byteorder == "little":
            cells.byteswap()
        offsets, positions = cells[0::2], cells[1::2]
        valid = _ascending(offsets, positions, log_size)
        del offsets[valid:], positions[valid:]
        self._offsets = offsets
        self._positions = positions
        self.ends = array("q")
        tail = data[len(offsets) * OFFSET_ENTRY_BYTES :]
        zero = not tail.strip(b"\0")
        self.zero_tail_bytes = len(tail) if zero else 0
        self.damaged = not zero

    @property
    def memory_bytes(self) -> int:
        """Most memory of the index and its `ends`."""
        return _OBJECT_BYTES + 16 * len(self._offsets)

    def extend(self, entries: bytes) -> None:
        """Add entries that were just appended to the file.

        Safe beside readers, which search the offsets: these grow last.
        """
        cells = array("i", entries)
        if sys.byteorder == "little":
            cells.byteswap()
        self._positions.extend(cells[1::2])
        self._offsets.extend(cells[0::2])

    def cut(self, position: int) -> None:
        """Drop the entries at `position` of the log and above. Safe beside readers, as `extend`."""
        kept = bisect_left(self._positions, position)
        del self._offsets[kept:]
        del self._positions[kept:]

    def entries(self) -> Iterator[OffsetEntry]:
        """Yield the entries, in order."""
        for relative, position in zip(self._offsets, self._positions, strict=False):
            yield OffsetEntry(self.base_offset + relative, position)

    def positions(self) -> list[int]:
        """Return all indexed positions, ascending: where a log may be cut into parts of whole batches."""
        return list(self._positions)

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the entries as two int64 arrays: offsets less the base, and positions.

        Copies, and both of one length even if another thread appends meanwhile.
        """
        import numpy as np

        offsets = np.frombuffer(self._offsets[:], np.int32).astype(np.int64)
        return offsets, np.frombuffer(self._positions[: offsets.size], np.int32).astype(np.int64)

    def positions_of(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `lookup(offset).position` of each offset."""
        import numpy as np

        relative, positions = self.arrays()
        numbers = np.searchsorted(relative, offsets - self.base_offset, "right")
        return np.concatenate((np.zeros(1, np.int64), positions))[numbers]


# ---------------------------------------------------------------- times


class TimeEntry(NamedTuple):
    """`timestamp` (ms) was first reached by the batch whose last offset is `offset`."""

    timestamp: int
    offset: int


class TimeSearch:
    """Single lookups of a time index, whose entries are in memory or in their file.

    Attributes:
        base_offset: Base offset of the segment.
    """

    __slots__ = ("__weakref__", "_offsets", "_timestamps", "base_offset")

    base_offset: int
    _offsets: Column
    _timestamps: Column

    @staticmethod
    def in_file(handle: Handle, base_offset: int) -> TimeSearch:
        """Return a search in the file of a closed segment, as `OffsetSearch.in_file`."""
        search = TimeSearch()
        search.base_offset = base_offset
        timestamps = _Column(handle, _INT64, 0, TIME_ENTRY_BYTES)
        timestamps.count = bisect_left(timestamps, True, key=lambda timestamp: timestamp <= 0)
        search._timestamps = timestamps
        search._offsets = _Column(handle, _INT32, 8, TIME_ENTRY_BYTES)
        return search

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> TimeEntry:
        """The last entry; (-1, base) for an empty index."""
        return self._at(len(self._timestamps) - 1)

    def lookup(self, timestamp: int) -> TimeEntry:
        """Return the entry with the largest timestamp not above `timestamp`; (-1, base) if there is none."""
        number = bisect_right(self._timestamps, timestamp) - 1
        entry = self._at(number)
        if number + 1 < len(self._timestamps) and self._offsets[number + 1] < entry.offset - self.base_offset:
            return self._at(-1)  # damage in a file whose order was not checked
        return entry

    def _at(self, number: int) -> TimeEntry:
        if number < 0:
            return TimeEntry(NO_TIMESTAMP, self.base_offset)
        return TimeEntry(self._timestamps[number], self.base_offset + self._offsets[number])


class TimeIndex(TimeSearch):
    """The valid entries of a time index, in memory.

    Attributes:
        damaged: The file has bytes behind the valid entries that are not zero.
        zero_tail_bytes: Zeros behind the valid entries.
    """

    __slots__ = ("damaged", "zero_tail_bytes")

    _offsets: array[int]
    _timestamps: array[int]

    def __init__(self, data: bytes, base_offset: int) -> None:
        self.base_offset = base_offset
        cells = array("i", data[: len(data) - len(data) % TIME_ENTRY_BYTES])
        halves = array("i", bytes(len(cells) // 3 * 8))
        high = 0
        if sys.byteorder == "little":
            cells.byteswap()
            high = 1
        halves[high::2], halves[1 - high :: 2] = cells[0::3], cells[1::3]
        timestamps, offsets = array("q", halves.tobytes()), cells[2::3]
        valid = len(offsets)
        if not (
            _rises(timestamps)
            and min(timestamps[:1], default=0) > NO_TIMESTAMP
            and all(map(le, chain((0,), offsets), offsets))
        ):
            before = chain((NO_TIMESTAMP,), timestamps), chain((0,), offsets)
            rises = zip(before[0], timestamps, before[1], offsets, strict=False)
            valid = next(n for n, (a, b, c, d) in enumerate(rises) if b <= a or d < c)
        is_zero = valid and timestamps[0] == offsets[0] == 0
        if is_zero and len(data) > TIME_ENTRY_BYTES and not data.strip(b"\0"):
            valid = 0  # an entry (0 ms, first offset) is possible, but then it is the file's only one
        del timestamps[valid:], offsets[valid:]
        self._timestamps = timestamps
        self._offsets = offsets
        tail = data[len(timestamps) * TIME_ENTRY_BYTES :]
        zero = not tail.strip(b"\0")
        self.zero_tail_bytes = len(tail) if zero else 0
        self.damaged = not zero

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries: the file without its zero tail."""
        return len(self._timestamps) * TIME_ENTRY_BYTES

    @property
    def memory_bytes(self) -> int:
        """Memory of the index."""
        return _OBJECT_BYTES + TIME_ENTRY_BYTES * len(self._offsets)

    def extend(self, entries: bytes) -> None:
        """Add entries that were just appended to the file.

        Safe beside readers, which search the timestamps: these grow last.
        """
        for timestamp, relative in _TIME_ENTRY.iter_unpack(entries):
            self._offsets.append(relative)
            self._timestamps.append(timestamp)

    def cut(self, offset: int) -> None:
        """Drop the entries above `offset`, and what follows them in the file."""
        kept = bisect_right(self._offsets, offset - self.base_offset)
        del self._timestamps[kept:], self._offsets[kept:]
        self.zero_tail_bytes, self.damaged = 0, False

    def entries(self) -> Iterator[TimeEntry]:
        """Yield the entries, in order."""
        for timestamp, relative in zip(self._timestamps, self._offsets, strict=False):
            yield TimeEntry(timestamp, self.base_offset + relative)


# ---------------------------------------------------------------- in memory


LOADED_BYTES = 32 << 20
"""The most memory of loaded indexes of closed segments: those of 8 GiB of log, with an entry for 4 KiB."""
SEARCHED_BYTES = 8 << 20
"""The index of a closed segment of at least this size is searched in its file while it is not loaded."""
SEARCHES_OF_LOAD = 16 << 10
"""Bytes of an index that are loaded in the time of one search in its file."""

Index = TypeVar("Index", OffsetIndex, TimeIndex)


class LoadedIndexes:
    """The loaded indexes of closed segments, of all logs of the process.

    A segment has a weak reference to its index. An index that is dropped here is gone when its last reader
    has finished, and is loaded again for the next one. It changes no more, so nothing is lost.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._loaded: deque[tuple[OffsetIndex | TimeIndex, int]] = deque()
        self.renew_lock()

    def keep(self, index: Index) -> weakref.ref[Index]:
        """Take an index that was loaded, and drop the first ones if there are too many."""
        size = index.memory_bytes
        with self._lock:
            self._loaded.append((index, size))
            self.bytes += size
            while self.bytes > self.limit_bytes:
                self.bytes -= self._loaded.popleft()[1]
        return weakref.ref(index)

    def renew_lock(self) -> None:
        """Make the lock again: another thread may have held it when the process forked."""
        self._lock = threading.Lock()


LOADED = LoadedIndexes(LOADED_BYTES)
os.register_at_fork(after_in_child=LOADED.renew_lock)


# ---------------------------------------------------------------- the rule


class IndexBuilder:
    """Make the entries of batches, given in file order.

    A builder that continues an existing segment is made with the state after its last entry; `seen` adds the
    batches from that entry's position on.

    Attributes:
        offset_entries: Bytes of the offset index; grows by whole entries.
        time_entries: Bytes of the time index; grows by whole entries.
        largest_timestamp: Largest of all batches, in ms; -1 if none has one.
        largest_timestamp_offset: Last offset of the batch that has it.
    """

    __slots__ = (
        "_entry_position",
        "_time_entry",
        "base_offset",
        "interval_bytes",
        "largest_timestamp",
        "largest_timestamp_offset",
        "offset_entries",
        "time_entries",
    )

    def __init__(
        self,
        base_offset: int,
        interval_bytes: int,
        *,
        entry_position: int = 0,
        time_entry: int = NO_TIMESTAMP,
    ) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self._entry_position = entry_position
        self._time_entry = time_entry
        self.largest_timestamp = NO_TIMESTAMP
        self.largest_timestamp_offset = base_offset
        self.offset_entries = bytearray()
        self.time_entries = bytearray()

    def seen(self, last_offset: int, max_timestamp: int) -> None:
        """Add a batch that the file has already, with its entry if it gets one."""
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_offset = last_offset

    def batch(self, position: int, last_offset: int, max_timestamp: int) -> bool:
        """Add a batch at `position` of the file; return whether it got an entry."""
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_offset = last_offset
        if position - self._entry_position <= self.interval_bytes:
            return False
        self.offset_entries += _OFFSET_ENTRY.pack(last_offset - self.base_offset, position)
        self._entry_position = position
        self._add_time_entry()
        return True

    @property
    def last_unindexed_position(self) -> int:
        """The last position at which the next batch gets no entry."""
        return self._entry_position + self.interval_bytes

    @property
    def state(self) -> tuple[int, int, int, int]:
        """State for `resume`.

        Position of the last entry, timestamp of the last time entry, the largest timestamp, the last offset
        of its batch.
        """
        return self._entry_position, self._time_entry, self.largest_timestamp, self.largest_timestamp_offset

    def resume(self, state: Sequence[int]) -> None:
        """Continue after batches that were indexed elsewhere, from the state that they left."""
        self._entry_position, self._time_entry, self.largest_timestamp, self.largest_timestamp_offset = state

    def drop_entries(self) -> None:
        """Forget the bytes of the entries, which are in their files."""
        self.offset_entries.clear()
        self.time_entries.clear()

    def finish(self) -> None:
        """Add the last time entry of a segment that gets no more batches."""
        self._add_time_entry()

    def _add_time_entry(self) -> None:
        if self.largest_timestamp > self._time_entry:
            relative = self.largest_timestamp_offset - self.base_offset
            self.time_entries += _TIME_ENTRY.pack(self.largest_timestamp, relative)
            self._time_entry = self.largest_timestamp


# ---------------------------------------------------------------- aborted transactions


TXN_ENTRY = struct.Struct(">hqqqq")
TXN_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One entry. The transaction's batches have this producer id and are in [first_offset, last_offset)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return the bytes of entries."""
    return b"".join(TXN_ENTRY.pack(TXN_VERSION, *entry) for entry in entries)


def decode_aborted(data: bytes, file: str) -> list[AbortedTransaction]:
    """Return all whole entries of a file's bytes. CorruptFileError for a version that is not 0."""
    entries = []
    for position in range(0, len(data) - TXN_ENTRY.size + 1, TXN_ENTRY.size):
        version, *fields = TXN_ENTRY.unpack_from(data, position)
        if version != TXN_VERSION:
            raise CorruptFileError(
                f"transaction index entry {position // TXN_ENTRY.size} has version {version}, "
                f"known is {TXN_VERSION}",
                remedy="remove the file: opening the log rebuilds it from the segment",
                file=file,
                position=position,
            )
        entries.append(AbortedTransaction(*fields))
    return entries


def check_aborted(entries: Sequence[AbortedTransaction], base_offset: int, file: str) -> None:
    """Raise CorruptFileError for entries that this segment cannot have; its index must be rebuilt then."""
    before = base_offset - 1
    for number, entry in enumerate(entries):
        if (
            entry.last_offset <= before
            or not 0 <= entry.first_offset <= entry.last_offset
            or entry.last_stable_offset < 0
        ):
            raise CorruptFileError(
                f"aborted transaction [{entry.first_offset}, {entry.last_offset}] after offset {before}, "
                f"last stable offset {entry.last_stable_offset}",
                remedy="remove the file: opening the log rebuilds it from the segment",
                file=file,
                position=number * TXN_ENTRY.size,
                offset=entry.last_offset,
            )
        before = entry.last_offset


class TransactionIndex:
    """The index of one segment. It is read once, when it is first needed, and made by the first append.

    One thread writes (under the log's lock); others may read and iterate meanwhile.
    """

    def __init__(self, stored: StoredSegment, *, is_absent: bool = False) -> None:
        """`is_absent`: the segment has no such file, so none is looked for."""
        self._stored = stored
        self._entries: list[AbortedTransaction] | None = [] if is_absent else None
        self._handle: Handle | None = None

    @property
    def path(self) -> str:
        """The name of the index, for messages."""
        return self._stored.path(names.TXN_INDEX)

    @property
    def entries(self) -> list[AbortedTransaction]:
        """The entries. CorruptFileError for one of an unknown version."""
        if self._entries is None:
            self._entries = decode_aborted(self._stored.read(names.TXN_INDEX) or b"", self.path)
        return self._entries

    def check(self) -> None:
        """Raise CorruptFileError if the entries cannot be those of this segment."""
        check_aborted(self.entries, self._stored.base_offset, self.path)

    def append(self, entry: AbortedTransaction) -> None:
        """Write an entry, unsynced. ValueError unless its last offset is above that of the entry before."""
        entries = self.entries
        if entries and entry.last_offset <= entries[-1].last_offset:
            raise ValueError(
                f"{self.path}: an aborted transaction that ends at {entry.last_offset} "
                f"after one that ends at {entries[-1].last_offset}"
            )
        self._open().append(encode_aborted([entry]))
        entries.append(entry)

    def truncate(self, offset: int) -> None:
        """Drop every entry that ends at `offset` or above."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) < len(self.entries):
            self._open().truncate(len(kept) * TXN_ENTRY.size)
            self._entries = kept

    def sync(self) -> None:
        """Make the index durable, if there is one."""
        if self._handle is not None:
            self._handle.fsync()
        elif self._stored.read(names.TXN_INDEX) is not None:
            self._open().fsync()

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _open(self) -> Handle:
        if self._handle is None:
            whole = len(self.entries) * TXN_ENTRY.size
            handle = self._stored.open_append(names.TXN_INDEX, create=True)
            if handle.size() != whole:
                handle.truncate(whole)  # a fragment would shift every later entry
            self._handle = handle
        return self._handle
