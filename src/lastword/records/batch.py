"""A record batch of magic 2: header, checksum and records. Positions and bits: `lastword.wire`.

    pos size type  field
      0    8 i64   base offset            ┐ outside the checksum: the log assigns them
      8    4 i32   length                 │ total - 12, so at least 49
     12    4 i32   leader epoch           │ -1 unknown
     16    1 i8    magic                  ┘ 2; the same position in every format
     17    4 u32   CRC-32C of everything from 21 on
     21    2 i16   attributes             bits 0-2 codec, 3 log-append time, 4 transactional, 5 control,
                                          6 the field at 27 is a delete horizon
     23    4 i32   last offset delta      after compaction it may exceed the last remaining record's
     27    8 i64   base timestamp, or the delete horizon: timestamps of records are relative to it either way
     35    8 i64   max timestamp
     43    8 i64   producer id            -1 none
     51    2 i16   producer epoch         -1 none
     53    4 i32   base sequence          -1 none
     57    4 i32   record count
     61            records, compressed if the codec says so

    record = varint body length, then: i8 attributes (0) · varlong timestamp delta · varint offset delta ·
             varint key length (-1 null) · key · varint value length (-1 null) · value · varint header count ·
             per header: varint name length · name (UTF-8) · varint value length (-1 null) · value

A record is valid if its body is used up exactly, no length reaches past it, and offsets increase within the
batch up to its last offset. A batch is valid if its length is possible, its magic known, its CRC right, and
it holds as many records as its header counts, and nothing after them. A batch is durable when the file of
its segment was synced past the batch's end.

A reader steps through a file by offset, length and magic alone: the first 17 bytes of any magic.

`BatchBuilder` makes the bytes of a batch from records, as Kafka writes them. An embedded state appends one
record per call, so the path of a single small record is short: one join for the record, two packs for the
header, one checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google_crc32c import value as crc32c

from lastword.errors import CorruptBatchError, RecordTooLargeError, UnknownMagicError, UsageError
from lastword.records.compression import compress, decompress, limit_of, located
from lastword.records.record import (
    CREATE_TIME,
    LENGTHS,
    LOG_APPEND_TIME,
    Header,
    RawRecord,
    encode_varint,
    raw_record,
    read_varint,
    read_varlong,
    record_time,
)
from lastword.units import NO_TIMESTAMP
from lastword.values import draft_of
from lastword.wire import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    INT32_MAX,
    INT64_MAX,
    LEADER_EPOCH_AT,
    LOG_APPEND_BIT,
    OVERHEAD_BYTES,
    SMALLEST_LENGTH,
    STEP_BYTES,
    TRANSACTIONAL_BIT,
)

HEADER = struct.Struct(">qiibIhiqqqhii")
HEAD = struct.Struct(">qiibI")  # the fields before the checksummed part, and the checksum
CHECKED = struct.Struct(">hiqqqhii")  # the checksummed part of the header
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_STEP = struct.Struct(">qiib")


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fields of a batch header as stored.

    `position` is that of the batch in its file, `size` its total bytes.
    """

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> int:
        """Return the codec's bits of the attributes."""
        return self.attributes & CODEC_MASK

    @property
    def log_append(self) -> bool:
        """Return whether all records have the time of the append."""
        return bool(self.attributes & LOG_APPEND_BIT)

    @property
    def transactional(self) -> bool:
        """Return whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """Return whether the batch holds control records."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Return the time from which tombstones of the batch may be removed; None if it is not set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def next_offset(self) -> int:
        """Return the offset after the batch."""
        return self.last_offset + 1

    @property
    def end(self) -> int:
        """Return the position after the batch in its file."""
        return self.position + self.size

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record; -1 without a producer.

        Sequences wrap from 2^31 - 1 to 0.
        """
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset - self.base_offset) & INT32_MAX


_new = object.__new__
_Draft = draft_of(BatchHeader)


def read_header(
    buffer: Any,
    position: int,
    end: int,
    file: str,
    *,
    file_position: int | None = None,
    base_offset: int | None = None,
) -> BatchHeader:
    """Read and check the header at `buffer[position]`. The checksum is not verified (`formats.crc_ok`).

    Args:
        buffer: The bytes of the batch, or of its header.
        position: Start of the batch in `buffer`.
        end: End of the file, as a position in `buffer`. It may be past the end of `buffer` when only headers
            are read; only the 61 bytes of the header must be there.
        file: Name of the file, for errors.
        file_position: Position to store in the header and to name in errors, if `buffer` is a window of its
            file.
        base_offset: That of the batch in its log, in place of the stored one.

    Raises:
        CorruptBatchError: Codes `short-header`, `bad-length`, `truncated`, `bad-header`.
        UnknownMagicError: The magic is not 2.
    """
    at = position if file_position is None else file_position
    room = end - position
    if room < STEP_BYTES:
        raise _corrupt(f"{room} bytes are no batch", "short-header", file, at)
    stored_offset, length, leader_epoch, magic = _STEP.unpack_from(buffer, position)
    if base_offset is None:
        base_offset = stored_offset
    if length < SMALLEST_LENGTH:
        raise _corrupt(f"a batch cannot have length {length}", "bad-length", file, at, base_offset)
    if magic != 2:
        raise unknown_magic(magic, file, at, base_offset)
    if length < HEADER_BYTES - OVERHEAD_BYTES:
        raise _corrupt(f"a batch cannot have length {length}", "bad-length", file, at, base_offset)
    if length > room - OVERHEAD_BYTES:
        there = room - OVERHEAD_BYTES
        raise _corrupt(
            f"batch of length {length}, {there} bytes are there", "truncated", file, at, base_offset
        )
    (_, _, _, _, crc, attributes, delta, base_timestamp, max_timestamp, producer_id, producer_epoch, sequence,
     count) = HEADER.unpack_from(buffer, position)  # fmt: skip
    if base_offset < 0 or delta < 0 or count < 0 or base_offset > INT64_MAX - 1 - delta:
        raise _corrupt(
            f"base offset {base_offset}, last offset delta {delta}, count {count} contradict each other",
            "bad-header",
            file,
            at,
            base_offset,
        )
    header = _new(_Draft)
    draft: Any = header
    draft.position = at
    draft.size = length + OVERHEAD_BYTES
    draft.base_offset = base_offset
    draft.last_offset = base_offset + delta
    draft.leader_epoch = leader_epoch
    draft.magic = magic
    draft.crc = crc
    draft.attributes = attributes
    draft.base_timestamp = base_timestamp
    draft.max_timestamp = max_timestamp
    draft.producer_id = producer_id
    draft.producer_epoch = producer_epoch
    draft.base_sequence = sequence
    draft.count = count
    draft.__class__ = BatchHeader
    return header


def unknown_magic(magic: int, file: str, position: int, offset: int) -> UnknownMagicError:
    """Return the error for a batch whose magic is not 2 (`formats` reads 0 and 1)."""
    return UnknownMagicError(
        f"unknown magic {magic}",
        remedy="restore the file from a copy, or use a version that reads this format",
        file=file,
        position=position,
        offset=offset,
    )


def _corrupt(text: str, code: str, file: str, position: int, offset: int | None = None) -> CorruptBatchError:
    return CorruptBatchError(text, code=code, file=file, position=position, offset=offset)


def computed_crc(buffer: Any, size: int, position: int = 0) -> int:
    """Return the CRC-32C of the checksummed part of the batch of `size` bytes at `buffer[position]`."""
    return int(crc32c(bytes(memoryview(buffer)[position + ATTRIBUTES_AT : position + size])))


def set_base_offset(buffer: bytearray, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch of the batch at `buffer[position]`.

    The checksum does not cover them, so it stays right.
    """
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LEADER_EPOCH_AT, leader_epoch)


