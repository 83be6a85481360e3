#!/usr/bin/env bash
# A filter that one query pushes into a Python data source stays in the DataFrame, and hides rows from the next query.
#
# Guess: a DataFrame is immutable, and each query plans its own scan. So after df.filter("id = 3").count() the count of
#   df is what it was before, and df.filter("id = 1").union(df.filter("id = 2")) has both rows.
# Versions: PySpark 4.3.0, pyarrow 26.0.1, Python 3.11, Java 17, spark.sql.python.filterPushdown.enabled=true. The source
#   implements DataSourceReader.pushFilters as its documentation shows: it keeps the EqualTo filters, applies them in
#   read(), and returns the others.
# Behaviour: the reader with the filters replaces that of the loaded DataFrame. Every later scan of this DataFrame applies
#   the filter that was pushed last, also a scan without a filter, and both sides of a union or a join. No error.
#   A DataFrame that is loaded again begins without filters.
# Output seen (2026-11-30):
#   count: 10
#   id = 3: 1
#   count again: 1
#   id = 1 union id = 2: [2, 2]
#   loaded again: 10
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the package cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1 || exit 2
cat > "$work/ids.py" <<'PY'
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition


class Ids(DataSource):
    @classmethod
    def name(cls):
        return "ids"

    def schema(self):
        return "id int"

    def reader(self, schema):
        return IdsReader()


class IdsReader(DataSourceReader):
    wanted = None

    def pushFilters(self, filters):
        for each in filters:
            if isinstance(each, EqualTo):
                self.wanted = each.value
            else:
                yield each

    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        return ((number,) for number in range(10) if self.wanted in (None, number))


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
spark.dataSource.register(Ids)
ids = spark.read.format("ids").load()
print("count:", ids.count())
print("id = 3:", ids.filter("id = 3").count())
print("count again:", ids.count())
both = ids.filter("id = 1").union(ids.filter("id = 2"))
print("id = 1 union id = 2:", sorted(row.id for row in both.collect()))
print("loaded again:", spark.read.format("ids").load().count())
PY
said=$(PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" "$work/ids.py" 2> "$work/errors") || grep -m 3 -E "Error|Exception" "$work/errors" >&2
echo "$said"
expected="count: 10
id = 3: 1
count again: 1
id = 1 union id = 2: [2, 2]
loaded again: 10"
[ "$said" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
