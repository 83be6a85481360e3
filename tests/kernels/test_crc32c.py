from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from lastword.kernels import hashing
from lastword.kernels.compiler import dispatcher
from lastword.kernels.hashing import crc32c
from lastword.kernels.intrinsics import FOLDS, load8, load64
from tests.kernels.support import padded
from tests.naive.crc32c import crc32c as naive
from tests.support.exhaustive import stride

table_step1, table_step8 = dispatcher(hashing.table_step1), dispatcher(hashing.table_step8)


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


@pytest.mark.parametrize("start", [0, 1, 63])
def test_long_slices_like_another_implementation(start: int) -> None:
    data = np.random.default_rng(start).integers(0, 256, 2400, dtype=np.uint8)
    for size in (*range(440, 840), *range(1270, 1300), 2047, 2048, 2400 - start):
        assert crc32c(data, start, size) == value(data[start : start + size].tobytes())


@pytest.mark.skipif(not FOLDS, reason="this machine has no carry-less multiplication of 512 bits")
@given(st.integers(0, 599), st.integers(0, 7))
def test_each_bit_counts_in_a_long_slice(byte: int, bit: int) -> None:
    data = np.zeros(600, np.uint8)
    before = crc32c(data, 0, 600)
    data[byte] ^= 1 << bit
    assert crc32c(data, 0, 600) == value(data.tobytes()) != before


BATCHES = """
import numpy as np
from google_crc32c import value
from llvmlite import binding
features = binding.get_host_cpu_features()
if {without}:
    features["vpclmulqdq"] = False
    binding.get_host_cpu_features = lambda: features
from lastword.kernels import batches, hashing, intrinsics, pack
from lastword.kernels import table as fields
assert not (intrinsics.FOLDS and {without})
data = np.random.default_rng(1).integers(0, 256, 9000, dtype=np.uint8)
table = np.zeros((5, fields.FIELDS), np.int64)
for row, (position, size) in enumerate([(0, 700), (700, 1400), (2100, 650), (2750, 3000), (5750, 800)]):
    assert hashing.crc32c(data, position, size) == value(data[position : position + size].tobytes())
    assert pack.seal_batch(data, position, size)
    table[row, fields.POSITION], table[row, fields.SIZE] = position, size
    table[row, fields.CRC] = value(data[position + 21 : position + size].tobytes())
assert batches.valid_rows(data, table, 5) == 5
for row in range(5):
    table[row, fields.CRC] ^= 1
    assert batches.valid_rows(data, table, 5) == row
    table[row, fields.CRC] ^= 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("without", [True, False][:: stride(2)])
def test_checksums_of_batches_with_and_without_folds(without: bool, tmp_path: Path) -> None:
    environment = {**os.environ, "LASTWORD_CACHE_DIR": str(tmp_path)}
    code = BATCHES.replace("{without}", str(without))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_outside_the_array() -> None:
    data = np.zeros(10, np.uint8)
    for position, size in ((-1, 2), (0, 11), (11, 0), (5, 6), (0, -1), (2, (1 << 63) - 1)):
        assert crc32c(data, position, size) == -1
