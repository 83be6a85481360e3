"""Walk a buffer of batches: each header becomes a row of the table, after its length, magic, CRC and
offsets are checked.
"""

from __future__ import annotations

import numpy as np

from lastword.kernels import (
    BAD_COUNT,
    BAD_CRC,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSET,
    FULL,
    MORE,
    NO_SLACK,
    OK,
    SLACK,
    kernel,
)
from lastword.kernels.crc32c import crc_of, crc_of_four
from lastword.kernels.legacy import read_entry
from lastword.kernels.memory import load8, load16_be, load32_be, load64_be
from lastword.kernels.table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CODEC,
    COUNT,
    CRC,
    FILE_POSITION,
    HEADER_BYTES,
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
    SMALLEST_RECORD_BYTES,
)


@kernel
def walk_batches(raw, position, end, file_position, next_offset, verify, table, row):
    """Fill `table` from `row` on with the batches of raw[position:end].

    `file_position` is where raw[0] lies in its file; `next_offset` the smallest base offset that the next
    batch may have.
    Returns (rows filled, position reached, next offset, status). MORE: the batch at that position is not
    all there. FULL: the table is. A BAD_ status is about the batch at that position; its row is not filled.
    """
    if position < 0 or position > end or end > raw.size - SLACK:
        return row, position, next_offset, NO_SLACK
    while position < end:
        if row >= table.shape[0]:
            return row, position, next_offset, FULL
        if end - position < 17:
            return row, position, next_offset, MORE
        length = load32_be(raw, position + 8)
        if length < 14:  # less than any magic needs; also what a zero-filled tail looks like
            return row, position, next_offset, BAD_LENGTH
        magic = load8(raw, position + 16)
        if magic > 2:
            return row, position, next_offset, BAD_MAGIC
        if magic == 2 and length < HEADER_BYTES - 12:
            return row, position, next_offset, BAD_LENGTH
        size = length + 12
        if size > end - position:
            return row, position, next_offset, MORE
        if magic < 2:
            status = read_entry(raw, position, size, magic, file_position, next_offset, verify, table, row)
            if status != OK:
                return row, position, next_offset, status
            next_offset = table[row, LAST_OFFSET] + 1
            position += size
            row += 1
            continue
        base_offset = load64_be(raw, position)
        delta = load32_be(raw, position + 23)
        crc = load32_be(raw, position + 17) & 0xFFFFFFFF
        if verify and crc_of(raw, position + 21, size - 21) != crc:
            return row, position, next_offset, BAD_CRC
        if base_offset < next_offset or delta < 0 or base_offset > np.iinfo(np.int64).max - 1 - delta:
            return row, position, next_offset, BAD_OFFSET
        attributes = load16_be(raw, position + 21)
        count = load32_be(raw, position + 57)
        if count < 0 or count > delta + 1:
            return row, position, next_offset, BAD_COUNT
        if attributes & CODEC == 0 and count > (size - HEADER_BYTES) // SMALLEST_RECORD_BYTES:
            return row, position, next_offset, BAD_COUNT
        table[row, POSITION] = position
        table[row, FILE_POSITION] = file_position + position
        table[row, SIZE] = size
        table[row, BASE_OFFSET] = base_offset
        table[row, LAST_OFFSET] = base_offset + delta
        table[row, ATTRIBUTES] = attributes
        table[row, COUNT] = count
        table[row, BASE_TIMESTAMP] = load64_be(raw, position + 27)
        table[row, MAX_TIMESTAMP] = load64_be(raw, position + 35)
        table[row, PRODUCER_ID] = load64_be(raw, position + 43)
        table[row, PRODUCER_EPOCH] = load16_be(raw, position + 51)
        table[row, BASE_SEQUENCE] = load32_be(raw, position + 53)
        table[row, LEADER_EPOCH] = load32_be(raw, position + 12)
        table[row, CRC] = crc
        table[row, MAGIC] = magic
        table[row, PLAIN_POSITION] = position + HEADER_BYTES
        table[row, PLAIN_END] = position + size
        next_offset = base_offset + delta + 1
        position += size
        row += 1
    return row, position, next_offset, OK


@kernel
def sound_rows(data, table, rows):
    """How many rows of magic 2, from the first on, have the checksum of their bytes, which lie in `data`.

    Four are computed side by side: one alone waits for its own last step most of the time.
    """
    row = 0
    while row + 4 <= rows:
        found = crc_of_four(
            data,
            table[row, POSITION] + 21,
            table[row, SIZE] - 21,
            table[row + 1, POSITION] + 21,
            table[row + 1, SIZE] - 21,
            table[row + 2, POSITION] + 21,
            table[row + 2, SIZE] - 21,
            table[row + 3, POSITION] + 21,
            table[row + 3, SIZE] - 21,
        )
        for one in range(4):
            if found[one] != table[row + one, CRC]:
                return row + one
        row += 4
    while row < rows:
        if crc_of(data, table[row, POSITION] + 21, table[row, SIZE] - 21) != table[row, CRC]:
            return row
        row += 1
    return rows
