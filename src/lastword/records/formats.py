"""Batches of any magic through one set of functions; and magic 0 and 1, which only old logs have.

The magic byte has the same position in all formats, and selects the format: `batch` has magic 2, this module
has 0 and 1, with the same functions and arguments. An unknown magic is UnknownMagicError, never damage that
could be truncated.

Magic 0 and 1 are the entries of brokers before 0.11, and of topics that kept their message format. An entry
is one message, or a *wrapper*: a message whose value is the compressed concatenation of whole inner entries.

```
v0   v1   bytes  field
 0    0       8  offset: of the message; of a wrapper the absolute offset of its last inner message
 8    8       4  size: bytes that follow this field
12   12       4  CRC-32 (the one of zlib) over everything from the magic on
16   16       1  magic
17   17       1  attributes: bits 0-2 codec (0 none, 1 gzip, 2 snappy, 3 lz4); bit 3, v1 only: LogAppendTime
 -   18       8  timestamp, ms, -1 none
18   26       4  key length, -1 null
          k      key
          4      value length, -1 null
          v      value
```

Big endian. `0000000000000007 00000010 a4ad2011 00 00 00000001 61 00000001 62` is v0, offset 7, key `a`,
value `b`.

- Inner offsets are absolute in a wrapper of magic 0 and relative in one of magic 1: `wrapper offset - last
  inner offset + inner offset`. The wrapper's magic decides; inner messages of the other magic occur and are
  read. A magic 1 wrapper with offset 0 holds offsets from 0 on, whatever its last inner offset is (old
  librdkafka).
- A LogAppendTime wrapper gives all its messages its own timestamp; otherwise its timestamp is their maximum.
- A compressed inner message is refused. An incomplete inner entry at the end is ignored. The number of
  messages in a wrapper and its first offset are unknown before it is decompressed: its header has count -1
  and the last offset twice.
- LZ4 in magic 0 has a frame header checksum over the wrong bytes. Kafka writes it so, and does not verify
  it.

There are no headers, producers, transactions or control records.

Only the cleaner writes these formats, into logs that have them: an entry that it cuts keeps its magic and
codec. A removed entry leaves nothing behind: empty batches exist in magic 2 only.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from lastword.errors import CorruptBatchError
from lastword.records import batch
from lastword.records.batch import BatchHeader
from lastword.records.compression import compress, decompress, limit_of, located, xxh32
from lastword.records.record import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE, RawRecord
from lastword.units import NO_TIMESTAMP
from lastword.wire import (
    CODEC_MASK,
    CRC_AT,
    GZIP,
    HEADER_BYTES,
    INT64_MAX,
    LEGACY_CRC_AT,
    LEGACY_TIMESTAMP_AT,
    LENGTH_AT,
    LOG_APPEND_BIT,
    LZ4,
    MAGIC_AT,
    OVERHEAD_BYTES,
    SMALLEST_LENGTH,
    SNAPPY,
    UNCOMPRESSED,
)

Buffer = Any


# ---------------------------------------------------------------- magic 0 and 1


KEY_LENGTH_AT = (LEGACY_TIMESTAMP_AT, LEGACY_TIMESTAMP_AT + 8)
MIN_SIZE = (SMALLEST_LENGTH, SMALLEST_LENGTH + 8)
"""Smallest value of the size field, by magic: null key, null value."""

ATTRIBUTES_MASK = (CODEC_MASK, CODEC_MASK | LOG_APPEND_BIT)
"""Attribute bits in use, by magic."""
CODECS = (UNCOMPRESSED, GZIP, SNAPPY, LZ4)
UNKNOWN_COUNT = -1

_PREFIX = struct.Struct(">qiIbB")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_INNER = struct.Struct(">IbB")


class LegacyRecord(NamedTuple):
    """One message of an entry.

    `offset` is absolute. Positions refer to the buffer that the message was parsed from; a length of -1 is
    null. `start` and `end` bound the bytes of the message from its CRC on. `timestamp` is the effective one.
    """

    offset: int
    magic: int
    timestamp: int
    key_position: int
    key_length: int
    value_position: int
    value_length: int
    start: int
    end: int


def _legacy_header(
    buffer: Buffer, position: int, end: int, file: str, *, file_position: int | None = None
) -> BatchHeader:
    """Return the header of the entry at `buffer[position]`; arguments as in `batch.read_header`.

    `base_offset` equals `last_offset` (the first offset of a wrapper is inside), `count` is 1, or -1 for a
    wrapper. The checksum is not verified (`crc_ok`). Raises CorruptBatchError for an impossible length,
    offset or codec.
    """
    at = position if file_position is None else file_position
    room = end - position
    if room < OVERHEAD_BYTES + MIN_SIZE[0]:
        raise _bad(f"{room} bytes are no entry", "short-header", file, at)
    offset, size, crc, magic, attributes = _PREFIX.unpack_from(buffer, position)
    if size < MIN_SIZE[magic]:
        raise _bad(f"an entry of magic {magic} cannot have size {size}", "bad-length", file, at, offset)
    if size > room - OVERHEAD_BYTES:
        raise _bad(
            f"entry of size {size}, {room - OVERHEAD_BYTES} bytes are there", "truncated", file, at, offset
        )
    attributes &= ATTRIBUTES_MASK[magic]
    codec = attributes & CODEC_MASK
    if not 0 <= offset < INT64_MAX or codec not in CODECS:
        raise _bad(
            f"offset {offset} or codec {codec} cannot be in magic {magic}", "bad-header", file, at, offset
        )
    timestamp = _LONG.unpack_from(buffer, position + LEGACY_TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
    return legacy_header(at, size + OVERHEAD_BYTES, offset, magic, crc, attributes, timestamp)


def legacy_header(
    position: int, size: int, offset: int, magic: int, crc: int, attributes: int, timestamp: int
) -> BatchHeader:
    """Return the header of an entry of magic 0 or 1 with these fields; see `_legacy_header`."""
    return BatchHeader(
        position=position,
        size=size,
        base_offset=offset,
        last_offset=offset,
        leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=attributes,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=UNKNOWN_COUNT if attributes & CODEC_MASK else 1,
    )


def _legacy_crc(buffer: Buffer, size: int, position: int = 0) -> int:
    """Return the CRC-32 of the checksummed part of the entry of `size` bytes at `buffer[position]`."""
    return zlib.crc32(memoryview(buffer)[position + MAGIC_AT : position + size])


def inner_bytes(buffer: Buffer, header: BatchHeader, file: str, at: int, limit_bytes: int) -> bytes:
    """Decompress the inner entries of the wrapper at `buffer[at]`.

    More than `limit_bytes` is DecompressionLimitError.
    """
    outer = _outer(buffer, header, file, at)
    if outer.value_length < 0:
        raise _bad(
            "a compressed entry without a value", "bad-records", file, header.position, header.last_offset
        )
    value = bytes(memoryview(buffer)[outer.value_position : outer.value_position + outer.value_length])
    if header.magic == 0 and header.codec == LZ4:
        value = with_checksum(value, broken=False)
    with located(file, header.position, header.last_offset):
        return decompress(header.codec, value, limit_bytes)


def messages(
    buffer: Buffer, header: BatchHeader, file: str = "", *, position: int | None = None
) -> tuple[Buffer, list[LegacyRecord]]:
    """Return all messages of an entry, and the buffer that their positions refer to.

    The caller verifies the checksum of the entry; those inside a wrapper are verified here. Raises
    CorruptBatchError or DecompressionLimitError, which name `file` and the position of the entry.
    """
    at = header.position if position is None else position
    if not header.codec:
        return buffer, [_outer(buffer, header, file, at)]
    data = inner_bytes(buffer, header, file, at, limit_of(file))
    parsed = list(_inner_messages(data, header, file))
    shift = _shift(parsed, header, file)
    previous = -1
    for number, message in enumerate(parsed):
        offset = message.offset + shift
        if offset <= previous:
            raise _bad(
                f"inner offset {offset} after {previous}",
                "bad-records",
                file,
                header.position,
                header.last_offset,
            )
        previous = offset
        timestamp = header.max_timestamp if header.log_append else message.timestamp
        parsed[number] = message._replace(offset=offset, timestamp=timestamp)
    return data, parsed


def _legacy_records(
    buffer: Buffer, header: BatchHeader, file: str = "", *, position: int | None = None
) -> Iterator[RawRecord]:
    """Yield the records of one entry, in order; arguments and errors as in `batch.read_records`."""
    data, parsed = messages(buffer, header, file, position=position)
    kind = LOG_APPEND_TIME if header.log_append else CREATE_TIME
    if header.magic == 0:
        kind = NO_TIMESTAMP_TYPE
    for message in parsed:
        yield RawRecord(message.offset, message.timestamp, kind, *key_and_value(data, message))


def key_and_value(buffer: Buffer, message: LegacyRecord) -> tuple[bytes | None, bytes | None]:
    """Return copies of a message's key and value."""
    view = memoryview(buffer)
    key = value = None
    if message.key_length >= 0:
        key = bytes(view[message.key_position : message.key_position + message.key_length])
    if message.value_length >= 0:
        value = bytes(view[message.value_position : message.value_position + message.value_length])
    return key, value


