#!/usr/bin/env bash
# vacuum(full=True) of delta-rs removes the deletion vector files of the current version, and the table cannot be read.
#
# Guess: VACUUM removes files that no version within the retention period refers to. delta-rs reads deletion vectors, so
#   it knows the file of each vector; a full vacuum, which lists the folder, removes orphans only.
# Versions: deltalake 1.6.6, pyarrow 26.0.1, pyroaring 1.2.0, Python 3.11. The table is written here by
#   Delta's protocol: one Parquet file of six rows and a deletion vector for two of them in a file of its own, both
#   older than the retention period of 168 hours (the default, enforced).
# Behaviour: vacuum(full=True) takes the vector's file for an orphan, because only Parquet paths count as referred to.
#   Every later read of this version fails. The other mode, vacuum(), keeps the file, and never removes a vector's file,
#   also if no version refers to it. Inline vectors are not affected.
# Output seen (2026-11-30):
#   before: 4 rows
#   vacuum(): 0 files, then 4 rows
#   vacuum(full=True): 1 file, a live deletion vector, then DeltaError
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  deltalake==1.6.6 pyarrow==26.0.1 pyroaring==1.2.0 || exit 2
said=$("$work/venv/bin/python" - "$work/table" <<'PY'
import json
import os
import struct
import sys
import uuid
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyroaring import BitMap64

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"  # Z85
OLD = 1_600_000_000


def z85(data):
    numbers = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(DIGITS[number // 85**power % 85] for number in numbers for power in (4, 3, 2, 1, 0))


def rows():
    try:
        found = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("select k from t"))
        return f"{found.num_rows} rows"
    except Exception as error:
        return type(error).__name__


path = Path(sys.argv[1])
(path / "_delta_log").mkdir(parents=True)
pq.write_table(pa.table({"k": pa.array(range(6), pa.int64())}), path / "part.parquet")
identity = uuid.uuid4()
file = path / f"deletion_vector_{identity}.bin"
vector = struct.pack("<I", 1681511377) + BitMap64([1, 4]).serialize()
file.write_bytes(b"\x01" + struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector)))
features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
field = {"name": "k", "type": "long", "nullable": True, "metadata": {}}
actions = [
    {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
    {"metaData": {"id": "00000000-0000-0000-0000-000000000001", "format": {"provider": "parquet", "options": {}},
                  "schemaString": json.dumps({"type": "struct", "fields": [field]}), "partitionColumns": [],
                  "configuration": {"delta.enableDeletionVectors": "true"}, "createdTime": OLD * 1000}},
    {"add": {"path": "part.parquet", "partitionValues": {}, "size": (path / "part.parquet").stat().st_size,
             "modificationTime": OLD * 1000, "dataChange": True,
             "stats": json.dumps({"numRecords": 6, "tightBounds": False}),
             "deletionVector": {"storageType": "u", "pathOrInlineDv": z85(identity.bytes), "offset": 1,
                                "sizeInBytes": len(vector), "cardinality": 2}}},
]
(path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
for each in path.iterdir():
    os.utime(each, (OLD, OLD))

print("before:", rows())
removed = DeltaTable(path).vacuum(dry_run=False)
print(f"vacuum(): {len(removed)} files, then {rows()}")
removed = DeltaTable(path).vacuum(dry_run=False, full=True)
print(f"vacuum(full=True): {len(removed)} file, {'a live deletion vector' if removed == [file.name] else removed}, then {rows()}")
PY
)
echo "$said"
[ "$said" = "before: 4 rows
vacuum(): 0 files, then 4 rows
vacuum(full=True): 1 file, a live deletion vector, then DeltaError" ]
