"""Run readers beside a writer and cleaners, interleaved at single file operations, checked at every moment.

`history.py` records one version of the tree for each changing file operation of a writer, and also every
record, log end and removal. `travel.py` is a `Files` that moves along those versions while a reader works.
`readers.py` has readers of every kind, `judge.py` decides whether a result is allowed, and `run.py` counts:
`python -m tests.readers.run --interleavings 1000000 --jobs 2`.
"""
