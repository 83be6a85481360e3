from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastword.kernels.crc32c import crc32c, crc32c_by_table
from tests.kernels.support import padded
from tests.naive.crc32c import crc32c as naive


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
        assert crc32c_by_table(data, position, size) == -1
