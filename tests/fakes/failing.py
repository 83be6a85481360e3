"""Let the n-th call of a kind fail: full drive, bad drive, read-only drive, no handles left.

    for failing in every_failure(UNSYNCED, kind):      # until the n-th call is no longer reached
        work(failing.files)

Each kind names the calls that can fail, and makes the error that `OsFiles` raises.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from lastword.errors import DiskFullError, LastwordError, NotPermittedError, StorageError, SyncFailedError
from lastword.files import Files
from tests.fakes.recording import Call, RecordingFiles

WRITES = frozenset({"append", "pwrite", "create", "mkdir", "rename", "truncate"})
CHANGES = WRITES | {"unlink", "rmdir", "set_mtime", "open_append"}


def _full(call: Call) -> LastwordError:
    return DiskFullError(f"cannot write {call.path}: No space left on device", file=call.path)


def _bad(call: Call) -> LastwordError:
    return StorageError(
        f"cannot {call.name} {call.path}: Input/output error", file=call.path, errno=errno.EIO
    )


def _sync(call: Call) -> LastwordError:
    return SyncFailedError.of(call.path, "EIO", call.path, errno.EIO)


def _read_only(call: Call) -> LastwordError:
    return NotPermittedError(
        f"cannot {call.name} {call.path}: Read-only file system", file=call.path, errno=errno.EROFS
    )


def _no_handles(call: Call) -> LastwordError:
    return StorageError(f"cannot open {call.path}: Too many open files", file=call.path, errno=errno.EMFILE)


KINDS: dict[str, tuple[frozenset[str], Callable[[Call], LastwordError]]] = {
    "ENOSPC": (WRITES, _full),
    "EIO": (CHANGES | {"pread", "pread_into", "open_read", "listdir"}, _bad),
    "EIO on fsync": (frozenset({"fsync", "fsync_dir"}), _sync),
    "EROFS": (CHANGES, _read_only),
    "EMFILE": (frozenset({"open_read", "open_append", "create", "listdir", "fsync_dir"}), _no_handles),
}


class FailingFiles(RecordingFiles):
    """`Files` whose `number`-th call of a kind fails, counted from `arm`; with `sticky` all later calls too.

    After a failed sync, every change of its directory is refused, as in `OsFiles`.
    """

    def __init__(self, inner: Files, kind: str, number: int, *, sticky: bool = False) -> None:
        super().__init__(inner, fail=self._fails)
        self._names, self._make = KINDS[kind]
        self._number = number
        self._sticky = sticky
        self._count = -1
        self.hit = False
        self._offline: LastwordError | None = None

    def arm(self) -> None:
        self._count = 0

    def disarm(self) -> None:
        self._count = -1
        self._offline = None

    def _fails(self, call: Call) -> LastwordError | None:
        if self._count < 0:
            return None
        if self._offline is not None and call.changes:
            return self._offline
        if call.name not in self._names:
            return None
        self._count += 1
        if self._count - 1 == self._number or (self._sticky and self.hit):
            self.hit = True
            error = self._make(call)
            if isinstance(error, SyncFailedError):
                self._offline = error
            return error
        return None

    def offline(self, path: Any) -> Any:
        return self._offline or super().offline(path)
