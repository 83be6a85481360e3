"""Loops over arrays: everything that is done once for each record, compiled by Numba.

The package imports NumPy, Numba, llvmlite and the constants of `lastword.wire`. A kernel takes arrays and
integers and returns a status. It raises no exception: the callers in `records` and `resolve` turn statuses
into errors that name the file. Start reading at `table.py` (a row for each batch, which every kernel reads),
then `batches.py`, `columns.py`, `key_batch.py`, `offset_map.py`.

Rules that make unchecked loads safe:

- A buffer that a kernel reads has at least `SLACK` bytes after its last valid byte. Each kernel checks this.
- A length is compared with the bytes that are left (`n < 0 or n > end - position`) before it is used.
- With `NUMBA_BOUNDSCHECK=1` the raw loads of `memory.py` check every access as Numba checks an index.

Compiled code is kept in a private folder named by a digest of these sources, so stale code is never loaded.
`warming.warm` compiles every kernel.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy
from numba.core import event as _event

# Statuses. OK: all is done. MORE: the input ends inside a batch. FULL: an output or the map has no room;
# call again with more.
OK = 0
MORE = 1
FULL = 2
BAD_LENGTH = 3
BAD_MAGIC = 4
BAD_CRC = 5
BAD_OFFSET = 6
BAD_COUNT = 7
BAD_RECORD = 8
NO_SLACK = 9

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


COMPILING = "compiling kernels for their first use (all: about 15 s, by `lastword warm`)"
log = logging.getLogger(__name__)
"""Gets `COMPILING` as a warning before the first kernel that a process compiles: otherwise a first cleaning
would seem to hang. Without a configured log, Python prints warnings on stderr."""


class _FirstCompilation(_event.Listener):
    """Log the first compilation of a kernel of this package. A load from the cache folder is no event."""

    def on_start(self, event: Any) -> None:
        function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
        if getattr(function, "__module__", "").startswith(__name__):
            _event.unregister("numba:compile", self)
            log.warning(COMPILING)

    def on_end(self, event: Any) -> None:
        pass


_event.register("numba:compile", _FirstCompilation())


# ---------------------------------------------------------------- the folder of compiled kernels


def kernel_sources() -> list[Path]:
    """List the files that compiled code depends on: this package, and the constants of `lastword.wire`."""
    package = Path(__file__).parent
    return [*sorted(package.glob("*.py")), package.parent / "wire.py"]


@functools.cache
def sources_digest() -> str:
    """Return 16 hex digits over every compiled source file and the versions of the compilers.

    Numba's own cache checks only the file of the function that is called, so it would miss an edit of a step
    that the function uses.
    """
    digest = hashlib.blake2b(digest_size=8)
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__, numpy.__version__)
    digest.update(repr((versions, bool(numba.config.BOUNDSCHECK))).encode())
    for path in kernel_sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _private_folder(path: Path) -> bool:
    """Create `path` and check that only this user can write to it or replace it.

    The cache holds pickles: another user who writes them could run code as this user.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
        ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
        return ours and os.access(path, os.W_OK | os.X_OK) and not _replaceable(path)
    except OSError:
        return False


def _replaceable(path: Path) -> bool:
    """Return whether another user can rename a directory on the way to `path`.

    The owner of a directory can, and anyone who may write to a directory that is not sticky. The user's own
    group is trusted.
    """
    for above in path.resolve().parents:
        facts = above.stat()
        if facts.st_uid not in (0, os.getuid()):
            return True
        foreign = 0o002 if facts.st_gid in (0, os.getgid()) else 0o022
        if facts.st_mode & foreign and not facts.st_mode & stat.S_ISVTX:
            return True
    return False


@functools.cache
def cache_folder() -> Path:
    """Return the folder for compiled kernels; create it if it is missing.

    It is below `LASTWORD_CACHE_DIR`, else the user's cache directory, else a folder of this user in the
    temporary directory. If none of them is private, a folder for this process alone.
    """
    name = f"kernels-{sources_digest()}"
    for root in _cache_roots():
        if _private_folder(root / name):
            return root / name
    own = Path(tempfile.mkdtemp(prefix="lastword-kernels-"))
    atexit.register(_remove, own, os.getpid())
    return own


def _cache_roots() -> Iterator[Path]:
    """Yield the folders to try. A temporary directory is needed only if the first is not private."""
    chosen, user = os.environ.get("LASTWORD_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        yield Path(chosen)
    else:
        yield (Path(user) if user else Path("~/.cache").expanduser()) / "lastword"
    yield Path(tempfile.gettempdir()) / f"lastword-{os.getuid()}"


def _remove(folder: Path, process: int) -> None:
    """Remove a folder that no other process can use; not in a child that was forked."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- compiling


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
