#!/usr/bin/env bash
# DuckDB asks an object for three Arrow streams in one query, and does not notice a stream that was read before.
#
# Guess: a query asks an object with `__arrow_c_stream__` for its stream once, as pyarrow, polars and DataFusion do, because
#   a stream can be read once. A second query on an object whose stream is used up is an error, as it is for a
#   pyarrow.RecordBatchReader.
# Versions: duckdb 2.0.1, pyarrow 26.0.1, polars 2.1.0, Python 3.11.
# Behaviour: a scan asks three times, a self join four times, LIMIT 0 twice, EXPLAIN once. Only the last stream is read;
#   the others give the schema, and are dropped. So an object that makes its rows before it gives the stream makes them
#   three times. An object that goes on where its last stream ended has no rows in a second query: DuckDB returns 0
#   without an error. Of a RecordBatchReader it knows that it is used up, and raises.
# Output seen (2026-11-29):
#   pyarrow: 4 rows, 1 stream
#   polars: 4 rows, 1 stream
#   a scan: [(4,)], 3 streams
#   a self join: [(4,)], 4 streams
#   LIMIT 0: [], 2 streams
#   a second query on the object: [(0,)]
#   a second query on a RecordBatchReader: InvalidInputException
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0 || exit 2
said=$("$work/venv/bin/python" - <<'PY'
import duckdb
import polars
import pyarrow as pa

SCHEMA = pa.schema([("k", pa.int64())])


class Numbers:
    """Four rows. Each stream goes on where the last one ended."""

    def __init__(self):
        self.streams = 0
        self.rows = iter([pa.record_batch([[n]], schema=SCHEMA) for n in range(4)])

    def __arrow_c_stream__(self, requested_schema=None):
        self.streams += 1
        return pa.RecordBatchReader.from_batches(SCHEMA, self.rows).__arrow_c_stream__(requested_schema)


def show(name, work):
    numbers = Numbers()
    found = work(numbers)
    print(f"{name}: {found}, {numbers.streams} stream{'s' if numbers.streams > 1 else ''}")


show("pyarrow", lambda given: f"{pa.table(given).num_rows} rows")
show("polars", lambda given: f"{len(polars.DataFrame(given))} rows")
show("a scan", lambda given: duckdb.sql("select count(*) from given").fetchall())
show("a self join", lambda given: duckdb.sql("select count(*) from given a join given b using (k)").fetchall())
show("LIMIT 0", lambda given: duckdb.sql("from given limit 0").fetchall())
numbers, reader = Numbers(), pa.RecordBatchReader.from_stream(Numbers())
for name, given in (("the object", numbers), ("a RecordBatchReader", reader)):
    duckdb.sql("from given").fetchall()
    try:
        found = duckdb.sql("select count(*) from given").fetchall()
    except Exception as error:
        found = type(error).__name__
    print(f"a second query on {name}: {found}")
PY
)
echo "$said"
[ "$said" = "pyarrow: 4 rows, 1 stream
polars: 4 rows, 1 stream
a scan: [(4,)], 3 streams
a self join: [(4,)], 4 streams
LIMIT 0: [], 2 streams
a second query on the object: [(0,)]
a second query on a RecordBatchReader: InvalidInputException" ]
