"""Search the files of a partition for erased keys and their old values, and certify what is not there.

`Wanted` finds keys and values in any bytes: a window of eight bytes of each is looked up at every position,
and a match is compared as a whole. A value is kept as its salted digest only. Keys of fewer than eight bytes
and values of fewer than sixteen, without zero bytes at their ends, occur by chance in other bytes: such keys
are looked for as keys of records alone, and such values are not looked for.

`search` reads every file of a partition: batches are decompressed, the key index is looked up by its own
digests, and everything else is searched as it is: other private files, indexes, bytes behind the last batch.

`Erasure` is the certificate: one JSON object with the checksum of its other fields. It has salted digests of
the keys, and never a key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from lastword.cleaner.engine.erasure import SpanSet, hits_of
from lastword.errors import CorruptFileError, DataError
from lastword.files import DEFAULT, Files, Handle
from lastword.ingest.staging import BATCHES
from lastword.kernels import table as fields
from lastword.keys.manifest import is_run
from lastword.keys.run import Run, digest_function
from lastword.records.chunk import Chunk, chunk_of
from lastword.records.columns import RecordColumns, decode_columns
from lastword.segment import names
from lastword.tools.findings import LenientWalk, Problem
from lastword.units import format_time
from lastword.values import Value, plural

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView

T = TypeVar("T")

KIND = "lastword-erasure"
VERSION = 1
SALT_BYTES = 16
MOST_COPIES = 1000
"""Copies that are listed; all are counted."""
MOST_VALUES = 1 << 20
"""Old values of a partition that are looked for."""
SHORTEST_KEY, SHORTEST_VALUE = 8, 16
"""Shorter ones occur by chance in other bytes. Zero bytes at both ends do not count: numbers have them."""

NOT_COVERED = (
    "versions and replicas that a bucket or its provider keeps",
    "local caches of objects (the storage option cache)",
    "copies made by pull, copy, restore, mirroring or backup, and their snapshots",
    "tables and checkpoints of Spark, Flink and lakes, and their older versions",
    "replicas on other brokers, until each of them has cleaned",
    "consumers that have read the records, or that have not read the tombstone",
    "other keys and topics with data of the same person",
    "free blocks of the drive, page caches, swap and core dumps",
)
"""What a certificate does not promise."""

_WINDOW = 8
_TABLE_BITS = 20
_MIX = np.uint64(0x9E3779B97F4A7C15)
_BLOCK_BYTES = 1 << 20

Bytes = NDArray[np.uint8]


def digest_of(salt: bytes, data: bytes) -> bytes:
    """Return the salted digest of a key or a value: HMAC-SHA-256."""
    return hmac.digest(salt, data, "sha256")


def hex_digest(digests: bytes, number: int) -> str:
    """Return a digest of a row of digests, as 64 hex digits."""
    return digests[32 * number : 32 * number + 32].hex()


class Listed(Sequence[T]):
    """A sequence of which each item is made when it is read: as many as keys are not held as objects."""

    def __init__(self, count: int, item: Callable[[int], T]) -> None:
        self._numbers, self._item = range(count), item

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(map(self._item, self._numbers[index]))
        return self._item(self._numbers[index])

    def __repr__(self) -> str:
        return repr(tuple(self))


class Wanted:
    """Keys, and digests of values, that are looked for in bytes.

    Attributes:
        keys: The keys.
        values: Number of distinct values.
        all_values: Whether every value was taken; there is room for `MOST_VALUES`.
    """

    def __init__(self, keys: SpanSet, salt: bytes) -> None:
        self.keys = keys
        self.salt = salt
        self.all_values = True
        self._values: set[bytes] = set()  # digests
        # Of each wanted string: a window, its position, the length; the first and the last eight bytes of new
        # ones.
        self._words, self._begins, self._ends = array("Q"), array("Q"), array("Q")
        self._places, self._lengths = array("q"), array("q")
        self._has_window, self._has_begin, self._has_end = np.zeros((3, 1 << _TABLE_BITS), np.bool_)
        self._is_ready = False
        for key in keys.members:
            if len(key.strip(b"\0")) >= SHORTEST_KEY:
                self._add(key, len(key) - _WINDOW)

    @property
    def values(self) -> int:
        """Return the number of distinct values."""
        return len(self._values)

    def add_value(self, value: bytes) -> None:
        """Look for an old value, too."""
        if len(value.strip(b"\0")) < SHORTEST_VALUE:
            return
        if len(self._values) >= MOST_VALUES:
            self.all_values = False
            return
        digest = digest_of(self.salt, value)
        if digest not in self._values:
            self._values.add(digest)
            self._add(value, _window_of(value))

    def _add(self, data: bytes, at: int) -> None:
        for words, start in ((self._words, at), (self._begins, 0), (self._ends, len(data) - _WINDOW)):
            words.append(int.from_bytes(data[start : start + _WINDOW], "little"))
        self._places.append(at)
        self._lengths.append(len(data))
        self._is_ready = False

    def _make_ready(self) -> None:
        """Make the arrays by which windows are looked up."""
        words, begins, ends = (np.array(each, np.uint64) for each in (self._words, self._begins, self._ends))
        order = np.argsort(words)
        self._sorted = words[order]
        self._at, self._length = (np.array(each, np.int64)[order] for each in (self._places, self._lengths))
        self._has_window[self._slots(words)] = True
        self._has_begin[self._slots(begins)] = True
        self._has_end[self._slots(ends)] = True
        del self._begins[:], self._ends[:]
        self._is_ready = True

    def find(self, data: Bytes) -> Iterator[tuple[int, int, bool]]:
        """Yield position, length and whether it is a value, for each key and value in `data`."""
        if not self._is_ready:
            self._make_ready()
        for shift in range(min(_WINDOW, max(data.size - _WINDOW + 1, 0))):
            count = (data.size - shift) // _WINDOW
            words = data[shift : shift + count * _WINDOW].view("<u8")
            rows = np.flatnonzero(self._has_window[self._slots(words)])
            if rows.size:
                for start, length in self._candidates(data, words[rows], shift + rows * _WINDOW):
                    found = data[start : start + length].tobytes()
                    is_value = digest_of(self.salt, found) in self._values
                    if is_value or self.keys.number(found) >= 0:
                        yield start, length, is_value

    def _candidates(
        self, data: Bytes, words: NDArray[np.uint64], positions: NDArray[np.int64]
    ) -> Iterator[tuple[int, int]]:
        """Yield start and length where a window matches, and the first and last eight bytes may."""
        low, high = (np.searchsorted(self._sorted, words, side) for side in ("left", "right"))
        for step in range(int((high - low).max())):
            there = low + step < high
            numbers = low[there] + step
            starts, lengths = positions[there] - self._at[numbers], self._length[numbers]
            inside = (starts >= 0) & (starts + lengths <= data.size)
            starts, lengths = starts[inside], lengths[inside]
            fitting = self._has_begin[self._slots(_words_at(data, starts))]
            fitting &= self._has_end[self._slots(_words_at(data, starts + lengths - _WINDOW))]
            yield from zip(starts[fitting].tolist(), lengths[fitting].tolist(), strict=True)

    @staticmethod
    def _slots(words: NDArray[np.uint64]) -> NDArray[np.int64]:
        return ((words * _MIX) >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)

    def find_in_file(self, handle: Handle, start: int, end: int) -> Iterator[tuple[int, bool]]:
        """Yield position and whether it is a value, for each key and value in a part of a file, once."""
        overlap = max(self._lengths, default=1) - 1
        step = max(_BLOCK_BYTES, 4 * overlap)
        for position in range(start, end, step):
            data = np.frombuffer(handle.pread(min(step + overlap, end - position), position), np.uint8)
            for at, length, is_value in self.find(data):
                if position == start or at + length > overlap:  # else the block before had it
                    yield position + at, is_value


def _window_of(value: bytes) -> int:
    """Return the position of the window of a value: the middle, or where two neighbours differ.

    A window of equal bytes matches at every position of a long run of them, such as a file of zeros.
    """
    at = (len(value) - _WINDOW) // 2
    if value.count(value[at], at, at + _WINDOW) == _WINDOW:
        data = np.frombuffer(value, np.uint8)
        changes = np.flatnonzero(data[1:] != data[:-1])
        if changes.size:
            at = min(int(changes[changes.size // 2]), len(value) - _WINDOW)
    return at


def _words_at(data: Bytes, starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the eight bytes at each position as a word."""
    words: NDArray[np.uint64] = data[starts[:, None] + np.arange(_WINDOW)].view("<u8").ravel()
    return words


