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
from lastword.protocol import codes
from lastword.protocol.schemas import APIS, FIXED, Field, Message, message_class, schema_of, within
from lastword.server import Server
from tests.server.client import Client, batch
from tests.support.exhaustive import stride

TIMES_OUT = {"timeout_ms": 1000}
A_PARTITION: dict[str, Any] = {"partition_index": 0}
NO_MEMBER = {"group_id": "g", "generation_id": 1, "member_id": "x"}
NO_PRODUCER = {"producer_id": 1, "producer_epoch": 0}
NO_TRANSACTION = {"transactional_id": "none", **NO_PRODUCER}
A_MARKER = NO_PRODUCER | {
    "topics": [{"name": "users", "partition_indexes": [0]}],
    "transaction_result": False,
    "coordinator_epoch": 0,
}


def made(kind: type[Message], fields: list[Field], values: dict[str, Any]) -> Message:
    """Return a message of these values: a dict is a struct of it."""
    structs = {field.name: field for field in fields if field.struct is not None}

    def value_of(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [value_of(name, each) for each in value]
        if isinstance(value, dict):
            field = structs[name]
            assert field.struct is not None
            return made(field.struct, field.fields, value)
        return value

    return kind(**{name: value_of(name, value) for name, value in values.items()})


def request(api: str, values: dict[str, Any]) -> Message:
    return made(message_class(f"{api}Request"), schema_of(f"{api}Request").fields, values)


def request_of(api: str, version: int, topic_id: bytes) -> Message:
    """Return the request of an API in a version."""
    values = REQUESTS[api]
    return request(api, values(version, topic_id) if callable(values) else values)


def users(key: str, parts: list[Any], field: str = "name") -> dict[str, Any]:
    """Return the topic by its name, with some of its partitions."""
    return {"topics": [{field: "users", key: parts}]}


def by_id(version: int, first: int, topic_id: bytes, field: str = "name") -> dict[str, Any]:
    """Return the field that names the topic: from the version `first` on, the request has its id."""
    return {"topic_id": topic_id} if version >= first else {field: "users"}


def produce(version: int, topic_id: bytes) -> dict[str, Any]:
    parts = [{"index": 0, "records": batch((b"k", b"v"))}]
    topics = [{"partition_data": parts, **by_id(version, 13, topic_id)}]
    return {"transactional_id": None, "acks": -1, "topic_data": topics, **TIMES_OUT}


def fetch(version: int, topic_id: bytes) -> dict[str, Any]:
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    topics = [{"partitions": parts, **by_id(version, 13, topic_id, "topic")}]
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 1}
    return limits | {"topics": topics} | ({} if version < 7 else {"session_id": 0, "session_epoch": 0})


def offset_commit(version: int, topic_id: bytes) -> dict[str, Any]:
    parts = [A_PARTITION | {"committed_offset": 5, "committed_metadata": ""}]
    topics = [{"partitions": parts, **by_id(version, 10, topic_id)}]
    return {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}


def offset_fetch(version: int, topic_id: bytes) -> dict[str, Any]:
    topics = [{"partition_indexes": [0], **by_id(version, 10, topic_id)}]
    group = {"group_id": "g", "topics": topics}
    return group if version < 8 else {"groups": [group]}


