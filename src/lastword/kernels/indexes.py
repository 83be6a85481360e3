"""Which batches of a table get an index entry: the rule of `segment.index_builder`, for many at once."""

from __future__ import annotations

from lastword.kernels import kernel
from lastword.kernels.table import FILE_POSITION, LAST_OFFSET, MAX_TIMESTAMP

# Fields of `state`, int64: what the rule remembers from one batch to the next.
ENTRY_POSITION = 0
TIME_ENTRY = 1
LARGEST_TIMESTAMP = 2
LARGEST_TIMESTAMP_OFFSET = 3
STATE_FIELDS = 4


@kernel
def index_rows(table, rows, interval_bytes, state, offset_entries, time_entries):
    """Fill (last offset, file position) and (timestamp, last offset) of each entry of the first `rows` rows.

    Both outputs are int64[rows, 2]. Returns (offset entries, time entries).
    """
    entry_position, time_entry = state[ENTRY_POSITION], state[TIME_ENTRY]
    largest, largest_offset = state[LARGEST_TIMESTAMP], state[LARGEST_TIMESTAMP_OFFSET]
    offsets = times = 0
    for row in range(min(rows, table.shape[0], offset_entries.shape[0], time_entries.shape[0])):
        if table[row, MAX_TIMESTAMP] > largest:
            largest = table[row, MAX_TIMESTAMP]
            largest_offset = table[row, LAST_OFFSET]
        position = table[row, FILE_POSITION]
        if position - entry_position <= interval_bytes:
            continue
        offset_entries[offsets, 0] = table[row, LAST_OFFSET]
        offset_entries[offsets, 1] = position
        offsets += 1
        entry_position = position
        if largest > time_entry:
            time_entries[times, 0] = largest
            time_entries[times, 1] = largest_offset
            times += 1
            time_entry = largest
    state[ENTRY_POSITION], state[TIME_ENTRY] = entry_position, time_entry
    state[LARGEST_TIMESTAMP], state[LARGEST_TIMESTAMP_OFFSET] = largest, largest_offset
    return offsets, times
