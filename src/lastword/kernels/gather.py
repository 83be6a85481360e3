"""Scattered spans into Arrow's shape: offsets, one data buffer, one validity bit each."""

from __future__ import annotations

from lastword.kernels import NO_SLACK, OK, SLACK, kernel
from lastword.kernels.memory import copy_wide


@kernel
def span_bytes(length):
    """(bytes of all spans, number of nulls); a negative length is a null."""
    total = 0
    nulls = 0
    for i in range(length.size):
        if length[i] < 0:
            nulls += 1
        else:
            total += length[i]
    return total, nulls


@kernel
def gather_spans(source, position, length, offsets, data, validity):
    """Copy each source[position:position + length] behind the one before into `data`.

    `offsets` (int32[n + 1]) and `data` (SLACK bytes more than needed) become an Arrow binary array;
    `validity`, zeroed by the caller, gets a bit for each span that is not null, or is empty (size 0) when
    none is null. Spans must lie inside `source`, before its slack.
    """
    total = 0
    marked = validity.size > 0
    for i in range(position.size):
        offsets[i] = total
        size = length[i]
        if size >= 0:
            at = position[i]
            if at < 0 or size > source.size - SLACK - at or size > data.size - SLACK - total:
                return NO_SLACK
            copy_wide(data, total, source, at, size)
            total += size
            if marked:
                validity[i >> 3] |= 1 << (i & 7)
    offsets[position.size] = total
    return OK
