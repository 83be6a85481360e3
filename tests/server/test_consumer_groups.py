"""Groups of KIP-848: heartbeats move members to their targets; each partition has one owner at most."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import lastword
from lastword import arrow
from lastword.clock import ManualClock
from lastword.protocol import codes
from lastword.protocol.messages import (
    ApiVersionsRequest,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
)
from lastword.server import Server, consumer_group_state
from lastword.server.assignors import ranges, uniform
from tests.server.client import Client, offset_fetch
from tests.server.conftest import Opened
from tests.server.test_groups import Consumer
from tests.server.writer import started
from tests.support.exhaustive import stride
from tests.support.waiting import until

SESSION_MS, REBALANCE_MS = 45_000, 30_000


@pytest.fixture
def logs(opened: Opened, clock: ManualClock) -> Iterator[lastword.LogDir]:
    with opened(clock=clock) as logs:
        logs.create_topic("users", 4, cleanup_policy="compact")
        logs.create_topic("events", 2, cleanup_policy="delete")
        yield logs


class Member:
    """A member that says what it owns, as Kafka's clients do."""

    def __init__(self, client: Client, id: str, group: str = "g", **fields: Any) -> None:
        self.client, self.id, self.group = client, id, group
        self.fields = {"subscribed_topic_names": ["users"]} | fields
        self.epoch = 0
        self.owned: set[tuple[bytes, int]] = set()
        self.wanted: set[tuple[bytes, int]] = set()

    def beat(self, version: int = 1, **fields: Any) -> Any:
        """Send a heartbeat; return its answer, or the error code."""
        kind = ConsumerGroupHeartbeatRequest
        body: dict[str, Any] = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch}
        if self.fields.get("instance_id"):
            body["instance_id"] = self.fields["instance_id"]
        if self.epoch == 0:
            body |= {"rebalance_timeout_ms": REBALANCE_MS, "topic_partitions": []} | self.fields
        else:
            owned: dict[bytes, list[int]] = {}
            for topic_id, number in sorted(self.owned):
                owned.setdefault(topic_id, []).append(number)
            body["topic_partitions"] = [
                kind.TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in owned.items()
            ]
        answer = self.client.ask(kind(**(body | fields)), version)
        if answer.error_code:
            return answer.error_code
        self.id, self.epoch = answer.member_id, answer.member_epoch
        if answer.assignment is not None:
            self.wanted = {(t.topic_id, n) for t in answer.assignment.topic_partitions for n in t.partitions}
        return answer

    def revoke(self) -> None:
        self.owned &= self.wanted

    def assign(self) -> None:
        self.owned = set(self.wanted)

    def settle(self) -> Any:
        """Give up and take what the coordinator says; return the answer to the last heartbeat."""
        answer = self.beat()
        self.assign()
        return answer

    def leave(self, epoch: int = -1) -> Any:
        answer = self.beat(member_epoch=epoch)
        self.owned, self.epoch = set(), 0
        return answer

    def commit(self, offset: int, *, partition: int = 0, epoch: int | None = None, version: int = 9) -> int:
        epoch = self.epoch if epoch is None else epoch
        member = {"generation_id_or_member_epoch": epoch, "member_id": self.id}
        return self.client.commit(offset, self.group, version=version, partition=partition, **member)

    def fetch_error(self, member_id: str | None, epoch: int) -> int:
        body = offset_fetch(self.group, member_id=member_id, member_epoch=epoch)
        return int(self.client.ask(body, 9).groups[0].error_code)


def rounds(*members: Member, count: int = 6) -> None:
    for _ in range(count):
        for member in members:
            member.settle()


def described(client: Client, group: str = "g") -> Any:
    return client.ask(ConsumerGroupDescribeRequest(group_ids=[group])).groups[0]


def state(client: Client, group: str = "g") -> tuple[str, int]:
    answer = described(client, group)
    return answer.group_state, len(answer.members)


