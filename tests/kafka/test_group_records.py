"""Records of groups that are damaged or of another protocol: the answers beside those of a real broker."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.protocol import encode_stored, java_hash, messages
from lastword.testing.unsynced import UNSYNCED
from tests.kafka import server_script
from tests.kafka.conftest import client_of
from tests.kafka.server_script import Difference, Side, Step, compare
from tests.server.mutated_records import (
    FOUND,
    GROUPS,
    REFUSED,
    TRANSACTIONS,
    UNKNOWN,
    asked,
    committed,
    mutations,
    write,
)
from tests.support.exhaustive import stride
from tests.support.kafka import Broker, Tools

PARTITIONS = 2
SEED, MOST = 31, 4 if stride(2) > 1 else 1000
"""Most mutations of each kind; `make exhaustive` takes all."""


def _ids(name: str, partition: int) -> Iterator[str]:
    """Yield ids of groups whose records are in a partition."""
    return (f"{name}-{n}" for n in range(99) if java_hash(f"{name}-{n}") % PARTITIONS == partition)


SHARE, STREAMS = (tuple(itertools.islice(_ids(name, 0), 2)) for name in ("share", "streams"))
"""Groups without a member and with one."""
DAMAGED = next(_ids("damaged", 1))
DIFFERENCES = {
    rf"OffsetCommit/{STREAMS[1]} of a member/.*error_code": "Kafka fails at a member without an assignment",
    r"OffsetFetch/damaged-1/topics\[t\]": "here partitions have the error, too: aiokafka looks at them alone",
    rf"OffsetDelete/{STREAMS[1]}/.*": "which topics its members subscribe to is not known here",
}
"""Places that differ, and the reasons."""


def of_groups() -> dict[int, list[tuple[bytes, bytes | None]]]:
    """Return the records of each partition of the groups' topic."""
    stored: dict[str, list[tuple[bytes, bytes | None]]] = {}
    for number, group in enumerate(SHARE):
        kinds = messages
        stored[group] = [
            _pair(kinds.ShareGroupMetadataKey(group_id=group), kinds.ShareGroupMetadataValue(epoch=1)),
            _pair(
                kinds.ShareGroupTargetAssignmentMetadataKey(group_id=group),
                kinds.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=1),
            ),
            *[
                _pair(
                    kinds.ShareGroupMemberMetadataKey(group_id=group, member_id="m"),
                    kinds.ShareGroupMemberMetadataValue(client_id="c", client_host="/127.0.0.1"),
                )
            ][:number],
        ]
    for number, group in enumerate(STREAMS):
        member = messages.StreamsGroupMemberMetadataValue(
            client_id="c", client_host="/127.0.0.1", process_id="p", rebalance_timeout_ms=1000
        )
        stored[group] = [
            _pair(
                messages.StreamsGroupMetadataKey(group_id=group), messages.StreamsGroupMetadataValue(epoch=1)
            ),
            _pair(
                messages.StreamsGroupTargetAssignmentMetadataKey(group_id=group),
                messages.StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=1),
            ),
            *[_pair(messages.StreamsGroupMemberMetadataKey(group_id=group, member_id="m"), member)][:number],
            committed(group),
        ]
    stored[DAMAGED] = [(b"\0", b""), committed(DAMAGED)]
    partitions: dict[int, list[tuple[bytes, bytes | None]]] = {n: [] for n in range(PARTITIONS)}
    for group, records in stored.items():
        partitions[1 if group == DAMAGED else 0] += records
    return partitions


def _pair(key: Any, value: Any) -> tuple[bytes, bytes]:
    return encode_stored(key), encode_stored(value)


