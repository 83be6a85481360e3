"""The log on Spark: a source and a sink for batches and streams, and the cleaner as tasks.

The package uses the layers below and adds only placement: which task reads, stages or rewrites which part of
the log, and what the driver publishes. It decodes no byte of the log. Only this package imports PySpark, and
only when it is used.

    session   a SparkSession with the settings that this package needs, each with its reason; finds a Java
    register  registers `format("lastword")` (Spark finds `pyspark_lastword` by itself)
    update_stream  a streaming query in output mode update or complete
    lag       how far a streaming query is behind the log
    plan      the plan of `clean` for each partition, with its reasons
    clean     a cleaning of each partition, built by tasks, published by the driver
    copy      topics in another log: files copied by tasks, published by the driver
    export    a Delta table of newest values: files written by tasks, committed by the driver
    duplication  audit  verify  restore  expire   the library's verbs with a DataFrame as result
    erase     keys of a DataFrame and their values, out of every file of a topic

Start reading at `source.py`; then `splits.py`, `read.py`, `stream.py`, `write.py`, `update.py`,
`cleaning.py`, `copy.py`, `export.py`, `bucket.py`. A task of `clean` runs `remote.py` or `sharded.py`, which
use no PySpark. The modules with tasks begin with where their parts run, what travels between them, and what
happens when tasks fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.spark.bootstrap import need_pyspark, session, warn_of_other_python
from lastword.spark.clean import clean, plan
from lastword.spark.copy import copy
from lastword.spark.export import export
from lastword.spark.inspect import audit, duplication, erase, expire, lag, restore, verify
from lastword.spark.update import update_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "audit",
    "clean",
    "copy",
    "duplication",
    "erase",
    "expire",
    "export",
    "lag",
    "plan",
    "register",
    "restore",
    "session",
    "update_stream",
    "verify",
]

warn_of_other_python()


def register(spark: SparkSession) -> None:
    """Register `format("lastword")` with a session whose workers cannot import `pyspark_lastword`.

    The session also becomes the active session of this thread. Spark searches a Python sink in the thread's
    active session, and a thread that Python starts has none. Warns if the Python of the session's tasks lacks
    this version of lastword.
    """
    need_pyspark()
    warn_of_other_python()
    from lastword.spark.source import LastwordDataSource

    spark.dataSource.register(LastwordDataSource)
    spark.createDataFrame([], "key binary")  # the only public call that sets the active session
