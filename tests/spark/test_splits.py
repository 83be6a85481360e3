"""The split of offset ranges: each offset is in one range; the bounds hold where split points allow it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.spark import splits
from lastword.spark.options import parse_read
from lastword.spark.splits import (
    LogPartition,
    Span,
    cut_by_bytes,
    cut_by_records,
    parts_of,
    share_tasks,
    task_bytes,
)

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
    assert all(span.end == following.start for span, following in pairwise(spans))
    assert sum(span.size_bytes for span in spans) == points[-1][1]


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
    assert all(part.end == following.start for part, following in pairwise(parts))
    assert all(0 < part.end - part.start <= limit for part in parts)


def test_no_part_lies_in_a_gap() -> None:
    held = [0, 1, 2, 5_000_000, 5_000_001, 9_000_000_000]

    def past_gap(offset: int) -> int:
        return min((later for later in held if later >= offset), default=10_000_000_000)

    parts = cut_by_records(Span(0, 10_000_000_000, 12345), 2, past_gap)
    ranges = [(part.start, part.end) for part in parts]
    assert ranges == [(0, 2), (2, 4), (5_000_000, 5_000_002), (9_000_000_000, 9_000_000_002)]


def test_more_tasks_are_asked_for() -> None:
    assert task_bytes(1000, 600, None) == 600
    assert task_bytes(1000, 600, 10) == 100
    assert task_bytes(1000, 50, 10) == 50
    assert task_bytes(0, 50, 10) == 1


# ---------------------------------------------------------------- tasks of many small partitions


def parts(sizes: list[int], records: int = 10) -> list[tuple[LogPartition, int]]:
    return [
        (LogPartition("t", number, f"/d/t-{number}", 0, records), size) for number, size in enumerate(sizes)
    ]


def tasks_of(sizes: list[int], records: int = 10, **options: str) -> list[list[int]]:
    """Return the partitions of each task."""
    read = parse_read({"path": "/d", "subscribe": "t", **options})
    return [[part.partition for part in parts_of(task)] for task in share_tasks(parts(sizes, records), read)]


@given(
    st.lists(st.integers(0, 20 << 20), max_size=200),
    st.sampled_from(
        [{}, {"minPartitions": "7"}, {"minPartitions": "90"}, {"maxBytesPerPartition": "1000000"}]
    ),
)
def test_each_partition_is_in_one_task_and_they_keep_their_order(
    sizes: list[int], options: dict[str, str]
) -> None:
    tasks = tasks_of(sizes, **options)
    assert [number for task in tasks for number in task] == list(range(len(sizes)))
    limit = int(options.get("maxBytesPerPartition", splits.SHARED_TASK_BYTES))
    assert all(len(task) == 1 or sum(sizes[number] for number in task) <= limit for task in tasks)
    assert len(tasks) >= min(len(sizes), int(options.get("minPartitions", splits.FEW_TASKS)))


def test_a_few_partitions_are_a_task_each() -> None:
    assert tasks_of([100] * splits.FEW_TASKS) == [[number] for number in range(splits.FEW_TASKS)]


@pytest.mark.parametrize("partitions", [200, 2_000, 20_000])
def test_the_number_of_tasks_follows_the_bytes_and_not_the_partitions(partitions: int) -> None:
    tasks = tasks_of([400_000_000 // 20_000] * partitions)
    cost = partitions * (20_000 + splits.OPENING_BYTES)
    assert len(tasks) <= 2 * max(splits.FEW_TASKS, cost // splits.SHARED_TASK_BYTES)


def test_a_shared_task_keeps_the_limit_of_records() -> None:
    assert {len(task) for task in tasks_of([100] * 2_000, 10, maxRecordsPerPartition="35")} <= {3, 2}
