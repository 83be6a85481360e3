"""`Scratch`: a file on a drive as memory, which is gone with its process."""

from __future__ import annotations

import mmap
import os
import re
from contextlib import suppress

from lastword.files.failures import translating
from lastword.files.interface import Buffer
from lastword.files.system import SCRATCH_NAME, allocate, open_nameless, scratch_name

_NAMES = re.compile(rf"{SCRATCH_NAME}\d+-[0-9a-f]{{16}}")


def new_path(directory: str) -> str:
    """Return a new path for a `Scratch` in a directory, and remove leftovers there.

    A leftover is a file of a process that was killed between making the file and unlinking it.
    """
    with translating(directory, "list"):
        for name in os.listdir(directory):
            if _NAMES.fullmatch(name):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))
    return os.path.join(directory, scratch_name())


class Scratch:
    """A file without a name, mapped or read: it is unlinked when it is opened, so a kill leaves nothing.

    `grow` allocates the drive's blocks before they are used: a full drive raises DiskFullError there, not a
    signal at a later store. The content does not survive a restart, so `Files` is not involved.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        with translating(path, "open"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with suppress(FileNotFoundError):  # another process has removed it as a leftover
                os.unlink(path)

    def grow(self, size_bytes: int) -> mmap.mmap:
        """Map at least `size_bytes` bytes; the existing content is kept.

        Earlier maps stay valid and show the same bytes.
        """
        with translating(self.path, "enlarge"):
            allocate(self._fd, size_bytes)
            return mmap.mmap(self._fd, size_bytes)

    @classmethod
    def without_name(cls, directory: str) -> Scratch:
        """Return an empty file in `directory` that never has a name there."""
        scratch = cls.__new__(cls)
        scratch.path, scratch._fd = f"{directory}/(scratch file without a name)", -1
        with translating(scratch.path, "open"):
            scratch._fd = open_nameless(directory)
        return scratch

    def append(self, data: Buffer) -> int:
        """Write all of `data` at the end of the file; return its position."""
        view = memoryview(data).cast("B")
        position, done = self.size(), 0
        with translating(self.path, "write"):
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], position + done)
        return position

    def pread(self, n: int, position: int) -> bytes:
        """Read `n` bytes from `position`; fewer only at the end of the file."""
        data = bytearray(n)
        return bytes(data[: self.pread_into(data, position)])

    def pread_into(self, buffer: Buffer, position: int) -> int:
        """Fill a buffer from `position`; return the bytes read: fewer only at the end of the file."""
        view, done = memoryview(buffer).cast("B"), 0
        with translating(self.path, "read"):
            while done < len(view):
                count = os.preadv(self._fd, [view[done:]], position + done)
                if not count:
                    break
                done += count
        return done

    def will_read(self, start: int, end: int) -> None:
        """As `Handle.will_read`: do nothing."""

    def size(self) -> int:
        """Return the size of the file."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Free the room on the drive when the last map is gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
