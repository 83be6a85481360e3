#!/usr/bin/env bash
# pyiceberg deletes rows with NaN that the filter of the delete does not match.
#
# Guess: `table.delete(filter)` removes the rows that `table.scan(row_filter=filter)` returns, and no others. NaN is not
#   below 5, so a delete of `d < 5` leaves it, as it leaves null.
# Versions: pyiceberg 0.12.0 with its catalog in SQLite, pyarrow 26.0.1, Python 3.11. The tables are written by pyiceberg.
# Behaviour: bounds of a column leave NaN out, and pyiceberg, whose writer does not count NaN, takes a file without a count
#   for one without NaN. If the bounds match the filter, and no value is null, the whole file is removed from the table,
#   with its rows of NaN. `overwrite` with a filter does the same. A scan is right. With one more value in the file, which
#   does not match or is null, its rows are read, and NaN stays. `And(filter, NotNaN("d"))` deletes what it says.
# Output seen (2026-11-30):
#   delete d < 5 of [1.0, nan]: the scan has [1.0], left are []
#   delete d == 1 of [1.0, nan]: the scan has [1.0], left are []
#   overwrite d < 5 by [2.0] of [1.0, nan]: left are [2.0]
#   delete d < 5 of [1.0, None]: the scan has [1.0], left are [None]
#   delete d < 5 of [1.0, 9.0, nan]: the scan has [1.0], left are [9.0, nan]
#   delete d < 5 and not NaN of [1.0, nan]: the scan has [1.0], left are [nan]
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  "pyiceberg[sql-sqlite,pyarrow]==0.12.0" pyarrow==26.0.1 || exit 2
said=$("$work/venv/bin/python" -W ignore - "$work" <<'PY'
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, EqualTo, LessThan, NotNaN

catalog = SqlCatalog("c", uri=f"sqlite:///{sys.argv[1]}/catalog.db", warehouse=f"file://{sys.argv[1]}/tables")
catalog.create_namespace("n")
NAN = float("nan")
below = LessThan("d", 5.0)


def written(values):
    rows = pa.table({"d": pa.array(values, pa.float64())})
    table = catalog.create_table(f"n.t{len(catalog.list_tables('n'))}", schema=rows.schema)
    table.append(rows)
    return table


def values(scan):
    return scan.to_arrow()["d"].to_pylist()


def delete(name, condition, given):
    table = written(given)
    found = values(table.scan(row_filter=condition))
    table.delete(condition)
    print(f"delete {name} of {given}: the scan has {found}, left are {values(table.scan())}")


delete("d < 5", below, [1.0, NAN])
delete("d == 1", EqualTo("d", 1.0), [1.0, NAN])
table = written([1.0, NAN])
table.overwrite(pa.table({"d": [2.0]}), overwrite_filter=below)
print(f"overwrite d < 5 by [2.0] of [1.0, nan]: left are {values(table.scan())}")
delete("d < 5", below, [1.0, None])
delete("d < 5", below, [1.0, 9.0, NAN])
delete("d < 5 and not NaN", And(below, NotNaN("d")), [1.0, NAN])
PY
)
echo "$said"
[ "$said" = "delete d < 5 of [1.0, nan]: the scan has [1.0], left are []
delete d == 1 of [1.0, nan]: the scan has [1.0], left are []
overwrite d < 5 by [2.0] of [1.0, nan]: left are [2.0]
delete d < 5 of [1.0, None]: the scan has [1.0], left are [None]
delete d < 5 of [1.0, 9.0, nan]: the scan has [1.0], left are [9.0, nan]
delete d < 5 and not NaN of [1.0, nan]: the scan has [1.0], left are [nan]" ]
