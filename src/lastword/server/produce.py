"""Produce: batches are verified and appended as they are.

A partition of a request has one batch. Its header, its checksum and its producer decide whether the batch is
appended; its records are not decoded, with two exceptions. A compacted topic refuses a record without a key:
a kernel reads the lengths of all keys of a batch. A topic with a codec of its own compresses the records
again. Both decompress at most `lastword.decompression.max.bytes`.

An append runs in the thread of the event loop if it is small and its log is free. It runs in the pool if a
sync follows, if it is large, also decompressed, or if another thread holds the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google_crc32c import value as crc32c

from lastword import metrics
from lastword.errors import CorruptBatchError, DecompressionLimitError, LastwordError
from lastword.partition.appending import check_sizes
from lastword.protocol import Request, codes, messages
from lastword.protocol.schemas import Message
from lastword.records.batch import CHECKED, HEAD, BatchHeader, read_header, read_records
from lastword.records.compression import compress, decompress, limit_of
from lastword.server.configs import served_value
from lastword.server.topics import INTERNAL, Refused, ServedTopic
from lastword.units import NO_TIMESTAMP
from lastword.wire import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    COUNT_AT,
    CRC_AT,
    GZIP,
    HEADER_BYTES,
    LENGTH_AT,
    LZ4,
    MAGIC_AT,
    OVERHEAD_BYTES,
    SNAPPY,
    UNCOMPRESSED,
    ZSTD,
)

if TYPE_CHECKING:
    from lastword.config import TopicConfig
    from lastword.partition.appending import AppendedBatch
    from lastword.partition.log import PartitionLog
    from lastword.server.node import ClusterNode

LARGE_BYTES = 256 << 10
"""An append of more bytes runs in the pool."""
DECODED_BYTES, DECODED_RECORDS = 1 << 20, 5000
"""Records that have to be decoded are decoded in the pool if they are larger, or more."""
FEW_RECORDS = 8
"""A batch of more records is read by a kernel. Its fixed cost is that of 8 records read one by one; the first
use of a kernel takes 0.5 s and 120 MiB."""
KERNELS = "lastword.records.columns"
ADMIN_CLIENT = "__admin_client"
"""The only client id that may produce to an internal topic, as in Kafka."""
CODECS = {
    "uncompressed": UNCOMPRESSED,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "lz4": LZ4,
    "zstd": ZSTD,
}


class Producing:
    """The handler of Produce."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    def handlers(self) -> dict[str, Callable[[Request, Any], Any]]:
        """Return the handlers by the name of the API."""
        return {"Produce": self._produce}

    def _produce(self, request: Request, connection: Any) -> Any:
        body = request.body
        if body.acks not in (0, 1, -1):
            return self._refuse_all(body, codes.INVALID_REQUIRED_ACKS)
        if body.transactional_id is not None:
            return self._node.loop.create_task(self._produce_in_transaction(request))
        return self._append_request(request, {})

    async def _produce_in_transaction(self, request: Request) -> Message | None:
        transaction, refused = await self._node.transactions.check_batches(request)
        with contextlib.nullcontext() if transaction is None else transaction.appending():
            answer = self._append_request(request, refused)
            return await answer if isinstance(answer, asyncio.Future) else answer

    def _append_request(self, request: Request, refused: dict[tuple[str, int], Refused]) -> Any:
        """Append the batches of a request, without those of the refused partitions; return its answer."""
        if request.size <= LARGE_BYTES:
            answer, syncs = self._append_all(request, refused, waits=False)
            if answer is not None:
                if syncs:
                    return self._node.in_pool(self._synced, request, answer, syncs)
                return self._acknowledged(request, answer)
        return self._node.in_pool(self._append_and_sync, request, refused)

    def _append_and_sync(self, request: Request, refused: dict[tuple[str, int], Refused]) -> Message | None:
        answer, syncs = self._append_all(request, refused, waits=True)
        assert answer is not None
        return self._synced(request, answer, syncs)

    def _synced(self, request: Request, answer: Any, syncs: list[tuple[PartitionLog, Any]]) -> Message | None:
        for log, partition in syncs:
            try:
                log.sync()
            except LastwordError as error:
                _refuse(partition, error.kafka_code, error.message)
        return self._acknowledged(request, answer)

    def _acknowledged(self, request: Request, answer: Any) -> Message | None:
        """Return the answer; None for acks 0, whose connection is closed if a batch was refused."""
        if request.body.acks != 0:
            return answer
        for topic in answer.responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    raise Refused(partition.error_code, partition.error_message or "refused")
        return None

    def _append_all(
        self, request: Request, refused_partitions: dict[tuple[str, int], Refused], *, waits: bool
    ) -> tuple[Any, list[tuple[PartitionLog, Any]]]:
        """Append the batches of a request.

        Returns:
            The answer, and the logs to sync before it is sent, each with its partition of the answer. No
            answer, and nothing was appended: a log is not free, and `waits` is false.
        """
        body = request.body
        logs: list[tuple[Any, Any, ServedTopic | None]] = []
        responses = []
        for topic in body.topic_data:
            served = self._node.topics.find(topic.name, topic.topic_id)
            partitions: list[Any] = []
            responses.append(
                messages.ProduceResponse.TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
                )
            )
            for data in topic.partition_data:
                partition = messages.ProduceResponse.PartitionProduceResponse(
                    index=data.index,
                    base_offset=-1,
                    log_append_time_ms=-1,
                    log_start_offset=-1,
                    record_errors=[],
                    error_message=None,
                )
                partitions.append(partition)
                logs.append((data, partition, served))
        missing = codes.UNKNOWN_TOPIC_OR_PARTITION if request.version < 13 else codes.UNKNOWN_TOPIC_ID
        answer = messages.ProduceResponse(responses=responses)
        syncs: list[tuple[PartitionLog, Any]] = []
        if not waits and not all(
            served is None or (_is_free(served, data.index) and _is_short(served, data))
            for data, _, served in logs
        ):
            return None, syncs
        for data, partition, served in logs:
            if served is None:
                _refuse(partition, missing, "This server does not host this topic-partition.")
                continue
            try:
                if served.is_newest:
                    raise Refused(
                        codes.INVALID_TOPIC_EXCEPTION, f"{served.name} is a view of {served.stored}"
                    )
                if served.name in INTERNAL and request.client_id != ADMIN_CLIENT:
                    raise Refused(
                        codes.INVALID_TOPIC_EXCEPTION,
                        "The request attempted to produce to an internal topic.",
                    )
                if (served.name, data.index) in refused_partitions:
                    raise refused_partitions[served.name, data.index]
                log = served.log(data.index)
                if self._node.refuse is not None:
                    self._node.refuse(request, served)
                self._append(log, request, data.records, partition)
                if body.acks == -1 and log.config.lastword_ack == "disk":
                    syncs.append((log, partition))
            except Refused as refused:
                _refuse(partition, refused.code, refused.message)
                if isinstance(refused, RefusedRecords):
                    partition.record_errors = refused.errors()
            except LastwordError as error:
                _refuse(partition, error.kafka_code, error.message)
        return answer, syncs

    def _append(self, log: PartitionLog, request: Request, records: Any, partition: Any) -> None:
        config = log.config
        header = checked_batch(records, request.version, config)
        if header.transactional and request.body.transactional_id is None:
            raise Refused(
                codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch without a transactional id",
            )
        _check_time(records, header, self._node.clock.now_ms(), config)
        if config.compacts or config.compression_type in CODECS:
            check_sizes([records], config, log.name)  # before records are decompressed, as in Kafka
        if config.compacts:
            check_keys(records, header, log.name, f"{log.directory}/produce")
        batch = records
        codec = CODECS.get(config.compression_type, header.codec)
        if codec != header.codec:
            batch = recompressed(records, header, codec, config, _limit(log))
        appended: AppendedBatch = log.append_batch(batch)
        if metrics.is_exported:
            metrics.APPEND_RECORDS.add(header.count, log.name.rpartition("-")[0])
            metrics.APPEND_BYTES.add(len(batch), log.name.rpartition("-")[0])
        partition.base_offset = appended.base_offset
        partition.log_start_offset = log.log_start
        if config.message_timestamp_type == "LogAppendTime":
            partition.log_append_time_ms = appended.timestamp

    def _refuse_all(self, body: Any, code: int) -> Message:
        return messages.ProduceResponse(
            responses=[
                messages.ProduceResponse.TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        messages.ProduceResponse.PartitionProduceResponse(
                            index=data.index, error_code=code, base_offset=-1, log_append_time_ms=-1
                        )
                        for data in topic.partition_data
                    ],
                )
                for topic in body.topic_data
            ]
        )