def numbers(member: Member) -> list[int]:
    return sorted(number for _, number in member.owned)


# ---------------------------------------------------------------- rebalances


def test_partitions_move_from_owner_to_owner(client: Client) -> None:
    first, second = Member(client, "a"), Member(client, "b")
    first.settle()
    assert (first.epoch, numbers(first), state(client)) == (2, [0, 1, 2, 3], ("Stable", 1))
    second.settle()
    assert (second.epoch, numbers(second), state(client)) == (3, [], ("Reconciling", 2))
    first.beat()
    assert first.epoch == 2 and len(first.wanted) == 2  # asked to give up two
    second.settle()
    assert numbers(second) == []  # they have an owner yet
    first.revoke()
    first.settle()
    assert first.epoch == 3
    second.settle()
    assert numbers(first) + numbers(second) == [0, 1, 2, 3]
    assert state(client) == ("Stable", 2)
    assert second.leave().member_epoch == -1
    rounds(first)
    assert numbers(first) == [0, 1, 2, 3]
    first.leave()
    assert state(client) == ("Empty", 0)


def test_an_answer_that_was_lost_is_repeated(client: Client) -> None:
    first, second = Member(client, "a"), Member(client, "b")
    first.settle()
    second.settle()
    first.settle()
    before = first.epoch
    first.settle()
    assert first.epoch == before + 1
    first.epoch = before  # the answer was lost
    assert first.beat().member_epoch == before + 1
    first.epoch = before - 1
    assert first.beat() == codes.FENCED_MEMBER_EPOCH


def test_a_member_that_is_fenced_joins_again(client: Client) -> None:
    member = Member(client, "a")
    member.settle()
    member.epoch += 5
    assert member.beat() == codes.FENCED_MEMBER_EPOCH
    member.epoch, member.owned = 0, set()
    member.settle()
    assert numbers(member) == [0, 1, 2, 3]
    assert Member(client, "zz").beat(member_epoch=2) == codes.UNKNOWN_MEMBER_ID
    assert Member(client, "a", "none").beat(member_epoch=2) == codes.GROUP_ID_NOT_FOUND
    assert Member(client, "a", "none").leave() == codes.GROUP_ID_NOT_FOUND


