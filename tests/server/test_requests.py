"""Requests that no client library makes: limits, wrong batches, sessions, special offsets."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword import metrics
from lastword.api.open_dirs import OpenDirs
from lastword.clock import SystemClock
from lastword.errors import LastwordError, StorageError
from lastword.logdir.log_dir_set import LogDirSet
from lastword.logdir.topics import RootListing
from lastword.partition import PartitionLog
from lastword.protocol import codes
from lastword.protocol.messages import (
    AlterConfigsRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from lastword.protocol.schemas import APIS, ZERO_UUID
from lastword.records.batch import read_header
from lastword.server import Server, admin, fetch
from lastword.server import topics as topics_module
from lastword.server.configs import kafka_settings
from lastword.server.server import DRAIN_SECONDS
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.recording import RecordingFiles
from tests.server.client import (
    NEWEST,
    Client,
    batch,
    fetch_request,
    headers,
    metadata,
    new_topic,
    produce_request,
    served,
)
from tests.server.writer import started
from tests.support.threads import together
from tests.transactions import end_transaction

ONE = batch((b"k", b"v"))
ADDED_BY_KAFKA_44 = (
    ("max.decompressed.message.bytes", "2147483639"),
    ("errors.deadletterqueue.group.enable", "false"),
    ("remote.copy.lag.ms", "0"),
    ("remote.copy.lag.bytes", "-1"),
)
"""Settings of topics that Kafka 4.4.0 adds to those of 4.3.1, with their defaults."""


def create(client: Client, *topics: Any, **fields: Any) -> Any:
    """Return the results of CreateTopics."""
    return client.ask(CreateTopicsRequest(topics=list(topics), timeout_ms=1000, **fields)).topics


def alter(client: Client, *changes: tuple[str, int, str], topic: str = "users", **fields: Any) -> int:
    """Change settings: name, operation and value of each. Return the error of the topic."""
    kind = IncrementalAlterConfigsRequest
    configs = [
        kind.AlterableConfig(name=name, config_operation=op, value=value) for name, op, value in changes
    ]
    resource = kind.AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
    answer = client.ask(kind(resources=[resource], **{"validate_only": False} | fields))
    return int(answer.responses[0].error_code)


def bases(answer: Any) -> list[int]:
    """Return the base offsets of the batches of a fetch."""
    return [header.base_offset for header in headers(bytes(answer.records))]


@pytest.fixture
def users(logs: lastword.LogDir) -> lastword.Topic:
    return logs.create_topic("users", cleanup_policy="delete")


def initialised(client: Client) -> tuple[int, int]:
    answer = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
    return answer.producer_id, answer.producer_epoch


# ------------------------------------------------------------------ ApiVersions, Metadata


def test_a_client_of_another_cluster_has_to_begin_again(client: Client) -> None:
    """From version 5 on a client may say which cluster and node it wants (KIP-1242)."""
    cluster = client.ask(DescribeClusterRequest())
    here = cluster.cluster_id, cluster.brokers[0].broker_id
    errors = [
        client.ask(ApiVersionsRequest(cluster_id=cluster_id, node_id=node_id), 5).error_code
        for cluster_id, node_id in (
            *(here, (None, -1)),
            *(("other", here[1]), (here[0], 77)),
            *((here[0], -1), (None, here[1])),
        )
    ]
    assert errors == [0, 0, *[codes.REBOOTSTRAP_REQUIRED] * 2, *[codes.INVALID_REQUEST] * 2]


def test_every_served_api_is_listed_and_a_newer_version_is_answered_in_version_0(client: Client) -> None:
    listed = {api.api_key: api for api in client.ask(ApiVersionsRequest()).api_keys}
    assert listed[0].min_version == 0  # librdkafka compresses only then
    assert listed[1].max_version == APIS[1].stable
    frame = b"\0\0\0\x0c" + b"\0\x12" + b"\0\x63" + b"\0\0\0\x07" + b"\xff\xff" + b"\0\0"
    client.socket.sendall(frame)
    answer = client.socket.recv(1000)
    assert answer[4:10] == b"\0\0\0\x07" + b"\0\x23"


@pytest.mark.parametrize("version", range(14))
def test_metadata_creates_topics_only_when_allowed(client: Client, version: int) -> None:
    def ask(name: str, allow: bool) -> Any:
        fields = {"allow_auto_topic_creation": allow} if version >= 4 else {}
        return client.ask(metadata(name, **fields), version).topics[0]

    if version >= 4:
        assert ask("new", False).error_code == codes.UNKNOWN_TOPIC_OR_PARTITION
    topic = ask("new", True)
    assert (topic.error_code, len(topic.partitions)) == (0, 1)
    assert ask("no/name", True).error_code == codes.INVALID_TOPIC_EXCEPTION


def test_a_topic_is_found_by_its_id(client: Client, users: lastword.Topic) -> None:
    ids = client.topic_id(), b"x" * 16
    wanted = [MetadataRequest.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
    known, unknown = client.ask(MetadataRequest(topics=wanted)).topics
    assert (known.name, unknown.error_code) == ("users", codes.UNKNOWN_TOPIC_ID)


def test_settings_that_are_changed_at_the_same_time_are_all_kept(
    server: Server, logs: lastword.LogDir
) -> None:
    def change(number: int) -> None:
        with Client(server) as client:
            for value in range(5):
                alter(client, ("retention.ms", 0, str(value)), topic=f"t{number}")

    for number in range(8):
        logs.create_topic(f"t{number}")
    together(*(partial(change, number) for number in range(8)))
    assert [topic.config.retention_ms for topic in logs.topics()] == [4] * 8


def test_a_topic_that_is_named_twice_is_described_once(client: Client, users: lastword.Topic) -> None:
    answer = client.ask(metadata("users", "users", "", allow_auto_topic_creation=False))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("users", 0),
        ("", codes.INVALID_TOPIC_EXCEPTION),
    ]


def test_wrong_new_topics_are_refused_with_kafkas_reasons(client: Client) -> None:
    copies, placed = new_topic("copies"), new_topic("placed", -1)
    copies.replication_factor, placed.replication_factor = 0, -1
    placed.assignments = [CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[7])]
    twice = new_topic("twice")
    wanted = [new_topic("a/b"), new_topic("zero", 0), copies, placed, twice, twice, new_topic("good")]
    results = create(client, *wanted)
    assert [(topic.name, topic.error_code) for topic in results] == [
        ("a/b", codes.INVALID_TOPIC_EXCEPTION),
        ("zero", codes.INVALID_PARTITIONS),
        ("copies", codes.INVALID_REPLICATION_FACTOR),
        ("placed", codes.INVALID_REPLICA_ASSIGNMENT),
        ("twice", codes.INVALID_REQUEST),
        ("good", 0),
    ]
    assert results[3].error_message == (
        "The manual partition assignment includes broker 7, but no such broker is registered."
    )
    assert results[-1].error_message is None


def test_a_topic_is_deleted_by_its_name_or_its_id(client: Client, users: lastword.Topic) -> None:
    kind = DeleteTopicsRequest.DeleteTopicState
    topic_id = client.topic_id()

    def delete(*topics: tuple[str | None, bytes]) -> list[int]:
        states = [kind(name=name, topic_id=topic_id) for name, topic_id in topics]
        answer = client.ask(DeleteTopicsRequest(topics=states, timeout_ms=1000))
        return [response.error_code for response in answer.responses]

    none = bytes(16)
    assert delete(("users", topic_id), (None, none)) == [codes.INVALID_REQUEST] * 2
    assert delete(("users", none), ("users", none)) == [codes.INVALID_REQUEST]
    assert delete(("users", none), (None, topic_id)) == [codes.INVALID_REQUEST]
    assert delete((None, topic_id)) == [0]
    assert delete(("users", none), (None, topic_id)) == [
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.UNKNOWN_TOPIC_ID,
    ]


def test_settings_of_topics_and_brokers_are_described(client: Client, logs: lastword.LogDir) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    kind = DescribeConfigsRequest
    resources = [
        kind.DescribeConfigsResource(resource_type=number, resource_name=name, configuration_keys=None)
        for number, name in ((2, "users"), (4, "1"), (2, "a/b"), (4, "x"))
    ]
    body = kind(resources=resources, include_synonyms=True)
    topic, broker, *wrong = client.ask(body).results
    assert [result.error_code for result in wrong] == [
        codes.INVALID_TOPIC_EXCEPTION,
        codes.INVALID_REQUEST,
    ]
    rows = {row.name: row for row in topic.configs}
    assert (rows["cleanup.policy"].value, rows["cleanup.policy"].config_source) == ("compact", 1)
    assert [(s.name, s.value) for s in rows["cleanup.policy"].synonyms] == [
        ("cleanup.policy", "compact"),
        ("log.cleanup.policy", "delete"),
    ]
    assert rows["message.timestamp.after.max.ms"].value == "3600000"
    assert rows.keys() == kafka_settings("topic").keys() and len(topic.configs) == len(rows)
    assert {name: rows[name].value for name, _ in ADDED_BY_KAFKA_44} == dict(ADDED_BY_KAFKA_44)
    rows = {row.name: row for row in broker.configs}
    assert (rows["node.id"].value, rows["num.io.threads"].value) == ("1", "8")
    assert rows["offsets.retention.minutes"].value == "10080"
    assert rows["offsets.topic.num.partitions"].value == "1"
    assert rows["ssl.key.password"].is_sensitive and rows["ssl.key.password"].value is None
    assert rows.keys() == kafka_settings("broker").keys() and len(broker.configs) == len(rows)
    assert all(row.read_only for row in broker.configs)


@pytest.mark.parametrize("kind", [AlterConfigsRequest, IncrementalAlterConfigsRequest])
def test_wrong_changes_of_settings_are_refused(client: Client, users: lastword.Topic, kind: Any) -> None:
    def change(*resources: tuple[int, str, list[tuple[str, str | None]]]) -> list[int]:
        given = [
            kind.AlterConfigsResource(
                resource_type=number,
                resource_name=name,
                configs=[kind.AlterableConfig(name=key, value=value) for key, value in configs],
            )
            for number, name, configs in resources
        ]
        answer = client.ask(kind(resources=given, validate_only=False))
        return [response.error_code for response in answer.responses]

    one = [("retention.ms", "1")]
    assert change((2, "users", [("retention.ms", None)])) == [codes.INVALID_REQUEST]
    assert change((2, "users", one + one)) == [codes.INVALID_REQUEST]
    assert change((2, "users", one), (2, "users", one)) == [codes.INVALID_REQUEST] * 2
    assert change((4, "1", [("node.id", "2")]), (2, "", one)) == [codes.INVALID_REQUEST] * 2
    assert change((2, "a/b", one)) == [codes.INVALID_TOPIC_EXCEPTION]
    assert change((2, "users", one)) == [0]


@pytest.mark.parametrize("default", [None, "compact"])
def test_a_policy_that_a_client_resets_is_that_of_a_new_topic(
    client: Client, logs: lastword.LogDir, default: str | None
) -> None:
    """Without a policy the topic kept everything, where the client expects retention."""
    logs.set_config(None, cleanup_policy=default)
    assert [topic.error_code for topic in create(client, new_topic("users"), new_topic("events"))] == [0, 0]
    logs.create_topic("kept", cleanup_policy=None)
    assert alter(client, ("cleanup.policy", 0, "delete")) == alter(client, ("cleanup.policy", 1, "")) == 0
    kind = AlterConfigsRequest
    for name in ("events", "kept"):
        change = kind.AlterableConfig(name="retention.ms", value="1")
        resource = kind.AlterConfigsResource(resource_type=2, resource_name=name, configs=[change])
        assert client.ask(kind(resources=[resource], validate_only=False)).responses[0].error_code == 0
    policies = [logs[name].config.cleanup_policy for name in ("users", "events", "kept")]
    expected = frozenset({default or "delete"})
    assert policies == [expected, expected, None if default is None else expected]


def test_settings_of_ours_are_described_to_clients_that_name_them(
    client: Client, logs: lastword.LogDir
) -> None:
    """A tool that copies all settings of a topic to a Kafka cluster must not find them."""
    logs.create_topic("users", key_serializer="str", lastword_ttl_ms="1d", lastword_ack="disk")

    def described(names: list[str] | None) -> list[tuple[str, str | None, int]]:
        wanted = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name="users", configuration_keys=names
        )
        rows = client.ask(DescribeConfigsRequest(resources=[wanted])).results[0].configs
        return [(row.name, row.value, row.config_source) for row in rows]

    assert not [name for name, *_ in described(None) + described([]) if name.startswith("lastword.")]
    names = ["lastword.key.serializer", "lastword.ttl.ms", "lastword.ack", "segment.ms"]
    assert sorted(described(names)) == [
        ("lastword.key.serializer", "str", 1),
        ("lastword.ttl.ms", "86400000", 1),
        ("segment.ms", "604800000", 5),
    ]
    assert described(["lastword.partitioner"]) == [("lastword.partitioner", "murmur2", 1)]
    logs["users"].set_config(lastword_ttl_ms=None)
    assert described(["lastword.ttl.ms"]) == [("lastword.ttl.ms", "-1", 5)]


def test_an_empty_policy_is_a_value(client: Client, logs: lastword.LogDir) -> None:
    """The last policy may be subtracted: nothing is removed then, whatever the defaults are."""
    logs.create_topic("users", cleanup_policy="compact")

    def changed(operation: int, value: str) -> int:
        return alter(client, ("cleanup.policy", operation, value))

    def policy() -> tuple[str | None, int]:
        wanted = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name="users", configuration_keys=["cleanup.policy"]
        )
        (row,) = client.ask(DescribeConfigsRequest(resources=[wanted])).results[0].configs
        return row.value, row.config_source

    logs.set_config(None, cleanup_policy=None)
    logs["users"].set_config(cleanup_policy=None)
    set_to, append, subtract = 0, 2, 3
    assert changed(append, "compact") == 0 and policy() == ("compact,delete", 1)  # from Kafka's default
    assert changed(subtract, "delete") == 0 and policy() == ("compact", 1)
    logs.set_config(None, cleanup_policy="delete")
    assert changed(subtract, "compact") == 0 and policy() == ("", 1)
    assert logs["users"].config.cleanup_policy == frozenset() and logs.clean() == logs.expire() == []
    assert changed(append, "compact") == 0 and policy() == ("compact", 1)
    assert changed(set_to, "none") == codes.INVALID_CONFIG and policy() == ("compact", 1)
    assert changed(set_to, " delete ,compact") == 0 and policy() == ("compact,delete", 1)
    assert changed(set_to, "") == 0 and policy() == ("", 1)


def test_wrong_requests_for_groups_and_producers_are_refused_as_by_a_broker(client: Client) -> None:
    assert client.ask(LeaveGroupRequest(group_id="", members=[])).error_code == codes.INVALID_GROUP_ID
    unnamed = SyncGroupRequest(group_id="g", generation_id=1, member_id="x", assignments=[])
    assert client.ask(unnamed).error_code == codes.INCONSISTENT_GROUP_PROTOCOL
    deleted = client.ask(DeleteGroupsRequest(groups_names=[""])).results
    assert [result.error_code for result in deleted] == [codes.GROUP_ID_NOT_FOUND]
    half = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0, producer_id=5)
    assert client.ask(half).error_code == codes.INVALID_REQUEST
    wrong = DescribeTopicPartitionsRequest.TopicRequest(name="a/b")
    described = client.ask(DescribeTopicPartitionsRequest(topics=[wrong], cursor=None)).topics
    assert [topic.error_code for topic in described] == [codes.INVALID_TOPIC_EXCEPTION]


# ------------------------------------------------------------------ Produce


@pytest.mark.parametrize("version", range(3, 13))
def test_a_batch_is_stored_as_it_is(client: Client, users: lastword.Topic, version: int) -> None:
    answer = client.produce("users", ONE, version=version)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    stored = bytes(client.fetch("users", 0).records)
    assert stored[16:] == ONE[16:]  # besides offset and leader epoch


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(None, codes.INVALID_RECORD, id="no batch"),
        pytest.param(b"", codes.INVALID_RECORD, id="empty"),
        pytest.param(ONE + ONE, codes.INVALID_RECORD, id="two batches"),
        pytest.param(ONE[:-1] + b"x", codes.CORRUPT_MESSAGE, id="changed byte"),
        pytest.param(ONE[:-1], codes.INVALID_RECORD, id="cut record"),
        pytest.param(ONE[:30], codes.INVALID_RECORD, id="cut header"),
        pytest.param(ONE[:16] + b"\x01" + ONE[17:], codes.INVALID_RECORD, id="magic 1"),
        pytest.param(ONE[:16] + b"\x03" + ONE[17:], codes.CORRUPT_MESSAGE, id="magic 3"),
        pytest.param(
            batch((b"k", b"v"), attributes=5), codes.UNSUPPORTED_COMPRESSION_TYPE, id="unknown codec"
        ),
        pytest.param(batch((b"k", b"v"), base_offset=7), codes.INVALID_RECORD, id="base offset"),
        pytest.param(batch((b"k", b"v"), attributes=0x20), codes.INVALID_RECORD, id="control batch"),
        pytest.param(batch((b"k", b"v"), count=2), codes.INVALID_RECORD, id="count"),
        pytest.param(batch((b"k", b"v"), count=-1), codes.INVALID_RECORD, id="negative count"),
        pytest.param(
            batch((b"k", b"v"), timestamp=int(time.time() * 1000) + 2 * 3600_000),
            codes.INVALID_TIMESTAMP,
            id="future",
        ),
        pytest.param(batch((b"k", b"v"), last_offset_delta=3), codes.INVALID_RECORD, id="last offset"),
        pytest.param(batch((b"k", b"v"), producer=(5, 0, -1)), codes.INVALID_RECORD, id="no sequence"),
        pytest.param(batch((b"k", b"v" * 2_000_000)), codes.MESSAGE_TOO_LARGE, id="too large"),
    ],
)
def test_a_wrong_batch_is_refused(
    client: Client, users: lastword.Topic, records: bytes | None, code: int
) -> None:
    assert client.produce("users", records).error_code == code
    assert client.produce("users", ONE).base_offset == 0


def test_an_unknown_partition_is_refused(client: Client, users: lastword.Topic) -> None:
    assert client.produce("users", ONE, partition=9).error_code == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("others", ONE).error_code == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("../users", ONE).error_code == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("users", ONE, acks=3).error_code == codes.INVALID_REQUIRED_ACKS


def test_a_compacted_topic_needs_keys(client: Client, logs: lastword.LogDir) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    for codec in range(5):
        for count in (2, 100):  # records are read one by one, and by a kernel
            keyed = [(b"k", b"v")] * (count - 1)
            refused = client.produce("users", batch(*keyed, (None, b"v"), codec=codec))
            assert refused.error_code == codes.INVALID_RECORD
            assert [error.batch_index for error in refused.record_errors] == [count - 1]
            assert client.produce("users", batch(*keyed, codec=codec)).error_code == 0


@pytest.mark.parametrize("count", [3, 100])
def test_a_compacted_topic_refuses_records_that_contradict_their_batch(
    client: Client, logs: lastword.LogDir, count: int
) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    wrong = batch(*[(b"k", b"v")] * (count - 1), count=count, last_offset_delta=count - 1)
    assert client.produce("users", wrong).error_code == codes.INVALID_RECORD
    packed = batch(*[(b"k", b"v")] * count, attributes=4)
    assert client.produce("users", packed).error_code == codes.INVALID_RECORD
    assert client.produce("users", ONE).base_offset == 0


def test_decompression_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path, lastword_decompression_max_bytes="1MiB") as (logs, _, client):
        logs.create_topic("table", cleanup_policy="compact")
        logs.create_topic("packed", cleanup_policy="delete", compression_type="gzip")
        for name in ("table", "packed"):
            for records in ([(b"k", b"v" * (3 << 20))], [(b"k", b"v" * (1 << 16))] * 40):
                answer = client.produce(name, batch(*records, codec=4))
                assert answer.error_code == codes.MESSAGE_TOO_LARGE
            assert client.produce(name, batch((b"k", b"v"), codec=4)).base_offset == 0


def test_without_acks_there_is_no_answer_and_a_refusal_closes_the_connection(
    server: Server, client: Client, users: lastword.Topic
) -> None:
    client.produce("users", ONE, acks=0)
    assert client.offset("users", -1).offset == 1
    client.produce("users", b"", acks=0)
    with pytest.raises(ConnectionError):
        client.receive()


def test_a_repeated_batch_has_the_offset_of_the_first(client: Client, users: lastword.Topic) -> None:
    producer_id, epoch = initialised(client)
    sent = [batch((b"k", b"v"), producer=(producer_id, epoch, number)) for number in range(8)]
    assert [client.produce("users", data).base_offset for data in sent] == list(range(8))
    assert [client.produce("users", data).base_offset for data in sent[3:]] == list(range(3, 8))
    assert client.produce("users", sent[2]).error_code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER
    gap = batch((b"k", b"v"), producer=(producer_id, epoch, 9))
    assert client.produce("users", gap).error_code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER
    newer = batch((b"k", b"v"), producer=(producer_id, epoch + 1, 0))
    assert client.produce("users", newer).base_offset == 8
    assert client.produce("users", gap).error_code == codes.INVALID_PRODUCER_EPOCH


def test_a_producer_id_is_never_given_twice(tmp_path: Path) -> None:
    given = []
    for _ in range(3):
        with lastword.serve(tmp_path, "127.0.0.1:0") as server, Client(server) as client:
            given += [initialised(client)[0] for _ in range(4)]
    assert len(set(given)) == len(given)


def test_the_time_of_the_append_is_answered(client: Client, logs: lastword.LogDir) -> None:
    logs.create_topic("users", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    answer = client.produce("users", batch((b"k", b"v"), timestamp=5))
    assert answer.log_append_time_ms >= before
    header = read_header(bytes(client.fetch("users", 0).records), 0, 1 << 20, "")
    assert (header.log_append, header.max_timestamp) == (True, answer.log_append_time_ms)


def test_a_batch_that_claims_the_time_of_an_append_is_refused(client: Client, logs: lastword.LogDir) -> None:
    """A broker refuses it where it does not check the batch's own time."""
    logs.create_topic("stamped", message_timestamp_type="LogAppendTime")
    logs.create_topic("users", message_timestamp_before_max_ms=1000)
    for topic, timestamp, code in (
        ("stamped", 5, codes.INVALID_TIMESTAMP),
        ("users", -1, codes.INVALID_TIMESTAMP),
        ("users", None, codes.NONE),
    ):
        answer = client.produce(topic, batch((b"k", b"v"), attributes=0x08, timestamp=timestamp))
        assert answer.error_code == code
    assert client.produce("users", batch((b"k", b"v"), timestamp=-1)).error_code == codes.NONE


