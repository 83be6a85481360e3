"""The choice of segments from sizes and timestamps alone, with a reason for each segment held back."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from lastword.cleaner.policy.choose import LogState, choose, overdue_ms
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
    return replace(TopicConfig(), **({"cleanup_policy": frozenset({"compact"})} | changes))


def aged(age_ms: int) -> FakeSegment:
    """Return the second of three segments, with its newest record of this age."""
    return FakeSegment(100, 200, 1000, largest_timestamp=NOW - age_ms)


def decide(segments: list[FakeSegment], config: TopicConfig | None = None, **more: Any) -> Plan:
    given: dict[str, Any] = {"log_start": 0, "log_end": segments[-1].next_offset if segments else 0}
    state = LogState("t", 0, segments, **(given | {name: more.pop(name) for name in STATE & more.keys()}))
    asked = {name: more.pop(name) for name in REQUEST & more.keys()}
    request = CleanRequest(**({"map_bytes": 1 << 20} | asked))
    return choose(state, config or compact(), request, NOW, **more)


def codes(plan: Plan) -> list[str]:
    return [reason.code for reason in plan.reasons]


CLOSED = make_segments(1000, 1000, 500)
HALF_DIRTY = make_segments(1000, 1000, 10)
LITTLE_DIRT = make_segments(9000, 100, 10)
DUE: dict[str, Any] = {"due": True, "first_dirty": 100}
LAG = {"config": compact(min_compaction_lag_ms=HOUR)}
OVERDUE = DUE | {"config": compact(max_compaction_lag_ms=HOUR)}
SMALLER_RATIO = DUE | {"config": compact(min_cleanable_dirty_ratio=0.49)}
BOTH = {"config": compact(cleanup_policy=frozenset({"compact", "delete"}))}
UNDATED, EMPTY = replace(CLOSED[0], largest_timestamp=-1), FakeSegment(100, 100, 0)
NEW_DIRT = replace(LITTLE_DIRT[1], first_timestamp=NOW - HOUR)
WAITS = ["below-ratio", "active-segment"]
# The segments, the request, the limit of the round (None: nothing is cleaned) and the reasons.
CASES: dict[str, tuple[list[FakeSegment], dict[str, Any], int | None, list[str]]] = {
    "now, the active segment too": (CLOSED, {}, 300, []),
    "an empty active segment stays open": ([CLOSED[0], EMPTY], {}, 100, []),
    "due, without the active segment": (CLOSED, {"due": True}, 200, ["active-segment"]),
    "nothing closed": (CLOSED[:1], {"due": True}, None, ["active-segment"]),
    "an empty log": ([FakeSegment(0, 0, 0)], {}, None, ["newest"]),
    "compact and delete": (CLOSED, BOTH, 300, []),
    "due needs strictly more than the ratio": (HALF_DIRTY, DUE, None, WAITS),
    "more than the ratio": (HALF_DIRTY, SMALLER_RATIO, 200, ["active-segment"]),
    "now, whatever the ratio": (HALF_DIRTY, {"first_dirty": 100}, 300, []),
    "a lag ends the round": ([CLOSED[0], aged(HOUR - 1), CLOSED[2]], LAG, 100, ["compaction-lag"]),
    "a lag has passed": ([CLOSED[0], aged(HOUR), CLOSED[2]], LAG, 300, []),
    "a lag by the time of the file": ([UNDATED, CLOSED[1]], LAG, None, ["compaction-lag"]),
    "a lag of a clean segment": ([CLOSED[0], aged(0), CLOSED[2]], LAG | {"first_dirty": 200}, 300, []),
    "overdue, below the ratio": (LITTLE_DIRT, OVERDUE, 200, ["active-segment"]),
    "not yet overdue": ([LITTLE_DIRT[0], NEW_DIRT, LITTLE_DIRT[2]], OVERDUE, None, WAITS),
    "nothing dirty is overdue": (LITTLE_DIRT[:2], OVERDUE, None, WAITS),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_round_takes(case: str) -> None:
    """A round closes the active segment if its limit is above the segment's base offset."""
    segments, asked, limit, reasons = CASES[case]
    plan = decide(segments, **asked)
    assert (plan.action, codes(plan)) == ("keep" if limit is None else "clean", reasons)
    if limit is not None:
        assert (plan.start, plan.limit) == (asked.get("first_dirty", 0), limit)
        assert plan.rolls_active == (limit > segments[-1].base_offset)


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


def test_quarantine_keeps_with_its_reason() -> None:
    plan = decide(make_segments(10, 10), quarantine="bad CRC at 7")
    assert (plan.action, codes(plan)) == ("keep", ["quarantined"])
    assert "bad CRC at 7" in str(plan)


def test_the_ratio_counts_no_byte_twice() -> None:
    plan = decide(make_segments(710, 10), due=True, first_dirty=50)
    assert (plan.dirty_bytes, plan.dirty_ratio) == (355, 0.5)


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


def test_unknown_strategy() -> None:
    with pytest.raises(UsageError, match="kafka"):
        decide(make_segments(10, 10), strategy="newest-first")


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
