"""Leases in the public API: in both modes, over all partitions, lapsing by the clock."""

import pytest

import lastword
from lastword import metrics
from lastword.errors import LeaseRefusedError, OffsetOutOfRangeError, UsageError

DAY = 86_400_000


def test_a_lease_is_taken_advanced_and_released(logs):
    topic = logs.create_topic("users", cleanup_policy="compact")
    for n in range(5):
        topic.append(b"k%d" % n, b"v")
    lease = topic.lease("replica-2")
    assert (lease.name, lease.topic, lease.position) == ("replica-2", "users", 0)
    lease.advance(3)
    assert lease.position == 3
    (info,) = topic.leases()
    assert (info.position, info.lag_offsets, info.lapsed) == (3, 2, False)
    assert str(info).startswith("users-0: replica-2 at 3, 2 behind, lapses 2026-11-27 10:00:00Z")
    lease.release()
    lease.release()
    assert topic.leases() == []
    with pytest.raises(LeaseRefusedError):
        lease.position  # noqa: B018
    with pytest.raises(LeaseRefusedError):
        lease.advance(4)


def test_it_covers_all_partitions_and_takes_a_readers_position(logs):
    topic = logs.create_topic("many", partitions=3, cleanup_policy="compact")
    for n in range(30):
        topic.append(b"k%d" % n, b"v")
    lease = topic.lease("r")
    assert lease.position == {0: 0, 1: 0, 2: 0}
    reader = topic.read()
    for _ in reader:
        pass
    lease.advance(reader.position)
    assert lease.position == reader.position
    lease.advance({1: 2})
    assert lease.position == reader.position | {1: 2}
    assert [info.partition for info in topic.leases()] == [0, 1, 2]
    with pytest.raises(UsageError):
        lease.advance({7: 1})


def test_refused_in_one_partition_it_is_taken_in_none(logs):
    topic = logs.create_topic("many", partitions=2, cleanup_policy="compact")
    topic.append(b"a", b"1", partition=0)
    with pytest.raises(OffsetOutOfRangeError):
        topic.lease("r", position=1)
    assert topic.leases() == []


def test_bad_names_and_ages_are_refused(logs):
    topic = logs.create_topic("users", cleanup_policy="compact")
    with pytest.raises(UsageError):
        topic.lease("../up")
    with pytest.raises(UsageError, match="max_age is"):
        topic.lease("r", max_age=1 << 63)
    assert topic.leases() == []
    forever = topic.lease("r", max_age=((1 << 63) - 1) // 1000)
    assert forever.position == topic.leases()[0].position and not topic.leases()[0].lapsed
    forever.release()


def test_a_lease_moves_with_its_partition(tmp_path, clock):
    paths = [tmp_path / "d1", tmp_path / "d2"]
    with lastword.open(paths, "a", clock=clock) as logs:
        topic = logs.create_topic("users", cleanup_policy="compact")
        topic.append(b"a", b"1")
        lease = topic.lease("r", position=1)
        home = logs.dirs.log_dir("users", 0).path
        logs.move("users", 0, next(path for path in paths if str(path) != home))
        assert lease.position == 1
        lease.advance(1)


def test_the_metric_shows_the_live_lease_that_is_furthest_behind(logs, clock):
    topic = logs.create_topic("lagging", cleanup_policy="compact")
    for n in range(10):
        topic.append(b"k%d" % n, b"v")
    topic.lease("slow", position=2, max_age="1d")
    topic.lease("quick", position=9)

    def shown():
        list(metrics.metrics())
        return dict(metrics.LEASE_LAG_OFFSETS.samples()).get(("lagging", "0"))

    assert shown() == 8
    clock.advance(DAY + 1)
    assert [info.lapsed for info in topic.leases()] == [False, True]
    assert shown() == 1
    topic.lease("quick").release()
    assert shown() is None


def test_the_position_of_a_lease_is_deleted_with_its_topic(logs):
    """A reader that keeps its position there skips no record of a new topic of the same name."""
    lease = logs.create_topic("t").lease("reader")
    logs["t"].extend([(b"k", b"v")] * 10)
    lease.advance(7)
    logs.delete_topic("t")
    logs.create_topic("t").extend([(b"k", b"v")] * 20)
    with pytest.raises(LeaseRefusedError):
        lease.position  # noqa: B018
    assert logs["t"].lease("reader").position == 0
