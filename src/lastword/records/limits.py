"""The bound on what the records of one batch take when decompressed: `lastword.decompression.max.bytes`.

It belongs to a log directory. Readers know the path of a file and no settings, so the bound is
registered with the directory and looked up by the file's path, as failures of a drive are (`files.real`).
"""

from __future__ import annotations

import os
import threading

from lastword.parse import parse_bytes

SETTING = "lastword.decompression.max.bytes"
VARIABLE = "LASTWORD_DECOMPRESSION_MAX_BYTES"
DEFAULT_BYTES = 256 << 20
"""256 times Kafka's default bound of a batch on disk (`max.message.bytes`, 1 MiB): no log of text or JSON
comes near it, and a process with 1 GiB of memory can still read such a batch."""

_MOST_REMEMBERED = 10_000  # directories

_by_root: dict[str, int] = {}
_by_directory: dict[str, int | None] = {}
"""As directories are spelled: resolving links costs a system call for each level."""
_lock = threading.Lock()


def register(root: str | os.PathLike[str], limit_bytes: int) -> None:
    """Set the bound of all files below a log directory, for this process."""
    with _lock:
        _by_root[os.path.realpath(root)] = limit_bytes
        _by_directory.clear()


def limit_of(file: str) -> int:
    """Return the bound for a file: of its log directory, else of the environment, else the default."""
    limit = _of_directory(os.path.dirname(file)) if _by_root and file else None
    if limit is not None:
        return limit
    text = os.environ.get(VARIABLE)
    return parse_bytes(text) if text else DEFAULT_BYTES


def _of_directory(directory: str) -> int | None:
    if directory in _by_directory:
        return _by_directory[directory]
    at = os.path.realpath(directory)
    while (limit := _by_root.get(at)) is None and at != os.path.dirname(at):
        at = os.path.dirname(at)
    with _lock:
        if directory.startswith(os.sep):  # a relative one changes its meaning with the working directory
            if len(_by_directory) >= _MOST_REMEMBERED:
                _by_directory.clear()
            _by_directory[directory] = limit
    return limit


def remedy(file: str | None) -> str:
    """How to raise the bound for the batch of a file."""
    if not file:
        return f"if the batch is genuine, raise {SETTING}"
    root = os.path.dirname(os.path.dirname(file)) or "."
    return (
        f"if the batch is genuine, and there is memory for three times its size, raise the bound: "
        f"`lastword config {root} --set {SETTING}=1GiB`, or {VARIABLE}=1GiB for one command"
    )
