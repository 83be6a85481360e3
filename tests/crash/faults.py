"""Make the n-th system call of storage fail, for every n: once, or from then on.

`FaultyOs` replaces the `os` module under `lastword.files`, so everything above it is product code: the
classification of errors, the cleanup, the drives taken offline. A short write is real: half of the bytes are
written, and the rest meets a full drive. So is an interrupt: Python raises KeyboardInterrupt when the system
call that runs during the signal has returned.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lastword.files import descriptors, failures, owner, real, scratch, system

INTERRUPT = -1
"""In place of an error number: the call succeeds, and KeyboardInterrupt is raised."""
CALLS = {
    "open": (errno.EMFILE, errno.EACCES, errno.EIO, errno.ENOSPC),
    "pread": (errno.EIO,),
    "preadv": (errno.EIO,),
    "pwrite": (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, 0),
    "ftruncate": (errno.EIO,),
    "fsync": (errno.EIO, errno.ENOSPC),
    "fdatasync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS),
    "unlink": (errno.EIO, errno.EACCES),
    "mkdir": (errno.ENOSPC, errno.EACCES),
    "rmdir": (errno.EIO,),
    "listdir": (errno.EIO, errno.EMFILE),
    "stat": (errno.EIO,),
    "utime": (errno.EACCES,),
}
"""The calls that may fail, with the error numbers. 0: a short write."""


class FaultyOs:
    """The `os` module with a counter.

    `fail_at` is the number of the call that fails, counted over the calls in `only`; None: no call fails.
    `sticky`: all later calls of the same name fail, too.
    """

    def __init__(self, only: str = "", code: int = 0, *, sticky: bool = False) -> None:
        self.only = only
        self.code = code
        self.sticky = sticky
        self.fail_at: int | None = None
        self.counts = dict.fromkeys(CALLS, 0)
        self.failed = 0
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in CALLS:
            return function

        def call(*args: Any, **more: Any) -> Any:
            if not self.armed:
                return function(*args, **more)
            number = self.counts[name]
            self.counts[name] += 1
            hit = name == self.only and self.fail_at is not None
            if hit and (number == self.fail_at or (self.sticky and number > (self.fail_at or 0))):
                self.failed += 1
                if self.code == INTERRUPT:
                    function(*args, **more)
                    raise KeyboardInterrupt
                if self.code == 0 and name == "pwrite":
                    return self._short(number, *args)
                raise OSError(self.code or errno.ENOSPC, os.strerror(self.code or errno.ENOSPC))
            return function(*args, **more)

        return call

    def _short(self, number: int, fd: int, data: Any, position: int) -> int:
        view = memoryview(data).cast("B")
        if self.failed > 1 or len(view) < 2:  # there is no room for the rest
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not self.sticky:
            self.fail_at = number + 1
        return os.pwrite(fd, view[: len(view) // 2], position)


MODULES = (real, descriptors, failures, owner, scratch, system)


@contextmanager
def planted(faulty: FaultyOs) -> Iterator[FaultyOs]:
    before = real.os
    for module in MODULES:
        module.os = faulty  # type: ignore[attr-defined]
    try:
        yield faulty
    finally:
        for module in MODULES:
            module.os = before  # type: ignore[attr-defined]
