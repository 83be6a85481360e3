"""Take the calls away that only Linux has, if LASTWORD_PORTABLE is set.

Python imports a module of this name at its start: it is on the path of every process that tests start.
tests/conftest.py takes the calls away from pytest itself.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from typing import Any

TAKEN: dict[Any, tuple[str, ...]] = {
    os: (
        "copy_file_range",
        "eventfd",
        "fdatasync",
        "memfd_create",
        "pidfd_open",
        "posix_fadvise",
        "posix_fallocate",
        "sched_getaffinity",
        "sched_setaffinity",
        "sendfile",  # macOS has one, but not every system
        "splice",
        "O_DIRECT",
        "O_NOATIME",
        "O_PATH",
        "O_TMPFILE",
    ),
    fcntl: ("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_SETLEASE", "F_SETPIPE_SZ"),
    signal: ("sigtimedwait", "sigwaitinfo"),
}
FUNCTIONS = frozenset({"fallocate", "memfd_create", "renameat2", "sync_file_range", "syncfs"})
"""Functions of the C library."""

MADE = ((shutil, "_USE_CP_SENDFILE"), (shutil, "_USE_CP_COPY_FILE_RANGE"), (tempfile, "_O_TMPFILE_WORKS"))
"""Choices that Python made when it imported a module."""


def take_away() -> None:
    """Remove the calls from the modules of Python, and hide /proc from the package."""
    for module, names in TAKEN.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for module, name in MADE:
        if hasattr(module, name):
            setattr(module, name, False)
    find, opened = ctypes.CDLL.__getattr__, builtins.open

    def function(self: ctypes.CDLL, name: str) -> Any:
        if name in FUNCTIONS:
            raise AttributeError(name)
        return find(self, name)

    def open_file(file: Any, *arguments: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(file, str) and file.startswith("/proc/") and caller.startswith("lastword"):
            raise FileNotFoundError(2, "No such file or directory", file)
        return opened(file, *arguments, **options)

    ctypes.CDLL.__getattr__ = function  # type: ignore[method-assign]
    builtins.open = open_file


if __name__ == "sitecustomize" and os.environ.get("LASTWORD_PORTABLE"):
    take_away()
