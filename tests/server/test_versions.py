"""Every API that is served answers every version that it advertises."""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

import lastword
from lastword.protocol import codes, messages
from lastword.protocol.codes import APIS
from lastword.protocol.schemas import FIXED, Field, Message, schema_of, within
from lastword.server import Server
from tests.server.client import Client, batch
from tests.support.exhaustive import stride

TIMES_OUT = {"timeout_ms": 1000}


def named(version: int, first_with_id: int, topic_id: bytes, field: str = "name") -> dict[str, Any]:
    """Return the field that names the topic in this version."""
    return {"topic_id": topic_id} if version >= first_with_id else {field: "users"}


def produce(version: int, topic_id: bytes) -> Any:
    kind = messages.ProduceRequest
    data = kind.PartitionProduceData(index=0, records=batch((b"k", b"v")))
    topic = kind.TopicProduceData(partition_data=[data], **named(version, 13, topic_id))
    return kind(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[topic])


def fetch(version: int, topic_id: bytes) -> Any:
    kind = messages.FetchRequest
    partition = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = kind.FetchTopic(partitions=[partition], **named(version, 13, topic_id, "topic"))
    more = {} if version < 7 else {"session_id": 0, "session_epoch": 0}
    return kind(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=1, topics=[topic], **more)


def list_offsets(version: int, topic_id: bytes) -> Any:
    kind = messages.ListOffsetsRequest
    partition = kind.ListOffsetsPartition(partition_index=0, timestamp=-1)
    return kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name="users", partitions=[partition])])


def metadata(version: int, topic_id: bytes) -> Any:
    kind = messages.MetadataRequest
    return kind(topics=[kind.MetadataRequestTopic(name="users")])


def offset_commit(version: int, topic_id: bytes) -> Any:
    kind = messages.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata=""
    )
    topic = kind.OffsetCommitRequestTopic(partitions=[partition], **named(version, 10, topic_id))
    return kind(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic])


def offset_fetch(version: int, topic_id: bytes) -> Any:
    kind = messages.OffsetFetchRequest
    if version < 8:
        topic = kind.OffsetFetchRequestTopic(name="users", partition_indexes=[0])
        return kind(group_id="g", topics=[topic])
    topics = kind.OffsetFetchRequestTopics(partition_indexes=[0], **named(version, 10, topic_id))
    return kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=[topics])])


def all_offsets(version: int, topic_id: bytes) -> Any:
    kind = messages.OffsetFetchRequest
    if version < 8:
        return kind(group_id="g", topics=None if version >= 2 else [])
    return kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=None)])


def find_coordinator(version: int, topic_id: bytes) -> Any:
    return messages.FindCoordinatorRequest(**({"key": "g"} if version < 4 else {"coordinator_keys": ["g"]}))


def join_group(version: int, topic_id: bytes) -> Any:
    kind = messages.JoinGroupRequest
    protocol = kind.JoinGroupRequestProtocol(name="range", metadata=b"")
    fields = {"rebalance_timeout_ms": 10_000} if version >= 1 else {}
    return kind(
        group_id=f"h{version}",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
        **fields,
    )


def sync_group(version: int, topic_id: bytes) -> Any:
    protocol = {} if version < 5 else {"protocol_type": "consumer", "protocol_name": "range"}
    return messages.SyncGroupRequest(group_id="g", generation_id=1, member_id="x", assignments=[], **protocol)


def heartbeat(version: int, topic_id: bytes) -> Any:
    return messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="x")


def leave_group(version: int, topic_id: bytes) -> Any:
    kind = messages.LeaveGroupRequest
    fields = {"member_id": "x"} if version < 3 else {"members": [kind.MemberIdentity(member_id="x")]}
    return kind(group_id="g", **fields)


def group_heartbeat(version: int, topic_id: bytes) -> Any:
    return messages.ConsumerGroupHeartbeatRequest(
        group_id="h",
        member_id=f"m{version}",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["users"],
        topic_partitions=[],
    )


def create_topics(version: int, topic_id: bytes) -> Any:
    kind = messages.CreateTopicsRequest
    topic = kind.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    return kind(topics=[topic], **TIMES_OUT)


