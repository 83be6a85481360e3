"""Batches that got their offsets and wait for one write."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import google_crc32c

from lastword.partition.producer_state import ProducerState, SequencedBatch
from lastword.partition.transactions import control_of
from lastword.records.batch import BatchHeader, read_header, set_base_offset
from lastword.records.builder import BatchBuilder
from lastword.records.control import ABORT, COMMIT, control_key, marker_value
from lastword.wire import ATTRIBUTES_AT, CRC_AT, LOG_APPEND_BIT

Batch = bytes | bytearray | memoryview

_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35
_CRC = struct.Struct(">I")
_PRODUCER_ID = slice(43, 51)
_NO_PRODUCER = b"\xff" * 8


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
    attributes = _ATTRIBUTES.unpack_from(data, position + ATTRIBUTES_AT)[0] | LOG_APPEND_BIT
    _ATTRIBUTES.pack_into(data, position + ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(data, position + _MAX_TIMESTAMP_POSITION, now_ms)
    crc = google_crc32c.value(bytes(memoryview(data)[position + ATTRIBUTES_AT :]))
    _CRC.pack_into(data, position + CRC_AT, crc)


def repeated(
    state: ProducerState, batches: Sequence[Batch], log_end: int
) -> list[SequencedBatch | None] | None:
    """Of each ready batch the earlier one that it repeats, by a leader's rules; None if none has a producer.

    Raises SequenceGapError, ProducerFencedError, CoordinatorFencedError or TransactionStateError for the
    first that may not be appended. Changes nothing.
    """
    if all(bytes(data[_PRODUCER_ID]) == _NO_PRODUCER for data in batches):
        return None
    pending, offset = state.begin(), log_end
    found = []
    for data in batches:
        header = read_header(data, 0, len(data), "<append>")
        moved = offset - header.base_offset
        placed = replace(header, base_offset=offset, last_offset=header.last_offset + moved)
        earlier = pending.add(placed, control_of(data, header, "<append>"))
        if earlier is None:
            offset = placed.next_offset
        found.append(earlier)
    return found


def marker_batch(producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, now_ms: int) -> bytes:
    """The 78 bytes that decide a transaction."""
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True)
    builder.append(now_ms, control_key(COMMIT if commit else ABORT), marker_value(coordinator_epoch))
    return builder.build()