@dataclass(frozen=True, slots=True)
class Copy(Value):
    """A place that holds a key or an old value.

    Attributes:
        file: The path below the log directory.
        position: Position in the file; None: in a compressed batch, or in an entry of an index.
        offset: Offset of the record that holds it; None: no record.
        text: What it is.
    """

    file: str
    position: int | None
    offset: int | None
    text: str

    def __str__(self) -> str:
        where = f"offset {self.offset}" if self.offset is not None else f"position {self.position}"
        return f"{self.file}, {where}: {self.text}"


@dataclass(frozen=True, slots=True)
class SegmentDigest(Value):
    """A segment after the erasure. `sha256`: of the bytes of its .log file."""

    base_offset: int
    size_bytes: int
    sha256: str


@dataclass(slots=True)
class Searched:
    """What a search has read and found.

    Attributes:
        copies: The first copies, which an erasure should have removed.
        copies_found: The number of all copies.
        others: Records of other keys that hold the bytes of a key, or a value equal to an old one.
        others_found: The number of all of these.
    """

    files: int = 0
    read_bytes: int = 0
    records: int = 0
    segments: list[SegmentDigest] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    copies_found: int = 0
    others: list[Copy] = field(default_factory=list)
    others_found: int = 0

    def add(self, copy: Copy, *, other: bool = False) -> None:
        """Add a copy, or a record of another key."""
        listed = self.others if other else self.copies
        if len(listed) < MOST_COPIES:
            listed.append(copy)
        if other:
            self.others_found += 1
        else:
            self.copies_found += 1

    def merge(self, part: Searched) -> None:
        """Add what was found in one file."""
        self.records += part.records
        for copies, is_other in ((part.copies, False), (part.others, True)):
            for copy in copies:
                self.add(copy, other=is_other)
        self.copies_found += part.copies_found - len(part.copies)
        self.others_found += part.others_found - len(part.others)