def _is_free(topic: ServedTopic, partition: int) -> bool:
    """Return whether the log is open, and no other thread holds it."""
    if partition not in topic.directories:
        return True
    if not topic.is_open(partition):
        return False
    lock = topic.log(partition).lock
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


def _is_short(topic: ServedTopic, data: Any) -> bool:
    """Return whether records that have to be decoded are few and small, and their kernel is loaded."""
    records = data.records
    if data.index not in topic.directories or records is None or len(records) < HEADER_BYTES:
        return True
    config = topic.log(data.index).config
    if not config.compacts and config.compression_type not in CODECS:
        return True
    count = int.from_bytes(records[COUNT_AT:HEADER_BYTES])
    if count > DECODED_RECORDS or (count > FEW_RECORDS and KERNELS not in sys.modules):
        return False
    codec = records[ATTRIBUTES_AT + 1] & CODEC_MASK
    if UNCOMPRESSED < codec <= ZSTD:
        try:
            decompress(codec, records[HEADER_BYTES:], DECODED_BYTES)
        except DecompressionLimitError:
            return False
        except CorruptBatchError:
            return True  # refused when the records are decoded
    return True


def _refuse(partition: Any, code: int, message: str) -> None:
    partition.error_code, partition.error_message = code, message
    partition.base_offset = partition.log_append_time_ms = partition.log_start_offset = -1