def delete_topics(version: int, topic_id: bytes) -> Any:
    kind = messages.DeleteTopicsRequest
    fields = {"topics": [kind.DeleteTopicState(name="users")]} if version >= 6 else {"topic_names": ["users"]}
    return kind(**fields, **TIMES_OUT)


def delete_records(version: int, topic_id: bytes) -> Any:
    kind = messages.DeleteRecordsRequest
    partition = kind.DeleteRecordsPartition(partition_index=0, offset=0)
    return kind(topics=[kind.DeleteRecordsTopic(name="users", partitions=[partition])], **TIMES_OUT)


def offset_for_leader_epoch(version: int, topic_id: bytes) -> Any:
    kind = messages.OffsetForLeaderEpochRequest
    partition = kind.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return kind(topics=[kind.OffsetForLeaderTopic(topic="users", partitions=[partition])])


def describe_configs(version: int, topic_id: bytes) -> Any:
    kind = messages.DescribeConfigsRequest
    resources = [
        kind.DescribeConfigsResource(resource_type=number, resource_name=name, configuration_keys=None)
        for number, name in ((2, "users"), (4, "1"))
    ]
    return kind(resources=resources)


def alter_configs(version: int, topic_id: bytes) -> Any:
    kind = messages.AlterConfigsRequest
    config = kind.AlterableConfig(name="retention.ms", value="5000")
    resource = kind.AlterConfigsResource(resource_type=2, resource_name="users", configs=[config])
    return kind(resources=[resource], validate_only=False)


def incremental_alter_configs(version: int, topic_id: bytes) -> Any:
    kind = messages.IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(name="cleanup.policy", config_operation=2, value="compact")
    resource = kind.AlterConfigsResource(resource_type=2, resource_name="users", configs=[config])
    return kind(resources=[resource], validate_only=False)


def create_partitions(version: int, topic_id: bytes) -> Any:
    kind = messages.CreatePartitionsRequest
    return kind(topics=[kind.CreatePartitionsTopic(name="users", count=2, assignments=None)], **TIMES_OUT)


def describe_producers(version: int, topic_id: bytes) -> Any:
    kind = messages.DescribeProducersRequest
    return kind(topics=[kind.TopicRequest(name="users", partition_indexes=[0])])


def describe_topic_partitions(version: int, topic_id: bytes) -> Any:
    kind = messages.DescribeTopicPartitionsRequest
    return kind(topics=[kind.TopicRequest(name="users")], cursor=None)


def offset_delete(version: int, topic_id: bytes) -> Any:
    kind = messages.OffsetDeleteRequest
    partition = kind.OffsetDeleteRequestPartition(partition_index=0)
    return kind(group_id="g", topics=[kind.OffsetDeleteRequestTopic(name="users", partitions=[partition])])