def test_members_join_again_when_the_topic_of_the_groups_is_deleted(
    client: Client, logs: lastword.LogDir, clock: ManualClock
) -> None:
    """GROUP_ID_NOT_FOUND, which other members of an unknown group get, ends a client."""
    member = Member(client, "m")
    member.settle()
    logs.delete_topic("__consumer_offsets")
    assert member.beat() == member.beat() == codes.UNKNOWN_MEMBER_ID
    assert Member(client, "m", "other").beat(member_epoch=1) == codes.GROUP_ID_NOT_FOUND
    member.epoch, member.owned = 0, set()
    member.settle()
    assert (len(member.owned), member.commit(1)) == (4, 0)
    for _ in range(3):  # the session of the member that was forgotten has no effect
        clock.advance(SESSION_MS // 2)
        assert member.beat().error_code == 0


def test_a_silent_member_is_removed(client: Client, clock: ManualClock) -> None:
    first, second = Member(client, "a"), Member(client, "b")
    rounds(first, second)
    clock.advance(SESSION_MS - 1000)
    first.beat()
    clock.advance(1001)
    until(lambda: state(client)[1] == 1)
    rounds(first)
    assert numbers(first) == [0, 1, 2, 3]
    assert second.beat() == codes.UNKNOWN_MEMBER_ID


def test_a_member_that_keeps_its_partitions_is_removed(client: Client, clock: ManualClock) -> None:
    first, second = Member(client, "a"), Member(client, "b")
    first.settle()
    second.settle()
    first.beat()
    for _ in range(REBALANCE_MS // 10_000 + 1):  # alive, but it gives up nothing
        clock.advance(10_000)
        answer = first.beat()
        second.settle()
    until(lambda: first.beat() == codes.UNKNOWN_MEMBER_ID)
    assert answer != 0
    rounds(second)
    assert numbers(second) == [0, 1, 2, 3]


def test_static_members(client: Client, clock: ManualClock) -> None:
    static = Member(client, "s1", instance_id="i")
    other = Member(client, "o")
    rounds(static, other)
    mine, epoch = numbers(static), static.epoch
    assert Member(client, "s2", instance_id="i").beat() == codes.UNRELEASED_INSTANCE_ID
    assert Member(client, "s2", instance_id="i").beat(member_epoch=1) == codes.FENCED_INSTANCE_ID
    assert Member(client, "s2", instance_id="j").beat(member_epoch=1) == codes.UNKNOWN_MEMBER_ID
    assert Member(client, "s1").beat(member_epoch=-2) == codes.INVALID_REQUEST
    static.leave(-2)
    other.settle()
    assert len(other.owned) == 2  # its partitions wait for it
    back = Member(client, "s3", instance_id="i")
    back.settle()
    assert (numbers(back), back.epoch) == (mine, epoch)
    assert static.beat() == codes.UNRELEASED_INSTANCE_ID
    back.leave(-2)
    clock.advance(SESSION_MS - 1)
    other.beat()
    clock.advance(2)
    until(lambda: state(client)[1] == 1)
    rounds(other)
    assert numbers(other) == [0, 1, 2, 3]


def test_the_former_instance_id_of_a_member_is_free(client: Client) -> None:
    """It named a member that had left: a join with it was an error of the server."""
    static, other = Member(client, "a", instance_id="i"), Member(client, "o")
    rounds(static, other)
    again = Member(client, "a", instance_id="j")
    again.settle()
    again.leave()
    back = Member(client, "b", instance_id="i")
    rounds(back, other)
    assert sorted([*numbers(back), *numbers(other)]) == [0, 1, 2, 3]


def test_a_member_takes_the_instance_id_of_another(logs: lastword.LogDir) -> None:
    """The partitions of both have an owner again. A restart keeps the instance id."""
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        first, second, other = (Member(client, name, instance_id=f"of {name}") for name in "abo")
        rounds(first, second, other)
        second.leave(-2)
        again = Member(client, "a", instance_id="of b")
        rounds(again, other)
        assert sorted([*numbers(again), *numbers(other)]) == [0, 1, 2, 3]
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        ids = {member.member_id: member.instance_id for member in described(client).members}
    assert ids == {"a": "of b", "o": "of o"}


def test_an_administrator_removes_members(client: Client) -> None:
    static, other = Member(client, "s", instance_id="i"), Member(client, "o")
    rounds(static, other)
    kind = LeaveGroupRequest.MemberIdentity
    wrong = [
        kind(member_id="x"),
        kind(member_id="", group_instance_id="j"),
        kind(member_id="x", group_instance_id="i"),
    ]
    answer = client.ask(LeaveGroupRequest(group_id="g", members=wrong))
    expected = [codes.UNKNOWN_MEMBER_ID, codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID]
    assert [member.error_code for member in answer.members] == expected
    answer = client.ask(LeaveGroupRequest(group_id="g", members=[kind(member_id="", group_instance_id="i")]))
    assert [member.error_code for member in answer.members] == [0]
    assert static.beat() == codes.UNKNOWN_MEMBER_ID
    rounds(other)
    assert numbers(other) == [0, 1, 2, 3]


def test_the_newest_records_of_a_topic_are_read_in_a_group(client: Client) -> None:
    member = Member(client, "a", subscribed_topic_names=["users@newest"])
    member.settle()
    assert numbers(member) == [0, 1, 2, 3]
    (row,) = described(client).members
    assert [topic.topic_name for topic in row.assignment.topic_partitions] == ["users@newest"]


def test_topics_that_appear_grow_and_go(client: Client, logs: lastword.LogDir) -> None:
    member = Member(client, "a", subscribed_topic_names=["later", "users"])
    rounds(member, count=2)
    assert len(member.owned) == 4
    logs.create_topic("later", 2)
    rounds(member, count=2)
    assert len(member.owned) == 6
    logs.delete_topic("users")
    rounds(member, count=3)
    assert len(member.owned) == 2
    member.beat(subscribed_topic_names=[])
    rounds(member, count=2)
    assert member.owned == set()


def test_regular_expressions(client: Client, logs: lastword.LogDir) -> None:
    member = Member(client, "a", subscribed_topic_names=None, subscribed_topic_regex="us.*|e[a-z]+s")
    rounds(member, count=2)
    assert len(member.owned) == 6
    logs.create_topic("users2", 1)
    logs.create_topic("xusers", 1)
    rounds(member, count=2)
    assert len(member.owned) == 7
    assert described(client).members[0].subscribed_topic_regex == "us.*|e[a-z]+s"
    member.beat(subscribed_topic_regex="")
    rounds(member, count=2)
    assert member.owned == set()


@pytest.mark.parametrize("regex", ["(a", "a)|(b", r"(a)\1", "a(?=b)", "a++"])
def test_a_wrong_regular_expression_is_refused(client: Client, regex: str) -> None:
    member = Member(client, "a", subscribed_topic_regex=regex)
    assert member.beat() == codes.INVALID_REGULAR_EXPRESSION
    assert described(client).error_code == codes.GROUP_ID_NOT_FOUND


def test_without_pyarrow_a_regular_expression_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its RE2 is used: an expression of a client must not take exponential time."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in set(vars(arrow.pa)) - {"_name"}:
        monkeypatch.delattr(arrow.pa, name)
    member = Member(client, "a", subscribed_topic_regex="us.*")
    assert member.beat() == codes.INVALID_REGULAR_EXPRESSION


def test_a_regular_expression_takes_linear_time(client: Client, logs: lastword.LogDir) -> None:
    logs.create_topic("a" * 200 + "b", 1)
    assert Member(client, "a", subscribed_topic_regex="(a+)+(a+)+").beat().error_code == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, codes.INVALID_REQUEST),
        ({"member_id": " "}, codes.INVALID_REQUEST),
        ({"group_id": ""}, codes.INVALID_REQUEST),
        ({"instance_id": ""}, codes.INVALID_REQUEST),
        ({"rack_id": ""}, codes.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, codes.INVALID_REQUEST),
        ({"topic_partitions": None}, codes.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, codes.INVALID_REQUEST),
        ({"member_epoch": -3}, codes.INVALID_REQUEST),
        ({"server_assignor": "none"}, codes.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_a_wrong_heartbeat_is_refused(client: Client, fields: dict[str, Any], code: int) -> None:
    assert Member(client, "a").beat(**fields) == code


def test_version_0_gets_an_id(client: Client) -> None:
    member = Member(client, "")
    assert member.beat(0).error_code == 0
    assert len(member.id) == 22


# ---------------------------------------------------------------- offsets


def test_only_members_of_the_epoch_commit(client: Client, clock: ManualClock) -> None:
    member, other = Member(client, "a"), Member(client, "b")
    member.settle()
    assert member.commit(5) == 0
    assert member.commit(5, epoch=member.epoch - 1) == codes.STALE_MEMBER_EPOCH
    assert member.commit(5, epoch=member.epoch + 1) == codes.STALE_MEMBER_EPOCH
    assert member.commit(5, version=8) == codes.UNSUPPORTED_VERSION
    assert Member(client, "zz").commit(5) == codes.UNKNOWN_MEMBER_ID
    assert Member(client, "").commit(5, epoch=-1) == codes.UNKNOWN_MEMBER_ID
    assert member.fetch_error("a", member.epoch) == member.fetch_error(None, -1) == 0
    assert member.fetch_error("a", member.epoch - 1) == codes.STALE_MEMBER_EPOCH
    assert member.fetch_error("zz", 1) == codes.UNKNOWN_MEMBER_ID
    old = member.epoch
    for _ in range(3):
        other.settle()
        member.settle()
    assert member.epoch == old + 1
    kept = numbers(member)[0]
    assert member.commit(6, partition=kept, epoch=old) == 0  # it has had this partition since
    assert numbers(other)
    assert member.commit(6, partition=numbers(other)[0], epoch=old) == codes.STALE_MEMBER_EPOCH
    writer = started(client, clock)
    fields = {"member_id": "a", "generation_id_or_member_epoch": old}
    for version, stale in ((5, codes.ILLEGAL_GENERATION), (6, codes.STALE_MEMBER_EPOCH)):
        fields["version"] = version
        assert writer.commit_offset(6, partition=kept, **fields) == 0
        assert writer.commit_offset(6, partition=numbers(other)[0], **fields) == stale
        newer = fields | {"generation_id_or_member_epoch": member.epoch + 1}
        assert writer.commit_offset(6, partition=kept, **newer) == stale
    assert writer.commit_offset(6) == 0  # of a client that names no member
    member.leave()
    other.leave()
    assert Member(client, "").commit(7, epoch=-1) == 0


# ---------------------------------------------------------------- describe, list, delete, both protocols


def test_groups_are_described_and_listed(client: Client) -> None:
    member = Member(client, "a", instance_id="i", rack_id="r", server_assignor="range")
    member.settle()
    answer = described(client)
    assert (answer.group_state, answer.group_epoch, answer.assignment_epoch) == ("Stable", 2, 2)
    assert answer.assignor_name == "range"
    (row,) = answer.members
    assert (row.member_id, row.instance_id, row.rack_id, row.member_epoch) == ("a", "i", "r", 2)
    assert (row.client_id, row.client_host) == ("tests", "/127.0.0.1")
    assert row.assignment.topic_partitions[0].topic_name == "users"
    assert row.target_assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    groups = client.ask(ListGroupsRequest(types_filter=["Consumer"], states_filter=["stable"])).groups
    assert [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in groups] == [
        ("g", "consumer", "Stable", "consumer")
    ]
    assert client.ask(ListGroupsRequest(types_filter=["classic"])).groups == []
    classic = client.ask(DescribeGroupsRequest(groups=["g"])).groups[0]
    assert (classic.error_code, classic.error_message) == (
        codes.GROUP_ID_NOT_FOUND,
        "Group g is not a classic group.",
    )
    assert client.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == codes.NON_EMPTY_GROUP
    member.leave()
    assert client.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == 0
    assert described(client).error_message == "Group g not found."


def test_an_empty_group_changes_its_protocol(client: Client, server: Server, logs: lastword.LogDir) -> None:
    classic, member = Consumer(server), Member(client, "a")
    classic.join()
    classic.sync({})
    assert classic.commit(5) == 0
    assert member.beat() == codes.GROUP_ID_NOT_FOUND  # it has a member of the other protocol
    assert described(client).error_message == "Group g is not a consumer group."
    classic.leave()
    member.settle()
    assert state(client) == ("Stable", 1)
    assert classic.committed() == (5, "")
    assert Consumer(server).join().error_code == codes.INCONSISTENT_GROUP_PROTOCOL
    assert classic.heartbeat() == codes.UNKNOWN_MEMBER_ID
    member.leave()
    again = Consumer(server)
    assert again.join().error_code == 0
    assert again.committed() == (5, "")
    newest = {record.key: record.value for record in logs["__consumer_offsets"].read()}
    assert {key[1] for key, value in newest.items() if value is not None} == {1}  # the offset


def test_the_feature_and_the_settings_of_a_group(client: Client) -> None:
    answer = client.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert levels["group.version"] == 1
    kind = DescribeConfigsRequest
    resources = [kind.DescribeConfigsResource(resource_type=32, resource_name=name) for name in ("g", "")]
    group, unnamed = client.ask(kind(resources=resources)).results
    values = {row.name: (row.value, row.read_only) for row in group.configs}
    assert values["consumer.session.timeout.ms"] == ("45000", True)
    assert values["consumer.heartbeat.interval.ms"] == ("5000", True)
    assert unnamed.error_code == codes.INVALID_REQUEST


def test_the_settings_of_the_directory_apply(client: Client, logs: lastword.LogDir) -> None:
    logs.set_config(group_consumer_heartbeat_interval_ms=700)
    assert Member(client, "a").beat().heartbeat_interval_ms == 700


# ---------------------------------------------------------------- histories


def test_members_survive_a_restart(logs: lastword.LogDir, clock: ManualClock) -> None:
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        first, second = Member(client, "a"), Member(client, "b", subscribed_topic_regex="u.*")
        first.settle()
        second.settle()
        first.beat()  # has to give up two
        before = described(client)
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        first.client = second.client = client
        assert repr(described(client)) == repr(before)
        rounds(first, second)
        assert numbers(first) + numbers(second) == [0, 1, 2, 3]
        clock.advance(SESSION_MS + 1)
        until(lambda: state(client) == ("Empty", 0))


@pytest.mark.parametrize("seed", range(4))
def test_a_partition_never_has_two_owners(logs: lastword.LogDir, seed: int) -> None:
    history(logs, seed)


def test_a_history_finds_a_planted_fault(logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that assigns partitions before their owners have given them up."""
    right = consumer_group_state.reconciled
    monkeypatch.setattr(
        consumer_group_state, "reconciled", lambda *arguments: right(*arguments[:-1], lambda partition: True)
    )
    with pytest.raises(AssertionError):
        for seed in range(4):
            history(logs, seed)


def history(logs: lastword.LogDir, seed: int) -> None:
    """A random history of members, with answers that get lost, topics that grow, and restarts."""
    rng = random.Random(seed)
    server = lastword.serve(logs, "127.0.0.1:0")
    client = Client(server)
    members: dict[str, Member] = {}
    lost: set[str] = set()
    grown = 2
    try:
        for step in range(140):
            action = rng.random()
            if action < 0.06 and len(members) < 6:
                fields: dict[str, Any] = {
                    "subscribed_topic_names": rng.choice([["users"], ["users", "events"]])
                }
                if rng.random() < 0.3:
                    fields["server_assignor"] = rng.choice(["range", "uniform"])
                members[f"m{step}"] = Member(client, f"m{step}", **fields)
            elif action < 0.10 and members:
                members.pop(rng.choice(sorted(members))).leave()
            elif action < 0.12 and grown < 6:
                grown += 1
                logs.dirs.directories[0].add_partitions("events", [grown - 1], logs.dirs.topic_id("events"))
                server.context.topics.changed("events")
            elif action < 0.14:
                client.socket.close()
                server.close()
                server = lastword.serve(logs, "127.0.0.1:0")
                client = Client(server)
                for member in members.values():
                    member.client = client
            elif members:
                member = members[rng.choice(sorted(members))]
                wanted, epoch = set(member.wanted), member.epoch
                repeated = {"rebalance_timeout_ms": REBALANCE_MS} | member.fields if member.id in lost else {}
                lost.discard(member.id)
                answer = member.beat(**repeated)
                if answer == codes.FENCED_MEMBER_EPOCH:
                    member.owned, member.wanted, member.epoch = set(), set(), 0
                else:
                    assert not isinstance(answer, int), answer
                    if rng.random() < 0.1:  # the answer is lost: the next heartbeat states everything
                        member.wanted, member.epoch = wanted, epoch
                        lost.add(member.id)
                    elif rng.random() < 0.7:
                        member.revoke()
                        if rng.random() < 0.7:
                            member.assign()
            owned = [partition for member in members.values() for partition in member.owned]
            assert len(owned) == len(set(owned)), step
        if members:
            for _ in range(12):
                for member in members.values():
                    if (
                        member.beat(**{"rebalance_timeout_ms": REBALANCE_MS} | member.fields)
                        == codes.FENCED_MEMBER_EPOCH
                    ):
                        member.owned, member.wanted, member.epoch = set(), set(), 0
                    member.assign()
            assert state(client) == ("Stable", len(members))
            read = {topic for member in members.values() for topic in member.fields["subscribed_topic_names"]}
            owned = [partition for member in members.values() for partition in member.owned]
            assert len(owned) == len(set(owned)) == sum(logs[topic].partitions for topic in read)
    finally:
        client.socket.close()
        server.close()


# ---------------------------------------------------------------- assignors

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def counts(targets: dict[str, frozenset[tuple[bytes, int]]]) -> list[int]:
    return sorted(len(partitions) for partitions in targets.values())


def test_uniform_is_even_and_moves_little() -> None:
    topics = {A: range(5), B: range(6)}
    members = {name: frozenset((A, B)) for name in ("x", "y", "z")}
    first = uniform(members, topics, {})
    assert counts(first) == [3, 4, 4]
    assert uniform(members, topics, first) == first
    more = uniform(members | {"w": frozenset((A, B))}, topics, first)
    assert counts(more) == [2, 3, 3, 3]
    assert sum(len(first[name] & more[name]) for name in first) == 9  # only two moved
    fewer = uniform({name: members[name] for name in ("x", "y")}, topics, first)
    assert all(first[name] <= fewer[name] for name in ("x", "y"))
    assert counts(fewer) == [5, 6]


@pytest.mark.parametrize("seed", range(0, 100, stride(4)))
def test_uniform_leaves_nothing_to_level(seed: int) -> None:
    rng = random.Random(seed)
    topics = {bytes([65 + n]) * 16: range(rng.randrange(1, 9)) for n in range(5)}
    before: dict[str, frozenset[tuple[bytes, int]]] = {}
    for _ in range(4):
        members = {
            f"m{n}": frozenset(rng.sample(sorted(topics), rng.randrange(4)))
            for n in rng.sample(range(8), rng.randrange(1, 8))
        }
        targets = uniform(members, topics, before)
        assert targets.keys() == members.keys()
        assigned = [partition for has in targets.values() for partition in has]
        read = {topic for subscribed in members.values() for topic in subscribed}
        assert sorted(assigned) == sorted((topic, n) for topic in read for n in topics[topic])
        for member, has in targets.items():
            for topic, _ in has:
                assert topic in members[member]
                readers = [other for other in members if topic in members[other]]
                assert len(has) - min(len(targets[other]) for other in readers) <= 1
        assert uniform(members, topics, targets) == targets
        before = targets


def test_ranges_are_neighbours_and_alike() -> None:
    topics = {A: range(5), B: range(5), C: range(1)}
    members = {"x": frozenset((A, B)), "y": frozenset((A, B)), "z": frozenset((C,))}
    targets = ranges(members, topics, {})
    assert targets["x"] == {(t, n) for t in (A, B) for n in (0, 1, 2)}
    assert targets["y"] == {(t, n) for t in (A, B) for n in (3, 4)}
    assert targets["z"] == {(C, 0)}


def test_a_real_group_of_many_is_assigned_quickly() -> None:
    topics = {A: range(1000), B: range(1000)}
    members = {f"m{n}": frozenset((A, B)) for n in range(300)}
    assert counts(uniform(members, topics, {}))[-1] == 7
    mixed = {f"m{n}": frozenset((A, B) if n % 2 else (A,)) for n in range(300)}
    assert counts(uniform(mixed, topics, {}))[-1] == 7
