"""The log on Spark: a source and a sink, for batches and streams, and the cleaner with one task per
partition, or many tasks for a very large partition.

It stands on `api`, `cleaner`, `ingest`, `logdir`, `partition`, `resolve` and `records`, and adds only
placement: what a task reads, stages or rewrites, and what the driver publishes. This package decodes no byte
of the log. Only this package imports PySpark, and only when it is used.

    session   a SparkSession with the settings that this package needs, each with its reason; finds a Java
    register  makes `format("lastword")` known (`pyspark_lastword` does so by itself)
    plan      what `clean` would do now, and why
    clean     a cleaning of each partition, built by tasks, published by the driver
    duplication  audit  verify  restore  expire   as the library's verbs, the result a DataFrame

Start reading at `source.py`; then `read.py`, `stream.py`, `write.py`, `clean.py`. Each begins with where its
parts run, what travels between them, and what happens when tasks fail.
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
    """Make `format("lastword")` known to this session, for a cluster whose workers cannot see
    `pyspark_lastword`.

    It also makes it known to this thread: Spark looks for a Python sink in the thread's active session, which
    exists in the thread where the session was made, but in no thread that Python starts.
    """
    from lastword.spark.bootstrap import need_pyspark

    need_pyspark()
    from lastword.spark.source import LastwordDataSource

    spark.dataSource.register(LastwordDataSource)
    spark.createDataFrame([], "key binary")  # the one public call that makes it the thread's active session
