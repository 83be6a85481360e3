from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.records.columns import binary_array
from tests.kernels.support import padded
from tests.naive.gather import gather


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(-1, 300)), max_size=20))
def test_like_the_twin(source: bytes, spans: list[tuple[int, int]]) -> None:
    fitting = [(min(p, len(source)), n) for p, n in spans]
    fitting = [(p, min(n, len(source) - p)) for p, n in fitting]
    positions = [p for p, _ in fitting]
    lengths = [n for _, n in fitting]
    array = binary_array(padded(source), np.array(positions, np.int64), np.array(lengths, np.int32))
    array.validate(full=True)
    assert array.to_pylist() == gather(source, positions, lengths)


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, 11), (11, 1), ((1 << 62), 5)])
def test_a_span_outside_is_refused(position: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        binary_array(padded(bytes(10)), np.array([position], np.int64), np.array([length], np.int32))
