"""Batch headers into rows of the batch table.

Length, magic, checksum and offsets of each batch are checked before its row is filled.
"""

from __future__ import annotations

from lastword import wire
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
)
from lastword.kernels import table as fields
from lastword.kernels.hashing import crc_of, crc_of_four
from lastword.kernels.legacy import read_entry
from lastword.kernels.memory import load8, load16_be, load32, load32_be, load64_be, store32_be, store64_be
from lastword.kernels.native import BOOLS, I64X2, READ_I64, READ_I64X2, READ_U8, U8, inline, kernel


@inline
def _fill_row(table, row, raw, position, file_position, size, base_offset):
    """Fill a row with the header of the batch of magic 2 at `position`, which begins at `base_offset`."""
    table[row, fields.POSITION] = position
    table[row, fields.FILE_POSITION] = file_position + position
    table[row, fields.SIZE] = size
    table[row, fields.BASE_OFFSET] = base_offset
    table[row, fields.LAST_OFFSET] = base_offset + load32_be(raw, position + wire.LAST_OFFSET_DELTA_AT)
    table[row, fields.ATTRIBUTES] = load16_be(raw, position + wire.ATTRIBUTES_AT)
    table[row, fields.COUNT] = load32_be(raw, position + wire.COUNT_AT)
    table[row, fields.BASE_TIMESTAMP] = load64_be(raw, position + wire.BASE_TIMESTAMP_AT)
    table[row, fields.MAX_TIMESTAMP] = load64_be(raw, position + wire.MAX_TIMESTAMP_AT)
    table[row, fields.PRODUCER_ID] = load64_be(raw, position + wire.PRODUCER_ID_AT)
    table[row, fields.PRODUCER_EPOCH] = load16_be(raw, position + wire.PRODUCER_EPOCH_AT)
    table[row, fields.BASE_SEQUENCE] = load32_be(raw, position + wire.BASE_SEQUENCE_AT)
    table[row, fields.LEADER_EPOCH] = load32_be(raw, position + wire.LEADER_EPOCH_AT)
    table[row, fields.CRC] = load32_be(raw, position + wire.CRC_AT) & 0xFFFFFFFF
    table[row, fields.MAGIC] = 2
    table[row, fields.RECORDS_POSITION] = position + wire.HEADER_BYTES
    table[row, fields.RECORDS_END] = position + size


@kernel
def walk_batches(
    raw: READ_U8,
    position: int,
    end: int,
    file_position: int,
    next_offset: int,
    verify: bool,
    table: I64X2,
    row: int,
) -> tuple[int, int, int, int]:
    """Fill `table` from `row` on with the batches of raw[position:end].

    `file_position` is the position of raw[0] in its file. `next_offset` is the smallest base offset that the
    next batch may have.

    Returns (rows filled, position reached, next offset, status). MORE: the batch at that position is
    incomplete. FULL: the table is full. A BAD_ status is about the batch at that position, whose row is not
    filled.
    """
    if position < 0 or position > end or end > raw.size - SLACK:
        return row, position, next_offset, NO_SLACK
    while position < end:
        if row >= table.shape[0]:
            return row, position, next_offset, FULL
        if end - position < wire.STEP_BYTES:
            return row, position, next_offset, MORE
        length = load32_be(raw, position + wire.LENGTH_AT)
        if length < wire.SMALLEST_LENGTH:  # less than any magic needs; also the length in a zero-filled tail
            return row, position, next_offset, BAD_LENGTH
        magic = load8(raw, position + wire.MAGIC_AT)
        if magic > 2:
            return row, position, next_offset, BAD_MAGIC
        if magic == 2 and length < wire.HEADER_BYTES - wire.OVERHEAD_BYTES:
            return row, position, next_offset, BAD_LENGTH
        size = length + wire.OVERHEAD_BYTES
        if size > end - position:
            return row, position, next_offset, MORE
        if magic < 2:
            status = read_entry(raw, position, size, magic, file_position, next_offset, verify, table, row)
            if status != OK:
                return row, position, next_offset, status
            next_offset = table[row, fields.LAST_OFFSET] + 1
            position += size
            row += 1
            continue
        base_offset = load64_be(raw, position)
        delta = load32_be(raw, position + wire.LAST_OFFSET_DELTA_AT)
        crc = load32_be(raw, position + wire.CRC_AT) & 0xFFFFFFFF
        if verify and crc_of(raw, position + wire.ATTRIBUTES_AT, size - wire.ATTRIBUTES_AT) != crc:
            return row, position, next_offset, BAD_CRC
        if base_offset < next_offset or delta < 0 or base_offset > wire.INT64_MAX - 1 - delta:
            return row, position, next_offset, BAD_OFFSET
        attributes = load16_be(raw, position + wire.ATTRIBUTES_AT)
        count = load32_be(raw, position + wire.COUNT_AT)
        if count < 0 or count > delta + 1:
            return row, position, next_offset, BAD_COUNT
        if (
            attributes & wire.CODEC_MASK == 0
            and count > (size - wire.HEADER_BYTES) // wire.SMALLEST_RECORD_BYTES
        ):
            return row, position, next_offset, BAD_COUNT
        _fill_row(table, row, raw, position, file_position, size, base_offset)
        next_offset = base_offset + delta + 1
        position += size
        row += 1
    return row, position, next_offset, OK


