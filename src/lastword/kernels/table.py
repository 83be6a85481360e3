"""The batch table: `int64[rows, FIELDS]`, a row for each batch.

POSITION is the start of the batch in its bytes on disk (`raw`), FILE_POSITION the same position in its file,
SIZE its bytes on disk. RECORDS_POSITION and RECORDS_END bound its records in `uncompressed`. BASE_TIMESTAMP
is the raw field at byte 27: the base timestamp, or the delete horizon if HORIZON is in ATTRIBUTES. All
others are the fields of the header. A row of magic 0 or 1 reads the same once its records were translated
(`kernels.legacy`).
"""

from __future__ import annotations

from lastword.kernels.native import I64, I64X2, READ_I64X2, kernel

POSITION = 0
FILE_POSITION = 1
SIZE = 2
BASE_OFFSET = 3
LAST_OFFSET = 4
ATTRIBUTES = 5
COUNT = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
PRODUCER_ID = 9
PRODUCER_EPOCH = 10
BASE_SEQUENCE = 11
LEADER_EPOCH = 12
CRC = 13
MAGIC = 14
RECORDS_POSITION = 15
RECORDS_END = 16
FIELDS = 17

# Fields of `state`, int64: what the index rule carries from one batch to the next.
ENTRY_POSITION = 0
TIME_ENTRY = 1
LARGEST_TIMESTAMP = 2
LARGEST_TIMESTAMP_OFFSET = 3


@kernel
def index_rows(
    table: READ_I64X2, rows: int, interval_bytes: int, state: I64, offset_entries: I64X2, time_entries: I64X2
) -> tuple[int, int]:
    """Fill the offset index and time index entries of the first `rows` rows.

    The rule is that of `segment.indexes`. The entries are (last offset, file position) and (timestamp,
    last offset); both outputs are int64[rows, 2]. Returns (offset entries, time entries).
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


@kernel
def rows_before_roll(
    table: READ_I64X2,
    first: int,
    unasked: int,
    rows: int,
    segment_size: int,
    most_bytes: int,
    most_offset: int,
    last_time: int,
) -> int:
    """Return the row (exclusive) up to which the rows from `first` on fit a segment of `segment_size` bytes.

    The first `unasked` rows are included in any case. The rule: no offset above `most_offset`, and, after the
    segment's first batch, at most `most_bytes` and no batch with a timestamp above `last_time`.
    """
    start = table[first, POSITION]
    for row in range(first + unasked, rows):
        before = segment_size + table[row, POSITION] - start
        if table[row, LAST_OFFSET] > most_offset:
            return row
        if before > 0 and (before + table[row, SIZE] > most_bytes or table[row, MAX_TIMESTAMP] > last_time):
            return row
    return rows
