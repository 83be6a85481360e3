"""Decoder of the records of a batch, byte by byte, with every check of the specification."""

from __future__ import annotations

from tests.naive.batches import Header
from tests.naive.pack import Record
from tests.naive.varint import BadVarint, read


class BadRecord(ValueError):
    pass


def _blob(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read(data, position, end, 5)
    if size == -1:
        return None, position
    if size < 0 or size > end - position:
        raise BadRecord("length")
    return data[position : position + size], position + size


def decode(data: bytes, header: Header) -> list[Record]:
    """Return the records of an uncompressed batch; raise BadRecord for any contradiction."""
    try:
        return _decode(data, header)
    except BadVarint as error:
        raise BadRecord(str(error)) from None


def _decode(data: bytes, header: Header) -> list[Record]:
    records = []
    position = header.position + 61
    end = header.position + header.size
    previous = -1
    for _ in range(header.count):
        size, body = read(data, position, end, 5)
        if size < 6 or size > end - body:
            raise BadRecord("size")
        stop = body + size
        delta, position = read(data, body + 1, stop, 10)
        offset_delta, position = read(data, position, stop, 5)
        if offset_delta <= previous or header.base_offset + offset_delta > header.last_offset:
            raise BadRecord("offset")
        previous = offset_delta
        key, position = _blob(data, position, stop)
        value, position = _blob(data, position, stop)
        count, position = read(data, position, stop, 5)
        if count < 0 or count > stop - position:
            raise BadRecord("headers")
        headers = []
        for _ in range(count):
            name, position = _blob(data, position, stop)
            if name is None:
                raise BadRecord("header name")
            note, position = _blob(data, position, stop)
            headers.append((name, note))
        if position != stop:
            raise BadRecord("rest of body")
        timestamp = header.base_timestamp + delta
        timestamp = (timestamp + (1 << 63)) % (1 << 64) - (1 << 63)
        if header.attributes & 8:
            timestamp = header.max_timestamp
        records.append(Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)))
    if position != end:
        raise BadRecord("rest of batch")
    return records


def check(
    data: bytes, header: Header, oldest: int, newest: int, needs_key: bool
) -> tuple[int, list[tuple[int, int]]]:
    """Return the largest time of a batch of a producer, and the records that its topic refuses.

    Such a record is given as (index, time), or as (index, -1) if it has no key. Raise BadRecord for any
    contradiction, and for offsets that do not rise by one from the first to the last.
    """
    records = decode(data, header)
    offsets = [record.offset for record in records]
    if offsets != list(range(header.base_offset, header.last_offset + 1)):
        raise BadRecord("offsets")
    refused = []
    for index, record in enumerate(records):
        if needs_key and record.key is None:
            refused.append((index, -1))
        elif record.timestamp != -1 and not oldest <= record.timestamp <= newest:
            refused.append((index, record.timestamp))
    return max([-1, *(record.timestamp for record in records)]), refused


def gather(source: bytes, positions: list[int], lengths: list[int]) -> list[bytes | None]:
    return [
        None if length < 0 else source[position : position + length]
        for position, length in zip(positions, lengths, strict=True)
    ]


def live(records: list[Record], dead: set[int], first_offset: int, *, tombstones: bool) -> list[Record]:
    """Return the records with a key that are not dead, from an offset on; of tombstones on request."""
    return [
        record
        for record in records
        if record.offset not in dead
        and record.offset >= first_offset
        and record.key is not None
        and (tombstones or record.value is not None)
    ]
