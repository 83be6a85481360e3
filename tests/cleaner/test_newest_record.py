"""The newest record of a partition stays, so that every client reaches the end of the log.

Kafka's cleaner leaves the active segment alone. Here a cleaning closes it first, and some clients pass over a
batch that was emptied: they never reach the end of a log that ends with one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.spark import job as jobs
from lastword.testing.unsynced import UNSYNCED

DAY_MS = 86_400_000
_numbers = itertools.count()


@pytest.fixture(params=["directory", "bucket"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lastword.LogDir]:
    where = f"memory://newest-{next(_numbers)}/log" if request.param == "bucket" else tmp_path / "d"
    given = {} if request.param == "bucket" else {"files": UNSYNCED}
    clock = ManualClock(1_700_000_000_000)
    with lastword.open(
        where,
        "a",
        clock=clock,
        lastword_commit_linger_ms=0,
        **given,  # type: ignore[arg-type]
    ) as opened:
        yield opened


def rows(logs: lastword.LogDir) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in logs["t"].read()]


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_a_tombstone_that_is_the_newest_record_stays_until_another_one_follows(
    logs: lastword.LogDir, strategy: str
) -> None:
    topic = logs.create_topic("t", cleanup_policy="compact", lastword_strategy=strategy)
    clock = logs.dirs.clock
    topic.append(b"a", b"1")
    topic.append(b"b", b"1")
    topic.delete(b"b")
    topic.delete(b"a")
    for _ in range(4):
        logs.clean("t")
        clock.advance(2 * DAY_MS)  # type: ignore[attr-defined]
    assert rows(logs) == [(3, b"a", None)]
    version = logs.explain("t", key=b"a").versions[-1]
    assert (version.kept, version.reason) == (True, "log-end")
    assert not any(plan.action == "clean" for plan in logs.plan("t", due=True))
    assert not logs.verify().problems
    topic.append(b"c", b"1")
    for _ in range(3):
        logs.clean("t")
        clock.advance(2 * DAY_MS)  # type: ignore[attr-defined]
    assert rows(logs) == [(4, b"c", b"1")]


def test_a_divided_cleaning_keeps_it_too(tmp_path: Path) -> None:
    """The same for the steps that Spark's executors run."""
    clock = ManualClock(1_700_000_000_000)
    with lastword.open(tmp_path / "d", "a", clock=clock, files=UNSYNCED) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", lastword_strategy="kafka")
        topic.append(b"a", b"1")
        topic.delete(b"a")
        logs.clean("t")
        clock.advance(2 * DAY_MS)
        log = logs.dirs.log("t", 0)
        log.roll()
        (plan,) = logs.plan("t")
        job = jobs.start(UNSYNCED, log.directory, log.segments, plan)
        assert job.due_below == log.log_end - 1 == 1
        jobs.remove(UNSYNCED, job.directory)
        topic.append(b"b", b"1")
        log.roll()
        job = jobs.start(UNSYNCED, log.directory, log.segments, plan)
        assert job.due_below == 2
        jobs.remove(UNSYNCED, job.directory)
