"""A mapping whose changes are a log: `State`, and what restoring one needs.

Stands on `resolve` and `partition`; a topic is handed to it, so it knows nothing of how one is opened.
Start reading at `state.py`, then `newest.py` (which record of a key is the newest in a range) and
`snapshot_file.py` (these as a file).
"""
