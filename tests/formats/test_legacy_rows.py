"""Old formats in the kernels: the records of the chunk rows are equal to those of the plain reader."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword import kernels
from lastword.errors import CorruptBatchError, DecompressionLimitError
from lastword.kernels import legacy as legacy_kernels
from lastword.kernels import table as fields
from lastword.kernels.batches import walk_batches
from lastword.records import formats
from lastword.records.chunk import Chunk, RecordBuffer
from lastword.records.columns import decode_columns, raw_records
from lastword.records.compression import compress
from lastword.records.record import RawRecord
from tests.naive import legacy as naive
from tests.support.legacy import build_wrapper

T = 1_700_000_000_000
STATUS = {
    kernels.BAD_LENGTH: "length",
    kernels.BAD_MAGIC: "magic",
    kernels.BAD_CRC: "crc",
    kernels.BAD_RECORD: "record",
    kernels.BAD_COUNT: "record",
    kernels.BAD_OFFSET: "offset",
}


def slack(data: bytes) -> np.ndarray:
    return np.frombuffer(data + bytes(kernels.SLACK), np.uint8).copy()


def chunk_of(data: bytes, file: str = "test.log", *, limit: int = 1 << 26, plain_bytes: int = 0) -> Chunk:
    """Return the chunk that `records.chunk` makes of these rows, for data of magic 0 and 1 only."""
    raw = slack(data)
    table = np.full((len(data) // 26 + 1, fields.FIELDS), -7, np.int64)
    row, position, _, status = walk_batches(raw, 0, len(data), 0, 0, True, table, 0)
    if status != kernels.OK:
        raise CorruptBatchError(kernels.STATUS_TEXT[status])
    assert position == len(data)

    buffer = RecordBuffer(file)
    buffer.limit_bytes = limit
    buffer._data = np.zeros(plain_bytes + kernels.SLACK, np.uint8)
    return Chunk(raw, buffer.decompress(raw, table[:row], 0), table[:row], file)


def plain_records(data: bytes) -> list[RawRecord]:
    records, position = [], 0
    while position < len(data):
        header = formats.read_header(data, position, len(data), "test.log")
        records += formats.read_records(data, header, "test.log")
        position += header.size
    return records


def decoded(data: bytes, **options: int) -> list[RawRecord]:
    chunk = chunk_of(data, **options)
    return raw_records(decode_columns(chunk), chunk)


blobs = st.none() | st.binary(max_size=40)
times = st.integers(-1, T) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Draw a log of magic 0 and 1, with messages, wrappers and gaps in its offsets."""
    offset = draw(st.integers(0, 5))
    data = b""
    for _ in range(draw(st.integers(1, 5))):
        magic = draw(st.integers(0, 1))
        codec = draw(st.sampled_from([0, 0, 1, 2, 3]))
        stamp = draw(st.none() | st.integers(0, T)) if magic else None
        batch = []
        for _ in range(draw(st.integers(1, 6)) if codec else 1):
            offset += draw(st.integers(1, 3))
            timestamp = draw(times) if magic else -1
            batch.append(RawRecord(offset, timestamp, 0, draw(blobs), draw(blobs)))
        if codec:
            data += build_wrapper(magic, codec, batch, log_append_ms=stamp)
        else:
            (record,) = batch
            time = record.timestamp if stamp is None else stamp
            data += formats.build_message(
                magic, record.offset, record.key, record.value, time, log_append=stamp is not None
            )
    return data


@given(entries(), st.integers(0, 4000))
def test_any_log_reads_the_same_both_ways(data: bytes, plain_bytes: int) -> None:
    assert decoded(data, plain_bytes=plain_bytes) == plain_records(data)


@given(entries(), st.data())
def test_filtering_keeps_exactly_what_was_chosen(data: bytes, choices: st.DataObject) -> None:
    position = 0
    while position < len(data):
        header = formats.read_header(data, position, len(data), "test.log")
        records = list(formats.read_records(data, header))
        keep = choices.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
        filtered = formats.filter_entry(data, header, keep)
        left = [record for record, wanted in zip(records, keep, strict=True) if wanted]
        assert (filtered is None) == (not left)
        if filtered is not None:
            assert plain_records(filtered.data) == left
            again = formats.read_header(filtered.data, 0, len(filtered.data), "test.log")
            assert (again.magic, again.attributes) == (header.magic, header.attributes)
            assert (again.last_offset, again.max_timestamp) == (filtered.last_offset, filtered.max_timestamp)
            if all(keep):
                assert filtered.data == data[position : position + header.size]
        position += header.size


@given(st.binary(max_size=300))
def test_crc32_of_any_length(data: bytes) -> None:
    entry = (
        struct.pack(">qiI", 5, len(data) + 18, 0)
        + b"\0\0"
        + b"\xff\xff\xff\xff"
        + struct.pack(">i", len(data))
        + data
    )
    entry = entry[:12] + struct.pack(">I", zlib.crc32(entry[16:])) + entry[16:]
    entry = entry[:8] + struct.pack(">i", len(entry) - 12) + entry[12:]
    table = np.zeros((1, fields.FIELDS), np.int64)
    raw = slack(entry)
    assert walk_batches(raw, 0, len(entry), 0, 0, True, table, 0) == (1, len(entry), 6, kernels.OK)
    raw[len(entry) - 1] ^= 64
    assert walk_batches(raw, 0, len(entry), 0, 0, True, table, 0)[3] == kernels.BAD_CRC
    assert walk_batches(raw, 0, len(entry), 0, 0, False, table, 0)[3] == kernels.OK


