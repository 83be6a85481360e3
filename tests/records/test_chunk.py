from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.errors import (
    CorruptBatchError,
    DataError,
    DecompressionLimitError,
    FileVanishedError,
    UnknownMagicError,
)
from lastword.kernels import table as fields
from lastword.records import compression
from lastword.records.batch import BatchBuilder
from lastword.records.chunk import BytesSource, ChunkReader, chunk_of
from lastword.records.columns import decode_columns, raw_records
from lastword.records.compression import compress
from lastword.records.formats import build_message
from tests.naive.batches import walk
from tests.naive.pack import Record, encode_batch, seal
from tests.naive.strategies import T, batches


def reader(data: bytes, **options: object) -> ChunkReader:
    return ChunkReader(BytesSource(data), "users-0/0.log", 0, len(data), **options)  # type: ignore[arg-type]


def large_batch(offset: int, value_bytes: int) -> bytes:
    """Build a batch with a fast checksum: the twin's costs 0.1 s for each MB."""
    builder = BatchBuilder()
    builder.append(T, b"k", bytes(value_bytes))
    return builder.build(offset)


def compressed(batch: bytes, codec: int) -> bytes:
    head = bytearray(batch[:61])
    head[22] = head[22] & ~7 | codec
    return seal(bytes(head) + compress(codec, batch[61:]))


@pytest.mark.slow
@settings(deadline=None)
@given(batches(), st.integers(1, 400))
def test_whatever_the_chunk_size(log: list[bytes], chunk_bytes: int) -> None:
    data = b"".join(log)
    positioned = []
    chunks = reader(data, chunk_bytes=chunk_bytes)
    for chunk in chunks:
        for row in chunk.table:
            start, size = int(row[fields.POSITION]), int(row[fields.SIZE])
            positioned.append((int(row[fields.FILE_POSITION]), chunk.raw[start : start + size].tobytes()))
    headers, _, _ = walk(data)
    assert positioned == [(header.position, batch) for header, batch in zip(headers, log, strict=True)]
    assert chunks.position == len(data)
    assert chunks.next_offset == (headers[-1].last_offset + 1 if headers else 0)


@pytest.mark.slow
@settings(deadline=None)
@given(
    batches(attribute_choices=(0, 8), with_empty=False),
    st.lists(st.integers(0, 4), min_size=6, max_size=6),
    st.integers(1, 1000),
)
def test_every_codec_beside_every_other(log: list[bytes], codecs: list[int], chunk_bytes: int) -> None:
    mixed = [compressed(batch, codec) if codec else batch for batch, codec in zip(log, codecs, strict=False)]
    plain = [
        record for chunk in reader(b"".join(log)) for record in raw_records(decode_columns(chunk), chunk)
    ]
    records = []
    for chunk in reader(b"".join(mixed), chunk_bytes=chunk_bytes):
        records += raw_records(decode_columns(chunk), chunk)
    assert records == plain


GOOD = [encode_batch([Record(i, T, b"k", b"value")]) for i in range(3)]


def read_rows(data: bytes, *, later: bool) -> tuple[list[int], str]:
    """Return the rows of the chunks that were read, and the error after them."""
    chunks, came = reader(data, chunk_bytes=3 * len(GOOD[0])), []
    if later:
        chunks.in_slots(2, verify_later=True)
    try:
        for chunk in chunks:
            chunk.verify()
            chunk.decompress()
            came.append(chunk.rows)
    except DataError as error:
        return came, f"{error} {error.code} {error.position} {error.offset}"
    return came, ""


@pytest.mark.parametrize("old", [False, True])
def test_every_damaged_byte_is_told_of_its_batch_whenever_checksums_are_verified(old: bool) -> None:
    """Checksums of several batches are computed together, but errors are as if one after another.

    The first bad batch is reported, and its checksum before the errors of its fields.
    """
    size = len(GOOD[0])
    log = [encode_batch([Record(n, T, b"k", b"value")]) for n in range(8)]
    if old:
        log[1] = build_message(1, 1, b"k", b"value", T)
    whole = b"".join(log)
    assert read_rows(whole, later=False)[1] == read_rows(whole, later=True)[1] == ""
    start = len(whole) - 3 * size  # of the batch of offset 5
    for at in range(size):
        bad = bytearray(whole)
        bad[start + at] ^= 0x41
        rows, text = read_rows(bytes(bad), later=False)
        if at >= 17:
            assert sum(rows) == 5 and "bad-crc" in text and text.endswith(f"{start} 5")
        later = read_rows(bytes(bad), later=True)
        assert later[1] == text and rows[: len(later[0])] == later[0]


def test_an_unverified_reader_takes_a_bad_checksum_but_no_bad_length() -> None:
    bad = bytearray(GOOD[0])
    bad[-1] ^= 1
    assert next(reader(bytes(bad), verify=False)).rows == 1
    bad[8:12] = (13).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match="impossible length"):
        next(reader(bytes(bad), verify=False))


