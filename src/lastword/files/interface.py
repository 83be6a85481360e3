"""What storage promises, as abstract classes: `Files` opens and names files, a `Handle` is one open file.

Durability, in the order a crash asks:

1. What `append` or `pwrite` returned from survives a killed process, not a power cut.
2. After `Handle.fsync` the file's bytes and size survive a power cut, but not yet its name.
3. After `Files.fsync_dir(parent)` the names in `parent` survive: creations, renames and removals before the
   call.

A failed sync is final: `SyncFailedError`, and every later change below the same root is refused with it,
until `guard(root)` is called again (which is what opening the directory again does). Handles opened before
stay refused for ever.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.errors import LastwordError

if TYPE_CHECKING:
    from lastword.files.lock import FileLock

Path = str | os.PathLike[str]
Buffer = Any
"""Bytes-like: bytes, bytearray, memoryview or a contiguous NumPy array."""


class FileFacts(NamedTuple):
    """Facts of a file or directory.

    `kind`: "file", "dir", "link" for a symbolic link (whose other facts are its target's), "other" for a
    pipe, a socket or a device. Storage that has only files and directories may say "file" for all.
    """

    size: int  # bytes
    mtime_ms: int
    inode: int
    kind: str = "file"


class Handle(ABC):
    """One open file. Closes when it is garbage; also a context manager. Positions are bytes from the
    start."""

    path: str

    @abstractmethod
    def pread(self, n: int, position: int) -> bytes:
        """Up to `n` bytes from `position`: fewer only at the end of the file."""

    @abstractmethod
    def pread_into(self, buffer: Buffer, position: int) -> int:
        """Fill a writable buffer from `position`; returns how many bytes, fewer only at the end of the
        file."""

    @abstractmethod
    def append(self, data: Buffer) -> int:
        """Write all of `data` at the end of the file; returns the position where it begins.

        All or nothing: if the drive is full the file is cut back to its size before and `DiskFullError` says
        what was missing. One writer per file: two appends at once need the caller's lock.
        """

    @abstractmethod
    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`."""

    @abstractmethod
    def truncate(self, size: int) -> None: ...

    @abstractmethod
    def fsync(self) -> None:
        """Returns when bytes and size are on the drive. `SyncFailedError` takes the root offline."""

    def start_sync(self, position: int, size: int) -> None:  # noqa: B027 - storage may do nothing here
        """The drive may begin to write these bytes, for an `fsync` follows. Promises nothing, never fails."""

    @abstractmethod
    def stat(self) -> FileFacts: ...

    @abstractmethod
    def close(self) -> None:
        """Close; a second close does nothing."""

    def size(self) -> int:
        return self.stat().size

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Files(ABC):
    """The storage. Methods raise `StorageError` (an `OSError` with errno), `FileVanishedError` for what does
    not exist, `FileTakenError` for what already does, `NotPermittedError` for what the system forbids.

    Files and directories made in a log directory get owner, group and permissions by the rule of owner.py;
    `WrongUserError` if this process may not give them.
    """

    @abstractmethod
    def open_read(self, path: Path) -> Handle: ...

    @abstractmethod
    def open_append(self, path: Path, *, create: bool = False, exclusive: bool = False) -> Handle:
        """Open to read and write. `create`: make it if absent; `exclusive`: it must be absent."""

    @abstractmethod
    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""

    @abstractmethod
    def stat(self, path: Path) -> FileFacts | None:
        """Facts of a file or directory; None if there is none."""

    @abstractmethod
    def is_dir(self, path: Path) -> bool: ...

    def is_link(self, path: Path) -> bool:
        """Is this name a symbolic link, wherever it leads? Storage without links has none."""
        return False

    @abstractmethod
    def mkdir(self, path: Path) -> None: ...

    @abstractmethod
    def rmdir(self, path: Path) -> None: ...

    @abstractmethod
    def rename(self, source: Path, target: Path) -> None:
        """Atomic; takes the place of a file at `target`. Durable after `fsync_dir` of the parents."""

    @abstractmethod
    def unlink(self, path: Path, missing_ok: bool = False) -> None: ...

    @abstractmethod
    def fsync_dir(self, path: Path) -> None: ...

    @abstractmethod
    def truncate(self, path: Path, size: int) -> None: ...

    @abstractmethod
    def set_mtime(self, path: Path, ms: int) -> None: ...

    @abstractmethod
    def lock(self, path: Path) -> FileLock:
        """Take the exclusive lock of a lock file, made if absent. `LogDirLockedError` names the holder. If
        the file is removed or replaced later, the guarded root of its directory goes offline
        (`LockLostError`)."""

    @abstractmethod
    def free_bytes(self, path: Path) -> int:
        """Room left for this user on the drive of `path`."""

    @abstractmethod
    def guard(self, root: Path) -> None:
        """Treat everything below `root` as one: after a failed sync there, all of it is offline. Called
        again: online again."""

    @abstractmethod
    def offline(self, path: Path) -> LastwordError | None:
        """The failed sync that took `path` offline, if any."""

    def check_owner(self, directory: Path) -> None:  # noqa: B027 - storage may know no owners
        """Raise WrongUserError unless files that are made in `directory` can get the owner that they need
        there. Changes nothing."""

    def device(self, path: Path) -> int:
        """A number for the drive that holds `path`: the same for two paths on one drive. Storage that knows
        no drives is one."""
        return 0

    # Composed of the above, so that fakes see each step.

    def exists(self, path: Path) -> bool:
        return self.stat(path) is not None

    def read_bytes(self, path: Path) -> bytes:
        with self.open_read(path) as handle:
            return handle.pread(handle.size(), 0)

    def write_atomic(self, path: Path, data: bytes) -> None:
        """Replace a file as a whole: readers and crashes see the old content or the new. Durable when it
        returns.

        The order: the new content is on the drive before its name points to it, and the name before anyone
        relies on it.
        """
        path = os.fspath(path)
        scratch = f"{path}.tmp"  # Kafka's name for it, and ignored by Kafka wherever it lies
        self.unlink(scratch, missing_ok=True)
        try:
            with self.open_append(scratch, create=True, exclusive=True) as handle:
                handle.append(data)
                handle.fsync()
            self.rename(scratch, path)
        except LastwordError:
            self._try_unlink(scratch)
            raise
        self.fsync_dir(os.path.dirname(path) or ".")

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all in it; follows no symbolic link. Not durable before `fsync_dir` of the
        parent."""
        path = os.fspath(path)
        for name in self.listdir(path):
            child = os.path.join(path, name)
            if self.is_dir(child) and not os.path.islink(child):
                self.remove_tree(child)
            else:
                self.unlink(child, missing_ok=True)
        self.rmdir(path)

    def _try_unlink(self, path: str) -> None:
        with contextlib.suppress(LastwordError):  # the first error is the one to tell
            self.unlink(path, missing_ok=True)
