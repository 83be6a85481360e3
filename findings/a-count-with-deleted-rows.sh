#!/usr/bin/env bash
# DeltaTable.count() counts the rows that a deletion vector has deleted.
#
# Guess: delta-rs reads deletion vectors, so `DeltaTable(path).count()` is the number of rows that a query returns.
# Versions: deltalake 1.6.6, polars 2.1.0, pyarrow 26.0.1, pyroaring 1.2.0, Python 3.11. The table is
#   written here by Delta's protocol: six rows in one Parquet file, an inline deletion vector for two of them, and
#   statistics with numRecords 6, which counts the rows of the file.
# Behaviour: count() adds up numRecords and does not subtract the cardinality of the vectors. QueryBuilder and polars give
#   four rows, for count(*) too; to_pyarrow_table() refuses the table.
# Output seen (2026-11-29):
#   count(): 6
#   QueryBuilder: 4 rows, count(*) 4
#   polars: 4 rows, len 4
#   to_pyarrow_table(): DeltaProtocolError
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  deltalake==1.6.6 polars==2.1.0 pyarrow==26.0.1 pyroaring==1.2.0 || exit 2
said=$("$work/venv/bin/python" - "$work/table" <<'PY'
import json
import struct
import sys
from pathlib import Path

import polars
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyroaring import BitMap64

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"  # Z85


def z85(data):
    text = ""
    for number in struct.unpack(f">{len(data) // 4}I", data):
        text += "".join(DIGITS[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


path = Path(sys.argv[1])
(path / "_delta_log").mkdir(parents=True)
pq.write_table(pa.table({"k": pa.array(range(6), pa.int64())}), path / "part.parquet")
vector = struct.pack("<I", 1681511377) + BitMap64([1, 4]).serialize()
vector += bytes(-len(vector) % 4)
features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
field = {"name": "k", "type": "long", "nullable": True, "metadata": {}}
actions = [
    {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
    {"metaData": {"id": "00000000-0000-0000-0000-000000000001", "format": {"provider": "parquet", "options": {}},
                  "schemaString": json.dumps({"type": "struct", "fields": [field]}), "partitionColumns": [],
                  "configuration": {"delta.enableDeletionVectors": "true"}, "createdTime": 0}},
    {"add": {"path": "part.parquet", "partitionValues": {}, "size": (path / "part.parquet").stat().st_size,
             "modificationTime": 0, "dataChange": True,
             "stats": json.dumps({"numRecords": 6, "tightBounds": False}),
             "deletionVector": {"storageType": "i", "pathOrInlineDv": z85(vector), "sizeInBytes": len(vector),
                                "cardinality": 2}}},
]
(path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def query(sql):
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute(sql)).to_pylist()


def said(work):
    try:
        return work()
    except Exception as error:
        return type(error).__name__


print("count():", DeltaTable(path).count())
print(f"QueryBuilder: {len(query('select k from t'))} rows, count(*) {query('select count(*) n from t')[0]['n']}")
lazy = polars.scan_delta(str(path))
print(f"polars: {lazy.collect().height} rows, len {lazy.select(polars.len()).collect().item()}")
print("to_pyarrow_table():", said(lambda: DeltaTable(path).to_pyarrow_table().num_rows))
PY
)
echo "$said"
[ "$said" = "count(): 6
QueryBuilder: 4 rows, count(*) 4
polars: 4 rows, len 4
to_pyarrow_table(): DeltaProtocolError" ]
