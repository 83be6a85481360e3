"""`lastword.pull` from our own server: whole copies, what is new, gaps, refusals, positions, kills."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

import lastword
from lastword.api.open_dirs import OpenDirs
from lastword.errors import (
    ClusterDiffersError,
    DivergedLogError,
    InconsistentTopicIdError,
    PartialFailure,
    ReadOnlyError,
    UnknownTopicError,
    UsageError,
)
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import PartitionLog
from lastword.protocol import decode_stored
from lastword.pulling import PullResult, leader, pulls
from lastword.pulling.cluster import BrokerConnection
from lastword.pulling.positions import ClusterPositions, Key, Position, SavedPositions
from lastword.records.batch import BatchBuilder
from lastword.server import Server
from lastword.testing.interceptor import Interceptor
from tests.server.client import Client
from tests.support.waiting import until
from tests.transactions import end_transaction


def pull(cluster: Server, topics: Any, to: Path, **options: Any) -> dict[tuple[str, int], PullResult]:
    results = lastword.pull(cluster.bootstrap_servers, topics, to, **options)
    return {(result.topic, result.partition): result for result in results}


def bytes_of(log: Any) -> bytes:
    return b"".join(Path(segment.file).read_bytes()[: segment.size] for segment in log.segments)


def same(source: lastword.LogDir, to: Path, topic: str) -> None:
    """Check that every partition of a copy has the bytes, epochs and offsets of the source."""
    with lastword.open(to, "a", log_cleaner_enable=False) as copy:
        assert sorted(copy.dirs.partitions(topic)) == sorted(source.dirs.partitions(topic))
        assert copy.dirs.topic_id(topic) == source.dirs.topic_id(topic)
        for number in source.dirs.partitions(topic):
            theirs, ours = source.dirs.log(topic, number), copy.dirs.log(topic, number)
            assert bytes_of(ours) == bytes_of(theirs)
            assert (ours.log_start, ours.log_end) == (theirs.log_start, theirs.log_end)
            assert ours.stable_offset == theirs.stable_offset
            assert [e.epoch for e in ours.epochs.entries] == [e.epoch for e in theirs.epochs.entries]
        assert copy.verify(topic).ok


def fill(source: lastword.LogDir, count: int, topic: str = "users", partitions: int = 2) -> None:
    if topic not in source:
        source.create_topic(topic, partitions, cleanup_policy="compact")
    for number in range(count):
        source[topic].append(b"k%d" % (number % 7), b"value %d" % number, partition=number % partitions)


def test_a_copy_is_the_source(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    topic = source.create_topic(
        "users", 3, cleanup_policy="compact", segment_bytes="10KiB", compression_type="zstd", retention_ms=-1
    )
    for number in range(300):
        topic.append(b"k%d" % (number % 50), b"value %d" % number, headers={"h": b"1"}, partition=number % 3)
    results = pull(cluster, ["users"], copy)
    assert [str(result) for result in results.values()] == [str(results["users", n]) for n in range(3)]
    assert results["users", 1].first_offset == 0
    assert results["users", 1].next_offset == results["users", 1].remote_end == 100
    assert results["users", 1].records == 100
    assert results["users", 1].reason is None
    same(source, copy, "users")
    with lastword.open(copy) as logs:
        config = logs["users"].config
        assert (config.segment_bytes, config.compression_type) == (10240, "zstd")
        assert config.lastword_pulled_from == cluster.context.cluster_id


def test_a_second_pull_copies_what_is_new(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 20)
    pull(cluster, "users", copy)
    assert pull(cluster, "users", copy)["users", 0].batches == 0
    fill(source, 6)
    source["users"].set_config(segment_ms="1h", lastword_strategy="kafka")
    result = pull(cluster, "users", copy)["users", 1]
    assert (result.first_offset, result.next_offset, result.batches) == (10, 13, 3)
    same(source, copy, "users")
    with lastword.open(copy) as logs:
        assert logs["users"].config.segment_ms == 3_600_000
    source["users"].set_config(segment_ms=None)
    with lastword.open(copy, "a") as logs:
        logs["users"].set_config(lastword_strategy="kafka")
    pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        assert logs["users"].config.source("segment.ms") == "default"
        assert logs["users"].config.lastword_strategy == "kafka"


def test_a_pull_of_many_topics_asks_once_and_syncs_only_new_records(
    source: lastword.LogDir, cluster: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, syncs = [], []
    ask, sync = BrokerConnection.ask, OpenDirs.sync
    monkeypatch.setattr(
        BrokerConnection,
        "ask",
        lambda self, body, **given: asked.append(type(body).__name__) or ask(self, body, **given),
    )
    monkeypatch.setattr(OpenDirs, "sync", lambda dirs: syncs.append(dirs) or sync(dirs))
    monkeypatch.setattr(pulls, "TOPICS_AT_ONCE", 3)
    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        fill(source, 4, topic)
    pull(cluster, topics, copy)
    assert (asked.count("DescribeConfigsRequest"), len(syncs)) == (2, 1)
    pull(cluster, topics, copy)
    assert (asked.count("DescribeConfigsRequest"), len(syncs)) == (4, 1)
    fill(source, 1, "t3")
    pull(cluster, topics, copy)
    assert len(syncs) == 2
    for topic in topics:
        same(source, copy, topic)


def test_gaps_of_a_cleaned_log(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 200)
    source.clean("users")
    pull(cluster, None, copy)
    same(source, copy, "users")
    fill(source, 100)
    source.clean("users")
    fill(source, 3)
    pull(cluster, None, copy)
    same_newest(source, copy)


def test_a_batch_that_a_cleaning_joined_over_the_end_of_the_copy(
    source: lastword.LogDir, cluster: Server, copy: Path
) -> None:
    users = source.create_topic("users", cleanup_policy="compact")
    users.append(b"a", b"1")
    users.append(b"b", b"2", headers={"h": b"1"})
    pull(cluster, "users", copy)
    users.extend([(b"a", b"3"), (b"c", b"4"), (b"d", b"5")])
    users.append(b"c", b"6")
    source.clean("users")
    users.append(b"e", b"7")
    log = source.dirs.log("users", 0)
    assert (1, 5) in [(h.base_offset, h.last_offset) for s in log.segments for h in s.headers()]
    result = pull(cluster, "users", copy)["users", 0]
    assert (result.first_offset, result.next_offset, result.reason) == (2, 7, None)
    same_newest(source, copy)
    assert pull(cluster, "users", copy)["users", 0].batches == 0


@pytest.mark.slow
def test_a_copy_of_a_log_that_is_cleaned_between_pulls(
    source: lastword.LogDir, cluster: Server, copy: Path
) -> None:
    """Random changes, cleanings and pulls: each pull ends with the newest values of the source."""
    chance = random.Random(0)
    codecs = ["uncompressed", "zstd", "lz4"]
    users = source.create_topic("users", cleanup_policy="compact", segment_bytes="1KiB")
    crossed = 0
    for _ in range(40):
        for _ in range(chance.randrange(5)):
            count = chance.randrange(1, 6)
            values = [b"v%d" % chance.randrange(99) if chance.random() < 0.8 else None for _ in range(count)]
            users.extend([(b"k%d" % chance.randrange(60), value) for value in values])
        if chance.random() < 0.3:
            users.set_config(compression_type=chance.choice(codecs))
        if chance.random() < 0.6:
            source.dirs.log("users", 0).roll()
            source.clean("users")
        if chance.random() < 0.5:
            end = pull(cluster, "users", copy)["users", 0].first_offset
            headers = [h for s in source.dirs.log("users", 0).segments for h in s.headers()]
            crossed += any(header.base_offset < end <= header.last_offset for header in headers)
            same_newest(source, copy)
    assert crossed > 3


def same_newest(source: lastword.LogDir, copy: Path) -> None:
    """Check that a copy, which may have been cleaned otherwise, has the newest records of the source."""

    def newest(logs: lastword.LogDir) -> list[Any]:
        records = logs["users"].read(view="newest")
        return [(r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]

    with lastword.open(copy) as logs:
        assert newest(logs) == newest(source)
        assert logs.verify().ok


def test_the_end_behind_the_last_batch(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    """A cleaned log may end behind its last batch; a position of a group may be there."""
    fill(source, 1, partitions=1)
    log = source.dirs.log("users", 0)
    log.skip_to(1000)
    assert pull(cluster, "users", copy)["users", 0].next_offset == 1000
    same(source, copy, "users")
    log.skip_to(2000)
    fill(source, 2, partitions=1)
    assert pull(cluster, "users", copy)["users", 0].records == 2
    same(source, copy, "users")


def test_a_gap_of_more_than_an_index_can_hold(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 1, partitions=1)
    source.dirs.log("users", 0).skip_to(1 << 33)
    fill(source, 3, partitions=1)
    pull(cluster, "users", copy)
    same(source, copy, "users")


def test_transactions_are_as_in_the_source(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    source.create_topic("users")
    log = source.dirs.log("users", 0)
    sequence = 0
    for commit in (True, False, None):
        builder = BatchBuilder(producer_id=5, producer_epoch=0, base_sequence=sequence, transactional=True)
        for number in range(3):
            builder.append(1_700_000_000_000, b"k%d" % number, b"%s" % str(commit).encode())
        log.append_batch(builder.build())
        sequence += 3
        if commit is not None:
            end_transaction(log, 5, 0, commit)
    pull(cluster, "users", copy)
    same(source, copy, "users")
    with lastword.open(copy) as logs:
        assert [record.value for record in logs["users"].read()] == [b"True"] * 3
        assert len(list(logs["users"].read(isolation="read_uncommitted"))) == 9
    end_transaction(log, 5, 0, True)
    pull(cluster, "users", copy)
    same(source, copy, "users")


@pytest.mark.parametrize("before", [0, 4, 10])
def test_records_that_were_deleted(source: lastword.LogDir, cluster: Server, copy: Path, before: int) -> None:
    """`before`: records that are pulled before the deletion up to 7."""
    source.create_topic("users", cleanup_policy="delete")
    records = [(b"k", b"%d" % n) for n in range(10)]
    for record in records[:before]:
        source["users"].append(*record)
    pull(cluster, "users", copy)
    source["users"].extend(records[before:])  # one batch, in the middle of which the log starts
    source["users"].trim(7)
    result = pull(cluster, "users", copy)["users", 0]
    assert result.gone_offsets == {0: 0, 4: 3, 10: 0}[before]
    assert (result.log_start, result.next_offset) == (7, 10)
    with lastword.open(copy) as logs:
        assert [record.value for record in logs["users"].read()] == [b"7", b"8", b"9"]
        assert logs.verify().ok
    source["users"].trim(10)
    assert pull(cluster, "users", copy)["users", 0].log_start == 10
    source["users"].append(b"k", b"new")
    pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        assert [(record.offset, record.value) for record in logs["users"].read()] == [(10, b"new")]


def test_an_empty_log_that_starts_late(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    source.create_topic("users", cleanup_policy="delete")
    source["users"].extend([(b"k", b"v")] * 5)
    source["users"].trim(5)
    result = pull(cluster, "users", copy)["users", 0]
    assert (result.log_start, result.next_offset, result.records) == (5, 5, 0)
    source["users"].append(b"k", b"v")
    assert pull(cluster, "users", copy)["users", 0].records == 1


def test_a_copy_that_was_cleaned_is_continued(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 100)
    pull(cluster, "users", copy)
    with lastword.open(copy, "a") as logs:
        logs.clean("users")
        with pytest.raises(ReadOnlyError, match="only pull appends"):
            logs["users"].append(b"k", b"v")
    fill(source, 10)
    pull(cluster, "users", copy)
    same_newest(source, copy)


def test_an_audit_against_a_new_copy_finds_keys_that_were_deleted_and_forgotten(
    source: lastword.LogDir, cluster: Server, copy: Path, tmp_path: Path
) -> None:
    """As docs/server.md says: no later pull of the old copy has the tombstone."""
    users = source.create_topic("users", cleanup_policy="compact", delete_retention_ms=0)
    users.extend([(b"ada", b"1"), (b"bob", b"1")])
    pull(cluster, "users", copy)
    users.delete(b"ada")
    for _ in range(2):
        users.append(b"bob", b"2")
        source.dirs.log("users", 0).roll()
        source.clean("users")
    for to in (copy, tmp_path / "new"):
        pull(cluster, "users", to)
    with lastword.open(copy) as old, lastword.open(tmp_path / "new") as new:
        assert [record.key for record in old["users"].newest()] == [b"ada", b"bob"]
        assert [record.key for record in new["users"].newest()] == [b"bob"]
        report = new.audit("users", delivered=old)
        assert [(row.kind, row.key) for row in report.rows] == [("phantom", b"ada")]


def test_more_partitions(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 4)
    pull(cluster, "users", copy)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    request = confluent_kafka.admin.NewPartitions("users", 4)
    admin.create_partitions([request])["users"].result(10)
    source["users"].append(b"k", b"v", partition=3)
    assert pull(cluster, "users", copy)["users", 3].records == 1


def test_what_the_records_mean_comes_along(
    source: lastword.LogDir, cluster: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = source.create_topic(
        "users", key_serializer="str", value_serializer="json", partitioner="crc32", lastword_ack="disk"
    )
    users.append("ada", {"n": 1})
    pull(cluster, "users", copy)
    with lastword.open(copy, "a", log_cleaner_enable=False) as logs:
        assert [(record.key, record.value) for record in logs["users"].read()] == [("ada", {"n": 1})]
        config = logs["users"].config
        assert (config.lastword_partitioner, config.source("lastword.ttl.ms")) == ("crc32", "default")
        assert config.source("lastword.ack") == "default"  # how this process writes the copy
        logs["users"].set_config(lastword_ack="disk", lastword_ttl_ms="1h")
    users.set_config(lastword_ttl_ms="1d")
    pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        config = logs["users"].config
        assert (config.lastword_ttl_ms, config.lastword_ack) == (86_400_000, "disk")
    users.set_config(lastword_ttl_ms=None)
    pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        assert logs["users"].config.lastword_ttl_ms == -1
    monkeypatch.setattr("lastword.server.configs.MEANING", ())  # as a Kafka broker
    pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        assert logs["users"].config.lastword_value_serializer == "json"


# ---------------------------------------------------------------- refusals


def test_unknown_topics(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 1)
    with pytest.raises(UnknownTopicError, match=r"no topic 'user' in .*; nearest: 'users'"):
        pull(cluster, ["user"], copy)
    with pytest.raises(UsageError, match="internal topics are not copied"):
        pull(cluster, ["__consumer_offsets"], copy)
    with pytest.raises(UsageError, match="writes to a directory"):
        pull(cluster, ["users"], "s3://bucket/log")  # type: ignore[arg-type]
    assert not copy.exists()
    assert "user" not in source


def test_two_clusters(source: lastword.LogDir, cluster: Server, copy: Path, tmp_path: Path) -> None:
    fill(source, 1)
    pull(cluster, "users", copy)
    with lastword.open(tmp_path / "other", "a") as other, lastword.serve(other, "127.0.0.1:0") as second:
        other.create_topic("events")
        for dry_run in (True, False):
            with pytest.raises(ClusterDiffersError, match="is a copy from the cluster"):
                pull(second, "events", copy, dry_run=dry_run)


def test_a_topic_that_was_created_again(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 2)
    fill(source, 2, "events")
    pull(cluster, None, copy)
    source.delete_topic("users")
    fill(source, 2)
    fill(source, 2, "events")
    with pytest.raises(InconsistentTopicIdError, match="deleted and created again") as raised:
        pull(cluster, None, copy)
    assert isinstance(raised.value, PartialFailure)
    assert [result.topic for result in raised.value.results] == ["events", "events"]
    assert sum(result.records for result in raised.value.results) == 2


def test_a_topic_of_ones_own(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 2)
    topic_id = source.dirs.topic_id("users")
    pull(cluster, "users", copy)
    with lastword.open(copy, "a") as logs:
        logs["users"].set_config(lastword_pulled_from=None)
        logs["users"].append(b"mine", b"1")
    with pytest.raises(UsageError, match="is no copy"):
        pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        assert logs.dirs.topic_id("users") == topic_id


def test_a_log_that_lost_records(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 10, partitions=1)
    pull(cluster, "users", copy)
    source.dirs.log("users", 0).truncate_to(8)
    with pytest.raises(DivergedLogError, match="the log of the cluster ends at 8"):
        pull(cluster, "users", copy)


def test_a_log_with_a_newer_epoch(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 10, partitions=1)
    pull(cluster, "users", copy)
    log = source.dirs.log("users", 0)
    log.truncate_to(8)
    log.epochs.assign(3, 8)
    fill(source, 10, partitions=1)
    with pytest.raises(DivergedLogError, match="the leader epoch 0 ends at 8"):
        pull(cluster, "users", copy)


def test_another_record_at_the_same_offset(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 10, partitions=1)
    pull(cluster, "users", copy)
    source.dirs.log("users", 0).truncate_to(8)
    source["users"].append(b"other", b"record")
    source["users"].append(b"other", b"record")
    for more in (0, 5):
        fill(source, more, partitions=1)
        with pytest.raises(DivergedLogError, match="another record at 9"):
            pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        assert len(list(logs["users"].read())) == 10


# ---------------------------------------------------------------- dry run, stop, follow


def test_paths_below_the_home_directory(
    source: lastword.LogDir, cluster: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run finds the copy there, too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "client.properties").write_text("client.id=p\n")
    fill(source, 10)
    for dry_run in (False, True):
        options = {"dry_run": dry_run, "client_config": "~/client.properties"}
        results = pull(cluster, "users", Path("~/copy"), **options)
        assert [result.next_offset for result in results.values()] == [5, 5]
    with pytest.raises(UsageError, match="to=None is not a path"):
        lastword.pull(cluster.bootstrap_servers, "users", None)  # type: ignore[arg-type]


def test_a_dry_run_changes_nothing(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 10)
    results = pull(cluster, "users", copy, dry_run=True)
    assert [(r.next_offset, r.remote_end, r.records) for r in results.values()] == [(0, 5, 0)] * 2
    assert not copy.exists()
    pull(cluster, "users", copy)
    fill(source, 4)
    before = sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*"))
    results = pull(cluster, "users", copy, dry_run=True)
    assert [(r.next_offset, r.remote_end, r.reason) for r in results.values()] == [(5, 7, None)] * 2
    assert sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*")) == before


def test_a_stopped_pull_goes_on(
    source: lastword.LogDir, cluster: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, 100, partitions=1)
    monkeypatch.setattr(leader, "PARTITION_BYTES", 500)
    appends: list[int] = []
    append = PartitionLog.append_copies

    def counted(log: PartitionLog, data: Any) -> Any:
        appends.append(len(data))
        return append(log, data)

    monkeypatch.setattr(PartitionLog, "append_copies", counted)
    result = pull(cluster, "users", copy, stop=lambda: len(appends) >= 3)["users", 0]
    assert 0 < result.next_offset < 100
    assert result.reason == "not complete"
    assert pull(cluster, "users", copy)["users", 0].first_offset == result.next_offset
    same(source, copy, "users")
    assert max(appends) < 1000


@pytest.fixture
def following(cluster: Server, copy: Path) -> Iterator[Callable[[], list[PullResult]]]:
    """Follow topic users in a thread; the function stops it and returns the results."""
    stopped = threading.Event()
    results: list[PullResult] = []

    def run() -> None:
        results.extend(
            lastword.pull(cluster.bootstrap_servers, "users", copy, follow=True, stop=stopped.is_set)
        )

    thread = threading.Thread(target=run)

    def end() -> list[PullResult]:
        stopped.set()
        thread.join()
        return results

    thread.start()
    yield end
    end()


def log_end(copy: Path, topic: str, partition: int) -> int:
    try:
        with lastword.open(copy) as logs:
            return logs.dirs.view(topic, partition).log_end
    except lastword.errors.LastwordError:
        return -1


def test_following(
    source: lastword.LogDir, cluster: Server, copy: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    monkeypatch.setattr(leader, "WAIT_MS", 50)
    monkeypatch.setattr(pulls, "POSITIONS_SECONDS", 0.1)
    fill(source, 10)
    end = request.getfixturevalue("following")
    for round_ in range(3):
        until(lambda count=5 + 3 * round_: log_end(copy, "users", 1) == count)  # type: ignore[misc]
        fill(source, 6)
    commit(cluster, "readers", "users", {0: 4})
    until(lambda: positions(copy).get(("readers", "users", 0)) == 4)
    commit(cluster, "readers", "users", {0: 9})
    until(lambda: positions(copy).get(("readers", "users", 0)) == 9)
    assert [result.next_offset for result in end()] == [14, 14]
    assert positions(copy) == {("readers", "users", 0): 9}
    same(source, copy, "users")


def test_a_position_waits_until_its_records_are_synced(
    source: lastword.LogDir, cluster: Server, copy: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    """Records that are pulled during the sync before positions are saved count for the next time."""
    monkeypatch.setattr(leader, "WAIT_MS", 50)
    monkeypatch.setattr(pulls, "POSITIONS_SECONDS", 0.1)
    fill(source, 10)
    commit(cluster, "readers", "users", {0: 9})
    sync, save, saved, late = OpenDirs.sync, SavedPositions.save, [], []

    def slow_sync(dirs: OpenDirs) -> None:
        sync(dirs)
        if len(saved) == 1:  # the records below the position follow now
            fill(source, 10)
            log = dirs.log("users", 0)
            until(lambda: log.log_end == 11)

    def checked_save(self: SavedPositions, positions: Any, topics: Any, ends: Any, shape: Any) -> Any:
        saved.append(dict(ends))
        if len(saved) == 1:
            fill(source, 2)
            until(lambda: self._dirs.log("users", 1).log_end == 6)  # the next sync is not empty
        late.extend(tp for tp, end in ends.items() if self._dirs.log(*tp).synced_to < end)
        return save(self, positions, topics, ends, shape)

    monkeypatch.setattr(OpenDirs, "sync", slow_sync)
    monkeypatch.setattr(SavedPositions, "save", checked_save)
    end = request.getfixturevalue("following")
    until(lambda: positions(copy).get(("readers", "users", 0)) == 9)
    end()
    assert len(saved) > 1 and not late


# ---------------------------------------------------------------- positions of groups


def commit(cluster: Server, group: str, topic: str, offsets: dict[int, int]) -> None:
    with Client(cluster) as client:
        for number, offset in offsets.items():
            assert client.commit(offset, group, topic=topic, partition=number, text=f"text {offset}") == 0


def positions(copy: Path) -> dict[tuple[str, str, int], int]:
    try:
        with lastword.open(copy) as logs:
            values = {record.key: record.value for record in logs["__consumer_offsets"].read()}
    except lastword.errors.LastwordError:
        return {}
    found = {}
    for key, value in values.items():
        if key[:2] == b"\0\1" and value is not None:
            of = decode_stored("OffsetCommitKey", key)
            found[of.group, of.topic, of.partition] = decode_stored("OffsetCommitValue", value).offset
    return found


def test_positions_of_groups(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 20)
    fill(source, 4, "events")
    commit(cluster, "readers", "users", {0: 3, 1: 7})
    commit(cluster, "readers", "events", {0: 1})
    commit(cluster, "others", "users", {1: 10})
    results = pull(cluster, "users", copy)
    assert [results["users", n].positions for n in range(2)] == [1, 2]
    expected = {("readers", "users", 0): 3, ("readers", "users", 1): 7, ("others", "users", 1): 10}
    assert positions(copy) == expected
    with lastword.open(copy) as logs:
        end = logs.dirs.view("__consumer_offsets", 0).log_end
        assert logs.dirs.topic_id("__consumer_offsets") == source.dirs.topic_id("__consumer_offsets")
    pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        assert logs.dirs.view("__consumer_offsets", 0).log_end == end, "nothing has changed"
    commit(cluster, "readers", "users", {0: 9})
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_consumer_groups(["others"])["others"].result(10)
    pull(cluster, None, copy)
    del expected["others", "users", 1]
    assert positions(copy) == expected | {("readers", "users", 0): 9, ("readers", "events", 0): 1}


def test_a_position_waits_for_its_records(source: lastword.LogDir, copy: Path) -> None:
    fill(source, 4)
    lower, upper = (Key("readers", "users", number) for number in range(2))
    in_cluster = ClusterPositions({lower: Position(2, -1, ""), upper: Position(9, 0, "text")}, {"readers"})
    with lastword.open(copy, "a", log_cleaner_enable=False) as logs:
        saved = SavedPositions(logs.dirs)
        for end, expected in ((8, {lower: 2}), (9, {lower: 2, upper: 9})):
            ends = {TopicPartition("users", 0): 2, TopicPartition("users", 1): end}
            counts = saved.save(in_cluster, ["users"], ends, lambda: (3, None))
            assert counts == {TopicPartition(key.topic, key.partition): 1 for key in expected}
    assert positions(copy) == {tuple(key): offset for key, offset in expected.items()}


def test_a_served_copy_continues_the_groups(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 20)
    commit(cluster, "readers", "users", {0: 3, 1: 7})
    pull(cluster, "users", copy)
    with lastword.serve(copy, "127.0.0.1:0") as served:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": served.bootstrap_servers, "group.id": "readers"}
        )
        wanted = [confluent_kafka.TopicPartition("users", number) for number in range(2)]
        known = consumer.committed(wanted, timeout=10)
        assert [(p.partition, p.offset, p.metadata) for p in known] == [(0, 3, "text 3"), (1, 7, "text 7")]
        consumer.commit(offsets=[confluent_kafka.TopicPartition("users", 0, 5)], asynchronous=False)
        consumer.close()
        producer = confluent_kafka.Producer({"bootstrap.servers": served.bootstrap_servers})
        failed: list[Any] = []
        producer.produce("users", b"v", b"k", on_delivery=lambda error, message: failed.append(error))
        producer.flush(10)
        assert failed[0].code() == confluent_kafka.KafkaError.POLICY_VIOLATION


@pytest.mark.parametrize(
    "error", ["COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "GROUP_AUTHORIZATION_FAILED", None]
)
def test_a_group_that_no_broker_lists_keeps_its_positions(
    source: lastword.LogDir, cluster: Server, copy: Path, error: str | None
) -> None:
    """A broker lists the groups that it coordinates: not those of one that is down, or that moves."""
    fill(source, 20)
    commit(cluster, "readers", "users", {0: 3, 1: 7})
    pull(cluster, "users", copy)
    expected = positions(copy)
    assert len(expected) == 2
    interceptor = Interceptor()
    interceptor.attach(cluster)
    handle = cluster.handle

    def without_groups(request: Any, connection: Any) -> Any:
        answer = handle(request, connection)
        if request.api.name == "ListGroups":
            answer.groups.clear()
        return answer

    cluster.handle = without_groups  # type: ignore[method-assign]
    if error is not None:
        interceptor.fail("OffsetFetch", error, None, None)
    pull(cluster, "users", copy)
    assert positions(copy) == expected


def test_without_groups(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 20)
    commit(cluster, "readers", "users", {0: 3})
    pull(cluster, "users", copy, groups=False)
    with lastword.open(copy) as logs:
        assert list(logs) == ["users"]


# ---------------------------------------------------------------- kills


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_each_append(
    source: lastword.LogDir, cluster: Server, copy: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Each process is killed before or after its second append; at last the copy is whole."""
    fill(source, 40)
    commit(cluster, "readers", "users", {0: 3})
    monkeypatch.setattr(leader, "PARTITION_BYTES", 400)
    append = PartitionLog.append_copies
    appends: list[int] = []

    def killed(log: PartitionLog, data: Any) -> Any:
        appends.append(len(data))
        if len(appends) == 2 and not after:
            os._exit(9)
        result = append(log, data)
        if len(appends) == 2:
            os._exit(9)
        return result

    processes = 0
    while True:
        child = os.fork()
        if not child:
            monkeypatch.setattr(PartitionLog, "append_copies", killed)
            try:
                pull(cluster, "users", copy)
            finally:
                os._exit(0)
        processes += 1
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
    assert processes > 5
    assert pull(cluster, "users", copy)["users", 0].batches == 0
    same(source, copy, "users")
    assert positions(copy) == {("readers", "users", 0): 3}


