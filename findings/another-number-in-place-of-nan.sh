#!/usr/bin/env bash
# DataFusion reads NaN of a Parquet file as another number of the column, and an update() of delta-rs writes it so.
#
# Guess: a scan without a filter returns the values of the file. The bounds of a column leave NaN out, as Parquet wants it, so
#   equal bounds do not mean that all values are equal. A filter of delta-rs deletes and updates the rows that match.
# Versions: datafusion 55.0.0, deltalake 1.6.6 (which has DataFusion inside), pyarrow 26.0.1, Python 3.11. The files are written
#   by pyarrow and by delta-rs with their defaults.
# Behaviour: a column of a file with equal bounds and no null is taken for a constant, and not read: where all other values are 9.0,
#   NaN is 9.0, isnan() finds nothing, and COPY TO writes 9.0. With one other number, or a null, NaN is read. With
#   `datafusion.execution.collect_statistics` off, the file is read. In delta-rs it is so for each filter on the column:
#   NaN matches x < 5 as the other value does, delete() and overwrite remove it, and update() of another column changes
#   its value. It depends on which rows are in one file.
# Output seen (2026-11-30):
#   pyarrow: 9.0, nan, 9.0
#   DataFusion: 9.0, 9.0, 9.0; isnan: 0 rows; copied: 9.0, 9.0, 9.0
#   DataFusion, with 8.0: 9.0, nan, 8.0; with a null: 9.0, nan, None; without statistics: 9.0, nan, 9.0
#   delta-rs: 1.0, nan; where x < 5: 1.0, 1.0; of a file with 7.0: 1.0
#   after update() of i where x < 5: 1.0, 1.0
#   after delete() of x < 5: none; of a file with 7.0: nan, 7.0
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check datafusion==55.0.0 deltalake==1.6.6 pyarrow==26.0.1 || exit 2
said=$("$work/venv/bin/python" -W ignore - "$work" <<'PY'
import math
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
from datafusion import SessionConfig, SessionContext
from deltalake import DeltaTable, QueryBuilder, write_deltalake


def path(name):
    return f"{tempfile.mkdtemp(dir=sys.argv[1])}/{name}"


def text(values):
    return ", ".join(map(str, values)) or "none"


def read(values, setting="true"):
    """Write a Parquet file; return a context of DataFusion whose table `t` it is, and what a scan of it returns."""
    file = path("x.parquet")
    pq.write_table(pa.table({"x": values}), file)
    context = SessionContext(SessionConfig().set("datafusion.execution.collect_statistics", setting))
    context.register_parquet("t", file)
    return context, file, text(context.sql("SELECT x FROM t").to_pydict()["x"])


def written(*values):
    table = path("table")
    write_deltalake(table, pa.table({"i": pa.array(range(len(values)), pa.int64()), "x": pa.array(values, pa.float64())}))
    return table


def query(table, where=""):
    rows = QueryBuilder().register("t", DeltaTable(table)).execute(f"SELECT i, x FROM t {where} ORDER BY i")
    return text(pa.table(rows)["x"].to_pylist())


context, file, scanned = read([9.0, math.nan, 9.0])
print("pyarrow:", text(pq.read_table(file)["x"].to_pylist()))
(found,) = context.sql("SELECT count(*) AS n FROM t WHERE isnan(x)").to_pydict()["n"]
copied = path("copy.parquet")
context.sql(f"COPY (SELECT x FROM t) TO '{copied}'").collect()
print(f"DataFusion: {scanned}; isnan: {found} rows; copied: {text(pq.read_table(copied)['x'].to_pylist())}")
other, null, unread = read([9.0, math.nan, 8.0])[2], read([9.0, math.nan, None])[2], read([9.0, math.nan, 9.0], "false")[2]
print(f"DataFusion, with 8.0: {other}; with a null: {null}; without statistics: {unread}")
table, longer = written(1.0, math.nan), written(1.0, math.nan, 7.0)
print(f"delta-rs: {query(table)}; where x < 5: {query(table, 'WHERE x < 5')}; of a file with 7.0: {query(longer, 'WHERE x < 5')}")
DeltaTable(table).update(updates={"i": "i + 10"}, predicate="x < 5")
print("after update() of i where x < 5:", query(table))
table = written(1.0, math.nan)
for name in table, longer:
    DeltaTable(name).delete("x < 5")
print(f"after delete() of x < 5: {query(table)}; of a file with 7.0: {query(longer)}")
PY
)
echo "$said"
[ "$said" = "pyarrow: 9.0, nan, 9.0
DataFusion: 9.0, 9.0, 9.0; isnan: 0 rows; copied: 9.0, 9.0, 9.0
DataFusion, with 8.0: 9.0, nan, 8.0; with a null: 9.0, nan, None; without statistics: 9.0, nan, 9.0
delta-rs: 1.0, nan; where x < 5: 1.0, 1.0; of a file with 7.0: 1.0
after update() of i where x < 5: 1.0, 1.0
after delete() of x < 5: none; of a file with 7.0: nan, 7.0" ]