class _Search:
    """A search of the files of one partition."""

    def __init__(
        self, files: Files, root: str, wanted: Wanted, is_kept: Callable[[int, int], bool], result: Searched
    ) -> None:
        self._files, self._root, self._wanted, self._is_kept = files, root, wanted, is_kept
        self.result = result

    def directory(self, path: str, skip: Collection[str]) -> None:
        """Search every file below a directory, but those at the paths in `skip`."""
        for name in self._files.listdir(path):
            below = os.path.join(path, name)
            if self._files.is_dir(below):
                self.directory(below, skip)
            elif below not in skip:
                self.file(below)

    def file(self, path: str) -> None:
        """Search one file."""
        name = os.path.basename(path)
        parsed = names.parse_segment_file(name)
        is_log = parsed is not None and parsed.extension == names.LOG
        self.result.files += 1
        with self._files.open_read(path) as handle:
            size = handle.size()
            if is_log or name.endswith(BATCHES) or name.startswith(names.STAGED):
                self._batches(handle, path, size, 0 if parsed is None else parsed.base_offset)
            elif is_run(name):
                self._key_run(handle, path, size)
            else:
                self._raw(handle, path, 0, size)
            self.result.read_bytes += size

    def segment_chunk(self, path: str, chunk: Chunk, columns: RecordColumns, *, keeps: bool = True) -> None:
        """Search the records of a chunk. `keeps`: the records that `is_kept` names are allowed there."""
        wanted, data = self._wanted, chunk.uncompressed
        self.result.records += len(columns)
        rows, numbers = wanted.keys.find(data, columns.key_position, columns.key_length)
        own = set(rows.tolist())
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            offset = int(columns.offset[row])
            if not (keeps and self._is_kept(number, offset)):
                what = "a record of the key" if columns.value_length[row] >= 0 else "a tombstone of the key"
                self._add(path, None, offset, what)
        starts = columns.key_position.tolist()
        ends = chunk.table[columns.row, fields.RECORDS_END].tolist()
        for position, length, is_value in sorted(wanted.find(data)):
            row = bisect_right(starts, position) - 1
            if row >= 0 and row not in own and position + length <= ends[row]:  # the buffer is reused
                what = "bytes of an old value" if is_value else "bytes of the key"
                self._add(
                    path, None, int(columns.offset[row]), f"{what} in a record of another key", other=True
                )

    def _batches(self, handle: Handle, path: str, size: int, base_offset: int) -> None:
        """Search a file of batches that is no segment of the log, or a damaged one."""
        problems: list[Problem] = []
        walk, end = LenientWalk(handle, path, size, base_offset, problems.append), 0
        for step in walk:
            start = step.header.position
            self._raw(handle, path, end, start)  # what damage has left between two batches
            end = start + len(step.data)
            try:
                chunk = chunk_of(step.data, path, verify=step.valid)
                chunk.decompress()
                self.segment_chunk(path, chunk, decode_columns(chunk), keeps=False)
            except DataError:
                self._add(path, start, None, "a batch that cannot be decoded")
                self._raw(handle, path, start, end)
                continue
            if not step.valid:
                self._add(path, start, None, "a batch with a wrong checksum")
        self._raw(handle, path, end, size)

    def _key_run(self, handle: Handle, path: str, size: int) -> None:
        try:
            run = Run(handle, size, None, path)
            digest = digest_function(run.salt)
            named = {digest(key): number for number, key in enumerate(self._wanted.keys.members)}
            for found, word in run.find_sorted(sorted(named)).items():
                if not self._is_kept(named[found], word >> 1):
                    self._add(path, None, word >> 1, "a digest of the key in the key index")
        except CorruptFileError:
            self._add(path, 0, None, "a key index that cannot be decoded")

    def _raw(self, handle: Handle, path: str, start: int, end: int) -> None:
        for position, is_value in self._wanted.find_in_file(handle, start, end):
            self._add(path, position, None, "bytes of an old value" if is_value else "bytes of the key")

    def _add(
        self, path: str, position: int | None, offset: int | None, what: str, *, other: bool = False
    ) -> None:
        shown = os.path.relpath(path, self._root)
        self.result.add(Copy(shown, position, offset, what), other=other)


