"""Where a planted error stands in an answer: as a broker gives it, for each API, version and error."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from lastword.protocol import Request, codec, codes, messages
from lastword.protocol.refusals import OF_PARTS, error_answer
from lastword.protocol.schemas import APIS, Field, schema_of
from lastword.testing import Broker
from tests.protocol.random_messages import random_message
from tests.server.client import Client

GROUP_ERRORS = ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "GROUP_AUTHORIZATION_FAILED")
LEVELS = [
    *(
        (api, error, "error_code")
        for api in ("JoinGroup", "SyncGroup", "Heartbeat")
        for error in GROUP_ERRORS
    ),
    *(("OffsetFetch", error, "groups.error_code") for error in (*GROUP_ERRORS, "STALE_MEMBER_EPOCH")),
    ("OffsetFetch", "UNSTABLE_OFFSET_COMMIT", "groups.topics.partitions.error_code"),
    ("OffsetFetch", "UNKNOWN_TOPIC_OR_PARTITION", "groups.topics.partitions.error_code"),
    *(("OffsetCommit", error, "topics.partitions.error_code") for error in GROUP_ERRORS),
    ("OffsetCommit", "UNKNOWN_TOPIC_OR_PARTITION", "topics.partitions.error_code"),
    ("TxnOffsetCommit", "UNKNOWN_MEMBER_ID", "topics.partitions.error_code"),
    ("OffsetDelete", "GROUP_ID_NOT_FOUND", "error_code"),
    ("OffsetDelete", "GROUP_SUBSCRIBED_TO_TOPIC", "topics.partitions.error_code"),
    ("LeaveGroup", "NOT_COORDINATOR", "error_code"),
    ("LeaveGroup", "UNKNOWN_MEMBER_ID", "members.error_code"),
    ("DescribeGroups", "NOT_COORDINATOR", "groups.error_code"),
    ("DeleteGroups", "NON_EMPTY_GROUP", "results.error_code"),
    ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", "coordinators.error_code"),
    ("ListOffsets", "NOT_LEADER_OR_FOLLOWER", "topics.partitions.error_code"),
    ("OffsetForLeaderEpoch", "FENCED_LEADER_EPOCH", "topics.partitions.error_code"),
    ("DeleteRecords", "OFFSET_OUT_OF_RANGE", "topics.partitions.error_code"),
    ("CreateTopics", "NOT_CONTROLLER", "topics.error_code"),
    ("DescribeConfigs", "INVALID_CONFIG", "results.error_code"),
    ("InitProducerId", "CONCURRENT_TRANSACTIONS", "error_code"),
    ("EndTxn", "PRODUCER_FENCED", "error_code"),
    ("CreateAcls", "SECURITY_DISABLED", "results.error_code"),
    ("DeleteAcls", "SECURITY_DISABLED", "filter_results.error_code"),
    ("ElectLeaders", "ELECTION_NOT_NEEDED", "replica_election_results.partition_result.error_code"),
    ("AlterPartitionReassignments", "NO_REASSIGNMENT_IN_PROGRESS", "responses.partitions.error_code"),
]
"""API, error, and the fields at which a broker gives the error."""
APART = ("Produce", "Fetch", "Metadata")


def places(answer: Any, fields: list[Field], code: int, path: str = "") -> Iterator[str]:
    """Yield the path of each field of an answer that has an error."""
    for field in fields:
        value = getattr(answer, field.name)
        if field.struct is not None and value is not None:
            for part in value if field.is_array else [value]:
                yield from places(part, field.fields, code, f"{path}{field.name}.")
        elif field.name.endswith("error_code") and value == code:
            yield f"{path}{field.name}"


def refused(api: str, error: str, version: int, rng: random.Random) -> tuple[Any, set[str]]:
    """Return a random request that has parts, and the places of the error in the answer that refuses it."""
    code = getattr(codes, error)
    of = next(known for known in APIS.values() if known.name == api)
    for _ in range(50):
        body = random_message(f"{api}Request", version, rng)
        answer = error_answer(Request(of, version, 0, None, body, 0), code, "")
        codec(f"{api}Response", version).encode(answer)
        found = set(places(answer, schema_of(f"{api}Response").fields, code))
        if found:
            return body, found
    return body, set()


@pytest.mark.parametrize(("api", "error", "place"), LEVELS)
def test_an_error_stands_where_a_broker_gives_it(api: str, error: str, place: str) -> None:
    stable = next(known.stable for known in APIS.values() if known.name == api)
    assert refused(api, error, stable, random.Random(5))[1] == {place}


def test_every_error_has_one_level_in_every_version() -> None:
    rng, count = random.Random(7), 0
    for api in APIS.values():
        errors = {"NOT_COORDINATOR", *(codes.ERROR_NAMES[code] for code in OF_PARTS.get(api.name, ()))}
        first = {"Fetch": 7, "DescribeLogDirs": 3}.get(api.name, api.first)  # before, no error of the whole
        for version in range(api.first, api.last + 1):
            for error in errors if version in (first, api.stable) else ["NOT_COORDINATOR"]:
                found = refused(api.name, error, version, rng)[1]
                levels = int(version >= first)
                assert len(found) == levels or (found and api.name in APART), (
                    api.name,
                    version,
                    error,
                    found,
                )
                count += 1
    assert count > 80


def consumer(broker: Broker, **settings: Any) -> confluent_kafka.Consumer:
    given = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    made = confluent_kafka.Consumer(given | settings)
    made.subscribe(["users"])
    return made


def polled(made: confluent_kafka.Consumer, seconds: float) -> bytes | None:
    """Return the value of the next record, or None if there is none in this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        message = made.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            return message.value()
    return None