@kernel
def valid_rows(data: READ_U8, table: READ_I64X2, rows: int) -> int:
    """Count the leading rows of magic 2 whose checksums match their bytes in `data`.

    Four checksums are computed side by side: a single one waits for its own last step most of the time.
    """
    row = 0
    while row + 4 <= rows:
        crcs = crc_of_four(
            data,
            table[row, fields.POSITION] + wire.ATTRIBUTES_AT,
            table[row, fields.SIZE] - wire.ATTRIBUTES_AT,
            table[row + 1, fields.POSITION] + wire.ATTRIBUTES_AT,
            table[row + 1, fields.SIZE] - wire.ATTRIBUTES_AT,
            table[row + 2, fields.POSITION] + wire.ATTRIBUTES_AT,
            table[row + 2, fields.SIZE] - wire.ATTRIBUTES_AT,
            table[row + 3, fields.POSITION] + wire.ATTRIBUTES_AT,
            table[row + 3, fields.SIZE] - wire.ATTRIBUTES_AT,
        )
        for i in range(4):
            if crcs[i] != table[row + i, fields.CRC]:
                return row + i
        row += 4
    while row < rows:
        if (
            crc_of(
                data,
                table[row, fields.POSITION] + wire.ATTRIBUTES_AT,
                table[row, fields.SIZE] - wire.ATTRIBUTES_AT,
            )
            != table[row, fields.CRC]
        ):
            return row
        row += 1
    return rows


_ZSTD_FRAME = 0xFD2FB528


@inline
def _zstd_bound(raw, position, end):
    """Return an upper bound of the decompressed size of the zstd frames raw[position:end]; -1 if unknown.

    The bound is the sum over the blocks' headers.
    """
    bound = 0
    while end - position >= 9:
        if load32(raw, position) != _ZSTD_FRAME:
            return -1
        flags = load8(raw, position + 4)
        single = flags >> 5 & 1
        position += 6 - single
        if flags & 3:
            position += 1 << (flags & 3) - 1
        if flags >> 6:
            position += 1 << (flags >> 6)
        elif single:
            position += 1
        last = 0
        while not last:
            if end - position < 3:
                return -1
            head = load32(raw, position) & 0xFFFFFF
            last, kind, size = head & 1, head >> 1 & 3, head >> 3
            position += 3 + (1 if kind == 1 else size)  # a run stores only the repeated byte
            bound += wire.ZSTD_BLOCK_BYTES if kind == 2 else size
        if flags & 4:
            position += 4
    return bound if position == end else -1