def search(
    view: PartitionView,
    wanted: Wanted,
    is_kept: Callable[[int, int], bool],
    root: str,
    files: Files,
    others: Sequence[str] = (),
) -> Searched:
    """Search every file of a partition, and the files of the log directories that belong to it.

    Args:
        view: The partition.
        wanted: Keys and values.
        is_kept: Returns whether the record of a key, by its number, at an offset may be in the log.
        root: Its log directory.
        files: The storage.
        others: The other log directories: a move leaves directories of the partition there.
    """
    result = Searched()
    each = _Search(files, root, wanted, is_kept, result)
    decoded = {segment.file for segment in view.segments}
    for number, segment in enumerate(view.segments):
        found = Searched()
        try:
            for hits in hits_of(number, segment, SpanSet(())):
                _Search(files, root, wanted, is_kept, found).segment_chunk(
                    segment.file, hits.chunk, hits.columns
                )
        except DataError:
            decoded.discard(segment.file)  # searched batch by batch below
            continue
        result.merge(found)
        with files.open_read(segment.file) as handle:
            size = handle.size()
            each._raw(handle, segment.file, segment.size, size)
        result.files += 1
        result.read_bytes += size
        sha256 = _sha256(files, segment.file, segment.size)
        result.segments.append(SegmentDigest(segment.base_offset, segment.size, sha256))
    each.directory(view.directory, decoded)
    for place in (root, *others):
        for name in files.listdir(place):
            if _is_marked(name, view.topic, view.partition):
                each.directory(os.path.join(place, name), ())
            elif name.startswith(names.STAGED):
                each.file(os.path.join(place, name))
    return result


def _is_marked(name: str, topic: str, partition: int) -> bool:
    """Return whether a name is that of a directory of the partition that waits for its deletion or a move.

    `names.marked_partition_dir` cuts the topic if the name is too long.
    """
    parsed = names.parse_partition_dir(name)
    if parsed is None or not parsed.marker or parsed.partition != partition:
        return False
    return parsed.topic == topic or (len(name) == 255 and topic.startswith(parsed.topic))


# ---------------------------------------------------------------- the certificate


@dataclass(frozen=True, slots=True)
class KeptTombstone(Value):
    """A tombstone that holds an erased key. It may be removed by a cleaning from `until_ms` on.

    `leases`: the live leases whose readers have not read it; a cleaning waits for them, too.
    """

    key: str
    offset: int
    until_ms: int
    leases: tuple[str, ...] = ()

    def __str__(self) -> str:
        until = format_time(self.until_ms)
        text = f"the tombstone at {self.offset} holds the key until a cleaning after {until}"
        return text + (
            f", and until the leases {', '.join(self.leases)} have passed it" if self.leases else ""
        )