def join_group(version: int, topic_id: bytes) -> dict[str, Any]:
    return {
        "group_id": f"h{version}",
        "session_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    } | ({"rebalance_timeout_ms": 10_000} if version >= 1 else {})


def sync_group(version: int, topic_id: bytes) -> dict[str, Any]:
    protocol = {} if version < 5 else {"protocol_type": "consumer", "protocol_name": "range"}
    return {**NO_MEMBER, "assignments": [], **protocol}


def leave_group(version: int, topic_id: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = {"member_id": "x"} if version < 3 else {"members": [{"member_id": "x"}]}
    return {"group_id": "g", **fields}


def group_heartbeat(version: int, topic_id: bytes) -> dict[str, Any]:
    return {
        "group_id": "h",
        "member_id": f"m{version}",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["users"],
        "topic_partitions": [],
    }


def add_partitions_to_txn(version: int, topic_id: bytes) -> dict[str, Any]:
    transaction = NO_TRANSACTION | users("partitions", [0])
    if version < 4:
        return {f"v3_and_below_{name}": value for name, value in transaction.items()}
    return {"transactions": [transaction]}


def altered(**config: Any) -> dict[str, Any]:
    """Return a change of the topic's settings."""
    return {"resources": [{"resource_type": 2, "resource_name": "users", "configs": [config]}]}


REQUESTS: dict[str, dict[str, Any] | Callable[[int, bytes], dict[str, Any]]] = {
    "Produce": produce,
    "Fetch": fetch,
    "ListOffsets": {"replica_id": -1} | users("partitions", [A_PARTITION | {"timestamp": -1}]),
    "Metadata": {"topics": [{"name": "users"}]},
    "OffsetCommit": offset_commit,
    "OffsetFetch": offset_fetch,
    "FindCoordinator": lambda version, _: {"key": "g"} if version < 4 else {"coordinator_keys": ["g"]},
    "JoinGroup": join_group,
    "SyncGroup": sync_group,
    "Heartbeat": NO_MEMBER,
    "LeaveGroup": leave_group,
    "DescribeGroups": {"groups": ["g", "none"]},
    "ConsumerGroupHeartbeat": group_heartbeat,
    "ConsumerGroupDescribe": {"group_ids": ["g", "none"]},
    "ListGroups": {},
    "SaslHandshake": {"mechanism": "PLAIN"},
    "SaslAuthenticate": {"auth_bytes": b"\0a\0b"},
    "ApiVersions": lambda version, _: (
        {"client_software_name": "t", "client_software_version": "1"} if version >= 3 else {}
    ),
    "CreateTopics": {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}], **TIMES_OUT},
    "DeleteTopics": lambda version, _: (
        ({"topics": [{"name": "users"}]} if version >= 6 else {"topic_names": ["users"]}) | TIMES_OUT
    ),
    "DeleteRecords": TIMES_OUT | users("partitions", [A_PARTITION | {"offset": 0}]),
    "InitProducerId": {"transactional_id": None, "transaction_timeout_ms": 1000},
    "OffsetForLeaderEpoch": users("partitions", [{"partition": 0, "leader_epoch": 0}], "topic"),
    "DescribeConfigs": {
        "resources": [
            {"resource_type": number, "resource_name": name, "configuration_keys": None}
            for number, name in ((2, "users"), (4, "1"))
        ]
    },
    "AlterConfigs": altered(name="retention.ms", value="5000"),
    "DescribeLogDirs": {"topics": None},
    "CreatePartitions": {"topics": [{"name": "users", "count": 2, "assignments": None}], **TIMES_OUT},
    "DeleteGroups": {"groups_names": ["none"]},
    "IncrementalAlterConfigs": altered(name="cleanup.policy", config_operation=2, value="compact"),
    "OffsetDelete": {"group_id": "g"} | users("partitions", [A_PARTITION]),
    "DescribeCluster": {},
    "DescribeProducers": users("partition_indexes", [0]),
    "DescribeTopicPartitions": {"topics": [{"name": "users"}], "cursor": None},
    "AddPartitionsToTxn": add_partitions_to_txn,
    "AddOffsetsToTxn": NO_TRANSACTION | {"group_id": "g"},
    "EndTxn": NO_TRANSACTION | {"committed": True},
    "TxnOffsetCommit": NO_TRANSACTION
    | {"group_id": "g"}
    | users("partitions", [A_PARTITION | {"committed_offset": 1, "committed_metadata": None}]),
    "DescribeTransactions": {"transactional_ids": ["none"]},
    "ListTransactions": {"state_filters": [], "producer_id_filters": []},
    # A node without an authorizer answers the following ones.
    "DescribeAcls": dict.fromkeys(
        ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1
    ),
    "ElectLeaders": {"topic_partitions": None, **TIMES_OUT},
    "ListPartitionReassignments": TIMES_OUT,
    "AlterPartitionReassignments": TIMES_OUT,
    "WriteTxnMarkers": {"markers": [A_MARKER]},
    **{
        name: {}
        for name in (
            *("CreateAcls", "DeleteAcls", "AlterReplicaLogDirs", "CreateDelegationToken"),
            *("RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken"),
            *("DescribeClientQuotas", "AlterClientQuotas", "DescribeUserScramCredentials"),
            *("DescribeQuorum", "ListConfigResources"),
        )
    },
}
"""The values of each request, or a function of its version and the id of the topic."""
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


def test_there_is_a_request_for_every_api() -> None:
    assert {api.name for api in APIS.values()} == set(REQUESTS)


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_version_is_answered(name: str, server: Server, client: Client, logs: lastword.LogDir) -> None:
    api = next(api for api in APIS.values() if api.name == name)
    for version in range(api.first, api.stable + 1):
        topic = logs.create_topic("users", cleanup_policy="delete")
        client.produce("users", batch((b"k", b"v")))
        topic_id = client.topic_id()
        client.commit(5)
        answer = client.ask(request_of(name, version, topic_id), version)
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
        topic_id = client.topic_id()
        client.commit(5)
        requests = with_extremes(request_of(name, version, topic_id), name, version)
        for extreme in islice(requests, 0, None, stride(2)):  # of three extremes: each in turn
            with Client(server, timeout=0.02) as other, contextlib.suppress(OSError):
                other.send(extreme, version)
                other.receive()
    client.topic_id()
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("version", range(1, 11))
def test_all_offsets_of_a_group(client: Client, logs: lastword.LogDir, version: int) -> None:
    logs.create_topic("users")
    client.commit(5)
    group: dict[str, Any] = {"group_id": "g", "topics": None if version >= 2 else []}
    answer = client.ask(request("OffsetFetch", group if version < 8 else {"groups": [group]}), version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    expected = [] if version < 2 else [(0, 5)]
    assert [(p.partition_index, p.committed_offset) for t in topics for p in t.partitions] == expected
