"""Committed offsets: how they expire, what deletes them, ids of topics, and the leases that they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import BusyError, DiskFullError
from lastword.protocol import codes, decode_stored, encode_stored
from lastword.protocol.messages import (
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
)
from lastword.server import Server, classic_groups, group_leases
from lastword.server.classic_groups import ClassicGroup, ClassicMember
from lastword.server.consumer_group_state import ConsumerGroup, ConsumerMember
from lastword.server.group_leases import lease_name
from lastword.server.group_store import Committed
from tests.server.client import Client, offset_delete
from tests.server.conftest import Opened
from tests.server.test_groups import Consumer
from tests.support.waiting import until

DAY_MS = 86_400_000
CHECK_MS = 600_000
UNKNOWN_ID = b"\1" * 16


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_leases, "PAUSE_SECONDS", 0.05)


@pytest.fixture
def logs(opened: Opened, clock: ManualClock) -> Iterator[lastword.LogDir]:
    with opened(clock=clock) as logs:
        logs.create_topic("users", 3, cleanup_policy="compact", delete_retention_ms=0, segment_bytes="1KiB")
        yield logs


def commit(client: Client, group: str = "g", version: int = 9, **fields: Any) -> int:
    """Commit offset 5 of users-1, or the given one; return the error code."""
    return client.commit(group=group, version=version, **{"offset": 5, "partition": 1} | fields)


def committed(client: Client, group: str = "g", *, topic: str = "users", partition: int = 1) -> int:
    return int(client.committed(group, topic=topic, partition=partition).committed_offset)


def groups(client: Client) -> set[str]:
    return {group.group_id for group in client.ask(ListGroupsRequest()).groups}


def newest(logs: lastword.LogDir) -> set[bytes | None]:
    """Return the newest values of the coordinator's records."""
    return set({record.key: record.value for record in logs["__consumer_offsets"].read()}.values())


# ---------------------------------------------------------------- expiry


def test_offsets_without_members_expire_by_their_commit(
    client: Client, clock: ManualClock, logs: lastword.LogDir
) -> None:
    commit(client)
    clock.advance(6 * DAY_MS)
    commit(client, partition=2)
    clock.advance(DAY_MS)
    until(lambda: committed(client) == -1)
    assert committed(client, partition=2) == 5
    clock.advance(6 * DAY_MS)
    until(lambda: groups(client) == set())
    assert newest(logs) == {None}


