"""Commits of writers that do not hold the lock of a log directory.

Stands on `logdir`. A writer stages batches in the partitions (`staging.py`) and commits them with one
manifest in the directory's root (`manifest.py`). The process that has the directory open to append ingests
the manifests: when it opens the directory, and while it is open (`apply.py`). Start reading at manifest.py.
"""
