#!/usr/bin/env bash
# write_deltalake() appends the price 1.7 to a table of integers as 1, without an error.
#
# Guess: Delta enforces the schema of a table: an append of values of another type is refused, as Delta's documentation of Spark
#   says, or with schema_mode="merge" the column becomes wider. An overwrite brings its own types.
# Versions: deltalake 1.6.6, polars 2.1.0, pyarrow 26.0.1, Python 3.11.
# Behaviour: each column is converted to the type in the table. Only what is out of the range of that type is an error. The
#   fraction of a float or decimal is cut off, text becomes a number, and 2 becomes true. Milliseconds since
#   1970 in a column of timestamps are taken for microseconds: a day of 2026 is in January 1970. schema_mode="merge",
#   mode="overwrite" without schema_mode="overwrite", and polars' write_delta() do the same; merge() does it with
#   numbers and text, and refuses milliseconds.
# Output seen (2026-11-30):
#   column, written: append, append with merge, overwrite, write_delta, merge()
#   long, 1.7: 1, 1, 1, 1, 1
#   long, '12': 12, 12, 12, 12, 12
#   timestamp, 1795996800000: 1970-01-21, 1970-01-21, 1970-01-21, 1970-01-21, DeltaError
#   integer, 1099511627776: Exception, Exception, Exception, Exception, Exception
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 polars==2.1.0 pyarrow==26.0.1 || exit 2
said=$("$work/venv/bin/python" -W ignore - "$work" <<'PY'
import datetime
import sys
import tempfile

import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

DAY = datetime.datetime(2026, 11, 30, tzinfo=datetime.timezone.utc)


def merge(path, rows):
    merger = DeltaTable(path).merge(rows, "false", source_alias="s", target_alias="t")
    merger.when_not_matched_insert_all().execute()


WRITES = {
    "append": lambda path, rows: write_deltalake(path, rows, mode="append"),
    "append with merge": lambda path, rows: write_deltalake(path, rows, mode="append", schema_mode="merge"),
    "overwrite": lambda path, rows: write_deltalake(path, rows, mode="overwrite"),
    "write_delta": lambda path, rows: polars.from_arrow(rows).write_delta(path, mode="append"),
    "merge()": merge,
}


def found(write, type_, first, other, value):
    """Return the value that a table has after a write of `value`, or the name of the error."""
    path = tempfile.mkdtemp(dir=sys.argv[1])
    write_deltalake(path, pa.table({"x": pa.array([first], type_)}))
    try:
        write(path, pa.table({"x": pa.array([value], other)}))
    except Exception as error:
        return type(error).__name__
    table = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("select x from t"))
    (new,) = set(table["x"].to_pylist()) - {first}
    return str(new.date()) if isinstance(new, datetime.datetime) else str(new)


print("column, written:", ", ".join(WRITES))
for name, *columns in (
    ("long", pa.int64(), 7, pa.float64(), 1.7),
    ("long", pa.int64(), 7, pa.string(), "12"),
    ("timestamp", pa.timestamp("us", "UTC"), DAY, pa.int64(), int(DAY.timestamp() * 1000)),
    ("integer", pa.int32(), 7, pa.int64(), 2**40),
):
    print(f"{name}, {columns[-1]!r}:", ", ".join(found(write, *columns) for write in WRITES.values()))
PY
)
echo "$said"
[ "$said" = "column, written: append, append with merge, overwrite, write_delta, merge()
long, 1.7: 1, 1, 1, 1, 1
long, '12': 12, 12, 12, 12, 12
timestamp, 1795996800000: 1970-01-21, 1970-01-21, 1970-01-21, 1970-01-21, DeltaError
integer, 1099511627776: Exception, Exception, Exception, Exception, Exception" ]
