"""Groups of the classic protocol: joins, rebalances, sessions by the clock, committed offsets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import LastwordError, StorageError
from lastword.partition.log import PartitionLog
from lastword.protocol import codes, java_hash
from lastword.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from lastword.server import Server, classic_groups
from lastword.server.coordinator import CoordinatorTopic
from lastword.testing.unsynced import UNSYNCED
from tests.server.client import Client, offset_delete, offset_fetch
from tests.server.conftest import Opened
from tests.server.writer import started
from tests.support.waiting import until

SESSION_MS, REBALANCE_MS = 10_000, 60_000


@pytest.fixture
def logs(opened: Opened, clock: ManualClock) -> Iterator[lastword.LogDir]:
    with opened(clock=clock) as logs:
        logs.create_topic("users", 3)
        yield logs


class Consumer:
    """A member of a group, by requests."""

    def __init__(
        self,
        server: Server,
        group: str = "g",
        *,
        instance: str | None = None,
        version: int = 9,
        **fields: Any,
    ) -> None:
        self.client = Client(server)
        self.fields = fields
        self.group = group
        self.instance = instance
        self.version = version
        self.id = ""
        self.generation = -1
        self.joined: Any = None

    def send_join(self, **fields: Any) -> None:
        """Join with the fields of the consumer and these: also `metadata`, and `protocols` by name."""
        given = {"metadata": b"m", "protocols": ("range",)} | self.fields | fields
        metadata, names = given.pop("metadata"), given.pop("protocols")
        kind = JoinGroupRequest.JoinGroupRequestProtocol
        body = {
            "group_id": self.group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [kind(name=name, metadata=metadata) for name in names],
        }
        self.client.send(JoinGroupRequest(**(body | given)), self.version)

    def receive_join(self) -> Any:
        self.joined = self.client.receive()
        self.id, self.generation = self.joined.member_id, self.joined.generation_id
        return self.joined

    def join(self, **fields: Any) -> Any:
        """Join, with the id of the first answer if it has one."""
        self.send_join(**fields)
        if self.receive_join().error_code == codes.MEMBER_ID_REQUIRED:
            self.send_join(**fields)
            self.receive_join()
        return self.joined

    def _own(self) -> dict[str, Any]:
        named = {"group_id": self.group, "group_instance_id": self.instance}
        return {"generation_id": self.generation, "member_id": self.id, **named}

    def send_sync(self, assignments: dict[str, bytes] | None = None) -> None:
        given = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
            for member, data in (assignments or {}).items()
        ]
        names = {"protocol_type": "consumer", "protocol_name": "range"}
        self.client.send(SyncGroupRequest(**self._own(), **names, assignments=given))

    def sync(self, assignments: dict[str, bytes] | None = None) -> Any:
        self.send_sync(assignments)
        return self.client.receive()

    def heartbeat(self) -> int:
        return self.client.ask(HeartbeatRequest(**self._own())).error_code

    def leave(self) -> Any:
        member = LeaveGroupRequest.MemberIdentity(member_id=self.id, group_instance_id=self.instance)
        return self.client.ask(LeaveGroupRequest(group_id=self.group, members=[member])).members[0].error_code

    def commit(self, offset: int, metadata: str = "", *, topic: str = "users") -> int:
        return self.client.commit(
            offset,
            self.group,
            topic=topic,
            partition=1,
            text=metadata,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
        )

    def committed(self) -> tuple[int, str]:
        partition = self.client.committed(self.group, partition=1)
        return partition.committed_offset, partition.metadata


@pytest.fixture
def two(server: Server) -> tuple[Consumer, Consumer]:
    """Two members of a stable group; the first leads."""
    first, second = Consumer(server), Consumer(server)
    first.join()
    assert first.sync({first.id: b"all"}).assignment == b"all"
    return first, joined(first, second)


def joined(leader: Consumer, other: Consumer) -> Consumer:
    """Let a second consumer join the group of a stable leader, and sync both."""
    rebalance(leader, other)
    assign(leader, other)
    return other


def rebalance(leader: Consumer, other: Consumer) -> None:
    """Let another consumer join, and wait for the plan of a stable leader."""
    other.send_join()
    if other.id == "" and other.instance is None:
        assert other.receive_join().error_code == codes.MEMBER_ID_REQUIRED
        other.send_join()
    until(lambda: leader.heartbeat() == codes.REBALANCE_IN_PROGRESS)
    leader.send_join()
    assert leader.receive_join().error_code == other.receive_join().error_code == 0
    assert leader.generation == other.generation
    assert {member.member_id for member in leader.joined.members} == {leader.id, other.id}
    other.send_sync()


def assign(leader: Consumer, other: Consumer) -> None:
    """Sync a leader, and check what it and another consumer, which waits for it, are assigned."""
    assert leader.sync({leader.id: b"one", other.id: b"two"}).assignment == b"one"
    assert other.client.receive().assignment == b"two"


def awaiting_the_leader(server: Server, **fields: Any) -> tuple[Consumer, Consumer]:
    """Return the leader of a group and another member, whose SyncGroup waits for that of the leader."""
    leader, other = Consumer(server, **fields), Consumer(server)
    leader.join()
    leader.sync({})
    rebalance(leader, other)
    group: Any = server.node.groups.store.get("g")
    until(lambda: group.members[other.id].syncing is not None)
    return leader, other


def state(client: Client, group: str = "g") -> tuple[str, int]:
    described = client.ask(DescribeGroupsRequest(groups=[group])).groups[0]
    return described.group_state, len(described.members)


def test_two_members_share_a_group(two: tuple[Consumer, Consumer], client: Client) -> None:
    first, second = two
    assert first.heartbeat() == second.heartbeat() == 0
    assert state(client) == ("Stable", 2)
    assert second.leave() == 0
    assert first.heartbeat() == codes.REBALANCE_IN_PROGRESS
    first.join()
    assert first.sync({first.id: b"all"}).assignment == b"all"
    assert first.leave() == 0
    assert state(client) == ("Empty", 0)


def test_requests_of_another_generation_or_member_are_refused(two: tuple[Consumer, Consumer]) -> None:
    first, second = two
    second.generation -= 1
    assert second.heartbeat() == second.sync().error_code == second.commit(5) == codes.ILLEGAL_GENERATION
    second.generation, second.id = first.generation, "nobody"
    assert second.heartbeat() == second.sync().error_code == second.commit(5) == codes.UNKNOWN_MEMBER_ID
    assert second.leave() == codes.UNKNOWN_MEMBER_ID
    assert second.join().error_code == codes.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, codes.INVALID_GROUP_ID),
        ({"session_timeout_ms": 1}, codes.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, codes.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, codes.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
@pytest.mark.parametrize("version", [5, 9])
def test_a_wrong_join_is_refused(server: Server, version: int, fields: dict[str, Any], code: int) -> None:
    Consumer(server).join()
    assert Consumer(server, version=version).join(**fields).error_code == code


def test_a_member_that_rejoins_keeps_a_protocol_of_its_group(server: Server) -> None:
    member = Consumer(server)
    member.join()
    assert member.join(protocols=("other",)).error_code == codes.INCONSISTENT_GROUP_PROTOCOL
    assert member.join().error_code == 0


def test_a_client_with_the_longest_name_joins(server: Server) -> None:
    """The id of a member begins with the name of its client. It has to fit into an answer."""
    member = Consumer(server)
    member.client = Client(server, client_id="c" * 32_767)
    assert member.join().error_code == 0
    assert member.sync({member.id: b"plan"}).assignment == b"plan"


def test_many_protocols_are_compared_in_linear_time() -> None:
    """A client names as many as it likes, and the loop of the server compares them."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    def protocols(prefix: str) -> list[tuple[str, bytes]]:
        return [(Name(f"{prefix}{number}"), b"") for number in range(100)]

    group = classic_groups.ClassicGroup("g", protocol_type="consumer")
    for number in range(3):
        group.members[str(number)] = classic_groups.ClassicMember(
            str(number), None, "", "", SESSION_MS, REBALANCE_MS, "consumer", protocols("p")
        )
    assert not group.supports("consumer", protocols("q"))
    assert group.chosen_protocol() == "p0"
    assert compared < 2000


