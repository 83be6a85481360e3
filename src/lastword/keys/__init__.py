"""The key index of a partition: from each key to the offset of its newest committed record.

It is derived from the log, and kept for lookups of single keys (`Topic.get`). `index.py` has the lookup, the
overlay in memory, and what makes an index grow; start reading there. `run.py` has the files, `manifest.py`
which files there are and the proof that they are of this log, `bulk.py` (NumPy) builds and merges runs.

An entry proposes an offset, and the bytes of the record's key decide. A key without an entry is absent: 128
bits of BLAKE2b with a random salt prove it, because two keys with equal digests would be a collision of a
cryptographic hash.
"""