@pytest.mark.slow
def test_a_consumer_waits_for_an_unstable_offset_and_reads_on(kafka_broker: Broker) -> None:
    """Trial A5: the error stood at the group, where clients take it for final."""
    kafka_broker.create_topic("users").append(b"a", b"1")
    kafka_broker.fail("OffsetFetch", "UNSTABLE_OFFSET_COMMIT", times=2)
    reader = consumer(kafka_broker)
    try:
        assert polled(reader, 20) == b"1"
        assert len(kafka_broker.requests("OffsetFetch")) >= 3
    finally:
        reader.close()


@pytest.mark.slow
def test_a_member_that_is_unknown_joins_again_before_its_session_ends(kafka_broker: Broker) -> None:
    kafka_broker.create_topic("users").append(b"a", b"1")
    reader = consumer(kafka_broker, **{"heartbeat.interval.ms": 200, "session.timeout.ms": 45_000})
    try:
        assert polled(reader, 20) == b"1"
        kafka_broker.fail("Heartbeat", "UNKNOWN_MEMBER_ID", times=2)
        end = time.monotonic() + 10
        while len(kafka_broker.requests("JoinGroup")) < 4 and time.monotonic() < end:
            reader.poll(0.2)
        kafka_broker.topic("users").append(b"b", b"2")
        read = polled(reader, 10)
        if read == b"1":  # again: the member had not committed before it lost its place in the group
            read = polled(reader, 10)
        assert read == b"2"
    finally:
        reader.close()


def test_unstable_offsets_of_all_partitions_of_a_group(kafka_broker: Broker) -> None:
    """The request names no partitions: the error is that of each one that has an offset."""
    kafka_broker.create_topic("users", 2)
    fetch = messages.OffsetFetchRequest
    body = fetch(groups=[fetch.OffsetFetchRequestGroup(group_id="g", topics=None, member_epoch=-1)])
    with Client(kafka_broker.server) as client:
        for number in range(2):
            client.commit(5, partition=number)
        kafka_broker.fail("OffsetFetch", "UNSTABLE_OFFSET_COMMIT")
        unstable, stable = (client.ask(body, 9).groups[0] for _ in range(2))
    shown = [[(p.error_code, p.committed_offset) for p in g.topics[0].partitions] for g in (unstable, stable)]
    assert shown == [[(codes.UNSTABLE_OFFSET_COMMIT, -1)] * 2, [(0, 5)] * 2]
    assert unstable.error_code == 0