def test_a_topic_with_a_codec_stores_that_codec(client: Client, logs: lastword.LogDir) -> None:
    topic = logs.create_topic("users", compression_type="zstd")
    for codec in range(5):
        assert client.produce("users", batch((b"k", b"v" * 100), codec=codec)).error_code == 0
        header = read_header(bytes(client.fetch("users", codec).records), 0, 1 << 20, "")
        assert header.codec == 4
    assert [record.value for record in topic.read()] == [b"v" * 100] * 5


def test_acks_all_waits_for_the_drive_if_the_topic_says_so(client: Client, logs: lastword.LogDir) -> None:
    logs.create_topic("users", lastword_ack="disk")
    log = logs.dirs.log("users", 0)
    assert client.produce("users", ONE, acks=1).base_offset == 0
    assert log.synced_to == 0
    assert client.produce("users", ONE, acks=-1).base_offset == 1
    assert log.synced_to == 2


def test_requests_of_one_connection_are_answered_in_order(client: Client, users: lastword.Topic) -> None:
    for _ in range(200):
        client.send(produce_request("users", ONE), 12)
    offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in range(200)]
    assert offsets == list(range(200))


# ------------------------------------------------------------------ Fetch


def test_the_batch_that_contains_the_offset_comes_first(client: Client, users: lastword.Topic) -> None:
    for _ in range(5):
        client.produce("users", batch(*[(b"k", b"v" * 100)] * 10))
    assert bases(client.fetch("users", 0)) == [0, 10, 20, 30, 40]
    assert bases(client.fetch("users", 27)) == [20, 30, 40]
    assert bases(client.fetch("users", 50)) == []
    for outside in (51, -1):
        assert client.fetch("users", outside).error_code == codes.OFFSET_OUT_OF_RANGE
    assert bases(client.fetch("users", 0, partition_max_bytes=10)) == [0], "also if it is too large"
    assert bases(client.fetch("users", 15, max_bytes=1)) == [10]
    assert bases(client.fetch("users", 0, partition_max_bytes=2500)) == [0, 10]


