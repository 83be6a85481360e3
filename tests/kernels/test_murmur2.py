from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword import kernels
from lastword.api.partitioners import by_murmur2 as twin
from lastword.kernels.murmur2 import murmur2_partitions


def partitions_of(data: bytes, edges: list[int], partitions: int) -> tuple[int, list[int]]:
    chosen = np.full(max(len(edges) - 1, 0), -7, np.int64)
    status = murmur2_partitions(np.frombuffer(data, np.uint8), np.array(edges, np.int32), partitions, chosen)
    return status, chosen.tolist()


@given(st.lists(st.binary(max_size=70), max_size=20), st.integers(1, 1 << 31))
def test_like_the_twin(keys: list[bytes], partitions: int) -> None:
    edges = [0, *np.cumsum([len(key) for key in keys]).astype(int).tolist()]
    found = partitions_of(b"".join(keys), edges, partitions)
    assert found == (kernels.OK, [twin(key, partitions) for key in keys])


@pytest.mark.parametrize("edges", [[-1, 2], [0, 11], [3, 2], [0, 3, 1], [11, 12]])
def test_edges_outside_are_refused(edges: list[int]) -> None:
    status, chosen = partitions_of(bytes(10), edges, 3)
    assert status == kernels.BAD_LENGTH and chosen[-1] == -7