@dataclass(frozen=True, slots=True)
class PartitionErasure(Value):
    """What was erased from one partition.

    Attributes:
        partition: Its number.
        end: The log end when the tombstones were in the log; -1: a dry run. A record of a key from here on
            came back.
        records: Records with a value that were removed.
        tombstones: Tombstones that were removed.
        ranges: The offsets of the removed records, as [first, last] of neighbours, at most `MOST_COPIES`.
        kept: Tombstones that stay.
        leases: Live leases below a tombstone that was removed, with their positions: their readers have not
            read it, and are refused when they advance.
        segments: The segments after the erasure.
        files: Files that were searched.
        read_bytes: Their bytes.
        records_searched: Records that were decoded.
        values: Distinct old values that were looked for. `all_values`: no old value was left out for want of
            memory.
        copies: Places that hold a key or an old value nevertheless. `copies_found` counts all.
        others: Records of other keys that hold the bytes of a key, or a value equal to an old one; they stay.
    """

    partition: int
    end: int = -1
    records: int = 0
    tombstones: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    kept: Sequence[KeptTombstone] = ()
    leases: tuple[str, ...] = ()
    segments: tuple[SegmentDigest, ...] = ()
    files: int = 0
    read_bytes: int = 0
    records_searched: int = 0
    values: int = 0
    all_values: bool = True
    copies: tuple[Copy, ...] = ()
    copies_found: int = 0
    others: tuple[Copy, ...] = ()
    others_found: int = 0


@dataclass(frozen=True, slots=True)
class Erasure(Value):
    """The result of `Topic.erase`: the content of a certificate.

    Attributes:
        topic: The topic.
        keys: Salted digests of the keys, 64 hex digits each: HMAC-SHA-256 of the key with `salt`.
        salt: 16 bytes, as hex digits.
        now: The tombstones were removed, too.
        dry_run: Nothing was changed: the records and tombstones are those that would be removed.
        began_ms: When it began, in milliseconds since 1970.
        ended_ms: When it ended.
        partitions: Each partition that was erased and searched.
        failed: The errors of the other partitions.
        removed_objects: In a bucket: objects with older versions of the files that were removed.
        waiting_objects: Objects without a name, which may hold the records: they wait for a `gc`, or for the
            end of an upload.
        waiting_until_ms: When a `gc` may remove the first of them; -1: there is none.
        not_covered: What the certificate does not promise.
    """

    topic: str
    keys: Sequence[str]
    salt: str
    now: bool
    dry_run: bool
    began_ms: int
    ended_ms: int
    partitions: tuple[PartitionErasure, ...]
    failed: tuple[str, ...] = ()
    removed_objects: int = 0
    waiting_objects: int = 0
    waiting_until_ms: int = -1
    not_covered: tuple[str, ...] = NOT_COVERED

    @property
    def complete(self) -> bool:
        """Return whether every partition was searched without a copy, and no object waits for its removal."""
        found = (
            self.failed
            or self.waiting_objects
            or any(partition.copies_found for partition in self.partitions)
        )
        return not self.dry_run and not found

    def __str__(self) -> str:
        records = sum(partition.records for partition in self.partitions)
        verb = "would be removed" if self.dry_run else "removed"
        text = f"{self.topic}: {plural(len(self.keys), 'key')}, {plural(records, 'record')} {verb}"
        copies = sum(partition.copies_found for partition in self.partitions)
        return f"{text}; {copies} copies are left" if copies else text

    def save(self, path: str | os.PathLike[str], *, files: Files = DEFAULT) -> None:
        """Write the certificate, durably. `files`: the storage of the path; the system's unless given."""
        files.write_atomic(os.fspath(path), self._certificate())

    def _certificate(self) -> Iterator[bytes]:
        """Yield the certificate: JSON with the checksum of the fields before it."""
        names_ = (each.name for each in dataclass_fields(self))
        content = {"kind": KIND, "version": VERSION, "complete": self.complete}
        content |= {name: getattr(self, name) for name in names_}
        digest, lines = hashlib.sha256(), bytearray()
        for piece in _pieces(content):
            if len(lines) > _BLOCK_BYTES:
                yield bytes(lines)
                lines.clear()
            digest.update(piece.encode())
            lines += (",\n" if piece == "," else piece).encode()
        yield bytes(lines[:-1]) + f',\n"checksum":"sha256:{digest.hexdigest()}"}}\n'.encode()


