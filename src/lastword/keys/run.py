"""A run: entries of the newest record of each key in a range of offsets, in blocks that are found by hash.

```
blocks   4096 bytes each
    170 x 24 bytes    entries: digest of the key (16), then a word, u64
    u32               tag of the run
    u32               number of the block, from 0
    u32               number of entries; the highest bit: entries that belong here follow in the next block
    u32               CRC-32C of all before
footer   4096 bytes: magic, tag, salt, counts, offsets, base; zeros; CRC-32C
```

A word is offset * 2, + 1 if the record is a tombstone. In a run with a `base` it is a *place*: the same bit,
31 bits of position + 1, 32 bits of offset - base. A batch begins at this position of the segment that had the
record when the run was written, and the record is in that batch or in one that follows soon; 0: not known. A
run in a bucket has places, so that a lookup reads no index of a segment. `find` returns the first kind.

A digest is as good as random, so its first 32 bits say in which of the `home` blocks its entry belongs: the
file needs no index of its blocks, and opening it reads the footer alone. A block is filled to 150 of 170
entries on average. What does not fit continues in the next block. All entries of a block belong to it or to
blocks before it, so the blocks of a range of digests are neighbours, and a merge reads and writes in order.

The tag and the number are under the checksum: a block of another run, or in another place, is damage.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import google_crc32c

from lastword.errors import CorruptFileError

ENTRY_BYTES = 24
DIGEST_BYTES = 16
SALT_BYTES = 16
BLOCK_BYTES = 4096
BLOCK_ENTRIES = 170
FILL = 150
"""Entries of a block on average. 170 are exceeded in one block of twenty."""
CONTINUES = 1 << 31
MAGIC = b"lwkeys02"
PLAIN = -1
"""The base of a run without places."""
PLACED_OFFSETS = 1 << 32
"""The offsets of a run with places are below its base and this number."""

_ENTRIES_BYTES = BLOCK_ENTRIES * ENTRY_BYTES
_SPAN_BLOCKS = 64
"""Blocks that are read together."""
_TRAILER = struct.Struct("<III")
_WORD = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_RESIDUE = google_crc32c.value(bytes(4))
"""The CRC-32C of any bytes with their own CRC-32C behind them."""
_POSITION = (1 << 31) - 1
_FOOTER = struct.Struct("<8sI16sQQQQQq")

Digest = Callable[[bytes], bytes]


def digest_function(salt: bytes) -> Digest:
    """Return the function from the bytes of a key to its digest."""
    blake2b = hashlib.blake2b
    return lambda key: blake2b(key, digest_size=DIGEST_BYTES, salt=salt).digest()


def home_of(digest: bytes, home: int) -> int:
    """Return the number of the block in which an entry belongs, of `home` blocks."""
    return int.from_bytes(digest[:4], "big") * home >> 32


def home_blocks(entries: int) -> int:
    """Return the number of blocks for about this many entries."""
    return max(1, -(-entries // FILL))


class RunFacts(NamedTuple):
    """The numbers of a footer.

    Attributes:
        tag: Number of the run, which each block repeats.
        entries: Number of entries.
        home: Number of the blocks in which entries belong.
        blocks: Number of all blocks.
        start: First offset of the range whose newest records it has.
        end: End of that range.
        base: What is subtracted from the offsets of its places; PLAIN: it has no places.
    """

    tag: int
    entries: int
    home: int
    blocks: int
    start: int
    end: int
    base: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return (self.blocks + 1) * BLOCK_BYTES


class Source(Protocol):
    """Bytes at positions: the handle of a file, or memory."""

    def pread(self, n: int, position: int) -> bytes:
        """Read `n` bytes from `position`; fewer only at the end."""

    def pread_into(self, buffer: bytearray | memoryview, position: int) -> int:
        """Fill a buffer from `position`; return the bytes read: fewer only at the end."""


class Sink(Protocol):
    """Takes bytes in order."""

    def append(self, data: Any) -> int:
        """Append bytes."""


class Memory:
    """A run in memory: a sink, then a source."""

    def __init__(self) -> None:
        self.data = bytearray()

    def append(self, data: Any) -> int:
        """Append bytes."""
        self.data += data
        return len(data)

    def pread(self, n: int, position: int) -> bytes:
        """Read `n` bytes from `position`; fewer only at the end."""
        return bytes(self.data[position : position + n])

    def pread_into(self, buffer: bytearray | memoryview, position: int) -> int:
        """Fill a buffer from `position`; return the bytes read: fewer only at the end."""
        data = self.data[position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)


class Run:
    """One run, open to read. For one thread at a time.

    Attributes:
        name: The name of its file; empty: it is in memory.
        salt: That of the index.
        facts: The numbers of its footer; the next ones are the same.
        position: The position of the entry that was found last; -1: not known.
    """

    def __init__(
        self,
        source: Source,
        size_bytes: int,
        salt: bytes | None,
        name: str = "",
        facts: RunFacts | None = None,
    ) -> None:
        """Open a run.

        Args:
            source: The bytes.
            size_bytes: Their number.
            salt: That of the index; None: any.
            name: The path of the file.
            facts: Those of the footer, which is not read then; None: the footer is read.

        Raises:
            CorruptFileError: The footer is damaged, or of another index.
        """
        self.name = name
        self.size_bytes = size_bytes
        self.position = -1
        self._source = source
        self.salt = b"" if salt is None else salt
        self._buffer = bytearray(BLOCK_BYTES)  # reads into new memory take twice as long
        self.facts = self._footer(any_salt=salt is None) if facts is None else facts
        self.tag, self.entries, self.home, self.blocks, self.start, self.end, self.base = self.facts
        if self.facts.size_bytes != size_bytes:
            raise damaged(name, f"it has {size_bytes} bytes in place of {self.facts.size_bytes}")

    def _footer(self, *, any_salt: bool = False) -> RunFacts:
        """Read the footer, and its salt if it may be any."""
        data = self._source.pread(BLOCK_BYTES, max(self.size_bytes - BLOCK_BYTES, 0))
        if len(data) != BLOCK_BYTES or google_crc32c.value(data) != _RESIDUE:
            raise damaged(self.name, "the checksum of the footer is wrong")
        magic, tag, salt, *rest = _FOOTER.unpack_from(data)
        if any_salt:
            self.salt = salt
        if magic != MAGIC or self.salt != salt:
            raise damaged(self.name, "it is of another index, or of another version")
        return RunFacts(tag, *rest)

    @property
    def in_memory(self) -> bool:
        """Return whether the run has no file."""
        return not self.name

    def find(self, digest: bytes) -> int | None:
        """Return the word of an entry (offset * 2, + 1 for a tombstone); None if there is none.

        Raises:
            CorruptFileError: A block is damaged.
        """
        number = int.from_bytes(digest[:4], "big") * self.home >> 32
        while True:
            data, end, continues = self._block(number)
            word = _word(data, digest, end)
            if word is not None or not continues:
                return word if word is None or self.base == PLAIN else self._placed(word)
            number += 1

    def find_sorted(self, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Return the words of sorted digests, without those that have no entry. Reads each block once.

        Raises:
            CorruptFileError: A block is damaged.
        """
        words: dict[bytes, int] = {}
        last, block = -1, (b"", 0, False)
        home = self.home
        for digest in digests:
            number = int.from_bytes(digest[:4], "big") * home >> 32
            while True:
                if number != last:
                    last, block = number, self._block(number)
                data, end, continues = block
                word = _word(data, digest, end)
                if word is not None:
                    words[digest] = word if self.base == PLAIN else self._placed(word)
                if word is not None or not continues:
                    break
                number += 1
        return words

    def _placed(self, place: int) -> int:
        """Return the word of a place, and keep its position."""
        self.position = (place >> 1 & _POSITION) - 1
        return ((place >> 32) + self.base) << 1 | place & 1

    def _block(self, number: int) -> tuple[bytes, int, bool]:
        """Return a block, the end of its entries, and whether they continue in the next block."""
        buffer = self._buffer
        n = self._source.pread_into(buffer, number * BLOCK_BYTES)
        data = bytes(buffer) if n == BLOCK_BYTES else b""
        count, continues = self._checked(data, number)
        return data, count * ENTRY_BYTES, continues

    def _checked(self, data: bytes, number: int) -> tuple[int, bool]:
        if len(data) != BLOCK_BYTES or google_crc32c.value(data) != _RESIDUE:
            raise damaged(self.name, f"the checksum of block {number} is wrong")
        tag, own, count = _TRAILER.unpack_from(data, _ENTRIES_BYTES)
        continues, count = count >= CONTINUES, count & ~CONTINUES
        if tag != self.tag or own != number or count > BLOCK_ENTRIES or number + continues >= self.blocks:
            raise damaged(self.name, f"block {number} is not the block of this place")
        return count, continues

    def span(self, first: int, last: int) -> Iterator[bytes]:
        """Yield the entries of the blocks `first` to `last`, and of those in which they continue."""
        number = first
        buffer = bytearray(min(last - first + 1, _SPAN_BLOCKS) * BLOCK_BYTES)
        while number < self.blocks:
            want = max(1, min(last - number + 1, _SPAN_BLOCKS))
            blocks = memoryview(buffer)[: want * BLOCK_BYTES]
            blocks = blocks[: self._source.pread_into(blocks, number * BLOCK_BYTES)]
            for at in range(0, max(len(blocks), 1), BLOCK_BYTES):
                block = bytes(blocks[at : at + BLOCK_BYTES])
                count, continues = self._checked(block, number)
                yield block[: count * ENTRY_BYTES]
                number += 1
            if number > last and not continues:
                return

    def check_footer(self) -> None:
        """Read the footer. CorruptFileError if it is damaged, or has other numbers than `facts`."""
        if self._footer() != self.facts:
            raise damaged(self.name, "the footer has other numbers than the manifest of the index")

    def check(self) -> None:
        """Read every block. CorruptFileError if one is damaged, or if the number of entries is another."""
        entries = sum(len(part) for part in self.span(0, self.blocks - 1)) // ENTRY_BYTES
        if entries != self.entries:
            raise damaged(self.name, f"{entries} entries, {self.entries} in the footer")


