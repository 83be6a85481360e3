"""Where compiled kernels are kept: a private folder, named by a digest of the kernels' sources."""

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
    """16 hex digits over every source file that is compiled and the versions that compile it.

    Numba's own cache looks only at the file of the function that is called, so an edit of a step it uses
    would go unnoticed.
    """
    digest = hashlib.blake2b(digest_size=8)
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__, numpy.__version__)
    digest.update(repr((versions, bool(numba.config.BOUNDSCHECK))).encode())
    for path in kernel_sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _private_folder(path: Path) -> bool:
    """Make `path` a folder that only this user can write to or replace: the cache holds pickles, and another
    user who writes them runs code as this one."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
        ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
        return ours and os.access(path, os.W_OK | os.X_OK) and not _replaceable(path)
    except OSError:
        return False


def _replaceable(path: Path) -> bool:
    """Can another user rename a directory on the way to `path`? Whoever owns a directory can, and whoever may
    write to it, unless it is sticky. The user's own group is trusted."""
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
    """The folder for compiled kernels, made if it is missing.

    `LASTWORD_CACHE_DIR`, else the user's cache directory, else a folder of ours in the temporary directory.
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
    """Remove a folder that no other process can use. Not in a child made by fork."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
