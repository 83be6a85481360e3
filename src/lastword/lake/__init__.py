"""The newest values of a topic as a Delta table, written without an engine.

An export appends each live record to a Parquet file once. A row whose record was superseded, deleted, trimmed
or has expired is named by the deletion vector of its file. So an export writes as much as changed since the
last one, and files are rewritten only when the dead rows of the table pass the space target: the rule of the
cleaner. In layout `merge` there are no vectors: each file of which a row died is rewritten.

    table.py        actions and snapshots of a table's log; checks of a table that others may have changed
    vectors.py      deletion vectors: their file, their text, their bitmaps
    data.py         data files: rows into Parquet, positions and live rows out of it
    rows.py         the rows of a snapshot: which records they hold, and which of them have died
    export.py       one export: what is dead, what is rewritten, one commit; workers in this process
    directory.py    a directory as an object store, so that all of the above has one kind of storage

Position. A commit holds a `txn` action for each partition: `lastword/TOPIC-ID/PARTITION`, whose version is
the end offset. Data and position are one commit, so an export that is repeated adds nothing, and a topic that
was made again has another id. Two more actions have the log start and the number of cuts.

Dead rows. A row is dead if it was dead before, or if its (partition, offset) is not that of a live record
below the committed end. `state.changes` compares the rows of a partition with the log at that moment, and the
rows of a file are read from its own columns: a cleaning between two exports, or a compaction of the table by
another engine, changes neither.

A crash. Data files and vectors are written and synced first, then the commit is put under a name that must be
absent. Before that, no reader sees anything. The names of the files have the version that they were written
for, so files without a commit are found and removed later.
"""
