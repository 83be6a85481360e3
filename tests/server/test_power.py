"""Power cuts while transactions are committed: with `disk`, each transaction is whole or not there.

The server works on `ForgetfulFiles`, which gives the directories that a power cut may leave at each moment.
The next server opens such a directory and completes what was decided; a committed reader gets the records.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.server.transaction_state import DECIDED
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.forgetful import ForgetfulFiles, Image
from tests.fakes.hasty import HastyFiles
from tests.server.client import Client, served
from tests.server.writer import described, offset_of, started
from tests.support.exhaustive import stride

TOPICS = ("users", "events")
ABORTED = 1


def transactions(root: Path, clock: ManualClock, version: int) -> ForgetfulFiles:
    """Run four transactions over two topics and a group; mark the journal when an end was answered."""
    with served(root, files=HastyFiles(), clock=clock, lastword_ack="disk") as (logs, _, client):
        for topic in TOPICS:
            logs.create_topic(topic, cleanup_policy="delete")
        offset_of(client)
        started(client, clock)
    files = ForgetfulFiles(root, HastyFiles())
    with served(root, files=files, clock=clock, lastword_ack="disk") as (_, _, client):
        writer = started(client, clock, version=version)
        for number in range(4):
            for topic in TOPICS:
                assert writer.send(b"%d" % number, topic) == 0
            assert writer.commit_offset(number) == 0
            assert writer.end(commit=number != ABORTED) == 0
            files.mark(str(number))
    return files


def check(image: Image, directory: Path, clock: ManualClock) -> None:
    """Serve a directory after a power cut, and compare what is read with what was answered."""
    image.write(directory)
    with lastword.open(directory, "a", files=UNSYNCED, clock=clock, lastword_ack="disk") as logs:
        with lastword.serve(logs, "127.0.0.1:0") as server, Client(server) as client:
            end = time.monotonic() + 10
            while (state := described(client)).transaction_state in DECIDED:
                assert time.monotonic() < end, image.label
                time.sleep(0.002)
            offset, _ = offset_of(client)
        read = {
            topic: [bytes(r.value) for r in logs[topic].read(isolation="read_committed")] for topic in TOPICS
        }
        opened = {
            topic
            for topic in TOPICS
            if logs.dirs.log(topic, 0).stable_offset < logs.dirs.log(topic, 0).log_end
        }
    answered = [int(mark) for mark in image.marks]
    committed = [b"%d" % number for number in answered if number != ABORTED]
    users, events = read["users"], read["events"]
    assert users == events, f"{image.label}: half of a transaction: {read}"
    assert users[: len(committed)] == committed, f"{image.label}: lost: {read}"
    assert b"%d" % ABORTED not in users, image.label
    assert len(users) <= len(committed) + 1, image.label
    last = int(users[-1]) if users else -1
    assert offset == last, f"{image.label}: offset {offset}, last transaction {last}"
    if opened:  # the producer may go on, or its time ends the transaction
        assert state.transaction_state == "Ongoing", f"{image.label}: {opened} hang"
        assert opened <= {topic.topic for topic in state.topics}, image.label


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_transactions_and_power_cuts(tmp_path: Path, version: int) -> None:
    clock = ManualClock()
    files = transactions(tmp_path / "live", clock, version)
    moments = range(version, len(files.journal) + 1, stride(11))
    checked = 0
    for image in itertools.islice(files.images(moments, seeds=range(2)), 0, None, stride(58)):
        check(image, tmp_path / "image", clock)
        checked += 1
    assert checked > 5


@pytest.mark.slow
def test_a_decision_that_is_not_synced_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the fault: markers are appended while the decision is not durable."""
    from lastword.server.transactions import TransactionCoordinator

    change = TransactionCoordinator._change

    async def unsynced(self: Any, transaction: Any, **fields: Any) -> None:
        await change(self, transaction, **fields | {"has_effect": False})

    monkeypatch.setattr(TransactionCoordinator, "_change", unsynced)
    clock = ManualClock()
    files = transactions(tmp_path / "live", clock, 2)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        for image in files.images():
            check(image, tmp_path / "image", clock)
