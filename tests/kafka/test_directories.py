"""A broker with two log.dirs and lastword in turn: spread partitions, trimmed, expired and moved logs.

broker    creates the topics over both directories, writes, stops cleanly
lastword  opens both as one, trims, expires, moves a partition, and dies without closing
broker    serves what is left from the new log starts, takes more, stops
lastword  reads all of it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lastword
from tests.kafka.conftest import VERSIONS, jars_of
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools, errors_of

COUNT = 60
START_MS = 1_700_000_000_000
TOPICS = ("trimmed", "expired", "moved", "spread")
MORE = [KafkaRecord(b"after", b"it", START_MS)]


def batches(partition: int = 0) -> list[list[KafkaRecord]]:
    return [
        [KafkaRecord(b"k%d" % n, b"v%d" % n + b"." * 400, START_MS + n, partition=partition)]
        for n in range(COUNT)
    ]


@dataclass
class Story:
    homes: dict[str, str] = field(default_factory=dict)
    homes_after: dict[str, str] = field(default_factory=dict)
    read: dict[str, list[Any]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    served: dict[str, Consumed] = field(default_factory=dict)
    more: dict[str, list[int]] = field(default_factory=dict)
    read_at_last: dict[str, list[Any]] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    broker_log: str = ""


def read(logs: lastword.LogDir) -> dict[str, list[Any]]:
    return {
        f"{name}-{partition}": [
            (r.offset, r.key, r.value) for r in logs.topic(name).read(partition=partition)
        ]
        for name in TOPICS
        for partition in range(logs.topic(name).partitions)
    }


def homes(logs: lastword.LogDir) -> dict[str, str]:
    return {
        f"{name}-{number}": Path(home.path).name
        for name, numbers in logs.dirs.topics().items()
        if name in TOPICS
        for number, home in numbers.items()
    }


@pytest.fixture(scope="module", params=VERSIONS)
def story(
    request: pytest.FixtureRequest, tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    jars = jars_of(request.param)
    root = tmp_path_factory.mktemp("jbod")
    roots = [root / "d1", root / "d2"]
    broker = Broker(tools, roots[0], {"log.dirs": ",".join(str(log_dir) for log_dir in roots)}, jars=jars)
    roots[1].mkdir()
    story = Story()
    with broker:
        settings = {"cleanup_policy": "delete", "retention_ms": -1, "internal_segment_bytes": 4 << 10}
        broker.create_topics(dict.fromkeys(TOPICS[:3], settings) | {"spread": settings | {"partitions": 4}})
        for name in TOPICS[:3]:
            broker.produce(name, batches())
        for partition in range(4):
            broker.produce("spread", batches(partition))
    logs = lastword.open(roots, "a")
    story.homes = homes(logs)
    logs.topic("trimmed").trim(25)
    logs.topic("expired").set_config(cleanup_policy="delete", retention_ms=-1, retention_bytes="8KiB")
    logs.expire("expired")
    other = next(str(log_dir) for log_dir in roots if log_dir.name != story.homes["moved-0"])
    logs.move("moved", 0, other)
    logs.topic("moved").append(b"ours", b"appended where it is now", timestamp=START_MS, ack="disk")
    logs.sync()
    story.homes_after = homes(logs)
    story.read = read(logs)
    story.starts = {
        f"{name}-{number}": start
        for name in TOPICS
        for number, (start, _) in logs.topic(name).bounds().items()
    }
    for directory in logs.dirs.directories:
        directory.abandon()  # as after a killed process: `.deleted` files and directories remain
    with broker:
        story.served = broker.consume(*TOPICS)
        for name in TOPICS:
            story.more[name] = broker.produce(name, [MORE])
    story.broker_log = broker.log_text
    story.strays = [
        path.name for log_dir in roots for path in log_dir.iterdir() if path.name.endswith("-stray")
    ]
    with lastword.open(roots) as logs:
        story.read_at_last = read(logs)
    yield story


def test_a_broker_spreads_partitions_and_so_do_we(story: Story) -> None:
    assert set(story.homes.values()) == {"d1", "d2"}
    assert story.homes_after == story.homes | {"moved-0": story.homes_after["moved-0"]}
    assert story.homes_after["moved-0"] != story.homes["moved-0"]


def test_log_starts_are_honoured(story: Story) -> None:
    assert story.starts["trimmed-0"] == 25 and 0 < story.starts["expired-0"] < COUNT
    assert {name: consumed.start for name, consumed in story.served.items()} == story.starts


def test_the_same_records_at_the_same_offsets(story: Story) -> None:
    for name, records in story.read.items():
        assert [(r.offset, r.key, r.value) for r in story.served[name].records] == records, name
    assert story.read["moved-0"][-1][1] == b"ours" and len(story.read["moved-0"]) == COUNT + 1


def test_appends_go_on_and_nothing_is_set_aside(story: Story) -> None:
    for name in TOPICS:
        assert story.more[name] == [story.served[f"{name}-0"].end]
    assert story.strays == []
    # A broker may name its directories to the controller before it is registered, and tries again.
    ignored = ["Could not find offset index", "STALE_BROKER_EPOCH. Retrying"]
    assert errors_of(story.broker_log, ignored=ignored) == []


def test_we_read_on(story: Story) -> None:
    for name in TOPICS:
        assert story.read_at_last[f"{name}-0"] == [
            *story.read[f"{name}-0"],
            (story.more[name][0], b"after", b"it"),
        ]
