"""Whole rounds over real logs: removed records, kept records, the plan and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.errors import BusyError
from lastword.wire import INT64_MAX
from tests.build import HOUR, LogBuilder

DAY = 24 * HOUR


@pytest.fixture
def users(tmp_path: Path) -> LogBuilder:
    return LogBuilder(tmp_path / "data").topic("users")


def test_the_five_minute_example(users: LogBuilder) -> None:
    users.put("ada", "London").put("ada", "Turin").put("bob", "Oslo").delete("bob")
    round_ = users.clean()
    assert str(round_) == "users-0: 4 records -> 2; the tombstone at 3 may go in 24 h"
    assert users.offsets() == [1, 3]
    assert (round_.start, round_.end, round_.complete) == (0, 4, True)
    assert (round_.removed.superseded, round_.removed.tombstone) == (2, 0)
    assert users.first_dirty == 4
    assert users.state() == {b"ada": b"Turin"}


def test_cold_segments_are_not_copied_because_hot_ones_changed(users: LogBuilder) -> None:
    for i in range(5):
        users.put(f"cold{i}", "x" * 100)
    users.topic("users", segment_bytes=1000).roll()
    cold = users.log.segments[0].id
    users.put("hot", 1).put("hot", 2)
    users.clean()
    assert users.log.segments[0].id == cold
    assert users.offsets() == [0, 1, 2, 3, 4, 6]


def test_a_clean_log_is_not_due(users: LogBuilder) -> None:
    users.put("a", 1).put("a", 2).roll()
    assert users.clean(due=True) is not None
    assert users.clean(due=True) is None
    assert users.plan(due=True).reasons[0].code == "below-ratio"


@pytest.mark.parametrize("policy", [None, frozenset({"delete"})])
def test_nothing_is_removed_without_the_policy_for_it(tmp_path: Path, policy: frozenset[str] | None) -> None:
    log = LogBuilder(tmp_path, cleanup_policy=policy).put("a", 1).put("a", 2)
    before = log.tree()
    assert log.clean() is None
    assert log.plan().reasons[0].code == "no-policy"
    assert log.tree() == before


class TestTombstones:
    def test_a_tombstone_kills_older_values_and_is_killed_by_newer_ones(self, users: LogBuilder) -> None:
        users.put("a", 1).delete("a").put("a", 2)
        users.clean()
        assert users.offsets() == [2]

    def test_one_above_the_limit_gets_no_clock(self, users: LogBuilder) -> None:
        users.put("x", 1).put("x", 2).put("a", 1).roll().delete("a")
        users.clean(due=True)
        users.wait(10 * DAY).put("y", 1)
        users.clean()
        assert users.offsets() == [1, 3, 4], "its clock began only now"

    def test_of_a_key_that_was_never_there(self, users: LogBuilder) -> None:
        users.delete("ghost").put("b", 1)
        users.clean()
        assert users.offsets() == [0, 1]
        users.wait(DAY)
        users.clean()
        assert users.offsets() == [1]

    def test_without_retention_it_goes_with_the_next_round(self, tmp_path: Path) -> None:
        log = LogBuilder(tmp_path, delete_retention_ms=0).put("a", 1).delete("a").put("b", 1)
        log.clean()
        assert log.offsets() == [1, 2]
        log.clean()
        assert log.offsets() == [2]

    @pytest.mark.parametrize("strategy", ["kafka", "generational"])
    def test_with_the_longest_retention_it_stays(self, tmp_path: Path, strategy: str) -> None:
        log = LogBuilder(tmp_path, delete_retention_ms=INT64_MAX).put("a", 1).delete("a").put("b", 1)
        for _ in range(2):
            log.clean(strategy=strategy)
            assert log.offsets() == [1, 2]
            log.wait(1000 * DAY)


def test_small_segments_merge_when_they_are_rewritten(users: LogBuilder) -> None:
    for i in range(20):
        users.put("a", i).put(f"b{i}", i).roll()
    users.clean()
    assert len(users.log.segments) == 2, "one cleaned, one active"
    assert users.log.segments[0].base_offset == 0


def test_segment_bytes_bounds_an_output(users: LogBuilder) -> None:
    for i in range(20):
        users.put("a", i).put(f"b{i}", "x" * 100).roll()
    users.topic("users", segment_bytes=900)
    users.clean()
    sizes = users.sizes()[:-1]
    assert all(size <= 900 for _, size in sizes)
    assert len(sizes) == 5, "20 segments of one survivor each, 5 of them fit a file"


def test_stopping_before_the_first_swap_leaves_the_log(users: LogBuilder) -> None:
    """6C.27: A stop that is requested while records are copied ends the cleaning."""
    users.put("a", 1).put("a", 2).roll()
    before = users.tree()
    round_ = users.clean(stop=lambda: True)
    assert not round_.complete
    assert users.first_dirty is None
    after = users.tree()
    assert {n: b for n, b in after.items() if ".log" in n} == {n: b for n, b in before.items() if ".log" in n}
    assert not [n for n in after if "rewrite-" in n]


def test_stopping_between_two_swaps_keeps_what_was_swapped(users: LogBuilder) -> None:
    """6C.27: A stop that is requested while records are copied ends the cleaning."""
    for i in range(4):
        users.put("a", i).put(f"b{i}", "x" * 300).roll()
    users.topic("users", segment_bytes=450)
    answers = iter([False] * 6 + [True] * 100)  # four segments mapped, one written and certified
    round_ = users.clean(stop=lambda: next(answers))
    assert not round_.complete
    assert 0 < round_.removed.superseded < 3
    assert users.first_dirty is None
    assert users.state()[b"a"] == b"3"
    assert not [n for n in users.tree() if "rewrite-" in n]
    assert users.clean().complete
    assert users.offsets() == [1, 3, 5, 6, 7]


def test_one_round_at_a_time(users: LogBuilder) -> None:
    users.put("a", 1).put("a", 2)
    seen = []

    def stop() -> bool:
        with pytest.raises(BusyError):
            users.clean()
        seen.append(1)
        return False

    assert users.clean(stop=stop).complete
    assert seen


def test_progress_ends_at_its_total(users: LogBuilder) -> None:
    users.put("a", 1).put("a", 2)
    heard = []
    users.clean(progress=heard.append)
    assert heard[-1].done_bytes == heard[-1].total_bytes > 0
    assert heard[0].verb == "clean"


def test_a_due_round_closes_what_segment_ms_has_closed(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path, segment_ms=HOUR).put("a", 1).put("a", 2)
    assert log.clean(due=True) is None
    log.wait(HOUR + 1)
    assert log.clean(due=True).end == 2
    assert log.offsets() == [1]


def test_rounds_are_counted(users: LogBuilder) -> None:
    from lastword import metrics

    users.put("a", 1).put("a", 2)
    done = users.clean()
    users.put("b", 1).clean(stop=lambda: True)
    assert metrics.CLEANER_ROUNDS.value(users.root, "ok") == 1
    assert metrics.CLEANER_ROUNDS.value(users.root, "aborted") == 1
    assert metrics.CLEANER_WRITTEN_BYTES.value(users.root) == done.written_bytes > 0
    assert metrics.CLEANER_FREED_BYTES.value(users.root) == done.freed_bytes > 0
