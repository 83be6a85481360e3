"""One directory used in turn by a real broker and lastword: each continues where the other stopped.

The fixture runs all steps once; each test checks one part of the result.

    broker    creates the topics, writes `theirs` in all codecs, stops cleanly
    lastword  writes topics `ours-<codec>`, cleans these and `theirs`, closes
    broker    serves all of it, takes more, stops
    lastword  reads all of it
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword import metrics
from lastword.api.monitoring import Monitor, Pass
from lastword.errors import LogDirLockedError
from tests.console.http import viewing
from tests.golden.loader import partition_files
from tests.kafka import traffic
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools, complaints, errors_of, metadata_of

OURS = tuple(f"ours-{codec}" for codec in traffic.CODECS)
OUR_UPDATES, OUR_KEYS = 1200, 60
MORE = [KafkaRecord(b"key-00003", b"after", traffic.START_MS), KafkaRecord(b"new", None, traffic.START_MS)]
SETTINGS: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": 16 << 10,
    "index_interval_bytes": 1024,
    "file_delete_delay_ms": 0,
}


@dataclass
class Story:
    """The results of the steps; records by partition name, as each side read them."""

    directory: Path
    closed: Path  # a copy, as lastword left the directory
    locked_out: LogDirLockedError | None = None
    read_beside_broker: dict[str, list[Any]] = field(default_factory=dict)
    measured: list[Pass] = field(default_factory=list)
    gauges: dict[str, float] = field(default_factory=dict)
    shown: list[dict[str, Any]] = field(default_factory=list)
    broker_refused: str = ""
    produced: dict[str, Consumed] = field(default_factory=dict)
    appended: dict[str, list[Any]] = field(default_factory=dict)
    cleaned: dict[str, list[Any]] = field(default_factory=dict)
    rounds: list[Any] = field(default_factory=list)
    broker_log: str = ""
    served: dict[str, Consumed] = field(default_factory=dict)
    served_more: dict[str, Consumed] = field(default_factory=dict)
    more_offsets: dict[str, list[int]] = field(default_factory=dict)
    read_at_last: dict[str, list[Any]] = field(default_factory=dict)


def read(logs: lastword.LogDir, *topics: str) -> dict[str, list[Any]]:
    records: dict[str, list[Any]] = {}
    for name in topics:
        topic = logs.topic(name)
        for number in range(topic.partitions):
            records[f"{name}-{number}"] = list(topic.read(partition=number))
    return records


@pytest.fixture(scope="module")
def story(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("broker")
    broker = Broker(tools, root / "logs")
    story = Story(broker.directory, root / "closed")
    with broker:
        kafka_settings = {"cleanup_policy": "compact", "internal_segment_bytes": 16 << 10}
        broker.create_topics(dict.fromkeys((*OURS, "theirs"), kafka_settings))
        for seed, codec in enumerate(traffic.CODECS):
            sent = list(traffic.batches(traffic.updates(400, 50, seed)))
            broker.produce("theirs", sent, compression_type=codec)
        story.produced = broker.consume("theirs")
        with contextlib.suppress(LogDirLockedError):
            try:
                lastword.open(broker.directory, "a").close()
            except LogDirLockedError as error:
                story.locked_out = error
                raise
        with lastword.open(broker.directory, metadata=metadata_of(broker.directory)) as logs:
            story.read_beside_broker = read(logs, "theirs")
            monitor = Monitor(logs.dirs)
            story.measured = [monitor.measure(), monitor.measure()]
            story.gauges["end"] = metrics.LOG_END_OFFSET.value("theirs", "0")
            story.gauges["size"] = metrics.LOG_SIZE_BYTES.value("theirs", "0")
            story.gauges["garbage"] = metrics.LOG_GARBAGE_BYTES.value("theirs", "0", "true")
            with viewing(logs) as viewer:
                viewer.get("/api/t/theirs/count")
                story.shown = viewer.get("/api/t/theirs")["partitions"]
    metadata = metadata_of(broker.directory)
    with lastword.open(broker.directory, "a", metadata=metadata, log_cleaner_enable=False) as logs:
        try:
            broker.start(seconds=30).kill()
        except RuntimeError as error:
            story.broker_refused = f"{error}\n{broker.log_text}"
        for seed, (name, codec) in enumerate(zip(OURS, traffic.CODECS, strict=True)):
            topic = logs.topic(name)
            topic.set_config(
                **SETTINGS,
                compression_type="uncompressed" if codec == "none" else codec,
                message_timestamp_type="LogAppendTime" if codec == "lz4" else "CreateTime",
            )
            traffic.append_all(topic, traffic.updates(OUR_UPDATES, OUR_KEYS, 100 + seed))
        logs.topic("theirs").set_config(**SETTINGS)
        story.appended = read(logs, *OURS)
        story.rounds = [done for name in (*OURS, "theirs") for done in logs.clean(name)]
        story.cleaned = read(logs, *OURS, "theirs")
    shutil.copytree(broker.directory, story.closed)
    with broker:
        story.broker_log = broker.log_text
        story.served = broker.consume(*OURS, "theirs")
        for name in (*OURS, "theirs"):
            story.more_offsets[f"{name}-0"] = broker.produce(name, [MORE])
        story.served_more = broker.consume(*OURS, "theirs")
    with lastword.open(broker.directory) as logs:
        story.read_at_last = read(logs, *OURS, "theirs")
    yield story


PARTITIONS = [f"{name}-0" for name in (*OURS, "theirs")]


def test_a_running_broker_keeps_writers_out(story: Story) -> None:
    assert story.locked_out is not None
    assert str(story.directory) in story.locked_out.message
    assert story.locked_out.exit_code == 4


def test_a_running_broker_lets_readers_look(story: Story) -> None:
    produced = story.produced["theirs-0"].records
    assert len(produced) == 400 * len(traffic.CODECS)
    assert traffic.facts(story.read_beside_broker["theirs-0"]) == traffic.facts(produced)


def test_the_exporter_and_the_page_beside_a_running_broker(story: Story) -> None:
    first, second = story.measured
    assert first.errors == second.errors == {} and first.partitions > len(OURS)
    assert first.read_bytes > 0 == second.read_bytes, "only what is new is read"
    (shown,) = story.shown
    assert shown["log_end"] == story.gauges["end"] == len(story.read_beside_broker["theirs-0"])
    assert shown["size_bytes"] == story.gauges["size"] and shown["exact"]
    assert (
        0 < story.gauges["garbage"] <= shown["garbage_bytes"]
    )  # the exporter does not read the active segment


def test_a_broker_does_not_start_where_we_write(story: Story) -> None:
    assert "ailed to acquire lock" in story.broker_refused


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_round_took_the_superseded_records(partition: str, story: Story) -> None:
    (done,) = [r for r in story.rounds if f"{r.topic}-{r.partition}" == partition]
    before = story.appended.get(partition) or story.produced[partition].records
    assert done.complete
    assert done.records_read == len(before)
    assert done.records_kept == len(story.cleaned[partition]) == len(traffic.newest(before))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_newest_record_of_every_key_is_unchanged(partition: str, story: Story) -> None:
    before = story.appended.get(partition) or story.produced[partition].records
    assert traffic.newest(story.served[partition].records) == traffic.newest(before)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_broker_serves_the_same_records_at_the_same_offsets(partition: str, story: Story) -> None:
    served = story.served[partition]
    assert traffic.facts(served.records) == traffic.facts(story.cleaned[partition])
    before = story.appended.get(partition) or story.produced[partition].records
    assert served.end == before[-1].offset + 1


@pytest.mark.parametrize("partition", PARTITIONS)
def test_appends_go_on_at_the_old_end(partition: str, story: Story) -> None:
    end = story.served[partition].end
    assert story.more_offsets[partition] == [end, end + 1]
    more = [(end + i, r.timestamp, r.key, r.value, r.headers) for i, r in enumerate(MORE)]
    assert traffic.facts(story.served_more[partition].records) == [
        *traffic.facts(story.cleaned[partition]),
        *more,
    ]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_we_read_on_what_the_broker_appended(partition: str, story: Story) -> None:
    assert traffic.facts(story.read_at_last[partition]) == traffic.facts(story.served_more[partition].records)


def test_the_broker_accepts_our_clean_shutdown(story: Story) -> None:
    """The broker recovers nothing, and lacks no file that it would have to rebuild."""
    assert (story.closed / ".kafka_cleanshutdown").exists()
    log = [line for line in story.broker_log.splitlines() if "__cluster_metadata" not in line]
    assert any("since clean shutdown file was found" in line for line in log)
    for word in ("Could not find offset index", "Recovering unflushed", "corrupt", "Rebuilding"):
        lines = [line for line in log if word in line]
        assert lines == [], word
    assert errors_of("\n".join(log)) == []


def test_what_our_clean_shutdown_promises_holds(story: Story, tools: Tools) -> None:
    """No torn tail, correct indexes, and a producer snapshot at the end of each log."""
    for partition in PARTITIONS:
        directory = story.closed / partition
        logs = partition_files(directory)
        indexes = partition_files(directory, ".index") + partition_files(directory, ".timeindex")
        assert len(indexes) == 2 * len(logs)
        kafka_wrote = partition.startswith(
            "theirs"
        )  # with producer ids, whose last batches stay, if only emptied
        printed = tools.dump_log([*logs, *indexes], "--deep-iteration")
        for check in ("--index-sanity-check", "--verify-index-only"):
            printed += tools.dump_log(indexes, check)
        printed += tools.dump_log(partition_files(directory, ".snapshot"))
        assert complaints(printed, emptied=kafka_wrote) == [], partition
        assert (directory / f"{story.served[partition].end:020d}.snapshot").exists(), partition
