"""A broker opens every form that lastword wrote, serves it and continues; then lastword opens it again.

broker    creates the topics, stops
lastword  writes each form (`forms`), closes
broker    serves all of it under both isolation levels; the producers whose batches are in the logs send
          again and go on; open transactions are ended; stops
lastword  writes each form, and is killed in the middle of an append
broker    recovers and serves it, as before, stops
lastword  opens everything
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import SequenceGapError
from lastword.partition.appending import AppendedBatch
from lastword.tools.dump import Batch as Dumped
from tests.golden.loader import partition_files
from tests.kafka import forms, traffic, wire
from tests.kafka.forms import EPOCHS, FORMS, Writer
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools, complaints

ROOT = Path(__file__).parents[2]
ISOLATIONS = ("read_committed", "read_uncommitted")
STOPS = ("closed", "killed")
TOPICS = [f"{stop}-{form}" for stop in STOPS for form in FORMS]
MORE = KafkaRecord(b"more", b"from the broker")


@dataclass
class Sent:
    """The broker's responses to one producer of lastword.

    Error code and base offset of its newest batch sent again and of the next batch; error codes of a batch
    after a gap in the sequence, and of a batch with an older epoch.
    """

    again: tuple[int, int]
    following: tuple[int, int]
    following_data: bytes
    gap: int
    older_epoch: int | None


@dataclass
class Story:
    directory: Path
    written: dict[str, Writer] = field(default_factory=dict)
    complaints: dict[str, list[str]] = field(default_factory=dict)
    exit_code: int = 0
    torn_bytes: int = 0
    served: dict[str, dict[str, Consumed]] = field(default_factory=dict)
    sent: dict[str, dict[int, Sent]] = field(default_factory=dict)
    ended: dict[str, dict[int, int]] = field(default_factory=dict)
    more_offset: dict[str, int] = field(default_factory=dict)
    served_more: dict[str, dict[str, Consumed]] = field(default_factory=dict)
    broker_log: dict[str, str] = field(default_factory=dict)
    read: dict[str, dict[str, list[tuple[Any, ...]]]] = field(default_factory=dict)
    sent_to_us: dict[str, dict[int, tuple[AppendedBatch, AppendedBatch, str]]] = field(default_factory=dict)
    epochs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    closed_epochs: list[tuple[int, int]] = field(default_factory=list)
    open_at_last: dict[str, list[int]] = field(default_factory=dict)
    problems: list[Any] = field(default_factory=list)


def serve(story: Story, broker: Broker, stop: str) -> None:
    topics = [topic for topic in TOPICS if topic.startswith(stop)]
    served = {isolation: broker.consume(*topics, isolation=isolation) for isolation in ISOLATIONS}
    with wire.Wire(broker.bootstrap) as broker_wire:
        for topic in topics:
            story.served[topic] = {isolation: served[isolation][f"{topic}-0"] for isolation in ISOLATIONS}
            writer = story.written[topic]
            story.sent[topic] = {pid: send(broker_wire, topic, writer, pid) for pid in writer.idempotent()}
            story.ended[topic] = {
                pid: broker_wire.end_transaction(topic, pid, EPOCHS[pid], True) for pid in writer.undecided()
            }
    for topic in topics:
        (story.more_offset[topic],) = broker.produce(topic, [[MORE]])
    served = {isolation: broker.consume(*topics, isolation=isolation) for isolation in ISOLATIONS}
    for topic in topics:
        story.served_more[topic] = {isolation: served[isolation][f"{topic}-0"] for isolation in ISOLATIONS}
    story.broker_log[stop] = broker.log_text


def send(broker_wire: wire.Wire, topic: str, writer: Writer, pid: int) -> Sent:
    newest, sequence = writer.newest(pid), writer.next_sequence(pid)
    following, _ = writer.ready(2, pid, sequence)
    gap, _ = writer.ready(1, pid, sequence + 7)
    older = None
    if EPOCHS[pid]:
        older, _ = broker_wire.produce(topic, writer.ready(1, pid, 0, epoch=EPOCHS[pid] - 1)[0])
    return Sent(
        again=broker_wire.produce(topic, newest.data),
        gap=broker_wire.produce(topic, gap)[0],
        following=broker_wire.produce(topic, following),
        following_data=following,
        older_epoch=older,
    )


def take_back(story: Story) -> None:
    """Open what the broker left; its producers, which lastword had before, append again."""
    with lastword.open(story.directory) as logs:
        for topic in TOPICS:
            story.read[topic] = {
                isolation: traffic.facts(logs.topic(topic).read(isolation=isolation))
                for isolation in ISOLATIONS
            }
        story.problems += logs.verify().problems
    directory = forms.open_directory(story.directory)
    for topic in TOPICS:
        log = directory.log(topic, 0)
        story.epochs[topic] = [(entry.epoch, entry.start_offset) for entry in log.epochs.entries]
        story.open_at_last[topic] = [p.producer_id for p in log.producers if p.transaction_start is not None]
        story.sent_to_us[topic] = {}
        for pid, sent in story.sent[topic].items():
            writer = story.written[topic]
            again = log.append_batch(sent.following_data)
            following, _ = writer.ready(1, pid, writer.next_sequence(pid) + 2)
            gap = ""
            try:
                log.append_batch(writer.ready(1, pid, writer.next_sequence(pid) + 9)[0])
            except SequenceGapError as error:
                gap = str(error)
            story.sent_to_us[topic][pid] = again, log.append_batch(following), gap
    directory.close()
    with lastword.open(story.directory) as logs:
        story.problems += logs.verify().problems


@pytest.fixture(scope="module")
def story(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("forms")
    # A controlled shutdown gives the topic another epoch; the test of the checkpoint needs one without.
    broker = Broker(tools, root / "logs", {"controlled.shutdown.enable": "false"})
    story = Story(broker.directory)
    now_ms = int(time.time() * 1000)  # a producer without batches for a day expires
    with broker:
        broker.create_topics({topic: {} for topic in TOPICS})
    with forms.open_directory(broker.directory) as directory:
        story.written = forms.write(directory, "closed", now_ms)
    for topic in story.written:
        files = [path for path in (broker.directory / f"{topic}-0").iterdir() if path.suffix in KINDS]
        story.complaints[topic] = complaints(tools.dump_log(sorted(files)))
    log = story.written["closed-epochs"].log
    story.closed_epochs = [(entry.epoch, entry.start_offset) for entry in log.epochs.entries]
    with broker:
        serve(story, broker, "closed")
    writer = [sys.executable, "-m", "tests.kafka.forms", str(broker.directory), str(now_ms)]
    story.exit_code = subprocess.run(writer, cwd=ROOT, check=False).returncode
    with forms.elsewhere(root / "scratch", "killed", now_ms) as killed:
        story.written |= killed
        whole, torn = (
            partition_files(d / "killed-idempotent-0")[-1] for d in (root / "scratch", story.directory)
        )
        assert whole.name == torn.name
        story.torn_bytes = torn.stat().st_size - whole.stat().st_size
    with broker:
        serve(story, broker, "killed")
    take_back(story)
    return story


KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def test_the_forms_are_what_they_say(story: Story) -> None:
    assert story.exit_code == -9
    assert story.torn_bytes > 100, "the kill was to leave half a batch"
    for stop in STOPS:
        assert story.written[f"{stop}-decided"].undecided() == []
        assert story.written[f"{stop}-undecided"].undecided() == [forms.FIRST]
        assert forms.FIRST in story.written[f"{stop}-truncated"].undecided()
        for form in ("decided", "undecided", "truncated"):
            writer = story.written[f"{stop}-{form}"]
            assert writer.records("read_committed") != writer.records("read_uncommitted")
    for topic in TOPICS:
        assert len(partition_files(story.directory / f"{topic}-0")) > 1


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic.startswith("closed")])
def test_the_dump_tool_finds_nothing_wrong_in_what_we_closed(topic: str, story: Story) -> None:
    assert story.complaints[topic] == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_broker_serves_the_same_records(topic: str, isolation: str, story: Story) -> None:
    writer = story.written[topic]
    served = story.served[topic][isolation]
    assert traffic.facts(served.records) == writer.records(isolation)
    if isolation == "read_uncommitted":
        assert (served.start, served.end) == (0, writer.end)


@pytest.mark.parametrize("topic", TOPICS)
def test_its_producers_go_on(topic: str, story: Story) -> None:
    """The broker returns the old offset of a repeated batch, accepts the next batch, and refuses a gap."""
    writer = story.written[topic]
    assert story.sent[topic].keys() == set(writer.idempotent())
    end = writer.end
    for pid, sent in story.sent[topic].items():
        assert sent.again == (wire.NONE, writer.newest(pid).facts[0][0])
        assert sent.following == (wire.NONE, end)
        assert sent.gap == wire.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert sent.older_epoch == (wire.INVALID_PRODUCER_EPOCH if EPOCHS[pid] else None)
        end += 2
    assert story.more_offset[topic] == end + len(story.ended[topic])


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic.endswith(("undecided", "truncated"))])
def test_a_broker_ends_the_transactions_that_we_left_open(topic: str, story: Story) -> None:
    writer = story.written[topic]
    assert set(story.ended[topic].values()) == {wire.NONE}
    served = {
        isolation: set(traffic.facts(story.served_more[topic][isolation].records)) for isolation in ISOLATIONS
    }
    left_open = {
        fact
        for fact in set(writer.records("read_uncommitted")) - set(writer.records("read_committed"))
        if fact in served["read_committed"]
    }
    assert left_open, "a commit shows what was undecided"
    assert story.open_at_last[topic] == []


@pytest.mark.parametrize("stop", STOPS)
def test_no_error_in_the_broker_s_log(stop: str, story: Story) -> None:
    log = [line for line in story.broker_log[stop].splitlines() if "__cluster_metadata" not in line]
    assert [line for line in log if " ERROR " in line and "LogLoader" in line] == []
    recovered = [line for line in log if "Recovering unflushed segment" in line]
    assert bool(recovered) == (stop == "killed")


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("topic", TOPICS)
def test_and_back_again(topic: str, isolation: str, story: Story) -> None:
    records = story.read[topic][isolation]
    assert records == traffic.facts(story.served_more[topic][isolation].records)
    assert records[-1][0] == story.more_offset[topic]


@pytest.mark.parametrize("topic", TOPICS)
def test_its_producers_come_back_to_us(topic: str, story: Story) -> None:
    end = story.more_offset[topic] + 1
    for pid, (again, following, gap) in story.sent_to_us[topic].items():
        base = story.sent[topic][pid].following[1]
        assert (again.base_offset, again.last_offset) == (base, base + 1)
        assert (following.base_offset, following.last_offset) == (end, end)
        assert gap
        end += 1


@pytest.mark.parametrize("stop", STOPS)
def test_epochs_stay_in_the_batches(stop: str, story: Story) -> None:
    files = partition_files(story.directory / f"{stop}-epochs-0")
    epochs = [
        batch.leader_epoch for file in files for batch in lastword.dump(file) if isinstance(batch, Dumped)
    ]
    assert epochs[:60] == [0] * 30 + [1] * 30
    assert min(epochs[60:]) > 1, "what came later has the epoch of the broker's own start"


def test_epochs_stay_in_the_checkpoint(story: Story) -> None:
    """The entries stay if the topic had as many epochs.

    A broker that starts replays a topic's epochs from the first. The first topic had only epoch 0 when
    lastword wrote, so the broker drops lastword's entries and warns.
    """
    writer = story.written["killed-epochs"]
    ours = [(0, 0), (1, writer.batches[30].facts[0][0])]
    entries = story.epochs["killed-epochs"]
    assert entries[:2] == ours
    assert entries[2][0] > 1 and entries[2][1] == writer.end
    assert story.closed_epochs == ours
    assert [epoch > 1 for epoch, _ in story.epochs["closed-epochs"]] == [True] * 2
    assert "caused truncation of conflicting entries [EpochEntry[epoch=1" in story.broker_log["closed"]


def test_nothing_is_wrong_at_last(story: Story) -> None:
    assert story.problems == []
