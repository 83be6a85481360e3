"""Files and segments that pay for every byte: what a cleaning reads and writes through them comes out of its
drive's budget, piece by piece, where it is read and written.

So a budget holds whatever the size of a chunk is, for map pass, rewrite and certificate alike, and a round
that sleeps for its budget can be stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lastword.cleaner.budget import DriveBudget
from lastword.errors import LastwordError
from lastword.files import FileFacts, FileLock, Files, Handle
from lastword.segment.segment import Segment


class PacedFiles(Files):
    """`files`, with reads and writes taken from `budget`. `stop` is asked while it sleeps: `Stopped`."""

    def __init__(self, files: Files, budget: DriveBudget, stop: Callable[[], bool] | None = None) -> None:
        self._files = files
        self._budget = budget
        self._stop = stop

    def segments(self, segments: Sequence[Segment]) -> list[Segment]:
        """The same segments, read through here."""
        return [
            segment.read_through(self, self.paced(segment.handle) if segment.size else None)
            for segment in segments
        ]

    def paced(self, handle: Handle) -> Handle:
        return PacedHandle(handle, self._budget, self._stop)

    def open_read(self, path: Any) -> Handle:
        return self.paced(self._files.open_read(path))

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        return self.paced(self._files.open_append(path, create=create, exclusive=exclusive))

    # ---- the rest moves no bytes

    def listdir(self, path: Any) -> list[str]:
        return self._files.listdir(path)

    def stat(self, path: Any) -> FileFacts | None:
        return self._files.stat(path)

    def is_dir(self, path: Any) -> bool:
        return self._files.is_dir(path)

    def mkdir(self, path: Any) -> None:
        self._files.mkdir(path)

    def rmdir(self, path: Any) -> None:
        self._files.rmdir(path)

    def rename(self, source: Any, target: Any) -> None:
        self._files.rename(source, target)

    def unlink(self, path: Any, missing_ok: bool = False) -> None:
        self._files.unlink(path, missing_ok=missing_ok)

    def fsync_dir(self, path: Any) -> None:
        self._files.fsync_dir(path)

    def truncate(self, path: Any, size: int) -> None:
        self._files.truncate(path, size)

    def set_mtime(self, path: Any, ms: int) -> None:
        self._files.set_mtime(path, ms)

    def lock(self, path: Any) -> FileLock:
        return self._files.lock(path)

    def free_bytes(self, path: Any) -> int:
        return self._files.free_bytes(path)

    def guard(self, root: Any) -> None:
        self._files.guard(root)

    def offline(self, path: Any) -> LastwordError | None:
        return self._files.offline(path)

    def check_owner(self, directory: Any) -> None:
        self._files.check_owner(directory)

    def device(self, path: Any) -> int:
        return self._files.device(path)


class PacedHandle(Handle):
    """One file. A large write is several small ones: what fails in its middle leaves a part behind, which is
    right for files that nobody reads before they are complete, and for no others."""

    def __init__(self, handle: Handle, budget: DriveBudget, stop: Callable[[], bool] | None) -> None:
        self.path = handle.path
        self._handle = handle
        self._budget = budget
        self._stop = stop

    def pread(self, n: int, position: int) -> bytes:
        buffer = bytearray(max(0, min(n, self._handle.size() - position)))
        return bytes(buffer[: self.pread_into(buffer, position)])

    def pread_into(self, buffer: Any, position: int) -> int:
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            piece = view[done : done + self._budget.piece_bytes]
            self._budget.take(len(piece), self._stop)
            got = self._handle.pread_into(piece, position + done)
            done += got
            if got < len(piece):
                break
        return done

    def append(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        begin, done = self._handle.size(), 0
        while done < len(view):
            piece = view[done : done + self._budget.piece_bytes]
            self._budget.take(len(piece), self._stop)
            at = self._handle.append(piece)
            if done == 0:
                begin = at
            done += len(piece)
        return begin

    def pwrite(self, data: Any, position: int) -> None:
        self._budget.take(memoryview(data).nbytes, self._stop)
        self._handle.pwrite(data, position)

    def truncate(self, size: int) -> None:
        self._handle.truncate(size)

    def fsync(self) -> None:
        self._handle.fsync()

    def stat(self) -> FileFacts:
        return self._handle.stat()

    def close(self) -> None:
        self._handle.close()
