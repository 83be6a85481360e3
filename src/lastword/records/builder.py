"""`BatchBuilder`: the bytes of one batch from records, as Kafka writes them.

An embedded state appends one record per call, so the path of a single small record is short: one join for
the record, two packs for the header, one checksum.
"""

from __future__ import annotations

from collections.abc import Iterable

from lastword.errors import RecordTooLargeError, UsageError
from lastword.records.batch import write_batch
from lastword.records.record import CREATE_TIME, LOG_APPEND_TIME, Header, encode_varint
from lastword.units import NO_TIMESTAMP
from lastword.wire import CONTROL_BIT, HEADER_BYTES, INT32_MAX, INT64_MAX, LOG_APPEND_BIT, TRANSACTIONAL_BIT

_NULL = encode_varint(-1)
_NO_HEADERS = encode_varint(0)


class BatchBuilder:
    """Collects the records of one batch.

    `codec`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; `level` as in `compress`. `timestamp_type`: with 1 (log
    append) all records get the time that `build` gets. Producer fields of -1: no producer. After `clear` the
    builder can be used again.
    """

    __slots__ = (
        "_attributes",
        "_base_sequence",
        "_base_timestamp",
        "_count",
        "_last_delta",
        "_max_timestamp",
        "_producer_epoch",
        "_producer_id",
        "_records",
        "_size",
        "codec",
        "level",
    )

    def __init__(
        self,
        codec: int = 0,
        *,
        level: int | None = None,
        timestamp_type: int = CREATE_TIME,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        if producer_id >= 0 and (producer_epoch < 0 or (base_sequence < 0 and not control)):
            raise UsageError(f"producer {producer_id} needs an epoch and a sequence")
        if transactional and producer_id < 0:
            raise UsageError("a transactional batch needs a producer id")
        if control and producer_id >= 0 and not transactional:
            raise UsageError("the marker of a transaction is a transactional control batch")
        if timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME):
            raise UsageError(f"timestamp type {timestamp_type} is neither 0 (create) nor 1 (log append)")
        self.codec = codec
        self.level = level
        self._attributes = codec
        if timestamp_type == LOG_APPEND_TIME:
            self._attributes |= LOG_APPEND_BIT
        if transactional:
            self._attributes |= TRANSACTIONAL_BIT
        if control:
            self._attributes |= CONTROL_BIT
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._records: list[bytes] = []
        self.clear()

    def clear(self) -> None:
        """Remove the records; the next batch has the same codec and producer fields."""
        self._records.clear()
        self._count = 0
        self._last_delta = -1
        self._size = HEADER_BYTES
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    def __len__(self) -> int:
        return self._count

    @property
    def size_estimate(self) -> int:
        """Return the size of the batch without compression: exact for codec 0."""
        return self._size

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header] = (),
        *,
        offset_delta: int | None = None,
    ) -> None:
        """Add a record.

        `offset_delta` is its offset minus the base offset, if there are gaps; by default the next offset.
        """
        delta = self._last_delta + 1 if offset_delta is None else offset_delta
        if delta <= self._last_delta or delta > INT32_MAX:
            raise UsageError(f"offset delta {delta} after {self._last_delta}: offsets rise within a batch")
        if timestamp < NO_TIMESTAMP or timestamp > INT64_MAX:
            raise UsageError(f"{timestamp} is not a timestamp")
        if self._count == 0:
            self._base_timestamp = timestamp
        parts = [b"\0", encode_varint(timestamp - self._base_timestamp), encode_varint(delta)]
        if key is None:
            parts.append(_NULL)
        else:
            parts.append(encode_varint(len(key)))
            parts.append(key)
        if value is None:
            parts.append(_NULL)
        else:
            parts.append(encode_varint(len(value)))
            parts.append(value)
        if headers:
            self._put_headers(parts, headers)
        else:
            parts.append(_NO_HEADERS)
        body = b"".join(parts)
        size = len(body)
        if size > INT32_MAX - HEADER_BYTES - 5:
            raise RecordTooLargeError(f"a record of {size} bytes exceeds what a batch can hold")
        record = encode_varint(size) + body
        self._records.append(record)
        self._count += 1
        self._last_delta = delta
        self._size += len(record)
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp

    @staticmethod
    def _put_headers(parts: list[bytes], headers: Iterable[Header]) -> None:
        pairs = list(headers)
        parts.append(encode_varint(len(pairs)))
        for name, value in pairs:
            raw = name.encode("utf-8", "surrogateescape")
            parts.append(encode_varint(len(raw)))
            parts.append(raw)
            if value is None:
                parts.append(_NULL)
            else:
                parts.append(encode_varint(len(value)))
                parts.append(value)

    def build(
        self,
        base_offset: int = 0,
        leader_epoch: int = 0,
        *,
        append_time: int | None = None,
        last_offset_delta: int | None = None,
    ) -> bytes:
        """Return the batch.

        `append_time`: ms, the max timestamp of a log-append batch. `last_offset_delta`: to cover more
        offsets than the last record's, as a cleaned batch does.
        """
        if not self._records:
            raise UsageError("a batch needs a record")
        payload = self._records[0] if self._count == 1 else b"".join(self._records)
        if self.codec:
            from lastword.records.compression import compress

            payload = compress(self.codec, payload, self.level)
        if len(payload) > INT32_MAX - HEADER_BYTES:
            raise RecordTooLargeError(f"a batch of {len(payload)} bytes does not fit its length field")
        return write_batch(
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            attributes=self._attributes,
            last_offset_delta=self._last_delta if last_offset_delta is None else last_offset_delta,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp if append_time is None else append_time,
            producer=(self._producer_id, self._producer_epoch, self._base_sequence),
            count=self._count,
            payload=payload,
        )
