#!/usr/bin/env bash
# dask-deltatable returns the rows that deletion vectors have deleted.
#
# Guess: a table with deletion vectors has reader version 3 and names the feature, and by Delta's protocol a reader that does not know
#   it must refuse the table. dask-deltatable opens tables with delta-rs, which reads vectors, and refuses such a table in to_pyarrow_dataset().
# Versions: dask-deltatable 0.4.0 with dask 2026.8.0 and deltalake 1.6.6, pyarrow 26.0.1, pyroaring 1.2.0, Python 3.11. The table is written here by
#   Delta's protocol: six rows in one Parquet file, and a deletion vector for two of them.
# Behaviour: read_deltalake() asks delta-rs for the names of the files (file_uris()) and reads them as Parquet. Nothing on this way
#   looks at the features or at the vectors, so each deleted row is back, and a row that was updated is there with both of its values.
#   Who reads the files of file_uris() in another way gets the same. QueryBuilder of delta-rs has four rows.
# Output seen (2026-12-01):
#   delta-rs: 0, 2, 3, 5
#   dask-deltatable: 0, 1, 2, 3, 4, 5
#   to_pyarrow_dataset(): DeltaProtocolError
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  dask-deltatable==0.4.0 dask==2026.8.0 deltalake==1.6.6 pyarrow==26.0.1 pyroaring==1.2.0 || exit 2
said=$("$work/venv/bin/python" -W ignore - "$work/table" 2> "$work/errors" <<'PY'
import json
import struct
import sys
from pathlib import Path

import dask_deltatable
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyroaring import BitMap64

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"  # Z85


def z85(data):
    numbers = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(DIGITS[number // 85**power % 85] for number in numbers for power in (4, 3, 2, 1, 0))


path = Path(sys.argv[1])
(path / "_delta_log").mkdir(parents=True)
pq.write_table(pa.table({"k": pa.array(range(6), pa.int64())}), path / "part.parquet")
vector = struct.pack("<I", 1681511377) + BitMap64([1, 4]).serialize()
padded = vector + bytes(-len(vector) % 4)
features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
field = {"name": "k", "type": "long", "nullable": True, "metadata": {}}
actions = [
    {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
    {"metaData": {"id": "00000000-0000-0000-0000-000000000001", "format": {"provider": "parquet", "options": {}},
                  "schemaString": json.dumps({"type": "struct", "fields": [field]}), "partitionColumns": [],
                  "configuration": {"delta.enableDeletionVectors": "true"}, "createdTime": 0}},
    {"add": {"path": "part.parquet", "partitionValues": {}, "size": (path / "part.parquet").stat().st_size,
             "modificationTime": 0, "dataChange": True, "stats": json.dumps({"numRecords": 6, "tightBounds": False}),
             "deletionVector": {"storageType": "i", "pathOrInlineDv": z85(padded), "sizeInBytes": len(vector), "cardinality": 2}}},
]
(path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def show(name, read):
    try:
        print(f"{name}:", ", ".join(map(str, sorted(read()))))
    except Exception as error:
        print(f"{name}:", type(error).__name__)


table = DeltaTable(path)
show("delta-rs", lambda: pa.table(QueryBuilder().register("t", table).execute("select k from t"))["k"].to_pylist())
show("dask-deltatable", lambda: dask_deltatable.read_deltalake(str(path)).compute()["k"])
show("to_pyarrow_dataset()", lambda: table.to_pyarrow_dataset().to_table()["k"].to_pylist())
PY
)
echo "$said"
[ "$said" = "delta-rs: 0, 2, 3, 5
dask-deltatable: 0, 1, 2, 3, 4, 5
to_pyarrow_dataset(): DeltaProtocolError" ] || { tail -n 5 "$work/errors" >&2; echo "the behaviour has changed"; exit 1; }