def _outer(buffer: Buffer, header: BatchHeader, file: str, at: int) -> LegacyRecord:
    try:
        return _message(buffer, at, at + header.size, header.magic, header.last_offset)
    except ValueError as error:
        raise _bad(str(error), "bad-records", file, header.position, header.last_offset) from None


def _inner_messages(data: bytes, wrapper: BatchHeader, file: str) -> Iterator[LegacyRecord]:
    """Yield the inner entries with their offsets as stored."""
    position, end = 0, len(data)
    while end - position >= OVERHEAD_BYTES:
        offset = _LONG.unpack_from(data, position)[0]
        size = _INT.unpack_from(data, position + LENGTH_AT)[0]
        try:
            if size < MIN_SIZE[0]:
                raise ValueError(f"impossible size {size}")
            if size > end - position - OVERHEAD_BYTES:
                return  # incomplete: old fetches ended anywhere, and the next fetch had the rest
            crc, magic, attributes = _INNER.unpack_from(data, position + LEGACY_CRC_AT)
            if magic not in (0, 1) or size < MIN_SIZE[magic]:
                raise ValueError(f"magic {magic}, size {size}")
            if attributes & CODEC_MASK:
                raise ValueError("compressed inside a compressed entry")
            entry_end = position + OVERHEAD_BYTES + size
            if zlib.crc32(memoryview(data)[position + MAGIC_AT : entry_end]) != crc:
                raise ValueError("checksum mismatch")
            message = _message(data, position, entry_end, magic, offset)
        except ValueError as error:
            text = f"inner entry at decompressed byte {position}: {error}"
            raise _bad(text, "bad-records", file, wrapper.position, wrapper.last_offset) from None
        yield message
        position = entry_end


