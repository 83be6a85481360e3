"""The choice of segments from sizes and timestamps alone, with a reason for each segment held back."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from lastword.cleaner.policy.choose import LogState, choose, corrected_first_dirty, overdue_ms
from lastword.cleaner.policy.plan import CleanRequest, Plan
from lastword.config import TopicConfig
from lastword.errors import UsageError

NOW = 1_700_000_000_000
HOUR = 3_600_000
STATE = {field.name for field in fields(LogState)}
REQUEST = {field.name for field in fields(CleanRequest)}


@dataclass(frozen=True)
class FakeSegment:
    base_offset: int
    next_offset: int
    size: int
    largest_timestamp: int = NOW - 48 * HOUR
    mtime_ms: int = NOW
    first_timestamp: int = NOW - 48 * HOUR

    def position_of(self, offset: int) -> int:
        share = (offset - self.base_offset) / (self.next_offset - self.base_offset)
        return int(share * self.size)


def make_segments(*sizes: int) -> list[FakeSegment]:
    """Return segments of 100 offsets each; the last segment is active."""
    return [FakeSegment(100 * i, 100 * i + 100, size) for i, size in enumerate(sizes)]


def compact(**changes: Any) -> TopicConfig:
    return replace(TopicConfig(), cleanup_policy=frozenset({"compact"}), **changes)


def decide(segments: list[FakeSegment], config: TopicConfig | None = None, **more: Any) -> Plan:
    given: dict[str, Any] = {"log_start": 0, "log_end": segments[-1].next_offset if segments else 0}
    state = LogState("t", 0, segments, **(given | {name: more.pop(name) for name in STATE & more.keys()}))
    asked = {name: more.pop(name) for name in REQUEST & more.keys()}
    request = CleanRequest(**({"map_bytes": 1 << 20} | asked))
    return choose(state, config or compact(), request, NOW, **more)


def codes(plan: Plan) -> list[str]:
    return [reason.code for reason in plan.reasons]


def test_due_leaves_the_active_segment_and_says_so() -> None:
    plan = decide(make_segments(1000, 1000, 500), due=True)
    assert (plan.action, plan.start, plan.limit, plan.rolls_active) == ("clean", 0, 200, False)
    assert codes(plan) == ["active-segment"]


def test_a_due_round_is_foretold_with_the_active_segment_that_it_closes_first() -> None:
    """A round closes an active segment that is older than `segment.ms`; a plan alone does not close it."""
    segments = make_segments(1000, 1000, 500)
    old, young = compact(segment_ms=47 * HOUR), compact(segment_ms=49 * HOUR)
    plan = decide(segments, old, due=True, may_roll=True)
    assert (plan.limit, plan.rolls_active, codes(plan)) == (300, True, [])
    for config, may_roll in ((young, True), (old, False)):
        plan = decide(segments, config, due=True, may_roll=may_roll)
        assert (plan.limit, plan.rolls_active, codes(plan)) == (200, False, ["active-segment"])
    assert decide(segments, compact(max_compaction_lag_ms=47 * HOUR), due=True, may_roll=True).limit == 300


def test_now_takes_the_active_segment_too() -> None:
    plan = decide(make_segments(1000, 1000, 500))
    assert (plan.action, plan.limit, plan.rolls_active) == ("clean", 300, True)
    assert codes(plan) == []


def test_now_does_not_roll_an_empty_active_segment() -> None:
    segments = [*make_segments(1000), FakeSegment(100, 100, 0)]
    plan = decide(segments)
    assert (plan.action, plan.limit, plan.rolls_active) == ("clean", 100, False)


def test_an_unknown_policy_keeps_everything() -> None:
    plan = decide(make_segments(10, 10), TopicConfig())
    assert (plan.action, codes(plan)) == ("keep", ["no-policy"])


def test_delete_alone_is_never_compacted() -> None:
    plan = decide(make_segments(10, 10), replace(TopicConfig(), cleanup_policy=frozenset({"delete"})))
    assert (plan.action, codes(plan)) == ("keep", ["no-policy"])


def test_compact_and_delete_is_compacted() -> None:
    both = replace(TopicConfig(), cleanup_policy=frozenset({"compact", "delete"}))
    assert decide(make_segments(10, 10), both).action == "clean"


def test_quarantine_keeps_with_its_reason() -> None:
    plan = decide(make_segments(10, 10), quarantine="bad CRC at 7")
    assert (plan.action, codes(plan)) == ("keep", ["quarantined"])
    assert "bad CRC at 7" in str(plan)


def test_due_needs_strictly_more_than_the_ratio() -> None:
    segments = make_segments(1000, 1000, 10)
    assert codes(decide(segments, due=True, first_dirty=100)) == ["below-ratio", "active-segment"]
    assert (
        decide(segments, compact(min_cleanable_dirty_ratio=0.49), due=True, first_dirty=100).action == "clean"
    )
    assert decide(segments, due=False, first_dirty=100).action == "clean"


def test_the_ratio_counts_no_byte_twice() -> None:
    plan = decide(make_segments(710, 10), due=True, first_dirty=50)
    assert (plan.dirty_bytes, plan.dirty_ratio) == (355, 0.5)


def test_min_compaction_lag_ends_the_round_at_a_segment() -> None:
    segments = make_segments(1000, 1000, 1000)
    segments[1] = replace(segments[1], largest_timestamp=NOW - HOUR + 1)
    plan = decide(segments, compact(min_compaction_lag_ms=HOUR))
    assert (plan.action, plan.limit, plan.rolls_active) == ("clean", 100, False)
    assert codes(plan) == ["compaction-lag"]
    segments[1] = replace(segments[1], largest_timestamp=NOW - HOUR)
    assert decide(segments, compact(min_compaction_lag_ms=HOUR)).limit == 300


def test_min_lag_falls_back_to_the_file_time() -> None:
    segments = make_segments(1000, 1000)
    segments[0] = replace(segments[0], largest_timestamp=-1, mtime_ms=NOW)
    plan = decide(segments, compact(min_compaction_lag_ms=HOUR))
    assert (plan.action, codes(plan)) == ("keep", ["compaction-lag"])


def test_min_lag_does_not_look_at_clean_segments() -> None:
    segments = make_segments(1000, 1000, 1000)
    segments[0] = replace(segments[0], largest_timestamp=NOW)
    assert decide(segments, compact(min_compaction_lag_ms=HOUR), first_dirty=100).limit == 300


def test_max_compaction_lag_makes_a_log_due_below_its_ratio() -> None:
    segments = make_segments(9000, 100, 10)
    assert decide(segments, compact(max_compaction_lag_ms=HOUR), due=True, first_dirty=100).action == "clean"
    segments[1] = replace(segments[1], first_timestamp=NOW - HOUR)
    assert decide(segments, compact(max_compaction_lag_ms=HOUR), due=True, first_dirty=100).action == "keep"


def test_max_lag_needs_something_dirty() -> None:
    plan = decide(make_segments(9000, 10), compact(max_compaction_lag_ms=1), due=True, first_dirty=100)
    assert (plan.action, codes(plan)) == ("keep", ["below-ratio", "active-segment"])


def test_a_round_ends_below_the_last_stable_offset() -> None:
    segments = make_segments(1000, 1000, 1000)
    plan = decide(segments, stable_offset=250)
    assert (plan.action, plan.limit, plan.rolls_active) == ("clean", 200, False)
    assert codes(plan) == ["undecided-transaction"]
    assert decide(segments, stable_offset=199).limit == 100
    assert decide(segments, stable_offset=200).limit == 200
    assert decide(segments, stable_offset=300).rolls_active
    kept = decide(segments, stable_offset=99)
    assert (kept.action, codes(kept)) == ("keep", ["undecided-transaction"])
    assert codes(decide(segments, stable_offset=250, due=True)) == ["active-segment"]


def test_nothing_closed() -> None:
    plan = decide(make_segments(500), due=True)
    assert (plan.action, codes(plan)) == ("keep", ["active-segment"])


def test_an_empty_log() -> None:
    plan = decide([FakeSegment(0, 0, 0)])
    assert (plan.action, codes(plan)) == ("keep", ["newest"])


@pytest.mark.parametrize(
    ("checkpoint", "expected"), [(None, 50), (10, 50), (50, 50), (90, 90), (100, 100), (101, 50)]
)
def test_a_checkpoint_outside_the_log_is_ignored(checkpoint: int | None, expected: int) -> None:
    assert corrected_first_dirty(checkpoint, 50, 100) == expected


def test_unknown_strategy() -> None:
    with pytest.raises(UsageError, match="kafka"):
        decide(make_segments(10, 10), strategy="newest-first")


def test_a_plan_is_a_value_with_its_fields() -> None:
    fields = decide(make_segments(1000, 500), due=True).to_dict()
    wanted = [
        "topic",
        "partition",
        "action",
        "due",
        "strategy",
        "segments",
        "read_bytes",
        "write_bytes",
        "free_bytes",
        "exact",
        "reasons",
    ]
    assert set(wanted) <= set(fields)
    assert fields["reasons"][0]["code"] == "active-segment"


def test_a_lag_that_cannot_pass_is_known_without_reading() -> None:
    """The default of max.compaction.lag.ms: a plan for a large log must not read each segment."""

    class Unread:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    unread: Any = Unread()
    assert overdue_ms([unread], 0, 1_000_000, (1 << 63) - 1) is None


def test_due_is_the_answer_and_not_the_question() -> None:
    """A plan that was not requested for due work does not claim that the log is not due."""
    dirty = make_segments(1000, 500)
    assert decide(dirty, due=True).due is True and decide(dirty, due=True).action == "clean"
    kept = decide(make_segments(500), due=True)  # there is only an active segment
    assert kept.action == "keep" and kept.due is False
    assert decide(dirty).due is None and decide(make_segments(0)).due is None
