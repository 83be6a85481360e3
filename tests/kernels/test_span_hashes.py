from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword import kernels
from lastword.kernels.span_hashes import hash_spans
from tests.kernels.support import padded
from tests.naive import span_hashes as naive

words = st.integers(0, (1 << 64) - 1)


@given(st.binary(max_size=90), st.lists(st.tuples(st.integers(0, 90), st.integers(-1, 90))), words, words)
def test_like_the_twin(source: bytes, spans: list[tuple[int, int]], seed0: int, seed1: int) -> None:
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
    found = hash_spans(
        padded(bytes(10)),
        np.array([position], np.int64),
        np.array([length], np.int32),
        np.uint64(1),
        np.uint64(2),
        np.zeros(1, np.uint64),
    )
    assert found == kernels.NO_SLACK
