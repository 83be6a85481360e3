"""Two servers of a log in a bucket: what a standby answers, takeovers, and a server that is cut off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import lastword
from lastword.bucket.servers import ServerSession
from lastword.errors import ServerFencedError, UncertainRequestError, UsageError
from lastword.protocol import codes
from lastword.protocol.messages import (
    CreateTopicsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
)
from lastword.server import Server
from tests.server import takeovers
from tests.server.client import Client, batch, metadata, new_topic
from tests.server.takeover_clients import ROLES, Journal
from tests.support.waiting import until

RECORD = batch((b"k", b"v"))
LAPSING_MS = 2_000
"""A session that a test lets lapse."""
_numbers = count()


@pytest.fixture
def session_ms() -> int:
    """A session that does not lapse, even on a busy machine; a server that ends is taken over without it."""
    return 10_000


@pytest.fixture
def url(session_ms: int) -> str:
    url = f"memory://standbys-{next(_numbers)}/log"
    with lastword.open(url, "a") as logs:
        logs.set_config(
            broker_session_timeout_ms=session_ms,
            broker_heartbeat_interval_ms=50,
            lastword_commit_linger_ms=0,
            log_cleaner_enable=False,
        )
        logs.create_topic("users", cleanup_policy="delete")
    return url


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Server, Server]]:
    with lastword.serve(url, "127.0.0.1:0") as active, lastword.serve(url, "127.0.0.1:0") as standby:
        yield active, standby


def brokers(server: Server) -> tuple[dict[int, int], int, int]:
    """Return the ports of the brokers by id, the controller and the leader of the topic."""
    with Client(server) as client:
        answer = client.ask(metadata("users"), 8)
    ports = {broker.node_id: broker.port for broker in answer.brokers}
    return ports, answer.controller_id, answer.topics[0].partitions[0].leader_id


def test_a_standby_names_the_active_server(pair: tuple[Server, Server]) -> None:
    active, standby = pair
    both = {1: active.port, 2: standby.port}
    until(lambda: brokers(active)[0] == both)
    assert (active.role, standby.role) == ("active", "standby")
    assert brokers(standby) == brokers(active) == (both, 1, 1)
    with Client(standby) as client:
        found = client.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators[0]
        assert (found.node_id, found.port, found.error_code) == (1, active.port, 0)
        assert client.produce("users", RECORD).error_code == codes.NOT_LEADER_OR_FOLLOWER
        assert client.fetch("users", 0).error_code == codes.NOT_LEADER_OR_FOLLOWER
        assert client.offset("users", -1).error_code == codes.NOT_LEADER_OR_FOLLOWER
        assert client.commit(1) == codes.NOT_COORDINATOR
        creation = client.ask(CreateTopicsRequest(topics=[new_topic("t")]), 5)
        assert creation.topics[0].error_code == codes.NOT_CONTROLLER
        assert client.ask(ListGroupsRequest(), 2).groups == []
        with pytest.raises(ConnectionError):
            client.ask(IncrementalAlterConfigsRequest(resources=[]), 1)


def test_a_server_that_ends_is_taken_over(pair: tuple[Server, Server]) -> None:
    active, standby = pair
    with Client(active) as client:
        assert client.produce("users", RECORD).base_offset == 0
        assert client.commit(1) == 0
    active.close()
    until(lambda: standby.role == "active")
    with Client(standby) as client:
        assert client.produce("users", RECORD).base_offset == 1
        assert client.offset("users", -1).offset == 2 and client.committed().committed_offset == 1
    assert brokers(standby) == ({2: standby.port}, 2, 2)


@pytest.mark.parametrize("session_ms", [LAPSING_MS])
def test_a_server_that_is_cut_off_answers_nothing_more(
    pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits nothing, not even late, and is a standby when the store answers again."""
    cut, other = pair
    store: Any = cut.context.dirs._bucket.store  # type: ignore[attr-defined]

    def no_answer(*given: Any, **named: Any) -> Any:
        raise UncertainRequestError.of("memory://", "write", "cut off", write=True)

    with Client(cut) as client, Client(cut) as poller:
        assert client.produce("users", RECORD).base_offset == 0
        assert poller.fetch("users", 0).high_watermark == 1
        with monkeypatch.context() as patch:
            for name in ("get", "swap", "put", "create"):
                patch.setattr(store, name, no_answer, raising=False)
            until(lambda: other.role == "active")
            with Client(other) as second:
                assert second.produce("users", RECORD).base_offset == 1
            with pytest.raises(ConnectionError):
                poller.fetch("users", 0)  # though it has the record in memory
        until(lambda: cut.role == "standby")
        with pytest.raises(ConnectionError):
            client.produce("users", RECORD)
    until(lambda: brokers(cut)[1] == 2)
    with Client(other) as client:
        assert client.offset("users", -1).offset == 2
        assert client.commit(2) == 0
    other.close()
    until(lambda: cut.role == "active")
    with Client(cut) as client:
        assert client.produce("users", RECORD).base_offset == 2 and client.committed().committed_offset == 2


