"""The active segment is closed for cleaning once it is larger than the live bytes below it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastword
from lastword.background.scheduler import Scheduler
from lastword.background.states import States
from lastword.background.work import DirectoryWork
from lastword.cleaner.policy import choose
from lastword.clock import ManualClock

FLOOR = 20_000


@pytest.fixture(autouse=True)
def _floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "OUTGROWN_BYTES", FLOOR)


def work_of(logs: lastword.LogDir, clock: ManualClock) -> DirectoryWork:
    return DirectoryWork(logs.dirs.dir_set, logs.dirs.drives, States(clock), clock)


def turns(logs: lastword.LogDir, clock: ManualClock) -> int:
    """Run the work of the background in this thread; return the number of turns."""
    work = work_of(logs, clock)
    scheduler = Scheduler(work, clock=clock, states=work._states)
    count = 0
    while scheduler.turn():
        count += 1
        assert count < 100
    return count


def disk_bytes(root: Path) -> int:
    return sum(file.stat().st_size for file in root.glob("*-0/*.log"))


def segments(root: Path) -> int:
    return len(list(root.glob("*-0/*.log")))


@pytest.mark.parametrize("strategy", ["generational", "kafka"])
def test_a_small_state_stays_small(tmp_path: Path, strategy: str) -> None:
    clock = ManualClock()
    with lastword.open(tmp_path / "d", "a", clock=clock) as logs:
        topic = logs.create_topic("s", cleanup_policy="compact", lastword_strategy=strategy)
        written = largest = 0
        for round_ in range(30):
            topic.extend((b"k%d" % (i % 20), b"%06d" % (round_ * 1000 + i)) for i in range(1000))
            clock.advance(15_000)
            turns(logs, clock)
            largest = max(largest, disk_bytes(tmp_path / "d"))
            written += 1000
        live = 20 * 30
        assert largest < 3 * FLOOR + 40_000 + live
        assert segments(tmp_path / "d") <= 4
        assert len(list(topic.read(view="newest"))) == 20


@pytest.mark.parametrize("strategy", ["generational", "kafka"])
def test_inserts_only_make_a_few_segments_more(tmp_path: Path, strategy: str) -> None:
    clock = ManualClock()
    with lastword.open(tmp_path / "d", "a", clock=clock) as logs:
        topic = logs.create_topic(
            "s", cleanup_policy="compact", lastword_strategy=strategy, segment_bytes=2_000_000
        )
        for number in range(200):
            topic.extend((b"k%d-%d" % (number, i), b"x" * 50) for i in range(200))
            clock.advance(15_000)
            turns(logs, clock)
        size = disk_bytes(tmp_path / "d")
        assert segments(tmp_path / "d") <= 6 + -(-size // 2_000_000)
        assert sum(1 for _ in topic.read(view="newest")) == 40_000


def test_no_roll_under_an_open_transaction_a_lag_or_another_policy(tmp_path: Path) -> None:
    from tests.build import LogBuilder
    from tests.cleaner.transactional import Producer

    log = LogBuilder(tmp_path / "data").topic("users")
    producer = Producer(log)
    producer.put(("a", "x" * 30_000))
    now_ms = log.clock.now_ms()
    roll = choose.roll_for_cleaning
    assert not roll(log.log, log.config, now_ms=now_ms)
    producer.commit()
    assert not roll(log.log, log.config.replace(cleanup_policy=frozenset({"delete"})), now_ms=now_ms)
    lagging = log.config.replace(min_compaction_lag_ms=1000)
    assert not roll(log.log, lagging, now_ms=now_ms)
    assert not roll(log.log, lagging, now_ms=now_ms + 999)
    assert roll(log.log, lagging, now_ms=now_ms + 1000)
    assert len(log.log.segments) == 2


def test_known_garbage_below_does_not_keep_it_open(tmp_path: Path) -> None:
    from tests.build import LogBuilder

    log = LogBuilder(tmp_path / "data").topic("users").put("a", "x" * 30_000).roll().put("a", "y" * 25_000)
    assert not choose.roll_for_cleaning(log.log, log.config, now_ms=0)
    assert choose.roll_for_cleaning(log.log, log.config, now_ms=0, dead_bytes=30_000)


def test_a_dry_run_says_that_the_active_segment_is_closed_first(tmp_path: Path) -> None:
    clock = ManualClock()
    with lastword.open(tmp_path / "d", "a", clock=clock) as logs:
        topic = logs.create_topic("s", cleanup_policy="compact")
        topic.extend((b"k%d" % (i % 20), b"%06d" % i) for i in range(3000))
    with lastword.open(tmp_path / "d", clock=clock) as logs:
        (plan,) = logs.plan("s", due=True)
        assert plan.action == "clean"
        assert plan.free_bytes > 20_000
        assert "active-segment-outgrown" in [reason.code for reason in plan.reasons]
        assert logs.explain("s").plan.action == "clean"
    with lastword.open(tmp_path / "d", "a", clock=clock) as logs:
        logs.clean("s", due=True)
        (plan,) = logs.plan("s", due=True)
        assert plan.action == "keep"
        assert disk_bytes(tmp_path / "d") < 5000
