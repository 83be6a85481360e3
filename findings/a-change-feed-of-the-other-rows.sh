#!/usr/bin/env bash
# The change feed that delta-rs reads names the rows that were dead before, and leaves out those that were deleted.
#
# Guess: load_cdf() has each row that a version deleted or inserted. Who applies the changes of all versions to a copy has the
#   rows of the table, also with deletion vectors, which delta-rs reads.
# Versions: deltalake 1.6.6, pyarrow 26.0.1, pyroaring 1.2.0, Python 3.11. The first two versions of the table are
#   written here by Delta's protocol, as Spark's DELETE writes them: one file of six rows, then a deletion vector for two of them.
# Behaviour: the feed of that DELETE is right: a vector that is added to a file names its deleted rows. If a file with a vector
#   leaves the table whole, by delete() without a predicate or by an overwrite, its vector is read in the same way: the feed
#   has the rows that were deleted before, and not one of those that are deleted now. restore() of such a file has an
#   insert of each dead row, and none of a live one. The table is right; delete() counts its rows right. A file
#   without a vector is right, too.
# Output seen (2026-11-30):
#   version 1: delete 1, delete 4
#   delete(): 4 rows deleted; feed: delete 1, delete 4; table: none; copy: 0, 2, 3, 5
#   then restore(1): feed: insert 1, insert 4; table: 0, 2, 3, 5; copy: 0, 1, 2, 3, 4, 5
#   overwrite by 9: feed: delete 1, delete 4, insert 9; table: 9; copy: 0, 2, 3, 5, 9
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1 pyroaring==1.2.0 || exit 2
said=$("$work/venv/bin/python" -W ignore - "$work" <<'PY'
import json
import struct
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyroaring import BitMap64

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"  # Z85


def z85(data):
    numbers = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(DIGITS[number // 85**power % 85] for number in numbers for power in (4, 3, 2, 1, 0))


def rows(*keys):
    return pa.table({"k": pa.array(keys, pa.int64())})


def commit(path, version, actions):
    info = {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE"}}
    (path / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, [info, *actions])))


def written(name):
    """Write a table of six rows with a change feed, and delete the rows 1 and 4 by a deletion vector."""
    path = Path(sys.argv[1], name)
    (path / "_delta_log").mkdir(parents=True)
    pq.write_table(rows(*range(6)), path / "part.parquet")
    vector = struct.pack("<I", 1681511377) + BitMap64([1, 4]).serialize()
    vector += bytes(-len(vector) % 4)
    file = {"path": "part.parquet", "partitionValues": {}, "size": (path / "part.parquet").stat().st_size, "dataChange": True}
    add = {**file, "modificationTime": 0, "stats": json.dumps({"numRecords": 6})}
    schema = {"type": "struct", "fields": [{"name": "k", "type": "long", "nullable": True, "metadata": {}}]}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "changeDataFeed"]}
    settings = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
    commit(path, 0, [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"metaData": {"id": "00000000-0000-0000-0000-000000000001", "format": {"provider": "parquet", "options": {}},
                      "schemaString": json.dumps(schema), "partitionColumns": [], "configuration": settings, "createdTime": 0}},
        {"add": add},
    ])
    deleted = {"storageType": "i", "pathOrInlineDv": z85(vector), "sizeInBytes": len(vector), "cardinality": 2}
    commit(path, 1, [{"remove": {**file, "deletionTimestamp": 1, "extendedFileMetadata": True}},
                     {"add": {**add, "deletionVector": deleted}}])
    return path


def feed(path, version):
    changes = pa.table(DeltaTable(path).load_cdf(starting_version=version, ending_version=version)).to_pylist()
    return sorted((change["_change_type"], change["k"]) for change in changes)


def text(values):
    return ", ".join(str(value) for value in values) or "none"


def told(path):
    """Return the feed of the newest version, the rows of the table, and those of a copy that applied the whole feed."""
    copy, newest = set(), DeltaTable(path).version()
    for version in range(newest + 1):
        for change, key in feed(path, version):
            copy.add(key) if change == "insert" else copy.discard(key)
    changes = text(" ".join(map(str, change)) for change in feed(path, newest))
    table = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("select k from t order by k"))
    return f"feed: {changes}; table: {text(table['k'].to_pylist())}; copy: {text(sorted(copy))}"


path = written("deleted")
print("version 1:", text(" ".join(map(str, change)) for change in feed(path, 1)))
print(f"delete(): {DeltaTable(path).delete()['num_deleted_rows']} rows deleted; {told(path)}")
DeltaTable(path).restore(1)
print("then restore(1):", told(path))
path = written("overwritten")
write_deltalake(path, rows(9), mode="overwrite")
print("overwrite by 9:", told(path))
PY
)
echo "$said"
[ "$said" = "version 1: delete 1, delete 4
delete(): 4 rows deleted; feed: delete 1, delete 4; table: none; copy: 0, 2, 3, 5
then restore(1): feed: insert 1, insert 4; table: 0, 2, 3, 5; copy: 0, 1, 2, 3, 4, 5
overwrite by 9: feed: delete 1, delete 4, insert 9; table: 9; copy: 0, 2, 3, 5, 9" ]