def checked_batch(records: Any, version: int, config: TopicConfig) -> BatchHeader:
    """Return the header of the batch of a partition, if it may be appended. The log verifies the checksum.

    Raises:
        Refused: There is not exactly one batch of magic 2, or the batch contradicts itself or its topic.
        CorruptBatchError: The length or the checksum is wrong.
    """
    if records is None or len(records) == 0:
        raise Refused(
            codes.INVALID_RECORD,
            f"Produce requests with version {version} must have at least one record batch per partition",
        )
    size = len(records)
    length = int.from_bytes(records[LENGTH_AT : LENGTH_AT + 4], signed=True)
    if size < HEADER_BYTES or length > size - OVERHEAD_BYTES:
        raise Refused(
            codes.INVALID_RECORD,
            f"Produce requests with version {version} must have at least one whole record batch per "
            "partition",
        )
    if records[MAGIC_AT] > 2:
        raise Refused(codes.CORRUPT_MESSAGE, f"Invalid magic found in record: {records[MAGIC_AT]}")
    if records[MAGIC_AT] != 2:
        raise Refused(
            codes.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain record batches with magic "
            "version 2",
        )
    if size > config.max_message_bytes:
        limit = f"max.message.bytes = {config.max_message_bytes}"
        raise Refused(codes.MESSAGE_TOO_LARGE, f"a batch of {size} bytes is larger than {limit}")
    try:
        header = read_header(records, 0, size, "<produce>")
    except CorruptBatchError as error:
        _check_checksum(records, OVERHEAD_BYTES + length)
        raise Refused(codes.INVALID_RECORD, error.message) from None
    try:
        _check_header(header, size, version)
    except Refused:
        _check_checksum(records, header.size)  # a damaged batch is reported as damaged
        raise
    return header


