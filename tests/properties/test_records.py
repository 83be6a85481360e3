"""6N: records and batches. The other numbers are in `tests/formats`."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.frame
import pytest

from lastword.errors import CorruptBatchError, UsageError
from lastword.partition import scan
from lastword.records.batch import BatchBuilder, read_records, set_base_offset
from lastword.records.compression import compress, decompress, xxh32
from lastword.records.formats import crc_ok
from lastword.records.record import (
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    TYPE_NAMES,
    encode_varint,
    parse_control,
    read_varint,
    read_varlong,
)
from tests.naive.empty_batch import empty_batch
from tests.properties.support import (
    CONFIG,
    T,
    batch,
    header_of,
    opened,
    partition,
    record_bytes,
    records_of,
    sealed,
)
from tests.transactions import control_key, end_transaction, marker_batch, marker_value

LZ4 = 3


def refused(data: bytes, text: str) -> None:
    with pytest.raises(CorruptBatchError, match=text):
        list(read_records(data, header_of(data), "test.log"))


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("log_append", [False, True])
def test_6N_139_an_empty_header_round_trips(transactional: bool, control: bool, log_append: bool) -> None:
    """6N.139: The header of an empty batch round-trips: producer, sequences, offsets, leader epoch, flags,
    timestamp type and largest timestamp.
    """
    attributes = 0x10 * transactional | 0x20 * control | 0x08 * log_append
    full = header_of(batch(20, b"a", b"b", b"c", epoch=4))
    wanted = replace(
        full,
        attributes=attributes,
        producer_id=23423,
        producer_epoch=145,
        base_sequence=983,
        last_offset=20 + 20,
    )
    data = empty_batch(wanted)
    header = header_of(data)
    assert len(data) == 61 and crc_ok(data, header)
    assert header == replace(wanted, size=61, crc=header.crc, count=0, base_timestamp=-1)
    assert header.last_sequence == 983 + 20
    assert records_of(data) == []


def test_6N_140_a_batch_without_a_producer() -> None:
    """6N.140: A batch without a producer has -1 for id, epoch and sequence, and is valid."""
    data = batch(7, b"a", b"b")
    header = header_of(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.last_sequence == -1
    assert crc_ok(data, header) and not (header.transactional or header.control)


@pytest.mark.parametrize("length", [14, 20, 48])
def test_6N_143_a_length_below_the_header_is_corrupt(length: int) -> None:
    """6N.143: A declared size below the header's 61 bytes is corrupt."""
    data = bytearray(batch(0, b"a"))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptBatchError) as caught:
        header_of(bytes(data))
    assert caught.value.code == "bad-length"


