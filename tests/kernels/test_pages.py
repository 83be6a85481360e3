from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastword.resolve.bitmaps import DeadBitmaps

near = st.integers(0, 20_000)
anywhere = st.one_of(near, near.map(lambda n: n + (1 << 40)), st.integers(0, (1 << 63) - 2))


@given(st.sets(anywhere, max_size=40), st.lists(anywhere, max_size=20))
def test_like_a_set(dead: set[int], asked: list[int]) -> None:
    bitmaps = DeadBitmaps.of(sorted(dead))
    asked += list(dead)
    assert bitmaps.mask(np.array(asked, np.int64)).tolist() == [offset in dead for offset in asked]
    assert bitmaps.offsets().tolist() == sorted(dead)
    edges = sorted({*dead, *asked, 0})
    for low, high in zip(edges, reversed(edges), strict=True):
        low, high = min(low, high), max(low, high)
        assert bitmaps.count(low, high + 1) == sum(low <= offset <= high for offset in dead)


@given(st.sets(near, min_size=1, max_size=40), near, near)
def test_a_window_knows_its_own(dead: set[int], low: int, high: int) -> None:
    low, high = min(low, high), max(low, high) + 1
    window = pickle.loads(pickle.dumps(DeadBitmaps.of(sorted(dead)).window(low, high)))
    inside = sorted(offset for offset in dead if low <= offset < high)
    assert [o for o in window.offsets().tolist() if low <= o < high] == inside
    assert window.count(low, high) == len(inside)
