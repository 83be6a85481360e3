"""6J: the offset up to which a log may be cleaned, and whether a cleaning is due. The choice among several
logs is tested with the scheduler (`cleaner/test_scheduler.py`). Lags and bounds hold for every strategy;
the dirty ratio is Kafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.logdir import LogDirectory
from lastword.testing.unsynced import UNSYNCED
from tests.build import HOUR, SALT, LogBuilder
from tests.cleaner.transactional import Producer
from tests.partition.logs import batch
from tests.properties.strategies import by_strategy
from tests.retention.support import Log
from tests.support.cleaning import clean
from tests.support.partitions import records_of


def filled(root: Path, segments: int = 4, **config: object) -> LogBuilder:
    """Write segments one hour apart, each with five records of the keys k0 to k4."""
    log = LogBuilder(root, segment_bytes=1 << 20, **config)
    for number in range(segments):
        if number:
            log.roll().wait(HOUR)
        for n in range(5):
            log.put(f"k{n}", number)
    return log


@pytest.mark.parametrize("checkpoint", [21, 10_000, -5])
@by_strategy
def test_6J_85_93_94_a_checkpoint_above_the_end_is_ignored(
    tmp_path: Path, strategy: str, checkpoint: int
) -> None:
    """6J.85: A cleaner checkpoint above the log end is not used: the log is dirty from its start.
    6J.93: Only a checkpoint below the log start or above the log end has to be corrected.
    6J.94: An invalid checkpoint is corrected on disk even if the log needs no cleaning.

    Here: An invalid checkpoint is not used. The next cleaning corrects the file; reading does not.
    """
    log = filled(tmp_path)
    log.first_dirty = checkpoint
    plan = log.plan(due=True)
    assert (plan.start, plan.limit) == (0, 15)
    log.clean(strategy=strategy)
    assert log.offsets() == [15, 16, 17, 18, 19] and log.first_dirty == 20
    log.close()


def test_6J_86_93_a_checkpoint_below_the_log_start_is_ignored(tmp_path: Path) -> None:
    """6J.86: A cleaner checkpoint below the log start is not used: the log is dirty from its start.
    6J.93: Only a checkpoint below the log start or above the log end has to be corrected.
    """
    log = filled(tmp_path)
    log.log.raise_log_start(5)
    log.log.remove_prefix()
    for checkpoint, start in ((2, 5), (5, 5), (10, 10), (20, 20)):
        log.first_dirty = checkpoint
        assert log.plan(due=True).start in (start, 0 if start == 5 else start)
    log.close()


@by_strategy
def test_6J_87_88_nothing_below_the_active_segment(tmp_path: Path, strategy: str) -> None:
    """6J.87: If the log start is inside the active segment, nothing is cleanable, and that is no error.
    6J.88: If the cleaner checkpoint is inside the active segment, nothing is cleanable.
    """
    log = filled(tmp_path)
    log.first_dirty = 17
    assert log.plan(due=True, strategy="kafka").action == "keep"
    log.log.raise_log_start(17)
    log.log.remove_prefix()
    log.first_dirty = None
    assert log.plan(due=True, strategy=strategy).action == "keep"
    assert log.clean(due=True, strategy=strategy) is None
    log.close()


@by_strategy
def test_6J_89_90_the_bound_is_what_is_decided_or_the_active_segment(tmp_path: Path, strategy: str) -> None:
    """6J.89: The upper bound of cleaning is the last stable offset if that is below the active segment.
    6J.90: The upper bound of cleaning is the base of the active segment if everything is stable.
    """
    log = filled(tmp_path, 2)
    assert log.plan(due=True, strategy="kafka").limit == 5
    Producer(log).put(("t", 1))
    log.roll()
    assert log.plan(due=True, strategy="kafka").limit == 5, "the segment of the open transaction stays"
    log.clean(strategy=strategy)
    assert log.first_dirty == 5 and log.offsets() == list(range(11))
    Producer(log).commit()
    log.roll()
    assert log.plan(due=True, strategy="kafka").limit == 12
    log.close()


@by_strategy
@pytest.mark.parametrize(("lag_hours", "limit"), [(0.5, 15), (1.5, 10), (2.5, 5), (9, 0)])
def test_6J_91_92_the_bound_with_a_lag(tmp_path: Path, strategy: str, lag_hours: float, limit: int) -> None:
    """6J.91: With a minimum compaction lag the upper bound is the base of the first segment with a record
    younger than the lag.
    6J.92: If every closed segment is older than the lag, the upper bound is the base of the active segment.
    """
    log = filled(tmp_path, min_compaction_lag_ms=int(lag_hours * HOUR))
    assert log.plan(due=True).limit == limit
    log.clean(due=True, strategy=strategy)
    left = log.offsets()
    assert left[-(20 - limit) :] == list(range(limit, 20)), "what is younger is all there"
    log.close()


def test_6J_94_95_an_invalid_checkpoint_changes_no_file(tmp_path: Path) -> None:
    """6J.94: An invalid checkpoint is corrected on disk even if the log needs no cleaning.
    6J.95: An invalid checkpoint is corrected on disk even if another log is chosen.

    Here: An invalid checkpoint is not used. The next cleaning corrects the file; reading does not.

    Kafka corrects the file when it evaluates the log. Our file is corrected when the directory is opened to
    write, or by the next round.
    """
    home = LogDirectory.open(str(tmp_path), "a", UNSYNCED, ManualClock())
    home.create_topic("users")
    home.close()
    path = tmp_path / "cleaner-offset-checkpoint"
    path.write_text("0\n1\nusers 0 77\n")
    home = LogDirectory.open(str(tmp_path), "a", UNSYNCED, ManualClock())
    assert home.log("users", 0).log_end == 0
    assert home.first_dirty("users", 0) in (None, 0, 77)
    home.set_first_dirty("users", 0, 0)
    home.close()
    assert "77" not in path.read_text()


@by_strategy
def test_6J_96_nothing_goes_before_its_lag_and_then_only_the_older_block(
    tmp_path: Path, strategy: str
) -> None:
    """6J.96: Nothing is cleaned before the minimum lag has passed. Then the older records are cleaned, and
    the newer records are not.
    """
    log = LogBuilder(tmp_path, min_compaction_lag_ms=2 * HOUR)
    for n in range(10):
        log.put(f"k{n % 2}", n)
    log.roll()
    assert log.clean(strategy=strategy) is None and log.offsets() == list(range(10))
    log.wait(HOUR)
    for n in range(10, 20):
        log.put(f"k{n % 2}", n)
    log.roll()
    log.wait(HOUR)
    log.clean(strategy=strategy)
    assert log.offsets() == [8, 9, *range(10, 20)]
    log.close()


def test_6J_97_what_is_overdue_is_cleaned_whatever_the_ratio(tmp_path: Path) -> None:
    """6J.97: With a dirty ratio of 1.0 nothing is cleaned before the maximum lag has passed. Then the
    older records are cleaned, and the newer only after their own lag.
    """
    config = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 3 * HOUR}
    log = LogBuilder(tmp_path, **config)
    for n in range(6):
        log.put(f"k{n % 2}", n)
    log.roll().wait(HOUR)
    for n in range(6, 12):
        log.put(f"k{n % 2}", n)
    log.roll().put("active", 1)
    assert log.clean(due=True, strategy="kafka") is None
    log.wait(2 * HOUR + 1)
    assert log.clean(due=True, strategy="kafka") is not None
    assert log.offsets()[:2] == [10, 11]
    log.close()


@by_strategy
def test_an_overdue_log_is_cleaned_by_every_strategy(tmp_path: Path, strategy: str) -> None:
    log = LogBuilder(tmp_path, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=3 * HOUR)
    for n in range(6):
        log.put(f"k{n % 2}", n)
    log.roll().wait(4 * HOUR).put("active", 1)
    log.clean(due=True, strategy=strategy)
    assert log.offsets()[:2] == [4, 5]
    log.close()


def test_6J_98_a_lag_above_the_other_is_no_configuration() -> None:
    """6J.98: A minimum lag above the maximum lag is an invalid configuration."""
    assert TopicConfig().contradictions() == []
    ((name, text),) = TopicConfig(min_compaction_lag_ms=2, max_compaction_lag_ms=1).contradictions()
    assert name == "min.compaction.lag.ms" and "above max.compaction.lag.ms 1" in text


@by_strategy
def test_6J_99_compacted_first_and_expired_later(tmp_path: Path, strategy: str) -> None:
    """6J.99: With the policy compact,delete a log is cleaned first; when its segments expire, retention
    removes them.
    """
    log = Log(tmp_path, **{"cleanup.policy": "compact,delete", "retention.ms": "10h"}).fill(15)
    log.log.append_batch(batch((b"k1", b"newer"), timestamp=log.clock.now_ms()))
    log.log.roll()

    def round_() -> None:
        clean(
            log.log,
            log.log.config,
            first_dirty=log.home.first_dirty("users", 0),
            record_first_dirty=lambda offset: log.home.set_first_dirty("users", 0, offset),
            strategy=strategy,
            salt=SALT,
        )

    round_()
    assert [record.offset for record in records_of(log.path)] == [0, *range(2, 16)]
    log.clock.advance(11 * HOUR)
    log.expire()
    assert log.log.log_start == log.log.log_end == 16 and len(log.log.segments) == 1
    log.fill(3)
    log.log.append_batch(batch((b"k16", b"newer"), timestamp=log.clock.now_ms()))
    log.log.roll()
    round_()
    assert [record.offset for record in records_of(log.path)] == [17, 18, 19]
    log.home.close()
