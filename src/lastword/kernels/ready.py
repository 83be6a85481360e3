"""Ready batches that get their place in a log: checked, numbered, and cut where a segment is full."""

from __future__ import annotations

from lastword.kernels import SLACK, kernel
from lastword.kernels.batches import sound_rows
from lastword.kernels.memory import load8, load16_be, load32_be, load64_be, store32_be, store64_be
from lastword.kernels.table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    COUNT,
    CRC,
    FILE_POSITION,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    MAX_TIMESTAMP,
    PLAIN_END,
    PLAIN_POSITION,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
)
from lastword.wire import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    COUNT_AT,
    CRC_AT,
    HEADER_BYTES,
    INT64_MAX,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    OVERHEAD_BYTES,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
)


@kernel
def place_ready(data, sizes, next_offset, epoch, table):
    """Number the batches that lie one behind another in `data`, of `sizes` bytes each, from `next_offset`.

    Each becomes a row of `table`, with its place in `data` as its file position, and gets its base offset and
    leader epoch written. Returns how many: all of `sizes`, or the number of the first that is not plainly a
    whole sound batch of magic 2 without a producer; then nothing was written to `data`.
    """
    rows, position = 0, 0
    room = data.size - SLACK
    while rows < min(sizes.size, table.shape[0]):
        size = sizes[rows]
        if size < HEADER_BYTES or size > room - position:
            break
        if (
            load32_be(data, position + LENGTH_AT) != size - OVERHEAD_BYTES
            or load8(data, position + MAGIC_AT) != 2
        ):
            break
        delta = load32_be(data, position + LAST_OFFSET_DELTA_AT)
        count = load32_be(data, position + COUNT_AT)
        if delta < 0 or count < 0 or next_offset > INT64_MAX - 1 - delta:
            break
        if load64_be(data, position + PRODUCER_ID_AT) != -1:
            break
        table[rows, POSITION] = position
        table[rows, FILE_POSITION] = position
        table[rows, SIZE] = size
        table[rows, BASE_OFFSET] = next_offset
        table[rows, LAST_OFFSET] = next_offset + delta
        table[rows, ATTRIBUTES] = load16_be(data, position + ATTRIBUTES_AT)
        table[rows, COUNT] = count
        table[rows, BASE_TIMESTAMP] = load64_be(data, position + BASE_TIMESTAMP_AT)
        table[rows, MAX_TIMESTAMP] = load64_be(data, position + MAX_TIMESTAMP_AT)
        table[rows, PRODUCER_ID] = -1
        table[rows, PRODUCER_EPOCH] = load16_be(data, position + PRODUCER_EPOCH_AT)
        table[rows, BASE_SEQUENCE] = load32_be(data, position + BASE_SEQUENCE_AT)
        table[rows, LEADER_EPOCH] = epoch
        table[rows, CRC] = load32_be(data, position + CRC_AT) & 0xFFFFFFFF
        table[rows, MAGIC] = 2
        table[rows, PLAIN_POSITION] = position + HEADER_BYTES
        table[rows, PLAIN_END] = position + size
        next_offset += delta + 1
        position += size
        rows += 1
    sound = sound_rows(data, table, rows)
    if sound < sizes.size:
        return sound
    for row in range(rows):
        store64_be(data, table[row, POSITION], table[row, BASE_OFFSET])
        store32_be(data, table[row, POSITION] + LEADER_EPOCH_AT, epoch)
    return rows


@kernel
def rows_before_roll(
    table, first, unasked, rows, segment_size, most_bytes, most_offset, latest, overdue, clock
):
    """Up to which row (exclusive) the rows from `first` on go into a segment of `segment_size` bytes.

    The first `unasked` of them go there in any case. The rule: at most `most_bytes`, no offset above
    `most_offset`, and none but the segment's first batch with a timestamp above `latest`, or at all if
    `overdue`. `clock`: the segment's first batch has no timestamp, then only `overdue` counts.
    """
    start = table[first, POSITION]
    for row in range(first + unasked, rows):
        before = segment_size + table[row, POSITION] - start
        if before + table[row, SIZE] > most_bytes:
            if before > 0:
                return row
            continue
        if table[row, LAST_OFFSET] > most_offset:
            return row
        if before == 0:
            continue
        if overdue if clock else table[row, MAX_TIMESTAMP] > latest:
            return row
    return rows
