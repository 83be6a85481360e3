"""Load what Spark's Python processes need in Spark's daemons, before these fork them.

Spark has a daemon for each kind of Python process. The processes that plan a read or begin and commit a write
are forked for one call each, and each of them would import PySpark, NumPy, Arrow and lastword: a second of
CPU. A user's processes do that, and those of the tests marked `beside`.
"""

import importlib
import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    kind = sys.orig_argv[3]
    for name in ("numpy", "pyarrow.compute", "lastword.spark.source", "lastword.spark.write", kind):
        importlib.import_module(name)
