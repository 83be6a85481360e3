"""What a state is restored from: the newest values of a log, a file of them, and their time to live.

Uses `resolve` and `partition`; `api.state` has the mapping, and `api.contents` its values. Start reading at
newest.py (the newest record of each key in a range), then snapshot_file.py (newest values as a file) and
ttl.py (values that expire).
"""