def test_limits_end_at_whole_batches(client: Client, users: lastword.Topic) -> None:
    for _ in range(300):
        client.produce("users", batch((b"k", b"v" * 100)))
    size = len(batch((b"k", b"v" * 100)))
    for count in (1, 2, 25, 26, 60, 299, 300):
        for slack in (0, size - 1):
            answer = client.fetch("users", 0, partition_max_bytes=count * size + slack)
            assert bases(answer) == list(range(min(count, 300)))


def test_only_the_first_partition_exceeds_the_limit(client: Client, logs: lastword.LogDir) -> None:
    for name in ("a", "b"):
        logs.create_topic(name)
        client.produce(name, batch((b"k", b"v" * 1000)))
    response = client.ask(fetch_request([("a", 0, 0), ("b", 0, 0)], max_bytes=10), 12)
    assert [len(topic.partitions[0].records) > 0 for topic in response.responses] == [True, False]


def test_a_fetch_waits_for_bytes(server: Server, client: Client, users: lastword.Topic) -> None:
    began = time.monotonic()
    client.fetch("users", 0, max_wait_ms=200)
    assert 0.19 < time.monotonic() - began < 5
    size = len(batch((b"k", b"v")))

    def later() -> None:  # by a client, and by Python
        with Client(server) as other:
            for _ in range(2):
                time.sleep(0.05)
                other.produce("users", ONE)
        time.sleep(0.05)
        users.append(b"k", b"v")

    thread = threading.Thread(target=later)
    thread.start()
    began = time.monotonic()
    answer = client.fetch("users", 0, max_wait_ms=5000, min_bytes=3 * size)
    assert bases(answer) == [0, 1, 2]
    assert time.monotonic() - began < 3
    thread.join()


