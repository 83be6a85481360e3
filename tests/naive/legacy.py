"""Entries of magic 0 and 1, and their messages in the record layout of magic 2, field by field."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from tests.naive.pack import Record, encode_record


class BadEntry(ValueError):
    pass


@dataclass(frozen=True)
class Message:
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    size: int


def _blob(entry: bytes, position: int) -> tuple[bytes | None, int]:
    if len(entry) - position < 4:
        raise BadEntry("record")
    (size,) = struct.unpack_from(">i", entry, position)
    position += 4
    if size < -1 or size > len(entry) - position:
        raise BadEntry("record")
    return (None, position) if size == -1 else (entry[position : position + size], position + size)


def message(data: bytes) -> Message | None:
    """Return the entry at the start of `data`; None if it is cut."""
    if len(data) < 12:
        return None
    offset, size = struct.unpack_from(">qi", data)
    if size < 14:
        raise BadEntry("length")
    if size > len(data) - 12:
        return None
    entry = data[: size + 12]
    magic, attributes = entry[16], entry[17]
    if magic > 1:
        raise BadEntry("magic")
    if size < (14, 22)[magic]:
        raise BadEntry("length")
    if zlib.crc32(entry[16:]) != struct.unpack_from(">I", entry, 12)[0]:
        raise BadEntry("crc")
    timestamp = struct.unpack_from(">q", entry, 18)[0] if magic else -1
    key, position = _blob(entry, 26 if magic else 18)
    value, _ = _blob(entry, position)
    return Message(offset, magic, attributes, timestamp, key, value, len(entry))


def translate_wrapper(
    inner: bytes, magic: int, wrapper_offset: int, attributes: int, base_timestamp: int
) -> tuple[int, int, int, bytes]:
    """Return the decompressed entries of a wrapper in the layout of magic 2.

    The result is (first offset, last offset, count, records).
    """
    messages: list[Message] = []
    position = 0
    while (entry := message(inner[position:])) is not None:
        if entry.attributes & 7:
            raise BadEntry("record")
        if entry.offset < 0 or (messages and entry.offset <= messages[-1].offset):
            raise BadEntry("offset")
        messages.append(entry)
        position += entry.size
    if not messages:
        raise BadEntry("record")
    last = messages[-1].offset
    shift = wrapper_offset - last if magic == 1 and wrapper_offset != 0 else 0
    if shift < 0 or last - messages[0].offset >= 1 << 31:
        raise BadEntry("offset")
    first = messages[0].offset + shift
    plain = b"".join(
        encode_record(
            Record(m.offset + shift, base_timestamp if attributes & 8 else m.timestamp, m.key, m.value),
            first,
            base_timestamp,
        )
        for m in messages
    )
    return first, max(last + shift, wrapper_offset), len(messages), plain
