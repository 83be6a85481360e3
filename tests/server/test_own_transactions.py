"""`LogDir.transaction` in a directory that is served: the coordinator leaves its transactional id alone."""

from __future__ import annotations

from pathlib import Path

import lastword
from lastword.clock import ManualClock
from lastword.logdir.transaction_state import OWN_ID
from lastword.protocol import codes
from tests.server.client import Client
from tests.server.writer import Writer, described

TOPICS = ("users", "events")


def transact(logs: lastword.LogDir, value: bytes) -> None:
    with logs.transaction() as tx:
        for topic in TOPICS:
            tx.append(topic, b"own", value)


def test_both_kinds_of_transactions(tmp_path: Path) -> None:
    clock = ManualClock()
    with lastword.open(tmp_path, "a", clock=clock) as logs:
        for topic in TOPICS:
            logs.create_topic(topic, cleanup_policy="delete")
        with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
            transact(logs, b"1")  # makes the topic of the decisions
            writer = Writer(client, clock)
            assert writer.init().error_code == 0
            assert writer.send(b"theirs", "users") == 0
            transact(logs, b"2")
            assert writer.end() == 0
            assert Writer(client, clock, OWN_ID).init().error_code != codes.NONE
            assert described(client, OWN_ID).error_code == codes.TRANSACTIONAL_ID_NOT_FOUND
        with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
            assert described(client).transaction_state == "CompleteCommit"
            transact(logs, b"3")
        assert [bytes(r.value) for r in logs["events"].read()] == [b"1", b"2", b"3"]
        assert [bytes(r.value) for r in logs["users"].read()] == [b"1", b"theirs", b"2", b"3"]
        assert not logs.transactions()
