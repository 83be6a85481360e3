"""Transactions that a broker begins and the server ends, and the other way; Kafka's tools for transactions.

broker     transactions of a Java producer and of one by requests; one of each stays open; stops
lastword   serves the directory on the broker's port: the open ones are committed; Kafka's tools; two more
           stay open, and two are decided without their markers; transactions of its own; stops
broker     completes what was decided, and the producers commit what they had begun; stops
lastword   reads the same records, and the state of each transactional id
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api.transaction import Committer
from lastword.clock import SystemClock
from lastword.errors import StorageError
from lastword.logdir.transaction_state import OWN_ID
from lastword.protocol import codes
from lastword.protocol.messages import FindCoordinatorRequest
from lastword.server.transactions import TransactionCoordinator
from lastword.testing.unsynced import UNSYNCED
from tests.kafka.conftest import client_of
from tests.server.client import Client
from tests.server.writer import Writer, described, offset_of
from tests.support.kafka import Broker, Clients, KafkaRecord, Tools, errors_of
from tests.support.waiting import until

OWN = ("own", "own-too")
RETRIED = {
    codes.CONCURRENT_TRANSACTIONS,
    codes.COORDINATOR_LOAD_IN_PROGRESS,
    codes.COORDINATOR_NOT_AVAILABLE,
    codes.NOT_COORDINATOR,
    codes.NOT_ENOUGH_REPLICAS,
}


@dataclass
class Story:
    """What the steps saw."""

    offsets: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    read: dict[str, list[bytes]] = field(default_factory=dict)
    listed: str = ""
    described: str = ""
    hanging: str = ""
    performance: str = ""
    back: dict[str, list[bytes]] = field(default_factory=dict)
    own: dict[str, list[bytes]] = field(default_factory=dict)
    problems: list[Any] = field(default_factory=list)
    broker_log: str = ""


@pytest.fixture(scope="module")
def story(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    story = Story()
    directory = tmp_path_factory.mktemp("transactions") / "logs"
    broker = Broker(tools, directory, keeps_port=True)
    writer = Writer(Any, SystemClock(), "raw")
    decided = {name: Writer(Any, SystemClock(), name) for name in ("committing", "aborting")}
    with broker:
        broker.create_topics({name: {} for name in ("users", "events", *OWN)})
        broker.keep_producer("java", transactional_id="java")
        send(broker, "begin", b"java 1", "commit", "begin", b"java lost", "abort", "begin", b"java 2")
        with connected(broker, writer) as client:
            coordinators(client)
            insist(lambda: writer.init().error_code)
            write(writer, b"raw 1", 1)
            insist(writer.end)
            write(writer, b"raw 2", 2)
            story.offsets.append(("broker", offset_of(client, stable=True)))
    with served(broker) as java:
        send(java, "commit", "begin", b"java 3", "commit", "begin", b"java lost", "abort", "begin", b"java 4")
        with connected(java, writer) as client:
            story.offsets.append(("ours", offset_of(client, stable=True)))
            insist(writer.end)
            story.offsets.append(("ended", offset_of(client, stable=True)))
            with_tools(java, story)
            write(writer, b"raw 3", 3)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(TransactionCoordinator, "_append_markers", _cut)
                for other in decided.values():
                    other.client = client
                    insist(lambda other=other: other.init().error_code)
                    insist(lambda other=other: other.send(other.name.encode()))
                    insist(lambda other=other: other.commit_offset(50, f"group of {other.name}"))
                    insist(lambda other=other: other.end(commit=other.name == "committing"))
                story.states |= {name: described(client, name).transaction_state for name in decided}
    transact(directory)
    with broker:
        found = broker.consume(*OWN, isolation="read_committed")
        story.own = {name: [r.value or b"" for r in found[f"{name}-0"].records] for name in OWN}
        with connected(broker, writer) as client:
            coordinators(client)
            story.states["lastword"] = described(client, OWN_ID).transaction_state
            for name in decided:
                until(lambda name=name: described(client, name).transaction_state.startswith("Complete"))
            send(broker, "commit", "begin", b"java 5", "commit", "close")
            insist(writer.end)
            for name in ("raw", "java"):  # the markers follow the answer
                until(lambda name=name: described(client, name).transaction_state == "CompleteCommit")
            insist(lambda: write(writer, b"raw 4", 4))
            insist(writer.end)
            until(lambda: offset_of(client, stable=True)[1] == 0)
            story.offsets.append(("back", offset_of(client, stable=True)))
            for name in decided:
                group = f"group of {name}"
                until(lambda group=group: offset_of(client, stable=True, group=group)[1] == 0)
                story.offsets.append((name, offset_of(client, stable=True, group=group)))
        read = broker.consume("users", "events", isolation="read_committed")
        story.read = {name: [r.value or b"" for r in found.records] for name, found in read.items()}
        story.broker_log = broker.log_text
    with lastword.open(directory, "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        for name in ("users", "events"):
            records = logs[name].read(isolation="read_committed")
            story.back[f"{name}-0"] = [bytes(record.value) for record in records]
        story.problems += logs.verify().problems
        with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
            for name in ("raw", "java", "committing", "aborting"):
                story.states[f"{name} at the end"] = described(client, name).transaction_state
            story.offsets.append(("at the end", offset_of(client, stable=True)))
    yield story


def transact(directory: Path) -> None:
    """Commit transactions of our own, over two topics and in one, and one that is aborted in between."""
    with lastword.open(directory, "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        for number in range(3):
            with logs.transaction() as tx:
                for name in OWN:
                    tx.append(name, b"k", b"%d" % number)
            with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
                patch.setattr(Committer, "_sync", lambda *arguments: 1 / 0)
                with logs.transaction() as tx:
                    for name in OWN:
                        tx.append(name, b"k", b"never")
        with logs.transaction() as tx:
            tx.append(OWN[0], b"k", b"alone")


@contextmanager
def served(broker: Broker) -> Iterator[Clients]:
    """Serve the directory of a broker that was stopped, on its port."""
    with (
        lastword.open(broker.directory, "a", files=UNSYNCED, log_cleaner_enable=False) as logs,
        lastword.serve(logs, broker.bootstrap),
    ):
        yield Clients(broker.tools, broker.bootstrap)


@contextmanager
def connected(cluster: Clients, writer: Writer) -> Iterator[Client]:
    with client_of(cluster) as client:
        writer.client = client
        yield client


def coordinators(client: Client) -> None:
    """Wait until the broker has both coordinators."""
    for kind in (0, 1):
        body = FindCoordinatorRequest(key_type=kind, coordinator_keys=["raw"])
        insist(lambda body=body: client.ask(body).coordinators[0].error_code)


def send(cluster: Clients, *steps: str | bytes) -> None:
    """Run steps of the Java producer; bytes are a record."""
    cluster.send(
        "users",
        *(("java", [KafkaRecord(b"k", step)] if isinstance(step, bytes) else step) for step in steps),
    )


def write(writer: Writer, value: bytes, offset: int) -> int:
    insist(lambda: writer.send(value, "events"))
    insist(lambda: writer.commit_offset(offset))
    return 0


def insist(call: Callable[[], int]) -> None:
    """Send a request until it is answered without a passing error."""
    end = time.monotonic() + 20
    while code := call():
        assert code in RETRIED, codes.ERROR_NAMES[code]
        assert time.monotonic() < end, codes.ERROR_NAMES[code]
        time.sleep(0.05)


async def _cut(*arguments: Any) -> None:
    raise StorageError("the server ends here")


def with_tools(java: Clients, story: Story) -> None:
    """Run Kafka's tools for transactions."""
    story.listed = java.run("TransactionsCommand", "list")
    story.described = java.run("TransactionsCommand", "describe", "--transactional-id", "java")
    story.hanging = java.run("TransactionsCommand", "find-hanging", "--broker-id", "1")
    load = ("--num-records", "2000", "--record-size", "20", "--throughput", "-1")
    transactional = ("--transactional-id", "load", "--transaction-duration-ms", "20")
    properties = ("--command-property", f"bootstrap.servers={java.bootstrap}")
    story.performance = java.tools.run(
        "ProducerPerformance", "--topic", "load", *load, *transactional, *properties
    )


pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_a_broker_reads_transactions_of_our_own(story: Story) -> None:
    assert story.own == {"own": [b"0", b"1", b"2", b"alone"], "own-too": [b"0", b"1", b"2"]}
    assert story.states["lastword"] == "CompleteCommit"


def test_what_was_committed_is_read(story: Story) -> None:
    users = [b"java 1", b"java 2", b"java 3", b"java 4", b"committing", b"java 5"]
    assert story.read["users-0"] == users
    assert story.read["events-0"] == [b"raw %d" % number for number in range(1, 5)]
    assert story.back == story.read
    assert story.problems == []


def test_what_was_decided_is_completed_by_the_broker(story: Story) -> None:
    assert (story.states["committing"], story.states["aborting"]) == ("PrepareCommit", "PrepareAbort")
    assert story.states["committing at the end"] == "CompleteCommit"
    assert story.states["aborting at the end"] == "CompleteAbort"
    assert story.states["raw at the end"] == story.states["java at the end"] == "CompleteCommit"


def test_offsets_move_with_the_transactions(story: Story) -> None:
    unstable = (-1, codes.UNSTABLE_OFFSET_COMMIT)
    assert story.offsets == [
        ("broker", unstable),
        ("ours", unstable),
        ("ended", (2, 0)),
        ("back", (4, 0)),
        ("committing", (50, 0)),
        ("aborting", (-1, 0)),
        ("at the end", (4, 0)),
    ]


def test_the_tool_for_transactions(story: Story) -> None:
    listed = {line.split()[0]: line.split()[-1] for line in story.listed.splitlines()[1:]}
    assert (listed["java"], listed["raw"]) == ("Ongoing", "CompleteCommit")
    epochs = r"\bjava\s+\d+\s+[3-9]\s+Ongoing\b.*users-0"  # each end of version 2 has the next epoch
    assert re.search(epochs, story.described), story.described
    assert len(story.hanging.splitlines()) == 1, story.hanging


def test_the_transactional_performance_producer(story: Story) -> None:
    assert "2000 records sent" in story.performance


def test_the_broker_found_nothing_wrong(story: Story) -> None:
    restarts = "is not online or is no longer the leader"  # the leaders change once while a broker starts
    assert errors_of(story.broker_log, ignored=[restarts]) == []