def test_another_epoch_or_replica_is_refused(client: Client, users: lastword.Topic) -> None:
    client.produce("users", ONE)
    assert client.fetch("users", 0, current_leader_epoch=0).error_code == 0
    assert client.fetch("users", 0, current_leader_epoch=1).error_code == codes.UNKNOWN_LEADER_EPOCH
    assert client.fetch("users", 0, replica_id=7).error_code == codes.NOT_LEADER_OR_FOLLOWER


def test_the_partitions_of_a_session_have_their_turn(client: Client, logs: lastword.LogDir) -> None:
    """Also if the records of one are more than an answer may have."""
    for topic in "abc":
        logs.create_topic(topic)
        for _ in range(3):
            client.produce(topic, batch((b"k", bytes(2000))))
    offsets = dict.fromkeys("abc", 0)
    asked = [(topic, 0, 0) for topic in offsets]
    answer = client.ask(fetch_request(asked, session_epoch=0, max_bytes=2500), 12)
    sent = []
    for epoch in range(1, 10):
        (topic,) = [t.topic for t in answer.responses if t.partitions[0].records]
        sent.append(topic)
        offsets[topic] += 1
        body = fetch_request(
            [(topic, 0, offsets[topic])],
            session_id=answer.session_id,
            session_epoch=epoch,
            max_bytes=2500,
        )
        answer = client.ask(body, 12)
    assert sent == list("abc" * 3)


