"""A log in a bucket: versions of a log directory, in object storage, changed by one swap.

A log in a bucket is a sequence of *versions*. Each version is a log directory that was closed cleanly: the
same files with the same bytes, so Kafka opens a copy of it. The manifest names the object that holds each
file (manifest.py). Objects are immutable and have random names; only the manifest is overwritten, by a
conditional swap.

A change is a *transaction* (commit.py): a process takes the newest version, changes it in private with the
code that changes a directory (files.py: new files are local, renames and removals are entries of a dict),
uploads the new files, and swaps the manifest. If another process was first, the two changes are merged
(merge.py), or the transaction runs again. There is no lock, and any number of processes may append, clean and
read.

Objects that no version needs any more are removed after a time (collect.py).

Why a private copy and not a store of segments: recovery, the cleaner, retention, leases, the garbage index
and the names of batches all have files beside the segments, and their order of writes was proved against
crashes. In a private copy the same code runs unchanged, and one swap publishes the result of all of it, or
nothing.
"""
