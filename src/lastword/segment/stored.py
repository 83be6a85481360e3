"""Where the bytes of one segment are stored, and which stored segment it is.

`Segment` and `SegmentAppender` read and write through `StoredSegment`. `SegmentFiles` implements it by the
files of a partition directory. A segment in a bucket is the same `Segment`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from lastword.errors import FileVanishedError, NotAPartitionError
from lastword.files import Files, Handle
from lastword.segment import names


class SegmentId(NamedTuple):
    """Which stored log a segment is. A rewrite of the same base offset has another id.

    Attributes:
        number: Unique among the segments that a store has at one time; in a directory the inode.
        size: Bytes of the log.
    """

    number: int
    size: int


class StoredFacts(NamedTuple):
    """Facts of a stored log.

    Attributes:
        id: Its identity.
        mtime_ms: Time of the last change.
    """

    id: SegmentId
    mtime_ms: int


class StoredSegment(Protocol):
    """The log and the indexes that are stored under one base offset. Indexes are named by extension."""

    @property
    def base_offset(self) -> int:
        """Base offset of the segment."""

    def path(self, extension: str) -> str:
        """Return the name of the log or an index, for messages."""

    def facts(self) -> StoredFacts | None:
        """Return the facts of the log that is stored now; None if there is none."""

    def open_read(self) -> Handle:
        """Open the log. It stays readable through the handle when it is replaced or removed.

        FileVanishedError: there is none. `Handle.stat` returns the number of the id as the inode.
        """

    def open_append(self, extension: str, *, create: bool = False, exclusive: bool = False) -> Handle:
        """Open the log or an index to append.

        FileTakenError: `exclusive`, and there is one.
        """

    def read(self, extension: str) -> bytes | None:
        """Return the bytes of an index; None if there is none."""

    def open_index(self, extension: str) -> Handle | None:
        """Open an index for short reads; None: there is none, or the store reads files as a whole."""

    def checked(self, extension: str) -> bytes | None:
        """Return the bytes of an index if the store has verified them already, as `Files.checked_bytes`."""

    def remove(self, extension: str) -> None:
        """Remove the log or an index, if there is one."""

    def seal(self, extensions: Sequence[str], mtime_ms: int) -> None:
        """End a private segment whose log and indexes are written and synced.

        Sets their time, and makes them durable under their names.
        """


class SegmentFiles:
    """One segment of a partition directory: `<base offset>.log` and its indexes. `suffix`: of all names."""

    __slots__ = ("_log_path", "base_offset", "directory", "files", "suffix")

    def __init__(self, files: Files, directory: str, base_offset: int, suffix: str = "") -> None:
        self.files = files
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self._log_path = self.path(names.LOG)

    def path(self, extension: str) -> str:
        """Return the path of the log or an index."""
        return f"{self.directory}/{names.segment_file(self.base_offset, extension, self.suffix)}"

    def facts(self) -> StoredFacts | None:
        """As `StoredSegment.facts`. NotAPartitionError: a link, or no regular file."""
        path = self._log_path
        facts = self.files.stat(path)
        if facts is None:
            return None
        if facts.kind == "link":
            raise NotAPartitionError.link(path)
        if facts.kind != "file":
            raise NotAPartitionError.of(path, "regular file")
        return StoredFacts(SegmentId(facts.inode, facts.size), facts.mtime_ms)

    def open_read(self) -> Handle:
        """As `StoredSegment.open_read`."""
        return self.files.open_read(self._log_path)

    def open_append(self, extension: str, *, create: bool = False, exclusive: bool = False) -> Handle:
        """As `StoredSegment.open_append`."""
        return self.files.open_append(self.path(extension), create=create, exclusive=exclusive)

    def read(self, extension: str) -> bytes | None:
        """As `StoredSegment.read`."""
        path = self.path(extension)
        # Most segments have no transaction index. A failed open of it must not count as a failed sync.
        if extension == names.TXN_INDEX and not self.files.exists(path):
            return None
        try:
            return self.files.read_bytes(path)
        except FileVanishedError:
            return None

    def open_index(self, extension: str) -> Handle | None:
        """As `StoredSegment.open_index`."""
        if self.files.file_cost_bytes:
            return None
        with suppress(FileVanishedError):
            return self.files.open_read(self.path(extension))
        return None

    def checked(self, extension: str) -> bytes | None:
        """As `StoredSegment.checked`."""
        return self.files.checked_bytes(self.path(extension))

    def remove(self, extension: str) -> None:
        """As `StoredSegment.remove`."""
        self.files.unlink(self.path(extension), missing_ok=True)

    def seal(self, extensions: Sequence[str], mtime_ms: int) -> None:
        """As `StoredSegment.seal`."""
        for extension in extensions:
            self.files.set_mtime(self.path(extension), mtime_ms)
        self.files.fsync_dir(self.directory)
