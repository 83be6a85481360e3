"""The survivors of a chunk, copied while it is in the processor's cache, for the rewrite that follows."""

from __future__ import annotations

import numpy as np

from lastword.kernels import FULL, NO_SLACK, OK, SLACK
from lastword.kernels.columns import read_deltas
from lastword.kernels.digest import content_digest
from lastword.kernels.key_batch import DEAD, KEY_LENGTH, KEY_POSITION, OFFSET, RECORD_END, KeyBatch
from lastword.kernels.key_batch import SIZE as SPAN_SIZE
from lastword.kernels.memory import copy_exact, copy_wide, not_negative, read_varint
from lastword.kernels.native import I64X2, U8, kernel
from lastword.kernels.repack import RECORDS_BEFORE, SIZE_BEFORE, RepackSource
from lastword.kernels.table import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    COUNT,
    FIELDS,
    MAX_TIMESTAMP,
    POSITION,
    RECORDS_END,
    RECORDS_POSITION,
    SIZE,
)
from lastword.wire import CODEC_MASK, HEADER_BYTES, LOG_APPEND_BIT


@kernel
def copy_survivors(
    source: RepackSource,
    rows: int,
    batch: KeyBatch,
    filled: int,
    out: U8,
    position: int,
    table: I64X2,
    before: I64X2,
) -> tuple[int, np.uint64, int, int]:
    """Copy the batches of a chunk to out[position:] without their dead records; fill `table` and `before`.

    All are data batches of magic 2, and `batch` holds all `filled` records of them, settled
    (`hash_map.settle_keys`). A batch without a dead record is copied whole, others lose all but their header,
    and the records that are left follow it. A batch with a codec has its records uncompressed behind its
    bytes. `table` is that of a chunk whose `raw` and `uncompressed` are `out`; `before` is that of a
    `RepackSource`.

    Returns (end, sum of the content digests of the survivors, row, status). FULL: `out` has too little room.
    """
    raw, uncompressed, old_table, _before = source
    _hashes, spans, _page_ids, _homes = batch
    contents = np.uint64(0)
    first = 0
    for row in range(rows):
        size = old_table[row, SIZE]
        start = old_table[row, POSITION]
        at = old_table[row, RECORDS_POSITION]
        records_bytes = old_table[row, RECORDS_END] - at
        count = old_table[row, COUNT]
        end = first + count
        if start < 0 or size < HEADER_BYTES or size > raw.size - SLACK - start or end > filled:
            return position, contents, row, NO_SLACK
        if size + records_bytes + SLACK > out.size - position:
            return position, contents, row, FULL
        attributes = old_table[row, ATTRIBUTES]
        gone = 0
        for i in range(first, end):
            gone += (spans[SPAN_SIZE, i] & DEAD) != 0
        for field in range(FIELDS):
            table[row, field] = old_table[row, field]
        before[row, RECORDS_BEFORE] = count
        before[row, SIZE_BEFORE] = records_bytes
        in_place = gone == 0 and attributes & CODEC_MASK == 0
        if gone > 0:
            size = HEADER_BYTES
        copy_exact(out, position, raw, start, size)
        table[row, POSITION] = position
        table[row, SIZE] = size
        table[row, COUNT] = count - gone
        table[row, RECORDS_POSITION] = position + (HEADER_BYTES if in_place else size)
        position += size
        for number in range(first, end if gone < count else first):
            i = not_negative(number)
            record_end = spans[RECORD_END, i]
            if spans[SPAN_SIZE, i] & DEAD == 0:
                _size, body = read_varint(uncompressed, at)
                delta, _offset_delta, _rest, _valid = read_deltas(uncompressed, body)
                timestamp = old_table[row, BASE_TIMESTAMP] + delta
                if attributes & LOG_APPEND_BIT:
                    timestamp = old_table[row, MAX_TIMESTAMP]
                contents += content_digest(
                    uncompressed,
                    spans[KEY_POSITION, i],
                    spans[KEY_LENGTH, i],
                    record_end,
                    spans[OFFSET, i],
                    timestamp,
                )
                if not in_place:
                    copy_wide(out, position, uncompressed, at, record_end - at)
                    position += record_end - at
            at = record_end
        table[row, RECORDS_END] = position
        first = end
    return position, contents, rows, OK
