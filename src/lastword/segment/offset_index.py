"""The sparse offset index, `<base>.index`: where in the file a batch lies.

```
entry, 8 bytes   i32 last offset of a batch - base   i32 position of that batch in the .log
```

Strictly ascending offsets, no header. Valid when each entry's position is the start of a batch that ends with
the entry's offset. Derived data: it is written after the bytes it points at, synced before the recovery point
moves past them, and rebuilt from the log whenever it does not fit. Kafka extends the file of an active
segment with zeros; no batch is ever indexed at position 0, so a zero position ends the entries.

An index is read into memory once. It is never mapped: a file that somebody truncates would kill the process.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENTRY_BYTES = 8
_ENTRY = struct.Struct(">ii")


class OffsetEntry(NamedTuple):
    """`offset` is the last offset of the batch that starts at `position`."""

    offset: int
    position: int


def pack_entry(relative_offset: int, position: int) -> bytes:
    return _ENTRY.pack(relative_offset, position)


def _ascending(offsets: array[int], positions: array[int], log_size: int) -> int:
    """How many entries from the first on rise in both columns and point into the log."""
    good = len(offsets)
    if good and (offsets[0] < 0 or positions[0] <= 0):
        return 0
    for column in (offsets, positions):
        if all(map(lt, column, column[1:good])):
            continue
        for at, (one, next_one) in enumerate(pairwise(column[:good])):
            if next_one <= one:
                good = at + 1
                break
    return min(good, bisect_left(positions, log_size, 0, good))


class OffsetIndex:
    """The entries of one index file that make sense; `damaged` tells that bytes after them did not.

    `log_size` bounds the positions: entries beyond it belong to bytes that are gone.
    """

    __slots__ = ("_offsets", "_positions", "base_offset", "damaged", "zero_tail_bytes")

    def __init__(self, data: bytes, base_offset: int, log_size: int) -> None:
        self.base_offset = base_offset
        whole = len(data) - len(data) % ENTRY_BYTES
        cells = array("i", data[:whole])
        if sys.byteorder == "little":
            cells.byteswap()
        offsets, positions = cells[0::2], cells[1::2]
        good = _ascending(offsets, positions, log_size)
        del offsets[good:], positions[good:]
        self._offsets = offsets
        self._positions = positions
        tail = data[len(offsets) * ENTRY_BYTES :]
        zero = not tail.strip(b"\0")
        self.zero_tail_bytes = len(tail) if zero else 0
        self.damaged = not zero

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries; the file without its zero tail."""
        return len(self._offsets) * ENTRY_BYTES

    def extend(self, entries: bytes) -> None:
        """Take in entries that were just appended to the file. Safe beside readers: offsets are searched, and
        grow last."""
        cells = array("i", entries)
        if sys.byteorder == "little":
            cells.byteswap()
        self._positions.extend(cells[1::2])
        self._offsets.extend(cells[0::2])

    def entries(self) -> Iterator[OffsetEntry]:
        for relative, position in zip(self._offsets, self._positions, strict=False):
            yield OffsetEntry(self.base_offset + relative, position)

    @property
    def last(self) -> OffsetEntry:
        """The last entry; (base, 0) for an empty index."""
        if not self._offsets:
            return OffsetEntry(self.base_offset, 0)
        return OffsetEntry(self.base_offset + self._offsets[-1], self._positions[-1])

    def lookup(self, offset: int) -> OffsetEntry:
        """The entry with the largest offset not above `offset`; (base, 0) if there is none."""
        found = self.find(offset)
        return OffsetEntry(self.base_offset, 0) if found < 0 else self.at(found)

    def find(self, offset: int) -> int:
        """The number of that entry; -1 if there is none."""
        return bisect_right(self._offsets, offset - self.base_offset) - 1

    def at(self, number: int) -> OffsetEntry:
        return OffsetEntry(self.base_offset + self._offsets[number], self._positions[number])

    def positions(self) -> list[int]:
        """All indexed positions, ascending: places where a file may be cut into pieces of whole batches."""
        return list(self._positions)

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The entries as two int64 arrays: offsets less the base, and positions. Copies, both of one length,
        whoever appends meanwhile.
        """
        import numpy as np

        offsets = np.frombuffer(self._offsets[:], np.int32).astype(np.int64)
        return offsets, np.frombuffer(self._positions[: offsets.size], np.int32).astype(np.int64)

    def positions_of(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """`lookup(offset).position` of each."""
        import numpy as np

        relative, positions = self.arrays()
        found = np.searchsorted(relative, offsets - self.base_offset, "right")
        return np.concatenate((np.zeros(1, np.int64), positions))[found]
