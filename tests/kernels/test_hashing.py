from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword import kernels
from lastword.api.schema import by_murmur2
from lastword.kernels import hashing
from lastword.kernels.compiler import dispatcher
from lastword.kernels.hashing import hash_spans, murmur2_partitions
from tests.kernels.support import padded
from tests.naive import hashing as naive

words = st.integers(0, (1 << 64) - 1)

key_hash, pair_digest = dispatcher(hashing.key_hash), dispatcher(hashing.pair_digest)


@numba.njit
def hash_of(data, position, size, seed0, seed1):
    return key_hash(data, position, size, seed0, seed1)


@numba.njit
def digest_of(hashed, offset, seed0, seed1):
    return pair_digest(hashed, offset, seed0, seed1)


@given(st.binary(max_size=70), st.integers(0, 9), words, words)
def test_key_hash_like_the_twin(key: bytes, start: int, seed0: int, seed1: int) -> None:
    for filler in (0, 0xFF):  # bytes behind the key do not count
        array = padded(bytes(start) + key, filler)
        hashed = hash_of(array, start, len(key), np.uint64(seed0), np.uint64(seed1))
        assert int(hashed) == naive.key_hash(key, seed0, seed1)


def test_key_hash_of_every_size_like_the_twin() -> None:
    key = bytes(range(1, 100))
    for size in range(len(key)):
        hashed = hash_of(padded(key), 0, size, np.uint64(3), np.uint64(1 << 63))
        assert int(hashed) == naive.key_hash(key[:size], 3, 1 << 63)


@given(words, st.integers(0, (1 << 63) - 1), words, words)
def test_pair_digest_like_the_twin(hashed: int, offset: int, seed0: int, seed1: int) -> None:
    digest = digest_of(np.uint64(hashed), offset, np.uint64(seed0), np.uint64(seed1))
    assert int(digest) == naive.fold(hashed ^ seed0, offset ^ seed1)


def test_seeds_differ_by_salt_and_purpose() -> None:
    pairs = [hashing.seeds(b"a", b"x"), hashing.seeds(b"b", b"x"), hashing.seeds(b"a", b"y")]
    assert len({word for pair in pairs for word in pair}) == 6


@given(st.binary(max_size=90), st.lists(st.tuples(st.integers(0, 90), st.integers(-1, 90))), words, words)
def test_span_hashes_like_the_twin(
    source: bytes, spans: list[tuple[int, int]], seed0: int, seed1: int
) -> None:
    positions = [min(position, len(source)) for position, _ in spans]
    lengths = [min(n, len(source) - p) for p, (_, n) in zip(positions, spans, strict=True)]
    hashes = np.zeros(len(spans), np.uint64)
    status = hash_spans(
        padded(source),
        np.array(positions, np.int64),
        np.array(lengths, np.int32),
        np.uint64(seed0),
        np.uint64(seed1),
        hashes,
    )
    assert status == kernels.OK
    assert hashes.tolist() == naive.hash_spans(source, positions, lengths, seed0, seed1)


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, 11), (11, 1), (1 << 62, 5)])
def test_a_span_outside_is_refused(position: int, length: int) -> None:
    status = hash_spans(
        padded(bytes(10)),
        np.array([position], np.int64),
        np.array([length], np.int32),
        np.uint64(1),
        np.uint64(2),
        np.zeros(1, np.uint64),
    )
    assert status == kernels.NO_SLACK


def partitions_of(data: bytes, edges: list[int], partitions: int) -> tuple[int, list[int]]:
    chosen = np.full(max(len(edges) - 1, 0), -7, np.int64)
    status = murmur2_partitions(np.frombuffer(data, np.uint8), np.array(edges, np.int32), partitions, chosen)
    return status, chosen.tolist()


@given(st.lists(st.binary(max_size=70), max_size=20), st.integers(1, 1 << 31))
def test_partitions_like_the_twin(keys: list[bytes], partitions: int) -> None:
    edges = [0, *np.cumsum([len(key) for key in keys]).astype(int).tolist()]
    result = partitions_of(b"".join(keys), edges, partitions)
    assert result == (kernels.OK, [by_murmur2(key, partitions) for key in keys])


@pytest.mark.parametrize("edges", [[-1, 2], [0, 11], [3, 2], [0, 3, 1], [11, 12]])
def test_edges_outside_are_refused(edges: list[int]) -> None:
    status, chosen = partitions_of(bytes(10), edges, 3)
    assert status == kernels.BAD_LENGTH and chosen[-1] == -7
