from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.kernels import memory
from lastword.kernels.compiler import dispatcher
from tests.kernels.support import padded
from tests.naive.varint import BadVarint, read, write

read_varint, read_varlong = dispatcher(memory.read_varint), dispatcher(memory.read_varlong)
write_varint, varint_size = dispatcher(memory.write_varint), dispatcher(memory.varint_size)


@numba.njit
def read32(data):
    return read_varint(data, 0)


@numba.njit
def read64(data):
    return read_varlong(data, 0)


@numba.njit
def write64(data, value):
    return write_varint(data, 0, value), varint_size(value)


VECTORS = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (300, "d804"),
    (8191, "fe7f"),
    (8192, "808001"),
    ((1 << 31) - 1, "feffffff0f"),
    (-(1 << 31), "ffffffff0f"),
]


@pytest.mark.parametrize(("value", "text"), VECTORS)
def test_vectors(value: int, text: str) -> None:
    assert read32(padded(bytes.fromhex(text))) == (value, len(text) // 2)
    assert read64(padded(bytes.fromhex(text))) == (value, len(text) // 2, True)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_written_as_the_twin_writes(value: int) -> None:
    out = np.zeros(16, np.uint8)
    size, computed = write64(out, value)
    assert size == computed
    assert out[:size].tobytes() == write(value)
    assert read64(out) == (value, size, True)


@given(st.binary(min_size=10, max_size=10))
def test_any_bytes_read_as_the_twin_reads(data: bytes) -> None:
    for groups, kernel in ((5, read32), (10, read64)):
        result = kernel(padded(data))
        try:
            expected = read(data, 0, len(data), groups)
        except BadVarint:
            assert result[0] == memory.OVERLONG if groups == 5 else not result[2]
        else:
            assert result[:2] == expected