def test_more_clients_than_sessions(
    client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last client has no session. If sessions in use were dropped, each fetch would find its own gone."""
    monkeypatch.setattr(fetch, "MOST_SESSIONS", 2)
    logs.create_topic("a")
    ids = [client.ask(fetch_request([("a", 0, 0)], session_epoch=0), 12).session_id for _ in range(3)]
    assert ids[0] > 0 and ids[1] > 0 and ids[2] == 0
    for epoch in range(1, 4):
        for session_id in ids[:2]:
            body = fetch_request([], session_id=session_id, session_epoch=epoch)
            assert client.ask(body, 12).error_code == 0
    monkeypatch.setattr(fetch, "KEPT_SECONDS", 0.0)
    assert client.ask(fetch_request([("a", 0, 0)], session_epoch=0), 12).session_id > 0
    gone = client.ask(fetch_request([], session_id=ids[0], session_epoch=4), 12)
    assert gone.error_code == codes.FETCH_SESSION_ID_NOT_FOUND
    kept = client.ask(fetch_request([], session_id=ids[1], session_epoch=4), 12)
    assert kept.error_code == 0


def test_a_session_answers_with_what_changed(client: Client, logs: lastword.LogDir) -> None:
    for name in ("a", "b"):
        logs.create_topic(name)
        client.produce(name, ONE)
    opened = client.ask(fetch_request([("a", 0, 0), ("b", 0, 0)], session_epoch=0), 12)
    assert opened.session_id > 0
    assert [topic.topic for topic in opened.responses] == ["a", "b"]
    session = {"session_id": opened.session_id}
    moved = client.ask(fetch_request([("a", 0, 1), ("b", 0, 1)], session_epoch=1, **session), 12)
    assert moved.responses == []
    client.produce("b", ONE)
    more = client.ask(fetch_request([], session_epoch=2, **session), 12)
    assert [(topic.topic, bases(topic.partitions[0])) for topic in more.responses] == [("b", [1])]
    stale = client.ask(fetch_request([], session_epoch=9, **session), 12)
    assert stale.error_code == codes.INVALID_FETCH_SESSION_EPOCH
    client.ask(fetch_request([], session_epoch=-1, **session), 12)
    gone = client.ask(fetch_request([], session_epoch=3, **session), 12)
    assert gone.error_code == codes.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("versions", [(12, 13), (13, 12)])
def test_a_session_names_its_topics_in_one_way(
    client: Client, logs: lastword.LogDir, versions: tuple[int, int]
) -> None:
    """A client that named them in the other way got partitions of topics without a name."""
    logs.create_topic("a")
    first, other = versions
    asked = fetch_request([("a", 0, 0)], session_epoch=0)
    if first == 13:
        asked.topics[0].topic, asked.topics[0].topic_id = "", client.topic_id("a")
    session = {"session_id": client.ask(asked, first).session_id}
    answer = client.ask(fetch_request([], session_epoch=1, **session), other)
    assert (answer.error_code, answer.responses) == (codes.FETCH_SESSION_TOPIC_ID_ERROR, [])
    assert client.ask(fetch_request([], session_epoch=1, **session), first).error_code == 0


def test_one_answer_has_the_batches_of_several_segments(
    client: Client, logs: lastword.LogDir, users: lastword.Topic
) -> None:
    log = logs.dirs.log("users", 0)
    for _ in range(5):
        client.produce("users", ONE)
        log.roll()
    assert bases(client.fetch("users", 1)) == [1, 2, 3, 4]
    assert bases(client.fetch("users", 0, partition_max_bytes=2 * len(ONE))) == [0, 1]
    assert bases(client.fetch("users", 0, partition_max_bytes=1)) == [0]


def transactional(number: int, producer_id: int = 5, sequence: int = 0) -> bytes:
    return batch((b"t%d" % number, b"v"), producer=(producer_id, 0, sequence), attributes=0x10)


def test_a_committed_read_ends_at_the_last_stable_offset(
    client: Client, logs: lastword.LogDir, users: lastword.Topic
) -> None:
    log = logs.dirs.log("users", 0)
    client.produce("users", ONE)
    log.append_batch(transactional(1))
    client.produce("users", ONE)
    committed = {"isolation_level": 1}
    answer = client.fetch("users", 0, **committed)
    assert (answer.last_stable_offset, answer.high_watermark) == (1, 3)
    assert (bases(answer), answer.aborted_transactions) == ([0], [])
    assert bases(client.fetch("users", 0)) == [0, 1, 2]
    assert client.fetch("users", 0).aborted_transactions is None
    assert client.offset("users", -1, isolation_level=1).offset == 1
    end_transaction(log, 5, 0, commit=False)
    answer = client.fetch("users", 0, **committed)
    assert bases(answer) == [0, 1, 2, 3]
    assert [(a.producer_id, a.first_offset) for a in answer.aborted_transactions] == [(5, 1)]
    assert client.fetch("users", 4, **committed).aborted_transactions == []
    log.append_batch(transactional(2, sequence=1))
    log.roll()
    end_transaction(log, 5, 0, commit=False)  # in the next segment
    answer = client.fetch("users", 4, **committed)
    assert [(a.producer_id, a.first_offset) for a in answer.aborted_transactions] == [(5, 4)]


def test_a_committed_read_waits_for_the_decision(
    server: Server, client: Client, logs: lastword.LogDir, users: lastword.Topic
) -> None:
    log = logs.dirs.log("users", 0)
    log.append_batch(transactional(1))
    client.send(fetch_request([("users", 0, 0)], isolation_level=1, max_wait_ms=5000), 12)
    time.sleep(0.05)
    log.append_batch(ONE)  # wakes the fetch, which is not answered
    time.sleep(0.05)
    began = time.monotonic()
    end_transaction(log, 5, 0, commit=True)
    assert bases(client.receive().responses[0].partitions[0]) == [0, 1, 2]
    assert time.monotonic() - began < 2


def test_the_settings_of_deleted_topics_are_removed_with_one_sync(tmp_path: Path) -> None:
    """The directory was synced for each topic of a request: 4,000 topics took 27 s."""
    files = RecordingFiles(UNSYNCED)
    names = [f"t{number}" for number in range(20)]
    with served(tmp_path / "data", files=files) as (logs, _, client):
        for name in ("other", *names):
            logs.create_topic(name, retention_ms=10**9)
        files.calls.clear()
        topics = [
            DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in (*names, "absent")
        ]
        answer = client.ask(DeleteTopicsRequest(topics=topics, timeout_ms=1000))
        codes_of = {topic.name: topic.error_code for topic in answer.responses}
        assert codes_of == dict.fromkeys(names, 0) | {"absent": codes.UNKNOWN_TOPIC_OR_PARTITION}
        removed = [call for call in files.changes if call.name == "unlink" and "lastword.topic-" in call.path]
        synced = [call for call in files.changes if call.name == "fsync_dir"]
        assert len(removed) == 20 and len(synced) <= 8
        assert list(logs) == ["other"] and not logs.settings.is_set("retention.ms", "t0", own=True)
        assert logs["other"].config.retention_ms == 10**9


@pytest.mark.parametrize("directories", [1, 2])
def test_the_topics_of_a_request_are_made_together_but_those_that_are_refused(
    tmp_path: Path, directories: int
) -> None:
    """The root was synced for each topic: 1,000 topics took 29 s."""
    files = RecordingFiles(UNSYNCED)
    roots = [str(tmp_path / f"d{number}") for number in range(directories)]
    with served(roots, files=files) as (logs, _, client):
        logs.create_topic("other")
        wanted = {f"t{number}": {"retention.ms": "9000"} for number in range(20)}

        def created(topics: dict[str, dict[str, str]]) -> dict[str, int]:
            files.calls.clear()
            asked = [new_topic(name, 2, settings) for name, settings in topics.items()]
            return {topic.name: topic.error_code for topic in create(client, *asked)}

        assert created({**wanted, "other": {}}) == dict.fromkeys(wanted, 0) | {
            "other": codes.TOPIC_ALREADY_EXISTS
        }
        written = [call for call in files.changes if "/lastword.to" in str(call.detail)]
        synced = [call for call in files.changes if call.name == "fsync_dir" and call.path in roots]
        assert len(written) == 20 and len(synced) <= 8
        assert {name: logs.topic(name).partitions for name in logs} == dict.fromkeys(wanted, 2) | {"other": 1}
        assert {logs.topic(name).config.retention_ms for name in wanted} == {9000}
        ids = {topic.topic_id for topic in client.ask(MetadataRequest(topics=None)).topics}
        assert len(ids) == 21

        # Values that contradict each other are found when all of them are merged.
        refused = {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}
        again = created({"u1": {}, "u2": refused, "u3": {}})
        assert [again["u1"], again["u3"]] == [0, 0] and again["u2"] != 0
        assert "u2" not in logs and not list(tmp_path.glob("*/lastword.topic-u2.toml"))


def test_settings_of_a_newer_broker_are_accepted_with_their_defaults(client: Client) -> None:
    """The settings that 4.4.0 adds; `max.decompressed.message.bytes` may have an effect."""
    topics = [new_topic(name, 1, {name: value}) for name, value in ADDED_BY_KAFKA_44]
    assert [topic.error_code for topic in create(client, *topics)] == [0] * 4


@pytest.mark.parametrize("together", [False, True])
def test_a_creation_reads_the_id_of_no_other_topic(
    client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """1,000 topics in one request took minutes: each creation read the id of every topic."""
    for number in range(20):
        logs.create_topic(f"old{number}")
    assert len(client.ask(MetadataRequest(topics=None)).topics) == 20
    read: list[str] = []
    topic_id = LogDirSet.topic_id

    def counted(dir_set: LogDirSet, topic: str) -> str | None:
        read.append(topic)
        return topic_id(dir_set, topic)

    monkeypatch.setattr(LogDirSet, "topic_id", counted)
    new = [new_topic(f"new{number}") for number in range(5)]
    for topics in [new] if together else [[topic] for topic in new]:
        assert [topic.error_code for topic in create(client, *topics)] == [0] * len(topics)
    assert sorted(read) == [f"new{number}" for number in range(5)]
    ids = {topic.name: topic.topic_id for topic in client.ask(MetadataRequest(topics=None)).topics}
    assert len(set(ids.values())) == 25


def test_a_request_of_metadata_creates_its_missing_topics_together(
    client: Client, users: lastword.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[list[str]] = []
    create_topics = topics_module.create_topics

    def counted(dirs: OpenDirs, topics: dict[str, Any]) -> None:
        together.append(sorted(topics))
        create_topics(dirs, topics)

    monkeypatch.setattr(topics_module, "create_topics", counted)
    names = ["new1", "users", "__consumer_offsets", "new2", "new1"]
    answer = client.ask(metadata(*names))
    assert sorted(topic.name for topic in answer.topics) == sorted({*names})
    assert [topic.error_code for topic in answer.topics] == [0] * 4
    assert together == [["new1", "new2"], ["__consumer_offsets"]]
    together.clear()
    answer = client.ask(metadata("new3", "no/name", "new4"))
    codes_of = {topic.name: topic.error_code for topic in answer.topics}
    assert codes_of == {"new3": 0, "new4": 0, "no/name": codes.INVALID_TOPIC_EXCEPTION}
    assert together == [["new3", "new4", "no/name"], ["new3"], ["no/name"], ["new4"]]


def test_a_change_of_settings_or_a_deletion_reads_no_id_of_another_topic(
    client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, _ = logs.create_topic("users"), logs.create_topic("other")
    client.ask(MetadataRequest(topics=None))
    monkeypatch.setattr(LogDirSet, "topic_id", lambda dir_set, topic: pytest.fail("an id is read again"))
    users.set_config(retention_ms=10**9)
    logs.delete_topic("other")
    assert [topic.name for topic in client.ask(MetadataRequest(topics=None)).topics] == ["users"]


def test_changes_of_settings_list_the_directory_once(
    logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of many topics by one request would list all topics for each of them."""
    topics = [logs.create_topic(f"t{number}") for number in range(5)]
    lists: list[Any] = []
    read = RootListing._list
    monkeypatch.setattr(RootListing, "_list", lambda *given: (lists.append(given), read(*given))[1])
    for topic in topics:
        topic.set_config(retention_ms=10**9)
    assert len(lists) <= 1
    assert [topic.config.retention_ms for topic in topics] == 5 * [10**9]


def test_the_largest_time_of_an_open_transaction_is_not_committed(
    client: Client, logs: lastword.LogDir, users: lastword.Topic
) -> None:
    log = logs.dirs.log("users", 0)
    log.append_batch(batch((b"k", b"v"), timestamp=2000, producer=(7, 0, 0), attributes=0x10))
    for timestamp in (-3, 1000):
        assert client.offset("users", timestamp).offset == 0
        found = client.offset("users", timestamp, isolation_level=1)
        assert (found.offset, found.timestamp, found.leader_epoch) == (-1, -1, -1)


@pytest.mark.parametrize("most_bytes", [1, 1000, 1 << 20])
def test_a_fetch_has_the_aborted_transactions_of_its_own_records(
    client: Client, logs: lastword.LogDir, most_bytes: int
) -> None:
    """Not those of the rest of the log, of which each fetch would send the whole list."""
    logs.create_topic("t", cleanup_policy="delete", segment_bytes=4096)
    log = logs.dirs.log("t", 0)
    for number in range(60):
        log.append_batch(batch((b"k", b"v" * 100), producer=(7, 0, number), attributes=0x10))
        end_transaction(log, 7, 0, commit=number % 3 == 0)
    assert len(log.segments) > 2
    offset, aborted, most = 0, set(), 0
    while offset < log.log_end:
        answer = client.fetch("t", offset, isolation_level=1, partition_max_bytes=most_bytes)
        first = offset
        for header in headers(bytes(answer.records)):
            offset = header.last_offset + 1
        named = {entry.first_offset for entry in answer.aborted_transactions}
        expected = {2 * number for number in range(60) if number % 3}
        assert named >= {start for start in expected if start < offset and start + 1 >= first}
        aborted |= named
        most = max(most, len(named))
    assert aborted == expected
    assert most <= 1 + most_bytes // 100


def test_a_waiting_fetch_is_answered_when_its_topic_goes(
    server: Server, client: Client, users: lastword.Topic
) -> None:
    client.send(fetch_request([("users", 0, 0)], max_wait_ms=60_000), 12)
    with Client(server) as other:
        other.ask(DeleteTopicsRequest(topic_names=["users"], timeout_ms=1000), 5)
    began = time.monotonic()
    client.receive()
    assert time.monotonic() - began < 2
    assert client.fetch("users", 0).error_code == codes.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_goes_on_while_its_segment_is_replaced(client: Client, logs: lastword.LogDir) -> None:
    """The answer is larger than the socket takes, and the cleaner replaces its segment meanwhile."""
    logs.create_topic("users", cleanup_policy="compact", segment_bytes="8MiB")
    data = batch((b"k", b"v" * 900_000))
    for _ in range(8):
        client.produce("users", data)
    client.send(fetch_request([("users", 0, 0)], partition_max_bytes=50 << 20), 12)
    time.sleep(0.1)
    log = logs.dirs.log("users", 0)
    log.roll()
    log.raise_log_start(8)
    log.remove_prefix()
    log.remove_deferred()
    answer = client.receive().responses[0].partitions[0]
    assert bases(answer) == list(range(8))
    assert bytes(answer.records)[16 : len(data)] == data[16:]


# ------------------------------------------------------------------ offsets


def test_offsets_by_time_and_special_values(client: Client, users: lastword.Topic) -> None:
    for timestamp in (1000, 5000, 3000):
        client.produce("users", batch((b"k", b"v"), (b"k", b"v"), timestamp=timestamp))
    found = [(at, client.offset("users", at)) for at in (-2, -1, -3, 0, 1001, 5001, -4, -5)]
    assert [(at, answer.offset, answer.timestamp) for at, answer in found] == [
        (-2, 0, -1),
        (-1, 6, -1),
        (-3, 2, 5000),
        (0, 0, 1000),
        (1001, 2, 5000),
        (5001, -1, -1),
        (-4, 0, -1),
        (-5, -1, -1),
    ]
    assert client.offset("users", -9).error_code == codes.UNSUPPORTED_VERSION
    assert client.offset("users", -3, version=6).error_code == codes.UNSUPPORTED_VERSION


def test_the_largest_time_is_that_of_a_record_and_not_of_an_emptied_batch(
    client: Client, logs: lastword.LogDir
) -> None:
    """A cleaning keeps the last batch of a producer, emptied. See `findings/no-record-from-time-zero.sh`."""
    topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=100)
    topic.append(b"k", b"old", timestamp=9000, producer="job", sequence=0)
    topic.append(b"k", b"new", timestamp=6000)
    topic.append(b"a", b"1", timestamp=7000)
    assert client.offset("t", -3).offset == 0
    logs.clean("t")
    assert [client.offset("t", at).offset for at in (0, 6500, 8000, -3)] == [1, 2, -1, 2]


