"""`RecordingFiles`: list every call on the storage; stop or fail at the n-th change.

    files = RecordingFiles(OsFiles(), stop_at=7)
    with pytest.raises(Stopped):
        work(files)                   # six changes are done; the seventh and all later ones are not

A change is any call that could leave a trace after a crash: creating, writing, truncating, syncing, renaming,
removing. `Stopped` is no `Exception`, so that no handler of the code under test continues after it; a later
call raises it again. The stop frees the locks that were taken here, as the system does for a killed process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from lastword.errors import LastwordError
from lastword.files import DirVersion, FileFacts, FileLock, Files, Handle

T = TypeVar("T")


class Call(NamedTuple):
    name: str  # name of the method: "append", "fsync", "rename", ...
    path: str
    detail: Any = None  # bytes written, target of a rename, size of a truncation
    changes: bool = True


class Stopped(BaseException):
    """The process has stopped."""


class RecordingFiles(Files):
    """Wrapper of another `Files` that records calls.

    `calls` lists all calls, `changes` only those that leave a trace; `stopped` is set after the stop.
    `stop_at`: number, from 0, of the change before which everything stops; with `torn`, half of its bytes are
    still written if it is an append. `fail`: called before each call; if it returns an error, that error is
    raised instead of the call.
    """

    def __init__(
        self,
        inner: Files,
        *,
        stop_at: int | None = None,
        torn: bool = False,
        fail: Callable[[Call], LastwordError | None] | None = None,
    ) -> None:
        self.inner = inner
        self.calls: list[Call] = []
        self.stop_at = stop_at
        self.torn = torn
        self.fail = fail
        self.stopped = False
        self._changes = 0
        self._locks: list[FileLock] = []
        self._mutex = threading.RLock()

    @property
    def changes(self) -> list[Call]:
        return [call for call in self.calls if call.changes]

    def count(self, name: str) -> int:
        return sum(call.name == name for call in self.calls)

    def stop(self) -> None:
        """Stop as a killed process: every later call fails, locks are freed."""
        self.stopped = True
        for lock in self._locks:
            lock.release()

    def do(self, call: Call, action: Callable[[], T], half: Callable[[], Any] | None = None) -> T:
        with self._mutex:
            if self.stopped:
                raise Stopped(call)
            if call.changes:
                if self._changes == self.stop_at:
                    if self.torn and half is not None:
                        half()
                    self.stop()
                    raise Stopped(call)
                self._changes += 1
            self.calls.append(call)
            error = self.fail(call) if self.fail else None
        if error is not None:
            raise error
        return action()

    # ---- reads

    def open_read(self, path: Any) -> Handle:
        call = Call("open_read", str(path), changes=False)
        return RecordingHandle(self, self.do(call, lambda: self.inner.open_read(path)))

    def listdir(self, path: Any) -> list[str]:
        return self.do(Call("listdir", str(path), changes=False), lambda: self.inner.listdir(path))

    def dir_version(self, path: Any) -> DirVersion | None:
        call = Call("dir_version", str(path), changes=False)
        return self.do(call, lambda: self.inner.dir_version(path))

    def stat(self, path: Any) -> FileFacts | None:
        return self.do(Call("stat", str(path), changes=False), lambda: self.inner.stat(path))

    def is_dir(self, path: Any) -> bool:
        return self.do(Call("is_dir", str(path), changes=False), lambda: self.inner.is_dir(path))

    def free_bytes(self, path: Any) -> int:
        return self.do(Call("free_bytes", str(path), changes=False), lambda: self.inner.free_bytes(path))

    def guard(self, root: Any) -> None:
        return self.do(Call("guard", str(root), changes=False), lambda: self.inner.guard(root))

    def offline(self, path: Any) -> LastwordError | None:
        return self.do(Call("offline", str(path), changes=False), lambda: self.inner.offline(path))

    # ---- changes

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        creates = (create or exclusive) and self.inner.stat(path) is None
        call = Call("create" if creates else "open_append", str(path), changes=creates)
        opened = self.do(call, lambda: self.inner.open_append(path, create=create, exclusive=exclusive))
        return RecordingHandle(self, opened)

    def mkdir(self, path: Any) -> None:
        self.do(Call("mkdir", str(path)), lambda: self.inner.mkdir(path))

    def rmdir(self, path: Any) -> None:
        self.do(Call("rmdir", str(path)), lambda: self.inner.rmdir(path))

    def rename(self, source: Any, target: Any) -> None:
        self.do(Call("rename", str(source), str(target)), lambda: self.inner.rename(source, target))

    def link(self, source: Any, target: Any) -> None:
        self.do(Call("link", str(target), str(source)), lambda: self.inner.link(source, target))

    def unlink(self, path: Any, missing_ok: bool = False) -> None:
        there = self.inner.stat(path) is not None
        call = Call("unlink", str(path), changes=there)
        self.do(call, lambda: self.inner.unlink(path, missing_ok=missing_ok))

    def fsync_dir(self, path: Any) -> None:
        self.do(Call("fsync_dir", str(path)), lambda: self.inner.fsync_dir(path))

    def truncate(self, path: Any, size: int) -> None:
        self.do(Call("truncate", str(path), size), lambda: self.inner.truncate(path, size))

    def set_mtime(self, path: Any, ms: int) -> None:
        self.do(Call("set_mtime", str(path), ms), lambda: self.inner.set_mtime(path, ms))

    def lock(self, path: Any) -> FileLock:
        creates = self.inner.stat(path) is None
        lock = self.do(Call("lock", str(path), changes=creates), lambda: self.inner.lock(path))
        self._locks.append(lock)
        return lock


class RecordingHandle(Handle):
    def __init__(self, files: RecordingFiles, inner: Handle) -> None:
        self._files = files
        self._inner = inner
        self.path = inner.path
        self.growth_slows_sync = inner.growth_slows_sync

    def may_shrink_to(self, size: int) -> None:
        self._inner.may_shrink_to(size)

    def pread(self, n: int, position: int) -> bytes:
        call = Call("pread", self.path, (n, position), changes=False)
        return self._files.do(call, lambda: self._inner.pread(n, position))

    def pread_into(self, buffer: Any, position: int) -> int:
        call = Call("pread_into", self.path, (memoryview(buffer).nbytes, position), changes=False)
        return self._files.do(call, lambda: self._inner.pread_into(buffer, position))

    def append(self, data: Any) -> int:
        raw = memoryview(data).cast("B")
        return self._files.do(
            Call("append", self.path, bytes(raw)),
            lambda: self._inner.append(data),
            lambda: self._inner.append(raw[: len(raw) // 2]),
        )

    def pwrite(self, data: Any, position: int) -> None:
        raw = memoryview(data).cast("B")
        self._files.do(
            Call("pwrite", self.path, (bytes(raw), position)),
            lambda: self._inner.pwrite(data, position),
            lambda: self._inner.pwrite(raw[: len(raw) // 2], position),
        )

    def truncate(self, size: int) -> None:
        self._files.do(Call("truncate", self.path, size), lambda: self._inner.truncate(size))

    def fsync(self) -> None:
        self._files.do(Call("fsync", self.path), self._inner.fsync)

    def stat(self) -> FileFacts:
        return self._files.do(Call("stat", self.path, changes=False), self._inner.stat)

    def close(self) -> None:
        self._inner.close()  # the system closes the files of a dead process
