"""The lock that makes one process the writer of a directory, and excludes a running Kafka.

Kafka takes a POSIX record lock (`fcntl`, the whole file) on `.lock`, so we do too. Such locks have three
traps:

* they belong to the process, so a second open in the same process would be let in: a registry in the process
  refuses it;
* closing *any* descriptor of the file frees the lock: the registry is asked, by inode, before the file is
  opened again;
* the path may name another file by the time the lock is held (Kafka removes `.lock` when it stops): after
  locking, the inode behind the path is compared with the one that is locked, and the whole is tried again if
  they differ.

A child made by `fork` does not inherit the lock; its copy of the registry is not believed.

Releasing leaves the file in place. Removing it cannot be made safe against Kafka, which does not compare
inodes: one that has opened the old file just before would lock it after, while a third process makes and
locks a new one. A left-over file locks nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from types import TracebackType

from lastword.errors import LogDirLockedError
from lastword.files.owner import open_file

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_TRIES = 100

_registry: dict[tuple[int, int], FileLock] = {}  # (device, inode) of each lock file held here
_mutex = threading.Lock()


def _renew_mutex() -> None:
    global _mutex
    _mutex = threading.Lock()  # another thread may have held it when the process forked


os.register_at_fork(after_in_child=_renew_mutex)


class FileLock:
    """One held lock. `release()` frees it; so does the end of the process. Also a context manager."""

    def __init__(self, path: str, fd: int, key: tuple[int, int]) -> None:
        self.path = path
        self._key = key
        self._pid = os.getpid()
        self._fds = [fd]

    @classmethod
    def take(cls, path: str) -> FileLock:
        """Lock `path`, made if absent. Raises `LogDirLockedError` at once if anyone holds it, this process
        included."""
        with _mutex:
            for _ in range(_TRIES):
                lock = cls._try(path)
                if lock is not None:
                    return lock
        raise LogDirLockedError.held(os.path.dirname(path) or ".", None, None)

    @classmethod
    def _try(cls, path: str) -> FileLock | None:
        """None: the path changed hands meanwhile, try again."""
        with contextlib.suppress(FileNotFoundError):
            _refuse_own(path, os.stat(path))
        fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _directory)
        opened = os.fstat(fd)
        held = _registry.get((opened.st_dev, opened.st_ino))
        if held is not None and held._pid == os.getpid():
            held._fds.append(fd)  # closing it here would free the lock that this process holds
            _refuse_own(path, opened)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            pid = _holder(fd)
            os.close(fd)
            raise LogDirLockedError.held(os.path.dirname(path) or ".", pid, _process_name(pid)) from None
        except OSError:
            os.close(fd)
            raise
        try:
            named = os.stat(path)
        except FileNotFoundError:
            os.close(fd)
            return None
        key = (opened.st_dev, opened.st_ino)
        if (named.st_dev, named.st_ino) != key:
            os.close(fd)
            return None
        lock = cls(path, fd, key)
        _registry[key] = lock
        return lock

    @property
    def held(self) -> bool:
        return bool(self._fds) and self._pid == os.getpid()

    def release(self) -> None:
        """Free the lock; a second release, or one in a forked child, frees nothing."""
        with _mutex:
            mine = self._pid == os.getpid()
            if mine and _registry.get(self._key) is self:
                del _registry[self._key]
            fds, self._fds = self._fds, []
            for fd in fds:
                os.close(fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _directory(path: str) -> str:
    return os.path.realpath(os.path.dirname(path))


def _refuse_own(path: str, facts: os.stat_result) -> None:
    held = _registry.get((facts.st_dev, facts.st_ino))
    if held is not None and held._pid == os.getpid():
        raise LogDirLockedError.held(os.path.dirname(path) or ".", os.getpid(), "this process")


def _holder(fd: int) -> int | None:
    """The process that holds the lock, as the kernel tells; None if it is hidden or has let go meanwhile."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except (OSError, struct.error):
        return None
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def _process_name(pid: int | None) -> str | None:
    if pid is None:
        return None
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return comm.read().strip() or None
    except OSError:
        return None
