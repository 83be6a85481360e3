"""`LocalFile`: a new file of a private copy, in memory while it is small, then in a scratch directory.

Most commits are a few MiB. Their files are never on a drive: the commit gives the buffers to the store. The
files of a private copy share `MEMORY_BYTES`; one that does not fit moves to a file in the scratch directory,
which is made then. A handle and the file it was opened for stay valid after the move, and after a removal.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from lastword.errors import LastwordError, StorageError
from lastword.files import DEFAULT, FileFacts, Handle
from lastword.units import KIB, MIB, format_bytes
from lastword.values import Closing

if TYPE_CHECKING:
    from lastword.bucket.manifest import Entry
    from lastword.clock import Clock
    from lastword.files.interface import Buffer

MEMORY_BYTES = 32 * MIB
"""Bytes in memory of all new files of one private copy."""
LEAST_GIVEN_BYTES = 4 * KIB
"""Shorter data is copied: a copy costs less than a piece of its own."""
LEAST_BYTES = KIB
"""A file counts as this many bytes at least."""


class ScratchSpace(Closing):
    """The room of the new files of one private copy; a context manager, which removes the directory.

    Args:
        above: Directory for the scratch directory. None: that of the system for temporary files.
        clock: Gives the times of the files.
    """

    def __init__(self, above: str | None, clock: Clock) -> None:
        self.clock = clock
        self._above = above
        self._lock = threading.Lock()
        self._free_bytes = MEMORY_BYTES
        self._directory: str | None = None
        self._files_made = 0

    def close(self) -> None:
        """Remove the directory. Handles that are open stay valid."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def holds_at_most(self, size: int) -> bool:
        """Return whether the files are in memory and take no more of it than `size`."""
        return self._directory is None and MEMORY_BYTES - self._free_bytes <= size

    def take(self, size: int) -> bool:
        """Take memory, if there is as much."""
        with self._lock:
            if size > self._free_bytes:
                return False
            self._free_bytes -= size
            return True

    def give(self, size: int) -> None:
        """Give memory back."""
        with self._lock:
            self._free_bytes += size

    def new_path(self) -> str:
        """Return the path of a new file in the directory, which is made for the first one.

        Raises:
            StorageError: It cannot be made.
        """
        with self._lock:
            if self._directory is None:
                try:
                    self._directory = tempfile.mkdtemp(prefix="lastword-", dir=self._above)
                except OSError as error:
                    reason = error.strerror or str(error)
                    raise StorageError(
                        f"no scratch directory for new files above {format_bytes(MEMORY_BYTES)}: {reason}",
                        remedy="name a directory that can be written with the variable TMPDIR",
                        file=self._above,
                        errno=error.errno,
                    ) from error
            self._files_made += 1
            return f"{self._directory}/{self._files_made}"

    def free_bytes(self) -> int:
        """Return the room in memory and on the drive of the directory."""
        with suppress(OSError):  # there is no directory for temporary files, or it is gone
            return self._free_bytes + DEFAULT.free_bytes(self._above or tempfile.gettempdir())
        return self._free_bytes


