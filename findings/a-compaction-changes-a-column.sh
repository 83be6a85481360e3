#!/usr/bin/env bash
# optimize.compact() of delta-rs changes the values of a partition column of binary, and so does update() of another column.
#
# Guess: OPTIMIZE moves rows to other files and changes none, an update changes the columns that it names, and what
#   write_deltalake() has written is what every reader of delta-rs returns.
# Versions: deltalake 1.6.6, polars 2.1.0, pyarrow 26.0.1, Python 3.11.
# Behaviour: the writer puts a partition value of type binary into the log as text with six characters for each byte, such
#   as `\u0001\u00FF`. The readers take this text for the bytes: a filter on the written bytes finds nothing. Each
#   rewrite of a file encodes again what it has read: after one compaction the value has 36 times its length. A merge
#   finds no row, and inserts the key a second time. Polars refuses the table. A column of binary that is not a
#   partition column is right.
# Output seen (2026-11-30):
#   written: 2 rows of [2] bytes; read: 2 rows of [12] bytes, p = X'01ff' finds 0
#   after compact(): 2 rows of [72] bytes
#   after update() of x: 2 rows of [72] bytes
#   after a merge of the same key: 3 rows of [12] bytes
#   polars: ComputeError
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 polars==2.1.0 pyarrow==26.0.1 || exit 2
said=$("$work/venv/bin/python" -W ignore - "$work" <<'PY'
import sys

import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

SCHEMA = pa.schema([("p", pa.binary()), ("x", pa.int64())])


def rows(x):
    return pa.table({"p": [b"\x01\xff"], "x": [x]}, SCHEMA)


def written(name):
    path = f"{sys.argv[1]}/{name}"
    for x in (1, 2):
        write_deltalake(path, rows(x), mode="append", partition_by=["p"])
    return DeltaTable(path)


def query(table, sql):
    return pa.table(QueryBuilder().register("t", table).execute(sql))


def read(table):
    values = query(table, "select p from t order by x")["p"].to_pylist()
    assert values == table.to_pyarrow_table().sort_by("x")["p"].to_pylist()
    return f"{len(values)} rows of {sorted(set(map(len, values)))} bytes"


table = written("compacted")
found = query(table, "select x from t where p = X'01ff'").num_rows
print(f"written: 2 rows of [2] bytes; read: {read(table)}, p = X'01ff' finds {found}")
table.optimize.compact()
print("after compact():", read(table))
table = written("updated")
table.update(updates={"x": "x + 10"})
print("after update() of x:", read(table))
table = written("merged")
merge = table.merge(rows(3), "t.p = s.p", source_alias="s", target_alias="t")
merge.when_matched_update_all().when_not_matched_insert_all().execute()
print("after a merge of the same key:", read(table))
try:
    print("polars:", polars.scan_delta(table).collect().height, "rows")
except Exception as error:
    print("polars:", type(error).__name__)
PY
)
echo "$said"
[ "$said" = "written: 2 rows of [2] bytes; read: 2 rows of [12] bytes, p = X'01ff' finds 0
after compact(): 2 rows of [72] bytes
after update() of x: 2 rows of [72] bytes
after a merge of the same key: 3 rows of [12] bytes
polars: ComputeError" ]
