"""The accounts of a partition in one file, `<partition>/lastword/accounts`.

```
8 bytes  magic       u64 length of the header
header   JSON: an entry for each segment, and the name, type and shape of each array
arrays   of the map and the clocks, one after another, each from a multiple of 8 bytes on
u32      CRC-32C of all before
```

The map may be missing, if it would be larger than the log. The file is written under another name, synced and
renamed, so it never exists in part. It describes segments as they were when it was written, by base offset,
inode, size, time and the checksum of their last bytes. The loader compares, and discards a file that differs.
A truncation removes the file, durably, before it removes the first byte: records that are appended afterwards
may look like those that were cut off.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from lastword.accounts import PartitionAccount, SegmentAccount
from lastword.accounts.tombstones import Deletes, Standing
from lastword.accounts.tracking import SegmentEntry, Tracking, private_path, tail_crc
from lastword.errors import CorruptFileError, LastwordError
from lastword.files import Files, Handle
from lastword.files.framed import Framed
from lastword.segment import names
from lastword.segment.segment import Segment

_MAGIC = b"lwaccts1"
_START = struct.Struct("<8sQ")
_CRC = struct.Struct("<I")
_PIECE = 1 << 20
_MOST_HEADER_BYTES = 256 << 20

Place = Callable[[int], NDArray[np.uint8]]
"""Returns an array of at least this many bytes."""


@dataclass(frozen=True, slots=True)
class SavedAccounts:
    """The content of the file: plain values, and arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def save(files: Files, path: str, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> int:
    """Replace the file, durably; return its size in bytes."""
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": listed}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    scratch = f"{path}.tmp"
    files.unlink(scratch, missing_ok=True)
    with files.open_append(scratch, create=True, exclusive=True) as handle:
        writer = _SectionWriter(handle)
        writer.put(_START.pack(_MAGIC, len(text)) + text)
        for array in arrays.values():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for start in range(0, len(data), _PIECE):
                writer.put(data[start : start + _PIECE].tobytes())
            if len(data) % 8:
                writer.put(bytes(-len(data) % 8))
        handle.append(_CRC.pack(writer.crc))
        handle.fsync()
        size = writer.written + _CRC.size
    files.rename(scratch, path)
    files.fsync_dir(path.rpartition("/")[0] or ".")
    return size


def load(
    files: Files,
    path: str,
    *,
    room: Mapping[str, int] | None = None,
    places: Mapping[str, Place] | None = None,
) -> SavedAccounts | None:
    """Return the content, checked; None if there is no file.

    Args:
        files: File system.
        path: Path of the file.
        room: Bytes to reserve for arrays of these names. The array is then the beginning of a larger one (its
            `base`, uint8), of which the system allocates only touched pages, so it grows without a copy.
        places: Allocators for byte arrays of these names, if they are not to be in memory.

    Raises:
        CorruptFileError: The file is damaged.
    """
    if not files.exists(path):
        return None
    with files.open_read(path) as handle:
        size = handle.size()
        handle.will_read(0, size)
        header, position = _header(handle, path, size)
        crc = google_crc32c.value(handle.pread(position, 0))
        arrays: dict[str, NDArray[Any]] = {}
        for name, kind, shape in header.pop("arrays"):
            place = (places or {}).get(name)
            array = _empty(path, kind, shape, size - position, (room or {}).get(name, 0), place)
            data = array.reshape(-1).view(np.uint8)
            for start in range(0, len(data), _PIECE):
                piece = data[start : start + _PIECE]
                if handle.pread_into(piece, position) != len(piece):
                    raise _damaged(path, "ends early")
                crc = google_crc32c.extend(crc, piece.tobytes())
                position += len(piece)
            if len(data) % 8:
                pad = handle.pread(-len(data) % 8, position)
                crc = google_crc32c.extend(crc, pad)
                position += len(pad)
            arrays[name] = array
        if position + _CRC.size != size or handle.pread(_CRC.size, position) != _CRC.pack(crc):
            raise _damaged(path, "checksum mismatch")
    return SavedAccounts(header, arrays)


def load_header(files: Files, path: str) -> dict[str, Any] | None:
    """Return the header alone, cheap and unchecked; None if it cannot be read.

    For figures that no decision relies on.
    """
    try:
        if not files.exists(path):
            return None
        with files.open_read(path) as handle:
            return _header(handle, path, handle.size())[0]
    except LastwordError:
        return None


def check(files: Files, path: str) -> dict[str, Any]:
    """Return the header of the accounts at `path`, checked whole. CorruptFileError if they are damaged."""
    with files.open_read(path) as handle:
        size = handle.size()
        header, _ = _header(handle, path, size)
        crc, position = 0, 0
        while position < size - _CRC.size:
            piece = handle.pread(min(_PIECE, size - _CRC.size - position), position)
            if not piece:
                break
            crc = google_crc32c.extend(crc, piece)
            position += len(piece)
        if handle.pread(_CRC.size, position) != _CRC.pack(crc):
            raise _damaged(path, "checksum mismatch")
    return header


class _SectionWriter:
    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.crc = 0
        self.written = 0

    def put(self, data: bytes) -> None:
        """Append, and update the checksum."""
        self._handle.append(data)
        self.crc = google_crc32c.extend(self.crc, data)
        self.written += len(data)


def _header(handle: Handle, path: str, size: int) -> tuple[dict[str, Any], int]:
    """Return the header, and the position behind it."""
    start = handle.pread(_START.size, 0)
    if len(start) != _START.size:
        raise _damaged(path, "ends early")
    magic, length = _START.unpack(start)
    if magic != _MAGIC or length > min(size - _START.size, _MOST_HEADER_BYTES):
        raise _damaged(path, "no accounts, or of another version")
    try:
        header = json.loads(handle.pread(length, _START.size))
        if not isinstance(header, dict) or not isinstance(header["arrays"], list):
            raise ValueError
    except (ValueError, KeyError, RecursionError):
        raise _damaged(path, "its header is no JSON object") from None
    return header, _START.size + length


def _empty(path: str, kind: Any, shape: Any, left: int, room_bytes: int, place: Place | None) -> NDArray[Any]:
    """Return an array of the size in the header, if the file can hold it."""
    try:
        dtype = np.dtype(kind)
        count = 1
        for length in shape:
            count *= int(length)
        if dtype.hasobject or count < 0 or min(shape, default=0) < 0 or count * dtype.itemsize > left:
            raise ValueError
        size_bytes = count * dtype.itemsize
        if place is not None and dtype == np.uint8 and len(shape) == 1 and size_bytes:
            return place(size_bytes)[:size_bytes]
        if dtype == np.uint8 and len(shape) == 1 and size_bytes <= room_bytes:
            return np.empty(room_bytes, np.uint8)[:size_bytes]
        return np.empty([int(length) for length in shape], dtype)
    except (TypeError, ValueError):
        raise _damaged(path, "an array with an impossible type or shape") from None


def _damaged(path: str, text: str) -> CorruptFileError:
    return CorruptFileError(
        text, code="bad-accounts", remedy="delete the file: it is made again from the log", file=path
    )


VERSION = 3


@dataclass(slots=True)
class SavedTime:
    """The drive's time when accounts were saved.

    Attributes:
        write_clock: The time.
        reached: The end of the log then: base offset and size of its active segment.
    """

    write_clock: int = 0
    reached: tuple[int, int] = (-1, 0)


def save_ledger(
    files: Files,
    directory: str,
    tracking: Tracking,
    deletes: Deletes,
    more: dict[str, Any],
    into: str | None = None,
    *,
    whole: bool = True,
) -> None:
    """Write the accounts, durably, in this order: private directory, file, rename, directory.

    Args:
        files: File system.
        directory: Directory of the partition.
        tracking: The map and the entries.
        deletes: Tombstones and clocks.
        more: Further fields of the header.
        into: Another directory, which exists.
        whole: With the map; otherwise the clocks of tombstones alone.
    """
    private = into or private_path(directory, "").rstrip("/")
    if into is None and not files.exists(private):
        files.mkdir(private)
        files.fsync_dir(directory)
    header: dict[str, Any] = {
        **more,
        "version": VERSION,
        "share": tracking.share,
        "gone": tracking.gone,
        "transactions_from": tracking.transactions_from,
        "counts_copies": tracking.counts_copies,
        "uncounted": tracking.uncounted,
        "ends_old": deletes.ends_old,
        "segments": [list(dataclasses.astuple(entry)) for entry in tracking.entries],
    }
    clocks, due = (deletes.clocks.offset, deletes.clocks.since_ms), deletes.due
    plain: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    if whole:
        for name, value in tracking.running.to_parts().items():
            if isinstance(value, np.ndarray):
                arrays[f"map_{name}"] = value
            else:
                plain[name] = value
    else:
        clocks, due = deletes.running(), due[:0]  # without the map they are live again, and due
    header["map"] = plain if whole else None
    arrays.update(clock_offset=clocks[0], clock_since_ms=clocks[1], due=due)
    save(files, os.path.join(private, names.ACCOUNTS), header, arrays)


def load_ledger(
    files: Files, directory: str, map_bytes: int, scratch: str | None = None
) -> SavedAccounts | None:
    """Return saved accounts, checked for damage only; None if there are none.

    Their keys have room to grow to `map_bytes` without a copy, or are in `scratch`.
    """
    path = private_path(directory, names.ACCOUNTS)
    if scratch is None:
        return load(files, path, room={"map_arena": map_bytes & ~7})
    from lastword.files.scratch import new_path
    from lastword.resolve.offset_map import Spill

    return load(files, path, places={"map_arena": Spill(new_path(scratch))})


def restore_ledger(saved: SavedAccounts, tracking: Tracking, deletes: Deletes) -> str:
    """Fill both parts from saved accounts, or return why they cannot be used.

    Without a saved map only clocks and entries are restored. Does not check that the accounts fit the log.
    """
    from lastword.resolve.running import MapFull, RunningResolution

    header, arrays = saved.header, saved.arrays
    if header["version"] != VERSION:
        return "saved by another version"
    entries = [SegmentEntry(*values) for values in header["segments"]]
    if header["map"] is None:
        tracking.entries = entries
        deletes.clocks.offset, deletes.clocks.since_ms = arrays["clock_offset"], arrays["clock_since_ms"]
        return ""
    parts: dict[str, Any] = dict(header["map"])
    parts.update({n.removeprefix("map_"): a for n, a in arrays.items() if n.startswith("map_")})
    share = float(header["share"])
    try:
        running = RunningResolution.from_parts(
            parts, map_bytes=tracking.budget_bytes(share), scratch=tracking.scratch, take_over=True
        )
    except MapFull:
        return "it does not fit the memory that it may take now"
    tracking.running, tracking.entries = running, entries
    tracking.share, tracking.gone = share, int(header["gone"])
    tracking.transactions_from = int(header["transactions_from"])
    tracking.counts_copies, tracking.uncounted = bool(header["counts_copies"]), bool(header["uncounted"])
    deletes.clocks.offset, deletes.clocks.since_ms = arrays["clock_offset"], arrays["clock_since_ms"]
    deletes.due = arrays["due"]
    deletes.ends_old = bool(header["ends_old"])
    deletes.touched()
    return ""


def mismatch(files: Files, tracking: Tracking, segments: Sequence[Segment]) -> str:
    """Return why the map does not fit these segments, whose files are the accounted ones; empty: it fits.

    Reads the end of each segment, unless the number of a file is enough: in a bucket a read is a request.
    """
    for entry, segment in zip(tracking.entries, segments if files.reuses_numbers else (), strict=False):
        if tail_crc(segment) != entry.tail_crc:
            return f"{segment.file} ends otherwise than when it was accounted"
    facts = [segment.base_offset for segment in tracking.facts()]
    if facts and facts != [entry.base_offset for entry in tracking.entries]:
        return "its map is of other segments"
    return ""


def saved_entries(files: Files, directory: str) -> list[SegmentEntry]:
    """Return the saved entry of each segment, unchecked: for figures that no decision relies on."""
    header = load_header(files, private_path(directory, names.ACCOUNTS))
    try:
        if header is not None and header["version"] == VERSION:
            return [SegmentEntry(*values) for values in header["segments"]]
    except (KeyError, TypeError):
        pass
    return []


def saved_time(files: Files, directory: str) -> SavedTime:
    """Return the drive's time when the accounts were saved; zero if there are none."""
    summary = load_summary(files, directory)
    if summary is not None:
        return summary.time
    header = load_header(files, private_path(directory, names.ACCOUNTS))
    try:
        if header is not None:
            base, size = header["seen"]
            return SavedTime(max(int(header["t"]), 0), (int(base), int(size)))
    except (KeyError, TypeError, ValueError):
        pass
    return SavedTime()


def saved_clock(files: Files, directory: str) -> int:
    """Return the write clock when the accounts were saved; 0 if there are none."""
    return saved_time(files, directory).write_clock


# ---------------------------------------------------------------- the summary, in a bucket

SUMMARY_FORM = Framed(
    "garbage-summary", 1, "bad-garbage-summary", "remove the file: the next cleaning writes it again"
)
_RISING = ("base_offset", "next_offset", "garbage_age_at", "written_at")
"""Fields that are stored as differences between neighbours."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The facts from which a partition in a bucket is chosen: a plan does not read its garbage index.

    Attributes:
        log: Digest of the segments that it describes (`digest_of`).
        account: The account of the partition; settings and the name of the drive are not saved.
        tombstones: How long the state of the tombstones stays valid.
        time: The drive's time at the scan.
        largest_bytes: The most bytes that a record with a key takes; -1: not known.
    """

    log: str
    account: PartitionAccount
    tombstones: Standing
    time: SavedTime
    largest_bytes: int = -1


def digest_of(files: tuple[object, ...]) -> str:
    """Return the digest of the identities of segments."""
    return hashlib.blake2b(repr(files).encode(), digest_size=16).hexdigest()


def save_summary(files: Files, directory: str, summary: Summary) -> None:
    """Save a summary, if the storage has a cost for each file that is read."""
    if not files.file_cost_bytes:
        return
    private = private_path(directory, "").rstrip("/")
    if not files.exists(private):
        files.mkdir(private)
    account, standing, time = summary.account, summary.tombstones, summary.time
    fields = {
        "log": summary.log,
        "limit": int(account.limit),
        "log_start": int(account.log_start),
        "total_bytes": int(account.total_bytes),
        "standing": [int(standing.until_ms), int(standing.due_to), int(standing.held_from)],
        "t": int(time.write_clock),
        "seen": [int(value) for value in time.reached],
        "largest": summary.largest_bytes,
        "count": len(account.segments),
        "segments": base64.b64encode(zlib.compress(_columns(account.segments), 9)).decode(),
    }
    SUMMARY_FORM.save(files, private_path(directory, names.SUMMARY), fields)


def load_summary(files: Files, directory: str) -> Summary | None:
    """Return the saved summary, which may be of other segments; None if it is absent or damaged."""
    if not files.file_cost_bytes:
        return None
    path = private_path(directory, names.SUMMARY)
    try:
        fields = SUMMARY_FORM.load(files, path)
        if fields is None:
            return None
        with SUMMARY_FORM.reading(path):
            packed = zlib.decompress(base64.b64decode(fields["segments"]))
            base, size = fields["seen"]
            account = PartitionAccount(
                topic="",
                partition=-1,
                drive="",
                segments=_segments(packed, int(fields["count"])),
                total_bytes=int(fields["total_bytes"]),
                limit=int(fields["limit"]),
                log_start=int(fields["log_start"]),
            )
            until_ms, due_to, held_from = map(int, fields["standing"])
            return Summary(
                str(fields["log"]),
                account,
                Standing(until_ms, due_to, held_from),
                SavedTime(int(fields["t"]), (int(base), int(size))),
                int(fields["largest"]),
            )
    except (LastwordError, zlib.error):
        return None
    raise AssertionError


def _columns(segments: Sequence[SegmentAccount]) -> bytes:
    """Return the fields of segments, one after another, as eight bytes each."""
    columns = []
    for field in dataclasses.fields(SegmentAccount):
        values = [getattr(segment, field.name) for segment in segments]
        if field.name in _RISING:
            values = [value - before for value, before in zip(values, [0, *values], strict=False)]
        columns.append(array(_kind_of(field), values).tobytes())
    return b"".join(columns)


def _segments(packed: bytes, count: int) -> tuple[SegmentAccount, ...]:
    columns: list[list[Any]] = []
    for number, field in enumerate(dataclasses.fields(SegmentAccount)):
        column = array(_kind_of(field))
        column.frombytes(packed[8 * count * number : 8 * count * (number + 1)])
        values = list(column)
        if len(values) != count:
            raise ValueError(f"{len(values)} values of {field.name} for {count} segments")
        if field.name in _RISING:
            values = list(accumulate(values))
        if field.type == "bool":
            values = list(map(bool, values))
        columns.append(values)
    return tuple(SegmentAccount(*fields) for fields in zip(*columns, strict=True))


def _kind_of(field: dataclasses.Field[Any]) -> str:
    return "d" if field.type == "float" else "q"