@kernel
def find_plain_zstd(raw: READ_U8, starts: READ_I64, ends: READ_I64, marks: BOOLS) -> None:
    """Set marks[i] to whether raw[starts[i]:ends[i]] is one frame of zstd as Kafka writes it.

    Such a frame has no content size, checksum or dictionary, and nothing follows it. The blocks are read by
    their headers. False for bytes outside `raw`.
    """
    for i in range(starts.size):
        position, end = starts[i], ends[i]
        marks[i] = False
        if position < 0 or end > raw.size - SLACK or end - position < 9:
            continue
        if load32(raw, position) != _ZSTD_FRAME or load8(raw, position + 4) != 0:
            continue
        position += 6
        last = 0
        while not last and end - position >= 3:
            head = load32(raw, position) & 0xFFFFFF
            last, kind, size = head & 1, head >> 1 & 3, head >> 3
            position += 3 + (1 if kind == 1 else size)
        marks[i] = last == 1 and position == end


@kernel
def rows_that_fit(raw: READ_U8, table: READ_I64X2, rows: int, skip: READ_U8, max_bytes: int) -> int:
    """Count the leading rows whose records take at most `max_bytes` together when decompressed; at least 1.

    The bound of a row is what its codec can reach (zstd: the sum of its blocks), never a size that the row
    declares. `skip` (uint8 for each row, or empty): 1 for a batch that is not decompressed.
    """
    if rows and table[rows - 1, fields.POSITION] + table[rows - 1, fields.SIZE] > raw.size - SLACK:
        return 0
    total = 0
    for row in range(rows):
        if row < skip.size and skip[row]:
            continue
        codec = table[row, fields.ATTRIBUTES] & wire.CODEC_MASK
        size = table[row, fields.SIZE]
        if codec == wire.GZIP:
            size *= wire.GZIP_GROWTH
        elif codec == wire.SNAPPY:
            size *= wire.SNAPPY_GROWTH
        elif codec == wire.LZ4:
            size *= wire.LZ4_GROWTH
        elif codec:
            position = table[row, fields.POSITION]
            size = _zstd_bound(raw, position + wire.HEADER_BYTES, position + size)
            if size < 0:
                size = max_bytes + 1
        total += size
        if total > max_bytes and row:
            return row
    return rows


@kernel
def assign_offsets(data: U8, sizes: READ_I64, next_offset: int, epoch: int, table: I64X2) -> int:
    """Check the encoded batches in `data`, of `sizes` bytes each, and number them from `next_offset`.

    Each batch becomes a row of `table`, with its position in `data` as its file position. Its base offset
    and leader epoch are written to `data`. Returns the number of batches: all of `sizes`, or the index of
    the first that is not a whole valid batch of magic 2 without a producer. In that case nothing is written
    to `data`.
    """
    rows, position = 0, 0
    end = data.size - SLACK
    while rows < min(sizes.size, table.shape[0]):
        size = sizes[rows]
        if size < wire.HEADER_BYTES or size > end - position:
            break
        if (
            load32_be(data, position + wire.LENGTH_AT) != size - wire.OVERHEAD_BYTES
            or load8(data, position + wire.MAGIC_AT) != 2
        ):
            break
        delta = load32_be(data, position + wire.LAST_OFFSET_DELTA_AT)
        count = load32_be(data, position + wire.COUNT_AT)
        if delta < 0 or count < 0 or next_offset > wire.INT64_MAX - 1 - delta:
            break
        if load64_be(data, position + wire.PRODUCER_ID_AT) != -1:
            break
        _fill_row(table, rows, data, position, 0, size, next_offset)
        table[rows, fields.LEADER_EPOCH] = epoch
        next_offset += delta + 1
        position += size
        rows += 1
    valid = valid_rows(data, table, rows)
    if valid < sizes.size:
        return valid
    for row in range(rows):
        store64_be(data, table[row, fields.POSITION], table[row, fields.BASE_OFFSET])
        store32_be(data, table[row, fields.POSITION] + wire.LEADER_EPOCH_AT, epoch)
    return rows
