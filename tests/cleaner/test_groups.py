"""Grouping of segments for the rewrite: decided by exact garbage, limited by Kafka's limits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lastword.cleaner.policy.groups import OutputLimits, group, needs_rewrite
from lastword.segment.names import MAX_RELATIVE_OFFSET

LIMITS = OutputLimits(segment_bytes=1000, segment_index_bytes=10 << 20, index_interval_bytes=4096)


@dataclass(frozen=True)
class Facts:
    base_offset: int
    next_offset: int
    size_bytes: int
    dead_records: int
    live_bytes: int
    tombstones_without_horizon: int = 0


def run(
    *segments: tuple[int, int] | tuple[int, int, int], limits: OutputLimits = LIMITS
) -> list[tuple[int, int]]:
    """Return groups (first, last) of segments (live bytes, dead records[, tombstones without horizon])."""
    facts = []
    for i, (live, dead, *tombs) in enumerate(segments):
        facts.append(Facts(100 * i, 100 * i + 100, live + 10 * dead, dead, live, *tombs))
    return [(g.first, g.last) for g in group(facts, limits)]


def test_nothing_dead_nothing_rewritten() -> None:
    assert run((1000, 0), (1000, 0), (10, 0)) == []


def test_an_empty_log_has_no_groups() -> None:
    assert run() == []


def test_only_segments_with_garbage_are_touched() -> None:
    assert run((900, 0), (500, 3), (900, 0)) == [(1, 1)]


def test_a_tombstone_whose_clock_must_start_is_a_reason() -> None:
    assert run((900, 0), (900, 0, 1), (900, 0)) == [(1, 1)]


def test_a_marker_that_goes_or_gets_its_clock_is_a_reason() -> None:
    facts = [Facts(100 * i, 100 * i + 100, 900, 0, 900) for i in range(4)]
    assert [(g.first, g.last) for g in group(facts, LIMITS, {1, 3})] == [(1, 1), (3, 3)]


def test_empty_segments_go_into_a_neighbours_output() -> None:
    empty = [Facts(0, 0, 0, 0, 0), Facts(100, 200, 400, 1, 300), Facts(200, 200, 0, 0, 0)]
    (segment_group,) = group([*empty, Facts(300, 400, 900, 0, 900)], LIMITS)
    assert (
        segment_group.first,
        segment_group.last,
        segment_group.base_offset,
        segment_group.next_offset,
    ) == (0, 2, 0, 200)
    assert run((0, 0), (0, 0), (900, 0)) == [], "but they are no reason by themselves"


def test_dirty_neighbours_share_an_output_while_their_survivors_fit() -> None:
    assert run((400, 1), (400, 1), (400, 1), (400, 1)) == [(0, 1), (2, 3)]


def test_live_bytes_count_not_sizes_on_disk() -> None:
    assert run((300, 90), (300, 90), (300, 90)) == [(0, 2)]


def test_a_segment_larger_than_the_limit_is_a_group_of_its_own() -> None:
    assert run((2000, 1), (10, 1)) == [(0, 0), (1, 1)]


def test_small_clean_neighbours_come_along_and_big_ones_do_not() -> None:
    assert run((50, 0), (400, 1), (50, 0)) == [(0, 2)]
    assert run((51, 0), (400, 1), (51, 0)) == [(1, 1)]


def test_small_clean_segments_alone_stay_while_the_log_is_not_crowded() -> None:
    assert run(*[(10, 0)] * 60) == []


def test_a_crowded_log_is_merged_although_nothing_is_dead() -> None:
    groups = run(*[(10, 0)] * 80)
    assert groups == [(0, 79)]


def test_a_merged_log_is_not_crowded_any_more() -> None:
    groups = run(*[(100, 0)] * 200)
    assert all(last > first for first, last in groups)
    assert run(*[(1000, 0)] * len(groups)) == []


def test_offsets_of_an_output_stay_within_an_index_entry() -> None:
    """6S.234: Copying batches from a file stops before the first batch that would overflow the segment."""
    far = MAX_RELATIVE_OFFSET
    facts = [Facts(0, 10, 50, 1, 40), Facts(far - 5, far + 1, 50, 1, 40), Facts(far + 1, far + 2, 50, 1, 40)]
    assert [(g.first, g.last) for g in group(facts, LIMITS)] == [(0, 1), (2, 2)]


def test_index_sizes_bound_a_group() -> None:
    limits = OutputLimits(segment_bytes=1 << 30, segment_index_bytes=120, index_interval_bytes=100)
    assert limits.fit(999)
    assert not limits.fit(1000)
    assert run((490, 1), (489, 1), (490, 1), limits=limits) == [(0, 1), (2, 2)]


def test_the_sources_of_a_group_would_fit_one_file_too() -> None:
    """The live bytes of compressed records are an estimate: the dead records may have compressed better."""
    limits = OutputLimits(segment_bytes=1 << 30, segment_index_bytes=10 << 20, index_interval_bytes=4096)
    full = (1 << 30) - 1000
    facts = [Facts(100 * i, 100 * i + 100, full, 50, full // 20) for i in range(5)]
    assert [(g.first, g.last) for g in group(facts, limits)] == [(0, 1), (2, 3), (4, 4)]


def test_a_group_tells_its_range_and_bytes() -> None:
    facts = [Facts(0, 100, 500, 10, 400), Facts(100, 250, 500, 10, 300)]
    (segment_group,) = group(facts, LIMITS)
    assert (segment_group.base_offset, segment_group.next_offset, segment_group.count) == (0, 250, 2)
    assert (segment_group.size_bytes, segment_group.live_bytes) == (1000, 700)


@pytest.mark.parametrize(("dead", "tombs", "expected"), [(0, 0, False), (1, 0, True), (0, 1, True)])
def test_needs_rewrite(dead: int, tombs: int, expected: bool) -> None:
    assert needs_rewrite(Facts(0, 1, 100, dead, 100, tombs)) is expected
