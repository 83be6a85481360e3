"""`Monitor`, which `lastword ls --metrics` runs beside a process that writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastword
from lastword import metrics
from lastword.api.monitoring import Monitor
from tests.api.conftest import clock, logs, tree_digest  # noqa: F401

SMALL = {"cleanup_policy": "compact", "segment_bytes": 2000}


@pytest.fixture
def beside(logs, clock):  # noqa: F811
    """The directory of `logs`, opened again as another process opens it: without the lock."""
    with lastword.open(logs.paths[0], clock=clock) as opened:
        yield opened


def garbage(topic: str, partition: int = 0) -> int:
    return metrics.LOG_GARBAGE_BYTES.value(topic, str(partition), "true")


def filled(topic, rounds: int = 20) -> None:
    for number in range(rounds * 4):
        topic.append(b"k%d" % (number % 4), b"." * 100)


def test_a_pass_shows_what_a_process_with_the_lock_shows(logs, beside):  # noqa: F811
    users = logs.create_topic("users", **SMALL)
    events = logs.create_topic("events", cleanup_policy="delete")
    filled(users)
    events.append(b"k", b"v")
    users.lease("slow", position={0: 10})
    before = tree_digest(logs.paths[0])
    done = Monitor(beside.dirs).measure()
    assert tree_digest(logs.paths[0]) == before, "nothing is written"
    assert (done.partitions, done.errors) == (2, {})
    closed = users.segments()[:-1]
    records = sum(segment.records for segment in closed)  # of four keys, each in a batch of its own
    size = sum(segment.size_bytes for segment in closed)
    assert garbage("users") == size * (records - 4) // records > 0
    assert done.read_bytes == sum(segment.size_bytes for segment in closed)
    size = sum(segment.size_bytes for segment in users.segments())
    assert metrics.LOG_LIVE_BYTES.value("users", "0", "true") == size - garbage("users")
    assert metrics.LOG_SIZE_BYTES.value("users", "0") == size
    assert metrics.LOG_END_OFFSET.value("users", "0") == 80
    assert metrics.LEASE_LAG_OFFSETS.value("users", "0") == 70
    assert ("events", "0", "true") not in dict(metrics.LOG_GARBAGE_BYTES.samples())
    root = str(Path(logs.paths[0]).resolve())
    assert metrics.MONITOR_LAST_PASS.value(root) == logs.dirs.clock.now_ms() / 1000


def test_only_what_is_new_is_read(logs, beside):  # noqa: F811
    users = logs.create_topic("users", **SMALL)
    filled(users)
    monitor = Monitor(beside.dirs)
    assert monitor.measure().read_bytes > 0 and monitor.measure().read_bytes == 0
    known = {segment.base_offset for segment in users.segments()[:-1]}
    filled(users, 5)
    new = [segment for segment in users.segments()[:-1] if segment.base_offset not in known]
    assert new and monitor.measure().read_bytes == sum(segment.size_bytes for segment in new)
    logs.clean("users")
    done = monitor.measure()
    assert done.errors == {} and garbage("users") == 0
    assert monitor.measure().read_bytes == 0


def test_an_active_segment_that_a_cleaning_would_close_is_not_read_again_and_again(logs, beside, clock):  # noqa: F811
    users = logs.create_topic("users", **SMALL, segment_ms="1h")
    filled(users)
    monitor = Monitor(beside.dirs)
    monitor.measure()
    clock.advance(3600 * 1000 * 2)
    assert monitor.measure().read_bytes == 0


def test_a_broken_partition_and_a_gone_topic_lose_their_figures_and_end_nothing(logs, beside):  # noqa: F811
    users, old = logs.create_topic("users", 2, **SMALL), logs.create_topic("old", **SMALL)
    for partition in (0, 1):
        for number in range(80):
            users.append(b"k%d" % (number % 4), b"." * 100, partition=partition)
    filled(old)
    monitor = Monitor(beside.dirs)
    assert monitor.measure().partitions == 3
    root = str(Path(logs.paths[0]).resolve())
    errors = metrics.MONITOR_ERRORS.value(root)
    logs.delete_topic("old")
    first = sorted(Path(logs.paths[0], "users-1").glob("*.log"))[0]
    first.write_bytes(first.read_bytes()[:-1])
    done = monitor.measure()
    assert done.partitions == 1 and list(done.errors) == ["users-1"]
    assert metrics.MONITOR_FAILED.value(root) == 1 and metrics.MONITOR_ERRORS.value(root) == errors + 1
    assert metrics.LOG_SIZE_BYTES.value("users", "1") == 0 < metrics.LOG_SIZE_BYTES.value("users", "0")


def test_topics_that_are_created_later_are_measured_and_a_stop_ends_a_pass(logs, beside):  # noqa: F811
    monitor = Monitor(beside.dirs)
    assert monitor.measure().partitions == 0
    filled(logs.create_topic("users", **SMALL))
    assert monitor.measure(lambda: True).partitions == 0
    assert monitor.measure().partitions == 1
    one = Monitor(beside.dirs, ["users"])
    logs.create_topic("other", **SMALL)
    assert (one.measure().partitions, monitor.measure().partitions) == (1, 2)


def test_the_memory_is_bounded(tmp_path, clock):  # noqa: F811
    """Indexes that do not fit are dropped; the figures of a partition without new segments stay."""
    with lastword.open(tmp_path / "d", "a", clock=clock) as logs:  # noqa: F811
        for name in "abc":
            many = ((b"%d" % number, b"." * 20) for number in range(3000))
            logs.create_topic(name, cleanup_policy="compact", segment_bytes=20_000).extend(many)
    with lastword.open(tmp_path / "d", clock=clock, log_cleaner_dedupe_buffer_size="100KiB") as beside:
        monitor = Monitor(beside.dirs)
        assert monitor.measure().read_bytes > 0 and monitor.measure().read_bytes == 0
        (ledgers,) = monitor._ledgers.values()
        assert 0 < ledgers.memory_bytes <= 100 << 10, "one of the three"