def write_batch(
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    count: int,
    payload: bytes,
) -> bytes:
    """Return a whole batch from its fields; length and checksum are computed.

    `producer`: id, epoch and base sequence.
    """
    fields = CHECKED.pack(attributes, last_offset_delta, base_timestamp, max_timestamp, *producer, count)
    checked = fields + payload
    length = len(checked) + ATTRIBUTES_AT - OVERHEAD_BYTES
    return HEAD.pack(base_offset, length, leader_epoch, 2, crc32c(checked)) + checked


def read_records(
    buffer: Any, header: BatchHeader, file: str = "", *, position: int | None = None
) -> Iterator[RawRecord]:
    """Read the records of the batch whose header was read, control records too.

    The caller verifies the checksum first: unverified bytes raise a typed error at best.

    Args:
        buffer: The bytes of the batch.
        header: The header of the batch.
        file: Name of the file, for errors and for the bound on decompression.
        position: Position of the batch in `buffer`, by default the position in its file.

    Raises:
        CorruptBatchError: Names `file` and the position of the batch. Records before the damage were
            yielded.
        DecompressionLimitError: The records are larger than the bound.
    """
    yield from records_of(payload_of(buffer, header, file, position), header, file)


def payload_of(buffer: Any, header: BatchHeader, file: str, position: int | None = None) -> Any:
    """Return the uncompressed bytes of the records of a batch; arguments and errors as in `read_records`."""
    at = header.position if position is None else position
    payload = memoryview(buffer).cast("B")[at + HEADER_BYTES : at + header.size]
    if len(payload) != header.size - HEADER_BYTES:
        raise _bad_records(f"{len(payload)} bytes of records are there", header, file)
    if header.codec and header.count:
        return decompress_records(payload, header, file, limit_of(file))
    return payload


