"""`OsFiles`: storage on the operating system, with its errors turned into ours once, here."""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
import threading
import time
from copy import copy
from typing import NoReturn

from lastword.errors import (
    DiskFullError,
    FileTakenError,
    FileVanishedError,
    LastwordError,
    ReadOnlyError,
    StorageError,
    SyncFailedError,
)
from lastword.files.ahead import start_writing
from lastword.files.descriptors import Descriptors
from lastword.files.interface import Buffer, FileFacts, Files, Handle, Path
from lastword.files.lock import FileLock
from lastword.metrics import DIR_OFFLINE, FSYNC_SECONDS

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
LARGE_READ = 1 << 20
"""From here on a read is first bounded by the file's size: a length that lies must not allocate what it
claims."""

MOST_REMEMBERED = 10_000


class Root:
    """What goes offline together: one log directory, or else one directory."""

    __slots__ = ("failure", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure: SyncFailedError | None = None

    def check(self) -> None:
        if self.failure is not None:
            raise copy(self.failure)  # a fresh one: a raised error gathers the tracebacks of all its raisers

    def fail(self, file: str, error: OSError) -> NoReturn:
        if self.failure is None:
            why = errno.errorcode.get(error.errno or 0, str(error.errno))
            self.failure = SyncFailedError.of(file, why, self.path, error.errno)
            DIR_OFFLINE.set(1, self.path)
        raise copy(self.failure) from error


def translate(error: OSError, path: str, doing: str, *, changing: bool) -> LastwordError:
    """The typed error for a failed system call."""
    why = error.strerror or str(error)
    message = f"cannot {doing} {path}: {why}"
    if error.errno in NO_ROOM:
        try:
            room = os.statvfs(os.path.dirname(path) or ".")
            free = room.f_bavail * room.f_frsize
        except OSError:
            free = 0
        return DiskFullError(message, remedy="free space on the drive", file=path, free_bytes=free)
    if error.errno == errno.ENOENT:
        remedy = "check the path; a file that another process has just removed is found anew on a second try"
        return FileVanishedError(message, remedy=remedy, file=path, errno=error.errno)
    if error.errno == errno.EEXIST:
        return FileTakenError(message, remedy="move it away", file=path, errno=error.errno)
    if changing and error.errno in FORBIDDEN:
        return ReadOnlyError(message, remedy="check owner and permissions, or open it to read", file=path)
    if error.errno == errno.ELOOP:
        message = f"cannot {doing} {path}: it is a symbolic link"
        return StorageError(message, remedy="put the file itself there", file=path, errno=error.errno)
    forbidden = error.errno in (errno.EACCES, errno.EPERM)
    remedy = "check owner and permissions" if forbidden else "check the path, and the drive"
    return StorageError(message, remedy=remedy, file=path, errno=error.errno)


class OsHandle(Handle):
    """One file, reached through a descriptor that may come and go (`descriptors`)."""

    def __init__(
        self, fd: int, path: str, root: Root, descriptors: Descriptors, flags: int = os.O_RDONLY
    ) -> None:
        self.fd = fd
        self.path = path
        self.pins = 0
        self.unsynced = False
        self._root = root
        self._descriptors = descriptors
        self._flags = flags
        self._closed = False
        self._torn = False
        facts = os.fstat(fd)
        self._identity = (facts.st_dev, facts.st_ino)
        descriptors.opened(self)

    # ---- the descriptor

    def reopen(self) -> int:
        if self._closed:
            raise OSError(errno.EBADF, "it was closed")
        try:
            fd = os.open(self.path, self._flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise FileVanishedError(f"{self.path} is gone", file=self.path, errno=errno.ENOENT) from None
        facts = os.fstat(fd)
        if (facts.st_dev, facts.st_ino) != self._identity:
            os.close(fd)
            raise FileVanishedError(f"{self.path} was replaced while it was open", file=self.path)
        return fd

    def sync_before_closing(self) -> None:
        if self._root.failure is None:
            try:
                os.fsync(self.fd)
            except OSError as error:
                with contextlib.suppress(SyncFailedError):  # told to the next who changes something there
                    self._root.fail(self.path, error)
        self.unsynced = False

    def _take(self, doing: str = "open") -> int:
        try:
            return self._descriptors.take(self)
        except LastwordError:
            raise
        except OSError as error:
            raise translate(error, self.path, doing, changing=self._flags != os.O_RDONLY) from error

    # ---- reading

    def pread(self, n: int, position: int) -> bytes:
        if n < 0 or position < 0:
            raise ValueError(f"pread of {n} bytes at {position}")
        fd = self._take("read")
        try:
            if n > LARGE_READ:
                n = max(0, min(n, os.fstat(fd).st_size - position))
            data = os.pread(fd, n, position)
            if len(data) == n or not data:
                return data
            parts = [data]
            got = len(data)
            while got < n:
                data = os.pread(fd, n - got, position + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
        except OSError as error:
            raise translate(error, self.path, "read", changing=False) from error
        finally:
            self._descriptors.give(self)
        return b"".join(parts)

    def pread_into(self, buffer: Buffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        got, n = 0, len(view)
        fd = self._take("read")
        try:
            while got < n:
                count = os.preadv(fd, [view[got:]], position + got)
                if count == 0:
                    break
                got += count
        except OSError as error:
            raise translate(error, self.path, "read", changing=False) from error
        finally:
            self._descriptors.give(self)
        return got

    # ---- writing

    def append(self, data: Buffer) -> int:
        if self._torn:
            raise StorageError(
                f"{self.path} has a torn tail that could not be cut back",
                remedy="open the directory again: recovery cuts it",
                file=self.path,
            )
        self._root.check()
        fd = self._take("write")
        try:
            self.unsynced = True
            start = os.lseek(fd, 0, os.SEEK_END)
            try:
                size = data.nbytes if hasattr(data, "nbytes") else len(data)
                done = os.pwrite(fd, data, start)
                if done != size:
                    self._write_rest(fd, data, start, done)
            except OSError as error:
                self._take_back(fd, start)
                raise self._no_room(fd, error, len(memoryview(data).cast("B"))) from error
            return start
        finally:
            self._descriptors.give(self)

    def _write_rest(self, fd: int, data: Buffer, start: int, done: int) -> None:
        view = memoryview(data).cast("B")
        while done < len(view):
            done += os.pwrite(fd, view[done:], start + done)

    def _take_back(self, fd: int, size: int) -> None:
        """After a failed write: a half batch must not stay, or the next append would land behind it."""
        try:
            os.ftruncate(fd, size)
        except OSError:
            self._torn = True

    def _no_room(self, fd: int, error: OSError, needed: int) -> LastwordError:
        if error.errno not in NO_ROOM:
            return translate(error, self.path, "write", changing=True)
        room = os.fstatvfs(fd)
        where = os.path.dirname(self.path) or "."
        free = room.f_bavail * room.f_frsize
        return DiskFullError.of(os.path.basename(self.path), where, needed, free, self.path)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._root.check()
        fd = self._take("write")
        try:
            self.unsynced = True
            self._write_rest(fd, data, position, 0)
        except OSError as error:
            raise self._no_room(fd, error, len(memoryview(data).cast("B"))) from error
        finally:
            self._descriptors.give(self)

    def truncate(self, size: int) -> None:
        self._root.check()
        fd = self._take("truncate")
        try:
            self.unsynced = True
            os.ftruncate(fd, size)
        except OSError as error:
            raise translate(error, self.path, "truncate", changing=True) from error
        finally:
            self._descriptors.give(self)
        self._torn = False

    def start_sync(self, position: int, size: int) -> None:
        if self._root.failure is None:
            with contextlib.suppress(LastwordError):  # whoever syncs hears of it
                fd = self._take("sync")
                try:
                    start_writing(fd, position, size)
                finally:
                    self._descriptors.give(self)

    def fsync(self) -> None:
        self._root.check()
        fd = self._take("sync")
        try:
            self.unsynced = False  # before: what is written meanwhile counts as not synced
            _sync(fd, self.path, self._root)
        finally:
            self._descriptors.give(self)

    def stat(self) -> FileFacts:
        fd = self._take("look at")
        try:
            return _facts(os.fstat(fd))
        except OSError as error:
            raise translate(error, self.path, "look at", changing=False) from error
        finally:
            self._descriptors.give(self)

    def close(self) -> None:
        self._closed = True
        fd = self._descriptors.forget(self)
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:
                raise translate(error, self.path, "close", changing=False) from error

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            fd = self._descriptors.forget(self)
            with contextlib.suppress(OSError):  # nobody is left to tell
                os.close(fd)

    def __repr__(self) -> str:
        return f"<OsHandle {self.path}{' closed' if self._closed else ''}>"


def _sync(fd: int, path: str, root: Root) -> None:
    root.check()
    started = time.perf_counter()
    try:
        os.fsync(fd)
    except OSError as error:
        root.fail(path, error)
    FSYNC_SECONDS.observe(time.perf_counter() - started, root.path)


def _facts(result: os.stat_result) -> FileFacts:
    return FileFacts(result.st_size, result.st_mtime_ns // 1_000_000, result.st_ino)


class OsFiles(Files):
    """`max_open`: how many descriptors its handles share; None: half of what the process may have."""

    def __init__(self, max_open: int | None = None) -> None:
        self.descriptors = Descriptors(max_open)
        self._roots: dict[str, Root] = {}
        self._loose: dict[str, Root] = {}  # directories outside every guarded root whose sync failed
        self._of_directory: dict[str, Root] = {}
        self._mutex = threading.Lock()

    # ---- what goes offline together

    def guard(self, root: Path) -> None:
        path = os.path.realpath(root)
        with self._mutex:
            self._roots[path] = Root(path)
            for loose in [p for p in self._loose if p == path or p.startswith(path + os.sep)]:
                del self._loose[loose]
            self._of_directory.clear()
        DIR_OFFLINE.set(0, path)

    def offline(self, path: Path) -> SyncFailedError | None:
        path = os.fspath(path)
        return self._root(os.path.join(path, ".") if os.path.isdir(path) else path).failure

    def _root(self, path: str) -> Root:
        """The root that the directory of `path` belongs to. Resolving links costs a system call per level of
        the path, so the answer is remembered by the directory's name."""
        directory = os.path.dirname(path)
        found = self._of_directory.get(directory)
        if found is not None:
            return found
        real = at = os.path.realpath(directory)
        with self._mutex:
            while (found := self._roots.get(at)) is None and at != os.path.dirname(at):
                at = os.path.dirname(at)
            if found is None:
                found = self._loose.setdefault(real, Root(real))
            if os.path.isabs(directory):  # a relative one changes its meaning with the working directory
                if len(self._of_directory) >= MOST_REMEMBERED:
                    self._of_directory.clear()
                self._of_directory[directory] = found
        return found

    # ---- files

    def _open(self, path: str, flags: int, *, changing: bool) -> OsHandle:
        try:
            # O_NONBLOCK: a pipe under a file's name must not hang us; it means nothing to a regular file.
            fd = self.descriptors.open(lambda: os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666))
        except OSError as error:
            raise translate(error, path, "open", changing=changing) from error
        if not modes.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StorageError(
                f"cannot open {path}: not a regular file",
                remedy="name a file",
                file=path,
                errno=errno.EINVAL,
            )
        again = flags & ~(os.O_CREAT | os.O_EXCL)
        return OsHandle(fd, path, self._root(path), self.descriptors, again)

    def open_read(self, path: Path) -> OsHandle:
        return self._open(os.fspath(path), os.O_RDONLY, changing=False)

    def open_append(self, path: Path, *, create: bool = False, exclusive: bool = False) -> OsHandle:
        path = os.fspath(path)
        self._root(path).check()
        flags = os.O_RDWR | os.O_NOFOLLOW  # a link could lead a write out of the directory
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return self._open(path, flags, changing=True)

    def truncate(self, path: Path, size: int) -> None:
        with self.open_append(path) as handle:
            handle.truncate(size)

    def set_mtime(self, path: Path, ms: int) -> None:
        path = self._changing(path)
        try:
            os.utime(path, ns=(ms * 1_000_000, ms * 1_000_000))
        except OSError as error:
            raise translate(error, path, "set the time of", changing=True) from error

    # ---- names

    def listdir(self, path: Path) -> list[str]:
        try:
            return sorted(self.descriptors.open(lambda: os.listdir(path)))
        except OSError as error:
            raise translate(error, os.fspath(path), "list", changing=False) from error

    def stat(self, path: Path) -> FileFacts | None:
        try:
            return _facts(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise translate(error, os.fspath(path), "look at", changing=False) from error

    def is_dir(self, path: Path) -> bool:
        return os.path.isdir(path)

    def _changing(self, path: Path) -> str:
        path = os.fspath(path)
        self._root(path).check()
        return path

    def mkdir(self, path: Path) -> None:
        path = self._changing(path)
        try:
            os.mkdir(path)
        except OSError as error:
            raise translate(error, path, "make", changing=True) from error

    def rmdir(self, path: Path) -> None:
        path = self._changing(path)
        try:
            os.rmdir(path)
        except OSError as error:
            raise translate(error, path, "remove", changing=True) from error

    def rename(self, source: Path, target: Path) -> None:
        source = self._changing(source)
        try:
            os.rename(source, target)
        except OSError as error:
            raise translate(error, source, f"rename to {os.fspath(target)}:", changing=True) from error

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        path = self._changing(path)
        try:
            os.unlink(path)
        except FileNotFoundError as error:
            if not missing_ok:
                raise translate(error, path, "remove", changing=True) from error
        except OSError as error:
            raise translate(error, path, "remove", changing=True) from error

    def fsync_dir(self, path: Path) -> None:
        path = os.fspath(path)
        root = self._root(os.path.join(path, "."))
        root.check()
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            fd = self.descriptors.open(lambda: os.open(path, flags))
        except OSError as error:
            raise translate(error, path, "open", changing=False) from error
        try:
            _sync(fd, path, root)
        finally:
            os.close(fd)

    # ---- the drive

    def lock(self, path: Path) -> FileLock:
        try:
            return self.descriptors.open(lambda: FileLock.take(os.fspath(path)))
        except OSError as error:
            if isinstance(error, LastwordError):
                raise
            raise translate(error, os.fspath(path), "lock", changing=True) from error

    def free_bytes(self, path: Path) -> int:
        try:
            room = os.statvfs(path)
        except OSError as error:
            raise translate(error, os.fspath(path), "look at", changing=False) from error
        return room.f_bavail * room.f_frsize

    def device(self, path: Path) -> int:
        try:
            return os.stat(path).st_dev
        except OSError as error:
            raise translate(error, os.fspath(path), "look at", changing=False) from error
