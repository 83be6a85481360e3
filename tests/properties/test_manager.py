"""6K: exclusion between cleaning, retention and truncation, and the cleaner's checkpoint.

In each partition, one call at a time changes segments: it holds `LogDirectory.claim`. The states of the
background cleaner (cleaning, aborted, paused, quarantined) are tested in tests/cleaner/test_scheduler.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lastword.clock import ManualClock
from lastword.errors import LastwordError, StorageError
from lastword.logdir import LogDirectory, TopicPartition
from lastword.logdir.log_dir_set import move
from lastword.testing.unsynced import UNSYNCED
from tests.build import LogBuilder
from tests.fakes.recording import Call, RecordingFiles
from tests.properties.support import T, batch
from tests.retention.support import HOUR, Log

USERS = TopicPartition("users", 0)


@pytest.mark.parametrize(
    ("policy", "removed"), [("delete", 3), ("compact,delete", 3), ("compact", 1), (None, 0)]
)
def test_6K_100_101_102_115_one_retention_for_every_policy(
    tmp_path: Path, policy: str | None, removed: int
) -> None:
    """6K.100: The cleaner's retention is not offered logs with the policy delete.
    6K.101: The cleaner's retention is offered logs with the policy compact,delete.
    6K.102: The cleaner's retention is offered logs with the policy compact, because segments below their log
    start must be removed.
    6K.115: The log manager's retention does not touch logs with the policies compact and compact,delete.
    6V.302: With the policy compact,delete, retention by time deletes.

    Here: One retention serves every policy. The policy decides whether it removes segments by age, or only
    those below the log start.

    Kafka has two retentions: the cleaner's for compacted logs, and the log manager's for logs with the policy
    delete.
    """
    settings = {"cleanup.policy": policy} if policy else {}
    log = Log(tmp_path, **settings, **{"retention.ms": "1h"}).fill(15, age_ms=5 * HOUR)
    log.raise_log_start(7)
    assert log.expire().segments == removed
    log.home.close()


def waits_for_the_claim(logs: LogDirectory, work: Callable[[], object]) -> None:
    began, done = threading.Event(), threading.Event()

    def run() -> None:
        began.set()
        work()
        done.set()

    with logs.claim("users", 0):
        thread = threading.Thread(target=run)
        thread.start()
        assert began.wait(10) and not done.wait(0.05)
    thread.join(10)
    assert done.is_set()


@pytest.mark.parametrize("work", ["expire", "truncate", "claim"])
def test_6K_104_110_111_one_at_a_time_in_a_partition(tmp_path: Path, work: str) -> None:
    """6K.104: Retention and cleaning of one partition exclude each other, also when the policy changes in
    between.
    6K.110: After a pause by retention, an abort with a pause, and two resumes, the partition has no state.
    6K.111: After a pause by retention, an abort by a topic deletion, and a resume, the partition has no
    state.

    Here: The second call waits; a background cleaning ends at its next safe point for it.

    A call waits while its log is cleaned, expired or truncated. No call is aborted, and no partition stays
    paused. Calls for another partition do not wait.
    """
    log = Log(tmp_path, **{"cleanup.policy": "delete", "retention.ms": "1h"}).fill(15, age_ms=5 * HOUR)

    def claimed() -> None:
        with log.home.claim("users", 0):
            pass

    works: dict[str, Callable[[], Any]] = {
        "expire": log.expire,
        "truncate": lambda: log.home.truncate("users", 0, 12),
        "claim": claimed,
    }
    with log.home.claim("other", 0):
        works["claim"]()
    waits_for_the_claim(log.home, works[work])
    claimed()
    assert log.log.log_end == (12 if work == "truncate" else 15)
    log.home.close()


def home(root: Path) -> LogDirectory:
    return LogDirectory.open(root, "a", UNSYNCED, ManualClock(T))


def filled(root: Path, topic: str = "users", count: int = 5) -> LogDirectory:
    logs = home(root)
    logs.create_topic(topic)
    logs.log(topic, 0).append_batches([batch(0, b"a")] * count)
    return logs


def test_6K_105_106_lines_come_and_go(tmp_path: Path) -> None:
    """6K.105: A line that is added to the cleaner checkpoint can be read back.
    6K.106: A line that is removed from the cleaner checkpoint is gone.
    """
    with filled(tmp_path) as logs:
        assert logs.first_dirty("users", 0) is None
        for offset, kept in ((3, 3), (4, 4), (99, 5), (-1, 0)):  # kept between log start and log end
            logs.set_first_dirty("users", 0, offset)
            assert logs.first_dirty("users", 0) == kept == logs.checkpoints.first_dirty.read()[USERS]
        logs.delete_topic("users")
        assert USERS not in logs.checkpoints.first_dirty.read()


def test_6K_107_a_failed_directory_does_not_touch_the_checkpoints_of_another(tmp_path: Path) -> None:
    """6K.107: A failed directory loses its checkpoints; those of the others stay.

    Here: Each directory has its own checkpoint files, and keeps nothing of them in memory for other
    directories.
    """
    users_logs, orders_logs = filled(tmp_path / "one"), filled(tmp_path / "two", "orders")
    users_logs.set_first_dirty("users", 0, 2)
    orders_logs.set_first_dirty("orders", 0, 3)
    users_logs.log("users", 0).retire(StorageError("gone", errno=5))
    with pytest.raises(StorageError):
        users_logs.set_first_dirty("users", 0, 5)
        users_logs.log("users", 0).append_batch(batch(0, b"a"))
    orders_logs.set_first_dirty("orders", 0, 4)
    assert (orders_logs.first_dirty("orders", 0), users_logs.first_dirty("orders", 0)) == (4, None)
    users_logs.abandon()
    orders_logs.close()


@pytest.mark.parametrize(("offset", "kept"), [(4, 3), (3, 3), (2, 2), (0, 0)])
def test_6K_108_a_truncation_lowers_the_checkpoint(tmp_path: Path, offset: int, kept: int) -> None:
    """6K.108: A truncation lowers the checkpoint only if the checkpoint is above the new log end."""
    with filled(tmp_path) as logs:
        logs.set_first_dirty("users", 0, 3)
        logs.log("users", 0).roll()
        logs.truncate("users", 0, offset)
        first_dirty = logs.first_dirty("users", 0)
        assert first_dirty is not None and first_dirty <= kept and first_dirty <= logs.log("users", 0).log_end


def test_6K_109_moving_a_partition_moves_its_line(tmp_path: Path) -> None:
    """6K.109: Moving a partition to another directory moves its checkpoint line."""
    with filled(tmp_path / "one") as source, home(tmp_path / "two") as target:
        source.set_first_dirty("users", 0, 3)
        move(source, target, "users", 0)
        assert USERS not in source.checkpoints.first_dirty.read()
        assert target.first_dirty("users", 0) == 3


def test_6K_112_113_a_round_moves_the_checkpoint_when_it_is_done(tmp_path: Path) -> None:
    """6K.112: A cleaning can only be finished while it is in progress. Finished, it leaves no state and the
    checkpoint at its end; aborted, it leaves a paused partition and no new checkpoint.
    6K.113: A deletion by retention has the same rules, without a checkpoint.

    Here: The checkpoint moves when a cleaning is done, and only then.
    """
    log = LogBuilder(tmp_path)
    for number in range(6):
        log.put("k", number).roll()
    log.clean()
    assert log.first_dirty == 6
    log.put("k", "new").roll()
    log.clean(stop=lambda: True)
    assert log.first_dirty == 6  # a stopped round does not move the checkpoint
    log.clean()
    assert log.first_dirty == 7 and log.state() == {b"k": b"new"}
    log.close()


def test_a_round_that_fails_leaves_the_checkpoint_alone(tmp_path: Path) -> None:
    """Here: The checkpoint moves when a cleaning is done, and only then."""
    failing: list[bool] = []

    def fail(call: Call) -> LastwordError | None:
        wrong = failing and call.name == "rename" and call.path.endswith(".log")
        return StorageError("no luck", errno=5) if wrong else None

    log = LogBuilder(tmp_path, files=RecordingFiles(UNSYNCED, fail=fail))
    for number in range(6):
        log.put("k", number).roll()
    log.log.sync()
    failing.append(True)
    with pytest.raises(StorageError):
        log.clean()
    assert log.first_dirty is None and log.state() == {b"k": b"5"}
    failing.clear()
    log.clean()
    assert log.first_dirty == 6 and log.state() == {b"k": b"5"}
    log.close()
