"""`OsFiles`: storage on the operating system.

Errors of system calls are translated in this package (`failures.translate`), and nowhere else. An idle
`OsHandle` may lose its descriptor; its next use opens the file again (descriptors.py).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import TYPE_CHECKING

from lastword.errors import DiskFullError, FileVanishedError, LastwordError, StorageError
from lastword.files import owner, system
from lastword.files.descriptors import FILES_OF_ITEM, Descriptors
from lastword.files.drive import libc
from lastword.files.failures import NO_ROOM, Root, sync_or_fail, translate, translating
from lastword.files.interface import TOGETHER, Buffer, DirVersion, FileFacts, Files, Handle, Path
from lastword.files.lock import FileLock
from lastword.metrics import DIR_OFFLINE

if TYPE_CHECKING:
    from socket import socket

LARGE_READ = 1 << 20
"""A read of more bytes than this is first limited to the file's size, so that a corrupt length does not
allocate the memory that it claims."""


class OsHandle(Handle):
    """One open file, whose descriptor may be closed and reopened meanwhile (`Descriptors`)."""

    growth_slows_sync = True
    fd = -1

    def __init__(
        self, fd: int, path: str, root: Root, descriptors: Descriptors, flags: int, facts: os.stat_result
    ) -> None:
        self.fd = fd
        self.key = id(self)
        self.path = path
        self.pins: list[None] = []
        self.unsynced = False
        self._root = root
        self._descriptors = descriptors
        self._flags = flags
        self._closed = False
        self._torn = False
        self._identity = (facts.st_dev, facts.st_ino)
        self._changed = root.moment
        self._min_size = facts.st_size if flags == os.O_RDONLY else 0
        descriptors.add(self)

    # ---- the descriptor

    def reopen(self) -> int:
        """Open the same inode again; FileVanishedError if it is gone or was replaced."""
        if self._closed:
            raise OSError(errno.EBADF, "the handle is closed")
        try:
            fd = os.open(self.path, self._flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise FileVanishedError(f"{self.path} is gone", file=self.path, errno=errno.ENOENT) from None
        facts = os.fstat(fd)
        # A shorter file with the same inode number is a new file: the number of the removed one was reused.
        if (facts.st_dev, facts.st_ino) != self._identity or facts.st_size < self._min_size:
            os.close(fd)
            raise FileVanishedError(f"{self.path} was replaced while it was open", file=self.path)
        return fd

    def sync_before_closing(self) -> None:
        """Sync the file before its descriptor is evicted; a failure takes the root offline."""
        self.unsynced = False  # first: bytes that another thread writes during the sync count as unsynced
        if self._root.failure is None:
            try:
                system.sync_content(self.fd)
            except OSError as error:
                with suppress(StorageError):  # the next change below this root raises it
                    self._root.fail(self.path, error)

    def _acquire(self, action: str = "open") -> int:
        try:
            return self._descriptors.acquire(self)
        except LastwordError:
            raise
        except OSError as error:
            raise translate(error, self.path, action) from error

    # ---- reading

    def pread(self, n: int, position: int) -> bytes:
        """Read `n` bytes from `position`; fewer only at the end of the file."""
        if n < 0 or position < 0:
            raise ValueError(f"pread of {n} bytes at {position}")
        fd = self._acquire("read")
        try:
            if n > LARGE_READ:
                n = max(0, min(n, os.fstat(fd).st_size - position))
            data = os.pread(fd, n, position)
            if len(data) == n or not data:
                return data
            parts = [data]
            count_read = len(data)
            while count_read < n:
                data = os.pread(fd, n - count_read, position + count_read)
                if not data:
                    break
                parts.append(data)
                count_read += len(data)
        except OSError as error:
            raise translate(error, self.path, "read") from error
        finally:
            self.pins.pop()
        return b"".join(parts)

    def send_to(self, sock: socket, n: int, position: int) -> int:
        """Send bytes of the file to a socket without a copy in this process; see `Handle.send_to`."""
        if not hasattr(os, "sendfile"):
            return super().send_to(sock, n, position)
        fd = self._acquire("read")
        try:
            return os.sendfile(sock.fileno(), fd, position, n)
        except (BlockingIOError, ConnectionError):
            raise
        except OSError as error:
            raise translate(error, self.path, "read") from error
        finally:
            self.pins.pop()

    def pread_into(self, buffer: Buffer, position: int) -> int:
        """Fill a writable buffer from `position`; return the bytes read: fewer only at the file's end."""
        view = memoryview(buffer)
        n = view.nbytes
        descriptors = self._descriptors
        try:
            fd = descriptors.acquire(self)
            try:
                count_read = os.preadv(fd, (view,), position) if n else 0
                while 0 < count_read < n:
                    view = view.cast("B")
                    count = os.preadv(fd, (view[count_read:],), position + count_read)
                    if count == 0:
                        break
                    count_read += count
            finally:
                self.pins.pop()
        except LastwordError:
            raise
        except OSError as error:
            raise translate(error, self.path, "read") from error
        return count_read

    # ---- writing

    def append(self, data: Buffer) -> int:
        """Write all of `data` at the end of the file and return the position of its first byte."""
        if self._torn:
            raise StorageError(
                f"{self.path} has a torn tail that could not be cut back",
                remedy="open the directory again: recovery cuts the tail",
                file=self.path,
            )
        if self._root.failure is not None:
            self._root.check()
        try:
            fd = self._descriptors.acquire(self)
        except OSError as error:
            if isinstance(error, LastwordError):
                raise
            raise translate(error, self.path, "write") from error
        try:
            start = os.lseek(fd, 0, os.SEEK_END)
            try:
                size = len(data) if type(data) is bytes else memoryview(data).nbytes
                done = os.pwrite(fd, data, start)
                if done != size:
                    self._write_rest(fd, data, start, done)
            except OSError as error:
                self._cut_back(fd, start)
                raise self._write_error(fd, error, len(memoryview(data).cast("B"))) from error
            return start
        finally:
            self._changed = self._root.moment  # after the write: a sync may have begun meanwhile
            self.unsynced = True
            self.pins.pop()

    def _write_rest(self, fd: int, data: Buffer, start: int, done: int) -> None:
        view = memoryview(data).cast("B")
        while done < len(view):
            done += os.pwrite(fd, view[done:], start + done)

    def _cut_back(self, fd: int, size: int) -> None:
        """Remove a partly written batch, or the next append would follow it."""
        try:
            os.ftruncate(fd, size)
        except OSError:
            self._torn = True

    def _write_error(self, fd: int, error: OSError, needed: int) -> LastwordError:
        if error.errno not in NO_ROOM:
            return translate(error, self.path, "write")
        facts = os.fstatvfs(fd)
        directory = os.path.dirname(self.path) or "."
        free_bytes = facts.f_bavail * facts.f_frsize
        return DiskFullError.of(os.path.basename(self.path), directory, needed, free_bytes, self.path)

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`."""
        if self._root.failure is not None:
            self._root.check()
        fd = self._acquire("write")
        try:
            size = len(data) if type(data) is bytes else memoryview(data).nbytes
            done = os.pwrite(fd, data, position)
            if done != size:
                self._write_rest(fd, data, position, done)
        except OSError as error:
            raise self._write_error(fd, error, len(memoryview(data).cast("B"))) from error
        finally:
            self._changed = self._root.moment
            self.unsynced = True
            self.pins.pop()

    def truncate(self, size: int) -> None:
        """Set the size of the file."""
        self._root.check()
        fd = self._acquire("truncate")
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise translate(error, self.path, "truncate") from error
        finally:
            self._changed = self._root.moment
            self.unsynced = True
            self.pins.pop()
        self._torn = False

    def start_sync(self, position: int, size: int) -> None:
        """Start to write these bytes to the drive ahead of an `fsync`.

        SYNC_FILE_RANGE_WRITE alone leaves the error state of the file untouched: a later `fsync` still
        reports a page that could not be written. (The flags that wait would consume that error.) Nothing
        depends on this call, so its result is ignored.
        """
        if self._root.failure is None:
            with suppress(LastwordError):  # a later fsync reports it
                fd = self._acquire("sync")
                try:
                    function = _sync_file_range()
                    if function is not None:
                        function(fd, position, size, _SYNC_FILE_RANGE_WRITE)
                finally:
                    self.pins.pop()

    def fsync(self) -> None:
        """Wait until bytes and size are on the drive.

        The modification time is not synced: its change alone would cost a write of the inode.
        """
        root = self._root
        if root.failure is not None:
            root.check()
        self.unsynced = False  # first: bytes written during the sync count as unsynced
        if root.is_synced(self._changed, self._identity[0]):
            return
        fd = self._acquire("sync")
        try:
            sync_or_fail(fd, self.path, root, system.sync_content)
        finally:
            self.pins.pop()

    def may_shrink_to(self, size: int) -> None:
        """Note that a shorter file may still be the same one when it is reopened."""
        self._min_size = min(self._min_size, size)

    def stat(self) -> FileFacts:
        """Return the facts of the open file."""
        fd = self._acquire("inspect")
        try:
            facts = os.fstat(fd)
            return _facts(facts, _KINDS.get(stat.S_IFMT(facts.st_mode), "other"))
        except OSError as error:
            raise translate(error, self.path, "inspect") from error
        finally:
            self.pins.pop()

    def close(self) -> None:
        """Close; a second close does nothing."""
        self._closed = True
        fd = self._descriptors.remove(self)
        if fd >= 0:
            with translating(self.path, "close"):
                os.close(fd)

    def __del__(self) -> None:
        if self.fd >= 0:
            fd = self._descriptors.remove(self)
            with suppress(OSError):  # there is no caller to report it to
                os.close(fd)

    def __repr__(self) -> str:
        return f"<OsHandle {self.path}{' closed' if self._closed else ''}>"


_new_facts = tuple.__new__  # half the time of a call of the class
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}


def _facts(result: os.stat_result, kind: str) -> FileFacts:
    """Convert the result of a stat call."""
    return _new_facts(FileFacts, (result.st_size, result.st_mtime_ns // 1_000_000, result.st_ino, kind))


_SYNC_FILE_RANGE_WRITE = 2


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    import ctypes

    function = getattr(libc(), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    call: Callable[[int, int, int, int], int] = function
    return call


# ---------------------------------------------------------------- the interface on the operating system


MAX_CACHED_DIRECTORIES = 10_000  # directories
CLOCK_STEP_NS = 20_000_000
"""More than the step of the clock that Linux uses for times of files: 10 ms or less."""
COARSE_STEP_NS = 2_000_000_000
"""The largest step of a file system that keeps whole seconds or milliseconds: FAT."""


def _not_regular(path: str) -> StorageError:
    return StorageError(
        f"cannot open {path}: not a regular file",
        remedy="give the path of a file",
        file=path,
        errno=errno.EINVAL,
    )


_mutex = threading.Lock()
"""An `OsFiles` holds it while it changes what it knows of directories."""
os.register_at_fork(after_in_child=lambda: globals().update(_mutex=threading.Lock()))


class OsFiles(Files):
    """Storage on the operating system.

    Args:
        max_open: The number of descriptors that all handles share. None: half of RLIMIT_NOFILE.
    """

    def __init__(self, max_open: int | None = None) -> None:
        self.descriptors = Descriptors(max_open)
        self.now_ns = time.time_ns  # of the clock that gives files their times; tests replace it
        self._roots: dict[str, Root] = {}
        self._unguarded_roots: dict[str, Root] = {}  # outside every guarded root
        self._root_by_directory: dict[str, Root] = {}
        self._locks: dict[str, FileLock] = {}  # the last lock that was taken in a directory

    # ---- roots: directories that go offline as a whole

    def guard(self, root: Path) -> None:
        """Take everything below `root` offline together after a failed sync; a second call resets that."""
        path = os.path.realpath(root)
        with _mutex:
            guarded = self._roots[path] = Root(path)
            guarded.lock = self._locks.get(path)
            for unguarded in [p for p in self._unguarded_roots if p == path or p.startswith(path + os.sep)]:
                del self._unguarded_roots[unguarded]
            self._root_by_directory = {}  # `_root` may be adding to the dictionary of before
        DIR_OFFLINE.set(0, path)

    def offline(self, path: Path) -> StorageError | None:
        """Return the failed sync that took `path` offline, if any."""
        path = os.fspath(path)
        return self._root(os.path.join(path, ".") if os.path.isdir(path) else path).failure

    def check_lock(self, root: Path) -> None:
        """Raise LockLostError, and take `root` offline, if its lock was held here and its file is gone."""
        self._root(os.path.join(root, ".")).check_lock()

    def _root(self, path: str) -> Root:
        """Return the root of the directory of `path`.

        Cached by the directory's name, because resolving links costs a system call per level of the path.
        """
        known, name = self._root_by_directory, path.rpartition("/")[0]
        root = known.get(name)
        if root is None:
            directory = name if name[-1:] not in ("", "/") else os.path.dirname(path)
            root = self._root_by_parent(directory) or self._root_by_links(directory)
            if name.startswith("/"):  # a relative path depends on the working directory
                with _mutex:
                    if len(known) >= MAX_CACHED_DIRECTORIES:
                        known.clear()
                    known[name] = root
        return root

    def _root_by_parent(self, directory: str) -> Root | None:
        """Return the root of a directory that is no link, by that of its parent; None: not known that way."""
        above, _, name = directory.rpartition("/")
        if not above.startswith("/") or name in (os.curdir, os.pardir) or os.path.islink(directory):
            return None
        parent = self._root(directory)
        with _mutex:
            if self._unguarded_roots.get(parent.path) is parent:  # its path is that of the parent
                real = os.path.join(parent.path, name)
                return self._roots.get(real) or self._unguarded_roots.setdefault(real, Root(real))
            below = parent.path + os.sep
            nested = [path for path in self._roots if path.startswith(below)]
            return None if nested or self._roots.get(parent.path) is not parent else parent

    def _root_by_links(self, directory: str) -> Root:
        """Return the root of a directory, after resolving all links of its path."""
        real = ancestor = os.path.realpath(directory)
        with _mutex:
            while (root := self._roots.get(ancestor)) is None and ancestor != os.path.dirname(ancestor):
                ancestor = os.path.dirname(ancestor)
            return root or self._unguarded_roots.setdefault(real, Root(real))

    def _log_root(self, path: str) -> str | None:
        """Return the root of the log directory that contains `path`; None outside of any."""
        root = self._root(path).path
        return root if root in self._roots else owner.root_of(os.path.dirname(path))

    # ---- files

    def _open(self, path: str, flags: int, root: Root) -> OsHandle:
        try:
            fd = self.descriptors.open(owner.open_file, path, flags, self._log_root)
        except LastwordError:
            raise
        except OSError as error:
            raise translate(error, path, "open") from error
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            raise _not_regular(path)
        reopen_flags = flags & ~(os.O_CREAT | os.O_EXCL)
        return OsHandle(fd, path, root, self.descriptors, reopen_flags, facts)

    def open_read(self, path: Path) -> OsHandle:
        """Open a file to read."""
        path = os.fspath(path)
        return self._open(path, os.O_RDONLY, self._root(path))

    def open_append(self, path: Path, *, create: bool = False, exclusive: bool = False) -> OsHandle:
        """Open a file to read and write."""
        path = os.fspath(path)
        root = self._root(path)
        flags = os.O_RDWR | os.O_NOFOLLOW  # a link could redirect a write out of the directory
        if not exclusive:
            root.check()
            try:
                return self._open(path, flags, root)
            except FileVanishedError:
                if not create:
                    raise
        root.check_lock()
        root.renamed = root.moment
        return self._open(path, flags | os.O_CREAT | (os.O_EXCL if exclusive else 0), root)

    def read_bytes(self, path: Path) -> bytes:
        """Read a whole file, without a handle: small files are read for each partition."""
        try:
            fd = self.descriptors.open(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise translate(error, os.fspath(path), "open") from error
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise _not_regular(os.fspath(path))
            data = os.read(fd, facts.st_size)
            while len(data) < facts.st_size and (more := os.read(fd, facts.st_size - len(data))):
                data += more
            return data
        except LastwordError:
            raise
        except OSError as error:
            raise translate(error, os.fspath(path), "read") from error
        finally:
            os.close(fd)

    def set_mtime(self, path: Path, ms: int) -> None:
        """Set the time of a file's last change, in ms since 1970."""
        path = self._check_change(path)
        with translating(path, "set the time of"):
            os.utime(path, ns=(ms * 1_000_000, ms * 1_000_000))

    # ---- names

    def listdir(self, path: Path) -> list[str]:
        """List the names in a directory, sorted."""
        with translating(path, "list"):
            return sorted(self.descriptors.open(os.listdir, path))

    def dir_version(self, path: Path) -> DirVersion | None:
        """Return the state of the names in a directory, from the time of its last change."""
        try:
            facts = os.stat(path)
        except OSError:
            return None  # a listing raises the error
        changed_ns = max(facts.st_mtime_ns, facts.st_ctime_ns)
        quiet_ns = self.now_ns() - changed_ns
        step_ns = CLOCK_STEP_NS if changed_ns % 1_000_000 else COARSE_STEP_NS
        stamp = (facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)
        return DirVersion(stamp, quiet_ns > step_ns, quiet_ns // 1_000_000)

    def stamp(self, path: Path) -> object:
        """As `Files.stamp`."""
        try:
            facts = os.stat(path)
        except OSError:
            return None
        return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_dev

    def have_stamps(self, stamps: Iterable[tuple[Path, object]]) -> bool:
        """As `Files.have_stamps`, without a call for each path."""
        for path, before in stamps:
            try:
                now = os.stat(path)
            except OSError:
                if before is None:
                    continue
                return False
            if before != (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_dev):
                return False
        return True

    def stat(self, path: Path) -> FileFacts | None:
        """Return the facts of a file or directory; None if it does not exist."""
        try:
            facts = os.lstat(path)
            kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "other")
            if kind == "link":
                facts = os.stat(path)
            return _facts(facts, kind)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise translate(error, os.fspath(path), "inspect") from error

    def is_dir(self, path: Path) -> bool:
        """Return whether the path is a directory, or a link to one."""
        return os.path.isdir(path)

    def is_link(self, path: Path) -> bool:
        """Return whether the path is a symbolic link."""
        return os.path.islink(path)

    def _check_change(self, path: Path) -> str:
        path = os.fspath(path)
        root = self._root(path)
        root.check_lock()
        root.renamed = root.moment
        return path

    def mkdir(self, path: Path) -> None:
        """Make a directory."""
        path = self._check_change(path)
        with translating(path, "make"):
            os.mkdir(path)
            try:
                root = self._log_root(path)
                if root is not None:
                    self._assign_directory(path, root)
            except LastwordError:
                os.rmdir(path)
                raise

    def _assign_directory(self, path: str, root: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = self.descriptors.open(os.open, path, flags)
        try:
            owner.assign_new(fd, path, root)
        finally:
            os.close(fd)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        path = self._check_change(path)
        with translating(path, "remove"):
            os.rmdir(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically; replaces a file at `target`."""
        source = self._check_change(source)
        with translating(source, f"rename to {os.fspath(target)}:"):
            self.descriptors.open(owner.assign_moved, source, os.fspath(target), self._log_root)
            os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which must be absent."""
        target = self._check_change(target)
        with translating(target, "create"):
            os.link(source, target)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """Remove a file."""
        path = self._check_change(path)
        with translating(path, "remove"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def fsync_dir(self, path: Path) -> None:
        """Wait until the names in a directory are on the drive."""
        path = os.fspath(path)
        root = self._root(os.path.join(path, "."))
        if root.moment and root.is_synced(root.renamed, self.device(path)):
            root.check()
            return
        root.check_lock()
        with translating(path, "open"):
            fd = self.descriptors.open(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_or_fail(fd, path, root, system.sync)
        finally:
            os.close(fd)

    # ---- the drive

    @property
    def together(self) -> int:
        """Return the number of work items whose files need not be closed before they are synced."""
        return max(TOGETHER, self.descriptors.limit // FILES_OF_ITEM)

    def synced_drive(self, root: Path) -> AbstractContextManager[bool]:
        """Sync the whole drive of a guarded root; see `Files.synced_drive`."""
        return self._root(os.path.join(root, ".")).synced_drive()

    def check_owner(self, directory: Path) -> None:
        """Raise WrongUserError unless new files in `directory` can get their owner."""
        with translating(directory, "inspect"):
            owner.check(os.fspath(directory))

    def lock(self, path: Path) -> FileLock:
        """Take the exclusive lock of a lock file, which is made if absent."""
        path = os.fspath(path)
        with translating(path, "lock"):
            lock = self.descriptors.open(FileLock.take, path)
        directory = os.path.realpath(os.path.dirname(path) or ".")
        with _mutex:
            self._locks[directory] = lock
            if directory in self._roots:
                self._roots[directory].lock = lock
        return lock

    def free_bytes(self, path: Path) -> int:
        """Return the room left for this user on the drive of `path`."""
        with translating(path, "inspect"):
            facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def device(self, path: Path) -> int:
        """Return a number that is the same for all paths on one drive."""
        with translating(path, "inspect"):
            return os.stat(path).st_dev