@pytest.mark.parametrize("session_ms", [LAPSING_MS])
def test_nothing_of_a_term_that_ended_is_committed(
    pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that connects before the next term is not served; a handler that goes on late is fenced."""
    fenced, other = pair
    old = fenced.context
    dirs: Any = old.dirs
    step, was_at, may_go_on = ServerSession.step, threading.Event(), threading.Event()

    def held(session: ServerSession) -> Any:
        if session._bucket is dirs._bucket:
            if session is old.session and not other.context.is_standby:
                return step(session)
            if session is old.session:
                raise UncertainRequestError.of("memory://", "write", "cut off", write=True)
            was_at.set()
            may_go_on.wait(20)
        return step(session)

    with Client(fenced) as client:
        assert client.produce("users", RECORD).base_offset == 0
        assert client.commit(1) == 0
    monkeypatch.setattr(ServerSession, "step", held)
    try:
        assert was_at.wait(20)
        with pytest.raises(OSError), Client(fenced) as client:
            client.commit(7)
        with pytest.raises(ServerFencedError):
            old.appended(("users",), lambda dirs: None, 1)
    finally:
        may_go_on.set()
    until(lambda: fenced.role == "standby")
    with Client(other) as client:
        assert client.committed().committed_offset == 1
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_log_that_is_open_once_has_one_server(url: str) -> None:
    with lastword.open(url, "a") as logs:
        with lastword.serve(logs, "127.0.0.1:0") as server:
            with pytest.raises(UsageError, match="is served already"):
                lastword.serve(logs, "127.0.0.1:0")
            assert server.role == "active"
        with lastword.serve(logs, "127.0.0.1:0") as server:
            assert server.role == "active"


def test_a_session_that_lapsed_is_renewed_before_an_answer(url: str) -> None:
    with lastword.serve(url, "127.0.0.1:0") as server, Client(server) as client:
        session: Any = server.context.session
        session.tenure.renewed_at -= 1000
        assert client.produce("users", RECORD).base_offset == 0
        session.tenure.renewed_at -= 1000
        assert client.offset("users", -1).offset == 1
        assert session.is_active


@pytest.mark.slow
def test_servers_are_killed_and_stopped() -> None:
    """Nothing acknowledged is lost, and nothing is there twice."""
    pytest.importorskip("confluent_kafka")
    pytest.importorskip("aiokafka")
    result = takeovers.run(2, 1, takeovers.FEW)
    assert result.violations == [] and result.events > 40 and len(result.served) == 2


def _judged(*, events: Any = None, copies: Any = None, notes: tuple[tuple[Any, ...], ...] = ()) -> str:
    """Judge a small sound history with some of its parts replaced."""
    journal = Journal()
    sound = [(0, 0, "java:0:0"), (0, 1, "java:0:2"), (1, 0, "java:0:1")]
    for partition, offset, value in sound:
        journal.note("java", "producer", "acked", int(value[-1]), partition, offset)
        journal.note("java", "reader", "read", partition, offset, value)
    journal.note("java", "copier", "copied", 0, 2)
    journal.note("java", "copier", "aborted", 1)
    for note in notes:
        journal.note("java", *note)
    copied = [(0, 0, "0:2:0:0"), (1, 0, "0:2:1:0"), (2, 0, "0:2"), (0, 1, "2:1:0:1"), (2, 1, "2:1")]
    chosen = [("java", role) for role in ROLES]
    return " / ".join(takeovers.judge(journal, chosen, events or sound, {"java": copies or copied}))


@pytest.mark.parametrize(
    ("found", "planted"),
    [
        ("lost: java 2", {"events": [(0, 0, "java:0:0"), (1, 0, "java:0:1")]}),
        (
            "twice: java:0:1 in events",
            {"events": [(0, 0, "java:0:0"), (0, 1, "java:0:2"), (1, 0, "java:0:1"), (1, 1, "java:0:1")]},
        ),
        (
            "out of order: java:0:0",
            {"events": [(0, 0, "java:0:2"), (0, 1, "java:0:0"), (1, 0, "java:0:1")]},
        ),
        (
            "not at 0:1: java 2",
            {"events": [(0, 0, "java:0:0"), (0, 2, "java:0:2"), (0, 1, "java:1:3"), (1, 0, "java:0:1")]},
        ),
        ("phantom", {"notes": (("reader", "read", 1, 7, "java:0:9"),)}),
        ("got 0:0 again", {"notes": (("reader", "read", 0, 0, "java:0:0"),)}),
        (
            "not read by java: 1",
            {"events": [(0, 0, "java:0:0"), (0, 1, "java:0:2"), (1, 0, "java:0:1"), (1, 1, "java:0:3")]},
        ),
        ("not copied by java: 1", {"copies": [(0, 0, "0:2:0:0"), (1, 0, "0:2:1:0"), (2, 0, "0:2")]}),
        ("half of a transaction: java 0 has 1 of 2", {"copies": [(0, 0, "0:2:0:0"), (2, 0, "0:2")]}),
        ("half of a transaction: java 0 has 1 of 0", {"copies": [(0, 0, "0:2:0:0")]}),
        ("lost: transaction java 0", {"copies": [(0, 1, "2:1:0:1"), (2, 1, "2:1")]}),
        ("aborted, but read: java 0", {"notes": (("copier", "aborted", 0),)}),
        (
            "copied twice by java: 1",
            {"copies": [(0, 0, "0:1:0:0"), (2, 0, "0:1"), (0, 1, "3:1:0:0"), (2, 1, "3:1")]},
        ),
        (
            "copied out of order by java in 0",
            {"copies": [(0, 0, "2:1:0:1"), (2, 0, "2:1"), (0, 1, "3:1:0:0"), (2, 1, "3:1")]},
        ),
    ],
)
def test_the_judge_of_takeovers_finds_each_fault(found: str, planted: dict[str, Any]) -> None:
    assert _judged() == ""
    assert found in _judged(**planted)
