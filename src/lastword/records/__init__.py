"""Bytes and what they mean; no files.

A batch is the physical unit of the log: a header of 61 bytes (batch.py) and records (reader.py, builder.py),
which may be compressed together (compression.py). A control batch holds one control record (control.py).
Only magic 2 is read and written.

Two paths stand side by side. The one here is plain Python, for single appends, header walks, recovery and
dump: no Numba. chunk.py, columns.py and pack.py treat millions of records with the kernels; import them only
where they are used.

Stands on `errors`. Start reading at batch.py, then reader.py.
"""

from lastword.records.batch import BatchHeader, crc_ok, read_header, read_records, set_base_offset
from lastword.records.builder import BatchBuilder
from lastword.records.record import Header, RawRecord

__all__ = [
    "BatchBuilder",
    "BatchHeader",
    "Header",
    "RawRecord",
    "crc_ok",
    "read_header",
    "read_records",
    "set_base_offset",
]
