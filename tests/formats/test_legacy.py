"""Magic 0 and 1: golden bytes, the wrapper's rules, damage.

Docstrings state the properties of sections 6M and 6N.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from lastword.errors import CorruptBatchError, DecompressionLimitError, UnknownMagicError
from lastword.records import formats
from lastword.records.batch import BatchHeader
from lastword.records.compression import compress, set_limit, xxh32
from lastword.records.formats import with_checksum
from lastword.records.record import RawRecord
from tests.support.legacy import build_wrapper

T = 1_700_000_000_000

UNCOMPRESSED = {
    "000000000000000700000010a4ad2011000000000001610000000162": (0, b"a", b"b", -1, False),
    "00000000000000070000000ea7ec68030000ffffffffffffffff": (0, None, None, -1, False),
    "00000000000000070000001882677b2801000000018bcfe5680000000001610000000162": (1, b"a", b"b", T, False),
    "000000000000000700000018fa91caef01080000018bcfe5680500000001610000000162": (1, b"a", b"b", T + 5, True),
    "000000000000000700000017c959896701000000018bcfe568000000000161ffffffff": (1, b"a", None, T, False),
}


def records_of(data: bytes) -> list[RawRecord]:
    header = formats.read_header(data, 0, len(data), "test.log")
    assert formats.crc_ok(data, header)
    return list(formats.read_records(data, header, "test.log"))


def record(
    offset: int, key: bytes | None, value: bytes | None, timestamp: int = -1, kind: int | None = None
) -> RawRecord:
    """Return a record; `kind` None: create time, or no timestamp (magic 0) if `timestamp` is negative."""
    if kind is None:
        kind = 0 if timestamp >= 0 else -1
    return RawRecord(offset, timestamp, kind, key, value)


def inner(
    magic: int, offset: int, key: bytes = b"k", value: bytes | None = b"v", timestamp: int = -1
) -> bytes:
    return formats.build_message(magic, offset, key, value, timestamp)


def wrapper(
    magic: int,
    offset: int,
    entries: Sequence[bytes],
    codec: int = 1,
    timestamp: int = -1,
    log_append: bool = False,
) -> bytes:
    """Return a wrapper with any content, also content that no builder writes."""
    payload = compress(codec, b"".join(entries))
    return formats.build_message(magic, offset, None, payload, timestamp, log_append=log_append, codec=codec)


def header_of(data: bytes) -> BatchHeader:
    return formats.read_header(data, 0, len(data), "test.log")


# ---------------------------------------------------------------- golden bytes


@pytest.mark.parametrize("text", UNCOMPRESSED)
def test_uncompressed_vectors(text: str) -> None:
    magic, key, value, timestamp, log_append = UNCOMPRESSED[text]
    data = bytes.fromhex(text)
    assert formats.build_message(magic, 7, key, value, timestamp, log_append=log_append) == data
    assert records_of(data) == [record(7, key, value, timestamp, int(log_append) if magic else -1)]


def test_6M_138_checksums_of_fixed_records() -> None:
    """6M.138: The checksums of fixed records are fixed values, for each magic."""
    for magic, timestamp, checksum in ((0, -1, 1978725405), (1, 283843, 109425508)):
        assert header_of(formats.build_message(magic, 0, b"key1", b"value1", timestamp)).crc == checksum


# ---------------------------------------------------------------- wrappers


def test_6N_164_magic_0_takes_no_timestamp() -> None:
    """6N.164: Magic 0 takes no timestamp, and magic 0 and 1 take no leader epoch."""
    for options in ({"timestamp": T}, {"log_append": True}):
        with pytest.raises(ValueError, match="no timestamps"):
            formats.build_message(0, 0, b"k", b"v", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no timestamps"):
        build_wrapper(0, 1, [record(0, b"k", b"v")], log_append_ms=T)


@pytest.mark.parametrize("offsets", [[], [1, 1], [2, 1], [0, 5, 4]])
def test_6N_168_offsets_of_a_wrapper_must_rise(offsets: list[int]) -> None:
    """6N.168: Offsets that do not increase are refused by the builder."""
    with pytest.raises(ValueError, match="offsets rise"):
        build_wrapper(1, 1, [record(offset, b"k", b"v") for offset in offsets])


def test_6N_160_v1_wrapper_offset_moves_all_its_records() -> None:
    """6N.160: Setting the last offset of a magic-1 wrapper moves all of its records."""
    data = bytearray(build_wrapper(1, 1, [record(n, b"k", b"v", T) for n in range(3)]))
    struct.pack_into(">q", data, 0, 500)
    assert [r.offset for r in records_of(bytes(data))] == [498, 499, 500]


@pytest.mark.parametrize("magic", [0, 1])
def test_6N_161_wrapper_offset_0_holds_offsets_from_0(magic: int) -> None:
    """6N.161: A wrapper with offset 0 has inner offsets from 0, in magic 0 and 1."""
    data = wrapper(magic, 0, [inner(magic, n) for n in range(3)])
    assert [r.offset for r in records_of(data)] == [0, 1, 2]


def test_6N_162_v1_wrapper_below_its_last_inner_offset() -> None:
    """6N.162: A magic-1 wrapper whose offset is below its last inner offset is an error."""
    data = wrapper(1, 1, [inner(1, n) for n in range(3)])
    with pytest.raises(CorruptBatchError, match="above the wrapper") as error:
        records_of(data)
    assert (error.value.file, error.value.position, error.value.offset) == ("test.log", 0, 1)


def test_6N_163_log_append_wrapper_overrides_inner_timestamps() -> None:
    """6N.163: Log append time on a magic-1 wrapper overrides all inner timestamps; create time does not."""
    entries = [inner(1, 0, timestamp=T), inner(1, 1, timestamp=T + 9)]
    stamped = records_of(wrapper(1, 11, entries, timestamp=T + 500, log_append=True))
    assert [(r.timestamp, r.timestamp_type) for r in stamped] == [(T + 500, 1)] * 2
    created = records_of(wrapper(1, 11, entries, timestamp=T + 500))
    assert [(r.timestamp, r.timestamp_type) for r in created] == [(T, 0), (T + 9, 0)]


def test_6N_165_wrapper_without_value_or_without_entries() -> None:
    """6N.165: A wrapper without a value, or without inner records, is an error."""
    for magic in (0, 1):
        with pytest.raises(CorruptBatchError, match="without a value"):
            records_of(formats.build_message(magic, 5, None, None, codec=1))
        with pytest.raises(CorruptBatchError, match="without a whole inner entry"):
            records_of(wrapper(magic, 5, []))
        with pytest.raises(CorruptBatchError, match="without a whole inner entry"):
            records_of(wrapper(magic, 5, [inner(magic, 0)[:-1]]))


def test_6N_166_too_short_or_wrong_checksum() -> None:
    """6N.166: A legacy record that is shorter than its header, or has a wrong checksum, is corrupt."""
    data = bytes.fromhex(next(iter(UNCOMPRESSED)))
    for end in range(len(data)):
        with pytest.raises(CorruptBatchError) as error:
            formats.read_header(data, 0, end, "test.log", file_position=4000)
        assert (error.value.file, error.value.position) == ("test.log", 4000)
    broken = data[:12] + b"\0\0\0\0" + data[16:]
    assert not formats.crc_ok(broken, header_of(broken))
    with pytest.raises(CorruptBatchError, match="has CRC 00000000, computed a4ad2011") as error:
        formats.check_crc(broken, header_of(broken), "test.log")
    assert error.value.code == "bad-crc"


@pytest.mark.parametrize("text", UNCOMPRESSED)
def test_6N_167_any_byte_changed_is_noticed(text: str) -> None:
    """6N.167: Any changed byte of a legacy record breaks its checksum; otherwise its fields read back as
    written.
    """
    data = bytes.fromhex(text)
    for position in range(12, len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            try:
                header = formats.read_header(bytes(changed), 0, len(changed), "test.log")
            except (CorruptBatchError, UnknownMagicError):
                continue
            assert not formats.crc_ok(bytes(changed), header)


def test_6N_171_lz4_frame_header_of_magic_0_is_written_broken_and_not_looked_at() -> None:
    """6N.171: lz4 in magic 0 writes a broken header checksum and ignores it when reading; magic 1 writes
    and checks the right one.
    """
    for magic, checksum in ((0, 0x1A), (1, 0x82)):
        records = [record(n, b"k%d" % n, b"v" * 100, -1, kind=magic - 1) for n in range(3)]
        data = bytearray(build_wrapper(magic, 3, records))
        frame = data.index(b"\x04\x22\x4d\x18")
        assert data[frame + 6] == checksum
        for other in (0x82, 0x1A, 0x00):
            data[frame + 6] = other
            struct.pack_into(">I", data, 12, zlib.crc32(data[16:]))
            if magic == 0 or other == checksum:
                assert records_of(bytes(data)) == records
            else:
                with pytest.raises(CorruptBatchError):
                    records_of(bytes(data))


def test_lz4_of_magic_0_with_a_content_size_in_its_frame_header() -> None:
    """Flag byte 68 adds a content size of eight bytes; the checksum covers it, and Kafka skips it."""
    entries = inner(0, 4)
    frame = bytearray(compress(3, entries))
    sized = b"".join((frame[:4], b"\x68\x40", struct.pack("<Q", len(entries)), b"\x99", frame[7:]))
    data = formats.build_message(0, 4, None, sized, codec=3)
    assert records_of(data) == [record(4, b"k", b"v")]


@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_6N_175_payloads_round_trip(magic: int, codec: int) -> None:
    """6N.175: Payloads of every codec round-trip for each magic that allows it, at the lowest, the default
    and the highest level.
    """
    for value in (b"", b"x", bytes(range(256)) * 400, b"\0" * 200_000):
        records = [record(3, b"k", value, T if magic else -1), record(9, None, None, T + 1 if magic else -1)]
        assert records_of(build_wrapper(magic, codec, records)) == records


@pytest.mark.parametrize("magic", [0, 1])
def test_6M_136_zstd_is_refused_in_old_formats(magic: int) -> None:
    """6M.136: zstd with magic 0 or 1 is refused."""
    with pytest.raises(ValueError, match="no codec 4"):
        build_wrapper(magic, 4, [record(0, b"k", b"v")])
    data = bytearray(inner(magic, 0))
    data[17] = 4
    with pytest.raises(CorruptBatchError, match="codec 4"):
        header_of(bytes(data))


def test_nested_compression_is_refused() -> None:
    nested = build_wrapper(0, 1, [record(0, b"k", b"v")])
    with pytest.raises(CorruptBatchError, match="compressed inside"):
        records_of(wrapper(0, 0, [nested]))


def test_a_cut_inner_entry_at_the_end_is_ignored() -> None:
    whole = [inner(1, 0), inner(1, 1)]
    for cut in range(1, len(whole[1])):
        data = wrapper(1, 7, [whole[0], whole[1][:cut]])
        assert [r.offset for r in records_of(data)] == [7]


def test_damage_inside_a_wrapper() -> None:
    good = inner(1, 0)
    tiny = struct.pack(">qi", 1, 13) + bytes(13)
    flipped = bytearray(inner(1, 1))
    flipped[-1] ^= 1
    long_key = bytearray(inner(1, 1))
    struct.pack_into(">i", long_key, 26, 1 << 30)
    struct.pack_into(">I", long_key, 12, zlib.crc32(long_key[16:]))
    for bad, text in (
        (tiny, "impossible size 13"),
        (bytes(flipped), "checksum mismatch"),
        (bytes(long_key), "key of 1073741824 bytes"),
        (inner(1, 0), "inner offset"),
    ):
        with pytest.raises(CorruptBatchError, match=text) as error:
            records_of(wrapper(1, 40, [good, bad]))
        assert error.value.offset == 40


def test_impossible_lengths_in_a_message() -> None:
    for position in (18, 23):
        for length in (-2, -(2**31), 2, 2**31 - 1):
            data = bytearray(inner(0, 7))
            struct.pack_into(">i", data, position, length)
            with pytest.raises(CorruptBatchError, match="bytes"):
                list(formats.read_records(bytes(data), header_of(bytes(data)), "test.log"))


def test_inflation_is_bounded(tmp_path: Path) -> None:
    set_limit(tmp_path, 100_000)
    file = str(tmp_path / "t-0" / "test.log")
    data = build_wrapper(1, 1, [record(0, b"k", b"\0" * 1_000_000)])
    with pytest.raises(DecompressionLimitError) as error:
        list(formats.read_records(data, header_of(data), file))
    assert error.value.file == file


def test_6I_79_v1_wrapper_with_v0_messages_is_read() -> None:
    """6I.79: A wrapper of magic 1 with inner messages of magic 0 is read with right offsets.

    KAFKA-4298: the wrapper's magic decides that offsets are relative.
    """
    data = wrapper(1, 33, [inner(0, 0), inner(0, 1), inner(0, 3)], timestamp=T)
    assert [(r.offset, r.timestamp) for r in records_of(data)] == [(30, -1), (31, -1), (33, -1)]


def test_6I_78_v1_wrapper_with_v0_messages_becomes_v1_when_cleaned() -> None:
    """6I.78: A wrapper of magic 1 with inner messages of magic 0 is rewritten with inner messages of magic
    1 and right offsets.
    """
    data = wrapper(1, 33, [inner(0, 0, b"a"), inner(0, 1, b"b"), inner(0, 3, b"c")], timestamp=T)
    for keep, offsets in (([True] * 3, [30, 31, 33]), ([False, True, True], [31, 33])):
        filtered = formats.filter_entry(data, header_of(data), keep)
        assert filtered is not None
        _, messages = formats.messages(filtered.data, header_of(filtered.data))
        assert [(m.magic, m.offset) for m in messages] == [(1, offset) for offset in offsets]


def test_v1_message_in_a_v0_wrapper_keeps_its_timestamp_when_cleaned() -> None:
    data = wrapper(0, 33, [inner(0, 30), inner(1, 31, timestamp=T), inner(0, 33)])
    filtered = formats.filter_entry(data, header_of(data), [False, True, True])
    assert filtered is not None
    assert [(r.offset, r.timestamp) for r in records_of(filtered.data)] == [(31, T), (33, -1)]


@pytest.mark.parametrize("magic", [0, 1])
def test_6M_129_gaps_stay_and_everything_gone_is_nothing(magic: int) -> None:
    """6M.129: In a batch of magic 2 gaps stay: base and last offset are unchanged. Entries of magic 0 and
    1 get the offsets of what is left.
    """
    source = build_wrapper(magic, 1, [record(n, b"k", b"%d" % n) for n in (0, 3, 8, 10)])
    header = header_of(source)
    for keep, left in (([0, 0, 1, 0], [8]), ([1, 0, 0, 1], [0, 10]), ([0, 1, 1, 1], [3, 8, 10])):
        filtered = formats.filter_entry(source, header, map(bool, keep))
        assert filtered is not None
        assert [r.offset for r in records_of(filtered.data)] == left
        assert filtered.last_offset == header_of(filtered.data).last_offset == left[-1]
    assert formats.filter_entry(source, header, [False] * 4) is None
    same = formats.filter_entry(source, header, [True] * 4)
    assert same is not None
    assert same.data == source


def test_6M_134_log_append_time_is_kept() -> None:
    """6M.134: Log append time is preserved: the type and the timestamp."""
    stamped = build_wrapper(1, 1, [record(n, b"k", b"v", T) for n in range(3)], log_append_ms=T + 77)
    filtered = formats.filter_entry(stamped, header_of(stamped), [True, False, True])
    assert filtered is not None
    assert filtered.max_timestamp == T + 77
    assert [(r.offset, r.timestamp, r.timestamp_type) for r in records_of(filtered.data)] == [
        (0, T + 77, 1),
        (2, T + 77, 1),
    ]


def test_unknown_magic_is_not_taken_for_a_legacy_one() -> None:
    data = bytearray(inner(0, 7))
    for magic in (3, 37, 255):
        data[16] = magic
        with pytest.raises(UnknownMagicError):
            header_of(bytes(data))


def test_stray_attribute_bits_are_no_flags() -> None:
    """Bits 4 to 7 mean transaction, control and horizon in magic 2 only."""
    data = bytearray(inner(1, 7))
    data[17] = 0xF0
    header = header_of(bytes(data))
    assert not header.transactional
    assert not header.control
    assert header.delete_horizon_ms is None


def test_lz4_header_checksums() -> None:
    assert [xxh32(data) for data in (b"", b"a", b"abc")] == [0x02CC5D05, 0x550D7456, 0x32D153FF]
    frame = compress(3, b"data")
    assert with_checksum(frame, broken=False) == frame
    assert with_checksum(with_checksum(frame, broken=True), broken=False) == frame
    for size in range(7):
        assert with_checksum(frame[:size], broken=False) == frame[:size]
