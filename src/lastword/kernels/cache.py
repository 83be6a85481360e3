"""The folder of compiled kernels: private, and named by a digest of the kernels' sources."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import platform
import shutil
import stat
import tempfile
from pathlib import Path

import llvmlite
import numba
import numpy


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
    chosen = os.environ.get("LASTWORD_CACHE_DIR")
    if chosen:
        roots = [Path(chosen)]
    else:
        user = os.environ.get("XDG_CACHE_HOME")
        roots = [(Path(user) if user else Path("~/.cache").expanduser()) / "lastword"]
    roots.append(Path(tempfile.gettempdir()) / f"lastword-{os.getuid()}")
    for root in roots:
        if _private_folder(root / name):
            return root / name
    own = Path(tempfile.mkdtemp(prefix="lastword-kernels-"))
    atexit.register(_remove, own, os.getpid())
    return own


def _remove(folder: Path, process: int) -> None:
    """Remove a folder that no other process can use; not in a child that was forked."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
