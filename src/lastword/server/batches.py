"""The checks of a batch that a client sent, and the batch that is appended for it.

A partition of a request has one batch. Its frame, header, checksum and records are checked as a broker does,
so that every reader can read each batch that was acknowledged (`records.produced`). The batch is appended as
it is, with two exceptions: its largest time is not that of its records, or the topic has a codec of its own.
Kafka answers UNKNOWN_SERVER_ERROR to records that cannot be decompressed; the answer here is INVALID_RECORD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from google_crc32c import value as crc32c

from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, DecompressionLimitError
from lastword.partition.appending import Batch, check_sizes, largest_batch
from lastword.protocol import codes, messages
from lastword.records import produced
from lastword.records.batch import CHECKED, HEAD, BatchHeader, read_header
from lastword.records.compression import compress, limit_of, most_decompressed
from lastword.records.produced import NO_KEY, PLAIN_BYTES, Limits
from lastword.server.configs import served_value
from lastword.server.context import DecompressionBudget
from lastword.server.topics import Refused
from lastword.units import NO_TIMESTAMP
from lastword.wire import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    INT64_MAX,
    LENGTH_AT,
    LOG_APPEND_BIT,
    MAGIC_AT,
    OVERHEAD_BYTES,
    SMALLEST_LENGTH,
    STEP_BYTES,
    ZSTD,
)

if TYPE_CHECKING:
    from lastword.server.topics import ServedLog

DECODED_BYTES = PLAIN_BYTES
"""Larger records are decompressed in the pool."""
LOG_APPEND = -2
"""Instead of a time: the record claims to have the time of an append."""


class NeedsThread(Exception):
    """The check of a batch takes too long for the event loop."""


class Prepared(NamedTuple):
    """A batch to append, whose checksum is right, and the number of its records."""

    data: Batch
    records: int


class RefusedRecords(Refused):
    """A batch with records that the topic refuses.

    Args:
        refused: Index and reason of the first of them.
        count: The number of all.
        partition: The name of the partition.
        oldest: The lowest time that the topic allows.
        newest: The highest time.
    """

    def __init__(self, refused: list[tuple[int, int]], count: int, partition: str, limits: Limits) -> None:
        self._errors = [(index, _reason(index, time, partition, limits)) for index, time in refused]
        if any(time != NO_KEY for _, time in refused):
            text = "One or more records have been rejected due to invalid timestamp"
            super().__init__(codes.INVALID_TIMESTAMP, text)
            return
        shown = ", ".join(
            f"RecordError(batchIndex={index}, message='{text}')" for index, text in self._errors[:3]
        )
        super().__init__(
            codes.INVALID_RECORD,
            f"One or more records have been rejected due to {count} record errors in total, and only "
            f"showing the first three errors at most: [{shown}]",
        )

    def errors(self) -> list[Any]:
        """Return the refused records for the answer."""
        kind = messages.ProduceResponse.BatchIndexAndErrorMessage
        return [kind(batch_index=index, batch_index_error_message=text) for index, text in self._errors]


def _reason(index: int, time: int, partition: str, limits: Limits) -> str:
    if time == NO_KEY:
        return f"Compacted topic cannot accept message without key in topic partition {partition}"
    if time == LOG_APPEND:
        return "Producer should not set timestamp type to LogAppendTime."
    within = f"The timestamp should be within [{limits.oldest}, {limits.newest}]"
    return f"Timestamp {time} of message with offset {index} is out of range. {within}"


def prepared(
    log: ServedLog,
    records: Any,
    version: int,
    now_ms: int,
    budget: DecompressionBudget,
    *,
    waits: bool,
    is_transactional: bool,
) -> Prepared:
    """Return the batch that is appended for one that was received.

    Args:
        log: The log of the partition.
        records: The bytes that were received for it.
        version: The version of the request.
        now_ms: The time.
        budget: The memory for records that are decompressed in the pool.
        waits: The caller is a thread of the pool, and may work for long.
        is_transactional: The request has a transactional id.

    Raises:
        Refused: There is not exactly one batch of magic 2, or the batch contradicts itself or its topic.
        CorruptBatchError: The checksum is wrong.
        RecordTooLargeError: The batch is too large for the topic.
        DecompressionLimitError: Its records are.
        NeedsThread: `waits` is false, and the check would take too long.
    """
    config = log.config
    header = checked_header(records, version, config)
    if header.transactional and not is_transactional:
        raise Refused(
            codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a transactional id"
        )
    batch = records if header.size == len(records) else records[: header.size]
    if header.size > largest_batch(config):  # before records are decompressed, as in Kafka
        check_sizes([batch], config, log.name)
    few = limits = _limits(log, header, now_ms, budget)
    is_small = True
    if header.codec:
        few = limits._replace(decompressed=min(limits.decompressed, DECODED_BYTES))
        is_small = 8 * header.size <= DECODED_BYTES
    if is_small and (waits or not produced.needs_loading(header, few)):
        try:
            return _checked(log, batch, header, few)
        except DecompressionLimitError:
            if few == limits:
                raise
    if not waits:
        raise NeedsThread
    bound = most_decompressed(header.codec, batch[HEADER_BYTES:], limits.decompressed)
    with budget.reserved(2 * bound):  # a buffer grows into a larger one
        try:
            return _checked(log, batch, header, limits)
        finally:
            produced.drop_large()


def _limits(log: ServedLog, header: BatchHeader, now_ms: int, budget: DecompressionBudget) -> Limits:
    config = log.config
    decompressed = min(limit_of(f"{log.directory}/produce"), budget.most // 2) if header.codec else 0
    oldest, newest = -INT64_MAX - 1, INT64_MAX
    if config.message_timestamp_type != "LogAppendTime":
        oldest = max(oldest, now_ms - config.message_timestamp_before_max_ms)
        newest = min(newest, now_ms + served_value(config, "message.timestamp.after.max.ms"))
    return Limits(oldest, newest, config.compacts, config.max_decompressed_message_bytes, decompressed)


def _checked(log: ServedLog, batch: Any, header: BatchHeader, limits: Limits) -> Prepared:
    """Check the records of a batch, and return the batch that is appended."""
    config = log.config
    try:
        checked = produced.check_produced(batch, header, limits, f"{log.directory}/produce")
    except CorruptBatchError as error:
        if error.code == "bad-crc":
            raise
        raise Refused(codes.INVALID_RECORD, error.message) from None
    stamps = config.message_timestamp_type == "LogAppendTime"
    if header.log_append and (stamps or header.max_timestamp == NO_TIMESTAMP):
        refused = [(index, LOG_APPEND) for index in range(min(header.count, produced.MOST_REFUSED))]
        raise RefusedRecords(refused, header.count, log.name, limits)
    if checked.refusals:
        raise RefusedRecords(checked.refused, checked.refusals, log.name, limits)
    codec = header.codec if config.compression_type == "producer" else config.codec
    is_right = stamps or (checked.largest == header.max_timestamp and not header.log_append)
    if codec == header.codec and is_right:
        return Prepared(batch, header.count)
    payload = batch[HEADER_BYTES:]
    if codec != header.codec:
        payload = compress(codec, checked.payload, config.compression_level) if codec else checked.payload
    return Prepared(_changed(batch, header, codec, checked.largest, payload), header.count)


def _changed(batch: Any, header: BatchHeader, codec: int, largest: int, payload: Any) -> bytes:
    """Return a batch with the largest time of its records, and with another codec, as Kafka makes it."""
    fields = list(CHECKED.unpack_from(batch, ATTRIBUTES_AT))
    dropped = LOG_APPEND_BIT if codec == header.codec else LOG_APPEND_BIT | DELETE_HORIZON_BIT
    fields[0] = fields[0] & ~(CODEC_MASK | dropped) | codec
    fields[3] = largest
    checked = CHECKED.pack(*fields) + bytes(payload)
    length = len(checked) + ATTRIBUTES_AT - OVERHEAD_BYTES
    return HEAD.pack(0, length, header.leader_epoch, 2, crc32c(checked)) + checked


def checked_header(records: Any, version: int, config: TopicConfig) -> BatchHeader:
    """Return the header of the only batch of a partition, if it may be appended.

    Raises:
        Refused: There is not exactly one batch of magic 2, or the batch contradicts itself.
        CorruptBatchError: It does so because it is damaged, or there is a damaged batch behind it.
    """
    whole = f"Produce requests with version {version} must have at least one"
    if records is None or len(records) == 0:
        raise Refused(codes.INVALID_RECORD, f"{whole} record batch per partition")
    size = _batch_size(records, 0)
    if not size >= HEADER_BYTES:
        raise Refused(codes.INVALID_RECORD, f"{whole} whole record batch per partition")
    only = f"Produce requests with version {version} are only allowed to contain"
    if records[MAGIC_AT] != 2:
        raise Refused(codes.INVALID_RECORD, f"{only} record batches with magic version 2")
    if size > config.max_message_bytes:
        limit = f"max.message.bytes = {config.max_message_bytes}"
        raise Refused(codes.MESSAGE_TOO_LARGE, f"a batch of {size} bytes is larger than {limit}")
    try:
        header = read_header(records, 0, size, "<produce>")
    except CorruptBatchError as error:
        _check_checksum(records, size)
        raise Refused(codes.INVALID_RECORD, error.message) from None
    if header.codec == ZSTD and version < 7:
        raise Refused(
            codes.UNSUPPORTED_COMPRESSION_TYPE,
            "Produce requests with version 6 or below are not allowed to use ZStandard compression",
        )
    if _batch_size(records, size):
        raise Refused(codes.INVALID_RECORD, f"{only} exactly one record batch per partition")
    refusal = _refusal(header)
    if refusal is not None:
        _check_checksum(records, size)  # a damaged batch is reported as damaged
        raise refusal
    return header


def _batch_size(records: Any, start: int) -> int:
    """Return the bytes of the batch at `start`; 0 if it is not whole: Kafka ignores such bytes.

    Raises:
        Refused: Its length or its magic is impossible.
    """
    room = len(records) - start
    if room < OVERHEAD_BYTES:
        return 0
    length = int.from_bytes(records[start + LENGTH_AT : start + OVERHEAD_BYTES], signed=True)
    if length < SMALLEST_LENGTH:
        raise Refused(
            codes.CORRUPT_MESSAGE,
            f"Record size {length} is less than the minimum record overhead ({SMALLEST_LENGTH})",
        )
    if room < STEP_BYTES:
        return 0
    magic = records[start + MAGIC_AT]
    if magic > 2:
        raise Refused(codes.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    size = OVERHEAD_BYTES + length
    return size if size <= room else 0


def _refusal(header: BatchHeader) -> Refused | None:
    """Return the error of a header that contradicts itself, or that a client may not send."""
    if header.codec > ZSTD:
        return Refused(codes.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type id: {header.codec}")
    text = None
    if header.base_offset != 0:
        text = f"The baseOffset of the record batch should be 0, but it is {header.base_offset}"
    elif header.control:
        text = "Clients are not allowed to write control records."
    elif header.count == 0 or header.count != header.last_offset + 1:
        text = (
            f"Inconsistent batch offset range: base offset 0, last offset {header.last_offset}, count "
            f"{header.count}"
        )
    elif header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        text = "Invalid sequence number in record batch with producerId"
    return None if text is None else Refused(codes.INVALID_RECORD, text)


def _check_checksum(records: Any, end: int) -> None:
    crc = int.from_bytes(records[CRC_AT:ATTRIBUTES_AT])
    if crc32c(bytes(records[ATTRIBUTES_AT:end])) != crc:
        raise CorruptBatchError(f"Record is corrupt: its checksum is not {crc}")