def test_the_largest_time_is_not_that_of_a_record_below_the_log_start(
    client: Client, logs: lastword.LogDir
) -> None:
    topic = logs.create_topic("t", retention_ms=-1)
    times = [9000, 5000, 6000]
    topic.extend([lastword.Record("t", 0, 0, time, "create_time", b"k", b"v") for time in times])
    assert client.offset("t", -3).offset == 0
    topic.trim(1)  # inside the only batch
    assert client.offset("t", -3).offset == 2


def test_the_end_of_a_leader_epoch(client: Client, users: lastword.Topic) -> None:
    client.produce("users", ONE)

    def ask(epoch: int) -> tuple[int, int]:
        partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(leader_epoch=epoch)
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="users", partitions=[partition])
        answer = client.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic]))
        return answer.topics[0].partitions[0].leader_epoch, answer.topics[0].partitions[0].end_offset

    assert ask(0) == (0, 1)
    assert ask(1) == (-1, -1)


@pytest.mark.parametrize("only_validates", [True, False])
def test_settings_that_contradict_each_other_are_refused(
    client: Client, logs: lastword.LogDir, only_validates: bool
) -> None:
    logs.create_topic("users")
    lags = {"min.compaction.lag.ms": "1000", "max.compaction.lag.ms": "10"}
    changes = [(name, 0, value) for name, value in lags.items()]
    assert alter(client, *changes, validate_only=only_validates) == codes.INVALID_CONFIG
    (created,) = create(client, new_topic("events", 1, lags), validate_only=only_validates)
    assert created.error_code == codes.INVALID_CONFIG


