r"""Kafka's text checkpoints: the format that all of them share, and the leader epochs of a partition.

```
0            version
2            number of lines that follow
orders 3 42  fields, separated by blanks; every line ends with \n
users 0 7
```

An empty file is an empty checkpoint. Any other deviation is a CorruptFileError. The caller decides what a
damaged file costs, in most cases only a longer recovery.

`leader-epoch-checkpoint` has lines of `epoch start_offset`, both rising. A directory with one writer has one
epoch that never ends; a broker's directory has one for each leader. Appends have the latest epoch. The file
is replaced as a whole whenever the list changes. It must not name an offset above the log end, or a broker
would announce records that do not exist to its followers; so recovery cuts the list at the log end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, cast

from lastword.errors import CorruptFileError, FileVanishedError
from lastword.files import FileFacts, Files
from lastword.segment import names

MAX_CHECKPOINT_BYTES = 64 << 20
"""A million partitions; a longer file is damaged."""
SETTLED_MS = 100
"""Age from which the facts of a file name its content. File times have a resolution of some ms."""
_VERSION = 0
_NUMBER = re.compile("[0-9]{1,19}")
T = TypeVar("T")


def read_lines(files: Files, path: str, fields: int) -> list[list[str]]:
    """Return the lines of a checkpoint, each split into `fields` fields; none if there is no file."""
    return _lines_of(_bytes_of(files, path), path, fields)


def _bytes_of(files: Files, path: str) -> bytes:
    facts = files.stat(path)
    if facts is None:
        return b""
    if facts.size > MAX_CHECKPOINT_BYTES:
        raise _corrupt(path, f"{facts.size} bytes are too many for a checkpoint")
    try:
        return files.read_bytes(path)
    except FileVanishedError:
        return b""


def _lines_of(data: bytes, path: str, fields: int) -> list[list[str]]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _corrupt(path, f"not UTF-8 at byte {error.start}") from None
    return parse_lines(text, path, fields)


class OffsetLines(NamedTuple):
    """The lines of a root's offset checkpoint, `topic partition offset`, by `topic-partition`.

    Attributes:
        first: The offset as it is written, of the first line of each partition.
        offsets: The offsets; none if a line is damaged, or if a partition is there twice.
    """

    first: Mapping[str, str]
    offsets: Mapping[str, int]


def read_offset_lines(files: Files, path: str) -> OffsetLines:
    """Return the lines of an offset checkpoint; none if there is no file or it cannot be read.

    The file is read once as long as it is not replaced (`read_settled`).
    """
    return read_settled(files, path, _read_offset_lines) or OffsetLines({}, {})


def read_settled(files: Files, path: str, read: Callable[[Files, str], T]) -> T | None:
    """Return `read(files, path)` of a file that is only replaced as a whole; None if there is no file.

    A file of the root that has a line for each partition is needed for each of them. So the value is kept
    until the file is replaced. A file that changed just now is read each time: two replacements within the
    resolution of file times may leave the same facts.
    """
    facts = files.stat(path)
    if facts is None:
        return None
    if time.time_ns() // 1_000_000 - facts.mtime_ms < SETTLED_MS:
        return read(files, path)
    return cast("T", _read_once(read, files, path, facts))


@lru_cache(maxsize=16)
def _read_once(read: Callable[[Files, str], Any], files: Files, path: str, facts: FileFacts) -> Any:
    return read(files, path)


def _read_offset_lines(files: Files, path: str) -> OffsetLines:
    try:
        return _offset_lines(_bytes_of(files, path), path)
    except CorruptFileError:
        return OffsetLines({}, {})


@lru_cache(maxsize=4)
def _offset_lines(data: bytes, path: str) -> OffsetLines:
    lines = _lines_of(data, path, 3)
    first: dict[str, str] = {}
    for topic, partition, offset in lines:
        first.setdefault(f"{topic}-{partition}", offset)
    try:
        offsets = {
            f"{topic}-{number(partition, path)}": number(offset, path) for topic, partition, offset in lines
        }
    except CorruptFileError:
        offsets = {}
    return OffsetLines(first, offsets if len(offsets) == len(lines) else {})


def parse_lines(text: str, path: str, fields: int) -> list[list[str]]:
    """Return the lines of a checkpoint's text, as `read_lines` does. `path` is named in errors."""
    if not text:
        return []
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    version = number(lines[0], path)
    if version != _VERSION:
        raise _corrupt(path, f"version {version}, expected {_VERSION}")
    if len(lines) < 2:
        raise _corrupt(path, "ends after its version")
    announced = number(lines[1], path)
    rows = [line.split() for line in lines[2:]]
    if announced != len(rows):
        raise _corrupt(path, f"{len(rows)} lines, {announced} announced")
    if set(map(len, rows)) - {fields}:
        line, parts = next((line, parts) for line, parts in enumerate(rows, 3) if len(parts) != fields)
        raise _corrupt(path, f"line {line}: {len(parts)} fields, expected {fields}")
    return rows