def test_6N_144_any_change_under_the_checksum_is_noticed() -> None:
    """6N.144: Any change of a byte under the checksum is detected."""
    good = batch(0, b"a", b"b")
    for position in range(17, len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        try:
            header = header_of(bytes(bad))
        except CorruptBatchError:  # an impossible field, detected before the checksum is checked
            continue
        assert not crc_ok(bad, header), position


@pytest.mark.parametrize("codec", range(5))
def test_6N_145_a_count_that_is_not_that_of_the_records(codec: int) -> None:
    """6N.145: A record count in the header that is too high or too low is an error when the records are read,
    compressed or not.
    """
    payload = b"".join(record_bytes(delta=n) for n in range(3))
    assert len(records_of(sealed(payload, 3, codec=codec))) == 3
    refused(sealed(payload, 4, codec=codec), "record 4 of 4")
    refused(sealed(payload, 2, last_delta=2, codec=codec), "bytes behind the last of 2 records")


def test_6N_146_147_moving_a_batch_moves_its_records() -> None:
    """6N.146: Setting the last offset moves the base and every record; the batch stays valid.
    6N.147: Setting the leader epoch leaves the batch valid.

    Here: The base offset is set, which moves the last offset by the same distance.
    """
    data = bytearray(batch(0, b"a", b"b", b"c"))
    set_base_offset(data, 0, 498, 1234)
    header = header_of(bytes(data))
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (498, 500, 1234)
    assert [r.offset for r in records_of(bytes(data))] == [498, 499, 500]  # the checksum is verified, too


@pytest.mark.parametrize("codec", range(5))
def test_6N_148_log_append_time_is_that_of_every_record(tmp_path: Path, codec: int) -> None:
    """6N.148: Setting log append time changes the type and every record's timestamp, and the batch stays
    valid. A batch of magic 2 without a timestamp type is refused.
    """
    log, _ = opened(partition(tmp_path), CONFIG.replace(message_timestamp_type="LogAppendTime"))
    log.clock.advance(77)  # type: ignore[attr-defined]
    log.append_batch(batch(0, b"a", b"b", timestamp=5, codec=codec))
    data = Path(log.active.file).read_bytes()
    assert header_of(data).log_append and crc_ok(data, header_of(data))
    assert [(r.timestamp, r.timestamp_type) for r in records_of(data)] == [(T + 77, LOG_APPEND_TIME)] * 2
    log.abandon()


def test_no_batch_of_magic_2_is_without_a_timestamp_type() -> None:
    with pytest.raises(UsageError, match="timestamp type"):
        BatchBuilder(timestamp_type=NO_TIMESTAMP_TYPE)


@pytest.mark.parametrize("codec", range(5))
def test_6N_150_all_ways_of_reading_agree(tmp_path: Path, codec: int) -> None:
    """6N.150: All ways to read the records of a batch agree.

    The ways are: record by record in plain Python, whole chunks by kernels, and offsets and timestamps
    without keys and values.
    """
    log, _ = opened(partition(tmp_path))
    for count in (1, 7, 3):
        log.append_batch(batch(0, *[b"v" * n for n in range(count)], codec=codec))
    view = log.view()
    plain = list(scan.records(view, 0, log.log_end, plain=True))
    assert list(scan.records(view, 0, log.log_end, plain=False)) == plain and len(plain) == 11
    bare = [
        (int(offset), int(timestamp))
        for _, columns in scan.columns(view, 0, log.log_end)
        for offset, timestamp in zip(columns.offset, columns.timestamp, strict=True)
    ]
    assert bare == [(r.offset, r.timestamp) for r in plain]
    log.abandon()


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("value", [None, b"", b"v" * 300])
def test_6N_151_a_record_round_trips_and_its_size_is_known(key: bytes | None, value: bytes | None) -> None:
    """6N.151: A record round-trips, with null key, null value and null header values; its computed size is
    its real size.
    """
    headers = (("h", b"x"), ("h", None), ("", b""), ("ü", b"\xff" * 70))
    builder = BatchBuilder()
    builder.append(T, b"first", b"1")
    builder.append(T - 3, key, value, headers)
    data = builder.build(10)
    assert len(data) == builder.size_estimate
    record = records_of(data)[1]
    assert (record.offset, record.timestamp, record.key, record.value, record.headers) == (
        11,
        T - 3,
        key,
        value,
        headers,
    )


HEADER = encode_varint(1) + b"h" + encode_varint(1) + b"x"


BODY_BYTES = len(record_bytes()) - 1


def one_header(name: bytes, value: bytes = encode_varint(-1)) -> bytes:
    return record_bytes(header_count=1, headers=name + value)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (record_bytes(header_count=2, headers=HEADER), "cut short|are there"),
        (record_bytes(header_count=0, headers=HEADER), "left over"),
        *((record_bytes(key=encode_varint(length) + b"k"), "key of") for length in (1000, -2, 7)),
        *((record_bytes(value=encode_varint(length) + b"v"), "value of") for length in (1000, -2, 7)),
        (record_bytes(header_count=-1), "-1 headers in 0 bytes"),
        (record_bytes(header_count=1000, headers=HEADER), "1000 headers in 4 bytes"),
        (one_header(encode_varint(-1) + b"hh"), "without a name"),
        (one_header(encode_varint(-5) + b"hh"), "header name of -5"),
        (one_header(encode_varint(9) + b"hh"), "of 9"),
        (one_header(encode_varint(1) + b"h", encode_varint(9) + b"x"), "value of 9"),
        (encode_varint(2) + b"\0\x80", "cut short"),
        (record_bytes(time_delta=b"\x80" * 10 + b"\x01"), "more than 10 bytes"),
        (record_bytes(body_length=BODY_BYTES + 1), "are there"),
        (record_bytes(body_length=BODY_BYTES - 1), "cut short|left over|are there"),
        (record_bytes(body_length=0), "empty"),
        (record_bytes(body_length=-1), "body of -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_6N_152_153_154_155_156_a_length_that_cannot_be(record: bytes, text: str) -> None:
    """6N.152: A header count that is too high or too low is an error.
    6N.153: A key or value length beyond the body is an error.
    6N.154: A header count of -1 or above the bytes that are left, a null or too long header key, and a too
    long header value are errors.
    6N.155: A timestamp that is cut short and a varint that is too long are errors.
    6N.156: A body size smaller or larger than the body is an error.
    """
    refused(sealed(record, 1), text)


def test_records_from_raw_fields_are_read() -> None:
    assert records_of(sealed(record_bytes(header_count=1, headers=HEADER), 1))[0].headers == (("h", b"x"),)
    assert records_of(sealed(record_bytes(time_delta=encode_varint(-T)), 1))[0].timestamp == 0


def test_6N_157_varints_at_their_boundaries() -> None:
    """6N.157: Varints round-trip at their boundaries; more than 5 bytes, or 10 for 64 bits, are refused."""
    for bits in range(63):
        for number in ((1 << bits) - 1, 1 << bits, -(1 << bits), -(1 << bits) - 1):
            data = encode_varint(number)
            assert len(data) == max(1, ((number << 1 ^ number >> 63).bit_length() + 6) // 7) <= 10
            assert read_varlong(data, 0, len(data)) == (number, len(data))
            if -(1 << 31) <= number < 1 << 31:
                assert len(data) <= 5 and read_varint(data, 0, len(data)) == (number, len(data))
    vectors = {0: "00", -1: "01", 63: "7e", 64: "8001", -64: "7f", -65: "8101", 300: "d804", 8192: "808001"}
    vectors |= {2**31 - 1: "feffffff0f", -(2**31): "ffffffff0f", T: "80a0abfef962"}
    vectors |= {2**63 - 1: "feffffffffffffffff01", -(2**63): "ffffffffffffffffff01"}
    assert {number: encode_varint(number).hex() for number in vectors} == vectors
    with pytest.raises(ValueError, match="more than 5"):
        read_varint(b"\xff" * 5 + b"\x01", 0, 6)
    with pytest.raises(ValueError, match="more than 10"):
        read_varlong(b"\xff" * 10 + b"\x01", 0, 11)


def test_6N_158_control_types() -> None:
    """6N.158: An unknown control type is `unknown`; a newer version of the key is parsed; every known type
    round-trips.
    """
    for number, name in TYPE_NAMES.items():
        assert parse_control(control_key(number), marker_value(3), "f", 0, 0).type == name
    unknown = parse_control(control_key(337), b"anything", "f", 0, 0)
    assert (unknown.type, unknown.marker) == ("unknown", False)
    newer = struct.pack(">hhi", 5, 1, 99)
    assert parse_control(newer, marker_value(3), "f", 0, 0).type == "commit"
    for key in (None, b"", b"\0\0\0", struct.pack(">hh", -1, 0)):
        with pytest.raises(CorruptBatchError, match="control key"):
            parse_control(key, marker_value(0), "f", 0, 0)


@pytest.mark.parametrize("number", [0, 1])
def test_6N_159_marker_values(number: int) -> None:
    """6N.159: A marker value of version -1 or with too few bytes is an error; a newer version with more
    bytes is parsed.
    """
    key = control_key(number)
    for value in (None, b"", b"\0" * 5, struct.pack(">hi", -1, 0)):
        with pytest.raises(CorruptBatchError, match="marker of"):
            parse_control(key, value, "f", 0, 0)
    assert parse_control(key, struct.pack(">hiq", 1, 10, 42), "f", 0, 0).coordinator_epoch == 10
    for other in (2, 3, 4, 5, 6, 99):  # control records that are no markers have no coordinator epoch
        assert parse_control(control_key(other), marker_value(1), "f", 0, 0).coordinator_epoch is None


def test_6N_169_producers_are_whole_or_absent() -> None:
    """6N.169: A transactional batch without a producer id, and a producer with a negative epoch or
    sequence, are refused.
    """
    with pytest.raises(UsageError, match="transactional"):
        BatchBuilder(transactional=True)
    for epoch, sequence in ((-1, 0), (0, -1), (-1, -1)):
        with pytest.raises(UsageError, match="needs an epoch and a sequence"):
            BatchBuilder(producer_id=5, producer_epoch=epoch, base_sequence=sequence)


def test_6N_170_a_marker_is_a_transactional_control_batch(tmp_path: Path) -> None:
    """6N.170: A marker must be in a transactional control batch.

    A record in a data batch with the bytes of a marker does not end a transaction.
    """
    header = header_of(marker_batch(5, 0, True, 0, T))
    assert header.transactional and header.control and header.base_sequence == -1
    with pytest.raises(UsageError, match="transactional control batch"):
        BatchBuilder(control=True, producer_id=5, producer_epoch=0)
    more: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    log, _ = opened(partition(tmp_path))
    log.append_batch(batch(0, b"a", base_sequence=0, **more))
    builder = BatchBuilder(base_sequence=1, **more)
    builder.append(T, control_key(1), marker_value(0))
    log.append_batch(builder.build())
    assert (log.stable_offset, log.log_end) == (0, 2)
    end_transaction(log, 5, 0, True)
    assert log.stable_offset == log.log_end == 3
    log.abandon()


def test_6N_172_lz4_frames() -> None:
    """6N.172: An lz4 frame has magic, version, zero reserved bits, a block size code from 4 to 7, and an
    end mark.
    """
    frame = compress(LZ4, b"hello" * 100)
    assert frame[:4] == bytes.fromhex("04224d18")
    flags, descriptor = frame[4], frame[5]
    assert flags >> 6 == 1 and flags & 0x03 == 0 and flags & 0x20
    assert descriptor & 0x8F == 0 and 4 <= descriptor >> 4 <= 7
    assert frame[6] == xxh32(frame[4:6]) >> 8 & 0xFF == 0x82
    assert frame[-4:] == bytes(4)
    for code in range(8):
        other = bytearray(frame)
        other[5] = code << 4
        other[6] = xxh32(other[4:6]) >> 8 & 0xFF
        if code >= 4:
            assert decompress(LZ4, bytes(other), 500) == b"hello" * 100
        else:
            with pytest.raises(CorruptBatchError, match="block descriptor"):
                decompress(LZ4, bytes(other), 500)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda f: b"\x05" + f[1:], "no frame"),
        (lambda f: f[:5], "cut short"),
        (lambda f: f[:6], "cut short"),
        (lambda f: f[:6] + bytes([f[6] ^ 1]) + f[7:], "wrong checksum"),
        (lambda f: f[:7] + struct.pack("<I", (64 << 10) + 1) + f[11:], "in a frame of 65536"),
    ],
)
def test_6N_173_bad_lz4_frames(change: object, text: str) -> None:
    """6N.173: A wrong lz4 magic, a truncated header, a wrong header checksum and a block above the maximum
    are errors.

    A wrong header checksum is accepted only in magic 0 (6N.171).
    """
    frame = compress(LZ4, b"hello" * 100)
    with pytest.raises(CorruptBatchError, match=text):
        decompress(LZ4, change(frame), 1000)  # type: ignore[operator]


@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize(
    "data", [b"", b"x" * (96 << 10), bytes(range(256)) * 400, bytes(n * n * n % 251 for n in range(70_000))]
)
def test_6N_174_lz4_payloads_of_all_kinds(data: bytes, block_checksum: bool) -> None:
    """6N.174: lz4 payloads with block checksums, with incompressible blocks, of many blocks, and empty
    payloads round-trip.
    """
    assert decompress(LZ4, compress(LZ4, data), len(data)) == data
    options = {"block_size": lz4.frame.BLOCKSIZE_MAX64KB, "block_linked": False}
    foreign = lz4.frame.compress(data, block_checksum=block_checksum, **options)
    assert decompress(LZ4, foreign, len(data)) == data
