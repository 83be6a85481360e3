"""A store of pages beside a set of offsets: pages come, bits are set and unset, room is released."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastword.kernels.offset_map import PAGES_STORED, STATE_FIELDS
from lastword.kernels.pages import PAGE_BITS, PAGE_WORDS
from lastword.resolve import bitmaps
from lastword.resolve.bitmaps import PageStore
from tests.support.exhaustive import few


def set_bit(store: PageStore, state: np.ndarray, offset: int) -> None:
    """Set a bit as the kernels do: a page without a row takes the next one."""
    page = int(np.searchsorted(store.page_ids[: store.pages], offset >> PAGE_BITS))
    if store.page_slots[page] < 0:
        store.page_slots[page] = state[PAGES_STORED]
        state[PAGES_STORED] += 1
    row = store.page_slots[page]  # kernels do not check it against the number of rows
    store.page_bits[row, (offset >> 6) & (PAGE_WORDS - 1)] |= np.uint64(1) << np.uint64(offset & 63)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("set"), st.integers(0, 7), st.sampled_from([0, 63, 64, 4095])),
        st.tuples(st.just("clear"), st.integers(0, 7), st.integers(1, 2)),
        st.tuples(st.just("shrink"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=few(300))
@given(st.sampled_from([4, 16]), STEPS)
@example(  # the row of a cleared page was not free, and its next bit was set behind the rows
    16,
    [
        ("register", 3, 0),
        ("set", 0, 0),
        ("set", 1, 0),
        ("set", 2, 0),
        ("clear", 1, 1),
        ("shrink", 0, 0),
        ("set", 1, 0),
    ],
)
@example(  # the same without `shrink`, in a store that is full
    4,
    [
        ("register", 3, 0),
        ("register", 1, 0),
        *(("set", n, 0) for n in range(4)),
        ("clear", 1, 1),
        ("set", 1, 0),
    ],
)
def test_no_page_needs_a_row_that_is_not_there(first_pages: int, steps: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bitmaps, "_FIRST_PAGES", first_pages)
        state = np.zeros(STATE_FIELDS, np.int64)
        store, offsets, pages = PageStore(state), set[int](), 0
        for kind, first, second in steps:
            if kind == "register":
                store.register(np.arange(pages, pages + first), 0)
                pages += first
            elif kind == "set" and pages:
                offset = (first % pages << PAGE_BITS) + second
                set_bit(store, state, offset)
                offsets.add(offset)
            elif kind == "clear" and pages:
                low = first % pages << PAGE_BITS
                high = low + (second << PAGE_BITS)
                store.clear(low, high)
                offsets = {offset for offset in offsets if not low <= offset < high}
            elif kind == "shrink":
                store.shrink()
            assert store.finish().offsets().tolist() == sorted(offsets)
