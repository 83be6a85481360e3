"""The broker for tests of other programs: faults, delays, lost connections, the clock, requests, reset."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import TopicExistsError, UnknownTopicError, UsageError
from lastword.protocol import codes
from lastword.protocol.messages import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    MetadataRequest,
)
from lastword.testing import Broker
from lastword.testing import interceptor as intercepted
from tests.server.client import Client, batch, fetch_request, metadata
from tests.server.test_groups import Consumer
from tests.support.waiting import until

NOT_LEADER = codes.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def client(kafka_broker: Broker) -> Any:
    with Client(kafka_broker.server) as client:
        yield client


# -------------------------------------------------------------- the log


def test_python_and_a_client_work_on_one_log(kafka_broker: Broker, client: Client) -> None:
    with pytest.raises(UnknownTopicError):
        kafka_broker.topic("users")
    kafka_broker.create_topic("users", 2, key_serializer="str", value_serializer="json")
    assert client.produce("users", batch((b"ada", b"1")), partition=1).error_code == 0
    topic = kafka_broker.topic("users")
    assert topic.partitions == 2 and topic.config.cleanup_policy == {"delete"}
    assert [(r.key, r.value, r.partition) for r in topic.read()] == [("ada", 1, 1)]
    topic.append("bob", 2, partition=0)
    assert client.fetch("users", 0, partition=0).high_watermark == 1


def test_a_topic_is_cleaned_and_its_tombstones_go_with_time(kafka_broker: Broker, client: Client) -> None:
    kafka_broker.create_topic("users", cleanup_policy="compact")
    client.produce("users", batch((b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", None), (b"c", b"1")))
    (cleaned,) = kafka_broker.clean("users")
    assert (cleaned.records_kept, cleaned.removed.superseded) == (3, 2)
    kafka_broker.clock.advance("23h")
    kafka_broker.clean()
    kept = [(r.offset, r.value) for r in kafka_broker.topic("users").read()]
    assert kept == [(1, b"2"), (3, None), (4, b"1")]
    kafka_broker.clock.advance(timedelta(hours=2))
    kafka_broker.clean()
    assert [(r.offset, r.value) for r in kafka_broker.topic("users").read()] == [(1, b"2"), (4, b"1")]


def test_segments_expire_with_time(kafka_broker: Broker, client: Client) -> None:
    kafka_broker.create_topic("users", retention_ms="7d")
    client.produce("users", batch((b"a", b"1")))
    kafka_broker.clock.advance("6d")
    assert kafka_broker.clean("users") == []
    assert client.fetch("users", 0).error_code == 0
    kafka_broker.clock.advance("2d")
    kafka_broker.clean("users")
    assert client.fetch("users", 0).error_code == codes.OFFSET_OUT_OF_RANGE
    assert client.fetch("users", 1).log_start_offset == 1


def test_the_clock_starts_at_the_real_time_and_runs(kafka_broker: Broker) -> None:
    clock = kafka_broker.clock
    assert abs(clock.now_ms() - time.time() * 1000) < 60_000
    before = clock.now_ms(), clock.monotonic()
    clock.advance("1h")
    assert 0 <= clock.now_ms() - before[0] - 3_600_000 < 60_000
    assert 0 <= clock.monotonic() - before[1] - 3600 < 60
    until(lambda: clock.now_ms() > before[0] + 3_600_000)
    with pytest.raises(UsageError):
        clock.advance(-1)


# -------------------------------------------------------------- groups and the clock


def joined(broker: Broker, group: str) -> Consumer:
    """Return the only member of a group."""
    member = Consumer(broker.server, group)
    member.join()
    assert member.sync({}).error_code == 0
    return member


def members(broker: Broker, group: str) -> int:
    with Client(broker.server) as client:
        classic = client.ask(DescribeGroupsRequest(groups=[group])).groups[0]
        newer = client.ask(ConsumerGroupDescribeRequest(group_ids=[group])).groups[0]
        return len(classic.members) + len(newer.members)


def test_connected_members_stay_and_others_expire(kafka_broker: Broker) -> None:
    joined(kafka_broker, "dead").client.socket.close()
    live = joined(kafka_broker, "live")
    until(lambda: len(kafka_broker.server.connections) == 1)
    assert (members(kafka_broker, "dead"), members(kafka_broker, "live")) == (1, 1)
    kafka_broker.clock.advance("2d")
    assert (members(kafka_broker, "dead"), members(kafka_broker, "live")) == (0, 1)
    assert live.heartbeat() == 0
    kafka_broker.clock.advance("9s", heartbeats=False)
    assert members(kafka_broker, "live") == 1
    kafka_broker.clock.advance("2s", heartbeats=False)
    assert members(kafka_broker, "live") == 0
    assert live.heartbeat() == codes.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_keeps_its_partitions_while_time_passes(kafka_broker: Broker, protocol: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    topic = kafka_broker.create_topic("users")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    lost: list[Any] = []
    consumer.subscribe(["users"], on_revoke=lambda _, partitions: lost.extend(partitions))
    for number in range(3):
        topic.append(b"ada", b"%d" % number)
        assert consumer.poll(10).value() == b"%d" % number
        kafka_broker.clock.advance("2d")
        assert members(kafka_broker, "g") == 1 and not lost
    kafka_broker.clock.advance("2d", heartbeats=False)
    assert members(kafka_broker, "g") == 0
    consumer.close()
    kafka_broker.clock.advance("2d")  # a member that left sends no heartbeat
    assert members(kafka_broker, "g") == 0


def test_an_open_transaction_is_aborted_when_its_time_is_up(kafka_broker: Broker, client: Client) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    kafka_broker.create_topic("users")
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "transactional.id": "t",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("users", b"1")
    assert producer.flush(10) == 0
    for time_passed, stable, aborted in (("50s", 0, 0), ("20s", 2, 1)):
        kafka_broker.clock.advance(time_passed)
        answer = client.fetch("users", 0, isolation_level=1)
        assert (answer.last_stable_offset, len(answer.aborted_transactions)) == (stable, aborted)
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(10)


# -------------------------------------------------------------- faults


def test_a_produce_that_fails_appends_nothing(kafka_broker: Broker, client: Client) -> None:
    kafka_broker.create_topic("users")
    kafka_broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    answers = [client.produce("users", batch((b"a", b"1"))) for _ in range(3)]
    assert [answer.error_code for answer in answers] == [NOT_LEADER, NOT_LEADER, 0]
    assert [answer.base_offset for answer in answers] == [-1, -1, 0]
    assert answers[0].error_message == "NOT_LEADER_OR_FOLLOWER, by the test"
    assert len(list(kafka_broker.topic("users").read())) == 1


def test_one_topic_fails_and_a_request_counts_once(kafka_broker: Broker, client: Client) -> None:
    for name in ("users", "orders"):
        kafka_broker.create_topic(name, 2).append(b"a", b"1", partition=0)
    kafka_broker.fail("Fetch", "KAFKA_STORAGE_ERROR", topic="users")
    asked = fetch_request([("users", 0, 0), ("users", 1, 0), ("orders", 0, 0)])
    for expected in ([codes.KAFKA_STORAGE_ERROR] * 2 + [0], [0, 0, 0]):
        answer = client.ask(asked, 12)
        assert [p.error_code for topic in answer.responses for p in topic.partitions] == expected
        assert answer.error_code == 0
    assert len(kafka_broker.requests("Fetch")) == 2


def test_a_session_of_fetches_fails_by_partition_or_as_a_whole(kafka_broker: Broker, client: Client) -> None:
    kafka_broker.create_topic("users").append(b"a", b"1")
    session = client.ask(fetch_request([("users", 0, 0)], session_epoch=0), 12).session_id
    kafka_broker.fail("Fetch", "NOT_LEADER_OR_FOLLOWER")
    answer = client.ask(fetch_request([], session_id=session, session_epoch=1), 12)
    assert [p.error_code for t in answer.responses for p in t.partitions] == [NOT_LEADER]
    answer = client.ask(fetch_request([], session_id=session, session_epoch=2), 12)
    assert [p.error_code for t in answer.responses for p in t.partitions] == [0]
    kafka_broker.fail("Fetch", "FETCH_SESSION_ID_NOT_FOUND")
    answer = client.ask(fetch_request([], session_id=session, session_epoch=3), 12)
    assert (answer.error_code, answer.responses) == (codes.FETCH_SESSION_ID_NOT_FOUND, [])


def test_an_acks_0_producer_that_fails_loses_its_connection(kafka_broker: Broker, client: Client) -> None:
    kafka_broker.create_topic("users")
    kafka_broker.fail("Produce", "MESSAGE_TOO_LARGE")
    client.produce("users", batch((b"a", b"1")), acks=0)
    with pytest.raises(ConnectionError):
        client.receive()


@pytest.mark.parametrize("version", [1, 3, 4, 12])
def test_metadata_that_fails_creates_no_topic(kafka_broker: Broker, client: Client, version: int) -> None:
    kafka_broker.fail("Metadata", "LEADER_NOT_AVAILABLE")
    request = metadata("users", "__consumer_offsets")
    answer = client.ask(request, version)
    refused = (codes.LEADER_NOT_AVAILABLE, [])
    assert [(topic.error_code, topic.partitions) for topic in answer.topics] == [refused] * 2
    assert list(kafka_broker.logs) == []
    assert kafka_broker.requests("Metadata")[0].body.allow_auto_topic_creation
    client.ask(request, version)
    assert list(kafka_broker.logs) == ["__consumer_offsets", "users"]


def test_a_topic_that_exists_is_created_with_what_was_given(kafka_broker: Broker) -> None:
    loads = int
    users = kafka_broker.create_topic("users", 3, cleanup_policy="compact", value_serializer=(str, loads))
    assert users.schema.value.loads is loads
    with pytest.raises(TopicExistsError):
        kafka_broker.create_topic("users")
    again = kafka_broker.create_topic("users", exist_ok=True, value_serializer="json")
    assert again.partitions == 3 and again.config.cleanup_policy == {"compact"}
    again.append(b"ada", {"city": "Turin"})
    assert [record.value for record in again.read()] == [{"city": "Turin"}]


def test_an_unknown_api_or_error_is_refused(kafka_broker: Broker) -> None:
    with pytest.raises(UsageError, match="'Produce'"):
        kafka_broker.fail("produce", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(UsageError, match="'NOT_LEADER_OR_FOLLOWER'"):
        kafka_broker.fail("Produce", "NOT_LEADER")
    with pytest.raises(UsageError, match="topic="):
        kafka_broker.fail("Heartbeat", "UNKNOWN_MEMBER_ID", topic="users")
    with pytest.raises(UsageError):
        kafka_broker.requests("Fetches")
    with pytest.raises(UsageError):
        kafka_broker.delay("Fetches", 1)
    for error in (6, "NONE", None):
        with pytest.raises(UsageError, match="is not an error of Kafka"):
            kafka_broker.fail("Produce", error)  # type: ignore[arg-type]  # wrong on purpose
    for times in (0, -1, "2"):
        with pytest.raises(UsageError, match="number of requests"):
            kafka_broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=times)  # type: ignore[arg-type]  # wrong on purpose
    for delay in (-1, "soon", None):
        with pytest.raises(UsageError, match="is not a time"):
            kafka_broker.delay("Produce", delay)  # type: ignore[arg-type]  # wrong on purpose
    for partitions in (0, 100_000):
        with pytest.raises(UsageError, match="partitions"):
            Broker(partitions=partitions)


def test_an_api_is_delayed(kafka_broker: Broker, client: Client) -> None:
    kafka_broker.delay("Metadata", 0.2)
    times = []
    for body in (MetadataRequest(topics=[]), ListGroupsRequest(), MetadataRequest(topics=[])):
        began = time.monotonic()
        client.ask(body)
        times.append(time.monotonic() - began)
        if len(times) == 2:
            kafka_broker.delay("Metadata", 0)
    assert times[0] >= 0.2 and times[2] < 0.2


def test_connections_are_dropped(kafka_broker: Broker, client: Client) -> None:
    kafka_broker.create_topic("users")
    kafka_broker.delay("ListGroups", 60)
    client.send(ListGroupsRequest())
    with Client(kafka_broker.server) as other:
        other.send(fetch_request([("users", 0, 0)], max_wait_ms=60_000), 12)
        until(lambda: bool(kafka_broker.requests("Fetch") and kafka_broker.requests("ListGroups")))
        assert kafka_broker.drop_connections() == 2
        for dropped in (client, other):
            with pytest.raises(ConnectionError):
                dropped.receive()
    with Client(kafka_broker.server) as again:
        assert again.ask(MetadataRequest(topics=None)).topics[0].name == "users"


def test_faults_and_delays_end(kafka_broker: Broker, client: Client) -> None:
    for api in ("ListGroups", "FindCoordinator"):
        kafka_broker.fail(api, "COORDINATOR_NOT_AVAILABLE", times=None)
        kafka_broker.delay(api, 0.05)
    found = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    unavailable = codes.COORDINATOR_NOT_AVAILABLE

    def answers() -> tuple[int, int]:
        return client.ask(ListGroupsRequest()).error_code, client.ask(found).coordinators[0].error_code

    began = time.monotonic()
    assert answers() == (unavailable, unavailable)
    assert time.monotonic() - began >= 0.1
    kafka_broker.heal("ListGroups")
    assert answers() == (0, unavailable)
    kafka_broker.heal()
    assert answers() == (0, 0)


def test_the_end_of_a_delay_is_for_requests_that_wait(kafka_broker: Broker, client: Client) -> None:
    kafka_broker.delay("ListGroups", 60)
    client.send(ListGroupsRequest())
    until(lambda: bool(kafka_broker.requests("ListGroups")))
    kafka_broker.heal("Fetch")
    began = time.monotonic()
    kafka_broker.heal("ListGroups")
    assert client.receive().error_code == 0
    assert time.monotonic() - began < 5
    kafka_broker.stop()
    kafka_broker.heal()


# -------------------------------------------------------------- requests, stop, reset, end


def test_requests_are_recorded(kafka_broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka_broker.create_topic("users")
    client.produce("users", batch((b"a", b"1")))
    client.fetch("users", 0)
    assert [request.api.name for request in kafka_broker.requests()] == ["Produce", "Fetch"]
    (fetch,) = kafka_broker.requests("Fetch")
    assert (fetch.version, fetch.client_id) == (12, "tests")
    assert [(topic.topic, topic.partitions[0].fetch_offset) for topic in fetch.body.topics] == [("users", 0)]
    monkeypatch.setattr(intercepted, "MOST_REQUESTS", 3)
    for _ in range(5):
        client.ask(ListGroupsRequest())
    assert [request.api.name for request in kafka_broker.requests()] == ["ListGroups"] * 3


def test_a_broker_that_was_down_goes_on(kafka_broker: Broker) -> None:
    kafka_broker.create_topic("users")
    kafka_broker.clock.advance("1h")
    kafka_broker.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", times=None)
    member = joined(kafka_broker, "g")
    member.client.produce("users", batch((b"a", b"1")))
    kafka_broker.stop()
    kafka_broker.stop()
    with pytest.raises(ConnectionError):
        member.client.receive()
    with pytest.raises(ConnectionRefusedError):
        Client(kafka_broker.server)
    kafka_broker.clock.advance("1h")
    now_ms = kafka_broker.clock.now_ms()
    assert abs(now_ms - time.time() * 1000 - 7_200_000) < 60_000
    kafka_broker.start()
    with pytest.raises(UsageError):
        kafka_broker.start()
    with Client(kafka_broker.server) as client:
        member.client = client
        assert member.heartbeat() == 0
        assert client.produce("users", batch((b"a", b"2"))).base_offset == 1
        assert client.ask(ListGroupsRequest()).error_code == codes.COORDINATOR_NOT_AVAILABLE
    assert [record.value for record in kafka_broker.topic("users").read()] == [b"1", b"2"]
    assert len(kafka_broker.requests("Produce")) == 2
    kafka_broker.stop()
    kafka_broker.close()
    with pytest.raises(UsageError):
        kafka_broker.start()


@pytest.mark.parametrize("kafka_broker", [{"partitions": 3, "auto_create_topics": False}], indirect=True)
def test_options_of_the_fixture(kafka_broker: Broker, client: Client) -> None:
    missing = client.ask(metadata("users"))
    assert missing.topics[0].error_code == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert kafka_broker.create_topic("users").partitions == 3


def test_a_directory_below_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Broker("~/kafka") as broker:
        broker.create_topic("users")
        broker.reset()
        assert broker.directory == str(tmp_path / "kafka") and list(broker.logs) == []


def test_reset_begins_again_at_the_same_port() -> None:
    with Broker(partitions=3) as broker:
        address, cluster = broker.bootstrap_servers, broker.server.context.cluster_id
        broker.create_topic("users").append(b"a", b"1")
        broker.clock.advance("1h")
        broker.fail("ListGroups", "INVALID_REQUEST", times=None)
        member = joined(broker, "g")
        broker.reset()
        with pytest.raises(ConnectionError):
            member.client.receive()
        assert (broker.bootstrap_servers, broker.requests(), list(broker.logs)) == (address, [], [])
        assert broker.server.context.cluster_id != cluster
        assert abs(broker.clock.now_ms() - time.time() * 1000) < 60_000
        with Client(broker.server) as client:
            answer = client.ask(ListGroupsRequest())
            assert (answer.error_code, answer.groups) == (0, [])
        assert broker.create_topic("users").partitions == 3


def test_a_closed_broker_leaves_nothing_behind(tmp_path: Path) -> None:
    with Broker() as broker:
        address = broker.server.host, broker.server.port
        with Client(broker.server) as client:
            broker.close()
            with pytest.raises(ConnectionError):
                client.receive()
    assert not Path(broker.directory).exists()
    broker.close()
    with Broker(tmp_path / "kept") as kept, pytest.raises(ConnectionRefusedError):
        assert (kept.server.host, kept.server.port) != address
        Client(broker.server)
    assert (tmp_path / "kept").is_dir()
    with pytest.raises(UsageError, match="not empty"):
        Broker(tmp_path / "kept")
    with lastword.open(tmp_path / "kept") as logs:
        assert list(logs) == []


def test_the_port_of_a_closed_broker_stays_bound() -> None:
    ports = []
    for _ in range(20):
        with Broker() as broker:
            ports.append(broker.server.port)
    assert len(set(ports)) == 20


def test_a_broker_that_does_not_run_says_so() -> None:
    broker = Broker()
    broker.stop()
    with pytest.raises(UsageError, match=r"start\(\)"):
        broker.create_topic("users")
    broker.close()
    for call in (broker.start, broker.reset, broker.drop_connections, broker.__enter__):
        with pytest.raises(UsageError, match="make another Broker"):
            call()


def test_a_broker_at_a_chosen_port() -> None:
    with Broker() as broker:
        port = broker.server.port
        with pytest.raises(UsageError, match="cannot listen"):
            Broker(port=port)
    for _ in range(2):
        with Broker(port=port) as broker, Client(broker.server) as client:
            assert client.ask(MetadataRequest(topics=None)).topics == []


def test_a_cleaning_uses_the_last_commits(kafka_broker: Broker) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    users = kafka_broker.create_topic("users", cleanup_policy="compact", delete_retention_ms=0)
    users.extend([(b"ada", b"1"), (b"ada", None), (b"bob", b"1"), (b"bob", None), (b"cy", b"1")])
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": "g"}
    )
    left = []
    for offset in (0, 2, 4):
        position = confluent_kafka.TopicPartition("users", 0, offset)
        consumer.commit(offsets=[position], asynchronous=False)
        kafka_broker.clean("users")
        kafka_broker.clock.advance(1)
        kafka_broker.clean("users")
        left.append([record.offset for record in users.read()])
    consumer.close()
    assert left == [[1, 3, 4], [3, 4], [4]]
