"""The operating system's files without waiting for the drive, for tests that open many directories."""

from __future__ import annotations

from typing import Any

from lastword.files import OsFiles
from lastword.files.real import OsHandle


class UnsyncedFiles(OsFiles):
    """Files whose syncs do nothing. A killed process loses nothing; a power cut may lose what was written."""

    def fsync_dir(self, path: Any) -> None:
        """Do nothing."""

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> OsHandle:
        """Open a file whose `fsync` does nothing."""
        handle = super().open_append(path, create=create, exclusive=exclusive)
        handle.fsync = lambda: None  # type: ignore[method-assign]
        handle.growth_slows_sync = False
        return handle


UNSYNCED = UnsyncedFiles()
