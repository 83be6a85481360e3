from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.records.record import encode_varint, read_varint, read_varlong

# bytes that Kafka writes
KNOWN = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    64: "8001",
    -64: "7f",
    -65: "8101",
    127: "fe01",
    128: "8002",
    300: "d804",
    8191: "fe7f",
    8192: "808001",
    2**31 - 1: "feffffff0f",
    -(2**31): "ffffffff0f",
    1_700_000_000_000: "80a0abfef962",
    -1_700_000_000_000: "ff9fabfef962",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}


@pytest.mark.parametrize(("number", "expected"), KNOWN.items())
def test_kafkas_bytes(number: int, expected: str) -> None:
    raw = bytes.fromhex(expected)
    assert encode_varint(number) == raw
    assert read_varlong(raw, 0, len(raw)) == (number, len(raw))
    if -(2**31) <= number < 2**31:
        assert read_varint(raw, 0, len(raw)) == (number, len(raw))


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_round_trip_inside_other_bytes(number: int, before: bytes, after: bytes) -> None:
    raw = encode_varint(number)
    buffer = before + raw + after
    assert read_varlong(buffer, len(before), len(buffer)) == (number, len(before) + len(raw))


@given(st.integers(-(2**31), 2**31 - 1))
def test_every_cut_is_noticed(number: int) -> None:
    raw = encode_varint(number)
    for end in range(len(raw)):
        with pytest.raises(ValueError, match="cut short"):
            read_varint(raw, 0, end)


def test_overlong_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_varint(b"\x80" * 5 + b"\x01", 0, 6)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_varlong(b"\x80" * 10 + b"\x01", 0, 11)
    with pytest.raises(ValueError, match="64 bits"):
        encode_varint(2**63)
