#!/usr/bin/env bash
# A transaction of pyiceberg that deletes and appends leaves two snapshots; the first has half of the transaction.
#
# Guess: `with table.transaction()` makes one commit, so each version that a reader can choose has all of a transaction or
#   nothing of it.
# Versions: pyiceberg 0.12.0 with its catalog in SQLite, pyarrow 26.0.1, Python 3.11. The tables are in a directory.
# Behaviour: the catalog is changed once, and the newest version has both changes. But each operation adds a snapshot of its
#   own to the history. A reader of an older version by id gets the first: the old row is gone, the new one is
#   not there yet. `overwrite` in place of `delete` and `append` does the same.
# Output seen (2026-11-30):
#   before: [('a', 1), ('b', 1)]
#   delete, append: 2 snapshots in 1 change of the catalog
#     overwrite: [('b', 1)]
#     append: [('a', 2), ('b', 1)]
#   overwrite: 2 snapshots in 1 change of the catalog
#     delete: [('b', 1)]
#     append: [('a', 3), ('b', 1)]
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  "pyiceberg[sql-sqlite,pyarrow]==0.12.0" pyarrow==26.0.1 || exit 2
said=$("$work/venv/bin/python" - "$work" <<'PY'
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog


def rows(snapshot):
    found = catalog.load_table("n.t").scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
    return sorted((row["k"], row["v"]) for row in found)


def show(name, work):
    table = catalog.load_table("n.t")
    known, changes = len(table.snapshots()), len(table.metadata.metadata_log)
    with table.transaction() as transaction:
        work(transaction)
    table = catalog.load_table("n.t")
    made, changes = table.snapshots()[known:], len(table.metadata.metadata_log) - changes
    print(f"{name}: {len(made)} snapshots in {changes} change of the catalog")
    for snapshot in made:
        print(f"  {snapshot.summary.operation.value}: {rows(snapshot)}")


def delete_and_append(transaction):
    transaction.delete("k = 'a'")
    transaction.append(pa.table({"k": ["a"], "v": [2]}))


place = sys.argv[1]
catalog = SqlCatalog("local", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/tables")
catalog.create_namespace("n")
first = pa.table({"k": ["a", "b"], "v": [1, 1]})
table = catalog.create_table("n.t", schema=first.schema)
table.append(first)
print("before:", rows(table.snapshots()[0]))
show("delete, append", delete_and_append)
show("overwrite", lambda transaction: transaction.overwrite(pa.table({"k": ["a"], "v": [3]}), "k = 'a'"))
PY
)
echo "$said"
[ "$said" = "before: [('a', 1), ('b', 1)]
delete, append: 2 snapshots in 1 change of the catalog
  overwrite: [('b', 1)]
  append: [('a', 2), ('b', 1)]
overwrite: 2 snapshots in 1 change of the catalog
  delete: [('b', 1)]
  append: [('a', 3), ('b', 1)]" ]
