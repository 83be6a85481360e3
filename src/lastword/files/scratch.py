"""Memory that the system may write to a drive: a mapped file without a name."""

from __future__ import annotations

import mmap
import os
import re
from contextlib import suppress

from lastword.files.failures import translate

_NAME = "lastword-scratch-"
_NAMES = re.compile(rf"{_NAME}\d+-[0-9a-f]{{16}}")


def new_path(directory: str) -> str:
    """A name for a `Scratch` in a directory. What a process left there that was killed in the moment between
    making such a file and taking its name away is removed."""
    try:
        for name in os.listdir(directory):
            if _NAMES.fullmatch(name):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))
    except OSError as error:
        raise translate(error, directory, "list") from error
    return os.path.join(directory, f"{_NAME}{os.getpid()}-{os.urandom(8).hex()}")


class Scratch:
    """A file that is mapped into memory, and that nobody else can find: it is unlinked as soon as it is open,
    so a killed process leaves nothing behind.

    The drive's blocks are taken before they are used: a full drive is a DiskFullError of `grow`, not a signal
    at some later store. Nothing of it survives, so it is not part of what `Files` promises.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with suppress(FileNotFoundError):  # another process took it for a leftover: it is as good
                os.unlink(path)
        except OSError as error:
            raise translate(error, path, "open") from error

    def grow(self, size_bytes: int) -> mmap.mmap:
        """At least so many bytes, which begin with what was there. Maps given out before keep working on the
        same bytes.
        """
        try:
            os.posix_fallocate(self._fd, 0, size_bytes)
            return mmap.mmap(self._fd, size_bytes)
        except OSError as error:
            raise translate(error, self.path, "enlarge") from error

    def close(self) -> None:
        """Give the drive its room back once nothing is mapped any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
