"""Read the newest values of a log, write and read a file of them, and compute when they expire.

Uses `resolve` and `partition`; `api.state` has the mapping, and `api.contents` its values. Start reading at
newest.py (the newest record of each key in a range), then snapshot_file.py (newest values as a file) and
ttl.py (values that expire).
"""
