"""Readers beside a writer and cleaners, interleaved down to single file operations, judged by every moment.

`history.py` records what a writer does to a directory: one version of the tree for each changing file
operation, and beside it every record, log end and removal. `travel.py` is a `Files` that moves along those
versions while a reader works. `readers.py` has the readers of every kind, `judge.py` decides whether a
result is allowed, and `run.py` counts: `python -m tests.readers.run --interleavings 1000000 --jobs 2`.
"""
