"""lz4 frames as Kafka writes them, decompressed for a whole chunk in one call.

Supported is the frame that Kafka's writer and ours make (04 22 4d 18 · 60 40 82: independent blocks of 64
KiB, no sizes, no checksums). Every other frame, and every damaged one, is left to `records.compression`,
which reads all kinds and reports the damage.
"""

from __future__ import annotations

from lastword.kernels import FULL, NO_SLACK, OK, SLACK
from lastword.kernels.memory import copy_exact, copy_wide, load8, load16, load32, load64, store8, store64
from lastword.kernels.native import I64X2, READ_U8, U8, inline, kernel
from lastword.kernels.table import ATTRIBUTES, MAGIC, POSITION, RECORDS_END, RECORDS_POSITION, SIZE
from lastword.wire import CODEC_MASK, HEADER_BYTES, LZ4

UNSUPPORTED = 100
"""Status: `records.compression` has to read this batch."""

BLOCK_BYTES = 64 << 10
_FRAME = 0x184D2204
_FRAME_HEAD_BYTES = 7
_SHORT = 16  # up to this size literals are copied without a loop; less than SLACK past the end
_SHORTEST_MATCH = 4


@inline
def _longer(data, position, end, size):
    """Add the further bytes of a size whose first four bits are all ones; return (size, position).

    Position -1: the bytes pass the end.
    """
    while True:
        if position >= end:
            return 0, -1
        byte = load8(data, position)
        position += 1
        size += byte
        if byte != 255:
            return size, position


@inline
def _copy_match(data, target, distance, size):
    """Repeat the bytes `distance` bytes before `target`; the ranges may overlap."""
    done = 0
    if distance < 8:
        while done < size and done < 16:  # from here a multiple of the distance is at least 8
            store8(data, target + done, load8(data, target + done - distance))
            done += 1
        distance *= (7 + distance) // distance
    while done < size:
        store64(data, target + done, load64(data, target + done - distance))
        done += 8


@inline
def decompress_block(source, position, end, out, start, limit):
    """Decompress the block source[position:end] to `start`; return the end of its bytes.

    Returns -1 for a damaged block or one that passes `limit`. May write SLACK bytes more.
    """
    write = start
    while position < end:
        token = load8(source, position)
        position += 1
        size = token >> 4
        if size == 15:
            size, position = _longer(source, position, end, size)
        if position < 0 or size > end - position or size > limit - write:
            return -1
        if size <= _SHORT:
            store64(out, write, load64(source, position))
            store64(out, write + 8, load64(source, position + 8))
        else:
            copy_wide(out, write, source, position, size)
        position += size
        write += size
        if position == end:
            return write
        if end - position < 2:
            return -1
        distance = load16(source, position)
        position += 2
        size = token & 15
        if size == 15:
            size, position = _longer(source, position, end, size)
        size += _SHORTEST_MATCH
        if position < 0 or distance == 0 or distance > write - start or size > limit - write:
            return -1
        if distance >= 8 and size <= 24:
            store64(out, write, load64(out, write - distance))
            store64(out, write + 8, load64(out, write + 8 - distance))
            store64(out, write + 16, load64(out, write + 16 - distance))
        else:
            _copy_match(out, write, distance, size)
        write += size
    return -1


@inline
def decompress_frame(source, position, end, out, start, limit):
    """Decompress a frame to `start`; return (end of its bytes, status).

    The status is OK, UNSUPPORTED, or FULL if less than a block of room is left before `limit`.
    """
    if end - position < _FRAME_HEAD_BYTES or load32(source, position) != _FRAME:
        return start, UNSUPPORTED
    if load32(source, position + 3) >> 8 != 0x824060:  # flags, descriptor, their checksum
        return start, UNSUPPORTED
    position += _FRAME_HEAD_BYTES
    write = start
    while end - position >= 4:
        word = load32(source, position)
        position += 4
        size = word & 0x7FFFFFFF
        if size == 0:
            return write, OK
        if size > BLOCK_BYTES or size > end - position:
            return start, UNSUPPORTED
        if limit - write < BLOCK_BYTES:
            return start, FULL
        if word >> 31:
            copy_exact(out, write, source, position, size)
            write += size
        else:
            write = decompress_block(source, position, position + size, out, write, write + BLOCK_BYTES)
            if write < 0:
                return start, UNSUPPORTED
        position += size
    return start, UNSUPPORTED


@kernel
def decompress_lz4_rows(
    raw: READ_U8, table: I64X2, row: int, rows: int, skip: READ_U8, uncompressed: U8, done: int
) -> tuple[int, int, int]:
    """Put the records of the batches from `row` on into `uncompressed`, from `done` on.

    Their positions are set in the table.

    `skip` (uint8 for each row, or empty): 1 for a batch of which no record is needed; it gets no bytes in
    `uncompressed`.

    Returns (row, done, status). OK: all rows are done. UNSUPPORTED: this batch is neither an lz4 frame as
    above nor uncompressed (magic 2). FULL: make room for more than 64 KiB, or for all of an uncompressed
    batch, and call again.
    """
    limit = uncompressed.size - SLACK
    while row < rows:
        start = table[row, POSITION] + HEADER_BYTES
        end = table[row, POSITION] + table[row, SIZE]
        if start < 0 or end < start or end > raw.size - SLACK:
            return row, done, NO_SLACK
        codec = table[row, ATTRIBUTES] & CODEC_MASK
        if table[row, MAGIC] != 2:
            return row, done, UNSUPPORTED
        after = done
        if row < skip.size and skip[row]:
            pass
        elif codec == 0 or end == start:
            if end - start > limit - done:
                return row, done, FULL
            copy_exact(uncompressed, done, raw, start, end - start)
            after = done + end - start
        elif codec == LZ4:
            after, status = decompress_frame(raw, start, end, uncompressed, done, limit)
            if status != OK:
                return row, done, status
        else:
            return row, done, UNSUPPORTED
        table[row, RECORDS_POSITION] = done
        table[row, RECORDS_END] = after
        done = after
        row += 1
    return row, done, OK
