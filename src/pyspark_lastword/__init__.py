"""Register `format("lastword")` with every Spark session.

PySpark imports each top-level module named `pyspark_*` once per JVM and registers its `DefaultSource`. If one
module fails to import, none is registered. So this module imports only modules that a worker loads anyway.
"""

from lastword.spark.source import LastwordDataSource as DefaultSource

__all__ = ["DefaultSource"]
