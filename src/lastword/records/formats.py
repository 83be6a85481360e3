"""Batches of any magic through one set of functions: the magic byte selects the format.

It has the same position in all formats. `batch` reads magic 2, `legacy` reads 0 and 1; both have the same
functions with the same arguments. An unknown magic is UnknownMagicError, never damage that could be
truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lastword.records import batch, legacy
from lastword.records.batch import BatchHeader
from lastword.records.record import RawRecord
from lastword.wire import MAGIC_AT


class Format(NamedTuple):
    """The functions that read the batches of a magic, with the signatures of `batch`."""

    read_header: Callable[..., BatchHeader]
    crc_ok: Callable[..., bool]
    check_crc: Callable[..., None]
    read_records: Callable[..., Iterator[RawRecord]]


_LEGACY = Format(legacy.read_header, legacy.crc_ok, legacy.check_crc, legacy.read_records)
_BATCH = Format(batch.read_header, batch.crc_ok, batch.check_crc, batch.read_records)
FORMATS = (_LEGACY, _LEGACY, _BATCH)
"""The formats by magic."""


def read_header(
    buffer: Any, position: int, end: int, file: str, *, file_position: int | None = None
) -> BatchHeader:
    """Return the header at `buffer[position]`, of any magic; arguments and errors as in `batch.read_header`.

    For magic 0 and 1: no producer, leader epoch -1, `base_offset` equal to `last_offset`, `count` -1 for a
    compressed entry.
    """
    magic = buffer[position + MAGIC_AT] if end - position > MAGIC_AT else 2
    read = legacy.read_header if magic < 2 else batch.read_header
    return read(buffer, position, end, file, file_position=file_position)


def crc_ok(buffer: Any, header: BatchHeader, position: int | None = None) -> bool:
    """Return whether the stored checksum matches the bytes; arguments as in `batch.crc_ok`."""
    return FORMATS[header.magic].crc_ok(buffer, header, position)


def check_crc(buffer: Any, header: BatchHeader, file: str, position: int | None = None) -> None:
    """Raise `CorruptBatchError` (code `bad-crc`) unless the stored checksum matches the bytes."""
    FORMATS[header.magic].check_crc(buffer, header, file, position)


def read_records(
    buffer: Any,
    header: BatchHeader,
    file: str = "",
    *,
    position: int | None = None,
    limit_bytes: int | None = None,
) -> Iterator[RawRecord]:
    """Return the records of a batch, in order; arguments and errors as in `batch.read_records`."""
    read = FORMATS[header.magic].read_records
    return read(buffer, header, file, position=position, limit_bytes=limit_bytes)