class LocalFile:
    """A file that was written since the version. Safe from any thread.

    Args:
        scratch: The room of the private copy.
        number: Its identity, as an inode.
        data: Its first bytes, a few.
    """

    __slots__ = (
        "__weakref__",
        "_handles",
        "_mtime_ms",
        "_pieces",
        "_scratch",
        "_starts",
        "_taken",
        "is_stored",
        "lock",
        "number",
        "path",
    )

    def __init__(self, scratch: ScratchSpace, number: int, data: bytes = b"") -> None:
        self.number = number
        self.lock = threading.RLock()
        self.path: str | None = None
        """Where it is on the drive; None: it is in memory."""
        self.is_stored = False
        """Whether it is stored as it is now."""
        self._scratch = scratch
        self._pieces: list[bytearray | memoryview] = [bytearray(data)]  # views are of given buffers
        self._starts = [0]
        self._taken = 0
        self._mtime_ms = scratch.clock.now_ms()
        self._handles: WeakSet[LocalHandle] | None = None  # none was ever open
        self._fit(len(data))

    def open(self, path: str) -> LocalHandle:
        """Open the file to read and write, under its path in the log."""
        with self.lock:
            handle = LocalHandle(path, self)
            if self._handles is None:
                self._handles = WeakSet()
            self._handles.add(handle)
            if self.path is not None:
                handle.on_drive(self.path)
            return handle

    @property
    def is_open(self) -> bool:
        """Whether a handle of the file is open."""
        return bool(self._handles)

    def is_stored_as(self, stored: Entry | None) -> bool:
        """Return whether the file has not changed since it was stored under this entry."""
        return self.is_stored and stored is not None and stored.number == self.number

    def facts(self) -> FileFacts:
        """Return the facts of the file."""
        with self.lock:
            if self.path is None:
                return FileFacts(self.size, self._mtime_ms, self.number)
            facts = DEFAULT.stat(self.path)
            assert facts is not None, self.path
            return FileFacts(facts.size, facts.mtime_ms, self.number)

    def closed(self, handle: LocalHandle) -> None:
        """Forget a handle that is closed."""
        with self.lock:
            if self._handles is not None:
                self._handles.discard(handle)

    def content(self) -> list[Buffer]:
        """Return all bytes, in pieces. A store may keep them: they are copies while a handle is open."""
        with self.lock:
            if self.path is not None:
                return [DEFAULT.read_bytes(self.path)]
            own = bytes if self._handles else memoryview
            pieces = filter(len, self._pieces)
            return [own(piece) if isinstance(piece, bytearray) else piece for piece in pieces]

    def set_mtime(self, ms: int) -> None:
        """Set the time of the last change."""
        with self.lock:
            self._mtime_ms, self.is_stored = ms, False
            if self.path is not None:
                DEFAULT.set_mtime(self.path, ms)

    def remove(self) -> None:
        """Give its room back: the file has no name any more. Handles that are open stay valid."""
        with self.lock:
            if self.path is not None:
                with suppress(LastwordError):
                    DEFAULT.unlink(self.path, missing_ok=True)
            self._scratch.give(self._taken)
            self._taken = 0

    # -------------------------------------------------------------- bytes in memory; the caller has the lock

    @property
    def size(self) -> int:
        """Bytes, while the file is in memory."""
        return self._starts[-1] + len(self._pieces[-1])

    def read_into(self, view: memoryview, position: int) -> int:
        """Fill a buffer from a position on; return the bytes read."""
        size, done = max(0, min(len(view), self.size - position)), 0
        index = bisect_right(self._starts, position) - 1
        while done < size:
            start = position + done - self._starts[index]
            part = memoryview(self._pieces[index])[start : start + size - done]
            view[done : done + len(part)] = part
            done, index = done + len(part), index + 1
        return size

    def write(self, data: memoryview, position: int) -> bool:
        """Write at a position. False: the file has moved to the drive, and nothing is written."""
        if not self._fit(position + len(data)):
            return False
        if position == self.size and _is_given(data):
            self._add(data)
        else:
            own, start = self._own(position)
            at = position - start
            if at > len(own):
                own.extend(bytes(at - len(own)))
            if at == len(own):
                own += data  # an assignment to a slice would make a copy of the data first
            else:
                own[at : at + len(data)] = data
        self._mtime_ms, self.is_stored = self._scratch.clock.now_ms(), False
        return True

    def resize(self, size: int) -> bool:
        """Set the size. False: the file has moved to the drive, and has its size from before."""
        if not self._fit(size):
            return False
        own, start = self._own(size)
        del own[size - start :]
        own.extend(bytes(size - start - len(own)))
        self._mtime_ms, self.is_stored = self._scratch.clock.now_ms(), False
        return True

    def _add(self, piece: bytearray | memoryview) -> None:
        self._starts.append(self.size)
        self._pieces.append(piece)

    def _own(self, position: int) -> tuple[bytearray, int]:
        """Return the last piece, which may be changed from `position` on, and where it begins."""
        if position >= self.size and isinstance(self._pieces[-1], memoryview):
            self._add(bytearray())
        last = self._pieces[-1]
        if not isinstance(last, bytearray) or position < self._starts[-1]:
            last = bytearray().join(self._pieces)
            self._pieces, self._starts = [last], [0]
        return last, self._starts[-1]

    def _fit(self, size: int) -> bool:
        """Take memory for a size; move the file to the drive if there is none."""
        more = max(size, LEAST_BYTES) - self._taken
        if more <= 0:
            return True
        if self._scratch.take(more):
            self._taken += more
            return True
        path = self._scratch.new_path()
        with DEFAULT.open_append(path, create=True, exclusive=True) as handle:
            for piece in self._pieces:
                handle.append(piece)
        for opened in self._handles or ():
            opened.on_drive(path)
        self.path, self.is_stored = path, False
        self._pieces, self._starts = [bytearray()], [0]
        self._scratch.give(self._taken)
        self._taken = 0
        return False


