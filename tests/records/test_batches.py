"""Batches against the bytes that Kafka's own code wrote, and against damage."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import CorruptBatchError, DataError, RecordTooLargeError, UnknownMagicError, UsageError
from lastword.records.batch import (
    BatchBuilder,
    BatchHeader,
    computed_crc,
    read_header,
    read_records,
)
from lastword.records.formats import check_crc, crc_ok
from lastword.records.record import ABORT, COMMIT, RawRecord, parse_control
from lastword.wire import ATTRIBUTES_AT, HEADER_BYTES
from tests.naive.empty_batch import empty_batch
from tests.transactions import control_key, marker_value

T = 1_700_000_000_000

TWO = (
    "000000000000000a000000430000000302fe033bcd0000000000010000018bcfe568000000018bcfe56801"
    "ffffffffffffffffffffffffffff00000002100000000261023100100002020262023200"
)
PACKED = {
    "gzip": (
        "000000000000000a000000570000000302efebbf770001000000010000018bcfe568000000018bcfe56801ffffffffff"
        "ffffffffffffffffff000000021f8b08000000000000ff13606060604a64326410606062624a6232620000c440e00d12"
        "000000"
    ),
    "snappy": (
        "000000000000000a0000005900000003022662429a0002000000010000018bcfe568000000018bcfe56801ffffffffff"
        "ffffffffffffffffff0000000282534e4150505900000000010000000100000014124410000000026102310010000202"
        "0262023200"
    ),
    "lz4": (
        "000000000000000a000000520000000302035fd6190003000000010000018bcfe568000000018bcfe56801ffffffffff"
        "ffffffffffffffffff0000000204224d186040821200008010000000026102310010000202026202320000000000"
    ),
    "zstd": (
        "000000000000000a0000004f0000000302b405ae650004000000010000018bcfe568000000018bcfe56801ffffffffff"
        "ffffffffffffffffff0000000228b52ffd0058900000100000000261023100100002020262023200010000"
    ),
}
HEADERS = (
    "00000000000000000000004a00000000026d0dc9050000000000010000018bcfe568000000018bcfe56800"
    "ffffffffffffffffffffffffffff0000000222000000026b0276040468310278046832010c000502010100"
)
IDEMPOTENT = (
    "00000000000000140000003a00000004023be0f9bf0000000000000000018bcfe568000000018bcfe56800"
    "00000000000000050002000000090000000110000000026b027600"
)
TRANSACTIONAL = (
    "00000000000000140000003a0000000402fc9d5f0e0010000000000000018bcfe568000000018bcfe56800"
    "00000000000000050002000000090000000110000000026b027600"
)
COMMIT_MARKER = (
    "00000000000000150000004200000004028d2122650030000000000000018bcfe568000000018bcfe56800"
    "00000000000000050002ffffffff000000012000000008000000010c00000000000700"
)
ABORT_MARKER = (
    "0000000000000015000000420000000402791ff42d0030000000000000018bcfe568000000018bcfe56800"
    "00000000000000050002ffffffff000000012000000008000000000c00000000000700"
)
LOG_APPEND = (
    "000000000000001e00000045ffffffff024b052a450008000000010000018bcfe568000000018bcfe56809"
    "ffffffffffffffffffffffffffff0000000210000000026b02760014000402046b3204763200"
)
NO_TIMESTAMPS = (
    "00000000000000000000003a0000000002461639eb000000000000ffffffffffffffffffffffffffffffff"
    "ffffffffffffffffffffffffffff0000000110000000026b027600"
)
EMPTY = (
    "0000000000000014000000310000000402062c5e8e001000000002ffffffffffffffff0000018bcfe56800"
    "0000000000000005000200000009" + "00000000"
)
HORIZON = (
    "00000000000000280000004e00000000026f32527d0040000000020000018bcfe56ddc0000018bcfe56802"
    "ffffffffffffffffffffffffffff000000031200b7170002610231001000b51702026201001200b317040263023300"
)
AFTER_A_CLEANING = (
    "00000000000000280000003a0000000002e5608a800000000000020000018bcfe568000000018bcfe56800"
    "ffffffffffffffffffffffffffff00000001100000000261023100"
)


def decode(raw: bytes) -> tuple[Any, list[RawRecord]]:
    header = read_header(raw, 0, len(raw), "x.log")
    check_crc(raw, header, "x.log")
    return header, list(read_records(raw, header, "x.log"))


def record(offset: int, timestamp: int, key: bytes | None, value: bytes | None, *headers: Any) -> RawRecord:
    return RawRecord(offset, timestamp, 0, key, value, headers)


class TestKafkasBytes:
    def test_two_records(self) -> None:
        builder = BatchBuilder()
        builder.append(T, b"a", b"1")
        builder.append(T + 1, b"b", b"2")
        raw = builder.build(10, 3)
        assert raw.hex() == TWO
        assert builder.size_estimate == len(raw)
        header, records = decode(raw)
        assert records == [record(10, T, b"a", b"1"), record(11, T + 1, b"b", b"2")]
        assert (header.base_offset, header.last_offset, header.next_offset, header.count) == (10, 11, 12, 2)
        assert (header.leader_epoch, header.magic, header.size, header.codec) == (3, 2, 79, 0)
        assert (header.base_timestamp, header.max_timestamp, header.delete_horizon_ms) == (T, T + 1, None)
        assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
            (-1, -1, -1, -1)
        )

    @pytest.mark.parametrize(("codec", "name"), list(enumerate(PACKED, 1)))
    def test_compressed(self, codec: int, name: str) -> None:
        header, records = decode(bytes.fromhex(PACKED[name]))
        assert header.codec == codec
        assert records == decode(bytes.fromhex(TWO))[1]

    def test_headers_nulls_and_a_time_that_runs_back(self) -> None:
        builder = BatchBuilder()
        builder.append(T, b"k", b"v", [("h1", b"x"), ("h2", None)])
        builder.append(T - 3, None, None)
        assert builder.build().hex() == HEADERS
        assert decode(bytes.fromhex(HEADERS))[1] == [
            record(0, T, b"k", b"v", ("h1", b"x"), ("h2", None)),
            record(1, T - 3, None, None),
        ]

    @pytest.mark.parametrize(("transactional", "expected"), [(False, IDEMPOTENT), (True, TRANSACTIONAL)])
    def test_producers(self, transactional: bool, expected: str) -> None:
        builder = BatchBuilder(producer_id=5, producer_epoch=2, base_sequence=9, transactional=transactional)
        builder.append(T, b"k", b"v")
        assert builder.build(20, 4).hex() == expected
        header, records = decode(bytes.fromhex(expected))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 9)
        assert header.transactional is transactional
        assert records == [record(20, T, b"k", b"v")]

    @pytest.mark.parametrize(("kind", "expected"), [(COMMIT, COMMIT_MARKER), (ABORT, ABORT_MARKER)])
    def test_markers(self, kind: int, expected: str) -> None:
        """6N.149: The flag of a control batch and its control records round-trip."""
        builder = BatchBuilder(producer_id=5, producer_epoch=2, transactional=True, control=True)
        builder.append(T, control_key(kind), marker_value(7))
        raw = builder.build(21, 4)
        assert raw.hex() == expected
        assert len(raw) == 78
        header, [marker] = decode(raw)
        assert header.control and header.transactional
        parsed = parse_control(marker.key, marker.value, "x.log", 0, 21)
        assert (parsed.type, parsed.coordinator_epoch, parsed.marker) == (
            {COMMIT: "commit", ABORT: "abort"}[kind],
            7,
            True,
        )

    def test_log_append_time(self) -> None:
        builder = BatchBuilder(timestamp_type=1)
        builder.append(T, b"k", b"v")
        builder.append(T + 2, b"k2", b"v2")
        assert builder.build(30, -1, append_time=T + 9).hex() == LOG_APPEND
        assert decode(bytes.fromhex(LOG_APPEND))[1] == [
            RawRecord(30, T + 9, 1, b"k", b"v"),
            RawRecord(31, T + 9, 1, b"k2", b"v2"),
        ]

    def test_no_timestamps(self) -> None:
        builder = BatchBuilder()
        builder.append(-1, b"k", b"v")
        assert builder.build().hex() == NO_TIMESTAMPS
        assert decode(bytes.fromhex(NO_TIMESTAMPS))[1] == [record(0, -1, b"k", b"v")]

    def test_an_empty_batch(self) -> None:
        builder = BatchBuilder(producer_id=5, producer_epoch=2, base_sequence=9, transactional=True)
        for _ in range(3):
            builder.append(T, b"k", b"v")
        full = builder.build(20, 4)
        raw = empty_batch(read_header(full, 0, len(full), "x.log"))
        assert raw.hex() == EMPTY
        header, records = decode(raw)
        assert records == []
        assert (header.base_offset, header.last_offset, header.last_sequence) == (20, 22, 11)

    def test_an_emptied_batch_forgets_its_codec_and_horizon(self) -> None:
        raw = bytearray(bytes.fromhex(HORIZON))
        raw[22] |= 0x03
        header = read_header(empty_batch(read_header(raw, 0, len(raw), "x")), 0, 61, "x")
        assert (header.codec, header.delete_horizon_ms, header.base_timestamp) == (0, None, -1)
        assert header.max_timestamp == T + 2

    def test_a_cleaned_batch_keeps_its_last_offset(self) -> None:
        header, records = decode(bytes.fromhex(AFTER_A_CLEANING))
        assert (header.last_offset, header.count) == (42, 1)
        assert records == [record(40, T, b"a", b"1")]
        builder = BatchBuilder()
        builder.append(T, b"a", b"1")
        assert builder.build(40, last_offset_delta=2).hex() == AFTER_A_CLEANING


class TestPlace:
    def test_positions_in_a_window(self) -> None:
        raw = b"junk" + bytes.fromhex(TWO)
        header = read_header(raw, 4, len(raw), "x.log", file_position=1000)
        assert (header.position, header.end) == (1000, 1079)
        assert crc_ok(raw, header, 4)
        assert len(list(read_records(raw, header, position=4))) == 2

    def test_the_offset_in_a_log(self) -> None:
        raw = bytes.fromhex(TWO)
        stored = read_header(raw, 0, len(raw), "x.log")
        placed = read_header(raw, 0, len(raw), "x.log", base_offset=1000)
        last = 1000 + stored.last_offset - stored.base_offset
        assert placed == replace(stored, base_offset=1000, last_offset=last) != stored
        with pytest.raises(CorruptBatchError, match="contradict"):
            read_header(raw, 0, len(raw), "x.log", base_offset=2**63 - 1)

    def test_a_header_is_enough_to_step(self) -> None:
        raw = bytes.fromhex(TWO)
        assert read_header(raw[:HEADER_BYTES], 0, len(raw), "x.log").size == len(raw)

    def test_sequences_wrap(self) -> None:
        builder = BatchBuilder(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
        for _ in range(3):
            builder.append(T, b"k", b"v")
        raw = builder.build()
        assert read_header(raw, 0, len(raw), "x").last_sequence == 0


class TestRefusals:
    def test_offsets_rise(self) -> None:
        builder = BatchBuilder()
        builder.append(T, b"a", b"1", offset_delta=5)
        with pytest.raises(UsageError, match="offsets rise"):
            builder.append(T, b"a", b"1", offset_delta=5)
        builder.append(T, b"a", b"2")
        raw = builder.build(100)
        assert [r.offset for r in decode(raw)[1]] == [105, 106]

    def test_times_are_times(self) -> None:
        with pytest.raises(UsageError, match="not a timestamp"):
            BatchBuilder().append(-2, b"a", b"1")

    def test_a_batch_has_a_record(self) -> None:
        with pytest.raises(UsageError, match="needs a record"):
            BatchBuilder().build()

    def test_what_does_not_fit_a_length_field_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lastword.records.batch.INT32_MAX", 100)
        with pytest.raises(RecordTooLargeError, match="a record of 45 bytes"):
            BatchBuilder().append(T, b"k", b"x" * 38)
        builder = BatchBuilder()
        for _ in range(2):
            builder.append(T, b"k", b"x" * 15)
        with pytest.raises(RecordTooLargeError, match="a batch of 46 bytes"):
            builder.build()

    def test_a_builder_can_be_used_again(self) -> None:
        builder = BatchBuilder()
        builder.append(T + 50, b"x", b"y")
        builder.build()
        builder.clear()
        builder.append(T, b"a", b"1")
        builder.append(T + 1, b"b", b"2")
        assert builder.build(10, 3).hex() == TWO
        assert len(builder) == 2


def broken_header(raw: bytes, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        read_header(raw, 0, options.pop("end", len(raw)), "p-0/x.log", file_position=77)
    assert (caught.value.file, caught.value.position) == ("p-0/x.log", 77)
    assert "p-0/x.log position 77" in caught.value.message
    return caught.value


class TestDamage:
    def test_too_few_bytes(self) -> None:
        raw = bytes.fromhex(TWO)
        for end in range(17):
            assert broken_header(raw, end=end).code == "short-header"
        for end in range(17, len(raw)):
            assert broken_header(raw, end=end).code == "truncated"

    @pytest.mark.parametrize("length", [68, 2**31 - 1])
    def test_lengths_past_the_end(self, length: int) -> None:
        raw = bytearray(bytes.fromhex(TWO))
        raw[8:12] = length.to_bytes(4, "big")
        assert broken_header(bytes(raw)).code == "truncated"

    @pytest.mark.parametrize("magic", [0, 1, 3, 127, -1])
    def test_other_magic(self, magic: int) -> None:
        raw = bytearray(bytes.fromhex(TWO))
        raw[16] = magic & 0xFF
        error = broken_header(bytes(raw))
        assert isinstance(error, UnknownMagicError)
        assert f"magic {magic}" in error.message

    def test_zeros_are_no_batch(self) -> None:
        assert broken_header(bytes(100)).code == "bad-length"

    @pytest.mark.parametrize(
        ("at", "value"),
        [
            (0, (-1).to_bytes(8, "big", signed=True)),
            (23, b"\xff" * 4),
            (57, b"\xff" * 4),
            (0, b"\x7f" + b"\xff" * 7),
        ],
    )
    def test_contradicting_fields(self, at: int, value: bytes) -> None:
        raw = bytearray(bytes.fromhex(TWO))
        raw[at : at + len(value)] = value
        assert broken_header(bytes(raw)).code == "bad-header"

    def test_every_flipped_bit_under_the_checksum_is_found(self) -> None:
        raw = bytes.fromhex(HEADERS)
        for position in range(ATTRIBUTES_AT, len(raw)):
            for bit in range(8):
                bad = bytearray(raw)
                bad[position] ^= 1 << bit
                try:
                    header = read_header(bad, 0, len(bad), "x.log")
                except CorruptBatchError:
                    continue
                assert not crc_ok(bad, header)
                with pytest.raises(CorruptBatchError, match="offset 0 has CRC 6d0dc905, computed"):
                    check_crc(bad, header, "x.log")

    @given(st.data())
    def test_records_that_lie_give_typed_errors_even_under_a_right_checksum(
        self, data: st.DataObject
    ) -> None:
        raw = bytearray(bytes.fromhex(data.draw(st.sampled_from([HEADERS, TWO, HORIZON, *PACKED.values()]))))
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(57, len(raw) - 1))] = data.draw(st.integers(0, 255))
        try:
            header = read_header(raw, 0, len(raw), "x.log")
            records = list(read_records(raw, header, "x.log"))
        except DataError as error:
            assert (error.file, error.position) == ("x.log", 0)
        else:
            assert len(records) == header.count
            assert all(header.base_offset <= r.offset <= header.last_offset for r in records)

    @pytest.mark.parametrize("codec", [5, 6, 7])
    def test_codecs_that_do_not_exist(self, codec: int) -> None:
        raw = bytearray(bytes.fromhex(TWO))
        raw[22] = codec
        with pytest.raises(CorruptBatchError, match=f"codec {codec} does not exist"):
            list(read_records(raw, read_header(raw, 0, len(raw), "x.log"), "x.log"))

    @pytest.mark.parametrize(
        ("records", "text"),
        [
            ("", "cut short"),
            ("01", "body of -1 bytes"),
            ("00", "empty body"),
            ("14" + "00000002610231", "body of 10 bytes"),
            ("10" + "0000000261023100" + "00", "1 bytes behind the last"),
            ("12" + "000000026102310000", "left over"),
            ("0e" + "00000002610231", "cut short"),
            ("10" + "0000000461023100", "value of -25 bytes"),
            ("10" + "0000000361023100", "key of -2 bytes"),
            ("10" + "0000007061023100", "key of 56 bytes"),
            ("10" + "0000000261033100", "value of -2 bytes"),
            ("10" + "0000000261023101", "-1 headers"),
            ("10" + "0000000261023106", "3 headers in 0 bytes"),
            ("12" + "000000026102310201", "header without a name"),
            ("14" + "00000002610231020261", "cut short"),
            ("16" + "0000000261023102026104", "header value of 2 bytes"),
            ("10" + "0000020261023100", "offset delta 1 after -1"),
            ("10" + "0000010261023100", "offset delta -1"),
            ("10" + "00ffffffffffffffffffff", "body of 8 bytes|more than 10 bytes|cut short"),
        ],
    )
    def test_bad_records(self, records: str, text: str) -> None:
        builder = BatchBuilder()
        builder.append(T, b"a", b"1")
        raw = bytearray(builder.build()[:HEADER_BYTES] + bytes.fromhex(records))
        raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
        raw[17:21] = computed_crc(raw, len(raw)).to_bytes(4, "big")
        header = read_header(raw, 0, len(raw), "p-0/x.log")
        assert crc_ok(raw, header)
        with pytest.raises(CorruptBatchError, match=text) as caught:
            list(read_records(raw, header, "p-0/x.log"))
        assert caught.value.file == "p-0/x.log"

    @pytest.mark.parametrize("count", [0, 1, 3, 2**31 - 1])
    @pytest.mark.parametrize("packed", [TWO, PACKED["lz4"]])
    def test_a_count_that_is_wrong(self, count: int, packed: str) -> None:
        raw = bytearray(bytes.fromhex(packed))
        raw[57:61] = count.to_bytes(4, "big")
        with pytest.raises(CorruptBatchError):
            list(read_records(raw, read_header(raw, 0, len(raw), "x.log"), "x.log"))


class TestControl:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (None, b""),
            (b"\0\0\0", marker_value(1)),
            (b"\xff\xff\0\1", marker_value(1)),
            (control_key(1), None),
            (control_key(1), b"\0\0\0\0\0"),
            (control_key(0), b"\xff\xff\0\0\0\0"),
        ],
    )
    def test_bad_ones(self, key: bytes | None, value: bytes | None) -> None:
        with pytest.raises(CorruptBatchError) as caught:
            parse_control(key, value, "x.log", 5, 9)
        assert (caught.value.code, caught.value.position, caught.value.offset) == ("bad-control", 5, 9)


NAMES = st.text(max_size=8)
VALUES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.tuples(
        st.integers(-1, 2**62),
        VALUES,
        VALUES,
        st.lists(st.tuples(NAMES, VALUES), max_size=3),
        st.integers(1, 1000),
    ),
    min_size=1,
    max_size=30,
)


@given(RECORDS, st.integers(0, 4), st.integers(0, 2**62), st.booleans())
def test_what_is_built_is_what_is_read(records: Any, codec: int, base_offset: int, log_append: bool) -> None:
    builder = BatchBuilder(codec, timestamp_type=int(log_append))
    expected, delta = [], -1
    newest = max(r[0] for r in records)
    for timestamp, key, value, headers, gap in records:
        delta += gap
        builder.append(timestamp, key, value, headers, offset_delta=delta)
        when = newest if log_append else timestamp
        expected.append(RawRecord(base_offset + delta, when, int(log_append), key, value, tuple(headers)))
    raw = builder.build(base_offset)
    header, decoded = decode(raw)
    assert decoded == expected
    assert header.count == len(expected)
    assert header.max_timestamp == newest
    assert header.size == len(raw)
    if codec == 0:
        assert builder.size_estimate == len(raw)


def test_a_header_name_that_is_not_utf8_keeps_its_bytes() -> None:
    builder = BatchBuilder()
    builder.append(T, b"k", b"v", [(b"\xff\xfe".decode("utf-8", "surrogateescape"), b"1")])
    raw = builder.build()
    [decoded] = decode(raw)[1]
    assert decoded.headers[0][0].encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_a_header_that_was_read_is_a_value_like_any_other() -> None:
    header = read_header(bytes.fromhex(TWO), 0, 79, "file")
    same = BatchHeader(**{name: getattr(header, name) for name in BatchHeader.__slots__})
    assert type(header) is BatchHeader
    assert (header, hash(header), repr(header)) == (same, hash(same), repr(same))
    assert pickle.loads(pickle.dumps(header)) == replace(header) == same
    with pytest.raises(FrozenInstanceError):
        header.size = 1  # type: ignore[misc]
