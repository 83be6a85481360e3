"""The bytes of records and batches; no files.

A batch is the physical unit of the log: a header of 61 bytes and records (batch.py), which may be compressed
together (compression.py). A control batch holds one control record (record.py). formats.py reads batches of
any magic, and has magic 0 and 1.

There are two paths. Plain Python is for single appends, header walks, recovery and dump: it loads no Numba.
chunk.py, columns.py and pack.py process millions of records with the kernels; import them only where they
are used.

Start reading at batch.py.
"""
