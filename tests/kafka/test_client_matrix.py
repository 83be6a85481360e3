"""Java's clients, Streams and Connect: each with every codec, isolation level and place of a gap.

All run in the one JVM of the session, against one server. `make clients` runs every cell. The test command
runs the readers whole, and for Streams, Connect and the producer a sample in which each codec, level and
place appears. `tests/server/test_matrix.py` has the clients of Python and kcat, `test_spark_source.py` Spark.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import lastword
from tests.server.gaps import CODECS, FAR, LEVELS, PLACES, Row, topic_with_gap, write_topics
from tests.support.exhaustive import stride
from tests.support.jars import KafkaJars
from tests.support.kafka import Clients, Counted, KafkaRecord, Tools
from tests.support.stores import log_for_clients

ALL = stride(2) == 1
KILLS = int(os.environ.get("LASTWORD_KILLS", "1"))
CELLS = [(codec, place) for codec in CODECS for place in PLACES]
SAMPLE = CELLS if ALL else [(codec, PLACES[number % 4]) for number, codec in enumerate(CODECS)]
READ = {f"read-{codec}-{place}": topic_with_gap(codec, place) for codec, place in CELLS}
CHANGED = {f"changed-{codec}-{place}": topic_with_gap(codec, place) for codec, place in SAMPLE}
COPIED = {f"copied-{codec}-{place}": topic_with_gap(codec, place) for codec, place in SAMPLE}
IN_THE_GAP = {"start": 3, "middle": 20, "end": 17, "far": 1 << 31}


@dataclass(frozen=True)
class Application:
    """An application of Streams: a store for each place, whose source and changelog have the gap there.

    The store `made` has a changelog that Streams creates.
    """

    guarantee: str
    codec: str
    codecs: tuple[str, ...]
    """The codec of the first batches, for each place."""

    @property
    def name(self) -> str:
        return f"{self.guarantee}-{self.codec}"

    @property
    def level(self) -> str:
        return "read_committed" if self.guarantee == "exactly_once_v2" else "read_uncommitted"

    @property
    def stores(self) -> dict[str, str]:
        """Return the source topic of each store."""
        return {store: f"words-{self.name}-{store}" for store in (*PLACES, "made")}

    def changelog(self, store: str) -> str:
        return f"{self.name}-{store}-changelog"


if ALL:
    APPLICATIONS = [
        Application(guarantee, codec, (codec,) * 4)
        for guarantee in ("exactly_once_v2", "at_least_once")
        for codec in CODECS
    ]
else:
    APPLICATIONS = [
        Application("exactly_once_v2", "lz4", CODECS[:4]),
        Application("at_least_once", "snappy", CODECS[1:]),
    ]
SOURCES = {
    app.stores[place]: topic_with_gap(codec, place)
    for app in APPLICATIONS
    for place, codec in (*zip(PLACES, app.codecs, strict=True), ("made", app.codec))
}
CHANGELOGS = {
    app.changelog(place): topic_with_gap(codec, place, lambda number: number.to_bytes(8, "big"))
    for app in APPLICATIONS
    for place, codec in zip(PLACES, app.codecs, strict=True)
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lastword.LogDir]:
    directory = tmp_path_factory.mktemp("matrix") / "data"
    write_topics(directory, READ | CHANGELOGS)
    write_topics(directory, CHANGED | COPIED | SOURCES, cleanup_policy="delete")
    with log_for_clients(directory, log_cleaner_enable=False) as logs:
        yield logs


@pytest.fixture(scope="module")
def java(tools: Tools, logs: lastword.LogDir) -> Iterator[Clients]:
    with lastword.serve(logs, "127.0.0.1:0") as server:
        yield Clients(tools, server.bootstrap_servers)


def consumed(java: Clients, *topics: str, level: str) -> dict[str, list[Row]]:
    partitions = java.consume(*topics, isolation=level)
    return {topic: [(r.offset, r.key, r.value) for r in partitions[f"{topic}-0"].records] for topic in topics}


# ------------------------------------------------------------------ consumer, producer, admin


@pytest.mark.parametrize("level", LEVELS)
def test_the_consumer_reads_each_codec_and_passes_each_gap(java: Clients, level: str) -> None:
    assert consumed(java, *READ, level=level) == {topic: made.rows[level] for topic, made in READ.items()}


@pytest.mark.parametrize("level", LEVELS)
def test_admin_gets_the_offsets_around_each_gap(java: Clients, level: str) -> None:
    for topic, found in java.offsets(*READ, isolation=level).items():
        assert (found["start"], found["end"]) == (0, READ[topic].end)
        assert found["newest"] in {row[0] for row in READ[topic].rows["read_uncommitted"]}


def test_the_producer_appends_behind_each_gap(java: Clients, logs: lastword.LogDir) -> None:
    for (codec, _), (topic, made) in zip(SAMPLE, CHANGED.items(), strict=True):
        sent = [KafkaRecord(b"k%d" % number, b"v" * 200) for number in range(3)]
        offsets = java.produce(topic, [sent], compression_type=codec)
        assert offsets == [made.end, made.end + 1, made.end + 2]
        rows: list[Row] = [(offset, r.key, r.value) for offset, r in zip(offsets, sent, strict=True)]
        for level in LEVELS:
            made.rows[level].extend(rows)
        *_, last = logs.dirs.log(topic, 0).segment_set
        assert [header.codec for header in last.headers()][-1] == CODECS.index(codec)
    for level in LEVELS:
        expected = {topic: made.rows[level] for topic, made in CHANGED.items()}
        assert consumed(java, *CHANGED, level=level) == expected


def test_records_are_deleted_up_to_an_offset_in_each_gap(java: Clients, tmp_path: Path) -> None:
    starts = {topic: IN_THE_GAP[place] for (_, place), topic in zip(SAMPLE, CHANGED, strict=True)}
    partitions = [{"topic": topic, "partition": 0, "offset": offset} for topic, offset in starts.items()]
    request = tmp_path / "records.json"
    request.write_text(json.dumps({"partitions": partitions, "version": 1}))
    printed = java.run("DeleteRecordsCommand", "--offset-json-file", str(request))
    for topic, offset in starts.items():
        assert f"partition: {topic}-0\tlow_watermark: {offset}" in printed
    for level in LEVELS:
        assert consumed(java, *CHANGED, level=level) == {
            topic: [row for row in made.rows[level] if row[0] >= starts[topic]]
            for topic, made in CHANGED.items()
        }
        assert {topic: o["start"] for topic, o in java.offsets(*CHANGED, isolation=level).items()} == starts


# ------------------------------------------------------------------ Streams


@pytest.mark.parametrize("application", APPLICATIONS, ids=lambda application: application.name)
def test_streams_restores_its_state_from_a_cleaned_changelog(
    java: Clients, logs: lastword.LogDir, tmp_path: Path, application: Application
) -> None:
    """The application starts from changelogs with gaps, counts, loses its stores in memory, and goes on.

    Before it goes on, our cleaner cleans its changelogs, whose aborted last batch is a gap at their end.
    """
    expected: dict[str, Counter[str]] = {}
    for store, topic in application.stores.items():
        newest: dict[str, int] = {}
        if store != "made":
            for _, key, value in CHANGELOGS[application.changelog(store)].rows[application.level]:
                newest[(key or b"").decode()] = int.from_bytes(value or b"", "big")
        expected[store] = +Counter(newest) + Counter(
            (key or b"").decode()
            for _, key, value in SOURCES[topic].rows[application.level]
            if value is not None
        )
    first = run(java, application, expected, tmp_path)
    assert {store: counted.counts for store, counted in first.items()} == expected
    for place in PLACES:
        rows = CHANGELOGS[application.changelog(place)].rows[application.level]
        assert first[place].restored == len(rows), place
    assert first["made"].restored == 0

    java.keep_producer(application.name, transactional_id=application.name)
    for store, topic in application.stores.items():
        changelog = application.changelog(store)
        aborted = (application.name, [KafkaRecord(b"a", (1000).to_bytes(8, "big"))])
        java.send(changelog, (application.name, "begin"), aborted, (application.name, "abort"))
        logs.dirs.log(changelog, 0).roll()
        logs.clean(changelog)
        java.produce(topic, [[KafkaRecord(b"a", b"x")] * 3], compression_type=application.codec)
        expected[store]["a"] += 3
        offsets = [record.offset for record in logs[changelog].read(isolation="read_uncommitted")]
        log = logs.dirs.log(changelog, 0)
        assert log.log_end > offsets[-1] + 2  # behind the last record: the aborted batch, its marker
        if store in PLACES:
            assert offsets[0] > (FAR if store == "far" else log.log_start)
            assert any(later > offset + 1 for offset, later in itertools.pairwise(offsets))
    java.send("", (application.name, "close"))
    kept = {store: len(list(logs[application.changelog(store)].read())) for store in expected}

    second = run(java, application, expected, tmp_path)
    assert {store: counted.counts for store, counted in second.items()} == expected
    assert {store: counted.restored for store, counted in second.items()} == kept
    made = logs[application.changelog("made")]
    assert made.config.cleanup_policy == {"compact"}
    headers = [header for segment in logs.dirs.log(made.name, 0).segment_set for header in segment.headers()]
    codecs = {header.codec for header in headers if not header.control and header.count}
    assert codecs == {CODECS.index(application.codec)}


def run(
    java: Clients, application: Application, expected: dict[str, Counter[str]], state: Path
) -> dict[str, Counted]:
    return java.count(
        application.name,
        application.stores,
        {store: sum(counts.values()) for store, counts in expected.items()},
        state=state,
        guarantee=application.guarantee,
        codec=application.codec,
    )


# ------------------------------------------------------------------ Connect


def test_connect_copies_files_through_topics_with_gaps(java: Clients, tmp_path: Path) -> None:
    """A file source appends behind each gap; two file sinks, one for each isolation level, read all."""
    strings = "org.apache.kafka.connect.storage.StringConverter"
    worker = {
        "key.converter": strings,
        "value.converter": strings,
        "offset.storage.file.filename": str(tmp_path / "offsets"),
        "listeners": "http://127.0.0.1:0",
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": "1000",
    }
    connector = "org.apache.kafka.connect.file.FileStream"
    connectors: dict[str, dict[str, str]] = {}
    expected: dict[Path, list[str]] = {}
    for (codec, _), (topic, made) in zip(SAMPLE, COPIED.items(), strict=True):
        source = tmp_path / f"{topic}.source"
        lines = [f"{topic} {number}" for number in range(20)]
        source.write_text("".join(f"{line}\n" for line in lines))
        connectors[f"source-{topic}"] = {
            "connector.class": f"{connector}SourceConnector",
            "file": str(source),
            "topic": topic,
            "producer.override.compression.type": codec,
        }
        for level in LEVELS:
            sink = tmp_path / f"{topic}.{level}"
            connectors[f"sink-{topic}-{level}"] = {
                "connector.class": f"{connector}SinkConnector",
                "file": str(sink),
                "topics": topic,
                "consumer.override.isolation.level": level,
            }
            values = ["null" if value is None else value.decode() for _, _, value in made.rows[level]]
            expected[sink] = values + lines
    java.copy_files(worker, connectors, {path: len(lines) for path, lines in expected.items()})
    assert {path.name: path.read_text().splitlines() for path in expected} == {
        path.name: lines for path, lines in expected.items()
    }


# ------------------------------------------------------------------ TransactionalMessageCopier


def test_the_message_copier_that_is_killed(java: Clients, kafka_jars: KafkaJars) -> None:
    """Copiers are killed in the middle, the last one aborts some transactions: each message is there once.

    Its topic has no gap: the tool takes the number of offsets for the number of messages.

    A copier that is killed between its commit of offsets and the end of its transaction leaves offsets that
    are not stable. The next copier waits at most 60 s for them, and only then would it end that transaction.
    So the server must end it earlier.
    """
    java.create_topics({"in": {}, "out": {}})
    size = 100 + 20 * KILLS
    for number, codec in enumerate(CODECS):
        records = [KafkaRecord(b"k", b"%d" % n) for n in range(number * size, (number + 1) * size)]
        java.produce("in", [records], compression_type=codec)
    options = ["--input-topic", "in", "--input-partition", "0", "--output-topic", "out"]
    options += ["--broker-list", java.bootstrap, "--consumer-group", "copiers"]
    options += ["--transaction-size", "20", "--transactional-id", "copier", "--use-group-metadata"]
    options += ["--transaction-timeout", "10000"]
    command = [*kafka_jars.command("org.apache.kafka.tools.TransactionalMessageCopier"), *options]
    chooser = random.Random(KILLS)
    for _ in range(KILLS):
        transactions = chooser.randrange(1, 6)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as copier:
            assert copier.stdout is not None
            for line in copier.stdout:
                transactions -= json.loads(line)["stage"] == "ProcessLoop"
                if not transactions:
                    break
            copier.kill()
        assert not transactions
    java.tools.run("TransactionalMessageCopier", *options, "--enable-random-aborts")
    copied = java.consume("out", isolation="read_committed")["out-0"]
    assert [record.value for record in copied.records] == [b"%d" % number for number in range(5 * size)]
    lag = java.run("consumer.group.ConsumerGroupCommand", "--describe", "--group", "copiers").splitlines()
    assert int(lag[-1].split()[3]) == 5 * size
