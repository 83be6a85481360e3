#!/usr/bin/env bash
# delta-rs refuses a batch number that another writer commits at the same time, and takes it again a moment later.
#
# Guess: a write with an application transaction (`Transaction("job", 1)`) is there once: a job that is started again, and
#   repeats its last batch with the same number, adds nothing, or gets an error. So it is with the options txnAppId and
#   txnVersion of Delta's writer for Spark, by its documentation, and two writers at the same time are told apart here.
# Versions: deltalake 1.6.6, pyarrow 26.0.1, Python 3.11.
# Behaviour: the number is compared only with commits that came after the version that the writer has loaded. A writer that
#   has loaded the commit with the same number, or with a higher one, appends its rows again, without an error; a lower
#   number takes the place of the higher one. Who repeats a batch must compare `DeltaTable.transaction_version("job")`
#   before each write.
# Output seen (2026-11-29):
#   batch 1: 1 row, version 1
#   batch 1 at the same time: CommitFailedError
#   batch 1 again: 2 rows, version 1
#   batch 0 after it: 3 rows, version 0
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1 || exit 2
said=$("$work/venv/bin/python" - "$work/table" <<'PY'
import sys

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

path = sys.argv[1]
DeltaTable.create(path, schema=pa.schema([("k", pa.int64())]))


def write(name, table, number):
    properties = CommitProperties(app_transactions=[Transaction("job", number)])
    try:
        write_deltalake(table, pa.table({"k": [1]}), mode="append", commit_properties=properties)
    except Exception as error:
        print(f"{name}: {type(error).__name__}")
        return
    after = DeltaTable(path)
    rows = after.to_pyarrow_table().num_rows
    print(f"{name}: {rows} row{'s' if rows > 1 else ''}, version {after.transaction_version('job')}")


one, other = DeltaTable(path), DeltaTable(path)
write("batch 1", one, 1)
write("batch 1 at the same time", other, 1)
write("batch 1 again", DeltaTable(path), 1)
write("batch 0 after it", DeltaTable(path), 0)
PY
)
echo "$said"
[ "$said" = "batch 1: 1 row, version 1
batch 1 at the same time: CommitFailedError
batch 1 again: 2 rows, version 1
batch 0 after it: 3 rows, version 0" ]
