"""Cutting offset ranges: everything is covered once, and the bounds hold where points allow it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lastword.spark.splits import Span, cut_by_bytes, cut_by_records, task_bytes

steps = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 5000)), min_size=1, max_size=60)


def points_of(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    points = [(100, 0)]
    for offsets, size in steps:
        points.append((points[-1][0] + offsets, points[-1][1] + size))
    return points


@given(steps, st.integers(1, 20_000))
def test_spans_cover_all_offsets_once_and_in_order(steps: list[tuple[int, int]], limit: int) -> None:
    points = points_of(steps)
    spans = cut_by_bytes(points, limit)
    assert spans[0].start == 100 and spans[-1].end == points[-1][0]
    assert all(one.end == two.start for one, two in pairwise(spans))
    assert sum(one.size_bytes for one in spans) == points[-1][1]


@given(steps, st.integers(1, 20_000))
def test_a_span_is_too_long_only_if_it_has_no_point_inside(steps: list[tuple[int, int]], limit: int) -> None:
    points = points_of(steps)
    offsets = [offset for offset, _ in points]
    for span in cut_by_bytes(points, limit):
        inside = [offset for offset in offsets if span.start < offset < span.end]
        assert span.size_bytes <= limit or not inside


@given(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(1, 1000))
def test_parts_of_a_span_have_at_most_so_many_offsets(start: int, offsets: int, limit: int) -> None:
    if offsets // limit > 2000:
        return
    parts = cut_by_records(Span(start, start + offsets, 12345), limit, lambda offset: offset)
    assert parts[0].start == start and parts[-1].end == start + offsets
    assert all(one.end == two.start for one, two in pairwise(parts))
    assert all(0 < part.end - part.start <= limit for part in parts)


def test_no_part_lies_in_a_gap() -> None:
    held = [0, 1, 2, 5_000_000, 5_000_001, 9_000_000_000]

    def past_gap(offset: int) -> int:
        return min((one for one in held if one >= offset), default=10_000_000_000)

    parts = cut_by_records(Span(0, 10_000_000_000, 12345), 2, past_gap)
    found = [(part.start, part.end) for part in parts]
    assert found == [(0, 2), (2, 4), (5_000_000, 5_000_002), (9_000_000_000, 9_000_000_002)]


def test_more_tasks_are_asked_for() -> None:
    assert task_bytes(1000, 600, None) == 600
    assert task_bytes(1000, 600, 10) == 100
    assert task_bytes(1000, 50, 10) == 50
    assert task_bytes(0, 50, 10) == 1
