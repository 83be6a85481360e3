"""What a worker must have before it can run a task of ours: this package, and the log directory.

Both are outside Spark's hands, and without them a task dies with words that help nobody (`No module named
'lastword'`, a file that is not there). So what travels to tasks unpacks itself by a function that is sent
along by value, which looks for the package first; and a task looks for its directory before it works.

The package gets there by being installed for the Python that runs the tasks, with the version that the
driver has: it stands on compiled packages (NumPy, Numba, Arrow) that Spark cannot send.
"""

from __future__ import annotations

import os
import pickle
import re
import socket
from typing import Any

from lastword import errors
from lastword.errors import LastwordError, MissingError, NotSharedError, UnknownTopicError, UsageError
from lastword.files import DEFAULT
from lastword.logdir.root import register_limits
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
    from lastword.spark.option_texts import Problem, absolute_path

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


def typed(error: Exception) -> Exception:
    """What a task failed with, out of Spark's words, if it is an error of this package; else as it is."""
    text = str(error)
    found = re.search(rf"(?:ModuleNotFound|Import)Error: ({unpacking.MISSING} .*)(?:\n\s*fix: (.*))?", text)
    if found is not None:
        return MissingError(found[1], remedy=found[2])
    found = re.search(r"lastword\.errors\.(\w+): (.*)(?:\n\s*fix: (.*))?", text)
    kind = None if found is None else getattr(errors, found[1], None)
    if found is not None and isinstance(kind, type) and issubclass(kind, LastwordError):
        return kind(found[2], remedy=found[3])
    if "No module named 'lastword'" in text:
        return MissingError(
            "the Python that Spark starts beside its driver has no lastword",
            remedy="set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to one that has it",
        )
    return error
