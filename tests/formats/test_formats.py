"""Tests of the common functions for batches of every magic."""

from __future__ import annotations

import pytest

from lastword.errors import CorruptBatchError, UnknownMagicError
from lastword.records import formats
from lastword.records.batch import BatchBuilder
from tests.golden import loader

T = 1_700_000_000_000


def mixed() -> bytes:
    builder = BatchBuilder()
    builder.append(T, b"c", b"3")
    old = formats.build_message(0, 0, b"a", b"1") + formats.build_message(1, 1, b"b", b"2", T)
    return old + builder.build(2)


def test_a_buffer_that_changes_magic_on_the_way() -> None:
    data = b"somewhere" + mixed()
    position, records = 9, []
    while position < len(data):
        header = formats.read_header(data, position, len(data), "x", file_position=position - 9)
        assert header.position == position - 9
        assert formats.crc_ok(data, header, position)
        records += [
            (header.magic, r.offset, r.key) for r in formats.read_records(data, header, position=position)
        ]
        position += header.size
    assert records == [(0, 0, b"a"), (1, 1, b"b"), (2, 2, b"c")]


@pytest.mark.parametrize("at", [0, 28, 64])
def test_damage_is_a_checksum_error_in_every_magic(at: int) -> None:
    data = bytearray(mixed())
    header = formats.read_header(data, at, len(data), "x")
    data[header.end - 1] ^= 1
    assert not formats.crc_ok(data, header)
    with pytest.raises(CorruptBatchError) as error:
        formats.check_crc(data, header, "x")
    assert (error.value.code, error.value.position, error.value.offset) == ("bad-crc", at, header.last_offset)


def test_every_cut_of_a_header_is_a_typed_error() -> None:
    for start, stop in ((0, 28), (28, 64), (64, len(mixed()))):
        entry = mixed()[start:stop]
        for end in range(len(entry)):
            with pytest.raises(CorruptBatchError):
                formats.read_header(entry[:end], 0, end, "x")


@pytest.mark.parametrize("magic", [3, 37, 128, 255])
def test_other_magics_are_unknown(magic: int) -> None:
    data = bytearray(mixed())
    data[16] = magic
    with pytest.raises(UnknownMagicError):
        formats.read_header(data, 0, len(data), "x")


def test_the_golden_cases_hold_every_magic() -> None:
    magics = {line["magic"] for line in loader.case("upgrade-one-segment").batches("data")}
    assert magics == {0, 1, 2}
