"""Transactions by requests: commits, aborts, fencing, time, offsets, and restarts in each state."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import StorageError
from lastword.logdir.transaction_state import LAST_EPOCH, TransactionState
from lastword.partition import PartitionLog
from lastword.protocol import codes, decode_stored
from lastword.protocol.messages import (
    AddPartitionsToTxnRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeProducersRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from lastword.server import Server
from lastword.server import transactions as coordinator
from lastword.server.coordinator import CoordinatorTopic
from lastword.server.group_store import OtherGroup
from lastword.server.transaction_state import TransactionalId
from lastword.server.transactions import TransactionCoordinator
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.recording import RecordingFiles
from tests.server.client import Client, batch, offset_delete, produce_request, served
from tests.server.conftest import Opened
from tests.server.test_groups import full_drive
from tests.server.writer import TIMEOUT_MS, Writer, committed, described, offset_of, started
from tests.support.waiting import until


@pytest.fixture
def logs(opened: Opened, clock: ManualClock) -> Iterator[lastword.LogDir]:
    with opened(clock=clock) as logs:
        logs.create_topic("users", 2, cleanup_policy="delete")
        logs.create_topic("events", cleanup_policy="delete")
        yield logs


@pytest.fixture(params=[1, 2])
def writer(request: pytest.FixtureRequest, client: Client, clock: ManualClock) -> Writer:
    return started(client, clock, version=request.param)


# ------------------------------------------------------------------ commit, abort


def test_commit_and_abort(writer: Writer, client: Client) -> None:
    for number in range(4):
        assert writer.send(b"%d" % number) == 0
        assert writer.send(b"e%d" % number, "events") == 0
        assert committed(client) == [b"%d" % before for before in range(0, number, 2)]
        assert writer.end(commit=number % 2 == 0) == 0
    assert committed(client) == [b"0", b"2"]
    assert committed(client, "events") == [b"e0", b"e2"]
    assert client.fetch("users", 0, isolation_level=1).last_stable_offset == 8
    state = described(client)
    assert (state.transaction_state, state.topics) == ("CompleteAbort", [])
    assert writer.epoch == (0 if writer.version == 1 else 4)


def test_a_marker_has_the_epoch_of_the_end(writer: Writer, client: Client) -> None:
    writer.send(b"v")
    epoch = writer.epoch
    writer.end()
    kind = DescribeProducersRequest
    body = kind(topics=[kind.TopicRequest(name="users", partition_indexes=[0])])
    (producer,) = client.ask(body).topics[0].partitions[0].active_producers
    assert producer.producer_epoch == writer.epoch == epoch + (writer.version == 2)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (0, -1)


def test_states_while_a_transaction_is_open(writer: Writer, client: Client, clock: ManualClock) -> None:
    assert described(client).transaction_state == "Empty"
    began = clock.now_ms()
    writer.send(b"v")
    clock.advance(5)
    writer.send(b"v", partition=1)
    state = described(client)
    assert (state.transaction_state, state.transaction_start_time_ms) == ("Ongoing", began)
    assert (state.producer_id, state.producer_epoch) == (writer.producer_id, writer.epoch)
    assert state.transaction_timeout_ms == TIMEOUT_MS
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [("users", [0, 1])]
    writer.end()
    assert described(client).transaction_state == "CompleteCommit"


def test_an_end_is_repeated(client: Client, clock: ManualClock) -> None:
    first = started(client, clock, version=1)
    first.send(b"v")
    assert [first.end(), first.end(), first.end(commit=False)] == [0, 0, codes.INVALID_TXN_STATE]
    second = started(client, clock, "u")
    second.send(b"v")
    before = second.epoch
    assert second.end() == 0 and second.epoch == before + 1
    for commit, code in ((True, 0), (False, codes.INVALID_TXN_STATE)):
        second.epoch = before
        assert second.end(commit=commit) == code
    second.epoch = before + 1
    assert second.end() == codes.INVALID_TXN_STATE, "there is nothing to commit"
    assert (second.end(commit=False), second.epoch) == (0, before + 2), "the next epoch fences what is late"
    second.epoch = before
    assert second.end() == codes.PRODUCER_FENCED


def test_an_end_without_a_transaction(client: Client, clock: ManualClock) -> None:
    first = Writer(client, clock, version=1)
    assert first.end() == codes.INVALID_PRODUCER_ID_MAPPING
    first.init()
    assert first.end() == first.end(commit=False) == codes.INVALID_TXN_STATE
    second = started(client, clock, "u")
    assert second.end() == codes.INVALID_TXN_STATE
    assert (second.end(commit=False), second.epoch) == (0, 1)
    second.name = ""
    assert second.end() == codes.INVALID_REQUEST


# ------------------------------------------------------------------ InitProducerId


def test_a_second_instance_fences_the_first(writer: Writer, client: Client, clock: ManualClock) -> None:
    writer.send(b"lost")
    other = Writer(client, clock, version=writer.version)
    assert other.init().error_code == codes.CONCURRENT_TRANSACTIONS
    assert other.init().error_code == 0
    assert (other.producer_id, other.epoch) == (writer.producer_id, writer.epoch + 2)
    assert writer.send(b"late", adds=False) == codes.INVALID_PRODUCER_EPOCH
    assert writer.add("events") == codes.PRODUCER_FENCED
    assert writer.add("events", version=1) == codes.INVALID_PRODUCER_EPOCH
    assert writer.end() == codes.PRODUCER_FENCED
    assert writer.end(version=1) == codes.INVALID_PRODUCER_EPOCH
    assert writer.commit_offset(1, adds=False) == codes.INVALID_PRODUCER_EPOCH
    assert [other.send(b"v"), other.end()] == [0, 0]
    assert committed(client) == [b"v"]


@pytest.mark.parametrize("version", range(6))
def test_a_fenced_epoch_in_each_version(client: Client, clock: ManualClock, version: int) -> None:
    writer = started(client, clock)
    writer.init()
    fields = {"producer_id": writer.producer_id, "producer_epoch": 7} if version >= 3 else {}
    body = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000, **fields)
    answer = client.ask(body, version)
    if version < 3:
        assert (answer.error_code, answer.producer_epoch) == (0, 2)
    else:
        fenced = codes.INVALID_PRODUCER_EPOCH if version == 3 else codes.PRODUCER_FENCED
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (fenced, -1, -1)


def test_a_producer_that_goes_on_gets_the_next_epoch(client: Client, clock: ManualClock) -> None:
    """KIP-360: with its producer id and epoch, also if the answer was lost."""
    writer = started(client, clock)
    fields = {"producer_id": writer.producer_id, "producer_epoch": 0}
    for _ in range(2):
        answer = writer.init(**fields)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, fields["producer_id"], 1)
    assert writer.init().producer_epoch == 2, "another instance"
    assert writer.init(**fields).error_code == codes.PRODUCER_FENCED
    assert writer.init(producer_id=77, producer_epoch=2).error_code == codes.PRODUCER_FENCED
    assert writer.init(producer_id=-1, producer_epoch=2).error_code == codes.INVALID_REQUEST
    assert writer.init(producer_id=77, producer_epoch=-1).error_code == codes.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001, 0x7FFFFFFF])
def test_a_timeout_that_is_not_allowed(client: Client, clock: ManualClock, timeout_ms: int) -> None:
    answer = Writer(client, clock).init(transaction_timeout_ms=timeout_ms)
    assert answer.error_code == codes.INVALID_TRANSACTION_TIMEOUT


def test_two_phase_commit_is_refused(client: Client, clock: ManualClock) -> None:
    body = {"transactional_id": "t", "transaction_timeout_ms": 1000}
    answer = client.ask(InitProducerIdRequest(**body, enable2_pc=True), 6)
    assert answer.error_code == codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    answer = client.ask(InitProducerIdRequest(**body, keep_prepared_txn=True), 6)
    assert answer.error_code == codes.UNSUPPORTED_VERSION
    assert client.ask(InitProducerIdRequest(**body), 6).error_code == 0
    assert Writer(client, clock, "").init().error_code == codes.INVALID_REQUEST


def test_exhausted_epochs_bring_a_new_producer_id(client: Client, clock: ManualClock, server: Server) -> None:
    writer = started(client, clock)
    exhaust(server, writer)
    first = writer.producer_id
    assert writer.send(b"v") == 0
    assert writer.end() == 0
    assert writer.producer_id != first and writer.epoch == 0
    second = writer.producer_id
    writer.producer_id, writer.epoch = first, LAST_EPOCH
    assert writer.end() == 0, "a repeated request"
    assert (writer.producer_id, writer.epoch) == (second, 0)
    assert [writer.send(b"w"), writer.end()] == [0, 0]
    assert committed(client) == [b"v", b"w"]
    exhaust(server, writer)
    answer = writer.init(producer_id=second, producer_epoch=LAST_EPOCH)
    assert (answer.error_code, answer.producer_epoch) == (0, 0) and answer.producer_id != second
    again = writer.init(producer_id=second, producer_epoch=LAST_EPOCH)
    assert (again.producer_id, again.producer_epoch) == (answer.producer_id, 0)


def exhaust(server: Server, writer: Writer) -> None:
    """Give a producer the last epoch."""
    from dataclasses import replace

    transaction = server.node.transactions._transactional_ids[writer.name]
    transaction.stored = replace(transaction.stored, epoch=LAST_EPOCH)
    writer.epoch = LAST_EPOCH
    writer.sequences.clear()


def test_fencing_of_the_last_epoch(client: Client, clock: ManualClock, server: Server) -> None:
    writer = started(client, clock)
    exhaust(server, writer)
    writer.send(b"lost")
    other = Writer(client, clock)
    assert other.init().error_code == codes.CONCURRENT_TRANSACTIONS
    assert described(client).producer_epoch == LAST_EPOCH + 1
    assert other.init().error_code == 0
    assert other.producer_id != writer.producer_id and other.epoch == 0
    assert committed(client) == []


# ------------------------------------------------------------------ partitions


def batched(writer: Writer, *asked: tuple[str, int], only_verifies: bool = False, **fields: Any) -> Any:
    kind = AddPartitionsToTxnRequest
    given = {
        "transactional_id": writer.name,
        "producer_id": writer.producer_id,
        "producer_epoch": writer.epoch,
        "verify_only": only_verifies,
    }
    return kind.AddPartitionsToTxnTransaction(
        **given | fields,
        topics=[kind.AddPartitionsToTxnTopic(name=name, partitions=[number]) for name, number in asked],
    )


def results(answer: Any) -> list[list[int]]:
    """Return the errors of each transaction."""
    return [
        [p.partition_error_code for topic in result.topic_results for p in topic.results_by_partition]
        for result in answer.results_by_transaction
    ]


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_of_several_transactions(client: Client, clock: ManualClock, version: int) -> None:
    first, second = (started(client, clock, name) for name in "ab")
    ask = [
        batched(first, ("users", 0), ("users", 1)),
        batched(second, ("users", 0), ("none", 0), ("users", 7)),
        batched(first, ("users", 1), ("events", 0), only_verifies=True),
        batched(second, ("users", 0), only_verifies=True, producer_epoch=9),
        batched(second, ("users", 0), producer_id=9),
        batched(second, ("users", 0), transactional_id=""),
    ]
    answer = client.ask(AddPartitionsToTxnRequest(transactions=ask), version)
    unknown = codes.UNKNOWN_TOPIC_OR_PARTITION
    assert results(answer) == [
        [0, 0],
        [codes.OPERATION_NOT_ATTEMPTED, unknown, unknown],
        [0, codes.TRANSACTION_ABORTABLE],
        [codes.PRODUCER_FENCED],
        [codes.INVALID_PRODUCER_ID_MAPPING],
        [codes.INVALID_REQUEST],
    ]
    assert described(client, "a").transaction_state == "Ongoing"
    assert described(client, "b").transaction_state == "Empty"


def test_a_partition_that_was_not_added(client: Client, clock: ManualClock) -> None:
    writer = started(client, clock, version=1)
    for version, code in ((10, codes.INVALID_TXN_STATE), (11, codes.TRANSACTION_ABORTABLE)):
        assert writer.send(b"v", adds=False, version=version) == code
        assert [writer.send(b"v", "events"), writer.send(b"v", adds=False, version=version)] == [0, code]
    assert writer.commit_offset(1, adds=False, version=3) == codes.INVALID_TXN_STATE
    assert writer.commit_offset(1, adds=False, version=4) == codes.TRANSACTION_ABORTABLE
    assert client.offset("users", -1).offset == 0
    writer.producer_id += 1
    assert writer.send(b"v", adds=False) == codes.INVALID_PRODUCER_ID_MAPPING
    assert writer.commit_offset(1, adds=False) == codes.INVALID_PRODUCER_ID_MAPPING


def test_a_transactional_batch_without_a_transactional_id(client: Client) -> None:
    answer = client.produce("users", batch((b"k", b"v"), producer=(5, 0, 0), attributes=0x10))
    assert answer.error_code == codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_partitions_of_one_request_are_refused_alone(client: Client, clock: ManualClock) -> None:
    writer = started(client, clock)
    body = produce_request("users", b"", transactional_id="t")
    good = batch((b"k", b"v"), producer=(writer.producer_id, 0, 0), attributes=0x10, timestamp=clock.now_ms())
    other = batch((b"k", b"v"), producer=(9, 0, 0), attributes=0x10, timestamp=clock.now_ms())
    plain = batch((b"k", b"w"), timestamp=clock.now_ms())
    data = body.topic_data[0].partition_data
    data[0].records = good
    data.append(type(data[0])(index=1, records=other))
    events = produce_request("events", plain).topic_data[0]
    body.topic_data.append(events)
    answer = client.ask(body, 12)
    assert [p.error_code for topic in answer.responses for p in topic.partition_responses] == [
        0,
        codes.INVALID_PRODUCER_ID_MAPPING,
        0,
    ]
    assert [t.topic for t in described(client).topics] == ["users"]


def test_a_late_batch_cannot_open_a_transaction_again(writer: Writer, client: Client) -> None:
    writer.send(b"v")
    epoch = writer.epoch
    writer.end()
    writer.epoch, writer.sequences = epoch, {("users", 0): 1}
    late = codes.TRANSACTION_ABORTABLE if writer.version == 1 else codes.INVALID_PRODUCER_EPOCH
    assert writer.send(b"late", adds=False) == late
    assert client.fetch("users", 0, isolation_level=1).last_stable_offset == 2


# ------------------------------------------------------------------ offsets


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction(writer: Writer, client: Client, commit: bool) -> None:
    writer.send(b"v", "events")
    assert [writer.commit_offset(5), writer.commit_offset(6)] == [0, 0]
    assert offset_of(client) == (-1, 0)
    assert offset_of(client, stable=True) == (-1, codes.UNSTABLE_OFFSET_COMMIT)
    assert writer.end(commit=commit) == 0
    assert offset_of(client, stable=True) == offset_of(client) == (6 if commit else -1, 0)


def test_a_commit_behind_an_open_transaction_wins(writer: Writer, client: Client) -> None:
    """The record with the larger offset wins, as after a cleaning."""
    writer.commit_offset(5)
    assert client.commit(9) == 0
    assert offset_of(client) == (9, 0)
    assert offset_of(client, stable=True) == (-1, codes.UNSTABLE_OFFSET_COMMIT)
    writer.end()
    assert offset_of(client, stable=True) == (9, 0)


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_two_transactions_the_later_offset_wins(
    client: Client, clock: ManualClock, logs: lastword.LogDir, first: str
) -> None:
    """In each order of their ends, and after a restart."""
    writers = {name: started(client, clock, name) for name in "ab"}
    for offset, writer in enumerate(writers.values(), 5):
        assert writer.commit_offset(offset) == 0
    assert writers.pop(first).end() == 0
    assert offset_of(client, stable=True) == (-1, codes.UNSTABLE_OFFSET_COMMIT)
    assert writers.popitem()[1].end() == 0
    assert offset_of(client, stable=True) == (6, 0)
    with lastword.serve(logs, "127.0.0.1:0") as again, Client(again) as other:
        assert offset_of(other, stable=True) == (6, 0)


def delete_group(client: Client, logs: lastword.LogDir) -> None:
    assert client.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == 0


def delete_offset(client: Client, logs: lastword.LogDir) -> None:
    answer = client.ask(offset_delete("g"))
    assert [answer.error_code, answer.topics[0].partitions[0].error_code] == [0, 0]


def delete_topic(client: Client, logs: lastword.LogDir) -> None:
    kind = DeleteTopicsRequest
    client.ask(kind(topics=[kind.DeleteTopicState(name="users")]))
    logs.create_topic("users", 2, cleanup_policy="delete")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("delete", [delete_group, delete_offset, delete_topic])
def test_a_deletion_ends_the_offsets_of_open_transactions(
    tmp_path: Path, clock: ManualClock, delete: Callable[..., None], restarts: bool
) -> None:
    with served(tmp_path, clock=clock) as (logs, _, client):
        logs.create_topic("users", 2, cleanup_policy="delete")
        writer = started(client, clock)
        assert writer.commit_offset(5) == 0
        delete(client, logs)
        until(lambda: offset_of(client, stable=True) == (-1, 0))
        if not restarts:
            assert [writer.end(), offset_of(client)] == [0, (-1, 0)]
    with served(tmp_path, clock=clock) as (_, _, client):
        writer.client = client
        assert offset_of(client, stable=True) == (-1, 0)
        if restarts:
            assert [writer.end(), offset_of(client)] == [0, (-1, 0)]


def test_offsets_are_refused_with_a_wrong_generation(writer: Writer) -> None:
    assert writer.commit_offset(5, generation_id_or_member_epoch=3) == codes.ILLEGAL_GENERATION
    assert writer.commit_offset(5) == 0
    assert writer.commit_offset(5, generation_id_or_member_epoch=3, member_id="m") == codes.UNKNOWN_MEMBER_ID
    assert writer.commit_offset(5, generation_id_or_member_epoch=-1, member_id="m") == 0, "the group is empty"
    assert writer.commit_offset(5, "", adds=False) == codes.INVALID_GROUP_ID


def test_offsets_of_a_group_of_another_protocol_are_refused(writer: Writer, server: Server) -> None:
    assert writer.commit_offset(1) == 0  # the groups are loaded
    for group in (
        OtherGroup("shared", group_type="share"),
        OtherGroup("streamed", group_type="streams", members={"m"}),
    ):
        server.node.groups.store.add(group)
    assert writer.commit_offset(1, group="shared") == codes.GROUP_ID_NOT_FOUND
    assert writer.commit_offset(1, group="streamed") == codes.UNKNOWN_MEMBER_ID
    assert writer.end(commit=True) == 0


def test_offsets_by_the_id_of_a_topic(client: Client, clock: ManualClock) -> None:
    """Version 6 (KIP-1319); its errors are those of OffsetCommit."""
    writer = started(client, clock)
    assert writer.commit_offset(5, version=6) == 0
    assert writer.end() == 0
    assert offset_of(client) == (5, 0)
    assert writer.commit_offset(6, version=6, topic_id=b"x" * 16) == codes.UNKNOWN_TOPIC_ID
    member = {"group": "none", "generation_id_or_member_epoch": 1}
    assert writer.commit_offset(6, version=6, **member) == codes.GROUP_ID_NOT_FOUND
    assert writer.commit_offset(6, version=5, **member) == codes.ILLEGAL_GENERATION


# ------------------------------------------------------------------ time


def test_a_transaction_is_aborted_when_its_time_is_up(
    writer: Writer, client: Client, clock: ManualClock
) -> None:
    writer.send(b"v")
    writer.commit_offset(5)
    clock.advance(TIMEOUT_MS - 1)
    time.sleep(0.05)
    assert described(client).transaction_state == "Ongoing"
    clock.advance(1)
    until(lambda: described(client).transaction_state == "CompleteAbort")
    assert described(client).producer_epoch == writer.epoch + 1
    assert committed(client) == [] and offset_of(client, stable=True) == (-1, 0)
    assert writer.send(b"late", adds=False) == codes.INVALID_PRODUCER_EPOCH
    expected = codes.PRODUCER_FENCED if writer.version == 1 else codes.INVALID_TXN_STATE
    assert writer.end() == expected
    answer = writer.init(producer_id=writer.producer_id, producer_epoch=writer.epoch)
    assert answer.error_code == 0, "the producer goes on with a new epoch"
    assert [writer.send(b"w"), writer.end(), committed(client)] == [0, 0, [b"w"]]


def test_the_time_of_a_later_transaction_begins_with_it(
    writer: Writer, client: Client, clock: ManualClock
) -> None:
    for number in range(3):
        writer.send(b"%d" % number)
        clock.advance(TIMEOUT_MS - 10)
        time.sleep(0.03)
        assert writer.end() == 0
    assert len(committed(client)) == 3


def test_the_time_of_a_later_transaction_may_be_shorter(
    writer: Writer, client: Client, clock: ManualClock
) -> None:
    assert [writer.send(b"v"), writer.end()] == [0, 0]
    assert writer.init(transaction_timeout_ms=TIMEOUT_MS // 10).error_code == 0
    writer.send(b"w")
    clock.advance(TIMEOUT_MS // 10)
    until(lambda: described(client).transaction_state == "CompleteAbort")


def test_a_transactional_id_is_forgotten(client: Client, clock: ManualClock, server: Server) -> None:
    idle, busy = (started(client, clock, name) for name in ("idle", "busy"))
    clock.advance(coordinator.EXPIRATION_MS - 1000)
    time.sleep(0.03)
    busy.init()
    clock.advance(coordinator.EXPIRATION_CHECK_MS)
    until(lambda: described(client, "idle").error_code == codes.TRANSACTIONAL_ID_NOT_FOUND)
    assert described(client, "busy").error_code == 0
    records = server.node.transactions.topic.load({0: "TransactionLogKey"})
    assert [record.key.transactional_id for record in records] == ["busy"]
    assert idle.send(b"v") == codes.INVALID_PRODUCER_ID_MAPPING


# ------------------------------------------------------------------ list, describe, find


def test_list_transactions(client: Client, clock: ManualClock) -> None:
    def listed(version: int = 2, **fields: Any) -> list[str]:
        answer = client.ask(ListTransactionsRequest(**fields), version)
        assert answer.error_code == 0
        return [state.transactional_id for state in answer.transaction_states]

    assert listed() == []
    writers = [started(client, clock, name) for name in ("pay-1", "pay-2", "ship")]
    writers[0].send(b"v")
    clock.advance(1000)
    writers[1].send(b"v", "events")
    assert listed() == ["pay-1", "pay-2", "ship"]
    assert listed(0, state_filters=["Empty"]) == ["ship"]
    assert listed(0, producer_id_filters=[writers[1].producer_id]) == ["pay-2"]
    assert listed(1, state_filters=["Ongoing"], duration_filter=500) == ["pay-1"]
    assert listed(transactional_id_pattern="pay-.*") == ["pay-1", "pay-2"]
    assert listed(transactional_id_pattern="pay") == []
    answer = client.ask(ListTransactionsRequest(state_filters=["Odd"]))
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Odd"], [])
    body = ListTransactionsRequest(transactional_id_pattern="a)|(b")
    assert client.ask(body).error_code == codes.INVALID_REGULAR_EXPRESSION


def test_a_request_that_reads_creates_no_topic(client: Client, logs: lastword.LogDir) -> None:
    assert described(client).error_code == codes.TRANSACTIONAL_ID_NOT_FOUND
    assert described(client, "").error_code == codes.INVALID_REQUEST
    client.ask(ListTransactionsRequest())
    assert "__transaction_state" not in logs


# ------------------------------------------------------------------ restarts


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("state", ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit"])
def test_a_restart_in_each_state(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, state: str, version: int
) -> None:
    """The server ends in a state; after the next start the transaction goes on, or is completed."""
    with served(tmp_path, clock=clock) as (logs, _, client):
        logs.create_topic("users", 2, cleanup_policy="delete")
        writer = started(client, clock, version=version)
        if state != "Empty":
            writer.send(b"v")
            writer.commit_offset(5)
        if state in coordinator.DECIDED:
            monkeypatch.setattr(TransactionCoordinator, "_append_markers", _cut)
        if state not in ("Empty", "Ongoing"):
            assert writer.end(commit=state != "PrepareAbort") == 0
        assert described(client).transaction_state == state
        monkeypatch.undo()
        if state in coordinator.DECIDED:
            busy = writer.send(b"w", adds=False), writer.init().error_code
            assert busy == (codes.NOT_ENOUGH_REPLICAS, codes.CONCURRENT_TRANSACTIONS)
            assert committed(client) == []
    with served(tmp_path, clock=clock) as (_, _, client):
        writer.client = client
        until(lambda: described(client).transaction_state not in coordinator.DECIDED)
        if state == "Ongoing":
            assert offset_of(client, stable=True) == (-1, codes.UNSTABLE_OFFSET_COMMIT)
            assert [writer.send(b"w"), writer.end()] == [0, 0]
        is_commit = state not in ("Empty", "PrepareAbort")
        assert committed(client)[:1] == ([b"v"] if is_commit else [])
        assert offset_of(client, stable=True) == (5 if is_commit else -1, 0)
        assert [writer.send(b"x"), writer.end()] == [0, 0]
        assert committed(client)[-1] == b"x"


def test_no_batch_is_admitted_behind_one_that_is_sent_again(
    writer: Writer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition would take it for the first one of the producer, and refuse the one before it."""
    with monkeypatch.context() as patch:
        busy = codes.CONCURRENT_TRANSACTIONS
        patch.setattr(TransactionalId, "error_of_write", lambda self, partition: busy)
        assert writer.send(b"first") == codes.NOT_ENOUGH_REPLICAS
    writer.sequences["users", 0] = 1
    assert writer.send(b"second") == codes.NOT_ENOUGH_REPLICAS
    assert writer.send(b"other", "events") == 0
    writer.sequences["users", 0] = 0
    assert [writer.send(b"first"), writer.send(b"second"), writer.end()] == [0, 0, 0]
    assert committed(client) == [b"first", b"second"]


