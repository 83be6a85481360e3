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
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google_crc32c import value as crc32c

from lastword.errors import CorruptBatchError, UnknownMagicError
from lastword.records.compression import limit_of
from lastword.records.record import CREATE_TIME, LOG_APPEND_TIME, Header, RawRecord, read_varint, read_varlong
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
# A frozen dataclass sets every field by a call (3 us for these). An object of a class with the same slots is
# filled instead, and its class is changed to BatchHeader.
_Draft: Any = type("_Draft", (), {"__slots__": tuple(BatchHeader.__slots__)})


def read_header(
    buffer: Any, position: int, end: int, file: str, *, file_position: int | None = None
) -> BatchHeader:
    """Read and check the header at `buffer[position]`. The checksum is not verified (`crc_ok`).

    Args:
        buffer: The bytes of the batch, or of its header.
        position: Start of the batch in `buffer`.
        end: End of the file, as a position in `buffer`. It may be past the end of `buffer` when only headers
            are read; only the 61 bytes of the header must be there.
        file: Name of the file, for errors.
        file_position: Position to store in the header and to name in errors, if `buffer` is a window of its
            file.

    Raises:
        CorruptBatchError: Codes `short-header`, `bad-length`, `truncated`, `bad-header`.
        UnknownMagicError: The magic is not 2.
    """
    at = position if file_position is None else file_position
    room = end - position
    if room < STEP_BYTES:
        raise _corrupt(f"{room} bytes are no batch", "short-header", file, at)
    base_offset, length, leader_epoch, magic = _STEP.unpack_from(buffer, position)
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
    header: Any = _new(_Draft)
    header.position = at
    header.size = length + OVERHEAD_BYTES
    header.base_offset = base_offset
    header.last_offset = base_offset + delta
    header.leader_epoch = leader_epoch
    header.magic = magic
    header.crc = crc
    header.attributes = attributes
    header.base_timestamp = base_timestamp
    header.max_timestamp = max_timestamp
    header.producer_id = producer_id
    header.producer_epoch = producer_epoch
    header.base_sequence = sequence
    header.count = count
    header.__class__ = BatchHeader
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


def crc_ok(buffer: Any, header: BatchHeader, position: int | None = None) -> bool:
    """Return whether the stored checksum matches the bytes.

    `position` is that of the batch in `buffer`, by default the position in its file.
    """
    at = header.position if position is None else position
    return computed_crc(buffer, header.size, at) == header.crc


def check_crc(buffer: Any, header: BatchHeader, file: str, position: int | None = None) -> None:
    """Raise `CorruptBatchError` (code `bad-crc`) unless the stored checksum matches the bytes."""
    computed = computed_crc(buffer, header.size, header.position if position is None else position)
    if computed != header.crc:
        raise CorruptBatchError.crc(file, header.position, header.base_offset, header.crc, computed)


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
    checked = (
        CHECKED.pack(
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            *producer,
            count,
        )
        + payload
    )
    length = len(checked) + ATTRIBUTES_AT - OVERHEAD_BYTES
    return HEAD.pack(base_offset, length, leader_epoch, 2, crc32c(checked)) + checked


def read_records(
    buffer: Any,
    header: BatchHeader,
    file: str = "",
    *,
    position: int | None = None,
    limit_bytes: int | None = None,
) -> Iterator[RawRecord]:
    """Read the records of the batch whose header was read, control records too.

    The caller verifies the checksum first: unverified bytes raise a typed error at best.

    Args:
        buffer: The bytes of the batch.
        header: The header of the batch.
        file: Name of the file, for errors and for the bound on decompression.
        position: Position of the batch in `buffer`, by default the position in its file.
        limit_bytes: Bound of the decompressed records, by default that of `file`.

    Raises:
        CorruptBatchError: Names `file` and the position of the batch. Records before the damage were
            yielded.
        DecompressionLimitError: The records are larger than the bound.
    """
    at = header.position if position is None else position
    view = memoryview(buffer).cast("B")
    payload: Any = view[at + HEADER_BYTES : at + header.size]
    if len(payload) != header.size - HEADER_BYTES:
        raise _bad_records(f"{len(payload)} bytes of records are there", header, file)
    if header.codec and header.count:
        payload = decompress_records(payload, header, file, limit_bytes)
    kind = LOG_APPEND_TIME if header.log_append else CREATE_TIME
    next_position, end = 0, len(payload)
    last_delta, widest = -1, header.last_offset - header.base_offset
    for number in range(header.count):
        try:
            next_position, delta, time_delta, key, value, headers = _record(payload, next_position, end)
            if delta <= last_delta or delta > widest:
                raise ValueError(f"offset delta {delta} after {last_delta}, {widest} is the last")
        except ValueError as error:
            raise _bad_records(f"record {number + 1} of {header.count}: {error}", header, file) from None
        last_delta = delta
        timestamp = header.max_timestamp if kind else header.base_timestamp + time_delta
        yield RawRecord(header.base_offset + delta, timestamp, kind, key, value, headers)
    if next_position != end:
        raise _bad_records(
            f"{end - next_position} bytes behind the last of {header.count} records", header, file
        )


def decompress_records(payload: Any, header: BatchHeader, file: str, limit_bytes: int | None = None) -> bytes:
    """Decompress the records of a batch. Errors name `file` and the position of the batch."""
    from lastword.records.compression import decompress, located

    with located(file, header.position, header.base_offset):
        return decompress(header.codec, payload, limit_of(file) if limit_bytes is None else limit_bytes)


def _record(
    data: Any, position: int, end: int
) -> tuple[int, int, int, bytes | None, bytes | None, tuple[Header, ...]]:
    """Return (position after the record, offset delta, timestamp delta, key, value, headers).

    Raises ValueError with the reason.
    """
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


def _bytes(data: Any, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position, end)
    if size == -1:
        return None, position
    if size < 0 or size > end - position:
        raise ValueError(f"{what} of {size} bytes, {end - position} are there")
    return bytes(data[position : position + size]), position + size


def _bad_records(text: str, header: BatchHeader, file: str) -> CorruptBatchError:
    return CorruptBatchError(
        f"offset {header.base_offset}: {text}",
        code="bad-records",
        file=file,
        position=header.position,
        offset=header.base_offset,
    )
