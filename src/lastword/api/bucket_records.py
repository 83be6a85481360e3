"""Records on their way into a bucket: in a form that can be read again, in groups that are one commit each.

An append runs in a transaction, which may run again. So its records are held, and an iterator is committed in
groups of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lastword.api.record import RECORD_BYTES, check_records, size_of
from lastword.arrow import pa
from lastword.values import in_groups

GROUP_BYTES = 16 << 20
"""Records of an iterator that are one commit."""


def whole(records: Any) -> tuple[Any, int]:
    """Return all records in a form that can be read again, and their approximate size."""
    if hasattr(records, "__arrow_c_stream__"):
        table = pa.table(records)
        return table, table.nbytes
    check_records(records)
    held = records if isinstance(records, Mapping | list | tuple) else list(records)
    return held, len(held) * 2 * RECORD_BYTES


def groups_of(records: Any) -> Iterator[tuple[Any, int]]:
    """Return the records in groups that are one commit each, with their approximate sizes.

    A list, a mapping and a table are one group.
    """
    if hasattr(records, "read_next_batch"):  # a reader of Arrow batches
        for batches, size_bytes in in_groups(records, lambda batch: batch.nbytes, GROUP_BYTES):
            yield pa.Table.from_batches(batches), size_bytes
    elif isinstance(records, Iterator):
        yield from in_groups(records, size_of, GROUP_BYTES)
    else:
        yield whole(records)
