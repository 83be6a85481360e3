"""Makes `format("lastword")` known to every Spark session by itself.

PySpark imports each top-level module named `pyspark_*` once per JVM and registers its `DefaultSource`. One
module that fails to import stops that for all of them, so this one imports only what a worker has loaded
anyway.
"""

from lastword.spark.source import LastwordDataSource as DefaultSource

__all__ = ["DefaultSource"]
