"""Rows of magic 0 and 1 of a chunk: their records put into the plain buffer in the layout of magic 2, by
kernels.

Called by `records.chunk` after the headers were walked (`kernels.legacy.read_entry`). Afterwards a row is
complete: first offset, count, where its plain records lie. Imported only with kernels; plain Python reads
these formats through `records.legacy`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptBatchError
from lastword.kernels import legacy as legacy_kernels
from lastword.kernels import table as fields
from lastword.records import legacy
from lastword.records.batch import BatchHeader
from lastword.wire import CODEC_MASK

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]

_INNER_TEXT = {
    kernels.BAD_COUNT: "a wrapper without a whole inner entry",
    kernels.BAD_RECORD: "compressed inside a compressed entry",
}


def inflate_rows(
    raw: Bytes,
    table: Table,
    row: int,
    plain: Bytes,
    done: int,
    room: Callable[[int, int], Bytes],
    *,
    file: str,
    limit: int,
    first_offset: int = 0,
) -> tuple[int, Bytes, int]:
    """Translate the rows of magic 0 and 1 from `row` on, up to the first of another magic.

    Args:
        raw, table: of the chunk. plain, done: the plain buffer (with slack) and how much of it is used.
        room: `room(used, n)` gives a plain buffer with room for n more bytes and slack, the used ones kept.
        limit: bytes a wrapper may have inflated; more is DecompressionLimitError.
        first_offset: no record of the chunk's first row may lie below it.

    Returns (row reached, the plain buffer, bytes used). Raises DataError with file, position and offset.
    """
    rows = table.shape[0]
    while row < rows and table[row, fields.MAGIC] < 2:
        row, done, status = legacy_kernels.translate_messages(raw, table, row, rows, plain, done)
        if status == kernels.FULL:
            plain = room(done, int(table[row, fields.SIZE]) + legacy_kernels.GROWTH_BYTES)
        elif status != kernels.OK:
            raise _bad(kernels.STATUS_TEXT[status], table, row, file)
        elif row < rows and table[row, fields.MAGIC] < 2:
            plain, done = _wrapper(raw, table, row, plain, done, room, file, limit)
            _check_order(table, row, first_offset, file)
            row += 1
    return row, plain, done


def _wrapper(
    raw: Bytes,
    table: Table,
    row: int,
    plain: Bytes,
    done: int,
    room: Callable[[int, int], Bytes],
    file: str,
    limit: int,
) -> tuple[Bytes, int]:
    at = int(table[row, fields.POSITION])
    data = legacy.inner_bytes(raw, header_of(table, row), file, position=at, limit_bytes=limit)
    inner = np.empty(len(data) + kernels.SLACK, np.uint8)
    inner[: len(data)] = np.frombuffer(data, np.uint8)
    count, first, last, status = legacy_kernels.scan_inner(inner, len(data))
    if status != kernels.OK:
        text = _INNER_TEXT.get(status, kernels.STATUS_TEXT[status])
        raise _bad(f"{text} (after {count} whole inner entries)", table, row, file)
    plain = room(done, len(data) + legacy_kernels.GROWTH_BYTES * (count + 1))
    done, status = legacy_kernels.translate_wrapper(inner, count, first, last, table, row, plain, done)
    if status != kernels.OK:
        raise _bad(f"inner entries: {kernels.STATUS_TEXT[status]}", table, row, file)
    return plain, done


def _check_order(table: Table, row: int, first_offset: int, file: str) -> None:
    """A wrapper's own range is known only now: it must not reach into its neighbours'."""
    due = int(table[row - 1, fields.LAST_OFFSET]) + 1 if row else first_offset
    next_base = table[row + 1, fields.BASE_OFFSET] if row + 1 < table.shape[0] else None
    first, last = int(table[row, fields.BASE_OFFSET]), int(table[row, fields.LAST_OFFSET])
    if first < due or (next_base is not None and next_base <= last):
        raise _bad(f"its messages {first} to {last} overlap those beside it", table, row, file)


def header_of(table: Table, row: int) -> BatchHeader:
    """A legacy row as `records.legacy` takes it; `position` is in the file."""
    position, size, offset, attributes, timestamp, crc, magic = (
        int(table[row, column])
        for column in (
            fields.FILE_POSITION,
            fields.SIZE,
            fields.LAST_OFFSET,
            fields.ATTRIBUTES,
            fields.MAX_TIMESTAMP,
            fields.CRC,
            fields.MAGIC,
        )
    )
    return BatchHeader(
        position=position,
        size=size,
        base_offset=offset,
        last_offset=offset,
        leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=attributes,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=1 if attributes & CODEC_MASK == 0 else legacy.UNKNOWN_COUNT,
    )


def _bad(text: str, table: Table, row: int, file: str) -> CorruptBatchError:
    offset = int(table[row, fields.LAST_OFFSET])
    return CorruptBatchError(
        f"offset {offset}: {text}",
        code="bad-records",
        remedy="restore the file from a copy; `lastword verify` lists all damage",
        file=file,
        position=int(table[row, fields.FILE_POSITION]),
        offset=offset,
    )
