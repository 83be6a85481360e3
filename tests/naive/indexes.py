"""The index rule over rows of (file position, last offset, largest timestamp)."""

from __future__ import annotations

Entry = tuple[int, int]


def index_rows(
    rows: list[tuple[int, int, int]], interval_bytes: int, state: tuple[int, int, int, int]
) -> tuple[list[Entry], list[Entry], tuple[int, int, int, int]]:
    """((last offset, position) entries, (timestamp, last offset) entries, state after them)."""
    entry_position, time_entry, largest, largest_offset = state
    offsets, times = [], []
    for position, last_offset, timestamp in rows:
        if timestamp > largest:
            largest, largest_offset = timestamp, last_offset
        if position - entry_position > interval_bytes:
            offsets.append((last_offset, position))
            entry_position = position
            if largest > time_entry:
                times.append((largest, largest_offset))
                time_entry = largest
    return offsets, times, (entry_position, time_entry, largest, largest_offset)