async def _cut(*arguments: Any) -> None:
    raise StorageError("the server ends here")


def test_time_that_is_up_while_no_server_runs(tmp_path: Path, clock: ManualClock) -> None:
    with served(tmp_path, clock=clock) as (logs, _, client):
        logs.create_topic("users", cleanup_policy="delete")
        writer = started(client, clock)
        writer.send(b"v")
    clock.advance(TIMEOUT_MS)
    with served(tmp_path, clock=clock) as (_, _, client):  # it sends no request for the transaction
        until(lambda: client.fetch("users", 0, isolation_level=1).last_stable_offset == 2)
        assert committed(client) == []


def test_a_state_that_cannot_be_loaded_is_tried_again(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No request comes, and a decided transaction is completed all the same."""
    with served(tmp_path, clock=clock) as (logs, _, client):
        logs.create_topic("users", cleanup_policy="delete")
        writer = started(client, clock)
        writer.send(b"v")
        writer.commit_offset(5)
        monkeypatch.setattr(TransactionCoordinator, "_append_markers", _cut)
        assert writer.end() == 0
    monkeypatch.undo()
    load, failures = CoordinatorTopic.load, Counter[str]()

    def loaded(topic: CoordinatorTopic, *given: Any) -> Any:
        failures[topic.name] += 1
        if failures[topic.name] <= 2:
            raise StorageError("the drive is offline")
        return load(topic, *given)

    monkeypatch.setattr(CoordinatorTopic, "load", loaded)
    with served(tmp_path, clock=clock) as (_, _, client):

        def completed() -> bool:
            clock.advance(coordinator.RETRY_MS)
            return client.fetch("users", 0, isolation_level=1).last_stable_offset == 2

        until(completed)
        until(lambda: min(failures.values()) == 3)
    assert "Traceback" not in caplog.text
    again = "__transaction_state was not loaded: the drive is offline; tried again in "
    assert caplog.text.count(f"{again}0.5 s") == caplog.text.count(f"{again}1.0 s") == 1


@pytest.mark.parametrize("ends", ["the topic is deleted", "the server closes"])
def test_a_state_that_cannot_be_loaded_is_not_tried_again_once_it_is_over(
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ends: str,
) -> None:
    """A load creates the topic, and one in a server that is closing finds no thread."""
    topic = "__transaction_state"
    with served(tmp_path, clock=clock) as (_, _, client):
        started(client, clock)
    tries, may_end = Counter[str](), Event()

    def failing(topic: CoordinatorTopic, *given: Any) -> Any:
        tries[topic.name] += 1
        assert may_end.wait(10)
        raise StorageError("the drive is offline")

    monkeypatch.setattr(CoordinatorTopic, "load", failing)
    with served(tmp_path, clock=clock) as (logs, server, _):
        until(lambda: tries[topic] == 1)
        if ends == "the topic is deleted":
            logs.delete_topic(topic)
        else:
            server.loop.call_soon_threadsafe(server.node.drain)
        may_end.set()
        until(lambda: f"{topic} was not loaded" in caplog.text)
        for _ in range(5):
            clock.advance(coordinator.RETRY_MS)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.02), server.loop).result()
        assert tries[topic] == 1


def test_a_marker_that_cannot_be_appended_is_tried_again(
    writer: Writer, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.send(b"v")
    monkeypatch.setattr(TransactionCoordinator, "_append_markers", _cut)
    assert writer.end() == 0, "the decision stands"
    assert described(client).transaction_state == "PrepareCommit"
    monkeypatch.undo()
    clock.advance(coordinator.RETRY_MS)
    until(lambda: described(client).transaction_state == "CompleteCommit")
    assert committed(client) == [b"v"]


def test_a_partition_that_fails_costs_the_others_no_markers(
    writer: Writer,
    client: Client,
    clock: ManualClock,
    logs: lastword.LogDir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs.set_config("events", lastword_ack="disk")
    for topic in ("users", "events"):
        writer.send(b"v", topic)
    writer.send(b"v", partition=1)
    append_batch = PartitionLog.append_batch
    attempts = []

    def fails(log: PartitionLog, data: Any, **options: Any) -> Any:
        if log.name == "users-0":
            attempts.append(log)
            raise StorageError("the drive is offline")
        return append_batch(log, data, **options)

    monkeypatch.setattr(PartitionLog, "append_batch", fails)
    assert writer.end() == 0

    def later(condition: Callable[[], bool]) -> bool:
        clock.advance(coordinator.MOST_RETRY_MS)
        return condition()

    until(lambda: later(lambda: len(attempts) >= 10))
    ends = [logs.dirs.log(*at).log_end for at in (("users", 0), ("users", 1), ("events", 0))]
    assert ends == [1, 2, 2]
    monkeypatch.undo()
    until(lambda: later(lambda: described(client).transaction_state == "CompleteCommit"))
    assert committed(client) == committed(client, "events") == committed(client, partition=1) == [b"v"]
    writer.send(b"w", "events")
    assert [writer.end(), committed(client, "events")] == [0, [b"v", b"w"]]


def test_a_batch_whose_partition_cannot_be_added_is_sent_again(writer: Writer, client: Client) -> None:
    """Produce has the code that a broker gives for each error of the coordinator that passes."""
    with full_drive():
        adds = writer.version == 1  # by a request of its own
        assert writer.send(b"v") == (codes.NOT_COORDINATOR if adds else codes.NOT_ENOUGH_REPLICAS)
    assert [writer.send(b"v"), writer.end(), committed(client)] == [0, 0, [b"v"]]


def test_markers_wait_for_appends_in_work(client: Client, clock: ManualClock, server: Server) -> None:
    """In version 1 a batch behind the marker would open the transaction again."""
    writer = started(client, clock, version=1)
    writer.send(b"v")
    append = server.node.transactions._transactional_ids["t"].appending()
    append.__enter__()
    with Client(server) as other:
        other.send(writer.end_request(commit=True), 4)
        until(lambda: described(client).transaction_state == "PrepareCommit")
        assert committed(client) == []
        server.loop.call_soon_threadsafe(append.__exit__, None, None, None)
        assert other.receive().error_code == 0
    assert committed(client) == [b"v"]


def test_a_deleted_topic_needs_no_marker(writer: Writer, client: Client, logs: lastword.LogDir) -> None:
    writer.send(b"v")
    writer.send(b"v", "events")
    logs.delete_topic("events")
    assert writer.end() == 0
    assert described(client).transaction_state == "CompleteCommit"
    assert committed(client) == [b"v"]


def test_transactions_begin_again_when_their_topic_is_deleted(
    writer: Writer, client: Client, logs: lastword.LogDir
) -> None:
    writer.send(b"v")
    writer.end()
    logs.delete_topic("__transaction_state")
    assert described(client).error_code == codes.TRANSACTIONAL_ID_NOT_FOUND
    assert writer.end() == codes.INVALID_PRODUCER_ID_MAPPING
    before = writer.producer_id
    assert writer.init().error_code == 0 and writer.producer_id != before
    assert [writer.send(b"w"), writer.end(), committed(client)] == [0, 0, [b"v", b"w"]]


def test_a_decision_is_synced_before_its_first_marker(
    client: Client, clock: ManualClock, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could leave one partition with its marker and a transaction that is then aborted."""
    logs.set_config("users", lastword_ack="disk")
    done: list[tuple[str, str]] = []
    append, sync = PartitionLog.append_batch, PartitionLog.sync

    def append_batch(log: PartitionLog, data: Any, **options: Any) -> Any:
        done.append(("append", log.topic))
        return append(log, data, **options)

    def synced(log: PartitionLog) -> None:
        done.append(("sync", log.topic))
        sync(log)

    writer = started(client, clock)
    monkeypatch.setattr(PartitionLog, "append_batch", append_batch)
    monkeypatch.setattr(PartitionLog, "sync", synced)
    state, users = "__transaction_state", "users"
    written = [("append", state), ("sync", state), ("append", users), ("sync", users)]
    assert writer.send(b"v") == 0
    assert done == written, "the partition is added before its first batch"
    done.clear()
    assert writer.end() == 0
    assert done == [*written, ("append", state)]
    done.clear()
    writer.send(b"v", "events")
    assert done == [("append", state), ("append", "events")], "nothing is promised for a power cut"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("failing", ["add", "end"])
def test_after_a_failed_sync_the_coordinator_is_gone_until_a_restart(
    tmp_path: Path, clock: ManualClock, failing: str, version: int
) -> None:
    """Otherwise a repeated request would rely on a state that a power cut may take."""
    files = RecordingFiles(UNSYNCED)
    logs = lastword.open(tmp_path, "a", files=files, clock=clock)
    logs.create_topic("users", cleanup_policy="delete", lastword_ack="disk")
    server = lastword.serve(logs, "127.0.0.1:0")
    with Client(server) as client:
        writer = started(client, clock, version=version)
        if failing == "end":
            writer.send(b"v")
        error = StorageError("planted")
        files.fail = lambda call: (
            error if call.name == "fsync" and "__transaction_state" in call.path else None
        )
        if failing == "add":
            assert writer.send(b"v") in (codes.NOT_COORDINATOR, codes.NOT_ENOUGH_REPLICAS)
        for _ in range(2):
            assert writer.end() == codes.NOT_COORDINATOR
            assert writer.send(b"w") in (codes.NOT_COORDINATOR, codes.NOT_ENOUGH_REPLICAS)
            assert writer.init().error_code == codes.NOT_COORDINATOR
        assert committed(client) == []
    with pytest.raises(StorageError, match="planted"):
        server.close()
    logs.close()
    with served(tmp_path, clock=clock) as (_, _, client):
        clock.advance(TIMEOUT_MS)
        until(lambda: described(client).transaction_state.startswith("Complete"))
        assert committed(client) == ([b"v"] if failing == "end" else [])


def test_a_decision_whose_sync_failed_once_is_completed(
    writer: Writer, client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a file that could not be opened: the log takes records again."""
    logs.set_config("users", lastword_ack="disk")
    writer.send(b"v")
    sync, failures = PartitionLog.sync, iter([StorageError("too many open files")])

    def synced(log: PartitionLog) -> None:
        for error in failures:
            raise error
        sync(log)

    monkeypatch.setattr(PartitionLog, "sync", synced)
    assert writer.end() == codes.NOT_COORDINATOR
    assert described(client).transaction_state == "PrepareCommit"
    until(lambda: writer.end() == 0)
    assert committed(client) == [b"v"]
    assert [writer.send(b"w"), writer.end(), committed(client)] == [0, 0, [b"v", b"w"]]


def test_the_view_of_newest_values_is_no_partition_of_a_transaction(
    client: Client, clock: ManualClock
) -> None:
    writer = started(client, clock)
    assert writer.send(b"v", "users@newest") == codes.INVALID_TOPIC_EXCEPTION
    assert writer.add("users@newest") == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert described(client).transaction_state == "Empty"


def test_states_are_stored_as_kafka_stores_them() -> None:
    stored = TransactionState(
        7, 3, 1000, "Ongoing", frozenset({("b", 1), ("a", 0), ("b", 0)}), 5, 6, 7, -1, -1, client_version=2
    )
    for state in (stored, TransactionState(7, 3, 1000)):
        assert TransactionState.of_value(decode_stored("TransactionLogValue", state.value())) == state