@pytest.mark.parametrize(
    ("remote_end", "shown"), [(9, "0 to 3 of 9 (not complete)"), (-1, "0 to 3 (not complete)")]
)
def test_a_result_shows_the_end_in_the_cluster_if_it_is_known(remote_end: int, shown: str) -> None:
    result = PullResult("users", 0, 0, 0, 3, remote_end, 1, 3, 100, reason="not complete")
    assert str(result).endswith(shown)


def test_an_empty_policy_is_copied(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    """Under a default of the copy's directory that would remove records."""
    for name in ("users", "events"):
        source.create_topic(name, cleanup_policy="none", segment_bytes="1KiB")
        for number in range(40):
            source[name].append(b"k", b"%d" % number * 50, timestamp=1)
    with lastword.open(copy, "a", log_cleaner_enable=False) as logs:
        logs.set_config(None, cleanup_policy="compact,delete", retention_ms=1)
    pull(cluster, ["users", "events"], copy)
    with lastword.open(copy, "a", log_cleaner_enable=False) as logs:
        assert logs["users"].config.cleanup_policy == frozenset()
        assert logs.clean() == logs.expire() == []
        assert len(list(logs["users"].read())) == 40


def test_a_value_that_cannot_be_read_removes_nothing_from_the_copy(
    source: lastword.LogDir, cluster: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer Kafka may have a policy, or a limit, that is not known here."""
    fill(source, 4)
    source["users"].set_config(cleanup_policy="compact", retention_ms=7000)
    monkeypatch.setattr("lastword.server.configs.shown", lambda value: "7 s" if value == 7000 else str(value))
    pull(cluster, "users", copy)
    with lastword.open(copy) as logs:
        assert logs["users"].config.cleanup_policy == frozenset()
