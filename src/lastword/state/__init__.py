"""`State`, a mapping whose changes are a log, and its restore.

Uses `resolve` and `partition`; the caller passes an open topic. Start reading at state.py, then newest.py
(the newest record of each key in a range), snapshot_file.py (newest values as a file) and ttl.py (values that
expire).
"""
