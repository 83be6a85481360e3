#!/usr/bin/env bash
# A Python sink of Spark gets the inner bytes of a VARIANT.
#
# Guess: a Python data source that writes a VARIANT column gets what a Python UDF and `collect()` get: a
#   `VariantVal`, or its JSON text. In the other direction a reader may give such a value for a VARIANT column.
# Versions: pyspark 4.3.0, pyarrow 26.0.1, Java 17.
# Behaviour: `collect()` returns VariantVal. An Arrow writer of a data source (`DataSourceArrowWriter`) gets a struct
#   of two binary fields, `value` and `metadata`: the encoding that Spark has inside. It differs from an ordinary
#   struct of such fields only by the metadata `variant: true` of the Arrow field `metadata`; the type of the column
#   does not show it. A sink that writes rows as JSON or Parquet stores these bytes, without an error.
# Output seen (2026-11-29):
#   collect: VariantVal {"a":1.5}
#   writer: struct<value: binary not null, metadata: binary not null>
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet pyspark==4.3.0 pyarrow==26.0.1 || exit 2
cat > "$work/sink.py" <<'PY'
import sys

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage


class Writer(DataSourceArrowWriter):
    def __init__(self, path):
        self.path = path

    def write(self, batches):
        for batch in batches:
            with open(self.path, "w") as file:
                file.write(str(batch.schema.field("v").type))
        return WriterCommitMessage()


class Sink(DataSource):
    @classmethod
    def name(cls):
        return "typed"

    def writer(self, schema, overwrite):
        return Writer(self.options["path"])


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Sink)
frame = spark.sql("""SELECT parse_json('{"a": 1.5}') AS v""")
value = frame.collect()[0].v
print(f"collect: {type(value).__name__} {value.toJson()}")
frame.write.format("typed").mode("append").option("path", sys.argv[1]).save()
print("writer:", open(sys.argv[1]).read())
PY
said=$(PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" "$work/sink.py" "$work/type" 2>"$work/errors")
echo "$said"
wanted='collect: VariantVal {"a":1.5}
writer: struct<value: binary not null, metadata: binary not null>'
[ "$said" = "$wanted" ] || { tail -n 5 "$work/errors" >&2; exit 1; }
