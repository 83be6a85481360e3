#!/usr/bin/env bash
# On Sail, INSERT INTO a table of a Python data source writes to another path than SELECT reads.
#
# Guess: the options of `CREATE TABLE t USING format OPTIONS (path 'P')` go to the reader and to the writer of the
#   data source: `SELECT` and `INSERT INTO` of one table have one path.
# Versions: pysail 0.7.2, pyspark-client 4.2.0, Python 3.11 or newer.
# Behaviour: the reader gets path P; the writer gets `spark-warehouse/<table>-<uuid>`, the default location of the
#   table, instead. The statement succeeds and the rows are in a directory that nobody reads.
# Output seen (2026-11-29):
#   SELECT: P
#   INSERT: spark-warehouse
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet pysail==0.7.2 pyspark-client==4.2.0 'pandas<3' || exit 2
cat > "$work/table.py" <<'PY'
import sys

import pyarrow as pa
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, InputPartition

HOME = sys.argv[1]


class Reader(DataSourceReader):
    def __init__(self, path):
        self.path = path

    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        yield pa.RecordBatch.from_pydict({"path": [self.path]})


class Writer(DataSourceArrowWriter):
    def __init__(self, path):
        self.path = path

    def write(self, batches):
        with open(f"{HOME}/written", "w") as file:
            file.write(self.path)


class Paths(DataSource):
    @classmethod
    def name(cls):
        return "paths"

    def schema(self):
        return pa.schema([("path", pa.string())])

    def reader(self, schema):
        return Reader(self.options["path"])

    def writer(self, schema, overwrite):
        return Writer(self.options["path"])


server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
spark.dataSource.register(Paths)
spark.sql(f"CREATE TABLE t USING paths OPTIONS (path '{HOME}/P')")
read = spark.sql("SELECT path FROM t").collect()[0].path
spark.sql("INSERT INTO t VALUES ('x')")
written = open(f"{HOME}/written").read()
server.stop()
print("SELECT:", "P" if read == f"{HOME}/P" else read)
print("INSERT:", "spark-warehouse" if "spark-warehouse/" in written else written)
PY
said=$(cd "$work" && RUST_LOG=error "venv/bin/python" table.py "$work" 2>"$work/errors") || { cat "$work/errors"; exit 1; }
echo "$said"
test "$said" = "SELECT: P
INSERT: spark-warehouse"
