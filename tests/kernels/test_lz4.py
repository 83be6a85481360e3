from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword import kernels
from lastword.errors import CorruptBatchError
from lastword.kernels import table as fields
from lastword.kernels.lz4 import UNSUPPORTED, decompress_lz4_rows
from lastword.records.chunk import BytesSource, ChunkReader, chunk_of
from lastword.records.columns import decode_columns
from lastword.records.compression import compress
from tests.kernels.support import padded
from tests.naive import lz4 as naive
from tests.naive.pack import Record, encode_batch, seal
from tests.support.exhaustive import few

LZ4 = 3


def decompressed(
    *payloads: bytes, codecs: tuple[int, ...] = (), room: int = 1 << 18, skip_rows: tuple[int, ...] = ()
) -> tuple[list[bytes], int, int]:
    """Decompress batches with these payloads; return (plain bytes of each finished batch, row, status)."""
    data = b"".join(bytes(61) + payload for payload in payloads)
    raw = padded(data)
    table = np.zeros((len(payloads), fields.FIELDS), np.int64)
    position = 0
    for row, payload in enumerate(payloads):
        table[row, fields.POSITION] = position
        table[row, fields.SIZE] = 61 + len(payload)
        table[row, fields.MAGIC] = 2
        table[row, fields.ATTRIBUTES] = codecs[row] if codecs else LZ4
        position += 61 + len(payload)
    plain = np.full(room + kernels.SLACK, 0xEE, np.uint8)
    row, done, status = decompress_lz4_rows(
        raw, table, 0, len(payloads), np.array(skip_rows, np.uint8), plain, 0
    )
    spans = table[:row, [fields.RECORDS_POSITION, fields.RECORDS_END]].tolist()
    assert done == (spans[-1][1] if spans else 0)
    return [plain[a:b].tobytes() for a, b in spans], row, status


runs = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.tuples(st.binary(min_size=1, max_size=12), st.integers(1, 300)).map(lambda t: t[0] * t[1]),
    ),
    max_size=8,
).map(b"".join)


@given(st.lists(runs, min_size=1, max_size=4))
def test_frames_of_our_own_writer(parts: list[bytes]) -> None:
    assert decompressed(*(compress(LZ4, part) for part in parts)) == (parts, len(parts), kernels.OK)


def test_several_blocks_and_stored_ones() -> None:
    noise = np.random.default_rng(1).integers(0, 256, 150_000, np.uint8).tobytes()
    for data in (noise, bytes(200_000), noise[:70_000] + bytes(100_000)):
        assert decompressed(compress(LZ4, data)) == ([data], 1, kernels.OK)


@settings(max_examples=few(300))
@given(runs, st.data())
def test_damaged_frames_like_the_twin(part: bytes, data: st.DataObject) -> None:
    """The kernel returns the bytes of the twin, or leaves the frame to another decoder."""
    frame = bytearray(compress(LZ4, part))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(frame[: data.draw(st.integers(0, len(frame)))] if data.draw(st.booleans()) else frame)
    expected = naive.decompress_frame(damaged)
    if expected is None and damaged:
        assert decompressed(damaged) == ([], 0, UNSUPPORTED)
    else:
        assert decompressed(damaged) == ([expected or b""], 1, kernels.OK)


@settings(max_examples=few(300))
@given(st.binary(max_size=60), st.sampled_from([1, 3, 7, 8, 9, 16]), st.integers(0, 400))
def test_blocks_by_hand(literals: bytes, distance: int, size: int) -> None:
    """The blocks have every distance that overlaps itself, and every length of a match."""
    literals = literals.ljust(16, b"x")[: 16 + len(literals) % 30]
    first, extra = (15, len(literals) - 15) if len(literals) >= 15 else (len(literals), None)
    block = bytes([first << 4 | min(size, 15)])
    block += _longer(extra) + literals + struct.pack("<H", distance)
    block += _longer(size - 15 if size >= 15 else None) + bytes([5 << 4]) + b"ended"
    frame = naive.HEAD + struct.pack("<I", len(block)) + block + bytes(4)
    expected = naive.decompress_block(block)
    assert expected is not None and len(expected) == len(literals) + size + 4 + 5
    assert decompressed(frame) == ([expected], 1, kernels.OK)


