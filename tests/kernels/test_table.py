from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from lastword.kernels import table as fields
from lastword.kernels.table import index_rows
from tests.naive import table as twin

Rows = list[tuple[int, int, int]]
STEPS = st.lists(st.tuples(st.integers(61, 9000), st.integers(1, 40), st.integers(-1, 50)), max_size=60)


def rows_of(steps: list[tuple[int, int, int]]) -> Rows:
    rows, position, offset = [], 0, 99
    for size, count, timestamp in steps:
        offset += count
        rows.append((position, offset, timestamp))
        position += size
    return rows


@given(STEPS, st.integers(0, 10_000), st.integers(0, 60))
def test_like_the_twin_in_one_go_and_in_two(steps: list, interval: int, cut: int) -> None:
    rows = rows_of(steps)
    begin = (0, -1, -1, 100)
    state = np.array(begin, np.int64)
    offsets, times = [], []
    for part in (rows[:cut], rows[cut:]):
        table = np.zeros((len(part), fields.FIELDS), np.int64)
        for row, (position, last_offset, timestamp) in enumerate(part):
            table[row, [fields.FILE_POSITION, fields.LAST_OFFSET, fields.MAX_TIMESTAMP]] = (
                position,
                last_offset,
                timestamp,
            )
        out = np.zeros((len(part), 2), np.int64), np.zeros((len(part), 2), np.int64)
        sizes = index_rows(table, len(part), interval, state, *out)
        offsets += [tuple(entry) for entry in out[0][: sizes[0]].tolist()]
        times += [tuple(entry) for entry in out[1][: sizes[1]].tolist()]
    assert (offsets, times, tuple(state.tolist())) == twin.index_rows(rows, interval, begin)


@given(
    st.lists(st.tuples(st.integers(61, 99), st.integers(0, 40), st.integers(-1, 9)), min_size=1, max_size=9),
    st.integers(0, 2),
    st.sampled_from([0, 0, 61, 200]),
    st.integers(60, 700),
    st.integers(0, 40),
    st.integers(-1, 9) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
)
@example([(61, 5, 1), (61, 9, 1)], 0, 0, 700, 3, 5)
def test_cut_like_the_twin(
    rows: list[tuple[int, int, int]],
    unasked: int,
    size: int,
    most_bytes: int,
    most_offset: int,
    last_time: int,
) -> None:
    before = 2  # rows of another output
    table = np.zeros((before + len(rows), fields.FIELDS), np.int64)
    position = 1000
    for number, (row_size, offset, timestamp) in enumerate(rows):
        cells = table[before + number]
        cells[fields.POSITION], cells[fields.SIZE] = position, row_size
        cells[fields.LAST_OFFSET], cells[fields.MAX_TIMESTAMP] = offset, timestamp
        position += row_size
    end = fields.rows_before_roll(
        table, before, unasked, before + len(rows), size, most_bytes, most_offset, last_time
    )
    asked = twin.rows_before_roll(rows, unasked, size, most_bytes, most_offset, last_time)
    assert end - before == max(asked, min(unasked, len(rows)))