def format_lines(lines: Sequence[str]) -> bytes:
    """Return the bytes of a checkpoint with these lines."""
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(lines)), *lines)).encode("utf-8")


def number(text: str, path: str) -> int:
    """Parse a non-negative 64-bit number in plain digits."""
    if _NUMBER.fullmatch(text) is None or int(text) >= 1 << 63:
        raise _corrupt(path, f"{text[:40]!r} is no number")
    return int(text)


def _corrupt(path: str, text: str) -> CorruptFileError:
    return CorruptFileError(
        text, remedy="delete the file: it is made again, recovery takes longer", file=path
    )


# ---------------------------------------------------------------- leader epochs


class EpochEntry(NamedTuple):
    """A leader epoch and its first offset."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The leader epochs of one partition, and their file."""

    def __init__(self, files: Files, directory: str, entries: list[EpochEntry]) -> None:
        self._files = files
        self._path = f"{directory}/{names.LEADER_EPOCHS}"
        self._entries = entries

    @classmethod
    def load(cls, files: Files, directory: str) -> LeaderEpochs:
        """Read the file. A damaged one counts as empty, because the batches hold the epochs, too."""
        try:
            return cls(files, directory, read_epochs(files, f"{directory}/{names.LEADER_EPOCHS}"))
        except CorruptFileError:
            return cls(files, directory, [])

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All epochs, ascending."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """The newest epoch; None if there is none."""
        return self._entries[-1].epoch if self._entries else None

    def at(self, offset: int) -> int:
        """Return the epoch of the offset before `offset`; 0 if there is none."""
        return max((e.epoch for e in self._entries if e.start_offset < offset), default=0)

    def assign(self, epoch: int, start_offset: int, *, sync_name: bool = True) -> None:
        """Begin `epoch` at `start_offset`. Entries that contradict it are removed.

        Repeating the latest epoch changes nothing. `sync_name`: as of `Files.write_atomic`.
        """
        if epoch < 0:
            return
        if (
            self._entries
            and self._entries[-1].epoch == epoch
            and self._entries[-1].start_offset <= start_offset
        ):
            return
        kept = [e for e in self._entries if e.epoch < epoch and e.start_offset < start_offset]
        self._set([*kept, EpochEntry(epoch, start_offset)], sync_name=sync_name)

    def truncate_from_end(self, offset: int) -> None:
        """Remove the epochs that begin at or above `offset`."""
        if self._entries and self._entries[-1].start_offset < offset:
            return  # they rise
        self._set([e for e in self._entries if e.start_offset < offset])

    def truncate_from_start(self, offset: int) -> None:
        """Let the epoch of `offset` begin there, and remove those before it."""
        if self._entries and self._entries[0].start_offset >= offset:
            return
        below = [e for e in self._entries if e.start_offset <= offset]
        above = [e for e in self._entries if e.start_offset > offset]
        if below and below[-1].start_offset < offset:
            below = [EpochEntry(below[-1].epoch, offset)]
        self._set([*below[-1:], *above])

    def _set(self, entries: list[EpochEntry], *, sync_name: bool = True) -> None:
        if entries != self._entries:
            lines = [f"{e.epoch} {e.start_offset}" for e in entries]
            self._files.write_atomic(self._path, format_lines(lines), sync_name=sync_name)
            self._entries = entries  # behind the write: if that fails, the next call writes them


def read_epochs(files: Files, path: str) -> list[EpochEntry]:
    """Return the entries of a leader-epoch-checkpoint; CorruptFileError if they do not rise."""
    data = _bytes_of(files, path)
    entries = sound_epochs(data)
    return _parse_epochs(data, path) if entries is None else list(entries)


@lru_cache(maxsize=64)  # many partitions have the same bytes
def sound_epochs(data: bytes) -> tuple[EpochEntry, ...] | None:
    """Return the entries in the bytes of a leader-epoch-checkpoint; None if they are damaged."""
    try:
        return tuple(_parse_epochs(data, ""))
    except CorruptFileError:
        return None


def _parse_epochs(data: bytes, path: str) -> list[EpochEntry]:
    entries = [EpochEntry(number(e, path), number(o, path)) for e, o in _lines_of(data, path, 2)]
    for entry, following in pairwise(entries):
        if following.epoch <= entry.epoch or following.start_offset <= entry.start_offset:
            raise CorruptFileError("epochs do not rise", file=path)
    return entries
