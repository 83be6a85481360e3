from __future__ import annotations

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastword.kernels import keyhash
from tests.kernels.support import padded
from tests.naive import keyhash as naive


@numba.njit
def hash_of(data, position, size, seed0, seed1):
    return keyhash.key_hash(data, position, size, seed0, seed1)


@numba.njit
def digest_of(hashed, offset, seed0, seed1):
    return keyhash.pair_digest(hashed, offset, seed0, seed1)


words = st.integers(0, (1 << 64) - 1)


@given(st.binary(max_size=70), st.integers(0, 9), words, words)
def test_like_the_twin(key: bytes, start: int, seed0: int, seed1: int) -> None:
    for filler in (0, 0xFF):  # what lies behind the key does not count
        array = padded(bytes(start) + key, filler)
        found = hash_of(array, start, len(key), np.uint64(seed0), np.uint64(seed1))
        assert int(found) == naive.key_hash(key, seed0, seed1)


@given(words, st.integers(0, (1 << 63) - 1), words, words)
def test_pair_digest_like_the_twin(hashed: int, offset: int, seed0: int, seed1: int) -> None:
    found = digest_of(np.uint64(hashed), offset, np.uint64(seed0), np.uint64(seed1))
    assert int(found) == naive.fold(hashed ^ seed0, offset ^ seed1)


def test_seeds_differ_by_salt_and_purpose() -> None:
    pairs = [keyhash.seeds(b"a", b"x"), keyhash.seeds(b"b", b"x"), keyhash.seeds(b"a", b"y")]
    assert len({word for pair in pairs for word in pair}) == 6
