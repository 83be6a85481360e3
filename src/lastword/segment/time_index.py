"""The sparse time index, `<base>.timeindex`: from which offset on a timestamp may be found.

```
entry, 12 bytes   i64 timestamp (ms)   i32 last offset of a batch - base
```

An entry (T, o) says: T was the largest timestamp of the segment when the entry was written, and the batch
that ends with o was the first to reach it. Timestamps ascend strictly, offsets never fall. So no record
before that batch is younger than T. When a segment is closed a last entry names its largest timestamp. A zero
entry that breaks the order is the tail of a file that Kafka extended.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

ENTRY_BYTES = 12
NO_TIMESTAMP = -1
_ENTRY = struct.Struct(">qi")


@dataclass(frozen=True, slots=True)
class TimeEntry:
    """`timestamp` (ms) was first reached by the batch whose last offset is `offset`."""

    timestamp: int
    offset: int


def pack_entry(timestamp: int, relative_offset: int) -> bytes:
    return _ENTRY.pack(timestamp, relative_offset)


class TimeIndex:
    """The entries of one time index file that make sense; `damaged` tells that bytes after them did not."""

    __slots__ = ("_offsets", "_timestamps", "base_offset", "damaged", "zero_tail_bytes")

    def __init__(self, data: bytes, base_offset: int) -> None:
        self.base_offset = base_offset
        timestamps: list[int] = []
        offsets: list[int] = []
        whole = len(data) - len(data) % ENTRY_BYTES
        last_timestamp, last_offset = NO_TIMESTAMP, 0
        zeros = len(data.rstrip(b"\0"))
        for timestamp, relative in _ENTRY.iter_unpack(memoryview(data)[:whole]):
            at = len(timestamps) * ENTRY_BYTES
            if timestamp <= last_timestamp or relative < last_offset:
                break
            if timestamp == 0 and relative == 0 and at >= zeros and len(data) > ENTRY_BYTES:
                break  # an entry (0 ms, first offset) is possible, but then it is the file's only one
            timestamps.append(timestamp)
            offsets.append(relative)
            last_timestamp, last_offset = timestamp, relative
        self._timestamps = timestamps
        self._offsets = offsets
        tail = data[len(timestamps) * ENTRY_BYTES :]
        zero = not tail.strip(b"\0")
        self.zero_tail_bytes = len(tail) if zero else 0
        self.damaged = not zero

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries; the file without its zero tail."""
        return len(self._timestamps) * ENTRY_BYTES

    def extend(self, entries: bytes) -> None:
        """Take in entries that were just appended to the file. Safe beside readers: timestamps are searched,
        and grow last.
        """
        for timestamp, relative in _ENTRY.iter_unpack(entries):
            self._offsets.append(relative)
            self._timestamps.append(timestamp)

    def cut(self, offset: int) -> None:
        """Forget the entries above `offset`, which are the last ones, and what is behind them."""
        kept = bisect_right(self._offsets, offset - self.base_offset)
        del self._timestamps[kept:], self._offsets[kept:]
        self.zero_tail_bytes, self.damaged = 0, False

    def entries(self) -> Iterator[TimeEntry]:
        for timestamp, relative in zip(self._timestamps, self._offsets, strict=False):
            yield TimeEntry(timestamp, self.base_offset + relative)

    @property
    def last(self) -> TimeEntry:
        """The last entry; (-1, base) for an empty index."""
        if not self._timestamps:
            return TimeEntry(NO_TIMESTAMP, self.base_offset)
        return TimeEntry(self._timestamps[-1], self.base_offset + self._offsets[-1])

    def lookup(self, timestamp: int) -> TimeEntry:
        """The entry with the largest timestamp not above `timestamp`; (-1, base) if there is none."""
        found = bisect_right(self._timestamps, timestamp) - 1
        if found < 0:
            return TimeEntry(NO_TIMESTAMP, self.base_offset)
        return TimeEntry(self._timestamps[found], self.base_offset + self._offsets[found])
