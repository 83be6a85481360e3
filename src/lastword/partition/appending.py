"""Batches on their way into a log: the checks before the first byte is written, their offsets, one buffer."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, RecordTooLargeError
from lastword.files.interface import GivenBytes
from lastword.partition.producer_state import NO_PRODUCER, ProducerState, SequencedBatch
from lastword.partition.staged_batches import Block
from lastword.partition.transactions import control_of
from lastword.records import formats
from lastword.records.batch import BatchHeader, computed_crc, read_header, set_base_offset
from lastword.wire import ATTRIBUTES_AT, CRC_AT, LOG_APPEND_BIT

if TYPE_CHECKING:
    import numpy as np

KEPT_BYTES = 17 << 20
"""Each thread keeps a buffer up to this size: fresh memory for each call would cost as much as the copy."""

Batch = bytes | bytearray | memoryview

_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35
_CRC = struct.Struct(">I")
_BASE_OFFSET = struct.Struct(">q")
_kept = threading.local()
_PRODUCER_ID = slice(43, 51)


class AppendedBatch(NamedTuple):
    """Where a batch is in the log. `timestamp` (ms): its largest, or that of the append if the topic says so.

    For a producer's batch that was sent again: where its first copy is.
    """

    base_offset: int
    last_offset: int
    timestamp: int


class Pending:
    """Batches that have their offsets and wait for one write.

    Positions in `headers` count from the first byte of `data`.
    """

    def __init__(self, next_offset: int) -> None:
        self.data = GivenBytes()
        self.headers: list[BatchHeader] = []
        self._next_offset = next_offset

    def add(
        self, batch: bytes | bytearray | memoryview, epoch: int, log_append_ms: int | None
    ) -> BatchHeader:
        """Add a batch under the next offsets."""
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

    def add_copy(self, batch: memoryview, header: BatchHeader) -> BatchHeader:
        """Add a batch of another replica, which has its offsets; return its header with the position here."""
        placed = replace(header, position=len(self.data))
        self.data += batch
        self.headers.append(placed)
        self._next_offset = placed.next_offset
        return placed

    def remove_last(self) -> None:
        """Remove the last batch."""
        del self.data[self.headers.pop().position :]


def _stamp(data: bytearray, position: int, now_ms: int) -> None:
    """Set the time of a batch's append: timestamp type bit, largest timestamp, checksum."""
    attributes = _ATTRIBUTES.unpack_from(data, position + ATTRIBUTES_AT)[0] | LOG_APPEND_BIT
    _ATTRIBUTES.pack_into(data, position + ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(data, position + _MAX_TIMESTAMP_POSITION, now_ms)
    crc = google_crc32c.value(bytes(memoryview(data)[position + ATTRIBUTES_AT :]))
    _CRC.pack_into(data, position + CRC_AT, crc)


def largest_batch(config: TopicConfig) -> int:
    """Return the largest size in bytes that a batch of the topic may have."""
    return min(config.max_message_bytes, config.segment_bytes)


def check_sizes(batches: Sequence[Batch], config: TopicConfig, name: str) -> None:
    """Raise RecordTooLargeError for the first batch that is too large for the topic."""
    limit = largest_batch(config)
    largest = max(map(len, batches), default=0)
    if largest > limit:
        first = next(len(data) for data in batches if len(data) > limit)
        setting = "max.message.bytes" if limit == config.max_message_bytes else "segment.bytes"
        raise RecordTooLargeError(
            f"{name}: a batch of {first} bytes is larger than {setting} = {limit}",
            remedy=f"smaller records, or raise {setting}",
        )


def check_checksums(batches: Sequence[Batch]) -> None:
    """Raise CorruptBatchError for a wrong checksum.

    A batch that is too short for one is reported when its header is read.
    """
    for data in batches:
        if len(data) > ATTRIBUTES_AT:
            stored = _CRC.unpack_from(data, CRC_AT)[0]
            computed = computed_crc(data, len(data))
            if stored != computed:
                offset = _BASE_OFFSET.unpack_from(data)[0]
                raise CorruptBatchError.crc("<append>", 0, offset, stored, computed)


def copied_headers(data: Batch, name: str, log_end: int, latest_epoch: int | None) -> list[BatchHeader]:
    """Return the headers of whole batches of another replica, after all checks of them.

    Args:
        data: The batches, one behind the other.
        name: Name of the partition, for errors.
        log_end: Offsets below it are in the log.
        latest_epoch: The newest leader epoch of the log.

    Raises:
        CorruptBatchError: The bytes are no whole batches, a checksum is wrong, a control batch cannot be
            decoded, or offsets or leader epochs fall.
        UnknownMagicError: A format that is not supported.
    """
    headers: list[BatchHeader] = []
    position, offset, epoch = 0, log_end, -1 if latest_epoch is None else latest_epoch
    while position < len(data):
        header = formats.read_header(data, position, len(data), f"<copy of {name}>")
        formats.check_crc(data, header, f"<copy of {name}>")
        control_of(data, header, f"<copy of {name}>")  # an opening could not decode it either
        if header.base_offset < offset:
            raise _not_rising(
                name, header, f"offset {header.base_offset}", f"{offset} is the lowest possible"
            )
        if 0 <= header.leader_epoch < epoch:
            raise _not_rising(name, header, f"leader epoch {header.leader_epoch}", f"epoch {epoch}")
        headers.append(header)
        position, offset, epoch = header.end, header.next_offset, max(epoch, header.leader_epoch)
    return headers


def epoch_runs(headers: Iterable[BatchHeader], latest: int) -> Iterator[tuple[int, list[BatchHeader]]]:
    """Yield each leader epoch with the headers of its batches; `latest` for those before the next epoch.

    A batch without an epoch belongs to the epoch of the batch before it.
    """
    epoch, run = latest, list[BatchHeader]()
    for header in headers:
        if header.leader_epoch > epoch:
            if run:
                yield epoch, run
            epoch, run = header.leader_epoch, []
        run.append(header)
    if run:
        yield epoch, run


def _not_rising(name: str, header: BatchHeader, field: str, before: str) -> CorruptBatchError:
    return CorruptBatchError(
        f"{name}: a copied batch has {field}, after {before}",
        code="offsets-fall",
        remedy="nothing was appended; the source of the batches must be checked",
        position=header.position,
        offset=header.base_offset,
    )


def producer_ids(batches: Iterable[Batch]) -> set[int]:
    """Return the producer ids of batches."""
    return {int.from_bytes(data[_PRODUCER_ID], signed=True) for data in batches}


def repeated(
    state: ProducerState, batches: Sequence[Batch], log_end: int
) -> list[SequencedBatch | None] | None:
    """Return for each batch the earlier batch that it repeats, by a leader's rules; None without producers.

    Raises SequenceGapError, ProducerFencedError, CoordinatorFencedError or TransactionStateError for the
    first batch that may not be appended. Changes nothing.
    """
    if producer_ids(batches) <= {NO_PRODUCER}:
        return None
    pending, offset = state.begin(), log_end
    repeats = []
    for data in batches:
        header = read_header(data, 0, len(data), "<append>", base_offset=offset)
        earlier = pending.add(header, control_of(data, header, "<append>"))
        if earlier is None:
            offset = header.next_offset
        repeats.append(earlier)
    return repeats


def gathered(batches: Sequence[Batch], size: int, *, give: bool = False) -> tuple[np.ndarray, memoryview]:
    """Return the batches in one buffer, with slack behind them: this thread's buffer, or the block's own.

    Args:
        batches: The batches.
        size: Their bytes.
        give: Return a buffer of its own (`GivenBuffer`) if they are large: the file keeps it.
    """
    import numpy as np

    from lastword.files.given import GIVEN_BYTES, GivenBuffer
    from lastword.kernels import SLACK

    if isinstance(batches, Block):
        return np.frombuffer(batches.buffer, np.uint8), memoryview(batches.buffer)
    buffer = getattr(_kept, "buffer", None)
    given = None
    if give and size >= GIVEN_BYTES:
        given = GivenBuffer.of(size + SLACK)
        buffer = given.view(np.ndarray)
    elif buffer is None or buffer.size < size + SLACK:
        buffer = np.empty(max(size + SLACK, min(2 * size, KEPT_BYTES)), np.uint8)
        _kept.buffer = buffer if buffer.size <= KEPT_BYTES else None
    data = buffer.data if given is None else given.data
    position = 0
    for batch in batches:
        end = position + len(batch)
        data[position:end] = batch
        position = end
    return buffer, data
