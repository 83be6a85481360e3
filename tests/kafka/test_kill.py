"""A broker that starts after our cleaner was killed, at any step, keeps the newest record of every key.

The cleaner is stopped before each of the calls by which a round changes the directory. What is left each
time becomes one partition of one topic, so that a single start of the broker judges all steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lastword
from tests.doubles.recording import RecordingFiles, Stopped
from tests.kafka import traffic
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools, adopt

TOPIC = "stops"


@dataclass
class Stops:
    """What was there before, what the round would leave, and what the broker serves after each stop."""

    before: list[Any]
    after: list[Any]
    markers: list[Path] = field(default_factory=list)
    served: dict[str, Consumed] = field(default_factory=dict)
    more_offsets: dict[str, list[int]] = field(default_factory=dict)


def clean(directory: Path, files: RecordingFiles) -> None:
    with lastword.open(directory, "a", files=files, log_cleaner_enable=False) as logs:
        logs.clean(TOPIC)


@pytest.fixture(scope="module")
def stops(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stops]:
    root = tmp_path_factory.mktemp("kill")
    source = root / "source"
    with lastword.open(source, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            TOPIC,
            cleanup_policy="compact",
            segment_bytes=4 << 10,
            index_interval_bytes=512,
            file_delete_delay_ms=0,
        )
        traffic.append_all(topic, traffic.updates(300, 20, 5))
    whole = RecordingFiles()
    shutil.copytree(source, root / "whole")
    clean(root / "whole", whole)
    with lastword.open(source) as one, lastword.open(root / "whole") as two:
        told = Stops(list(one.topic(TOPIC).read()), list(two.topic(TOPIC).read()))
    left = []
    for step in range(len(whole.calls)):
        copy = root / f"stop-{step}"
        shutil.copytree(source, copy)
        with pytest.raises(Stopped):
            clean(copy, RecordingFiles(stop_at=step))
        left.append(copy)
        told.markers += copy.glob(".kafka_cleanshutdown")
    broker = Broker(tools, root / "broker")
    with broker:
        broker.create_topic(TOPIC, partitions=len(left), cleanup_policy="compact")
    for number, copy in enumerate(left):
        adopt(broker.directory, f"{TOPIC}-{number}", copy / f"{TOPIC}-0")
    with broker:
        told.served = broker.consume(TOPIC)
        sent = [KafkaRecord(b"more", b"", traffic.START_MS, partition=n) for n in range(len(left))]
        offsets = broker.produce(TOPIC, [sent])
        told.more_offsets = {f"{TOPIC}-{n}": [offset] for n, offset in enumerate(offsets)}
    yield told


def test_the_round_removes_most_records(stops: Stops) -> None:
    assert len(stops.after) < len(stops.before) / 5
    assert len(stops.served) > 20, "a round changes the directory in more steps than this"


def test_the_newest_record_of_every_key_is_there_after_each_stop(stops: Stops) -> None:
    wanted = traffic.newest(stops.before)
    lost = {
        name: sorted(wanted.keys() - traffic.newest(one.records).keys())
        for name, one in stops.served.items()
        if traffic.newest(one.records) != wanted
    }
    assert lost == {}


def test_every_record_that_is_there_is_an_old_one_at_its_offset(stops: Stops) -> None:
    before = set(traffic.facts(stops.before))
    for name, one in stops.served.items():
        assert set(traffic.facts(one.records)) <= before, name
        assert one.end == stops.before[-1].offset + 1, name


def test_the_broker_appends_behind_the_old_end(stops: Stops) -> None:
    assert set(map(tuple, stops.more_offsets.values())) == {(stops.before[-1].offset + 1,)}


def test_whoever_was_killed_left_no_marker(stops: Stops) -> None:
    """The first calls, before anything is changed, may still find the marker of the last clean close."""
    assert len(stops.markers) <= 2
