"""A Spark session that is right for this package, on one machine by default.

Everything here can also be set by hand; nothing in `source`, `read`, `write` or `clean` needs a session
made here.
"""

from __future__ import annotations

import os
import sys
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
"""name -> (value, reason). What the caller gives wins. The last two are for local masters only."""

LOCAL_ONLY = ("spark.driver.host", "spark.driver.bindAddress")


def session(master: str = "local[*]", **conf: Any) -> SparkSession:
    """A new session, or the running one if there is one.

    master  as Spark's: `local[*]`, `local-cluster[2,1,1024]`, `spark://host:7077`
    conf    Spark's names, as `**{"spark.driver.memory": "4g"}`, or with `_` for `.` and without the first
            word: `driver_memory="4g"`

    Before the first session it sets, unless they are set: JAVA_HOME (`java.py`), PYSPARK_PYTHON and
    PYSPARK_DRIVER_PYTHON (this Python: workers would take the `python3` of the path, which may lack
    lastword), and SPARK_LOCAL_IP (the loopback, for local masters). MissingError says what to install.
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
        # Warnings of incubator modules and native libraries are not about the user's work.
        spark.sparkContext.setLogLevel("ERROR")
    return spark


def conf_name(name: str) -> str:
    """`driver_memory` -> `spark.driver.memory`; a name with a dot is taken as it is."""
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
    from lastword.spark.java import find_java, usable_home

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lastword"
    os.environ["JAVA_HOME"] = str(usable_home(find_java(), cache))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
