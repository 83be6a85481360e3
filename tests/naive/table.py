"""The rules over rows of the batch table: which rows get index entries, and where a segment ends."""

from __future__ import annotations

Entry = tuple[int, int]


def index_rows(
    rows: list[tuple[int, int, int]], interval_bytes: int, state: tuple[int, int, int, int]
) -> tuple[list[Entry], list[Entry], tuple[int, int, int, int]]:
    """Return the entries of both indexes, and the state after them.

    The entries are (last offset, position) and (timestamp, last offset).
    """
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


def rows_before_roll(
    rows: list[tuple[int, int, int]],
    unasked: int,
    segment_size: int,
    most_bytes: int,
    most_offset: int,
    last_time: int,
) -> int:
    """Return the number of rows that fit into the segment.

    Rows are (size, last offset, largest timestamp). The first row of a segment may have any size and time.
    """
    before = segment_size
    for number, (size, last_offset, timestamp) in enumerate(rows):
        is_over = before + size > most_bytes or timestamp > last_time
        if number >= unasked and (last_offset > most_offset or (before > 0 and is_over)):
            return number
        before += size
    return len(rows)