@st.composite
def inner_bytes(draw: st.DrawFn) -> bytes:
    """Draw inner entries: most are sound, some are cut, some have a changed byte and a right checksum."""
    data = b""
    offset = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 4))):
        magic = draw(st.integers(0, 1))
        timestamp = draw(times) if magic else -1
        entry = bytearray(formats.build_message(magic, offset, draw(blobs), draw(blobs), timestamp))
        if draw(st.integers(0, 9)) == 0:
            entry[draw(st.integers(0, len(entry) - 1))] = draw(st.integers(0, 255))
            if draw(st.booleans()):
                struct.pack_into(">I", entry, 12, zlib.crc32(entry[16:]))
        data += bytes(entry)
        offset += draw(st.sampled_from([1, 1, 2, 0]))
    return data[: len(data) - draw(st.sampled_from([0, 0, 0, 1, 30]))]


@given(inner_bytes(), st.integers(0, 1), st.integers(0, 12), st.sampled_from([1, 9]), times)
def test_wrapper_kernels_and_their_twin(
    inner: bytes, magic: int, offset: int, attributes: int, base: int
) -> None:
    try:
        expected: tuple[int, int, int, bytes] | str = naive.translate_wrapper(
            inner, magic, offset, attributes, base
        )
    except naive.BadEntry as error:
        expected = str(error)
    table = np.zeros((1, fields.FIELDS), np.int64)
    table[0, [fields.MAGIC, fields.LAST_OFFSET, fields.ATTRIBUTES, fields.BASE_TIMESTAMP]] = (
        magic,
        offset,
        attributes,
        base,
    )
    data = slack(inner)
    count, first, last, status = legacy_kernels.scan_inner(data, len(inner))
    translated: tuple[int, int, int, bytes] | str
    if status == kernels.OK:
        plain = np.zeros(len(inner) + 8 * (count + 1) + kernels.SLACK, np.uint8)
        done, status = legacy_kernels.translate_wrapper(data, count, first, last, table, 0, plain, 0)
    if status == kernels.OK:
        row = table[0]
        facts = row[fields.BASE_OFFSET], row[fields.LAST_OFFSET], row[fields.COUNT]
        translated = (int(facts[0]), int(facts[1]), int(facts[2]), plain[:done].tobytes())
        assert (row[fields.RECORDS_POSITION], row[fields.RECORDS_END]) == (0, done)
    else:
        translated = STATUS[status]
    # The kernel may find a malformed message before or after damage of the next entry: both are refused.
    assert translated == expected or (isinstance(translated, str) and isinstance(expected, str))


def test_errors_name_file_position_and_offset() -> None:
    good = formats.build_message(1, 3, b"k", b"v", T)
    bad = formats.build_message(1, 9, None, b"no gzip at all", T, codec=1)
    with pytest.raises(CorruptBatchError) as error:
        chunk_of(good + bad)
    assert (error.value.file, error.value.position, error.value.offset) == ("test.log", len(good), 9)
    nested = build_wrapper(1, 1, [RawRecord(0, T, 0, b"k", b"v")])
    wrapped = formats.build_message(1, 9, None, compress(1, nested), T, codec=1)
    with pytest.raises(CorruptBatchError, match="compressed inside a compressed entry") as error:
        chunk_of(good + wrapped)
    assert (error.value.file, error.value.position, error.value.offset) == ("test.log", len(good), 9)
    large = build_wrapper(0, 1, [RawRecord(9, -1, 0, b"k", bytes(100_000))])
    with pytest.raises(DecompressionLimitError) as limit:
        chunk_of(good + large, limit=50_000)
    assert (limit.value.file, limit.value.position, limit.value.offset) == ("test.log", len(good), 9)


def test_falling_offsets_are_refused() -> None:
    with pytest.raises(CorruptBatchError, match="offsets do not increase"):
        chunk_of(formats.build_message(0, 3, b"k", b"v") * 2)


def test_a_wrapper_that_reaches_into_its_neighbours_is_refused() -> None:
    """The first offset of a wrapper is only inside it; so is the last offset of an old one with offset 0."""
    message = formats.build_message(1, 3, b"k", b"v", T)
    wide = build_wrapper(1, 1, [RawRecord(offset, T, 0, b"k", b"v") for offset in (3, 4)])
    with pytest.raises(CorruptBatchError, match="3 to 4 overlap"):
        chunk_of(message + wide)
    zero = bytearray(build_wrapper(1, 1, [RawRecord(offset, T, 0, b"k", b"v") for offset in range(5)]))
    zero[:8] = bytes(8)
    assert [r.offset for r in decoded(bytes(zero))] == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptBatchError, match="0 to 4 overlap"):
        chunk_of(bytes(zero) + message)