class RunWriter:
    """Writes a run block by block. Entries come in the order of the blocks in which they belong."""

    def __init__(self, sink: Sink, home: int, salt: bytes, tag: int, base: int = PLAIN) -> None:
        self.entries = 0
        self.written = 0
        self._sink = sink
        self._home, self._salt, self._tag, self._base = home, salt, tag, base
        self._pending = bytearray()
        self._number = 0

    def put(self, number: int, entries: bytes) -> None:
        """Add entries that belong in a block; no earlier call named a later block."""
        while self._number < number:
            self._emit()
        self._pending += entries
        self.entries += len(entries) // ENTRY_BYTES

    def put_sorted(self, entries: Iterable[bytes]) -> None:
        """Add single entries in the order of their digests."""
        for entry in entries:
            self.put(home_of(entry, self._home), entry)

    def finish(self, start: int, end: int) -> int:
        """Write the rest and the footer; return the bytes of the run."""
        while self._number < self._home or self._pending:
            self._emit()
        counts = self.entries, self._home, self._number, start, end, self._base
        self._append(_FOOTER.pack(MAGIC, self._tag, self._salt, *counts).ljust(BLOCK_BYTES - 4, b"\0"))
        return self.written

    def _emit(self) -> None:
        taken = bytes(self._pending[:_ENTRIES_BYTES])
        del self._pending[:_ENTRIES_BYTES]
        count = len(taken) // ENTRY_BYTES
        if self._pending:
            count |= CONTINUES
        self._append(taken.ljust(_ENTRIES_BYTES, b"\0") + _TRAILER.pack(self._tag, self._number, count))
        self._number += 1

    def _append(self, data: bytes) -> None:
        self._sink.append(data + _CRC.pack(google_crc32c.value(data)))
        self.written += BLOCK_BYTES


def _word(data: bytes, digest: bytes, end: int) -> int | None:
    """Return the word of a digest in a block; None if it has no entry there."""
    at = data.find(digest, 0, end)
    while at >= 0 and at % ENTRY_BYTES:
        at = data.find(digest, at + 1, end)
    return None if at < 0 else int(_WORD.unpack_from(data, at + DIGEST_BYTES)[0])


def entry_of(digest: bytes, word: int) -> bytes:
    """Return the bytes of an entry."""
    return digest + _WORD.pack(word)


def damaged(name: str, text: str) -> CorruptFileError:
    """Return the error for a damaged file of the index."""
    return CorruptFileError(
        text, code="bad-key-index", remedy="delete the file: it is made again from the log", file=name
    )
