"""Entries of magic 0 and 1 as an old producer sends them: many records in one compressed wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lastword.records.formats import build_message, wrap
from lastword.records.record import RawRecord


def build_wrapper(
    magic: int, codec: int, records: Sequence[RawRecord], *, log_append_ms: int | None = None
) -> bytes:
    """Return a wrapper of records whose offsets increase; gaps are kept.

    `log_append_ms`: give all records this time, of type LogAppendTime.
    """
    if not records or any(a.offset >= b.offset for a, b in pairwise(records)):
        raise ValueError("a wrapper holds one record or more, and their offsets rise")
    first = records[0].offset
    inner = b"".join(
        build_message(
            magic,
            record.offset - first if magic else record.offset,
            record.key,
            record.value,
            record.timestamp if log_append_ms is None else log_append_ms,
            log_append=log_append_ms is not None,
        )
        for record in records
    )
    stamp = max(record.timestamp for record in records) if log_append_ms is None else log_append_ms
    return wrap(magic, codec, records[-1].offset, stamp, log_append_ms is not None, inner)
