"""The lock that makes one process the writer of a directory, and excludes a running Kafka.

Kafka takes a POSIX record lock (`fcntl`, the whole file) on `.lock`. Such a lock belongs to the process: any
code in it that opens and closes the file (a copy of the directory, for example) frees the lock. So lastword
takes a record lock of the open file description (`F_OFD_SETLK`): it conflicts with Kafka's, and only closing
its own descriptor frees it. The system does not show the holder of such a lock, so a `flock` on the same
descriptor names the holder. On macOS the `flock` is enough: there both kinds exclude each other (fcntl(2)),
so one process must not take both. A system with neither gets Kafka's kind of lock, with its weakness.

* A registry refuses a second open in the same process; the error says "this process".
* The path may name another file by the time the lock is held (Kafka removes `.lock` when it stops). After
  locking, the inode of the path is compared with the locked inode; if they differ, the call starts again.
* The file may be removed or replaced while it is locked, and another process may lock the new file. `check`
  compares the inodes again. `OsFiles` calls it before it makes, renames or removes a file and before each
  sync, and takes the directory offline (`LockLostError`).

A child made by `fork` shares the open file description, so it would keep the lock of a parent that has ended.
Therefore the child closes the descriptor first and holds no lock.

`release` leaves the file in place. Kafka does not compare inodes, so removing the file is not safe: a broker
that opened the old file just before would lock it afterwards, while a third process makes and locks a new
file. A file that is left over locks nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading

from lastword.errors import LockLostError, LogDirLockedError
from lastword.files.owner import open_file

# struct flock of 64-bit Linux: type, whence, start, length, pid; of macOS: start, length, pid, type, whence
_IS_BSD = sys.platform == "darwin"
_FLOCK = struct.Struct("qqihh" if _IS_BSD else "hhqqi4x")
_WHOLE_FILE = (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET) if _IS_BSD else (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_TYPE, _PID = (3, 2) if _IS_BSD else (0, 4)
_ATTEMPTS = 100

_registry: dict[tuple[int, int], FileLock] = {}  # (device, inode) of each lock file held here
_mutex = threading.Lock()


def _after_fork() -> None:
    """Close the descriptors in the child: an inherited descriptor would keep the parent's lock."""
    global _mutex
    _mutex = threading.Lock()  # another thread may have held it when the process forked
    held = list(_registry.values())
    _registry.clear()
    for lock in held:
        fds, lock._fds = lock._fds, []
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


os.register_at_fork(after_in_child=_after_fork)


class FileLock:
    """A held lock, until `release()` or the end of the process. Also a context manager."""

    def __init__(self, path: str, fd: int, key: tuple[int, int]) -> None:
        self.path = path
        self._key = key
        self._pid = os.getpid()
        self._fds = [fd]

    @classmethod
    def take(cls, path: str) -> FileLock:
        """Lock `path`, which is made if absent. Does not wait.

        Raises:
            LogDirLockedError: a process holds the lock; it may be this process.
        """
        with _mutex:
            for _ in range(_ATTEMPTS):
                lock = cls._try(path)
                if lock is not None:
                    return lock
        raise LogDirLockedError.held(os.path.dirname(path) or ".", None, None)

    @classmethod
    def _try(cls, path: str) -> FileLock | None:
        """Try to lock `path` once; None if the path named another file meanwhile, and must be tried again."""
        with contextlib.suppress(FileNotFoundError):
            _refuse_own(path, os.stat(path))
        fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _directory)
        opened = os.fstat(fd)
        held = _registry.get((opened.st_dev, opened.st_ino))
        if held is not None and held.held:
            # Locked by another path. Where only process locks exist, closing the descriptor would free it.
            held._fds.append(fd)
            _refuse_own(path, opened)
        try:
            _lock(fd)
        except (BlockingIOError, PermissionError):
            pid = _holder(fd, opened)
            os.close(fd)
            raise LogDirLockedError.held(os.path.dirname(path) or ".", pid, _process_name(pid)) from None
        except OSError:
            os.close(fd)
            raise
        try:
            current = os.stat(path)
        except FileNotFoundError:
            os.close(fd)
            return None
        key = (opened.st_dev, opened.st_ino)
        if (current.st_dev, current.st_ino) != key:
            os.close(fd)
            return None
        lock = cls(path, fd, key)
        _registry[key] = lock
        return lock

    @property
    def held(self) -> bool:
        """Return whether this process holds the lock."""
        return bool(self._fds) and self._pid == os.getpid()

    @property
    def fd(self) -> int | None:
        """Return the descriptor of the locked file; None if this process does not hold the lock."""
        return self._fds[0] if self.held else None

    @property
    def device(self) -> int:
        """Return the number of the drive of the lock file."""
        return self._key[0]

    def check(self) -> None:
        """Raise LockLostError if the path no longer names the locked file, so other processes can lock."""
        if not self._fds or self._pid != os.getpid():  # `held`, without a call
            return
        try:
            current = os.stat(self.path)
        except FileNotFoundError:
            raise LockLostError.of(self.path, "removed") from None
        except OSError:
            return  # the drive does not answer: the change that follows reports the error
        if (current.st_dev, current.st_ino) != self._key:
            raise LockLostError.of(self.path, "replaced")

    def release(self) -> None:
        """Free the lock. A second release, or a release in a forked child, does nothing."""
        with _mutex:
            in_owner = self._pid == os.getpid()
            if in_owner and _registry.get(self._key) is self:
                del _registry[self._key]
            fds, self._fds = self._fds, []
            for fd in fds:
                os.close(fd)

    def drop(self) -> None:
        """Free the lock of a directory that was not closed.

        For finalizers: takes no mutex, because the thread may hold one.
        """
        if self._pid == os.getpid():
            fds, self._fds = self._fds, []
            for fd in fds:
                os.close(fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _directory(path: str) -> str:
    return os.path.realpath(os.path.dirname(path))


def _refuse_own(path: str, facts: os.stat_result) -> None:
    held = _registry.get((facts.st_dev, facts.st_ino))
    if held is not None and held.held:
        raise LogDirLockedError.held(os.path.dirname(path) or ".", os.getpid(), "this process")


def _lock(fd: int) -> None:
    if not _IS_BSD:
        try:
            request = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
            fcntl.fcntl(fd, request, _FLOCK.pack(*_WHOLE_FILE))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a file system that has process locks only
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(fd: int, facts: os.stat_result) -> int | None:
    """Find the process that holds the lock; None if it is hidden, or has freed the lock meanwhile."""
    try:
        found = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(*_WHOLE_FILE)))
    except (OSError, struct.error):
        return None
    if found[_TYPE] != fcntl.F_UNLCK and found[_PID] > 0:
        return int(found[_PID])
    # The kernel names no process for a lock of an open file description, but it does for its flock.
    inode = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            for line in locks:
                words = line.split()
                if words[1] == "FLOCK" and inode in words:
                    return int(words[4]) if int(words[4]) > 0 else None
    except (OSError, ValueError, IndexError):
        pass
    return None


def _process_name(pid: int | None) -> str | None:
    if pid is None:
        return None
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return comm.read().strip() or None
    except OSError:
        return None
