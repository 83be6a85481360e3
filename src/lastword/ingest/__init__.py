"""Commits of writers that do not hold the lock of a log directory.

Uses `logdir`. A writer stages batches in the partitions and commits them with one manifest in the directory's
root: `staging.py` has these files. The process that has the directory open to append ingests the manifests:
when it opens the directory, and when a manifest arrives (`apply.Watch`). If no process holds the lock, the
committing process ingests its own manifest. So a pipeline can write while another process appends and cleans.

    committer (`apply.commit`)                holder of the lock (`apply`)
    --------------------------                ----------------------------
    stages; renames the manifest to inbox-
    waits until it is gone                    renames it to applying-; appends to each partition, syncs it;
                                              saves writer and sequence; removes the manifest
    still in the inbox after its patience:
    removes it, and nothing was written

A crash of the holder leaves `applying-`. The next process that opens the directory to append finishes it
first. Each partition records which batches it has (`partition.staged_batches`), so no batch is appended
twice. A manifest whose writer and sequence were ingested before, also under another commit id, appends
nothing: a named batch that is run again after a crash is ingested once. Writer and sequence are saved after
the last partition is synced, so that they never promise records that a power cut can take. Partitions may
show the commit one after another. Nothing is appended before all checksums of the commit are verified.
"""
