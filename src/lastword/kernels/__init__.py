"""Loops over arrays: everything that is done once for each record, compiled by Numba.

Stands on NumPy, Numba, llvmlite and the constants of `lastword.wire`. A kernel takes arrays and integers
and gives back a status, never an exception: the callers in `records` and `resolve` turn statuses into errors
that name the file. Start reading at `table.py` (one row a batch: what every kernel walks), then `batches.py`,
`columns.py`, `piece.py`, `offset_map.py`.

Rules that make unchecked loads safe:

- A buffer that is read by a kernel has at least `SLACK` bytes after the last byte that counts; each kernel
  checks that itself.
- A length is compared with what is left (`n < 0 or n > end - position`) before it is used.
- With `NUMBA_BOUNDSCHECK=1` the raw loads of `memory.py` check every access as Numba checks an index.

Compiled code is kept in a folder named by a digest of these sources, so an edit is never served stale code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event as _event

from lastword.kernels.cache import cache_folder

# Statuses. OK: everything done. MORE: the input ends inside a batch. FULL: an output or the map has no
# room; call again with more.
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
"""Bytes that must exist after the end of any buffer a kernel reads or writes: wide loads may touch them,
results never do.
"""


COMPILING = "compiling kernels (once; some 10 s)"
log = logging.getLogger(__name__)
"""Gets `COMPILING` at level INFO before the first kernel that a process compiles: a cold start is slow."""


class _FirstCompilation(_event.Listener):
    """Log the first kernel of ours that is compiled. Loading one from the cache folder is no event."""

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
    # No counting of references: kernels allocate nothing, and their callers hold the arrays. Numba leaves
    # some of it in inner loops, at several atomic operations a record.
    "_nrt": False,
}


def _decorate(function: Callable[..., Any], **options: Any) -> Any:
    # Numba reads CACHE_DIR while it decorates; put back, other users of Numba in this process keep their
    # own folder.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder())
    try:
        return numba.njit(cache=True, **_OPTIONS, **options)(function)
    finally:
        numba.config.CACHE_DIR = before


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on first call: no GIL held, no exceptions, kept in the cache folder."""
    return _decorate(function)


def inline(function: Callable[..., Any]) -> Any:
    """A step of a kernel, put into its callers by LLVM; not callable from Python."""
    return numba.njit(forceinline=True, no_cpython_wrapper=True, **_OPTIONS)(function)
