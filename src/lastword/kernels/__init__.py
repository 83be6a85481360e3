"""Loops over arrays: everything that is done once for each record, compiled to machine code.

The package imports NumPy and the constants of `lastword.wire`. A kernel takes arrays and integers and returns
a status. It raises no exception: the callers in `records` and `resolve` turn statuses into errors that name
the file. Start reading at `table.py` (a row for each batch, which every kernel reads), then `batches.py`,
`columns.py`, `key_batch.py`, `offset_map.py`.

Rules that make unchecked loads safe:

- A buffer that a kernel reads has at least `SLACK` bytes after its last valid byte. Each kernel checks this.
- A length is compared with the bytes that are left (`n < 0 or n > end - position`) before it is used.
- With `NUMBA_BOUNDSCHECK=1` the raw loads of `intrinsics.py` check every access as Numba checks an index.

The annotations of a kernel are its types; nothing is inferred from a call. `native.py` keeps compiled code in
a private folder and loads it with llvmlite alone. Numba is imported only to compile a kernel that is not
kept (`compiler.py`, `intrinsics.py`). `warming.warm` compiles every kernel.
"""

from __future__ import annotations

# Statuses. OK: all is done. MORE: the input ends inside a batch. FULL: an output or the map has no room;
# call again with more.
OK = 0
MORE = 1
FULL = 2
BAD_LENGTH = 3
BAD_MAGIC = 4
BAD_CRC = 5
BAD_OFFSET = 6
BAD_COUNT = 7
BAD_RECORD = 8
NO_SLACK = 9

STATUS_TEXT = {
    BAD_LENGTH: "impossible length",
    BAD_MAGIC: "unknown magic",
    BAD_CRC: "checksum mismatch",
    BAD_OFFSET: "offsets do not increase",
    BAD_COUNT: "impossible record count",
    BAD_RECORD: "malformed record",
    NO_SLACK: "buffer without slack",
}

SLACK = 64
"""Bytes that must follow the end of any buffer that a kernel reads or writes.

Wide loads and stores may touch them. They never change a result.
"""
