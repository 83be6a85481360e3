"""Typed errors for failed system calls, and the directories that a failed sync takes offline."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import NoReturn

from lastword.errors import (
    DiskFullError,
    FileTakenError,
    FileVanishedError,
    LastwordError,
    LockLostError,
    NotPermittedError,
    StorageError,
    SyncFailedError,
)
from lastword.files.drive import sync_drive
from lastword.files.lock import FileLock
from lastword.files.owner import user_name
from lastword.metrics import DIR_OFFLINE, FSYNC_SECONDS

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class Root:
    """A directory that goes offline as a whole: a log directory, or a directory outside of any.

    moment   the number of syncs of the whole drive that have begun; each change notes it when it is made
    renamed  the moment of the last change of a name
    """

    __slots__ = ("_synced", "_syncing", "failure", "lock", "moment", "path", "renamed")

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure: StorageError | None = None
        self.lock: FileLock | None = None  # held by this process
        self.moment = self.renamed = 0
        self._synced = 0  # changes of earlier moments are durable, for the thread `_syncing`
        self._syncing: int | None = None

    @contextmanager
    def synced_drive(self) -> Iterator[bool]:
        """Sync the whole drive. In the block, `is_synced` answers for this thread.

        Yields whether that was possible; if not, each file has to be synced.
        """
        self.moment += 1
        moment, started = self.moment, time.perf_counter()
        if not self._sync_drive():
            yield False
            return
        FSYNC_SECONDS.observe(time.perf_counter() - started, self.path)
        self._synced, self._syncing = moment, threading.get_ident()
        try:
            yield True
        finally:
            self._syncing = None

    def _sync_drive(self) -> bool:
        lock = self.lock
        fd = None if lock is None else lock.fd
        if lock is None or fd is None:
            return False
        try:
            self.check_lock()
        except LastwordError:
            return False  # each sync of a file raises it
        return sync_drive(fd) and lock.fd == fd

    def is_synced(self, moment: int, device: int) -> bool:
        """Return whether a change of that moment, on that drive, is durable by the sync of the whole drive.

        Only in the thread that has made it: there, every change that the sync must cover came before it.
        """
        return (
            self._syncing is not None
            and self._syncing == threading.get_ident()
            and moment < self._synced
            and self.lock is not None
            and device == self.lock.device
        )

    def check_lock(self) -> None:
        """Raise the failure of this root, or LockLostError if its lock file was removed or replaced.

        A lost lock takes the root offline. Costs one system call, so it is used only before names change and
        before syncs.
        """
        if self.failure is not None:
            self.check()
        if self.lock is None:
            return
        try:
            self.lock.check()
        except LockLostError as error:
            self.failure = error
            DIR_OFFLINE.set(1, self.path)
            raise copy(error) from None

    def check(self) -> None:
        """Raise the failure that took this root offline, if any."""
        if self.failure is not None:
            raise copy(self.failure)  # a copy: an error object that is raised twice collects both tracebacks

    def fail(self, file: str, error: OSError) -> NoReturn:
        """Take the root offline after a failed sync of `file`, and raise SyncFailedError."""
        if self.failure is None:
            reason = errno.errorcode.get(error.errno or 0, str(error.errno))
            self.failure = SyncFailedError.of(file, reason, self.path, error.errno)
            DIR_OFFLINE.set(1, self.path)
        raise copy(self.failure) from error


def translate(error: OSError, path: str, action: str) -> LastwordError:
    """Return the typed error for a failed system call.

    Args:
        error: The error of the call.
        path: The file or directory of the call.
        action: A verb for the message: "cannot ACTION PATH".
    """
    reason = error.strerror or str(error)
    message = f"cannot {action} {path}: {reason}"
    if error.errno in NO_ROOM:
        try:
            facts = os.statvfs(os.path.dirname(path) or ".")
            free_bytes = facts.f_bavail * facts.f_frsize
        except OSError:
            free_bytes = 0
        return DiskFullError(message, remedy="free space on the drive", file=path, free_bytes=free_bytes)
    if error.errno == errno.ENOENT:
        remedy = "check the path; if another process has just replaced the file, try again"
        return FileVanishedError(message, remedy=remedy, file=path, errno=error.errno)
    if error.errno == errno.EEXIST:
        return FileTakenError(message, remedy="move that file away", file=path, errno=error.errno)
    if error.errno in FORBIDDEN:
        return NotPermittedError(
            message, remedy=_permission_remedy(error, path), file=path, errno=error.errno
        )
    if error.errno == errno.ELOOP:
        message = f"cannot {action} {path}: it is a symbolic link"
        return StorageError(message, remedy="replace the link by the file", file=path, errno=error.errno)
    return StorageError(message, remedy="check the path and the drive", file=path, errno=error.errno)


class translating:
    """Raise an OSError of the block as `translate` returns it; typed errors pass.

    A `contextmanager` that raises another error leaves a circle of references on Python 3.12 and 3.13.
    """

    def __init__(self, path: str | os.PathLike[str], action: str) -> None:
        self._path, self._action = path, action

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, LastwordError):
            raise translate(error, os.fspath(self._path), self._action) from error


def _permission_remedy(error: OSError, path: str) -> str:
    """Return the remedy for a forbidden call: it names the user who may do it."""
    if error.errno == errno.EROFS:
        return "mount the file system to write, or choose another directory"
    ancestor = os.path.abspath(path)
    while True:
        try:
            uid = os.stat(ancestor).st_uid
        except OSError:
            if ancestor == os.path.dirname(ancestor):
                return "check owner and permissions"
            ancestor = os.path.dirname(ancestor)
        else:
            return f"{ancestor} belongs to {user_name(uid)}: run as that user, or change its permissions"


def sync_or_fail(fd: int, path: str, root: Root, sync: Callable[[int], None]) -> None:
    """Call a sync function on a descriptor; a failure takes the root offline (SyncFailedError)."""
    root.check_lock()
    started = time.perf_counter()
    try:
        sync(fd)
    except OSError as error:
        root.fail(path, error)
    FSYNC_SECONDS.observe(time.perf_counter() - started, root.path)
