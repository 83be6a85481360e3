"""Give a Spark process what it needs before it works: this package, the log directory, compiled kernels.

Package and directory are outside Spark's control, and without them a task fails with words that do not help
(`No module named 'lastword'`, a missing file). So what travels to tasks unpacks itself with a function that
is sent by value (`unpacking`) and checks for the package first; and a task checks for its directory first.

The package must be installed for the Python that runs the tasks, in the driver's version: it depends on
compiled packages (NumPy, Numba, Arrow) that Spark cannot send.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import platform
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from lastword.errors import NotSharedError, UnknownTopicError, UsageError
from lastword.files import DEFAULT
from lastword.logdir.discover import register_limits
from lastword.segment.names import parse_partition_dir
from lastword.spark import unpacking
from lastword.version import __version__


class Shipped:
    """Mixin for objects that Spark pickles to tasks: readers, writers, and the source of a reader."""

    def __reduce__(self) -> tuple[Any, ...]:
        _by_value()
        return unpacking.unpack, (pickle.dumps((type(self), self.__dict__)), __version__)


def _by_value() -> None:
    """Make PySpark's pickler send the function's code instead of its name; needed once per process."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(unpacking)


def shared_path(path: str | os.PathLike[str], what: str = "log directory") -> str:
    """Return the directory's absolute name: a relative name differs between workers."""
    from lastword.spark.options import Problem, absolute_path

    remedy = f'name one {what}, such as "data"'
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"the {what} {path!r} is no path", remedy=remedy)
    try:
        return absolute_path(os.fspath(path))
    except Problem as problem:
        raise UsageError(f"the {what} {os.fspath(path)!r} {problem}", remedy=remedy) from None


def shared_log(path: str | os.PathLike[str]) -> str:
    """As `shared_path`, for a log directory. NotALogDirError if opening it would make one."""
    from lastword.logdir.log_dir import LogDirectory

    found = shared_path(path)
    LogDirectory.open(found, "r")
    return found


def need_directory(path: str) -> None:
    """Check that a task sees the directory, before anything else, and apply its settings here.

    Raises:
        NotSharedError: The task does not see the log directory.
        UnknownTopicError: Only the partition's directory is missing.
    """
    root, name = os.path.split(path)
    is_partition = parse_partition_dir(name) is not None
    if DEFAULT.is_dir(path):
        register_limits(root if is_partition else path)
        return
    if not is_partition or not DEFAULT.is_dir(root):
        raise NotSharedError.of(path, socket.gethostname())
    raise UnknownTopicError(
        f"{name} is not in {root} on {socket.gethostname()}: it was deleted after the driver had seen it, or "
        "this machine has another directory of that name",
        remedy="begin again with what is there; all machines must see one directory under that name",
        file=path,
    )


# ---------------------------------------------------------------- compiled kernels


def ensure_compiled() -> None:
    """Compile the kernels for this machine, if they are not, without loading them if they are.

    A process that plans a read is a new Python process each time, and Numba takes half a second to import. So
    this computes the name of the kernels' folder as `kernels.cache` does, and checks for the mark in it.
    """
    if "lastword.kernels" in sys.modules or not _marked():
        from lastword.kernels.warming import warm

        warm()


def _marked() -> bool:
    from importlib.metadata import PackageNotFoundError

    try:
        name = folder_name()
    except (PackageNotFoundError, OSError):
        return False
    chosen, user = os.environ.get("LASTWORD_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    root = Path(chosen) if chosen else (Path(user) if user else Path("~/.cache").expanduser()) / "lastword"
    roots = (root, Path(tempfile.gettempdir()) / f"lastword-{os.getuid()}")
    return any((folder / name / "ready").exists() for folder in roots)


def folder_name() -> str:
    """Return the folder's name, as `kernels.cache` builds it from sources and versions."""
    from importlib.metadata import version

    checked = os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0")
    versions = (platform.python_version(), version("numba"), version("llvmlite"), version("numpy"))
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr((versions, checked)).encode())
    package = Path(__file__).parents[1]
    for path in [*sorted((package / "kernels").glob("*.py")), package / "wire.py"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"kernels-{digest.hexdigest()}"


# ---------------------------------------------------------------- the garbage collector of a worker


DAEMON = "pyspark.daemon"

_known = 0


def settle() -> None:
    """Hide all loaded objects from the garbage collector of a worker of Spark's daemon.

    The daemon runs a full garbage collection in a worker after each task. With Numba and Arrow loaded there
    are 150,000 objects: 90 ms of a core, where a small task takes one. Called as a task begins, right after a
    collection, so no dead object is kept. It freezes only if modules were loaded since the last call. Frozen
    objects are still freed by their reference count; only cycles among them would stay.
    """
    global _known
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    if program is None or program.name != DAEMON or len(sys.modules) <= _known:
        return
    _known = len(sys.modules)
    gc.freeze()
