#!/usr/bin/env bash
# Setting a retention on a Delta table with delta-rs makes VARIANT support a condition for every reader of the table.
#
# Guess: `alter.set_table_properties({"delta.logRetentionDuration": ...})` changes the table's configuration, and nothing
#   else. A property that needs no feature leaves the protocol as it is, so each program that read the table reads it still.
# Versions: deltalake 1.6.6, pyarrow 26.0.1, Python 3.11. The table is written here by Delta's protocol: one
#   column of type long, reader version 3, writer version 7, the feature deletionVectors.
# Behaviour: the commit has a protocol action, too. It adds variantType to the reader features and the writer features,
#   and appendOnly and invariants to the writer features, although the table has no VARIANT. By the protocol a
#   reader that does not know variantType must refuse the table from then on. A table at reader version 1 stays there.
# Output seen (2026-11-30):
#   before: ['deletionVectors'] ['deletionVectors']
#   after: ['deletionVectors', 'variantType'] ['appendOnly', 'deletionVectors', 'invariants', 'variantType']
#   a table at version 1: 1 None
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1 || exit 2
said=$("$work/venv/bin/python" - "$work" <<'PY'
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

RETENTION = {"delta.logRetentionDuration": "interval 30 days"}


def features(table):
    protocol = DeltaTable(table).protocol()
    return f"{sorted(protocol.reader_features)} {sorted(protocol.writer_features)}"


table = Path(sys.argv[1], "table")
(table / "_delta_log").mkdir(parents=True)
pq.write_table(pa.table({"k": pa.array([1], pa.int64())}), table / "part.parquet")
own = ["deletionVectors"]
field = {"name": "k", "type": "long", "nullable": True, "metadata": {}}
actions = [
    {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": own, "writerFeatures": own}},
    {"metaData": {"id": "00000000-0000-0000-0000-000000000001", "format": {"provider": "parquet", "options": {}},
                  "schemaString": json.dumps({"type": "struct", "fields": [field]}), "partitionColumns": [],
                  "configuration": {}, "createdTime": 0}},
    {"add": {"path": "part.parquet", "partitionValues": {}, "size": (table / "part.parquet").stat().st_size,
             "modificationTime": 0, "dataChange": True}},
]
(table / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
print("before:", features(table))
DeltaTable(table).alter.set_table_properties(RETENTION)
print("after:", features(table))
plain = Path(sys.argv[1], "plain")
write_deltalake(plain, pa.table({"k": [1]}))
DeltaTable(plain).alter.set_table_properties(RETENTION)
protocol = DeltaTable(plain).protocol()
print("a table at version 1:", protocol.min_reader_version, protocol.reader_features)
PY
)
echo "$said"
[ "$said" = "before: ['deletionVectors'] ['deletionVectors']
after: ['deletionVectors', 'variantType'] ['appendOnly', 'deletionVectors', 'invariants', 'variantType']
a table at version 1: 1 None" ]
