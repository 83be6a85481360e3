"""System calls that not every system has, each with a way that needs none of them.

The call is chosen by what the modules of Python offer. Locks have a file of their own (lock.py). Where there
is no `sendfile`, a socket gets the bytes of a read (`Handle.send_to`). What only saves time, or names a
process in a message, is left out: `syncfs`, `sync_file_range`, /proc (drive.py, real.py, lock.py).

    call                    where it is absent
    F_FULLFSYNC (macOS)     `fdatasync` and `fsync`: Linux's wait for the drive's own cache, macOS's do not
    fdatasync               `fsync`
    posix_fallocate         zeros are written
    O_TMPFILE               a file is made and its name removed
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

_NO_FULL_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY})
"""A file system on a network, or of a user's process, refuses F_FULLFSYNC so, and has written nothing."""
_ZEROS = bytes(1 << 20)
SCRATCH_NAME = "lastword-scratch-"


def sync_content(fd: int) -> None:
    """Wait until the bytes and the size of a file are on its drive. Its times may not be."""
    _sync(fd, os.fdatasync if hasattr(os, "fdatasync") else os.fsync)


def sync(fd: int) -> None:
    """Wait until a file or directory is on its drive."""
    _sync(fd, os.fsync)


def _sync(fd: int, ordinary: Callable[[int], None]) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(fd, full)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    ordinary(fd)


def allocate(fd: int, size: int) -> None:
    """Enlarge a file to `size` bytes that have room on the drive. Its size so far was enlarged so, too."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    position = os.fstat(fd).st_size
    while position < size:
        position += os.pwrite(fd, _ZEROS[: size - position], position)


def open_nameless(directory: str) -> int:
    """Return the descriptor of a new file in a directory that has no name there when this returns."""
    flags = os.O_RDWR | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE"):
        return os.open(directory, os.O_TMPFILE | flags, 0o600)
    path = os.path.join(directory, scratch_name())
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    with suppress(FileNotFoundError):  # another process has removed it as a leftover (scratch.py)
        os.unlink(path)
    return fd


def scratch_name() -> str:
    """Return a new name for a file that loses its name as soon as it is open."""
    return f"{SCRATCH_NAME}{os.getpid()}-{os.urandom(8).hex()}"
