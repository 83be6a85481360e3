"""Scratch memory on a drive: a mapped file without a name."""

from __future__ import annotations

import mmap
import os
import re
from contextlib import suppress

from lastword.files.failures import translate

_NAME = "lastword-scratch-"
_NAMES = re.compile(rf"{_NAME}\d+-[0-9a-f]{{16}}")


def new_path(directory: str) -> str:
    """Return a new path for a `Scratch` in a directory, and remove leftovers there.

    A leftover is a file of a process that was killed between making the file and unlinking it.
    """
    try:
        for name in os.listdir(directory):
            if _NAMES.fullmatch(name):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))
    except OSError as error:
        raise translate(error, directory, "list") from error
    return os.path.join(directory, f"{_NAME}{os.getpid()}-{os.urandom(8).hex()}")


class Scratch:
    """A mapped file without a name: it is unlinked when it is opened, so a killed process leaves nothing.

    `grow` allocates the drive's blocks before they are used: a full drive raises DiskFullError there, not a
    signal at a later store. The content does not survive a restart, so `Files` is not involved.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with suppress(FileNotFoundError):  # another process has removed it as a leftover
                os.unlink(path)
        except OSError as error:
            raise translate(error, path, "open") from error

    def grow(self, size_bytes: int) -> mmap.mmap:
        """Map at least `size_bytes` bytes; the existing content is kept. Earlier maps stay valid and show the
        same bytes."""
        try:
            os.posix_fallocate(self._fd, 0, size_bytes)
            return mmap.mmap(self._fd, size_bytes)
        except OSError as error:
            raise translate(error, self.path, "enlarge") from error

    def close(self) -> None:
        """Free the room on the drive when the last map is gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
