"""`<partition>/lastword/moved-from`: which directory a copy came from, and how long the log was then.

Framed JSON. `log_end` is -1 while the copy is not complete. The directory is named by its id, so that it
is known again when it is mounted elsewhere; by its path if it has none. See `logdir.move`.
"""

from __future__ import annotations

import os
from contextlib import suppress

from lastword.errors import LastwordError
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.logdir.identity import read_directory_id
from lastword.segment import names

NOTE = Framed(
    "moved-from",
    1,
    "bad-note",
    "if the partition lies in one directory only, remove the file; if it lies in two, keep the newer one",
)


def directory_name(files: Files, root: str) -> str:
    """What a note calls a log directory."""
    return read_directory_id(files, root) or os.path.realpath(root)


def write_note(files: Files, directory: str, source: str, log_end: int) -> None:
    NOTE.save(files, _path(directory), {"source": source, "log_end": log_end})


def read_note(files: Files, directory: str) -> tuple[str, int] | None:
    """(name of the source directory as `directory_name` gives it, log end), or None."""
    try:
        fields = NOTE.load(files, _path(directory))
        return None if fields is None else (str(fields["source"]), int(fields["log_end"]))
    except (LastwordError, ValueError, KeyError, TypeError):
        return None


def remove_note(files: Files, directory: str) -> None:
    with suppress(LastwordError):  # it stays right as long as the source is gone
        files.unlink(_path(directory), missing_ok=True)


def _path(directory: str) -> str:
    return os.path.join(directory, names.PRIVATE, names.MOVED_FROM)
