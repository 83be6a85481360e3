"""The helpers of lastword for the tests of other programs."""

import math
from datetime import UTC, datetime, timedelta

import pytest

import lastword
from lastword.errors import UsageError
from lastword.testing import Clock, LogBuilder


def test_a_history_in_one_line(tmp_path):
    clock = Clock(1_000_000)
    built = LogBuilder(tmp_path / "data", clock).topic("users").put("a", 1).advance(5).put("a", 2).roll()
    logs = built.delete("a").put("b", {"x": None}).topic("other", 2, cleanup_policy=None).put("k", "v").open()
    records = list(logs.topic("users").read())
    assert [(r.key, r.value, r.timestamp) for r in records] == [
        ("a", 1, 1_000_000),
        ("a", 2, 1_005_000),
        ("a", None, 1_005_000),
        ("b", {"x": None}, 1_005_000),
    ]
    assert [s.base_offset for s in logs.topic("users").segments()] == [0, 2]
    assert logs.topic("other").config.cleanup_policy is None and logs.topic("other").partitions == 2
    logs.close()


def test_cleaning_and_opening_to_read(tmp_path):
    built = LogBuilder(tmp_path / "data").put("a", 1).put("a", 2).delete("b").put("c", 3).clean()
    built.advance(2 * 86_400).clean()
    with built.open("r") as logs:
        assert logs.mode == "r"
        assert [(r.offset, r.key, r.value) for r in logs.topic("users").read()] == [(1, "a", 2), (3, "c", 3)]


def test_the_clock_takes_durations():
    clock = Clock(0)
    for time in ("1s", 0.5, timedelta(minutes=1)):
        clock.advance(time)
    assert clock.now_ms() == 61_500
    for wrong in (-1, "soon", math.nan):
        with pytest.raises(UsageError):
            clock.advance(wrong)


def test_the_clock_takes_dates():
    clock = Clock(datetime(2026, 1, 1, tzinfo=UTC))
    clock.set_date(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    assert clock.now_ms() == 1000


def test_the_fixture(logs):
    assert isinstance(logs, lastword.LogDir) and logs.mode == "a"
    logs.state("users")["a"] = 1
