"""`Descriptors`: the open descriptors of a process, of which the idle ones may be closed.

The descriptor of an `OsHandle` may be closed while the handle is idle, and is opened again at the next use.
So 10,000 partitions or 2,000 segments do not need 10,000 descriptors.

* The least recently used descriptor is closed first. Handles with unsynced writes are closed last, and synced
  before: the kernel reports a failed writeback only to a process that has the file open.
* A handle in use, from `acquire` until the caller takes its pin away, keeps its descriptor, so a read of
  another thread cannot hit a reused descriptor number. A handle is pinned before its descriptor is read, and
  an eviction looks for pins after it has taken the descriptor from the handle: so `acquire` needs no lock.
  It looks for unsynced writes then, too: a write may have begun and ended meanwhile.
* A reopened file must be the same inode. If a reader finds another file under the name, it raises
  FileVanishedError, as for a file that was replaced before the first open.
* If the system has no descriptor left (EMFILE, ENFILE), a quarter of the open ones is closed and the open is
  tried again.

Without an explicit limit, half of RLIMIT_NOFILE is used, at most 4096.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
MAX_LIMIT = 4096
MIN_LIMIT = 8
EVICTED_SHARE = 16
"""At the limit, one of this number of descriptors is closed, the least recently used first."""
FILES_OF_ITEM = 5
"""The most files of a partition that are open while it is opened or closed."""
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class Reopenable(Protocol):
    """The part of a handle that `Descriptors` uses."""

    fd: int  # -1 while it is closed
    key: int  # the `id` of the object
    pins: list[None]  # one for each use; adding and removing one is a single step
    unsynced: bool

    def reopen(self) -> int:
        """Open the file again and return the descriptor."""

    def sync_before_closing(self) -> None:
        """Sync the file before its descriptor is closed; reset `unsynced` first."""


class Descriptors:
    """The open descriptors of one `OsFiles`, least recently used first.

    Args:
        limit: The largest number of open descriptors. None: half of RLIMIT_NOFILE, at most 4096.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._fixed_limit = limit
        self._last_limit = 0  # `limit` when it was last reached
        self._lock = threading.RLock()  # reentrant: the garbage collector may close a handle meanwhile
        self._open: OrderedDict[int, weakref.ref[Reopenable]] = OrderedDict()
        _instances.add(self)

    @property
    def limit(self) -> int:
        """Return the largest number of open descriptors now."""
        if self._fixed_limit is not None:
            return max(1, self._fixed_limit)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return MAX_LIMIT
        return max(MIN_LIMIT, min(soft // 2, MAX_LIMIT))

    def __len__(self) -> int:
        return len(self._open)

    def add(self, handle: Reopenable) -> None:
        """Add a handle that has just been opened."""
        with self._lock:
            self._open[handle.key] = weakref.ref(handle)

    def open(self, opening: Callable[..., T], *arguments: Any) -> T:
        """Call a function that opens a descriptor; evict others first, and again if the system has none."""
        if len(self._open) >= self._last_limit:
            self._evict_excess()
        try:
            return opening(*arguments)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._evict(max(1, len(self._open) // 4)):
                raise
            return opening(*arguments)

    def acquire(self, handle: Reopenable) -> int:
        """Return the descriptor of a handle, which stays open until the caller removes one of its `pins`."""
        handle.pins.append(None)
        fd = handle.fd
        try:
            if fd >= 0:
                self._open.move_to_end(handle.key)
                return fd
        except KeyError:  # it is being closed: `_opened` raises the error
            pass
        try:
            return self._opened(handle)
        except BaseException:
            handle.pins.pop()
            raise

    def _opened(self, handle: Reopenable) -> int:
        """Return the descriptor of a handle that had none a moment ago."""
        with self._lock:
            return handle.fd if handle.fd >= 0 else self._reopen(handle)

    def _reopen(self, handle: Reopenable) -> int:
        fd = self.open(handle.reopen)
        self._open[handle.key] = weakref.ref(handle)  # before `acquire` finds the descriptor
        handle.fd = fd
        return fd

    def remove(self, handle: Reopenable) -> int:
        """Remove a handle that is being closed; return its descriptor, or -1."""
        with self._lock:
            self._open.pop(handle.key, None)
            fd, handle.fd = handle.fd, -1
            return fd

    def _evict_excess(self) -> None:
        limit = self._last_limit = self.limit  # one that is lowered later is noticed when it is reached
        excess = len(self._open) - limit + 1
        if excess > 0:  # a share of the limit together: finding idle descriptors visits all open ones
            self._evict(max(excess, limit // EVICTED_SHARE))

    def _by_last_use(self) -> list[tuple[int, weakref.ref[Reopenable]]]:
        """Return the open handles, the least recently used first.

        The garbage collector may run while they are copied, and close a handle: they are copied again.
        """
        while True:
            with suppress(RuntimeError):
                return list(self._open.items())

    def _evict(self, count: int) -> int:
        """Close up to `count` idle descriptors and return how many were closed."""
        with self._lock:
            closed = 0
            for synced_only in (True, False):
                for key, reference in self._by_last_use():
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
                    if handle.pins or handle.unsynced:  # since the look above: in use, or written to
                        handle.fd = fd
                        continue
                    self._open.pop(key, None)
                    with suppress(OSError):  # no data is lost: it was synced, or only read
                        os.close(fd)
                    closed += 1
            return closed


_instances: weakref.WeakSet[Descriptors] = weakref.WeakSet()


def _renew_locks_after_fork() -> None:
    for descriptors in list(_instances):
        descriptors._lock = threading.RLock()  # another thread may have held it when the process forked


os.register_at_fork(after_in_child=_renew_locks_after_fork)
