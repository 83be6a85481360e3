"""Codecs: round trips, Kafka's framing, bounds, and damage."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc
from typing import Any

import cramjam
import lz4.block
import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import CorruptBatchError, DataError, DecompressionLimitError
from lastword.records.compression import CODEC_NAMES, compress, decompress, decompress_into, located, xxh32
from lastword.wire import GZIP, LZ4, SNAPPY, ZSTD

PACKING = [GZIP, SNAPPY, LZ4, ZSTD]
ALL = [0, *PACKING]
NOISE = random.Random(1).randbytes(200_000)
SAMPLES = [b"", b"x", b"hello " * 3000, NOISE, bytes(96 << 10), NOISE[:70_000] + bytes(70_000)]


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: CODEC_NAMES[codec])
@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: str(len(data)))
def test_round_trip(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(packed), 1 << 30) == data
    out = np.full(len(data) + 20, 7, dtype=np.uint8)
    assert decompress_into(codec, packed, out[: len(data) + 10], 10) == len(data)
    assert bytes(out[10 : len(data) + 10]) == data
    assert bytes(out[:10]) == b"\7" * 10 and bytes(out[len(data) + 10 :]) == b"\7" * 10


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("codec", ALL)
def test_any_buffer_is_taken(codec: int, kind: Any) -> None:
    assert decompress(codec, compress(codec, kind(b"hello" * 100)), 500) == b"hello" * 100


@pytest.mark.parametrize(
    ("codec", "levels"), [(GZIP, (-1, 1, 9)), (SNAPPY, (None,)), (LZ4, (1, 9, 17)), (ZSTD, (-5, 1, 3, 19))]
)
def test_levels(codec: int, levels: tuple[int, ...]) -> None:
    data = b"".join(b"%d of many records that look alike" % number for number in range(3000))
    sizes = []
    for level in levels:
        packed = compress(codec, data, level)
        assert decompress(codec, packed, len(data)) == data
        sizes.append(len(packed))
    assert len(set(sizes)) == len(levels), "a level makes a difference"


class TestFraming:
    """Only framing that Kafka reads is written."""

    def test_lz4_is_one_frame_of_independent_64_kib_blocks(self) -> None:
        packed = compress(LZ4, NOISE)
        assert packed[:7].hex() == "04224d18604082"
        position, blocks = 7, []
        while (word := struct.unpack_from("<I", packed, position)[0]) != 0:
            blocks.append(word & 0x7FFFFFFF)
            position += 4 + blocks[-1]
        assert position + 4 == len(packed), "nothing follows the end mark"
        assert blocks == [65536, 65536, 65536, 200_000 - 3 * 65536], "what does not shrink is stored"

    def test_lz4_of_nothing(self) -> None:
        assert compress(LZ4, b"").hex() == "04224d18604082" + "00000000"

    def test_snappy_has_the_xerial_header_and_blocks_of_32_kib(self) -> None:
        packed = compress(SNAPPY, NOISE)
        assert packed[:16].hex() == "82534e41505059000000000100000001"
        position, sizes = 16, []
        while position < len(packed):
            (size,) = struct.unpack_from(">i", packed, position)
            sizes.append(
                len(bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + size])))
            )
            position += 4 + size
        assert sizes == [32768] * 6 + [200_000 - 6 * 32768]

    def test_zstd_has_neither_content_size_nor_checksum(self) -> None:
        facts = zstandard.get_frame_parameters(compress(ZSTD, NOISE))
        assert facts.content_size == zstandard.CONTENTSIZE_UNKNOWN
        assert not facts.has_checksum
        assert facts.dict_id == 0

    def test_gzip_is_plain(self) -> None:
        packed = compress(GZIP, b"hello")
        assert packed[:9].hex() == "1f8b08000000000000"
        assert gzip.decompress(packed) == b"hello"


_GZIP_HELLO, _SNAPPY_HELLO, _ZSTD_HELLO = (compress(codec, b"hello") for codec in (GZIP, SNAPPY, ZSTD))
_VERSIONS = ("0100000001000000", "0000000200000002", "0000000000000000")
_VERSION_0 = _SNAPPY_HELLO[:8] + bytes(8) + _SNAPPY_HELLO[16:]
FOREIGN: dict[str, tuple[int, bytes, bytes]] = {
    "gzip members in a row": (
        GZIP,
        gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two", compresslevel=9),
        b"onetwo",
    ),
    "gzip with a name in its header": (
        GZIP,
        bytes.fromhex("1f8b0808000000000003") + b"name\0" + gzip.compress(b"hello")[10:],
        b"hello",
    ),
    "gzip with reserved flags": (GZIP, _GZIP_HELLO[:3] + b"\xe0" + _GZIP_HELLO[4:], b"hello"),
    "snappy streams in a row": (SNAPPY, compress(SNAPPY, b"one") + compress(SNAPPY, b"two"), b"onetwo"),
    "raw snappy, of librdkafka": (SNAPPY, bytes(cramjam.snappy.compress_raw(b"hello" * 10)), b"hello" * 10),
    "zstd frames in a row": (ZSTD, compress(ZSTD, b"one") + compress(ZSTD, b"two"), b"onetwo"),
    "bytes behind the end mark of lz4": (LZ4, compress(LZ4, b"hello") + b"more", b"hello"),
    # An old Redpanda wrote the version in little endian; Kafka reads only that of a later stream.
    **{
        f"snappy of version {version}": (
            SNAPPY,
            _SNAPPY_HELLO[:8] + bytes.fromhex(version) + _SNAPPY_HELLO[16:],
            b"hello",
        )
        for version in _VERSIONS
    },
    **{
        f"{len(tail)} bytes behind the last snappy block": (SNAPPY, _SNAPPY_HELLO + tail, b"hello")
        for tail in (b"\0", b"\0\0\0", b"\x82SNA" + bytes(12))
    },
    **{
        f"{len(tail)} bytes behind the last gzip member": (GZIP, _GZIP_HELLO + tail, b"hello")
        for tail in (b"\0", bytes(100), b"\x1f\x8b\x08" + bytes(15), b"\x1f\x8b\x09" + bytes(30))
    },
    **{
        f"{size} bytes of another zstd frame": (ZSTD, _ZSTD_HELLO + _ZSTD_HELLO[:size], b"hello")
        for size in (4, 9, 12)
    },
}


class TestForeignFrames:
    @pytest.mark.parametrize(("codec", "packed", "content"), FOREIGN.values(), ids=FOREIGN)
    def test_what_kafka_reads(self, codec: int, packed: bytes, content: bytes) -> None:
        assert decompress(codec, packed, 100) == content
        with pytest.raises(DecompressionLimitError):
            decompress(codec, packed, len(content) - 1)

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"\xff\xff\xff\xff\x0fhello",
            b"\x05\x10hell",
            b"\x82SNAPPY\0\0\0\0",
            _SNAPPY_HELLO + _VERSION_0,
        ],
    )
    def test_snappy_that_is_damaged(self, payload: bytes) -> None:
        with pytest.raises(CorruptBatchError, match="snappy payload"):
            decompress(SNAPPY, payload, 1 << 20)

    @pytest.mark.parametrize("size", [lz4.frame.BLOCKSIZE_MAX64KB, 5, 6, lz4.frame.BLOCKSIZE_MAX4MB])
    @pytest.mark.parametrize("store_size", [False, True])
    @pytest.mark.parametrize("block_checksum", [False, True])
    @pytest.mark.parametrize("content_checksum", [False, True])
    def test_lz4_frames_of_all_flags(
        self, size: int, store_size: bool, block_checksum: bool, content_checksum: bool
    ) -> None:
        data = (NOISE[:5000] + bytes(10_000)) * 5
        packed = lz4.frame.compress(
            data,
            block_size=size,
            block_linked=False,
            store_size=store_size,
            block_checksum=block_checksum,
            content_checksum=content_checksum,
            compression_level=3,
        )
        assert decompress(LZ4, packed, len(data)) == data

    def test_linked_lz4_blocks_are_refused_as_in_kafka(self) -> None:
        packed = lz4.frame.compress(NOISE, block_linked=True, block_size=4)
        with pytest.raises(CorruptBatchError, match="linked"):
            decompress(LZ4, packed, 1 << 20)

    @pytest.mark.parametrize(
        ("at", "value", "text"),
        [
            (0, 0x05, "no frame"),
            (4, 0xA0, "frame flags"),
            (4, 0x61, "frame flags"),
            (4, 0x62, "frame flags"),
            (5, 0x30, "block descriptor"),
            (5, 0xC0, "block descriptor"),
            (5, 0x41, "block descriptor"),
            (5, 0x50, "header with a wrong checksum"),
            (6, 0x1A, "header with a wrong checksum"),
            (10, 0x7F, "block of"),
        ],
    )
    def test_bad_lz4_headers(self, at: int, value: int, text: str) -> None:
        packed = bytearray(compress(LZ4, b"hello" * 100))
        packed[at] = value
        with pytest.raises(CorruptBatchError, match=text):
            decompress(LZ4, packed, 1000)

    def test_a_wrong_lz4_block_checksum(self) -> None:
        packed = bytearray(
            lz4.frame.compress(NOISE[:1000], block_linked=False, block_checksum=True, store_size=False)
        )
        packed[20] ^= 1
        with pytest.raises(CorruptBatchError, match="block with a wrong checksum"):
            decompress(LZ4, packed, 1000)

    def test_zstd_of_all_kinds(self) -> None:
        data = b"hello" * 10_000
        for options in ({"write_checksum": True}, {"level": 19}, {"level": -5}, {"write_content_size": True}):
            assert decompress(ZSTD, zstandard.ZstdCompressor(**options).compress(data), len(data)) == data
        twice, out = compress(ZSTD, b"one") + compress(ZSTD, b"two"), bytearray(20)
        assert decompress_into(ZSTD, twice, out, 5) == 6 and out == bytes(5) + b"onetwo" + bytes(9)

    def test_a_zstd_frame_that_grows_by_far(self) -> None:
        packed = compress(ZSTD, bytes(5 << 20))
        assert len(packed) < 1000
        assert decompress(ZSTD, packed, 5 << 20) == bytes(5 << 20)

    def test_xxh32(self) -> None:
        assert xxh32(b"") == 0x02CC5D05
        assert xxh32(b"a") == 0x550D7456
        assert xxh32(b"abc") == 0x32D153FF
        assert xxh32(b"Nobody inspects the spammish repetition") == 0xE2293B2F


class TestBounds:
    @pytest.mark.parametrize("codec", PACKING, ids=lambda codec: CODEC_NAMES[codec])
    def test_one_byte_too_many(self, codec: int) -> None:
        for size in (100, 70_000, 300_000):
            packed = compress(codec, bytes(size))
            assert len(decompress(codec, packed, size)) == size
            with pytest.raises(DecompressionLimitError):
                decompress(codec, packed, size - 1)
            with pytest.raises(DecompressionLimitError):
                decompress_into(codec, packed, bytearray(size + 9), 10)

    @pytest.mark.parametrize("codec", PACKING, ids=lambda codec: CODEC_NAMES[codec])
    def test_a_bomb_costs_its_bound_and_not_its_size(self, codec: int) -> None:
        if codec == LZ4:
            block = lz4.block.compress(bytes(4 << 20), store_size=False)
            head = bytes.fromhex("04224d186070")
            head += bytes([xxh32(head[4:]) >> 8 & 0xFF])
            packed = head + (struct.pack("<I", len(block)) + block) * 50 + bytes(4)
        else:
            packed = compress(codec, bytes(40 << 20))
        limit = 1 << 20
        tracemalloc.start()
        with pytest.raises(DecompressionLimitError, match="grows past"):
            decompress(codec, packed, limit)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * limit + 2 * len(packed)

    def test_a_snappy_block_that_claims_gigabytes(self) -> None:
        raw = b"\xff\xff\xff\xff\x0f" + b"\0hello"
        packed = compress(SNAPPY, b"")[:16] + struct.pack(">i", len(raw)) + raw
        with pytest.raises(CorruptBatchError, match="claims"):
            decompress(SNAPPY, packed, 1 << 40)

    def test_a_zstd_frame_that_claims_gigabytes(self) -> None:
        # Single segment, content size of 2^40, then nothing.
        packed = bytes.fromhex("28b52ffd") + b"\xe0" + struct.pack("<Q", 1 << 40)
        with pytest.raises(CorruptBatchError):
            decompress(ZSTD, packed, 1 << 20)


class TestDamage:
    @pytest.mark.parametrize("codec", PACKING, ids=lambda codec: CODEC_NAMES[codec])
    @pytest.mark.parametrize("data", [b"hello " * 50, NOISE[:300]])
    def test_every_cut_is_noticed(self, codec: int, data: bytes) -> None:
        packed = compress(codec, data)
        for size in range(len(packed)):
            if codec == SNAPPY and 16 <= size < 20:
                continue  # a stream of no blocks is whole, with up to three bytes behind it
            with pytest.raises(CorruptBatchError):
                decompress(codec, packed[:size], 1000)

    @pytest.mark.parametrize("codec", PACKING, ids=lambda codec: CODEC_NAMES[codec])
    @given(st.binary(max_size=200))
    def test_junk_is_a_typed_error(self, codec: int, junk: bytes) -> None:
        with contextlib.suppress(DataError):
            assert len(decompress(codec, junk, 10_000)) <= 10_000

    @pytest.mark.parametrize("codec", PACKING, ids=lambda codec: CODEC_NAMES[codec])
    @given(st.data())
    def test_flipped_bytes_are_a_typed_error_or_bounded(self, codec: int, data: st.DataObject) -> None:
        packed = bytearray(compress(codec, b"some text that repeats " * 20))
        for _ in range(data.draw(st.integers(1, 3))):
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(DataError):
            assert len(decompress(codec, packed, 1000)) <= 1000

    def test_errors_get_their_place(self) -> None:
        with pytest.raises(CorruptBatchError) as caught, located("p-0/x.log", 77, 5):
            decompress(ZSTD, b"junk", 10)
        assert (caught.value.file, caught.value.position, caught.value.offset) == ("p-0/x.log", 77, 5)
        assert caught.value.message.startswith("p-0/x.log position 77: zstd payload: ")
        with pytest.raises(DecompressionLimitError) as limited, located("p-0/x.log", 77, 5):
            decompress(GZIP, compress(GZIP, bytes(100)), 10)
        assert limited.value.file == "p-0/x.log"
        assert limited.value.remedy
