"""Loops over arrays: everything that is done once for each record, compiled by Numba.

The package imports NumPy, Numba, llvmlite and the constants of `lastword.wire`. A kernel takes arrays and
integers and returns a status. It raises no exception: the callers in `records` and `resolve` turn statuses
into errors that name the file. Start reading at `table.py` (a row for each batch, which every kernel reads),
then `batches.py`, `columns.py`, `key_batch.py`, `offset_map.py`.

Rules that make unchecked loads safe:

- A buffer that a kernel reads has at least `SLACK` bytes after its last valid byte. Each kernel checks this.
- A length is compared with the bytes that are left (`n < 0 or n > end - position`) before it is used.
- With `NUMBA_BOUNDSCHECK=1` the raw loads of `memory.py` check every access as Numba checks an index.

Compiled code is kept in a folder named by a digest of these sources, so stale code is never loaded.
`warming.warm` compiles every kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event as _event

from lastword.kernels.cache import cache_folder

# Statuses. OK: all is done. MORE: the input ends inside a batch. FULL: an output or the map has no room;
# call again with more.
OK = 0
MORE = 1
FULL = 2
NEED_PAGES = 3
BAD_LENGTH = 4
BAD_MAGIC = 5
BAD_CRC = 6
BAD_OFFSET = 7
BAD_COUNT = 8
BAD_RECORD = 9
NO_SLACK = 10

STATUS_TEXT = {
    BAD_LENGTH: "impossible length",
    BAD_MAGIC: "unknown magic",
    BAD_CRC: "checksum mismatch",
    BAD_OFFSET: "offsets do not increase",
    BAD_COUNT: "impossible record count",
    BAD_RECORD: "malformed record",
    NO_SLACK: "buffer without slack",
}

SLACK = 64
"""Bytes that must follow the end of any buffer that a kernel reads or writes.

Wide loads and stores may touch them. They never change a result.
"""


COMPILING = "compiling kernels (once; some 10 s)"
log = logging.getLogger(__name__)
"""Gets `COMPILING` at level INFO before the first kernel that a process compiles."""


class _FirstCompilation(_event.Listener):
    """Log the first compilation of a kernel of this package. A load from the cache folder is no event."""

    def on_start(self, event: Any) -> None:
        function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
        if getattr(function, "__module__", "").startswith(__name__):
            _event.unregister("numba:compile", self)
            log.info(COMPILING)

    def on_end(self, event: Any) -> None:
        pass


_event.register("numba:compile", _FirstCompilation())


_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    # No reference counting: kernels allocate nothing, and their callers hold the arrays. Numba would leave
    # some counting in inner loops, at several atomic operations a record.
    "_nrt": False,
}


def _decorate(function: Callable[..., Any], **options: Any) -> Any:
    # Numba reads CACHE_DIR while it decorates. It is restored, so that other users of Numba in this process
    # keep their own folder.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder())
    try:
        return numba.njit(cache=True, **_OPTIONS, **options)(function)
    finally:
        numba.config.CACHE_DIR = before


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on its first call: without the GIL, without exceptions, kept in the cache folder."""
    return _decorate(function)


def inline(function: Callable[..., Any]) -> Any:
    """Mark a step that LLVM puts into the kernels that use it; Python cannot call it."""
    return numba.njit(forceinline=True, no_cpython_wrapper=True, **_OPTIONS)(function)
