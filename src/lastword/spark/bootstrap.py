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
    """Mixed into what Spark pickles to tasks: readers, writers, and with a reader its source."""

    def __reduce__(self) -> tuple[Any, ...]:
        _by_value()
        return unpacking.unpack, (pickle.dumps((type(self), self.__dict__)), __version__)


def _by_value() -> None:
    """Let PySpark's pickler send the function's code, not its name; told once in a process."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(unpacking)


def shared_path(path: str | os.PathLike[str], what: str = "log directory") -> str:
    """The directory's absolute name: relative ones mean something else in each worker."""
    from lastword.spark.options import Problem, absolute_path

    remedy = f'name one {what}, such as "data"'
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"the {what} {path!r} is no path", remedy=remedy)
    try:
        return absolute_path(os.fspath(path))
    except Problem as problem:
        raise UsageError(f"the {what} {os.fspath(path)!r} {problem}", remedy=remedy) from None


def shared_log(path: str | os.PathLike[str]) -> str:
    """The same, of a directory that holds a log: NotALogDirError where opening it would make one."""
    from lastword.logdir.log_dir import LogDirectory

    found = shared_path(path)
    LogDirectory.open(found, "r")
    return found


def need_directory(path: str) -> None:
    """Check in a task, before anything else, that it sees the directory, and have its settings hold here.

    Raises:
        NotSharedError: the task does not see the log directory.
        UnknownTopicError: only the partition's directory is missing.
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
    """When it returns, workers on this machine find every kernel compiled."""
    if "lastword.kernels" in sys.modules or not _marked():
        from lastword import kernels

        kernels.warm()


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
    """To be called as a task begins: right after a collection, so nothing that is dead is kept. Does nothing
    but in a worker of the daemon, and there only when modules have been loaded since the last time. What is
    alive then is still freed by its reference count; only cycles among it would stay.
    """
    global _known
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    if program is None or program.name != DAEMON or len(sys.modules) <= _known:
        return
    _known = len(sys.modules)
    gc.freeze()
