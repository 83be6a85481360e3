"""Placing ready batches: the kernels against their plain twins."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastword.kernels import SLACK, crc32c, ready
from lastword.kernels import table as fields
from tests.naive import ready as twin
from tests.naive.pack import Record, encode_batch


@st.composite
def some_batches(draw: st.DrawFn) -> list[bytes]:
    found = []
    for number in range(draw(st.integers(0, 11))):
        value = b"v" * draw(st.integers(0, 70))
        data = bytearray(
            encode_batch([Record(9, 5 + number, b"k", value, ())], base_offset=9, last_offset=9 + number)
        )
        if draw(st.integers(0, 7)) == 0:
            data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
        if draw(st.integers(0, 15)) == 0:
            del data[draw(st.integers(0, len(data))) :]
        found.append(bytes(data))
    return found


def placed(batches: list[bytes], next_offset: int, epoch: int) -> tuple[int, list[bytes], np.ndarray]:
    data = np.frombuffer(b"".join(batches) + bytes(SLACK), np.uint8).copy()
    sizes = np.array([len(batch) for batch in batches], np.int64)
    table = np.zeros((sizes.size, fields.FIELDS), np.int64)
    rows = ready.place_ready(data, sizes, next_offset, epoch, table)
    ends = np.cumsum(sizes)
    return rows, [data[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)], table


@settings(deadline=None)
@given(some_batches(), st.sampled_from([0, 7, 2**63 - 20, 2**63 - 1]), st.integers(-1, 2**31 - 1))
def test_placed_like_the_twin(batches: list[bytes], next_offset: int, epoch: int) -> None:
    rows, found, table = placed(batches, next_offset, epoch)
    assert (rows, found) == twin.place_ready(batches, next_offset, epoch)
    if rows == len(batches):
        position = 0
        for row, data in enumerate(found):
            assert table[row, fields.POSITION] == table[row, fields.FILE_POSITION] == position
            assert table[row, fields.SIZE] == len(data)
            assert table[row, fields.BASE_OFFSET] == int.from_bytes(data[:8], "big")
            assert table[row, fields.LEADER_EPOCH] == epoch
            assert table[row, fields.MAX_TIMESTAMP] == int.from_bytes(data[35:43], "big", signed=True)
            position += len(data)


@given(
    st.lists(st.tuples(st.integers(61, 99), st.integers(0, 40), st.integers(-1, 9)), min_size=1, max_size=9),
    st.integers(0, 2),
    st.sampled_from([0, 0, 61, 200]),
    st.integers(60, 700),
    st.integers(0, 40),
    st.none() | st.integers(-1, 9),
    st.booleans(),
)
@example([(61, 5, 1), (61, 9, 1)], 0, 0, 700, 3, 5, False)
def test_cut_like_the_twin(
    rows: list[tuple[int, int, int]],
    unasked: int,
    size: int,
    most_bytes: int,
    most_offset: int,
    latest: int | None,
    overdue: bool,
) -> None:
    before = 2  # rows that went elsewhere
    table = np.zeros((before + len(rows), fields.FIELDS), np.int64)
    position = 1000
    for number, (one, offset, timestamp) in enumerate(rows):
        cells = table[before + number]
        cells[fields.POSITION], cells[fields.SIZE] = position, one
        cells[fields.LAST_OFFSET], cells[fields.MAX_TIMESTAMP] = offset, timestamp
        position += one
    end = ready.rows_before_roll(
        table,
        before,
        unasked,
        before + len(rows),
        size,
        most_bytes,
        most_offset,
        latest or 0,
        overdue,
        latest is None,
    )
    asked = twin.rows_before_roll(rows, unasked, size, most_bytes, most_offset, latest, overdue)
    assert end - before == max(asked, min(unasked, len(rows)))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=4, max_size=4))
def test_four_checksums_side_by_side(parts: list[bytes]) -> None:
    """The batches of `place_ready` with checksums of their own, in every order of their lengths."""
    batches = [encode_batch([Record(0, 1, None, part, ())], base_offset=0, last_offset=0) for part in parts]
    assert placed(batches, 0, 0)[0] == 4
    for number in range(4):
        broken = list(batches)
        broken[number] = broken[number][:-1] + bytes([broken[number][-1] ^ 1])
        data = np.frombuffer(broken[number] + bytes(SLACK), np.uint8)
        size = len(broken[number]) - 21
        assert crc32c.crc32c(data, 21, size) == crc32c.crc32c_by_table(data, 21, size)
        assert placed(broken, 0, 0)[0] == number
