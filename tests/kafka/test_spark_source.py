"""Spark's Kafka source and lastword's read the same topics and give the same rows, option by option.

Kafka's source exists for PySpark 4.2 at the newest; lastword's runs on the PySpark that is installed. Each
runs in its own process with one real broker; lastword's source reads the broker's directory while it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bench.spark_rival import Rival

import lastword
from lastword.testing.unsynced import UNSYNCED
from tests.kafka.spark_job import text
from tests.kafka.traffic import START_MS, batches, updates
from tests.server.gaps import CODECS, LEVELS, PLACES, Row, topic_with_gap, write_topics
from tests.support.exhaustive import stride
from tests.support.jars import KafkaMissing, must_not_skip
from tests.support.kafka import Broker, KafkaRecord, Tools

pytestmark = pytest.mark.beside

JOB = Path(__file__).with_name("spark_job.py")
PARTITIONS = ((0, 120), (1, 70), (2, 90))
LATE_MS = START_MS + 10_000_000


def case(name: str, *, stream: bool = False, committed: bool = False, **options: str) -> dict[str, Any]:
    if not {"subscribe", "assign", "subscribePattern"} & set(options) and options.pop("topics", "") != "none":
        options["subscribe"] = "p"
    return {"name": name, "stream": stream, "committed": committed, "options": options}


def offsets(**partitions: int) -> str:
    return json.dumps({"p": {name[1:]: offset for name, offset in partitions.items()}})


SAME = [
    case("every record"),
    case("two topics", subscribe="p,q"),
    case("assign", assign='{"p":[0,2]}'),
    case("pattern", subscribePattern="[pq]"),
    case("a pattern that nothing matches", subscribePattern="none-.*"),
    case("a pattern that matches a broker's own topics", subscribePattern=".*"),
    case("headers", includeHeaders="true"),
    case("offsets", startingOffsets=offsets(p0=5, p1=-2, p2=3), endingOffsets=offsets(p0=20, p1=-1, p2=3)),
    case("earliest to latest", startingOffsets="earliest", endingOffsets="latest"),
    case("times", startingTimestamp=str(START_MS + 3000), endingTimestamp=str(START_MS + 9000)),
    case(
        "times by partition",
        startingOffsetsByTimestamp=offsets(p0=START_MS + 1000, p1=START_MS, p2=START_MS + 5000),
        endingOffsetsByTimestamp=offsets(p0=START_MS + 9000, p1=START_MS + 8000, p2=LATE_MS),
    ),
    case("a time wins over offsets", startingTimestamp=str(START_MS + 6000), startingOffsets="earliest"),
    case(
        "a time after every record, strategy latest",
        startingTimestamp=str(LATE_MS),
        startingOffsetsByTimestampStrategy="latest",
    ),
    case("many partitions", minPartitions="9"),
    case("few records in each task", maxRecordsPerPartition="7"),
    case("both limits", maxRecordsPerPartition="20", minPartitions="5"),
    case("failOnDataLoss=false", failOnDataLoss="false"),
    case("transactions, uncommitted", subscribe="tx"),
    case("transactions, committed", committed=True, subscribe="tx"),
    case("stream", stream=True, startingOffsets="earliest"),
    case("stream, headers", stream=True, startingOffsets="earliest", includeHeaders="true", subscribe="q"),
    case("stream from the end", stream=True),
    case("stream from offsets", stream=True, startingOffsets=offsets(p0=30, p1=-2, p2=-1)),
    case("stream from a time", stream=True, startingTimestamp=str(START_MS + 6000)),
    case("stream in small batches", stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="50"),
    case(
        "stream with a minimum",
        stream=True,
        startingOffsets="earliest",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="1s",
    ),
    case("stream of transactions", stream=True, committed=True, startingOffsets="earliest", subscribe="tx"),
]
STREAMS = [case for case in SAME if case["stream"]]
BATCHES = [case for case in SAME if not case["stream"]]
ALWAYS = {"every record", "two topics", "transactions, uncommitted", "transactions, committed"}
SAME = [
    *(case for at, case in enumerate(BATCHES) if case["name"] in ALWAYS or at % stride(4) == 0),
    *STREAMS[5 % stride(4) :: stride(4)],  # always the sixth stream: small batches
]

REFUSED = [
    case("no topic", topics="none"),
    case("two choices", subscribe="p", assign='{"p":[0]}'),
    case("an unknown topic", subscribe="nothing"),
    case("batch from latest", startingOffsets="latest"),
    case("batch from -1", startingOffsets=offsets(p0=-1, p1=0, p2=0)),
    case("batch to earliest", endingOffsets="earliest"),
    case("batch to -2", endingOffsets=offsets(p0=-2, p1=1, p2=1)),
    case("a partition is missing", startingOffsets=offsets(p0=0, p1=0)),
    case("a partition too many", startingOffsets=offsets(p0=0, p1=0, p2=0, p3=0)),
    case("no JSON", startingOffsets="{p}"),
    case("a time after every record", startingTimestamp=str(LATE_MS)),
    case("minimum above maximum", stream=True, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="3"),
    case("a stream with an end", stream=True, endingOffsets="latest"),
    case("no number", minPartitions="many"),
    case("an option of the client that takes the source's place", **{"kafka.auto.offset.reset": "earliest"}),
]


REFUSED = REFUSED[:: stride(3)]

SERVED = [
    case("served: every record", includeHeaders="true"),
    case(
        "served: offsets",
        startingOffsets=offsets(p0=5, p1=-2, p2=3),
        endingOffsets=offsets(p0=20, p1=-1, p2=3),
    ),
    case("served: stream", stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="50"),
]
"""Reads of lastword's server with Kafka's source, after Kafka's sink copied the topic `p` to the server."""