def _message(buffer: Buffer, position: int, end: int, magic: int, offset: int) -> LegacyRecord:
    """Parse the message whose entry is buffer[position:end].

    Raises ValueError for impossible lengths. Bytes after the value are ignored, as in Kafka.
    """
    timestamp = _LONG.unpack_from(buffer, position + LEGACY_TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
    at = position + KEY_LENGTH_AT[magic]
    key_length = _INT.unpack_from(buffer, at)[0]
    key_position = at + 4
    if key_length < -1 or key_length > end - key_position - 4:
        raise ValueError(f"key of {key_length} bytes, {end - key_position - 4} are there")
    at = key_position + max(key_length, 0)
    value_length = _INT.unpack_from(buffer, at)[0]
    value_position = at + 4
    if value_length < -1 or value_length > end - value_position:
        raise ValueError(f"value of {value_length} bytes, {end - value_position} are there")
    start = position + LEGACY_CRC_AT
    return LegacyRecord(
        offset, magic, timestamp, key_position, key_length, value_position, value_length, start, end
    )


def _shift(parsed: list[LegacyRecord], wrapper: BatchHeader, file: str) -> int:
    """Return the number to add to a stored inner offset to get the absolute one."""
    if not parsed:
        text = "a wrapper without a whole inner entry"
        raise _bad(text, "bad-records", file, wrapper.position, wrapper.last_offset)
    if wrapper.magic == 0 or wrapper.last_offset == 0:
        return 0
    last = parsed[-1].offset
    if wrapper.last_offset < last:
        text = f"last inner offset {last} is above the wrapper's {wrapper.last_offset}"
        raise _bad(text, "bad-records", file, wrapper.position, wrapper.last_offset)
    return wrapper.last_offset - last


def _bad(text: str, code: str, file: str, position: int, offset: int | None = None) -> CorruptBatchError:
    return CorruptBatchError(text, code=code, file=file or None, position=position, offset=offset)


def with_checksum(frame: bytes, *, broken: bool) -> bytes:
    """Return the LZ4 frame with its header checksum set.

        04 22 4d 18 · FLG · BD · [8 content size] · [4 dictionary id] · HC

    HC is the second byte of xxHash32 over the descriptor: everything from FLG on, up to HC. Kafka before
    0.10 included the four bytes of the frame's magic number. Entries of magic 0 keep that (`broken`): 1a for
    FLG 60, BD 40, where 82 is right. A frame that is too short for a checksum is left to the decompressor.
    """
    if len(frame) < 7:
        return frame
    at = 6 + (8 if frame[4] & 0x08 else 0) + (4 if frame[4] & 0x01 else 0)  # content size, dictionary id
    if at >= len(frame):
        return frame
    checksum = xxh32(frame[0 if broken else 4 : at]) >> 8 & 0xFF
    return b"".join((frame[:at], bytes((checksum,)), frame[at + 1 :]))


class Filtered(NamedTuple):
    """An entry after some of its messages were removed."""

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
    """Return one entry. `codec` only describes `value`; for a wrapper use `wrap`.

    Raises ValueError for what the magic cannot hold: a timestamp in magic 0, zstd in both.
    """
    if magic not in (0, 1) or codec not in CODECS:
        raise ValueError(
            f"magic {magic} has no codec {codec}: legacy entries take none, gzip, snappy and lz4"
        )
    if magic == 0 and (timestamp != NO_TIMESTAMP or log_append):
        raise ValueError("magic 0 has no timestamps")
    attributes = codec | (LOG_APPEND_BIT if log_append else 0)
    body = (
        struct.pack(">bBq", magic, attributes, timestamp) if magic else struct.pack(">bB", magic, attributes)
    )
    body += _field(key) + _field(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def filter_entry(
    buffer: Buffer, header: BatchHeader, keep: Iterable[bool], file: str = "", *, position: int | None = None
) -> Filtered | None:
    """Return an entry with only the messages to keep (`keep`, one flag for each); None if no message is kept.

    The bytes are the same if all messages are kept and have the wrapper's magic. Otherwise the result is a
    wrapper of the same magic, codec and timestamp type, with the same offsets (and their gaps), keys, values
    and timestamps. A message of magic 1 in a wrapper of magic 0 keeps its form, because magic 0 has no field
    for its timestamp; one of magic 0 in a wrapper of magic 1 becomes magic 1.
    """
    at = header.position if position is None else position
    data, parsed = messages(buffer, header, file, position=position)
    kept = [message for message, stays in zip(parsed, keep, strict=True) if stays]
    if not kept:
        return None
    converted = header.magic == 1 and any(message.magic == 0 for message in kept)
    if len(kept) == len(parsed) and not converted:
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
    whole = wrap(header.magic, header.codec, last, stamp, header.log_append, bytes(inner))
    return Filtered(whole, last, stamp, len(kept))


def wrap(magic: int, codec: int, offset: int, timestamp: int, log_append: bool, inner: bytes) -> bytes:
    """Return the wrapper of entries, compressed. `offset` and `timestamp` are those of the last one."""
    value = compress(codec, inner)
    if magic == 0 and codec == LZ4:
        value = with_checksum(value, broken=True)
    return build_message(magic, offset, None, value, timestamp, log_append=log_append, codec=codec)


def _field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1 if data is None else len(data)) + (data or b"")


# ---------------------------------------------------------------- any magic


def read_header(
    buffer: Any, position: int, end: int, file: str, *, file_position: int | None = None
) -> BatchHeader:
    """Return the header at `buffer[position]`, of any magic; arguments and errors as in `batch.read_header`.

    For magic 0 and 1: no producer, leader epoch -1, `base_offset` equal to `last_offset`, `count` -1 for a
    compressed entry.
    """
    magic = buffer[position + MAGIC_AT] if end - position > MAGIC_AT else 2
    read = _legacy_header if magic < 2 else batch.read_header
    return read(buffer, position, end, file, file_position=file_position)


def _computed_crc(buffer: Any, header: BatchHeader, position: int | None) -> int:
    compute = _legacy_crc if header.magic < 2 else batch.computed_crc
    return compute(buffer, header.size, header.position if position is None else position)


def crc_ok(buffer: Any, header: BatchHeader, position: int | None = None) -> bool:
    """Return whether the stored checksum matches the bytes.

    `position` is that of the batch in `buffer`, by default the position in its file.
    """
    return _computed_crc(buffer, header, position) == header.crc


def is_as_written(buffer: Any, position: int, size: int) -> bool:
    """Return whether the checksum of the entry of `size` bytes at `buffer[position]` is right.

    The other fields may contradict each other, and the magic may be unknown. As in Kafka, a magic above 2 has
    the checksum of magic 2, and a negative one that of magic 0.
    """
    data = memoryview(buffer)[position : position + size]
    if 2 <= data[MAGIC_AT] < 128:
        crc = int.from_bytes(data[CRC_AT : CRC_AT + 4], "big")
        return size >= HEADER_BYTES and batch.computed_crc(data, size) == crc
    crc = int.from_bytes(data[LEGACY_CRC_AT : LEGACY_CRC_AT + 4], "big")
    return size >= OVERHEAD_BYTES + SMALLEST_LENGTH and _legacy_crc(data, size) == crc


def check_crc(buffer: Any, header: BatchHeader, file: str, position: int | None = None) -> None:
    """Raise `CorruptBatchError` (code `bad-crc`) unless the stored checksum matches the bytes."""
    computed = _computed_crc(buffer, header, position)
    if computed != header.crc:
        raise CorruptBatchError.crc(file, header.position, header.base_offset, header.crc, computed)


def read_records(
    buffer: Any, header: BatchHeader, file: str = "", *, position: int | None = None
) -> Iterator[RawRecord]:
    """Return the records of a batch, in order; arguments and errors as in `batch.read_records`."""
    read = _legacy_records if header.magic < 2 else batch.read_records
    return read(buffer, header, file, position=position)
