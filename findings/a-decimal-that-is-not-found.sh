#!/usr/bin/env bash
# delta-rs does not find a decimal that it has written, and shows and writes another one in its place.
#
# Guess: decimals are exact, in Parquet and in Delta. Bounds in the log, which decide what files a query reads, are rounded
#   outwards if they are rounded: min down, max up.
# Versions: deltalake 1.6.6, polars 2.1.0, pyarrow 26.0.1, Python 3.11.
# Behaviour: the writer puts the bounds of a decimal into the log as floats of 64 bits, rounded either way. With 17 digits or more the
#   value may be outside of its own bounds: a query for it skips the file, also in polars and with filters of
#   to_pyarrow_table(); delete() finds nothing, and an overwrite of it leaves the old row beside the new one. If both
#   bounds are equal, as in a file of one row, a query that reads the file by another filter on the column shows the bound in
#   place of the value, and update() of another column writes it. A scan without a filter is right, and so are
#   partition columns. Bounds in the log that have all digits are read exactly.
# Output seen (2026-11-30):
#   bounds in the log: 123456789012345.69 to 123456789012345.69
#   no filter: 123456789012345.67
#   x = 123456789012345.67: none; to_pyarrow_table(): none; polars: none
#   x >= 123456789012345.67: 123456789012345.69
#   delete() of it: 0 rows; after an overwrite of it: 123456789012345.67, 123456789012345.67
#   after update() of i where x > 0: 123456789012345.69
#   16 digits: 12345678901234.57
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 polars==2.1.0 pyarrow==26.0.1 || exit 2
said=$("$work/venv/bin/python" -W ignore - "$work" <<'PY'
import json
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

X = "123456789012345.67"
TYPE = pa.decimal128(20, 2)
IS_X = f"x = cast('{X}' as decimal(20, 2))"


def rows(x=X):
    return pa.table({"i": pa.array([1], pa.int64()), "x": pa.array([Decimal(x)], TYPE)})


def written(x=X):
    path = tempfile.mkdtemp(dir=sys.argv[1])
    write_deltalake(path, rows(x))
    return path


def text(values):
    return ", ".join(map(str, values)) or "none"


def query(path, where="true"):
    found = QueryBuilder().register("t", DeltaTable(path)).execute(f"select x from t where {where}")
    return text(pa.table(found)["x"].to_pylist())


path = written()
(add,) = (line for line in (Path(path) / "_delta_log" / f"{0:020}.json").read_text().splitlines() if line.startswith('{"add"'))
stats = json.loads(json.loads(add)["add"]["stats"], parse_float=str)
print("bounds in the log:", stats["minValues"]["x"], "to", stats["maxValues"]["x"])
print("no filter:", query(path))
theirs = DeltaTable(path).to_pyarrow_table(filters=[("x", "=", Decimal(X))])["x"].to_pylist()
lazy = polars.scan_delta(path).filter(polars.col("x") == Decimal(X)).collect()["x"].to_list()
print(f"x = {X}: {query(path, IS_X)}; to_pyarrow_table(): {text(theirs)}; polars: {text(lazy)}")
print(f"x >= {X}: {query(path, IS_X.replace('=', '>='))}")
deleted = DeltaTable(path).delete(IS_X)["num_deleted_rows"]
write_deltalake(path, rows(), mode="overwrite", predicate=IS_X)
print(f"delete() of it: {deleted} rows; after an overwrite of it: {query(path)}")
path = written()
DeltaTable(path).update(updates={"i": "i + 1"}, predicate="x > 0")
print("after update() of i where x > 0:", query(path))
print("16 digits:", query(written("12345678901234.57"), "x = cast('12345678901234.57' as decimal(20, 2))"))
PY
)
echo "$said"
[ "$said" = "bounds in the log: 123456789012345.69 to 123456789012345.69
no filter: 123456789012345.67
x = 123456789012345.67: none; to_pyarrow_table(): none; polars: none
x >= 123456789012345.67: 123456789012345.69
delete() of it: 0 rows; after an overwrite of it: 123456789012345.67, 123456789012345.67
after update() of i where x > 0: 123456789012345.69
16 digits: 12345678901234.57" ]
