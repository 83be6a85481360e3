"""The operating system's files without waiting for the drive, for checks that open many directories."""

from __future__ import annotations

from typing import Any

from lastword.files import Handle, OsFiles


class UnsyncedFiles(OsFiles):
    def fsync_dir(self, path: Any) -> None:
        pass

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        handle = super().open_append(path, create=create, exclusive=exclusive)
        handle.fsync = lambda: None  # type: ignore[method-assign]
        return handle


UNSYNCED = UnsyncedFiles()
