"""The log on Spark: a source and a sink, for batches and streams, and the cleaner with one task per partition
or, of a giant one, many.

It stands on `api`, `cleaner`, `logdir`, `partition`, `resolve` and `records`, and adds only placement: what
a task reads, stages or rewrites, and what the driver publishes. No byte of the log is decoded by code of
this package. Only here is PySpark imported, and only when something of it is used.

    session   a SparkSession with the settings that this package wants, each with its reason; finds a Java
    register  makes `format("lastword")` known (`pyspark_lastword` does so by itself)
    plan      what `clean` would do now, and why
    clean     one round for each partition, built by tasks, published by the driver
    duplication  audit  verify  restore  expire   as the library's verbs, the result a DataFrame

Start reading at `source.py`; then `read.py`, `stream.py`, `write.py`, `clean.py`, each of which opens
with where its parts run, what travels between them, and what happens when half of the tasks fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.spark.audit import audit
from lastword.spark.clean import clean, plan
from lastword.spark.inspect import duplication, expire, restore, verify
from lastword.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["audit", "clean", "duplication", "expire", "plan", "register", "restore", "session", "verify"]


def register(spark: SparkSession) -> None:
    """Makes `format("lastword")` known to this session, for a cluster whose workers cannot see
    `pyspark_lastword`; and to this thread: Spark looks for a sink in Python in the thread's active session,
    which it has where the session was made, but in no thread that Python starts.
    """
    from lastword.spark.session import need_pyspark

    need_pyspark()
    from lastword.spark.source import LastwordDataSource

    spark.dataSource.register(LastwordDataSource)
    spark.createDataFrame([], "key binary")  # the one public call that makes it the thread's active session