@dataclass(frozen=True, slots=True)
class CertificateCheck(Value):
    """The check of a certificate whose bytes are unchanged.

    Attributes:
        topic: The topic.
        came_back: (partition, offset) of records of the keys at or above the end of the erasure.
        left: (partition, offset) of records of the keys below, but tombstones that the certificate names.
        same_segments: Segments with the certified bytes.
        changed_segments: Segments that were cleaned, appended to or removed since.
    """

    topic: str
    came_back: tuple[tuple[int, int], ...]
    left: tuple[tuple[int, int], ...]
    same_segments: int
    changed_segments: int


def load_certificate(files: Files, path: str) -> dict[str, Any]:
    """Read a certificate. CorruptFileError if a byte of its content has changed, or if it is none."""
    try:
        content = json.loads(files.read_bytes(path))
        stored = content.pop("checksum")
        if content["kind"] == KIND and content["version"] == VERSION and stored == _checksum(content):
            return dict(content)
        why = "its content has changed since it was written"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        why = "it is no certificate of an erasure"
    raise CorruptFileError(
        why, code="bad-certificate", remedy="use a copy of the file as it was written", file=path
    )


def check_certificate(
    content: Mapping[str, Any], views: Mapping[int, PartitionView], files: Files
) -> CertificateCheck:
    """Look for the keys of a certificate in the log as it is now.

    Args:
        content: The fields, of `load_certificate`.
        views: The partitions of the topic.
        files: The storage.
    """
    salt, wanted = bytes.fromhex(content["salt"]), {bytes.fromhex(digest) for digest in content["keys"]}
    came_back: list[tuple[int, int]] = []
    left: list[tuple[int, int]] = []
    same = changed = 0
    for partition in content["partitions"]:
        view = views.get(partition["partition"])
        if view is None:
            changed += len(partition["segments"])
            continue
        named = {kept["offset"] for kept in partition["kept"]}
        for offset in _offsets_of(view, salt, wanted):
            if offset >= partition["end"]:
                came_back.append((view.partition, offset))
            elif offset not in named:
                left.append((view.partition, offset))
        now = {segment.base_offset: segment for segment in view.segments}
        for certified in partition["segments"]:
            segment = now.get(certified["base_offset"])
            is_same = (
                segment is not None
                and segment.size == certified["size_bytes"]
                and _sha256(files, segment.file, segment.size) == certified["sha256"]
            )
            same, changed = same + is_same, changed + (not is_same)
    return CertificateCheck(content["topic"], tuple(came_back), tuple(left), same, changed)


def _offsets_of(view: PartitionView, salt: bytes, wanted: Collection[bytes]) -> Iterator[int]:
    for number, segment in enumerate(view.segments):
        for hits in hits_of(number, segment, SpanSet(())):
            columns, data = hits.columns, hits.chunk.uncompressed.data
            spans = zip(columns.key_position.tolist(), columns.key_length.tolist(), strict=True)
            for row, (start, size) in enumerate(spans):
                if size >= 0 and digest_of(salt, bytes(data[start : start + size])) in wanted:
                    yield int(columns.offset[row])


def _sha256(files: Files, path: str, size: int) -> str:
    digest = hashlib.sha256()
    with files.open_read(path) as handle:
        for position in range(0, size, _BLOCK_BYTES):
            digest.update(handle.pread(min(_BLOCK_BYTES, size - position), position))
    return digest.hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(content):
        digest.update(piece.encode())
    return f"sha256:{digest.hexdigest()}"


def _pieces(content: Any) -> Iterator[str]:
    """Yield the JSON of a value, with sorted names and without spaces."""
    if isinstance(content, Value):
        content = {each.name: getattr(content, each.name) for each in dataclass_fields(content)}  # type: ignore[arg-type]
    if isinstance(content, Mapping):
        for number, name in enumerate(sorted(content)):
            yield "," if number else "{"
            yield f"{json.dumps(name)}:"
            yield from _pieces(content[name])
        yield "}" if content else "{}"
    elif isinstance(content, Sequence) and not isinstance(content, str):
        for number, item in enumerate(content):
            yield "," if number else "["
            yield from _pieces(item)
        yield "]" if content else "[]"
    else:
        yield json.dumps(content)


def ranges_of(offsets: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Return ascending offsets as (first, last) of neighbours, at most `MOST_COPIES`."""
    if not offsets.size:
        return ()
    cuts = np.flatnonzero(np.diff(offsets) != 1)
    firsts, lasts = offsets[np.append(0, cuts + 1)], offsets[np.append(cuts, offsets.size - 1)]
    return tuple(zip(firsts[:MOST_COPIES].tolist(), lasts[:MOST_COPIES].tolist(), strict=True))