def test_log_directories_are_described_beside_a_drive_that_is_gone(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    logs = lastword.open(paths, "a", files=UNSYNCED, log_cleaner_enable=False)
    logs.create_topic("users", 2, cleanup_policy="delete")
    server = lastword.serve(logs, "127.0.0.1:0")
    with Client(server) as client:
        for number in range(2):
            client.produce("users", batch((b"k", b"v")), partition=number)
        request = DescribeLogDirsRequest(topics=None)
        assert [result.error_code for result in client.ask(request).results] == [0, 0]
        paths[1].rename(tmp_path / "gone")
        for _ in range(2):  # before and after the server has found that the drive is gone
            there, gone = client.ask(request).results
            assert (there.error_code, there.topics[0].partitions[0].partition_index) == (0, 0)
            assert there.total_bytes > 0
            assert (gone.error_code, gone.topics, gone.total_bytes) == (codes.KAFKA_STORAGE_ERROR, [], -1)
            with pytest.raises(LastwordError, match="offline"):
                logs.sync()
        (tmp_path / "gone").rename(paths[1])
    for closes in (server.close, logs.close):  # not everything can be synced
        with pytest.raises(LastwordError, match="offline"):
            closes()


def unlisted() -> None:
    raise StorageError("cannot list the directory: Input/output error")


def test_topics_that_cannot_be_listed_are_answered(
    server: Server, logs: lastword.LogDir, users: lastword.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the error, if the answer has a place for it; the others close the connection."""
    with Client(server) as client, monkeypatch.context() as patch:
        patch.setattr(logs.dirs.dir_set, "log_dirs_by_topic", unlisted)
        server.context.topics.changed("users")
        error = codes.KAFKA_STORAGE_ERROR
        assert client.ask(fetch_request([("users", 0, 0)]), 12).error_code == error
        assert client.ask(metadata("users"), 12).topics[0].error_code == error
        assert client.produce("users", ONE).error_code == error
        assert client.ask(MetadataRequest(topics=None), 13).error_code == error
        for request in (produce_request("users", ONE, acks=0), MetadataRequest(topics=None)):
            with Client(server) as other, pytest.raises(ConnectionError):
                other.ask(request, 12)
        patch.undo()
        assert client.produce("users", ONE).base_offset == 0


def test_a_topic_that_is_created_again_is_found_after_a_listing_that_failed(
    client: Client, logs: lastword.LogDir, users: lastword.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client.topic_id()
    logs.delete_topic("users")
    logs.create_topic("users")
    with monkeypatch.context() as patch:
        patch.setattr(logs.dirs.dir_set, "log_dirs_by_topic", unlisted)
        assert client.ask(fetch_request([("users", 0, 0)]), 12).error_code == codes.KAFKA_STORAGE_ERROR
    assert client.topic_id() != before


# ------------------------------------------------------------------ the server itself


def test_closing_answers_what_would_wait(logs: lastword.LogDir, users: lastword.Topic) -> None:
    """Requests that were received together. A log that stays open has nothing of the server that ended."""
    server = lastword.serve(logs, "127.0.0.1:0")
    with Client(server) as client:
        for _ in range(2):
            client.hold(fetch_request([("users", 0, 0)], max_wait_ms=60_000), 12)
        client.hold(
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            3,
        )
        client.send(fetch_request([("users", 0, 0)], max_wait_ms=60_000), 12)
        time.sleep(0.1)
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 2
        for _ in range(2):
            assert client.receive().responses[0].partitions[0].error_code == 0
        assert client.receive().error_code == codes.NOT_COORDINATOR
        assert client.receive().responses[0].partitions[0].error_code == 0
    assert users.append(b"k", b"v").offset == 0


@pytest.mark.slow
def test_closing_waits_for_work_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A drive that hangs: the client has no answer, but the log is closed, and can be opened again."""
    append_batch, begins, ends = PartitionLog.append_batch, threading.Event(), threading.Event()

    def slow(log: PartitionLog, data: Any, **options: Any) -> Any:
        if log.name == "users-0":
            begins.set()
            assert ends.wait(60)
        return append_batch(log, data, **options)

    with lastword.serve(tmp_path, "127.0.0.1:0") as server, Client(server) as client:
        create(client, new_topic("users"))
        writer = started(client, SystemClock())
        monkeypatch.setattr(PartitionLog, "append_batch", slow)
        data = batch((b"k", bytes(300_000)), producer=(writer.producer_id, 0, 0), attributes=0x10)
        client.send(produce_request("users", data, transactional_id="t"), 12)
        assert begins.wait(10)
        threading.Timer(2 * DRAIN_SECONDS + 1, ends.set).start()
        server.close()
        with pytest.raises(ConnectionError):
            client.receive()
    with lastword.open(tmp_path) as logs:
        assert len(list(logs["users"].read(isolation="read_uncommitted"))) == 1
    assert "Task was destroyed" not in capfd.readouterr().err


def test_requests_are_counted_when_metrics_are_exported(
    server: Server, client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "is_exported", False)  # a test of the command may have exported them
    for metric in metrics.metrics():
        if metric.name.startswith("server_"):
            monkeypatch.setattr(metric, "_values", {})
    logs.create_topic("users")
    client.ask(ApiVersionsRequest())
    assert metrics.SERVER_REQUESTS.samples() == []
    monkeypatch.setattr(metrics, "is_exported", True)
    data = batch((b"k", b"v" * 1000))
    client.produce("users", data)
    client.produce("nowhere", data)
    client.produce("users", data, acks=0)
    assert len(client.fetch("users", 0).records) > 2000
    client.fetch("users", 9)
    assert metrics.SERVER_REQUESTS.samples() == [
        (("Fetch", "NONE"), 1),
        (("Fetch", "OFFSET_OUT_OF_RANGE"), 1),
        (("Produce", "NONE"), 2),
        (("Produce", "UNKNOWN_TOPIC_OR_PARTITION"), 1),
    ]
    assert metrics.SERVER_REQUEST_SECONDS.count("Produce") == 3
    assert 3000 < metrics.SERVER_RECEIVED_BYTES.value("Produce") < 4000
    assert 2000 < metrics.SERVER_SENT_BYTES.value("Fetch") < 3000
    list(metrics.metrics())
    assert metrics.SERVER_CONNECTIONS.value(server.bootstrap_servers) == 1
    client.socket.sendall(b"\xff" * 10)
    assert client.socket.recv(1) == b""
    assert metrics.SERVER_REFUSED_CONNECTIONS.samples() == [(("malformed",), 1)]


@pytest.mark.parametrize("only_validates", [False, True])
def test_settings_of_a_new_topic_that_another_file_hides_are_refused(
    tmp_path: Path, only_validates: bool
) -> None:
    other = tmp_path / "other.toml"
    other.write_text("")
    topics = [new_topic("plain"), new_topic("compacted", 1, {"cleanup.policy": "compact"})]
    with served(tmp_path / "data", config=other) as (logs, _, client):
        plain, compacted = create(client, *topics, validate_only=only_validates)
        assert (plain.error_code, compacted.error_code) == (codes.NONE, codes.INVALID_REQUEST)
        assert "other.toml" in compacted.error_message
        assert list(logs) == ([] if only_validates else ["plain"])


def test_a_partition_that_is_named_twice_has_one_answer(client: Client, users: lastword.Topic) -> None:
    asked = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=at)
        for at in (-1, -2)
    ]
    for version in (5, 7, NEWEST["ListOffsets"]):
        for topics in ([asked], [asked[:1], asked[1:]]):
            named = [ListOffsetsRequest.ListOffsetsTopic(name="users", partitions=part) for part in topics]
            answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=named), version)
            [topic] = answer.topics
            [partition] = topic.partitions
            assert (partition.error_code, partition.offset) == (codes.INVALID_REQUEST, -1)


