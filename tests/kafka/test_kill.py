"""A broker that starts after lastword's cleaner was killed at any step keeps each key's newest record.

The cleaner is stopped before each of the calls by which a round changes the directory. The files left by
each stop become one partition of one topic, so that one start of the broker tests all steps.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.files import DEFAULT, Files
from lastword.partition.open import open_log
from lastword.records.batch import BatchBuilder
from lastword.records.record import RawRecord
from tests.fakes.recording import RecordingFiles, Stopped
from tests.kafka import traffic
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools, adopt
from tests.support.partitions import clean_partition, records_of

TOPIC = "stops"
CLOCK = ManualClock(traffic.START_MS + 3_600_000)
CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=9 << 10,
    index_interval_bytes=512,
    file_delete_delay_ms=0,
)


@dataclass
class Stops:
    """The records before the round and after it, and the records that the broker serves after each stop."""

    before: list[RawRecord]
    after: list[RawRecord]
    steps: list[str] = field(default_factory=list)
    served: dict[str, Consumed] = field(default_factory=dict)
    more_offsets: list[int] = field(default_factory=list)


def write(directory: Path) -> None:
    directory.mkdir(parents=True)
    log, _ = open_log(DEFAULT, str(directory), CONFIG, CLOCK)
    for batch in traffic.batches(traffic.updates(310, 170, 5)):
        builder = BatchBuilder()
        for r in batch:
            builder.append(r.timestamp, r.key, r.value, r.headers)
        log.append_batch(builder.build(0))
    log.close()


def clean(directory: Path, files: Files) -> None:
    clean_partition(directory, CONFIG, CLOCK, files=files)


@pytest.fixture(scope="module")
def stops(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Stops:
    root = tmp_path_factory.mktemp("kill")
    source, whole = root / f"{TOPIC}-0", root / "whole" / f"{TOPIC}-0"
    write(source)
    shutil.copytree(source, whole)
    recording = RecordingFiles(DEFAULT)
    clean(whole, recording)
    stops = Stops(records_of(source), records_of(whole))
    left = []
    for step, call in enumerate(recording.changes):
        if call.name == "unlink" and recording.changes[step - 1].name == "unlink":
            continue  # these files are not read any more: the first stop stands for all
        copy = root / f"stop-{step}" / f"{TOPIC}-0"
        shutil.copytree(source, copy)
        with pytest.raises(Stopped):
            clean(copy, RecordingFiles(DEFAULT, stop_at=step, torn=True))
        left.append(copy)
        stops.steps.append(f"{call.name} {Path(call.path).name}")
    broker = Broker(tools, root / "broker")
    with broker:
        broker.create_topic(TOPIC, partitions=len(left), cleanup_policy="compact")
    for number, copy in enumerate(left):
        adopt(broker.directory, f"{TOPIC}-{number}", copy)
    with broker:
        stops.served = broker.consume(TOPIC)
        sent = [KafkaRecord(b"more", b"", traffic.START_MS, partition=n) for n in range(len(left))]
        stops.more_offsets = broker.produce(TOPIC, [sent])
    return stops


def test_the_round_removes_most_records(stops: Stops) -> None:
    assert len(stops.after) < len(stops.before) / 2
    assert len(stops.steps) > 20, "a round changes the directory in more steps than this"


def test_the_newest_record_of_every_key_is_there_after_each_stop(stops: Stops) -> None:
    wanted = traffic.newest(stops.before)
    for number, step in enumerate(stops.steps):
        served = stops.served[f"{TOPIC}-{number}"]
        assert traffic.newest(served.records) == wanted, f"stopped before {step}"


def test_every_record_that_is_there_is_an_old_one_at_its_offset(stops: Stops) -> None:
    before = set(traffic.facts(stops.before))
    for name, consumed in stops.served.items():
        assert set(traffic.facts(consumed.records)) <= before, name
        assert consumed.end == stops.before[-1].offset + 1, name


def test_the_broker_appends_behind_the_old_end(stops: Stops) -> None:
    assert set(stops.more_offsets) == {stops.before[-1].offset + 1}
