"""Grouping of segments for the rewrite: decided by exact garbage, limited by Kafka's limits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lastword.cleaner.policy.groups import OutputLimits, group
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


def run(*segments: tuple[int, ...], limits: OutputLimits = LIMITS) -> list[tuple[int, int]]:
    """Return groups (first, last) of segments (live bytes, dead records[, tombstones without horizon])."""
    facts = []
    for i, (live, dead, *tombs) in enumerate(segments):
        facts.append(Facts(100 * i, 100 * i + 100, live + 10 * dead, dead, live, *tombs))
    return [(g.first, g.last) for g in group(facts, limits)]


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        pytest.param([], [], id="an empty log"),
        pytest.param([(1000, 0), (1000, 0), (10, 0)], [], id="nothing dead"),
        pytest.param([(900, 0), (500, 3), (900, 0)], [(1, 1)], id="only garbage is a reason"),
        pytest.param([(900, 0), (900, 0, 1), (900, 0)], [(1, 1)], id="or a tombstone whose clock must start"),
        pytest.param([(0, 0), (0, 0), (900, 0)], [], id="but no empty segment by itself"),
        pytest.param([(400, 1)] * 4, [(0, 1), (2, 3)], id="neighbours whose survivors fit"),
        pytest.param([(300, 90)] * 3, [(0, 2)], id="live bytes count, not sizes on disk"),
        pytest.param([(2000, 1), (10, 1)], [(0, 0), (1, 1)], id="a segment above the limit"),
        pytest.param([(50, 0), (400, 1), (50, 0)], [(0, 2)], id="small clean neighbours come along"),
        pytest.param([(51, 0), (400, 1), (51, 0)], [(1, 1)], id="larger ones do not"),
        pytest.param([(10, 0)] * 60, [], id="small clean segments of a log that is not crowded"),
        pytest.param([(10, 0)] * 80, [(0, 79)], id="a crowded log is merged although nothing is dead"),
    ],
)
def test_groups(segments: list[tuple[int, ...]], expected: list[tuple[int, int]]) -> None:
    assert run(*segments) == expected


def test_a_marker_that_goes_or_gets_its_clock_is_a_reason() -> None:
    facts = [Facts(100 * i, 100 * i + 100, 900, 0, 900) for i in range(4)]
    assert [(g.first, g.last) for g in group(facts, LIMITS, {1, 3})] == [(1, 1), (3, 3)]


def test_empty_segments_go_into_a_neighbours_output() -> None:
    empty = [Facts(0, 0, 0, 0, 0), Facts(100, 200, 400, 1, 300), Facts(200, 200, 0, 0, 0)]
    (merged,) = group([*empty, Facts(300, 400, 900, 0, 900)], LIMITS)
    assert (merged.first, merged.last, merged.base_offset, merged.next_offset) == (0, 2, 0, 200)


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