def test_a_check_reads_each_subscription_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each offset: the thread of all connections would be busy for seconds."""
    subscription = encode_stored(ConsumerProtocolSubscription(topics=["a", "b"]), 1)
    group = ClassicGroup("g", protocol_type="consumer", protocol="range", state="Stable")
    for name in "xyz":
        protocols = [("range", subscription)]
        group.members[name] = ClassicMember(name, None, "", "", 1, 1, "consumer", protocols)
    group.offsets = {(topic, number): Committed(1, -1, "") for topic in "abc" for number in range(9)}
    decoded = []

    def decode(*arguments: Any) -> Any:
        decoded.append(arguments)
        return decode_stored(*arguments)

    monkeypatch.setattr(classic_groups, "decode_stored", decode)
    assert group.expired(DAY_MS, 1) == [("c", number) for number in range(9)]
    assert len(decoded) == 3


def test_offsets_of_the_newer_protocol_expire_by_their_commit() -> None:
    """A topic that a member reads keeps its offsets; without members no time of the group counts."""
    group = ConsumerGroup("g", members={"a": ConsumerMember("a", topics=frozenset({"read"}))})
    group.offsets = {(topic, 0): Committed(1, -1, "", committed_ms=1000) for topic in ("read", "left")}
    assert group.expired(1000 + DAY_MS - 1, DAY_MS) == []
    assert group.expired(1000 + DAY_MS, DAY_MS) == [("left", 0)]
    del group.members["a"]
    assert group.expired(1000 + DAY_MS, DAY_MS) == [("read", 0), ("left", 0)]


def test_offsets_of_members_expire_when_the_group_has_been_empty_for_long(
    server: Server, client: Client, clock: ManualClock, logs: lastword.LogDir
) -> None:
    member = Consumer(server)
    member.join()
    member.sync({})
    assert member.commit(5) == 0
    for _ in range(9):
        clock.advance(DAY_MS - 1)
        member.join()  # its session ended meanwhile
        member.id = member.id if member.joined.error_code == 0 else ""
        member.join()
        member.sync({})
    assert member.committed() == (5, "")
    assert member.leave() == 0
    clock.advance(7 * DAY_MS - 2 * CHECK_MS)
    assert member.committed() == (5, "")
    clock.advance(3 * CHECK_MS)
    until(lambda: groups(client) == set())
    assert newest(logs) == {None}


def test_the_time_in_a_group_counts_from_the_log_after_a_restart(
    logs: lastword.LogDir, clock: ManualClock
) -> None:
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        commit(client)
    clock.advance(7 * DAY_MS)
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        clock.advance(CHECK_MS)
        until(lambda: committed(client) == -1)


def test_a_retention_that_an_old_client_gave_counts(client: Client, clock: ManualClock) -> None:
    commit(client, version=4, retention_time_ms=DAY_MS)
    commit(client, version=4, retention_time_ms=30 * DAY_MS, partition=2)
    commit(client, version=4, retention_time_ms=2**63 - 1, partition=0)  # no expiration time can be later
    clock.advance(DAY_MS)
    until(lambda: committed(client) == -1)
    clock.advance(28 * DAY_MS)
    assert committed(client, partition=2) == 5
    clock.advance(DAY_MS)
    until(lambda: committed(client, partition=2) == -1)
    assert committed(client, partition=0) == 5


# ---------------------------------------------------------------- topics


def test_the_offsets_of_a_deleted_topic_are_deleted(
    client: Client, logs: lastword.LogDir, clock: ManualClock
) -> None:
    logs.create_topic("events", cleanup_policy="delete")
    commit(client)
    commit(client, topic="events", partition=0)
    client.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="users")], timeout_ms=1))
    assert committed(client) == -1
    assert committed(client, topic="events", partition=0) == 5
    logs.delete_topic("events")  # by Python
    logs.create_topic("events", cleanup_policy="delete")
    assert client.ask(ListGroupsRequest()).groups != []
    until(lambda: committed(client, topic="events", partition=0) == -1)
    assert newest(logs) == {None}
    clock.advance(CHECK_MS)
    until(lambda: groups(client) == set())


def test_the_offsets_of_a_topic_that_was_made_again_while_no_server_ran_are_deleted(
    logs: lastword.LogDir,
) -> None:
    """A consumer would have passed over the first records of the new topic."""
    logs.create_topic("events", cleanup_policy="delete")
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        for topic in ("users", "users@newest", "events", "events@newest"):
            assert commit(client, topic=topic, partition=0) == 0
    logs.delete_topic("events")
    logs.create_topic("events", cleanup_policy="delete")
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        for topic, offset in (("users", 5), ("users@newest", 5), ("events", -1), ("events@newest", -1)):
            assert committed(client, topic=topic, partition=0) == offset
    assert None in newest(logs)


def test_a_note_is_measured_as_java_does(client: Client) -> None:
    assert commit(client, text="\U0001f600" * 2048) == 0
    assert commit(client, text="\U0001f600" * 2049) == codes.OFFSET_METADATA_TOO_LARGE


def test_topics_by_id(client: Client) -> None:
    known = client.topic_id()
    assert commit(client, version=10, topic_id=known) == 0
    assert commit(client, version=10, topic_id=UNKNOWN_ID) == codes.UNKNOWN_TOPIC_ID
    unknown = codes.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, version=10, topic_id=known, partition=9) == unknown
    kind = OffsetFetchRequest
    topics = [
        kind.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1])
        for topic_id in (known, UNKNOWN_ID)
    ]
    body = kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=topics)])
    answers = client.ask(body, 10).groups[0].topics
    assert [(p.committed_offset, p.error_code) for p in answers[0].partitions] == [(-1, 0), (5, 0)]
    assert {(p.committed_offset, p.error_code) for p in answers[1].partitions} == {
        (-1, codes.UNKNOWN_TOPIC_ID)
    }


def test_errors_of_a_partition_come_before_those_of_the_group(client: Client) -> None:
    bad = {"generation_id_or_member_epoch": 5, "member_id": "m"}
    assert commit(client, **bad, partition=9) == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, **bad) == codes.GROUP_ID_NOT_FOUND
    assert commit(client, **bad, version=8) == codes.ILLEGAL_GENERATION
    assert groups(client) == set()


def test_the_record_is_kafkas(client: Client, logs: lastword.LogDir) -> None:
    commit(client, text="note")
    (record,) = logs["__consumer_offsets"].read()
    key = decode_stored("OffsetCommitKey", record.key)
    value = decode_stored("OffsetCommitValue", record.value)
    assert (key.group, key.topic, key.partition) == ("g", "users", 1)
    assert (value.offset, value.leader_epoch, value.metadata) == (5, -1, "note")
    assert value.topic_id == client.topic_id()
    assert logs["__consumer_offsets"].config.cleanup_policy == frozenset({"compact"})


# ---------------------------------------------------------------- leases


def leases(logs: lastword.LogDir, partition: int = 1) -> dict[str, int]:
    return {lease.name: lease.position for lease in logs["users"].leases(partition)}


def fill(logs: lastword.LogDir) -> None:
    """Append 20 records and a tombstone at offset 20 to users-1, in segments that can be cleaned."""
    log = logs["users"]
    for number in range(20):
        log.append(b"key", b"%d" % number * 200, partition=1)
    log.append(b"key", None, partition=1)
    for number in range(20):
        log.append(b"other", b"%d" % number * 200, partition=1)


def tombstones(logs: lastword.LogDir) -> list[int]:
    """Clean twice (the first time sets the delete horizon), and return the tombstones that are left."""
    for _ in range(2):
        logs.clean("users")
    return [record.offset for record in logs["users"].read(partition=1) if record.value is None]


def test_a_tombstone_stays_until_a_group_has_read_it(
    client: Client, logs: lastword.LogDir, clock: ManualClock
) -> None:
    fill(logs)
    commit(client, offset=12)
    commit(client, "other", offset=41)
    until(lambda: leases(logs) == {"group.g": 12, "group.other": 41})
    clock.advance(1)
    assert tombstones(logs) == [20]
    commit(client, offset=21)
    until(lambda: leases(logs)["group.g"] == 21)
    assert tombstones(logs) == []
    commit(client, offset=0)  # back: nothing refuses a group
    until(lambda: leases(logs)["group.g"] == logs.dirs.log("users", 1).log_start)


def test_a_reader_of_the_newest_records_holds_tombstones(client: Client, logs: lastword.LogDir) -> None:
    fill(logs)
    commit(client, topic="users@newest", offset=12)
    commit(client, offset=15)
    until(lambda: leases(logs) == {"group.g": 15, "newest.group.g": 12})


def test_a_lease_ends_with_its_offset(client: Client, logs: lastword.LogDir, clock: ManualClock) -> None:
    fill(logs)
    for group in ("a", "b", "c"):
        commit(client, group, offset=3)
    until(lambda: len(leases(logs)) == 3)
    client.ask(DeleteGroupsRequest(groups_names=["a"]))
    client.ask(offset_delete("b", partitions=[1]))
    until(lambda: set(leases(logs)) == {"group.c"})
    clock.advance(8 * DAY_MS)
    until(lambda: leases(logs) == {})


def test_a_partition_that_is_named_twice_is_deleted_once(client: Client, logs: lastword.LogDir) -> None:
    """The second deletion of its offset was an error of the server, which closed the connection."""
    fill(logs)
    commit(client, "b", offset=3)
    body: Any = offset_delete("b", partitions=[1, 1])
    body.topics *= 2
    answer = client.ask(body)
    assert [(p.partition_index, p.error_code) for t in answer.topics for p in t.partitions] == [(1, 0)] * 4
    assert client.ask(offset_delete("b", partitions=[1])).error_code in (0, codes.GROUP_ID_NOT_FOUND)


def test_a_lease_is_renewed_while_its_group_has_members(
    server: Server, logs: lastword.LogDir, clock: ManualClock
) -> None:
    member = Consumer(server)
    member.join()
    member.sync({})
    member.commit(0)
    until(lambda: leases(logs) == {"group.g": 0})
    (before,) = logs["users"].leases(1)
    for _ in range(3):
        clock.advance(DAY_MS)
    until(lambda: logs["users"].leases(1)[0].advanced_ms > before.advanced_ms)


def test_groups_hold_nothing_where_a_setting_says_so(client: Client, logs: lastword.LogDir) -> None:
    commit(client, offset=0)
    until(lambda: leases(logs) == {"group.g": 0})
    logs.set_config("users", lastword_group_leases=False)
    commit(client, offset=0)
    commit(client, "h", offset=0)
    until(lambda: leases(logs) == {})


def test_a_topic_that_is_not_compacted_has_no_leases(client: Client, logs: lastword.LogDir) -> None:
    logs.create_topic("events", cleanup_policy="delete")
    commit(client, topic="events", partition=0)
    commit(client)
    until(lambda: leases(logs) == {"group.g": 0})  # the log has no record
    assert logs["events"].leases() == []


def test_leases_are_there_after_a_restart(logs: lastword.LogDir) -> None:
    fill(logs)
    with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
        commit(client, offset=12)
    assert leases(logs) == {"group.g": 12}  # closing writes them
    logs["users"].lease("group.g").release()
    with lastword.serve(logs, "127.0.0.1:0"):  # without a request
        until(lambda: leases(logs) == {"group.g": 12})


def test_leases_that_keep_too_little_are_written_first(
    client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(logs)
    for number in range(8):
        commit(client, f"g{number}", offset=5)
    until(lambda: len(leases(logs)) == 8)
    monkeypatch.setattr(group_leases, "PAUSE_SECONDS", 5.0)
    monkeypatch.setattr(group_leases, "MOST_LATE", 3)
    for number in range(7):
        commit(client, f"g{number}", offset=9)
    commit(client, "g7", offset=2)
    commit(client, "new", offset=7)
    until(lambda: leases(logs).get("group.new") == 7)
    assert leases(logs)["group.g7"] == 2
    assert list(leases(logs).values()).count(9) <= 4  # what was left in one or two batches
    monkeypatch.setattr(group_leases, "PAUSE_SECONDS", 0.01)
    commit(client, "g7", offset=9)
    until(lambda: list(leases(logs).values()).count(9) == 8)


def test_a_lease_that_cannot_be_written_is_written_later(
    client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition moves, then the drive is full. The lease waited for the next commit of its group."""
    fill(logs)
    place, refusals = (
        group_leases.leases.place,
        [DiskFullError("no room"), BusyError("moving", remedy="wait")],
    )

    def refused(*arguments: Any, **fields: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return place(*arguments, **fields)

    monkeypatch.setattr(group_leases.leases, "place", refused)
    commit(client, offset=12)
    until(lambda: leases(logs) == {"group.g": 12})
    assert not refusals


def test_leases_that_fail_are_behind_those_that_may_succeed(
    client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many leases as are written at a time fail each time."""
    fill(logs)
    place = group_leases.leases.place

    def refused(*arguments: Any, **fields: Any) -> Any:
        if "group.bad" in str((arguments, fields)):
            raise BusyError("moving", remedy="wait")
        return place(*arguments, **fields)

    monkeypatch.setattr(group_leases.leases, "place", refused)
    monkeypatch.setattr(group_leases, "MOST_LATE", 2)
    monkeypatch.setattr(group_leases, "MOST", 2)
    monkeypatch.setattr(group_leases, "PAUSE_SECONDS", 0.05)
    commit(client, "good", offset=0)
    until(lambda: leases(logs) == {"group.good": 0})
    for group in ("bad1", "bad2", "bad3", "good"):
        commit(client, group, offset=12)
    until(lambda: leases(logs) == {"group.good": 12})


def test_a_group_that_is_no_file_name_has_a_lease_of_its_own() -> None:
    ids = ["a b", "a/b", "..", "", "x" * 300, "ünï", "a.tmp", "\ud800"]
    lease_names = [lease_name(group) for group in ids]
    assert lease_name("readers-1") == "group.readers-1"
    assert len(set(lease_names)) == len(ids)
    assert all(len(name) < 200 and "/" not in name and " " not in name for name in lease_names)