GAPS = {f"gap-{codec}-{place}": topic_with_gap(codec, place) for codec in CODECS for place in PLACES}
APPENDED = list(GAPS)[:: stride(3)]  # each codec, each place
APPENDS = [
    case(f"append {topic}", subscribe="r", includeHeaders="true")
    | {"topic": topic, "codec": topic.split("-")[1]}
    for topic in APPENDED
]
"""Appends of Kafka's sink, with the topic's codec, behind the gaps."""
PASSES = [
    case(f"{name}, {level}", committed=level == "read_committed", stream=name == "stream", **options)
    for name, options in {
        "batch": {"subscribePattern": "gap-.*"},
        "split batch": {"subscribePattern": "gap-.*-(start|middle|far)", "minPartitions": "40"},
        "stream": {"subscribePattern": "gap-.*", "startingOffsets": "earliest"},
    }.items()
    for level in LEVELS
]
PASSES = [*PASSES[:2], *PASSES[2 :: stride(3)]]
"""Reads of every codec and gap, after the appends."""


@pytest.fixture(scope="module")
def answers(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield {source: {case: its printed result}}, and the codec of the last batch of each topic."""
    try:
        rival = Rival.find_or_install()
    except KafkaMissing as missing:
        if must_not_skip(missing):
            raise
        pytest.skip(str(missing))
    directory = tmp_path_factory.mktemp("parity") / "data"
    with Broker(tools, directory) as broker:
        broker.create_topic("p", 3)
        broker.create_topic("q", 1, message_timestamp_type="LogAppendTime")
        broker.create_topic("r", 1)
        broker.produce("r", [[KafkaRecord(b"k", b"appended")] * 3])
        broker.create_topic("tx", 1)
        for partition, count in PARTITIONS:
            broker.produce("p", [_placed(part, partition) for part in batches(updates(count, 20, partition))])
        for codec in ("none", "zstd", "lz4", "gzip", "snappy"):
            broker.produce("q", [updates(15, 5, 7)], compression_type=codec)
        broker.keep_producer("a", transactional_id="a")
        rows = updates(40, 9, 11)
        broker.send("tx", ("a", "begin"), ("a", rows[:10]), ("a", "commit"))
        broker.send("tx", ("a", "begin"), ("a", rows[10:20]), ("a", "abort"))
        broker.send("tx", ("a", "begin"), ("a", rows[20:30]), ("a", "commit"), ("a", "close"))
        served_directory = tmp_path_factory.mktemp("served")
        write_topics(served_directory, GAPS, cleanup_policy="delete")
        with (
            lastword.open(served_directory, "a", files=UNSYNCED, log_cleaner_enable=False) as logs,
            lastword.serve(logs, "127.0.0.1:0") as server,
            ThreadPoolExecutor() as pool,
        ):
            logs.create_topic("p", 3)
            address = server.bootstrap_servers
            copy = case("copy", includeHeaders="true") | {"to": address}
            served = [copy, *(case | {"address": address} for case in SERVED)]
            served += [case | {"to": address} for case in APPENDS]
            served += [case | {"address": address} for case in PASSES]
            arguments = (str(rival.python), "kafka", broker.bootstrap, str(rival.jars))
            kafka = pool.submit(_run, *arguments, SAME + REFUSED + served)
            ours = pool.submit(_run, sys.executable, "lastword", str(directory), "-", SAME + REFUSED)
            results = {"kafka": kafka.result(), "lastword": ours.result(), "codecs": {}}
            for topic in APPENDED:
                *_, last = logs.dirs.log(topic, 0).segment_set
                results["codecs"][topic] = [header.codec for header in last.headers()][-1]
            yield results


def _placed(records: Any, partition: int) -> list[KafkaRecord]:
    from dataclasses import replace

    return [replace(record, partition=partition) for record in records]


def _run(python: str, source: str, address: str, jars: str, asked: list[dict[str, Any]]) -> dict[str, Any]:
    levels = ("read_uncommitted", "read_committed")
    cases = [
        {**case, "options": {**case["options"], "kafka.isolation.level": levels[case["committed"]]}}
        for case in asked
    ]
    env = {
        **os.environ,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    env.pop("SPARK_HOME", None)
    done = subprocess.run(
        [python, str(JOB), source, address, jars],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env=env,
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(results) == len(cases), f"{source} ended with {done.returncode}: {done.stderr[-3000:]}"
    return {result["name"]: result for result in results}


@pytest.mark.slow
@pytest.mark.parametrize("name", [case["name"] for case in SAME])
def test_both_give_the_same_rows(answers: dict[str, dict[str, Any]], name: str) -> None:
    kafka, ours = answers["kafka"][name], answers["lastword"][name]
    assert "error" not in kafka, kafka
    assert ours == kafka


@pytest.mark.slow
@pytest.mark.parametrize("name", [case["name"] for case in REFUSED])
def test_both_refuse(answers: dict[str, dict[str, Any]], name: str) -> None:
    kafka, ours = answers["kafka"][name], answers["lastword"][name]
    assert "error" in kafka, kafka
    assert "error" in ours and "lastword" in ours["error"], ours


@pytest.mark.slow
@pytest.mark.parametrize("name", [case["name"] for case in SERVED])
def test_kafkas_sink_and_source_work_with_the_server(answers: dict[str, dict[str, Any]], name: str) -> None:
    """The rows are those that the broker got, besides the time, which the sink cannot set."""
    assert answers["kafka"]["copy"] == {"name": "copy"}
    result = answers["kafka"][name]
    rows = [row for batch in result["batches"] for row in batch]
    sent = {number: updates(count, 20, number) for number, count in PARTITIONS}
    for topic, number, offset, _, _, key, value, headers in rows:
        record = sent[number][offset]
        assert (topic, key, value) == ("p", text(record.key), text(record.value))
        if name == "served: every record":
            assert headers == ([[name, text(data)] for name, data in record.headers] or None)
    places = {(row[1], row[2]) for row in rows}
    assert len(places) == len(rows) == {"served: offsets": 15 + 70}.get(name, 280)


@pytest.mark.slow
@pytest.mark.parametrize("name", [case["name"] for case in PASSES])
def test_kafkas_source_reads_each_codec_and_passes_each_gap(
    answers: dict[str, dict[str, Any]], name: str
) -> None:
    for case in APPENDS:
        assert answers["kafka"][case["name"]] == {"name": case["name"]}
        assert CODECS[answers["codecs"][case["topic"]]] == case["codec"]
    kind, level = name.split(", ")
    expected: dict[str, list[Row]] = {}
    for topic, made in GAPS.items():
        if kind != "split batch" or not topic.endswith("-end"):
            expected[topic] = list(made.rows[level])
            if topic in APPENDED:
                expected[topic] += [(made.end + number, b"k", b"appended") for number in range(3)]
    result = answers["kafka"][name]
    assert "error" not in result, result
    read: dict[str, list[list[Any]]] = {topic: [] for topic in expected}
    for batch in result["batches"]:
        for topic, _, offset, _, _, key, value, _ in batch:
            read[topic].append([offset, key, value])
    assert read == {
        topic: [[offset, text(key), text(value)] for offset, key, value in rows]
        for topic, rows in expected.items()
    }


@pytest.mark.slow
def test_the_cases_have_rows(answers: dict[str, dict[str, Any]]) -> None:
    """A source that returns no rows would pass every comparison."""
    rows = {name: sum(map(len, result.get("batches", []))) for name, result in answers["lastword"].items()}
    assert rows["every record"] == 280 and rows["two topics"] == 280 + 75
    assert rows["transactions, committed"] == 20 and rows["transactions, uncommitted"] == 30
    assert len(answers["lastword"]["stream in small batches"]["batches"]) > 4
