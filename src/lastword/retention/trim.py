"""Where a log starts after it was trimmed before an offset or a time."""

from __future__ import annotations

from datetime import datetime

from lastword.errors import OffsetOutOfRangeError, UsageError
from lastword.parse import to_ms
from lastword.partition.view import PartitionView


def trim_offset(view: PartitionView, before: int | datetime) -> int:
    """The new log start: the offset itself, or the first record that is not older; never below the present
    one. A time after the last record empties the log.

    OffsetOutOfRangeError above the log end; UsageError for what is neither an offset nor an aware datetime.
    """
    if isinstance(before, datetime):
        found = view.offset_at(to_ms(before))
        return view.log_end if found is None else max(found, view.log_start)
    if isinstance(before, bool) or not isinstance(before, int) or before < 0:
        raise UsageError(
            f"before={before!r} is no place in a log", remedy="give an offset or an aware datetime"
        )
    if before > view.log_end:
        raise OffsetOutOfRangeError.above(f"{view.topic}-{view.partition}", before, view.log_end)
    return max(before, view.log_start)