def records_of(payload: Any, header: BatchHeader, file: str) -> Iterator[RawRecord]:
    """Read the records of a batch out of their uncompressed bytes; raise CorruptBatchError."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    fixed = header.max_timestamp if header.log_append else None
    kind = CREATE_TIME if fixed is None else LOG_APPEND_TIME
    for _, delta, time_delta, key, value, headers in fields_of(payload, header, file):
        timestamp = record_time(base_timestamp, time_delta) if fixed is None else fixed
        yield raw_record(base_offset + delta, timestamp, kind, key, value, headers)


def record_of(header: BatchHeader, fields: Fields) -> RawRecord:
    """Return the record with these fields of a batch. `records_of` reads many without this call."""
    _, delta, time_delta, key, value, headers = fields
    offset = header.base_offset + delta
    if header.attributes & LOG_APPEND_BIT:
        return raw_record(offset, header.max_timestamp, LOG_APPEND_TIME, key, value, headers)
    timestamp = record_time(header.base_timestamp, time_delta)
    return raw_record(offset, timestamp, CREATE_TIME, key, value, headers)


Fields = tuple[int, int, int, bytes | None, bytes | None, tuple[Header, ...]]
"""Position after the record, offset delta, timestamp delta, key, value, headers."""

_ODD_OR_WIDE = 1 | 1 << 14


def fields_of(payload: Any, header: BatchHeader, file: str) -> Iterator[Fields]:
    """Read the fields of each record of a batch out of its uncompressed bytes; raise CorruptBatchError.

    A record without headers, whose sizes take at most two bytes each, is read here without a call, which
    takes a third of the time. `_record` reads all others, and decides what is wrong with an invalid record.
    """
    data = bytes(payload)
    position, end = 0, len(data)
    last_delta, widest = -1, header.last_offset - header.base_offset
    for number in range(header.count):
        start = position
        try:
            size = data[position]
            position += 1
            if size > 127:
                size += (data[position] - 1) << 7
                position += 1
            body_end = position + (size >> 1)
            time_delta = data[position + 1]  # after the attributes, of which no bit is defined
            position += 2
            shift = 7
            while time_delta >> shift and shift < 56:
                time_delta += (data[position] - 1) << shift
                position += 1
                shift += 7
            delta = data[position]
            position += 1
            if delta > 127:
                delta += (data[position] - 1) << 7
                position += 1
            size |= delta
            key = value = None
            length = data[position]
            position += 1
            if length != 1:
                if length > 127:
                    length += (data[position] - 1) << 7
                    position += 1
                size |= length
                key = data[position : position + (length >> 1)]
                position += length >> 1
            length = data[position]
            position += 1
            if length != 1:
                if length > 127:
                    length += (data[position] - 1) << 7
                    position += 1
                size |= length
                value = data[position : position + (length >> 1)]
                position += length >> 1
            # Odd numbers are negative. The position only rises: if the end fits, all fields are inside.
            simple = not (data[position] or size & _ODD_OR_WIDE or time_delta >> 56)
            position += 1
            if simple and position == body_end and last_delta < delta >> 1 <= widest:
                last_delta = delta >> 1
                yield position, last_delta, (time_delta >> 1) ^ -(time_delta & 1), key, value, ()
                continue
        except IndexError:
            pass
        try:
            fields = _record(data, start, end)
            position, delta, *_ = fields
            if delta <= last_delta or delta > widest:
                raise ValueError(f"offset delta {delta} after {last_delta}, {widest} is the last")
        except ValueError as error:
            raise _bad_records(f"record {number + 1} of {header.count}: {error}", header, file) from None
        last_delta = delta
        yield fields
    if position != end:
        raise _bad_records(f"{end - position} bytes behind the last of {header.count} records", header, file)


def decompress_records(payload: Any, header: BatchHeader, file: str, limit_bytes: int) -> bytes:
    """Decompress the records of a batch. Errors name `file` and the position of the batch."""
    with located(file, header.position, header.base_offset):
        return decompress(header.codec, payload, limit_bytes)


def _record(data: Any, position: int, end: int) -> Fields:
    """Return the fields of the record at `position`. Raises ValueError with the reason."""
    size, position = read_varint(data, position, end)
    if size < 0 or size > end - position:
        raise ValueError(f"body of {size} bytes, {end - position} are there")
    end = position + size
    if size == 0:
        raise ValueError("empty body")
    position += 1  # attributes: no bit is defined
    time_delta, position = read_varlong(data, position, end)
    delta, position = read_varint(data, position, end)
    key, position = _bytes(data, position, end, "key")
    value, position = _bytes(data, position, end, "value")
    count, position = read_varint(data, position, end)
    if count < 0 or count > end - position:
        raise ValueError(f"{count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _bytes(data, position, end, "header name")
        if name is None:
            raise ValueError("header without a name")
        content, position = _bytes(data, position, end, "header value")
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    if position != end:
        raise ValueError(f"{end - position} bytes of its body are left over")
    return position, delta, time_delta, key, value, tuple(headers)


def _bytes(data: Any, position: int, end: int, field: str) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position, end)
    if size == -1:
        return None, position
    if size < 0 or size > end - position:
        raise ValueError(f"{field} of {size} bytes, {end - position} are there")
    return bytes(data[position : position + size]), position + size


def _bad_records(text: str, header: BatchHeader, file: str) -> CorruptBatchError:
    return CorruptBatchError(
        f"offset {header.base_offset}: {text}",
        code="bad-records",
        file=file,
        position=header.position,
        offset=header.base_offset,
    )


# ---------------------------------------------------------------- building a batch


_NULL = encode_varint(-1)
_NO_HEADERS = encode_varint(0)
_ATTRIBUTES_AND_DELTA = struct.pack(">hi", 0, 0)  # no codec; last offset delta
_TIMESTAMPS = struct.Struct(">qq")
_NO_PRODUCER_ONE_RECORD = struct.pack(">qhii", -1, -1, -1, 1)
_BEFORE_KEY = b"\0" + encode_varint(0) + encode_varint(0)  # attributes, timestamp delta, offset delta
_FEWEST_BYTES = len(_BEFORE_KEY) + len(_NO_HEADERS)
_KNOWN_LENGTHS = len(LENGTHS)


def _before_record(timestamp: int) -> tuple[int, bytes]:
    timestamps = _TIMESTAMPS.pack(timestamp, timestamp)
    return timestamp, _ATTRIBUTES_AND_DELTA + timestamps + _NO_PRODUCER_ONE_RECORD


_last_part = _before_record(0)
"""Timestamp of the last `checked_part`, and the fields before its record: many calls have the same
millisecond. Replaced as a whole, so that another thread finds two parts of one call."""


def checked_part(timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    """Return the checksummed part of a batch of one record, byte for byte that of a `BatchBuilder`.

    The record has no headers, and the batch no codec and no producer.
    """
    global _last_part
    last, fields = _last_part
    if timestamp != last:
        _last_part = timestamp, fields = _before_record(timestamp)
    if key is None:
        before_key, key, size = _NULL, b"", _FEWEST_BYTES + len(_NULL)
    else:
        size = len(key)
        before_key = LENGTHS[size] if size < _KNOWN_LENGTHS else encode_varint(size)
        size += _FEWEST_BYTES + len(before_key)
    if value is None:
        before_value, value = _NULL, b""
    else:
        length = len(value)
        before_value = LENGTHS[length] if length < _KNOWN_LENGTHS else encode_varint(length)
        size += length
    size += len(before_value)
    before_record = LENGTHS[size] if size < _KNOWN_LENGTHS else encode_varint(size)
    parts = fields, before_record, _BEFORE_KEY, before_key, key, before_value, value, _NO_HEADERS
    return b"".join(parts)


class BatchBuilder:
    """Collects the records of one batch.

    `codec`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; `level` as in `compress`. `timestamp_type`: with 1 (log
    append) all records get the time that `build` gets. Producer fields of -1: no producer. After `clear` the
    builder can be used again. `size_estimate`: the size without compression, exact for codec 0.
    """

    __slots__ = (
        "_attributes",
        "_base_sequence",
        "_base_timestamp",
        "_last_delta",
        "_max_timestamp",
        "_producer_epoch",
        "_producer_id",
        "_records",
        "codec",
        "level",
        "size_estimate",
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
        self._last_delta = -1
        self.size_estimate = HEADER_BYTES
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    def __len__(self) -> int:
        return len(self._records)

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
            raise UsageError(f"{timestamp} is not a timestamp", remedy="milliseconds since 1970, below 2^63")
        if not self._records:
            self._base_timestamp = timestamp
        if key is None:
            before_key, key = _NULL, b""
        else:
            size = len(key)
            before_key = LENGTHS[size] if size < _KNOWN_LENGTHS else encode_varint(size)
        if value is None:
            before_value, value = _NULL, b""
        else:
            size = len(value)
            before_value = LENGTHS[size] if size < _KNOWN_LENGTHS else encode_varint(size)
        time_delta = encode_varint(timestamp - self._base_timestamp)
        offset = LENGTHS[delta] if delta < _KNOWN_LENGTHS else encode_varint(delta)
        parts = [b"\0", time_delta, offset, before_key, key, before_value, value]
        if headers:
            self._put_headers(parts, headers)
        else:
            parts.append(_NO_HEADERS)
        body = b"".join(parts)
        size = len(body)
        if size > INT32_MAX - HEADER_BYTES - 5:
            raise RecordTooLargeError(f"a record of {size} bytes exceeds what a batch can hold")
        record = (LENGTHS[size] if size < _KNOWN_LENGTHS else encode_varint(size)) + body
        self._records.append(record)
        self._last_delta = delta
        self.size_estimate += len(record)
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp

    @staticmethod
    def _put_headers(parts: list[bytes], headers: Iterable[Header]) -> None:
        pairs = list(headers)
        parts.append(encode_varint(len(pairs)))
        for name, value in pairs:
            raw = name.encode("utf-8", "surrogateescape")
            parts += (encode_varint(len(raw)), raw)
            parts += (_NULL,) if value is None else (encode_varint(len(value)), value)

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
        payload = self._records[0] if len(self._records) == 1 else b"".join(self._records)
        if self.codec:
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
            count=len(self._records),
            payload=payload,
        )