def _check_header(header: BatchHeader, size: int, version: int) -> None:
    if header.size != size:
        raise Refused(
            codes.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain exactly one record batch "
            "per partition",
        )
    if header.codec == ZSTD and version < 7:
        raise Refused(
            codes.UNSUPPORTED_COMPRESSION_TYPE,
            "Produce requests with version 6 or below are not allowed to use ZStandard compression",
        )
    if header.codec > ZSTD:
        raise Refused(codes.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type id: {header.codec}")
    if header.base_offset != 0:
        raise Refused(
            codes.INVALID_RECORD,
            f"The baseOffset of the record batch should be 0, but it is {header.base_offset}",
        )
    if header.control:
        raise Refused(codes.INVALID_RECORD, "Clients are not allowed to write control records.")
    if header.count == 0 or header.count != header.last_offset + 1:
        raise Refused(
            codes.INVALID_RECORD,
            f"Inconsistent batch offset range: base offset 0, last offset {header.last_offset}, count "
            f"{header.count}",
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise Refused(codes.INVALID_RECORD, "Invalid sequence number in record batch with producerId")


def _check_time(records: Any, header: BatchHeader, now_ms: int, config: TopicConfig) -> None:
    """Raise Refused if the times of a batch are too far from the present, or claim to be an append's."""
    if config.message_timestamp_type == "LogAppendTime" or header.max_timestamp == NO_TIMESTAMP:
        refusal = "Producer should not set timestamp type to LogAppendTime." if header.log_append else ""
    else:
        newest = served_value(config, "message.timestamp.after.max.ms")
        is_near = -config.message_timestamp_before_max_ms <= header.max_timestamp - now_ms <= newest
        refusal = "" if is_near else f"Timestamp {header.max_timestamp} of message is out of range"
    if refusal:
        _check_checksum(records, header.size)
        raise Refused(codes.INVALID_TIMESTAMP, refusal)


def _limit(log: PartitionLog) -> int:
    """Return the bytes that the records of a batch may have (lastword.decompression.max.bytes)."""
    return limit_of(f"{log.directory}/{log.name}")


def _check_checksum(records: Any, end: int) -> None:
    crc = int.from_bytes(records[CRC_AT:ATTRIBUTES_AT])
    if crc32c(bytes(records[ATTRIBUTES_AT:end])) != crc:
        raise CorruptBatchError(f"Record is corrupt: its checksum is not {crc}")


class RefusedRecords(Refused):
    """A batch with records that a compacted topic refuses: they have no key, so they would stay for ever."""

    def __init__(self, indexes: list[int], partition: str) -> None:
        self.indexes = indexes
        self._text = f"Compacted topic cannot accept message without key in topic partition {partition}"
        shown = ", ".join(f"RecordError(batchIndex={index}, message='{self._text}')" for index in indexes[:3])
        super().__init__(
            codes.INVALID_RECORD,
            f"One or more records have been rejected due to {len(indexes)} record errors in total, and only "
            f"showing the first three errors at most: [{shown}]",
        )

    def errors(self) -> list[Any]:
        """Return the refused records for the answer."""
        kind = messages.ProduceResponse.BatchIndexAndErrorMessage
        return [kind(batch_index=index, batch_index_error_message=self._text) for index in self.indexes]


def check_keys(records: Any, header: BatchHeader, partition: str, file: str) -> None:
    """Check that each record of a batch has a key.

    Args:
        records: The batch.
        header: Its header.
        partition: The name of the partition, for the error.
        file: A name in the directory of the partition, for errors and for the bound on decompression.

    Raises:
        RefusedRecords: Records have no key.
        CorruptBatchError: The checksum is wrong, or the records contradict the header.
        DecompressionLimitError: The records are larger than the bound.
    """
    if header.count <= FEW_RECORDS:
        _check_checksum(records, header.size)
        found = read_records(records, header, file, position=0)
        indexes = [index for index, record in enumerate(found) if record.key is None]
    else:
        from lastword.records.chunk import chunk_of
        from lastword.records.columns import decode_columns

        lengths = decode_columns(chunk_of(records, file)).key_length
        indexes = (lengths < 0).nonzero()[0].tolist()
    if indexes:
        raise RefusedRecords(indexes, partition)


def recompressed(records: Any, header: BatchHeader, codec: int, config: TopicConfig, limit: int) -> bytes:
    """Return a batch with its records, at most `limit` bytes, in another codec.

    Raises:
        CorruptBatchError: The checksum is wrong, or the records cannot be decompressed.
        DecompressionLimitError: The records are larger than `limit`.
    """
    _check_checksum(records, header.size)
    payload: Any = records[HEADER_BYTES:]
    if header.codec:
        payload = decompress(header.codec, payload, limit)
    if codec:
        payload = compress(codec, payload, config.compression_level)
    fields = list(CHECKED.unpack_from(records, ATTRIBUTES_AT))
    fields[0] = (fields[0] & ~CODEC_MASK) | codec
    checked = CHECKED.pack(*fields) + bytes(payload)
    length = len(checked) + ATTRIBUTES_AT - OVERHEAD_BYTES
    return HEAD.pack(0, length, header.leader_epoch, 2, crc32c(checked)) + checked
