"""Hanging transactions, ended by Kafka's tool and by `LogDir.abort`; and the tools of administrators."""

from __future__ import annotations

from pathlib import Path

import lastword
from lastword.clock import SystemClock
from lastword.testing.unsynced import UNSYNCED
from tests.kafka.conftest import client_of
from tests.kafka.test_transactions import connected, insist
from tests.server.client import Client, batch
from tests.server.writer import Writer
from tests.support.kafka import Broker, Clients, Tools

OPTIONS = {"files": UNSYNCED, "log_cleaner_enable": False}


def values(logs: lastword.LogDir, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in logs[topic].read(end="latest")]


def test_kafkas_tool_aborts_a_hanging_transaction(tools: Tools, tmp_path: Path) -> None:
    """Trial A4: the node did not support WRITE_TXN_MARKERS."""
    with lastword.open(tmp_path, "a", **OPTIONS) as logs:  # type: ignore[arg-type]
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.append(b"n", b"5")
        open_one = batch((b"m", b"1"), attributes=0x10, producer=(7, 0, 0))
        logs.dirs.log("t", 0).append_batch(open_one)
        topic.append(b"n", b"6")
        assert values(logs) == [b"5"]
        with lastword.serve(logs, "127.0.0.1:0") as server:
            java = Clients(tools, server.bootstrap_servers)
            of = ("--topic", "t", "--partition", "0")
            assert "\t7 " in java.run("TransactionsCommand", "describe-producers", *of).replace("\n", "\n\t")
            java.run("TransactionsCommand", "abort", *of, "--start-offset", "1")
            assert logs.transactions() == []
            assert values(logs) == [b"5", b"6"]


def test_a_broker_takes_over_a_transaction_that_was_aborted(tools: Tools, tmp_path: Path) -> None:
    broker = Broker(tools, tmp_path / "logs")
    writer = Writer(Client, SystemClock(), "x1")  # type: ignore[arg-type]

    with broker:
        broker.create_topic("t")
        broker.create_topic("__transaction_state", cleanup_policy="compact")
        with connected(broker, writer):
            insist(lambda: writer.init().error_code)
            insist(lambda: writer.send(b"lost", "t"))
    with lastword.open(broker.directory, "a", **OPTIONS) as logs:  # type: ignore[arg-type]
        (aborted,) = logs.abort("x1")
        assert (aborted.state, aborted.producer_id) == ("Ongoing", writer.producer_id)
    with broker:
        with client_of(broker) as client:
            again = Writer(client, SystemClock(), "x1")
            insist(lambda: again.init().error_code)
            assert (again.producer_id, again.epoch) == (writer.producer_id, writer.epoch + 2)
            insist(lambda: again.send(b"kept", "t"))
            insist(again.end)
        read = broker.consume("t", isolation="read_committed")["t-0"].records
        assert [record.value for record in read] == [b"kept"]
