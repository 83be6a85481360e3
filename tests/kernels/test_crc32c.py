from __future__ import annotations

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastword.kernels.hashing import crc32c, table_step1, table_step8
from lastword.kernels.memory import load8, load64
from tests.kernels.support import padded
from tests.naive.crc32c import crc32c as naive


@numba.njit
def crc32c_by_table(data, position, size):
    """Compute the CRC with the steps for a machine without the instruction."""
    state = np.uint64(0xFFFFFFFF)
    end = position + size
    while end - position >= 8:
        state = table_step8(state, load64(data, position))
        position += 8
    while position < end:
        state = table_step1(state, np.uint64(load8(data, position)))
        position += 1
    return state ^ np.uint64(0xFFFFFFFF)


def test_check_value() -> None:
    data = padded(b"123456789")
    assert crc32c(data, 0, 9) == crc32c_by_table(data, 0, 9) == 0xE3069283


@given(st.binary(max_size=100), st.integers(0, 20))
def test_like_the_twin_at_any_position(data: bytes, start: int) -> None:
    array = padded(bytes(start) + data)
    assert crc32c(array, start, len(data)) == naive(data)
    assert crc32c_by_table(array, start, len(data)) == naive(data)


def test_outside_the_array() -> None:
    data = np.zeros(10, np.uint8)
    for position, size in ((-1, 2), (0, 11), (11, 0), (5, 6), (0, -1), (2, (1 << 63) - 1)):
        assert crc32c(data, position, size) == -1