def _longer(size: int | None) -> bytes:
    return b"" if size is None else b"\xff" * (size // 255) + bytes([size % 255])


def test_others_are_left_alone() -> None:
    frame = compress(LZ4, b"hello")
    assert decompressed(b"plain", frame, b"", codecs=(0, LZ4, 4)) == (
        [b"plain", b"hello", b""],
        3,
        kernels.OK,
    )
    assert decompressed(frame, b"zstd?", frame, codecs=(LZ4, 4, LZ4)) == ([b"hello"], 1, UNSUPPORTED)


def test_skipped_rows_are_not_decompressed() -> None:
    frame = compress(LZ4, b"hello")
    result = decompressed(
        frame, b"damaged", b"plain", frame, codecs=(LZ4, LZ4, 0, LZ4), skip_rows=(0, 1, 1, 0)
    )
    assert result == ([b"hello", b"", b"", b"hello"], 4, kernels.OK)


def test_room() -> None:
    frame = compress(LZ4, bytes(100_000))
    assert decompressed(frame, room=100_000) == ([], 0, kernels.FULL)
    assert decompressed(frame, room=131_072)[1:] == (1, kernels.OK)
    assert decompressed(b"x" * 10, codecs=(0,), room=9) == ([], 0, kernels.FULL)


def test_a_chunk_whose_batches_swell_by_far() -> None:
    """A reader makes room until a batch fits, even if the batch is far larger than its compressed bytes."""
    value = bytes(3_000_000)
    plain = encode_batch([Record(0, 5, b"k", value)], attributes=LZ4)
    packed = seal(plain[:61] + compress(LZ4, plain[61:]))
    assert len(packed) < 20_000
    chunk = chunk_of(packed)
    (length,) = decode_columns(chunk).value_length.tolist()
    assert length == len(value)


def test_codecs_by_turns() -> None:
    batches = []
    for offset in range(12):
        codec = (0, 3, 4, 4, 1, 3, 2)[offset % 7]
        plain = encode_batch([Record(offset, 5, b"k%d" % offset, b"v" * 50)], attributes=codec)
        batches.append(seal(plain[:61] + compress(codec, plain[61:])))
    data = b"".join(batches)
    columns = decode_columns(chunk_of(data))
    assert columns.offset.tolist() == list(range(12))
    assert columns.value_length.tolist() == [50] * 12


def test_a_reader_does_not_decompress_skipped_rows() -> None:
    """Checksums of skipped rows are still verified."""
    batches = []
    for offset in range(8):
        plain = encode_batch([Record(offset, 5, b"k", b"v" * 50)], attributes=4 - offset // 4)
        payload = b"not a frame" if offset in (1, 2, 5) else compress(4 - offset // 4, plain[61:])
        batches.append(seal(plain[:61] + payload))
    data = b"".join(batches)

    def odd_ones(table: np.ndarray) -> np.ndarray:
        return np.isin(table[:, fields.BASE_OFFSET], (1, 2, 5)).astype(np.uint8)

    (chunk,) = ChunkReader(BytesSource(data), "x.log", 0, len(data), skip_rows=odd_ones)
    sizes = chunk.table[:, fields.RECORDS_END] - chunk.table[:, fields.RECORDS_POSITION]
    assert (sizes > 0).tolist() == [True, False, False, True, True, False, True, True]
    for row in (0, 3, 4, 6, 7):
        at, end = chunk.table[row, [fields.RECORDS_POSITION, fields.RECORDS_END]].tolist()
        assert chunk.uncompressed[at:end].tobytes().endswith(b"v" * 50 + b"\0")
    flipped = bytearray(data)
    flipped[len(batches[0]) + 65] ^= 1
    with pytest.raises(CorruptBatchError, match="has CRC"):
        for _ in ChunkReader(BytesSource(bytes(flipped)), "x.log", 0, len(data), skip_rows=odd_ones):
            pass
