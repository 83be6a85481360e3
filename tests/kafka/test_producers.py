"""A broker's producers continue with their ids after lastword wrote, cleaned and closed the directory.

The producers are idempotent and transactional; their undecided records stay undecided.

    broker     three producers: plain batches, a commit, an abort, a transaction left open; stops
    lastword   finds the same producers; appends with a producer of its own, cleans, stops cleanly
    broker     finds the same producers; they go on; the open transaction is committed; is killed
    lastword   recovers, appends, is killed in turn
    broker     recovers, a producer goes on; stops
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.partition.producer_state import FIRST_NAMED_ID
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools, complaints, metadata_of

TX = {"transaction_timeout_ms": "600000"}


def batch(name: str, *numbers: int) -> list[KafkaRecord]:
    # Current timestamps: a broker expires producers whose records are a day old.
    now_ms = int(time.time() * 1000)
    return [KafkaRecord(b"%s-%d" % (name.encode(), n % 7), b"%d" % n * 30, now_ms) for n in numbers]


def producer_rows(log: Any) -> list[dict[str, int]]:
    return [
        {
            "id": p.producer_id,
            "epoch": p.epoch,
            "sequence": p.last_sequence,
            "timestamp": p.last_timestamp,
            "coordinator": p.coordinator_epoch,
            "start": -1 if p.transaction_start is None else p.transaction_start,
        }
        for p in log.producers
    ]


@dataclass
class Story:
    broker_producers: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    our_producers: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    committed: dict[str, Any] = field(default_factory=dict)
    everything: dict[str, Any] = field(default_factory=dict)
    stable: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, list[int]] = field(default_factory=dict)
    open_at: int = -1
    freed: int = 0
    broker_log: str = ""
    dumped: str = ""


def consumed(broker: Broker, isolation: str) -> Consumed:
    return broker.consume("users", isolation=isolation)["users-0"]


def facts(records: Any) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in records]


@pytest.fixture(scope="module")
def story(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("producers")
    broker = Broker(tools, root / "logs", keeps_port=True)
    story = Story()
    with broker:
        broker.create_topics({"users": {"cleanup_policy": "compact", "internal_segment_bytes": 4096}})
        broker.keep_producer("plain", enable_idempotence="true")
        broker.keep_producer("one", transactional_id="one", **TX)
        broker.keep_producer("two", transactional_id="two", **TX)
        for n in range(0, 60, 3):
            broker.send("users", ("plain", batch("p", n, n + 1, n + 2)))
        for end in ("commit", "abort") * 2:
            broker.send("users", ("one", "begin"), ("two", "begin"))
            for n in range(0, 10, 2):
                broker.send("users", ("one", batch("o", n)), ("two", batch("t", n, n + 1)))
            broker.send("users", ("one", end), ("two", "commit"))
        broker.send("users", ("one", "begin"))
        story.offsets["open"] = broker.send("users", ("one", batch("o", 1, 2)), ("plain", batch("p", 60)))
        story.open_at = story.offsets["open"][0]
        story.broker_producers["first"] = broker.producers("users")
        story.committed["first"] = consumed(broker, "read_committed").records
        story.everything["first"] = consumed(broker, "read_uncommitted").records
    metadata = metadata_of(broker.directory)
    with lastword.open(broker.directory, "a", metadata=metadata, log_cleaner_enable=False) as logs:
        topic = logs.topic("users")
        topic.set_config(cleanup_policy="compact", segment_bytes=4096, min_cleanable_dirty_ratio=0)
        log = logs.dirs.log("users", 0)
        story.our_producers["first"] = producer_rows(log)
        story.stable["first"] = log.stable_offset
        story.committed["ours"] = list(topic.read())
        story.everything["ours"] = list(topic.read(isolation="read_uncommitted"))
        for number in range(4):
            topic.extend(
                [(b"mine-%d" % i, b"%d" % number) for i in range(30)], producer="mine", sequence=number
            )
        story.freed = sum(done.freed_bytes for done in logs.clean("users"))
        story.our_producers["closed"] = producer_rows(log)
        story.ends["closed"] = log.log_end
    with broker:
        story.broker_log = broker.log_text
        story.broker_producers["second"] = broker.producers("users")
        story.committed["second"] = consumed(broker, "read_committed").records
        story.offsets["second"] = broker.send(
            "users", ("plain", batch("p", 70, 71)), ("one", batch("o", 3)), ("one", "commit")
        )
        broker.send("users", ("two", "begin"), ("two", batch("t", 50)), ("two", "abort"), ("two", "begin"))
        story.offsets["left open"] = broker.send("users", ("two", batch("t", 51)))
        story.broker_producers["killed"] = broker.producers("users")
        story.committed["killed"] = consumed(broker, "read_committed").records
        broker.kill()
    logs = lastword.open(broker.directory, "a", log_cleaner_enable=False)
    log = logs.dirs.log("users", 0)
    story.our_producers["killed"] = producer_rows(log)
    story.stable["killed"] = log.stable_offset
    story.committed["recovered"] = list(logs.topic("users").read())
    assert logs.topic("users").extend([(b"mine-1", b"again")], producer="mine", sequence=3) == 0
    assert logs.topic("users").extend([(b"mine-1", b"new")], producer="mine", sequence=4) == 1
    story.ends["killed"] = log.log_end
    logs.dirs.log_dir("users", 0).abandon()
    with broker:
        story.broker_producers["third"] = broker.producers("users")
        story.offsets["third"] = broker.send("users", ("plain", batch("p", 80)), ("two", "commit"))
        story.committed["third"] = consumed(broker, "read_committed").records
        broker.send("users", *((name, "close") for name in ("plain", "one", "two")))
    story.dumped = tools.dump_log(sorted(Path(broker.directory / "users-0").glob("*.log")))
    yield story


def test_we_find_the_producers_that_the_broker_knows(story: Story) -> None:
    assert len(story.broker_producers["first"]) == 3
    assert story.our_producers["first"] == story.broker_producers["first"]


def test_an_open_transaction_stays_undecided(story: Story) -> None:
    assert story.stable["first"] == story.open_at
    assert facts(story.committed["ours"]) == facts(story.committed["first"])
    assert facts(story.everything["ours"]) == facts(story.everything["first"])
    assert len(story.everything["first"]) > len(story.committed["first"])
    assert all(r.offset < story.open_at for r in story.committed["second"])


def test_the_broker_knows_the_same_after_us(story: Story) -> None:
    """The broker loads the snapshot beside lastword's clean-shutdown marker, with lastword's producers."""
    assert story.freed > 0
    assert story.our_producers["closed"][:-1] == story.broker_producers["first"]
    assert story.our_producers["closed"][-1]["id"] >= FIRST_NAMED_ID
    assert story.broker_producers["second"] == story.our_producers["closed"]
    assert "since clean shutdown file was found" in story.broker_log


def test_its_producers_go_on_with_their_old_ids(story: Story) -> None:
    end = story.ends["closed"]
    assert story.offsets["second"] == [end, end + 1, end + 2]
    before = {producer["id"]: producer for producer in story.broker_producers["first"]}
    after = {producer["id"]: producer for producer in story.broker_producers["killed"]}
    assert before.keys() <= after.keys()
    (plain,) = (i for i, producer in before.items() if producer["coordinator"] == -1)
    assert after[plain]["sequence"] == before[plain]["sequence"] + 2


def test_what_was_committed_after_us_is_there(story: Story) -> None:
    served = facts(story.committed["killed"])
    assert {story.open_at, story.ends["closed"] + 2} <= {offset for offset, _, _ in served}
    assert story.offsets["left open"][0] not in {offset for offset, _, _ in served}


def test_after_a_kill_we_find_the_same(story: Story) -> None:
    assert story.our_producers["killed"] == story.broker_producers["killed"]
    assert story.stable["killed"] == story.offsets["left open"][0]
    assert facts(story.committed["recovered"]) == facts(story.committed["killed"])


def test_after_a_kill_of_ours_the_broker_finds_the_same(story: Story) -> None:
    producers = {producer["id"]: producer for producer in story.broker_producers["third"]}
    for producer in story.broker_producers["killed"]:
        if producer["id"] < FIRST_NAMED_ID:
            assert producers[producer["id"]] == producer
    assert story.offsets["third"] == [story.ends["killed"]]
    assert story.offsets["left open"][0] in {r.offset for r in story.committed["third"]}
    assert complaints(story.dumped, emptied=True) == []
