"""Batches, segment files and logs for the tests of properties."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.files import Files
from lastword.partition import PartitionLog, Recovery, open_log
from lastword.records import formats
from lastword.records.batch import BatchBuilder, BatchHeader, set_base_offset, write_batch
from lastword.records.compression import compress
from lastword.records.formats import build_message
from lastword.records.record import RawRecord, encode_varint
from lastword.segment import Segment, names
from lastword.segment.recover import recover_segment
from lastword.segment.stored import SegmentFiles
from lastword.testing.unsynced import UNSYNCED
from tests.support.legacy import build_wrapper

T = 1_700_000_000_000
CONFIG = TopicConfig(index_interval_bytes=0)


def batch(
    offset: int, *values: bytes | None, timestamp: int = T, codec: int = 0, epoch: int = 0, **producer: Any
) -> bytes:
    """Build a batch of magic 2: one record for each value, key `k<offset>`, timestamps 1 ms apart."""
    builder = BatchBuilder(codec, **producer)
    for number, value in enumerate(values or (b"value",)):
        builder.append(timestamp + number, b"k%d" % (offset + number), value)
    return builder.build(offset, epoch)


def entry(magic: int, codec: int, offset: int, count: int = 3) -> bytes:
    """Return the bytes of `count` records from `offset` on, in any magic."""
    if magic == 2:
        return batch(offset, *[b"value"] * count, codec=codec)
    rows = [
        RawRecord(offset + n, T + n if magic else -1, magic - 1, b"k%d" % (offset + n), b"value")
        for n in range(count)
    ]
    if codec:
        return build_wrapper(magic, codec, rows)
    return b"".join(build_message(magic, row.offset, row.key, row.value, row.timestamp) for row in rows)


FORMS = [(magic, codec) for magic in (0, 1, 2) for codec in range(5) if magic == 2 or codec < 4]
"""Each magic with each codec that it allows."""


def header_of(data: bytes, position: int = 0) -> BatchHeader:
    return formats.read_header(data, position, len(data), "test.log")


def records_of(data: bytes) -> list[RawRecord]:
    """Return all records of all batches in `data`, and verify the checksums."""
    records: list[RawRecord] = []
    position = 0
    while position < len(data):
        header = header_of(data, position)
        formats.check_crc(data, header, "test.log")
        records += formats.read_records(data, header, "test.log")
        position += header.size
    return records


def record_bytes(
    *,
    delta: int = 0,
    time_delta: bytes = encode_varint(0),
    key: bytes = encode_varint(1) + b"k",
    value: bytes = encode_varint(1) + b"v",
    header_count: int | None = None,
    headers: bytes = b"",
    body_length: int | None = None,
) -> bytes:
    """Build one record of magic 2 from raw fields, which may be invalid."""
    body = (
        b"\0" + time_delta + encode_varint(delta) + key + value + encode_varint(header_count or 0) + headers
    )
    return encode_varint(len(body) if body_length is None else body_length) + body


def sealed(payload: bytes, count: int, *, last_delta: int | None = None, codec: int = 0) -> bytes:
    """Build a batch with a right checksum around any payload."""
    return write_batch(
        base_offset=0,
        leader_epoch=0,
        attributes=codec,
        last_offset_delta=max(count - 1, 0) if last_delta is None else last_delta,
        base_timestamp=T,
        max_timestamp=T,
        count=count,
        payload=compress(codec, payload) if codec else payload,
    )


def placed(data: bytes, offset: int, epoch: int = 0) -> bytes:
    """Return the batch with another base offset."""
    moved = bytearray(data)
    set_base_offset(moved, 0, offset, epoch)
    return bytes(moved)


def partition(root: Path) -> str:
    directory = root / "users-0"
    directory.mkdir(parents=True, exist_ok=True)
    return str(directory)


def opened(directory: str, config: TopicConfig = CONFIG, **more: Any) -> tuple[PartitionLog, Recovery]:
    files = more.pop("files", UNSYNCED)
    clock = more.pop("clock", None) or ManualClock(T)
    return open_log(files, directory, config, clock, **more)


def write_segment(
    root: Path, base: int, data: bytes, *, interval: int = 0, indexes: bool = True, files: Files = UNSYNCED
) -> Segment:
    """Write a segment file with these bytes and, if `indexes`, the indexes that recovery builds."""
    directory = partition(root)
    Path(directory, names.segment_file(base, names.LOG)).write_bytes(data)
    if indexes:
        recover_segment(files, directory, base, index_interval_bytes=interval)
    return Segment.load(SegmentFiles(files, directory, base))


def offsets(log: Any, start: int, end: int | None = None) -> list[int]:
    """Return the offsets of all records in the batches that a read of the range returns."""
    return [r.offset for r in read(log, start, end)]


def read(log: Any, start: int, end: int | None = None) -> Iterator[RawRecord]:
    for segment, header, data in log.batches(start, end):
        yield from formats.read_records(data, header, segment.file, position=0)


def listing(directory: str) -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir() if path.is_file())
