"""Batches that got their offsets and wait for one write."""

from __future__ import annotations

import struct

import google_crc32c

from lastword.records.batch import (
    CHECKED_FROM,
    CRC_POSITION,
    LOG_APPEND_BIT,
    BatchHeader,
    read_header,
    set_base_offset,
)

_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35
_CRC = struct.Struct(">I")


class Pending:
    """Batches that get their offsets and wait for one write. Positions in `headers` count from the data's
    beginning.
    """

    def __init__(self, next_offset: int) -> None:
        self.data = bytearray()
        self.headers: list[BatchHeader] = []
        self.first_timestamp: int | None = None
        self._next_offset = next_offset

    def add(
        self, batch: bytes | bytearray | memoryview, epoch: int, log_append_ms: int | None
    ) -> BatchHeader:
        """Put a batch behind the others, under the next offsets."""
        position = len(self.data)
        self.data += batch
        set_base_offset(self.data, position, self._next_offset, epoch)
        if log_append_ms is not None:
            _stamp(self.data, position, log_append_ms)
        header = read_header(self.data, position, len(self.data), "<append>")
        if header.end != len(self.data):
            raise ValueError("append takes one whole batch at a time")
        self.headers.append(header)
        self._next_offset = header.next_offset
        return header

    def take_last(self) -> bytes:
        """Take the last batch out again."""
        header = self.headers.pop()
        taken = bytes(memoryview(self.data)[header.position :])
        del self.data[header.position :]
        return taken


def _stamp(data: bytearray, position: int, now_ms: int) -> None:
    """Make a batch carry the time of its append: timestamp type bit, largest timestamp, checksum."""
    attributes = _ATTRIBUTES.unpack_from(data, position + CHECKED_FROM)[0] | LOG_APPEND_BIT
    _ATTRIBUTES.pack_into(data, position + CHECKED_FROM, attributes)
    _MAX_TIMESTAMP.pack_into(data, position + _MAX_TIMESTAMP_POSITION, now_ms)
    crc = google_crc32c.value(bytes(memoryview(data)[position + CHECKED_FROM :]))
    _CRC.pack_into(data, position + CRC_POSITION, crc)
