"""The log on Spark: a source and a sink for batches and streams, and the cleaner as tasks.

The package uses the layers below and adds only placement: which task reads, stages or rewrites which part of
the log, and what the driver publishes. It decodes no byte of the log. Only this package imports PySpark, and
only when it is used.

    session   a SparkSession with the settings that this package needs, each with its reason; finds a Java
    register  registers `format("lastword")` (Spark finds `pyspark_lastword` by itself)
    plan      the plan of `clean` for each partition, with its reasons
    clean     a cleaning of each partition, built by tasks, published by the driver
    duplication  audit  verify  restore  expire   the library's verbs with a DataFrame as result

Start reading at `source.py`; then `splits.py`, `read.py`, `stream.py`, `write.py`, `clean.py`.
The modules with tasks begin with where their parts run, what travels between them, and what happens when
tasks fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.spark.bootstrap import session
from lastword.spark.clean import clean, plan
from lastword.spark.inspect import audit, duplication, expire, restore, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["audit", "clean", "duplication", "expire", "plan", "register", "restore", "session", "verify"]


def register(spark: SparkSession) -> None:
    """Register `format("lastword")` with a session whose workers cannot import `pyspark_lastword`.

    The session also becomes the active session of this thread. Spark searches a Python sink in the thread's
    active session, and a thread that Python starts has none.
    """
    from lastword.spark.bootstrap import need_pyspark

    need_pyspark()
    from lastword.spark.source import LastwordDataSource

    spark.dataSource.register(LastwordDataSource)
    spark.createDataFrame([], "key binary")  # the only public call that sets the active session