@pytest.mark.parametrize("left", [1, 11, 16, 17, 60, 72])
def test_a_partial_tail(left: int) -> None:
    data = GOOD[0] + GOOD[1][:left]
    chunks = reader(data)
    next(chunks)
    with pytest.raises(CorruptBatchError, match=f"the last {left} bytes are not a whole batch"):
        next(chunks)
    assert chunks.position == len(GOOD[0])


@pytest.mark.parametrize("batches_left", [0, 1, 2])
@pytest.mark.parametrize("more", [0, 5, 40])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_a_file_that_becomes_shorter_while_it_is_read(batches_left: int, more: int, chunk_bytes: int) -> None:
    """The whole batches are returned first, then the error is typed.

    Before, a cut at a batch boundary raised a KeyError, and a cut behind a batch that was read in the same
    chunk ended the read without an error.
    """
    data = b"".join(GOOD[:3])
    left = b"".join(GOOD[:batches_left]) + GOOD[batches_left][:more]
    rows = 0
    with pytest.raises(FileVanishedError, match="f became shorter while it was read"):
        for chunk in ChunkReader(BytesSource(left), "f", 0, len(data), chunk_bytes=chunk_bytes):
            rows += chunk.rows
    assert rows == batches_left


def test_a_claimed_length_makes_no_memory() -> None:
    bad = bytearray(GOOD[0])
    bad[8:12] = ((1 << 31) - 100).to_bytes(4, "big")
    chunks = reader(bytes(bad))
    with pytest.raises(CorruptBatchError, match="not a whole batch"):
        next(chunks)
    assert chunks._raw.size < 1000


def test_a_batch_larger_than_allowed() -> None:
    data = GOOD[0] + encode_batch([Record(1, T, b"k", bytes(5000))])
    for chunk_bytes in (100, 1 << 20):
        with pytest.raises(CorruptBatchError, match="impossible length"):
            list(reader(data, chunk_bytes=chunk_bytes, max_batch_bytes=4000))
    assert sum(chunk.rows for chunk in reader(data, chunk_bytes=100)) == 2


def test_offsets_must_rise() -> None:
    with pytest.raises(CorruptBatchError, match="offsets do not increase; at least 2 was due"):
        list(reader(GOOD[1] + GOOD[0]))
    with pytest.raises(CorruptBatchError, match="at least 5 was due"):
        list(reader(GOOD[1], first_offset=5))


def test_an_unknown_magic_is_named() -> None:
    bad = bytearray(GOOD[0])
    bad[16] = 77
    with pytest.raises(UnknownMagicError, match="magic 77"):
        list(reader(bytes(bad)))


def test_a_payload_that_is_not_its_codecs() -> None:
    for codec in (1, 2, 3, 4):
        head = bytearray(GOOD[0])
        head[22] = codec
        with pytest.raises(DataError) as caught:
            list(reader(seal(bytes(head))))
        assert (caught.value.file, caught.value.position, caught.value.offset) == ("users-0/0.log", 0, 0)
    head[22] = 6
    with pytest.raises(CorruptBatchError, match="codec 6"):
        list(reader(seal(bytes(head))))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_payload_that_grows_past_its_bound(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_by_root", {})  # an earlier test may have opened the working directory
    monkeypatch.setenv("LASTWORD_DECOMPRESSION_MAX_BYTES", "1MiB")
    for size, fits in ((1 << 20, True), ((1 << 20) + 1, False)):
        large = large_batch(7, size - 12)  # its records take `size` bytes
        assert len(large) - 61 == size
        chunks = reader(GOOD[0] + compressed(large, codec))
        if fits:
            assert sum(chunk.rows for chunk in chunks) == 2
            continue
        with pytest.raises(DecompressionLimitError, match=r"grows past 1\.0 MiB") as caught:
            list(chunks)
        assert (caught.value.position, caught.value.offset) == (len(GOOD[0]), 7)


@pytest.mark.parametrize("slots", [1, 4])
def test_many_batches_that_grow_are_read_a_few_at_a_time(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_by_root", {})  # an earlier test may have opened the working directory
    monkeypatch.setenv("LASTWORD_DECOMPRESSION_MAX_BYTES", "1MiB")
    log = [large_batch(i, 300_000) for i in range(30)]
    for codec in (1, 2, 3, 4):
        chunks = reader(b"".join(compressed(batch, codec) for batch in log))
        chunks.in_slots(slots)
        offsets = []
        for chunk in chunks:
            chunk.decompress()
            sizes = chunk.table[:, fields.RECORDS_END] - chunk.table[:, fields.RECORDS_POSITION]
            assert sizes.sum() <= 1 << 20
            offsets += decode_columns(chunk).offset.tolist()
        assert offsets == list(range(30))


def test_more_batches_than_the_first_table_holds() -> None:
    log = [encode_batch([Record(i, T, b"k", None)]) for i in range(3000)]
    chunk = chunk_of(b"".join(log))
    assert chunk.rows == 3000
    assert chunk.next_offset == 3000
    assert sum(part.rows for part in reader(b"".join(log))) == 3000


def test_chunk_of_names_what_follows_its_batches() -> None:
    with pytest.raises(CorruptBatchError, match="the last 3 bytes"):
        chunk_of(GOOD[0] + b"abc")
