"""A log directory with groups goes from a real broker to the server and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lastword
from lastword.protocol import codes
from lastword.protocol.messages import FindCoordinatorRequest, OffsetFetchRequest
from tests.kafka.conftest import client_of
from tests.server.client import Client
from tests.server.test_consumer_groups import Member, described, numbers, rounds, state
from tests.server.test_offsets import commit, committed
from tests.support.kafka import Broker, Tools
from tests.support.waiting import until

SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "group.consumer.assignment.interval.ms": "0",
    "group.coordinator.rebalance.protocols": "classic,consumer",
}


def is_loaded(client: Client, group: str) -> bool:
    """Return whether the broker has loaded the committed offsets of a group."""
    fetch = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)]
    )
    return client.ask(fetch, 9).groups[0].error_code == 0


def facts(client: Client, group: str) -> Any:
    """Return what a restart must keep of a group."""
    answer = described(client, group)
    members = sorted(
        (
            member.member_id,
            member.instance_id,
            member.member_epoch,
            sorted(member.subscribed_topic_names),
            sorted((t.topic_name, t.partitions) for t in member.assignment.topic_partitions),
            sorted((t.topic_name, t.partitions) for t in member.target_assignment.topic_partitions),
        )
        for member in answer.members
    )
    return answer.group_state, answer.group_epoch, answer.assignment_epoch, answer.assignor_name, members


def test_groups_go_to_the_server_and_back(tools: Tools, tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    broker = Broker(tools, directory, SETTINGS)
    with broker, client_of(broker) as client:
        broker.create_topic("users", 4, cleanup_policy="compact")
        find = FindCoordinatorRequest(coordinator_keys=["g"], key_type=0)
        until(lambda: client.ask(find).coordinators[0].error_code == 0)
        until(lambda: commit(client, "simple", offset=7) == 0)
        members = [Member(client, "a"), Member(client, "b", server_assignor="range", instance_id="i")]
        for member in members:
            member.settle()
        rounds(*members)
        assert state(client) == ("Stable", 2)
        assert members[0].commit(3, partition=numbers(members[0])[0]) == 0
        kept = facts(client, "g")

    with lastword.serve(directory, "127.0.0.1:0") as server, Client(server) as client:
        assert facts(client, "g") == kept
        assert committed(client, "simple") == 7
        assert committed(client, "g", partition=numbers(members[0])[0]) == 3
        third = Member(client, "c", subscribed_topic_regex="us.*", subscribed_topic_names=None)
        for member in (*members, third):
            member.client = client
        third.settle()
        rounds(*members, third)
        assert sorted(numbers(members[0]) + numbers(members[1]) + numbers(third)) == [0, 1, 2, 3]
        assert commit(client, "simple", offset=8) == 0
        assert third.commit(5, partition=numbers(third)[0]) == 0
        members[1].leave(-2)
        kept = facts(client, "g")

    with broker, client_of(broker) as client:
        find = FindCoordinatorRequest(coordinator_keys=["g"], key_type=0)
        until(lambda: client.ask(find).coordinators[0].error_code == 0)
        until(lambda: described(client).error_code == 0)
        # The broker loads each partition of the groups' topic by itself: the other group may be later.
        until(lambda: is_loaded(client, "simple"))
        assert facts(client, "g") == kept
        assert committed(client, "simple") == 8
        assert committed(client, "g", partition=numbers(third)[0]) == 5
        third.client = members[0].client = client
        answer = third.beat()
        assert answer.member_epoch >= kept[2]
        back = Member(client, "b2", instance_id="i", server_assignor="range")
        assert back.beat().error_code == codes.NONE
