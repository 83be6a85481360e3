"""The transaction index of a segment, `.txnindex`: which ranges of offsets were aborted.

```
bytes  field
    2  version, 0
    8  producer id
    8  first offset of the transaction
    8  last offset: that of its ABORT marker
    8  last stable offset when the marker was appended
```

One 34-byte entry per *aborted* transaction, big endian, in the segment that holds the marker, even if all
its data is in older segments; most segments have no such file. Last offsets rise from entry to entry. A
fragment at the end (a torn append) is ignored, and cut before the next append. The file is written and synced
with its segment; recovery of the segment rebuilds it.

The file has no checksum. Reads take the outcomes of transactions from the log; the file is kept for brokers,
and `verify` compares it with the log.

A reader of [x, u) needs every entry that ends at or above x and begins below u. It starts with the index of
the segment that holds x and continues with higher segments until an entry's last stable offset reaches u:
from there on every transaction that began below u is decided.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lastword.errors import CorruptFileError
from lastword.files import Handle
from lastword.segment import names
from lastword.segment.stored import StoredSegment

ENTRY = struct.Struct(">hqqqq")
VERSION = 0


class AbortedTransaction(NamedTuple):
    """One entry. The transaction's batches have this producer id and are in [first_offset, last_offset)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Collected(NamedTuple):
    """Entries of one index for a read. `complete`: higher segments have no more of them."""

    entries: list[AbortedTransaction]
    complete: bool


def encode_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return the bytes of entries."""
    return b"".join(ENTRY.pack(VERSION, *entry) for entry in entries)


def decode_entries(data: bytes, file: str) -> list[AbortedTransaction]:
    """Return all whole entries of a file's bytes. CorruptFileError for a version that is not 0."""
    entries = []
    for position in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
        version, *fields = ENTRY.unpack_from(data, position)
        if version != VERSION:
            raise CorruptFileError(
                f"transaction index entry {position // ENTRY.size} has version {version}, known is {VERSION}",
                remedy="remove the file: opening the log rebuilds it from the segment",
                file=file,
                position=position,
            )
        entries.append(AbortedTransaction(*fields))
    return entries


def check_entries(entries: Sequence[AbortedTransaction], base_offset: int, file: str) -> None:
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
                position=number * ENTRY.size,
                offset=entry.last_offset,
            )
        before = entry.last_offset


def collect(entries: Iterable[AbortedTransaction], fetch_offset: int, upper_bound: int) -> Collected:
    """Return the entries of one index that a read of [fetch_offset, upper_bound) needs."""
    needed = []
    for entry in entries:
        if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound:
            needed.append(entry)
        if entry.last_stable_offset >= upper_bound:
            return Collected(needed, True)
    return Collected(needed, False)


def collect_over(
    indexes: Iterable[Iterable[AbortedTransaction]], fetch_offset: int, upper_bound: int
) -> list[AbortedTransaction]:
    """Collect over the indexes of segments in order, from the one that holds `fetch_offset` on."""
    needed: list[AbortedTransaction] = []
    for entries in indexes:
        more, complete = collect(entries, fetch_offset, upper_bound)
        needed += more
        if complete:
            break
    return needed


class TransactionIndex:
    """The index of one segment. It is read once, when it is first needed, and made by the first append.

    One thread writes (under the log's lock); others may read and iterate meanwhile.
    """

    def __init__(self, stored: StoredSegment) -> None:
        self._stored = stored
        self._entries: list[AbortedTransaction] | None = None
        self._handle: Handle | None = None

    @property
    def path(self) -> str:
        """The name of the index, for messages."""
        return self._stored.path(names.TXN_INDEX)

    @property
    def entries(self) -> list[AbortedTransaction]:
        """The entries. CorruptFileError for one of an unknown version."""
        if self._entries is None:
            self._entries = decode_entries(self._stored.read(names.TXN_INDEX) or b"", self.path)
        return self._entries

    def check(self) -> None:
        """Raise CorruptFileError if the entries cannot be those of this segment."""
        check_entries(self.entries, self._stored.base_offset, self.path)

    def collect(self, fetch_offset: int, upper_bound: int) -> Collected:
        """See `collect`."""
        return collect(self.entries, fetch_offset, upper_bound)

    def append(self, entry: AbortedTransaction) -> None:
        """Write an entry, unsynced. ValueError unless its last offset is above that of the entry before."""
        entries = self.entries
        if entries and entry.last_offset <= entries[-1].last_offset:
            raise ValueError(
                f"{self.path}: an aborted transaction that ends at {entry.last_offset} "
                f"after one that ends at {entries[-1].last_offset}"
            )
        self._open().append(encode_entries([entry]))
        entries.append(entry)

    def truncate(self, offset: int) -> None:
        """Drop every entry that ends at `offset` or above."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) < len(self.entries):
            self._open().truncate(len(kept) * ENTRY.size)
            self._entries = kept

    def reset(self) -> None:
        """Drop all entries, also of an index that cannot be read."""
        if self._exists():
            self._entries = []
            self._open().truncate(0)
        self._entries = []

    def sync(self) -> None:
        """Make the index durable, if there is one."""
        if self._handle is not None:
            self._handle.fsync()
        elif self._exists():
            self._open().fsync()

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _exists(self) -> bool:
        return self._stored.read(names.TXN_INDEX) is not None

    def _open(self) -> Handle:
        if self._handle is None:
            whole = len(self.entries) * ENTRY.size
            handle = self._stored.open_append(names.TXN_INDEX, create=True)
            if handle.size() != whole:
                handle.truncate(whole)  # a fragment would shift every later entry
            self._handle = handle
        return self._handle
