"""Open transactions are listed with what is known of them, and aborted for good."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import UsageError
from lastword.protocol import codes, decode_stored
from lastword.testing.unsynced import UNSYNCED
from tests.server.client import Client, batch
from tests.server.writer import Writer

PRODUCER = (7, 0, 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def opened(path: Path, clock: ManualClock) -> lastword.LogDir:
    return lastword.open(path, "a", files=UNSYNCED, clock=clock, log_cleaner_enable=False)


def values(topic: lastword.Topic[bytes, bytes]) -> list[bytes | None]:
    return [record.value for record in topic.read(end="latest")]


def test_a_transaction_without_a_coordinator_is_listed_and_aborted(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Trial A4: nothing ended it, so the partition was never cleaned."""
    began_ms = clock.now_ms()
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.append(b"n", b"5")
        log = logs.dirs.log("t", 0)
        log.append_batch(batch((b"m", b"1"), attributes=0x10, producer=PRODUCER, timestamp=began_ms))
        clock.advance(3_600_000)
        topic.append(b"n", b"6")
    with lastword.open(tmp_path) as logs:
        (found,) = logs.transactions()
        size = sum(segment.size_bytes for segment in logs["t"].segments())
        assert found == lastword.OpenTransaction("t", 0, 1, 7, 0, began_ms, None, None, size)
        assert logs.transactions("t", 0) == [found] and logs.abort(7, dry_run=True) == [found]
        with pytest.raises(UsageError, match="no open transaction of 8"):
            logs.abort(8, dry_run=True)
    with opened(tmp_path, clock) as logs:
        assert values(logs["t"]) == [b"5"]
        assert logs.abort(7, "t") == [found]
        assert logs.transactions() == [] and values(logs["t"]) == [b"5", b"6"]
        logs.clean("t")
        assert values(logs["t"]) == [b"6"]


def test_a_transaction_that_its_coordinator_has_is_aborted_with_its_producer(
    tmp_path: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, clock) as logs:
        logs.create_topic("users", 2, cleanup_policy="delete")
        with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
            writer = Writer(client, clock, "x1")
            writer.init()
            assert [writer.send(b"a"), writer.send(b"b", partition=1)] == [0, 0]
    with opened(tmp_path, clock) as logs:
        listed = logs.transactions()
        assert [(t.partition, t.transactional_id, t.state) for t in listed] == [
            (0, "x1", "Ongoing"),
            (1, "x1", "Ongoing"),
        ]
        with pytest.raises(UsageError, match=r"users-1: .* ends in all partitions together"):
            logs.abort("x1", "users", 0)
        assert logs.transactions() == listed
        assert logs.abort("x1") == listed and logs.transactions() == []
        (stored,) = list(logs["__transaction_state"].read())[-1:]
        assert stored.value is not None
        state = decode_stored("TransactionLogValue", stored.value)
        assert (state.transaction_status, state.producer_epoch) == (5, writer.epoch + 1)
        with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
            writer.client = client
            assert writer.end() == codes.INVALID_TXN_STATE
            again = Writer(client, clock, "x1")
            again.init()
            assert (again.producer_id, again.epoch) == (writer.producer_id, writer.epoch + 2)
            assert [again.send(b"c"), again.end()] == [0, 0]
            assert values(logs["users"]) == [b"c"]


def test_a_transaction_whose_commit_is_decided_is_not_aborted(tmp_path: Path, clock: ManualClock) -> None:
    from lastword.logdir.transaction_state import TransactionState, key_of

    state = TransactionState(7, 0, 1000, "PrepareCommit", frozenset({("t", 0)}), clock.now_ms())
    with opened(tmp_path, clock) as logs:
        logs.create_topic("t", cleanup_policy="compact")
        logs.create_topic("__transaction_state", cleanup_policy="compact")
        logs["__transaction_state"].append(key_of("x1"), state.value())
        batch_of_seven = batch((b"m", b"1"), attributes=0x10, producer=PRODUCER)
        logs.dirs.log("t", 0).append_batch(batch_of_seven)
        with pytest.raises(UsageError, match="its commit is decided"):
            logs.abort(7)
        assert len(logs.transactions()) == 1