def test_a_silent_member_leaves_when_its_session_ends(
    two: tuple[Consumer, Consumer], clock: ManualClock, client: Client
) -> None:
    first, second = two
    clock.advance(SESSION_MS - 1000)
    assert first.heartbeat() == 0
    clock.advance(1001)
    until(lambda: state(client)[1] == 1)
    assert first.heartbeat() == codes.REBALANCE_IN_PROGRESS
    assert second.heartbeat() == codes.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_join_again_is_removed(
    two: tuple[Consumer, Consumer], clock: ManualClock, server: Server
) -> None:
    first, second = two
    third = Consumer(server)
    third.send_join()
    third.receive_join()
    third.send_join()
    until(lambda: first.heartbeat() == codes.REBALANCE_IN_PROGRESS)
    first.send_join()
    group: Any = server.node.groups.store.get("g")
    until(lambda: group.members[first.id].joining)
    for _ in range(REBALANCE_MS // 5000 + 1):  # the second member is alive, but does not join
        clock.advance(5000)
        second.heartbeat()
    assert first.receive_join().error_code == third.receive_join().error_code == 0
    assert {member.member_id for member in first.joined.members} == {first.id, third.id}


def test_a_member_that_waits_for_the_leader_stays(server: Server, clock: ManualClock, client: Client) -> None:
    """Its heartbeats would wait behind its SyncGroup. Its session begins with the answer."""
    leader, other = awaiting_the_leader(server, session_timeout_ms=REBALANCE_MS)
    clock.advance(SESSION_MS * 2)
    time.sleep(0.05)
    assign(leader, other)
    clock.advance(SESSION_MS + 1)
    until(lambda: state(client)[1] == 1)


def test_only_a_commit_in_a_transaction_is_accepted_before_the_assignment(
    server: Server, clock: ManualClock, client: Client
) -> None:
    leader, _ = awaiting_the_leader(server)
    fields = {"generation_id_or_member_epoch": leader.generation, "member_id": leader.id}
    assert client.commit(5, **fields) == codes.REBALANCE_IN_PROGRESS
    writer = started(client, clock)
    assert writer.commit_offset(5, **fields) == 0
    assert writer.commit_offset(5) == 0  # of a client that names no member


def test_a_static_member_with_other_metadata_returns_without_a_rebalance(server: Server) -> None:
    """Consumers put their generation in it. Only another protocol begins a rebalance, as in Kafka."""
    both = {"protocols": ("range", "sticky")}
    leader, static = Consumer(server, **both), Consumer(server, instance="one", **both)
    leader.join()
    leader.sync({leader.id: b"all"})
    joined(leader, static)
    again = Consumer(server, instance="one", metadata=b"other", **both)
    assert again.join().error_code == 0
    assert again.generation == static.generation and again.id != static.id
    assert (leader.heartbeat(), again.sync().assignment) == (0, b"two")
    assert static.heartbeat() == static.commit(3) == codes.FENCED_INSTANCE_ID
    leader.send_join()  # the leader assigns by the new metadata
    until(lambda: again.heartbeat() == codes.REBALANCE_IN_PROGRESS)
    again.send_join()
    assert again.receive_join().error_code == 0
    metadata = {member.member_id: bytes(member.metadata) for member in leader.receive_join().members}
    assert metadata == {leader.id: b"m", again.id: b"other"}
    again.send_sync()
    assign(leader, again)
    third = Consumer(server, instance="one", protocols=("sticky",))
    third.send_join()
    until(lambda: leader.heartbeat() == codes.REBALANCE_IN_PROGRESS)
    leader.send_join()
    assert leader.receive_join().protocol_name == third.receive_join().protocol_name == "sticky"


@pytest.mark.parametrize("version", [8, 9])
def test_a_static_leader_that_returns_computes_no_assignment(server: Server, version: int) -> None:
    leader, again = (Consumer(server, instance="one", version=version) for _ in range(2))
    leader.join()
    leader.sync({leader.id: b"all"})
    answer = again.join()
    expected = (True, again.id, 1) if version == 9 else (False, leader.id, 0)
    assert (answer.skip_assignment, answer.leader, len(answer.members)) == expected
    assert again.sync().assignment == b"all"


@pytest.mark.parametrize("waits", [False, True])
def test_groups_begin_again_when_their_topic_is_deleted(
    two: tuple[Consumer, Consumer],
    client: Client,
    logs: lastword.LogDir,
    clock: ManualClock,
    server: Server,
    waits: bool,
) -> None:
    first, second = two
    assert first.commit(5) == 0
    if waits:
        second.send_join(protocols=("range", "sticky"))
        until(lambda: first.heartbeat() == codes.REBALANCE_IN_PROGRESS)
    logs.delete_topic("__consumer_offsets")
    if waits:
        assert first.heartbeat() == codes.UNKNOWN_MEMBER_ID
        assert second.receive_join().error_code == codes.NOT_COORDINATOR
    assert first.committed() == (-1, "")
    assert first.heartbeat() == codes.UNKNOWN_MEMBER_ID
    assert client.ask(ListGroupsRequest()).groups == []
    assert logs.dirs.has_topic("__consumer_offsets")
    first.id, first.generation = "", -1
    first.join()
    assert [first.sync({}).error_code, first.commit(6)] == [0, 0]
    for _ in range(3):  # the sessions of the members that were forgotten have no effect
        clock.advance(SESSION_MS // 2)
        assert first.heartbeat() == 0
    assert (state(client), first.committed()) == (("Stable", 1), (6, ""))
    answer = client.ask(DeleteTopicsRequest(topic_names=["__consumer_offsets"]), 5)
    assert answer.responses[0].error_code == 0
    assert not logs.dirs.has_topic("__consumer_offsets"), "it is created at the next request"
    assert first.commit(7) == codes.GROUP_ID_NOT_FOUND


def test_groups_that_cannot_be_loaded(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition of their topic is offline. Transactions are found, and so are groups when it is back."""
    member = Consumer(server)

    def find(version: int, key_type: int = 0) -> tuple[int, int]:
        answer = found(client, version, key_type)
        return answer.error_code, answer.node_id

    def fails(topic: CoordinatorTopic) -> int:
        raise StorageError("the drive is offline")

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorTopic, "open", fails)
        assert find(3) == find(6) == (codes.COORDINATOR_NOT_AVAILABLE, -1)
        assert find(6, key_type=1) == (0, 1)
        assert client.ask(ListGroupsRequest()).error_code == codes.COORDINATOR_NOT_AVAILABLE
        described = client.ask(DescribeGroupsRequest(groups=["g"])).groups[0]
        assert described.error_code == codes.COORDINATOR_NOT_AVAILABLE
        assert member.commit(1) == codes.COORDINATOR_NOT_AVAILABLE
        waits = codes.COORDINATOR_LOAD_IN_PROGRESS  # each client asks again after this error of OffsetFetch
        assert client.ask(offset_fetch(), 9).groups[0].error_code == waits
        kind = OffsetFetchRequest.OffsetFetchRequestTopic
        asked = OffsetFetchRequest(group_id="g", topics=[kind(name="users", partition_indexes=[0, 1])])
        for version in (1, 2, 7):
            answer = client.ask(asked, version)
            assert [part.error_code for part in answer.topics[0].partitions] == [waits] * 2
            assert answer.error_code == (waits if version > 1 else 0)
        assert client.ask(OffsetFetchRequest(group_id="g", topics=None), 7).error_code == waits
    assert find(3) == find(6) == (0, 1)
    assert client.ask(ListGroupsRequest()).error_code == member.commit(1) == 0
    assert not [record for record in caplog.records if record.exc_info]


def test_groups_whose_drive_is_gone_keep_their_offsets(tmp_path: Path, clock: ManualClock) -> None:
    """Their leases must stay, too: the offsets are there when the directory is opened again."""
    paths = [tmp_path / "a", tmp_path / "b"]
    logs = lastword.open(paths, "a", files=UNSYNCED, clock=clock, log_cleaner_enable=False)
    logs.create_topic("users", 3, cleanup_policy="compact")  # two partitions are in the first directory
    server = lastword.serve(logs, "127.0.0.1:0")
    member = Consumer(server)
    assert member.commit(0) == 0
    log_dir = logs.dirs.partitions("__consumer_offsets")[0]
    path = Path(log_dir.path)
    gone = path.rename(tmp_path / "gone")
    with pytest.raises(LastwordError, match="offline"):
        logs.sync()
    server.context.topics.changed("users")
    assert member.committed() == (0, "")
    assert member.commit(1) == codes.NOT_COORDINATOR
    assert member.committed() == (0, "")
    assert not server.node.groups.leases._due or None not in server.node.groups.leases._due.values()
    for closes in (server.close, logs.close):
        with pytest.raises(LastwordError, match="offline"):
            closes()
    gone.rename(path)


@contextmanager
def full_drive() -> Iterator[None]:
    """No record of a coordinator can be appended."""

    def fails(*arguments: Any, **options: Any) -> None:
        raise StorageError("the drive is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoordinatorTopic, "append_in", fails)
        yield


def test_a_plan_that_cannot_be_stored_is_made_again(server: Server, client: Client) -> None:
    leader, other = awaiting_the_leader(server)
    with full_drive():
        assert leader.sync({leader.id: b"one", other.id: b"two"}).error_code == codes.NOT_COORDINATOR
        assert other.client.receive().error_code == codes.NOT_COORDINATOR
    assert state(client) == ("PreparingRebalance", 2)
    joined(leader, other)


def test_a_full_drive_is_answered(two: tuple[Consumer, Consumer], server: Server, client: Client) -> None:
    """With the code of a broker, after which clients send the request again."""
    first, second = two
    assert Consumer(server, "simple").commit(1) == 0
    with full_drive():
        assert first.commit(5) == codes.NOT_COORDINATOR
        answer = client.ask(offset_delete("simple", partitions=[1]))
        assert answer.error_code == codes.NOT_COORDINATOR
        deleted = client.ask(DeleteGroupsRequest(groups_names=["simple"])).results[0]
        assert deleted.error_code == codes.NOT_COORDINATOR
        assert first.leave() == second.leave() == 0
        assert state(client) == ("Empty", 0)
    assert Consumer(server, "simple").committed() == (1, "")


@contextmanager
def failing_syncs() -> Iterator[None]:
    """Records are appended, and no sync succeeds."""

    def fails(log: PartitionLog) -> None:
        raise StorageError("cannot sync: Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "sync", fails)
        yield


def test_a_sync_that_fails_is_answered(
    server: Server, client: Client, logs: lastword.LogDir, two: tuple[Consumer, Consumer]
) -> None:
    """With `ack=disk`: by the code of a broker, and the connections of the members stay open."""
    logs.set_config(lastword_ack="disk")
    first, second = two
    assert Consumer(server, "simple").commit(1) == 0
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id="new",
        member_id="m",
        rebalance_timeout_ms=REBALANCE_MS,
        subscribed_topic_names=["users"],
        topic_partitions=[],
    )
    with failing_syncs():
        assert first.commit(5) == second.commit(5) == codes.NOT_COORDINATOR
        for body in (offset_delete("simple", partitions=[1]), heartbeat):
            assert client.ask(body).error_code == codes.NOT_COORDINATOR
        deleted = client.ask(DeleteGroupsRequest(groups_names=["simple"])).results[0]
        assert deleted.error_code == codes.NOT_COORDINATOR
    assert first.commit(6) == first.heartbeat() == 0
    assert client.ask(heartbeat).error_code == 0


def test_ids_that_are_given_count_as_members(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that requests ids and never joins with them takes no more memory than members would."""
    monkeypatch.setattr(classic_groups, "MOST_MEMBERS", 2)
    first, second, third = (Consumer(server) for _ in range(3))
    for member in (first, second, third):
        member.send_join()
    answers = [member.receive_join().error_code for member in (first, second, third)]
    assert answers == [*2 * [codes.MEMBER_ID_REQUIRED], codes.GROUP_MAX_SIZE_REACHED]
    first.send_join()
    second.send_join()
    assert first.receive_join().error_code == second.receive_join().error_code == 0


def test_committed_offsets_and_members_survive_a_restart(logs: lastword.LogDir) -> None:
    with lastword.serve(logs, "127.0.0.1:0") as server:
        member = Consumer(server)
        member.join()
        member.sync({member.id: b"all"})
        assert member.commit(42, "note") == 0
        assert member.commit(7, "x" * 5000) == codes.OFFSET_METADATA_TOO_LARGE
        assert member.commit(7, topic="others") == codes.UNKNOWN_TOPIC_OR_PARTITION
    with lastword.serve(logs, "127.0.0.1:0") as server:
        member.client = Client(server)
        assert member.committed() == (42, "note")
        assert member.heartbeat() == 0
        synced = member.sync()
        assert (synced.error_code, synced.assignment) == (0, b"all")
        assert Consumer(server, "others").committed() == (-1, "")


def test_offsets_are_read_from_the_partition_of_their_group(logs: lastword.LogDir) -> None:
    """A broker adds partitions to the topic if it is asked to. The records of another one are former ones."""
    group = next(f"g{n}" for n in range(99) if java_hash(f"g{n}") % 2 == 1 and java_hash(f"g{n}") % 3 == 0)
    logs.create_topic("__consumer_offsets", 2, cleanup_policy="compact")
    for offset in (5, 9):
        with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
            assert client.commit(offset, group) == 0
        if offset == 5:
            topic_id = logs.dirs.topic_id("__consumer_offsets")
            logs.dirs.directories[0].add_partitions("__consumer_offsets", [2], topic_id)
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        assert client.committed(group).committed_offset == 9


def test_a_commit_waits_for_the_drive_if_the_settings_say_so(
    server: Server, logs: lastword.LogDir, two: tuple[Consumer, Consumer]
) -> None:
    logs.set_config(lastword_ack="disk")
    assert two[0].commit(5) == 0
    log = logs.dirs.log("__consumer_offsets", 0)
    assert log.synced_to == log.log_end
    assert two[0].leave() == 0
    two[1].join()
    assert two[1].sync({two[1].id: b"all"}).assignment == b"all"
    assert log.synced_to == log.log_end


def test_groups_and_offsets_are_deleted(server: Server, client: Client, logs: lastword.LogDir) -> None:
    member = Consumer(server)
    member.join()
    member.sync({})
    member.commit(5)
    assert client.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == codes.NON_EMPTY_GROUP
    member.leave()
    assert client.ask(offset_delete("g", partitions=[1])).error_code == 0
    assert member.committed() == (-1, "")
    for code in (0, codes.GROUP_ID_NOT_FOUND):
        assert client.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == code
    assert state(client) == ("Dead", 0)
    newest = {record.key: record.value for record in logs["__consumer_offsets"].read()}
    assert set(newest.values()) == {None}


def found(client: Client, version: int, key_type: int = 0) -> Any:
    """Return the answer of FindCoordinator for a key."""
    keys: dict[str, Any] = {"key": "g"} if version < 4 else {"coordinator_keys": ["g"]}
    answer = client.ask(FindCoordinatorRequest(key_type=key_type, **keys), version)
    return answer if version < 4 else answer.coordinators[0]


@pytest.mark.parametrize(
    ("key_type", "version"), [*((0, n) for n in range(7)), *((1, n) for n in range(1, 7))]
)
def test_the_coordinator_is_this_server(server: Server, client: Client, key_type: int, version: int) -> None:
    """Type 0 asks for that of groups, type 1 for that of transactions."""
    answer = found(client, version, key_type)
    assert (answer.error_code, answer.node_id) == (0, 1)
    assert (answer.host, answer.port) == (server.host, server.port)


def test_the_hash_is_javas() -> None:
    texts = ("", "g", "hello", "Aa", "BB", "polygenelubricants")  # the last has the hash -2^31
    assert [java_hash(text) for text in texts] == [0, 103, 99_162_322, 2112, 2112, 0]
