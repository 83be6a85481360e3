"""A bounded number of open files, however many handles there are.

A handle is a promise to reach one file; the descriptor behind it may be closed while nobody uses it and
opened again when somebody does. So 10,000 partitions or 2,000 segments need no 10,000 descriptors.

* Least recently used goes first, and one that was written to and not synced last: it is synced before its
  descriptor is closed, for the kernel tells a failed write-back only to who has the file open.
* A handle in use (`take` ... `give`) keeps its descriptor, so no other thread's read can hit a reused number.
* Opened again, it must be the same inode. For a reader another file under its name is FileVanishedError, as
  for one that was replaced before it was first opened.
* When the system has no descriptor left (EMFILE, ENFILE), a quarter of ours is closed and it is tried again.

Half of what the process may open (RLIMIT_NOFILE) is used, at most 4096, unless a limit is given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")
MAX_LIMIT = 4096
MIN_LIMIT = 8
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class Reopenable(Protocol):
    """What a handle lets the bounded set do with it."""

    fd: int  # -1 while it is closed
    pins: int
    unsynced: bool

    def reopen(self) -> int: ...
    def sync_before_closing(self) -> None: ...


class Descriptors:
    """Of the handles of one `OsFiles`, in the order of their last use. `limit`: how many; None, half of what
    the process may have."""

    def __init__(self, limit: int | None = None) -> None:
        self._fixed_limit = limit
        self._lock = threading.RLock()  # reentrant: a garbage collection inside may close a handle
        self._open: OrderedDict[int, weakref.ref[Reopenable]] = OrderedDict()
        _instances.add(self)

    @property
    def limit(self) -> int:
        if self._fixed_limit is not None:
            return max(1, self._fixed_limit)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return MAX_LIMIT
        return max(MIN_LIMIT, min(soft // 2, MAX_LIMIT))

    def __len__(self) -> int:
        return len(self._open)

    def add(self, handle: Reopenable) -> None:
        """A handle has got its first descriptor."""
        with self._lock:
            self._open[id(handle)] = weakref.ref(handle)

    def open(self, opening: Callable[[], T]) -> T:
        """Call something that takes a descriptor: room is made before, and once more if there is none."""
        self._evict_excess()
        try:
            return opening()
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._evict(max(1, len(self._open) // 4)):
                raise
            return opening()

    def acquire(self, handle: Reopenable) -> int:
        """The handle's descriptor, which stays open until `give`."""
        with self._lock:
            handle.pins += 1
            fd = handle.fd
            if fd >= 0:
                self._open.move_to_end(id(handle))
                return fd
            try:
                fd = handle.fd = self.open(handle.reopen)
            except BaseException:
                handle.pins -= 1
                raise
            self._open[id(handle)] = weakref.ref(handle)
            return fd

    def release(self, handle: Reopenable) -> None:
        with self._lock:
            handle.pins -= 1

    def remove(self, handle: Reopenable) -> int:
        """The handle is closed for good: its descriptor, or -1."""
        with self._lock:
            self._open.pop(id(handle), None)
            fd, handle.fd = handle.fd, -1
            return fd

    def _evict_excess(self) -> None:
        excess = len(self._open) - self.limit + 1
        if excess > 0:
            self._evict(excess)

    def _evict(self, count: int) -> int:
        """Close up to so many descriptors that nobody uses; returns how many."""
        with self._lock:
            closed = 0
            for synced_only in (True, False):
                for key, reference in list(self._open.items()):
                    if closed >= count:
                        return closed
                    handle = reference()
                    if handle is None or handle.fd < 0:
                        self._open.pop(key, None)
                        continue
                    if handle.pins or (synced_only and handle.unsynced):
                        continue
                    if handle.unsynced:
                        handle.sync_before_closing()
                    fd, handle.fd = handle.fd, -1
                    self._open.pop(key, None)
                    with contextlib.suppress(OSError):  # nothing is lost: it was synced, or only read
                        os.close(fd)
                    closed += 1
            return closed


_instances: weakref.WeakSet[Descriptors] = weakref.WeakSet()


def _renew_locks_after_fork() -> None:
    for descriptors in list(_instances):
        descriptors._lock = threading.RLock()  # another thread may have held it when the process forked


os.register_at_fork(after_in_child=_renew_locks_after_fork)