def test_a_session_over_a_topic_that_was_created_again(client: Client, logs: lastword.LogDir) -> None:
    logs.create_topic("users")
    body: Any = fetch_request([("", 0, 0)], session_epoch=0)
    body.topics[0].topic_id = client.topic_id()
    first = client.ask(body, 13)
    assert first.error_code == 0 and first.session_id
    logs.delete_topic("users")
    logs.create_topic("users")
    answer = client.ask(fetch_request([], session_id=first.session_id, session_epoch=1), 13)
    assert answer.responses[0].partitions[0].error_code == codes.INCONSISTENT_TOPIC_ID


def test_a_request_creates_no_more_partitions_than_kafka_allows(
    client: Client, logs: lastword.LogDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MOST_PARTITIONS", 5)
    names = [f"t{number}" for number in range(6)]
    answer = client.ask(metadata(*names))
    assert {topic.error_code for topic in answer.topics} == {codes.UNKNOWN_TOPIC_OR_PARTITION}
    assert "Excessively large number of partitions" in caplog.text
    created = create(client, *map(new_topic, names))
    assert {topic.error_code for topic in created} == {codes.POLICY_VIOLATION}
    assert not list(logs)
    assert {topic.error_code for topic in client.ask(metadata(*names[:5])).topics} == {0}


def test_the_topic_of_a_coordinator_keeps_its_partitions(client: Client, logs: lastword.LogDir) -> None:
    """Another number would be another partition for most groups: their former records would be read later."""
    kind = CreatePartitionsRequest.CreatePartitionsTopic
    client.ask(metadata("__consumer_offsets", allow_auto_topic_creation=True))
    answer = client.ask(CreatePartitionsRequest(topics=[kind(name="__consumer_offsets", count=3)]))
    assert answer.results[0].error_code == codes.INVALID_PARTITIONS
    assert logs["__consumer_offsets"].partitions == 1


def test_an_error_message_is_cut_where_a_string_ends(client: Client) -> None:
    """The message has the name in it, and a longer one could not be sent: the connection was closed."""
    name = "x" * 32_767
    (answer,) = client.ask(CreateTopicsRequest(topics=[new_topic(name)])).topics
    assert (answer.error_code, answer.name) == (codes.INVALID_TOPIC_EXCEPTION, name)
    assert answer.error_message.startswith("Topic name is invalid: the length of 'xxx")


@pytest.mark.parametrize("ends", ["client", "server"])
def test_the_creation_of_topics_ends_with_its_client_and_with_the_server(
    ends: str, server: Server, client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "CREATED_TOGETHER", 2)
    begun, ended = threading.Event(), threading.Event()
    create_topics = topics_module.create_topics

    def slow(*arguments: Any) -> None:
        begun.set()
        assert ended.wait(10)
        create_topics(*arguments)

    monkeypatch.setattr(topics_module, "create_topics", slow)
    client.send(metadata(*[f"t{number}" for number in range(10)]))
    assert begun.wait(10)
    if ends == "client":
        client.socket.close()
    else:
        server.context.is_closing = True
    ended.set()
    done = threading.Event()
    server.loop.call_soon_threadsafe(server.context.in_turn, done.set)  # after the creation
    assert done.wait(10)
    assert len(list(logs)) == 2
