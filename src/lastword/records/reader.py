"""Reading the records of one batch, in plain Python.

    record = varint body length, then: i8 attributes (0) · varlong timestamp delta · varint offset delta ·
             varint key length (-1 null) · key · varint value length (-1 null) · value · varint header count ·
             per header: varint name length · name (UTF-8) · varint value length (-1 null) · value

A record is sound if its body is used up exactly, no length reaches past it, and offsets rise within the
batch up to its last offset. A batch is sound if it holds as many records as its header counts, and nothing
behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lastword.errors import CorruptBatchError
from lastword.records.batch import BatchHeader
from lastword.records.limits import limit_of
from lastword.records.record import CREATE_TIME, LOG_APPEND_TIME, Header, RawRecord
from lastword.records.varint import read_varint, read_varlong
from lastword.wire import HEADER_BYTES


def read_records(
    buffer: Any,
    header: BatchHeader,
    file: str = "",
    *,
    position: int | None = None,
    limit_bytes: int | None = None,
) -> Iterator[RawRecord]:
    """Read the records of the batch whose header was read, control records too.

    The caller checks the checksum before: unchecked bytes give a typed error at best.

    Args:
        buffer, header: the batch's bytes and header.
        file: its name, for errors and for the bound on decompression.
        position: of the batch in `buffer`; by default that in its file.
        limit_bytes: what its records may take when decompressed; by default what holds for `file`.

    Raises:
        CorruptBatchError, DecompressionLimitError: they name `file` and the batch's position; records before
            the damage were yielded already.
    """
    at = header.position if position is None else position
    view = memoryview(buffer).cast("B")
    payload: Any = view[at + HEADER_BYTES : at + header.size]
    if len(payload) != header.size - HEADER_BYTES:
        raise _corrupt(f"{len(payload)} bytes of records are there", header, file)
    if header.codec and header.count:
        payload = inflate(payload, header, file, limit_bytes)
    kind = LOG_APPEND_TIME if header.log_append else CREATE_TIME
    next_position, end = 0, len(payload)
    last_delta, widest = -1, header.last_offset - header.base_offset
    for number in range(header.count):
        try:
            next_position, delta, time_delta, key, value, headers = _record(payload, next_position, end)
            if delta <= last_delta or delta > widest:
                raise ValueError(f"offset delta {delta} after {last_delta}, {widest} is the last")
        except ValueError as error:
            raise _corrupt(f"record {number + 1} of {header.count}: {error}", header, file) from None
        last_delta = delta
        timestamp = header.max_timestamp if kind else header.base_timestamp + time_delta
        yield RawRecord(header.base_offset + delta, timestamp, kind, key, value, headers)
    if next_position != end:
        raise _corrupt(f"{end - next_position} bytes behind the last of {header.count} records", header, file)


def inflate(payload: Any, header: BatchHeader, file: str, limit_bytes: int | None = None) -> bytes:
    """Decompress the records of a batch. Errors name `file` and the batch's position."""
    from lastword.records.compression import decompress, located

    with located(file, header.position, header.base_offset):
        return decompress(header.codec, payload, limit_of(file) if limit_bytes is None else limit_bytes)


def _record(
    data: Any, position: int, end: int
) -> tuple[int, int, int, bytes | None, bytes | None, tuple[Header, ...]]:
    """(position after it, offset delta, timestamp delta, key, value, headers). ValueError says what is
    wrong."""
    size, position = read_varint(data, position, end)
    if size < 0 or size > end - position:
        raise ValueError(f"body of {size} bytes, {end - position} are there")
    end = position + size
    if size == 0:
        raise ValueError("empty body")
    position += 1  # attributes: nothing is defined in them
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


def _corrupt(text: str, header: BatchHeader, file: str) -> CorruptBatchError:
    return CorruptBatchError(
        f"offset {header.base_offset}: {text}",
        code="bad-records",
        file=file,
        position=header.position,
        offset=header.base_offset,
    )