def _is_given(data: memoryview) -> bool:
    """Return whether a file keeps the data: most of a given buffer, all of which stays in memory."""
    if len(data) < LEAST_GIVEN_BYTES or not getattr(data.obj, "is_given", False):
        return False
    return 2 * len(data) >= memoryview(data.obj).nbytes


class LocalHandle(Handle):
    """An open local file, under its path in the log."""

    def __init__(self, path: str, file: LocalFile) -> None:
        self.path = path
        self._file = file
        self._handle: Handle | None = None  # on the drive

    def on_drive(self, path: str) -> None:
        """Open the file on the drive, where it is now."""
        self._handle = DEFAULT.open_append(path)

    def size(self) -> int:
        """As `Handle.size`."""
        with self._file.lock:
            return self._file.size if self._handle is None else self._handle.size()

    def pread(self, n: int, position: int) -> bytes:
        """As `Handle.pread`."""
        with self._file.lock:
            if self._handle is not None:
                return self._handle.pread(n, position)
            data = bytearray(max(0, min(n, self._file.size - position)))
            self._file.read_into(memoryview(data), position)
            return bytes(data)

    def pread_into(self, buffer: Buffer, position: int) -> int:
        """As `Handle.pread_into`."""
        with self._file.lock:
            if self._handle is not None:
                return self._handle.pread_into(buffer, position)
            return self._file.read_into(memoryview(buffer).cast("B"), position)

    def append(self, data: Buffer) -> int:
        """As `Handle.append`."""
        with self._file.lock:
            if self._handle is None:
                end = self._file.size
                if self._file.write(memoryview(data).cast("B"), end):
                    return end
            assert self._handle is not None
            return self._handle.append(data)

    def pwrite(self, data: Buffer, position: int) -> None:
        """As `Handle.pwrite`."""
        with self._file.lock:
            if self._handle is None and self._file.write(memoryview(data).cast("B"), position):
                return
            assert self._handle is not None
            self._handle.pwrite(data, position)

    def truncate(self, size: int) -> None:
        """As `Handle.truncate`."""
        with self._file.lock:
            if self._handle is None and self._file.resize(size):
                return
            assert self._handle is not None
            self._handle.truncate(size)

    def fsync(self) -> None:
        """Do nothing: a change is durable when it is committed."""

    def stat(self) -> FileFacts:
        """As `Handle.stat`."""
        with self._file.lock:
            if self._handle is None:
                return self._file.facts()
            facts = self._handle.stat()
            return FileFacts(facts.size, facts.mtime_ms, self._file.number)

    def close(self) -> None:
        """As `Handle.close`."""
        self._file.closed(self)
        if self._handle is not None:
            self._handle.close()