def script() -> Iterator[Step]:
    """Yield requests of the protocols that a group may not have."""
    yield Step("ListGroups", "all", {"states_filter": [], "types_filter": []})
    yield Step("ListGroups", "share", {"states_filter": [], "types_filter": ["share"]}, first=5)
    for group in (*SHARE, *STREAMS, DAMAGED):
        given: dict[str, Any] = {"group_id": group}
        member = given | {"member_id": "m", "generation_id": 1}
        joins = {"session_timeout_ms": 6000, "rebalance_timeout_ms": 6000, "protocol_type": "consumer"}
        protocols = {"protocols": [{"name": "range", "metadata": b""}]}
        yield Step("DescribeGroups", group, {"groups": [group]})
        yield Step("ConsumerGroupDescribe", group, {"group_ids": [group]})
        yield Step("Heartbeat", group, member)
        yield Step("SyncGroup", group, member | {"assignments": []})
        yield Step("LeaveGroup", group, given | {"member_id": "m", "members": [{"member_id": "m"}]})
        wanted = [{"name": "t", "partition_indexes": [0]}]
        each = {"group_id": group, "member_epoch": -1, "topics": wanted}
        yield Step("OffsetFetch", group, given | {"topics": wanted, "groups": [each]}, last=9)
        each = each | {"topics": None}
        yield Step("OffsetFetch", f"{group} all", given | {"topics": None, "groups": [each]}, 2, 9)
        deleted = given | {"topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}
        changed = {"partition_index": 0, "committed_offset": 2, "committed_metadata": ""}
        commit = {"generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": [changed]}]}
        yield Step(
            "OffsetCommit",
            f"{group} of a member",
            given | {**commit, "generation_id_or_member_epoch": 1, "member_id": "m"},
            last=9,
        )
        joined = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        beat = given | {"member_id": "m-consumer", "member_epoch": 0} | joined
        if group not in (STREAMS[0],):
            yield Step("OffsetCommit", group, given | commit, last=9)
            yield Step("OffsetDelete", group, deleted)
            yield Step("JoinGroup", group, given | joins | protocols | {"member_id": ""})
            yield Step("ConsumerGroupHeartbeat", group, beat)
        yield Step(
            "ConsumerGroupHeartbeat", f"{group} stays", beat | {"member_epoch": 3, "topic_partitions": None}
        )
        yield Step(
            "ConsumerGroupHeartbeat", f"{group} leaves", beat | {"member_epoch": -1, "topic_partitions": None}
        )
    yield Step("DeleteGroups", "two", {"groups_names": [SHARE[1], STREAMS[1], DAMAGED]})


@pytest.fixture(scope="module")
def differences(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> list[Difference]:
    root = tmp_path_factory.mktemp("group-records")
    options = {"files": UNSYNCED, "log_cleaner_enable": False}
    partitions = of_groups()
    broker = Broker(
        tools,
        root / "kafka",
        {"offsets.topic.num.partitions": str(PARTITIONS), "group.initial.rebalance.delay.ms": "0"},
    )
    with lastword.open(root / "lastword", "a", **options) as logs, broker:  # type: ignore[arg-type]
        logs.create_topic("t", cleanup_policy="delete")
        logs.create_topic(GROUPS, PARTITIONS, cleanup_policy="compact")
        broker.create_topic("t")
        broker.create_topic(GROUPS, PARTITIONS, cleanup_policy="compact")
    for directory in (root / "lastword", root / "kafka"):
        write(directory, GROUPS, list(partitions.values()))
    with (
        pytest.MonkeyPatch.context() as patch,
        broker,
        lastword.open(root / "lastword", "a", **options) as logs,  # type: ignore[arg-type]
        lastword.serve(logs, "127.0.0.1:0") as server,
        closing(Side(server.bootstrap_servers)) as here,
        closing(Side(broker.bootstrap)) as there,
    ):
        known = Step("DescribeGroups", "loaded", {"groups": [*SHARE, *STREAMS]}, first=6)
        list(compare(here, there, [known]))  # it waits until both have loaded the groups
        loading, found = server_script.LOADING, []
        for step in script():  # a broker that was just started may lose a partition, and load it again
            is_whole = step.label.partition(" ")[0] in (*SHARE, *STREAMS)
            patch.setattr(server_script, "LOADING", loading if is_whole else ())
            found += compare(here, there, [step])
        return found


def test_groups_that_are_damaged_or_of_another_kind_are_refused_as_by_kafka(
    differences: list[Difference],
) -> None:
    unlisted = [d for d in differences if not any(re.fullmatch(place, d.place) for place in DIFFERENCES)]
    assert not unlisted, f"{len(unlisted)}\n" + "\n".join(f"{d!s:.300}" for d in unlisted)


@pytest.mark.parametrize("topic", [GROUPS, TRANSACTIONS])
def test_mutated_records_are_answered_as_by_kafka(topic: str, tools: Tools, tmp_path: Path) -> None:
    """Kafka refuses a superseded value, too. It takes transactional ids behind an odd record for new."""
    cases = mutations(topic, SEED, MOST)
    counts = {"offsets.topic.num.partitions": len(cases), "transaction.state.log.num.partitions": len(cases)}
    broker = Broker(tools, tmp_path / "kafka", {name: str(count) for name, count in counts.items()})
    with broker:
        broker.create_topic("t")
        broker.create_topic(topic, len(cases), cleanup_policy="compact")
    write(tmp_path / "kafka", topic, [case.records for case in cases])
    with broker, client_of(broker) as client:
        answers, before = asked(client, cases), {}
        while answers != before or FOUND not in answers.values():  # it leads its partitions step by step
            time.sleep(0.5)
            answers, before = asked(client, cases), answers
    for case in cases:
        stricter = REFUSED if topic == GROUPS and case.name.startswith("superseded") else UNKNOWN
        looser = topic == TRANSACTIONS and case.right == REFUSED
        allowed = {case.right, stricter} if looser or stricter == REFUSED else {case.right}
        assert answers[case.name] in allowed, (case.name, answers[case.name])
    assert FOUND in answers.values()
