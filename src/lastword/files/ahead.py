"""Linux's `sync_file_range`: a file's pages begin to go to the drive while more is written.

Called with SYNC_FILE_RANGE_WRITE alone, which starts and does not wait. That flag leaves the error state of
the file untouched: a page that could not be written is told to the `fsync` that follows, as without it. (The
waiting flags would take the error for themselves.) So nothing depends on this call, and its result is not
looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

_WRITE = 2


@cache
def _function() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    import ctypes

    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function


def start_writing(fd: int, position: int, size: int) -> None:
    """These bytes of the open file may go to the drive from now on. Never fails."""
    function = _function()
    if function is not None:
        function(fd, position, size, _WRITE)
