"""Entries of magic 0 and 1 out of records, and what is left of an entry when some of its messages go.

Only the cleaner writes these formats, into logs that have them: what it cuts keeps its magic and codec. A
removed entry leaves nothing behind: empty batches exist in magic 2 only. The layout: `legacy`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from lastword.records.batch import BatchHeader
from lastword.records.compression import compress
from lastword.records.legacy import CODECS, LOG_APPEND, NO_TIMESTAMP, Buffer, key_and_value, messages
from lastword.records.lz4_header import with_checksum
from lastword.records.record import RawRecord
from lastword.wire import LZ4


class Filtered(NamedTuple):
    """An entry after some of its messages went."""

    data: bytes
    last_offset: int
    max_timestamp: int
    kept: int


def build_message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    timestamp: int = NO_TIMESTAMP,
    *,
    log_append: bool = False,
    codec: int = 0,
) -> bytes:
    """One entry. `codec` only says what `value` is; for a wrapper use `build_wrapper`.

    ValueError for what the magic has no place for: a timestamp in magic 0, zstd in both.
    """
    if magic not in (0, 1) or codec not in CODECS:
        raise ValueError(
            f"magic {magic} has no codec {codec}: legacy entries take none, gzip, snappy and lz4"
        )
    if magic == 0 and (timestamp != NO_TIMESTAMP or log_append):
        raise ValueError("magic 0 has no timestamps")
    attributes = codec | (LOG_APPEND if log_append else 0)
    body = (
        struct.pack(">bBq", magic, attributes, timestamp) if magic else struct.pack(">bB", magic, attributes)
    )
    body += _field(key) + _field(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def build_wrapper(
    magic: int, codec: int, records: Sequence[RawRecord], *, log_append_ms: int | None = None
) -> bytes:
    """A wrapper of records whose offsets rise; their gaps stay. `log_append_ms`: give all of them this
    time, of that type."""
    if not records or any(a.offset >= b.offset for a, b in pairwise(records)):
        raise ValueError("a wrapper holds one record or more, and their offsets rise")
    first = records[0].offset
    inner = b"".join(
        build_message(
            magic,
            record.offset - first if magic else record.offset,
            record.key,
            record.value,
            record.timestamp if log_append_ms is None else log_append_ms,
            log_append=log_append_ms is not None,
        )
        for record in records
    )
    stamp = max(record.timestamp for record in records) if log_append_ms is None else log_append_ms
    return _wrap(magic, codec, records[-1].offset, stamp, log_append_ms is not None, inner)


def filter_entry(
    buffer: Buffer,
    header: BatchHeader,
    keep: Iterable[bool],
    file: str = "",
    *,
    position: int | None = None,
    limit_bytes: int | None = None,
) -> Filtered | None:
    """What is left of an entry when its messages are kept or not (`keep`, one for each); None if nothing is.

    Byte for byte the same if all messages stay and have the wrapper's magic. Otherwise a wrapper of the
    same magic, codec and timestamp type: offsets (with their gaps), keys, values and timestamps are those
    of before. A message of magic 1 in a wrapper of magic 0 keeps its form, for magic 0 has no place for its
    timestamp; one of magic 0 in a wrapper of magic 1 becomes magic 1.
    """
    at = header.position if position is None else position
    data, found = messages(buffer, header, file, position=position, limit_bytes=limit_bytes)
    kept = [message for message, wanted in zip(found, keep, strict=True) if wanted]
    if not kept:
        return None
    converted = header.magic == 1 and any(message.magic == 0 for message in kept)
    if len(kept) == len(found) and not converted:
        whole = bytes(memoryview(buffer)[at : at + header.size])
        return Filtered(whole, header.last_offset, header.max_timestamp, len(kept))
    first = kept[0].offset if header.magic else 0
    inner = bytearray()
    for m in kept:
        if header.magic == 0 or (m.magic == 1 and not header.log_append):
            inner += struct.pack(">qi", m.offset - first, m.end - m.start)
            inner += data[m.start : m.end]  # the checksum covers neither offset nor size
        else:
            key, value = key_and_value(data, m)
            inner += build_message(1, m.offset - first, key, value, m.timestamp, log_append=header.log_append)
    stamp = header.max_timestamp if header.magic == 0 or header.log_append else max(m.timestamp for m in kept)
    last = kept[-1].offset
    whole = _wrap(header.magic, header.codec, last, stamp, header.log_append, bytes(inner))
    return Filtered(whole, last, stamp, len(kept))


def _wrap(magic: int, codec: int, offset: int, timestamp: int, log_append: bool, inner: bytes) -> bytes:
    value = compress(codec, inner)
    if magic == 0 and codec == LZ4:
        value = with_checksum(value, broken=True)
    return build_message(magic, offset, None, value, timestamp, log_append=log_append, codec=codec)


def _field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1 if data is None else len(data)) + (data or b"")
