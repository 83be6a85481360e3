"""`HastyFiles`: real files without syncs, for tests that would do many.

`ForgetfulFiles` tests the guarantees of a sync. It can wrap `HastyFiles`, and keeps its own journal.
"""

from __future__ import annotations

from typing import Any

from lastword.files import Handle, OsFiles


def _nothing() -> None:
    return None


class HastyFiles(OsFiles):
    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Any:
        handle: Handle = super().open_append(path, create=create, exclusive=exclusive)
        handle.fsync = _nothing  # type: ignore[method-assign]
        return handle

    def fsync_dir(self, path: Any) -> None:
        return None