def add_partitions_to_txn(version: int, topic_id: bytes) -> Any:
    kind = messages.AddPartitionsToTxnRequest
    topics = [kind.AddPartitionsToTxnTopic(name="users", partitions=[0])]
    if version < 4:
        return kind(
            v3_and_below_transactional_id="none",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
    transaction = kind.AddPartitionsToTxnTransaction(
        transactional_id="none", producer_id=1, producer_epoch=0, topics=topics
    )
    return kind(transactions=[transaction])


def txn_offset_commit(version: int, topic_id: bytes) -> Any:
    kind = messages.TxnOffsetCommitRequest
    partition = kind.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    return kind(
        transactional_id="none",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=[kind.TxnOffsetCommitRequestTopic(name="users", partitions=[partition])],
    )


REQUESTS: dict[str, Callable[[int, bytes], Any]] = {
    "Produce": produce,
    "Fetch": fetch,
    "ListOffsets": list_offsets,
    "Metadata": metadata,
    "OffsetCommit": offset_commit,
    "OffsetFetch": offset_fetch,
    "FindCoordinator": find_coordinator,
    "JoinGroup": join_group,
    "SyncGroup": sync_group,
    "Heartbeat": heartbeat,
    "LeaveGroup": leave_group,
    "DescribeGroups": lambda version, topic_id: messages.DescribeGroupsRequest(groups=["g", "none"]),
    "ConsumerGroupHeartbeat": group_heartbeat,
    "ConsumerGroupDescribe": lambda version, topic_id: messages.ConsumerGroupDescribeRequest(
        group_ids=["g", "none"]
    ),
    "ListGroups": lambda version, topic_id: messages.ListGroupsRequest(),
    "SaslHandshake": lambda version, topic_id: messages.SaslHandshakeRequest(mechanism="PLAIN"),
    "SaslAuthenticate": lambda version, topic_id: messages.SaslAuthenticateRequest(auth_bytes=b"\0a\0b"),
    "ApiVersions": lambda version, topic_id: messages.ApiVersionsRequest(
        **({"client_software_name": "t", "client_software_version": "1"} if version >= 3 else {})
    ),
    "CreateTopics": create_topics,
    "DeleteTopics": delete_topics,
    "DeleteRecords": delete_records,
    "InitProducerId": lambda version, topic_id: messages.InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1000
    ),
    "OffsetForLeaderEpoch": offset_for_leader_epoch,
    "DescribeConfigs": describe_configs,
    "AlterConfigs": alter_configs,
    "DescribeLogDirs": lambda version, topic_id: messages.DescribeLogDirsRequest(topics=None),
    "CreatePartitions": create_partitions,
    "DeleteGroups": lambda version, topic_id: messages.DeleteGroupsRequest(groups_names=["none"]),
    "IncrementalAlterConfigs": incremental_alter_configs,
    "OffsetDelete": offset_delete,
    "DescribeCluster": lambda version, topic_id: messages.DescribeClusterRequest(),
    "DescribeProducers": describe_producers,
    "DescribeTopicPartitions": describe_topic_partitions,
    "AddPartitionsToTxn": add_partitions_to_txn,
    "AddOffsetsToTxn": lambda version, topic_id: messages.AddOffsetsToTxnRequest(
        transactional_id="none", producer_id=1, producer_epoch=0, group_id="g"
    ),
    "EndTxn": lambda version, topic_id: messages.EndTxnRequest(
        transactional_id="none", producer_id=1, producer_epoch=0, committed=True
    ),
    "TxnOffsetCommit": txn_offset_commit,
    "DescribeTransactions": lambda version, topic_id: messages.DescribeTransactionsRequest(
        transactional_ids=["none"]
    ),
    "ListTransactions": lambda version, topic_id: messages.ListTransactionsRequest(
        state_filters=[], producer_id_filters=[]
    ),
}
EXPECTED = {
    "DescribeAcls": {codes.SECURITY_DISABLED},
    "CreateDelegationToken": {codes.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    "RenewDelegationToken": {codes.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    "ExpireDelegationToken": {codes.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    "DescribeDelegationToken": {codes.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    "SaslHandshake": {codes.ILLEGAL_SASL_STATE},
    "SaslAuthenticate": {codes.ILLEGAL_SASL_STATE},
    "SyncGroup": {codes.UNKNOWN_MEMBER_ID},
    "Heartbeat": {codes.UNKNOWN_MEMBER_ID},
    "LeaveGroup": {codes.UNKNOWN_MEMBER_ID},
    "JoinGroup": {codes.MEMBER_ID_REQUIRED},
    "DeleteGroups": {codes.GROUP_ID_NOT_FOUND},
    "DescribeGroups": {codes.GROUP_ID_NOT_FOUND},
    "ConsumerGroupDescribe": {codes.GROUP_ID_NOT_FOUND},
    "AddOffsetsToTxn": {codes.INVALID_PRODUCER_ID_MAPPING},
    "EndTxn": {codes.INVALID_PRODUCER_ID_MAPPING},
    "TxnOffsetCommit": {codes.INVALID_PRODUCER_ID_MAPPING},
    "DescribeTransactions": {codes.TRANSACTIONAL_ID_NOT_FOUND},
}
"""Error codes that the request above has as its answer."""


def error_codes(message: Any) -> set[int]:
    """Return the error codes of a message and of its structs, without 0."""
    found: set[int] = set()
    for name in message.__slots__:
        value = getattr(message, name)
        if name == "error_code" and value:
            found.add(value)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Message):
                found |= error_codes(part)
    return found


ADMINISTRATION = {
    "DescribeAcls": {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    },
    "ElectLeaders": {"topic_partitions": None, "timeout_ms": 1000},
    "ListPartitionReassignments": {"timeout_ms": 1000},
    "AlterPartitionReassignments": {"timeout_ms": 1000},
    "WriteTxnMarkers": {
        "markers": [
            messages.WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=7,
                producer_epoch=0,
                transaction_result=False,
                topics=[
                    messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                        name="users", partition_indexes=[0]
                    )
                ],
                coordinator_epoch=0,
            )
        ]
    },
}
"""The arguments of requests that a node without an authorizer answers."""
for _name in (
    *("WriteTxnMarkers", "DescribeAcls", "CreateAcls", "DeleteAcls", "AlterReplicaLogDirs", "ElectLeaders"),
    *("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken"),
    *("AlterPartitionReassignments", "ListPartitionReassignments", "DescribeClientQuotas"),
    *("AlterClientQuotas", "DescribeUserScramCredentials", "DescribeQuorum", "ListConfigResources"),
):
    REQUESTS[_name] = lambda version, topic_id, name=_name: getattr(messages, f"{name}Request")(
        **ADMINISTRATION.get(name, {})
    )


def test_there_is_a_request_for_every_api() -> None:
    assert {api.name for api in APIS.values()} == set(REQUESTS)


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_version_is_answered(name: str, server: Server, client: Client, logs: lastword.LogDir) -> None:
    api = next(api for api in APIS.values() if api.name == name)
    for version in range(api.first, api.stable + 1):
        topic = logs.create_topic("users", cleanup_policy="delete")
        client.produce("users", batch((b"k", b"v")))
        topic_id = client.ask(metadata(12, b"")).topics[0].topic_id
        client.ask(offset_commit(9, b""), 9)
        answer = client.ask(REQUESTS[name](version, topic_id), version)
        assert error_codes(answer) <= EXPECTED.get(name, set()), (version, answer)
        for created in {"users", "new"} & set(logs):
            logs.delete_topic(created)
        assert topic.name not in logs


def with_extremes(request: Message, name: str, version: int) -> Iterator[Message]:
    """Yield the request with each number of it replaced by the least, the largest and -1: one at a time."""

    def parts(message: Message, fields: list[Field]) -> Iterator[Message]:
        for field in fields:
            value = getattr(message, field.name, None)
            if not within(field.versions, version) or value is None:
                continue
            if field.struct is not None:
                for part in value if field.is_array else [value]:
                    yield from parts(part, field.fields)
            elif field.kind in FIXED and field.kind not in ("bool", "float64", "uuid") and not field.is_array:
                bits = 8 * struct.calcsize(FIXED[field.kind])
                signed = FIXED[field.kind].islower()
                for extreme in (-1, -(1 << bits - 1), (1 << bits - 1) - 1) if signed else ((1 << bits) - 1,):
                    setattr(message, field.name, extreme)
                    yield request
                setattr(message, field.name, value)

    yield from parts(request, schema_of(f"{name}Request").fields)


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_an_extreme_number_is_no_error_of_the_server(
    name: str, server: Server, client: Client, logs: lastword.LogDir, caplog: pytest.LogCaptureFixture
) -> None:
    api = next(api for api in APIS.values() if api.name == name)
    for version in sorted({api.first, api.stable}):
        logs.create_topic("users", cleanup_policy="delete", exist_ok=True)
        client.produce("users", batch((b"k", b"v")))
        topic_id = client.ask(metadata(12, b"")).topics[0].topic_id
        client.ask(offset_commit(9, b""), 9)
        requests = with_extremes(REQUESTS[name](version, topic_id), name, version)
        for request in islice(requests, 0, None, stride(2)):  # of three extremes: each in turn
            with Client(server, timeout=0.02) as other, contextlib.suppress(OSError):
                other.send(request, version)
                other.receive()
    client.ask(metadata(12, b""))
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("version", range(1, 11))
def test_all_offsets_of_a_group(client: Client, logs: lastword.LogDir, version: int) -> None:
    logs.create_topic("users")
    client.ask(offset_commit(9, b""), 9)
    answer = client.ask(all_offsets(version, b""), version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    expected = [] if version < 2 else [(0, 5)]
    assert [(p.partition_index, p.committed_offset) for t in topics for p in t.partitions] == expected
