"""Texts of topic settings and directories of several brokers, read by a real Kafka beside us."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lastword
from lastword.errors import ClusterDiffersError, NoPolicyError
from tests.support.exhaustive import stride
from tests.support.kafka import Broker, KafkaRecord, Tools
from tests.unit.kafka_texts import ask, judge, table, texts


def test_the_saved_answers_are_those_of_the_jars(tools: Tools) -> None:
    assert ask(tools, [row[:2] for row in table()]) == table()


def test_random_texts_are_read_as_kafka_reads_them(tools: Tools) -> None:
    for row in ask(tools, list(texts(7, 20_000 // stride(4)))):
        judge(*row)


def test_a_broker_whose_metadata_is_elsewhere(tools: Tools, tmp_path: Path) -> None:
    """An empty policy under a default of all brokers, and a negative size; without the metadata, nothing."""
    root = tmp_path / "data"
    with Broker(tools, root, settings={"log.segment.bytes": "1048576"}) as broker:
        broker.create_topic("kept", cleanup_policy="")
        broker.create_topic("sized", cleanup_policy="delete", retention_bytes="-7")
        broker.create_topic("table", cleanup_policy="compact", delete_retention_ms="5000")
        broker.alter("BROKER", "", log_cleanup_policy="compact", log_retention_bytes="1000000")
        for topic in ("kept", "sized", "table"):
            records = [KafkaRecord(b"%d" % (n % 3), bytes(1000)) for n in range(300)]
            for _ in range(10):
                broker.produce(topic, [records])
        assert broker.settings_of("kept")["cleanup.policy"] == ""
    metadata = broker.home / "metadata"
    before = {path: path.read_bytes() for path in metadata.rglob("*") if path.is_file()}
    for topic in ("kept", "sized", "table"):
        with lastword.open(root, "a", log_cleaner_enable=False) as logs:
            assert logs.clean() == logs.expire() == []
            with pytest.raises(NoPolicyError, match=r"__cluster_metadata-0"):
                logs.clean(topic)
    for place in (metadata, broker.home / "server.properties"):
        with lastword.open(root, "a", metadata=place, log_cleaner_enable=False) as logs:
            assert logs.topic("kept").config.cleanup_policy == frozenset()
            assert logs.topic("table").config.delete_retention_ms == 5000
            assert logs.expire() == []  # nothing has a limit of size, and no broker's default is used
            assert {round.topic for round in logs.clean()} <= {"table", "__consumer_offsets"}
            ends = {topic: len(list(logs.topic(topic).read())) for topic in ("kept", "sized", "table")}
    assert ends == {"kept": 3000, "sized": 3000, "table": 3}
    assert {path: path.read_bytes() for path in metadata.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "kafkas", "ours"),
    [
        (("cluster.id", "bbbbbbbbbbbbbbbbbbbbbb"), "Invalid cluster.id", "cluster.id"),
        (("node.id", "7"), "doesn't match previous node id", "node.id"),
        (("directory.id", None), "Duplicate directory ID", "directory.id"),
    ],
)
def test_directories_that_a_broker_refuses(
    tools: Tools, tmp_path: Path, change: tuple[str, str | None], kafkas: str, ours: str
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    both = {"log.dirs": f"{first},{second}"}
    second.mkdir()
    broker = Broker(tools, first, settings=both)
    with broker:
        pass
    name, value = change
    lines = dict(
        line.split("=", 1) for line in (second / "meta.properties").read_text().splitlines() if "=" in line
    )
    if value is None:
        theirs = (first / "meta.properties").read_text()
        value = next(line.split("=")[1] for line in theirs.splitlines() if line.startswith(name))
    lines[name] = value
    text = "#\n#Sat Nov 28 11:00:00 UTC 2026\n" + "".join(f"{k}={v}\n" for k, v in lines.items())
    (second / "meta.properties").write_text(text)
    with pytest.raises(RuntimeError) as refused:
        broker.start()
    assert kafkas in str(refused.value) and value in str(refused.value)
    shutil.rmtree(broker.home)
    for mode in ("r", "a"):
        with pytest.raises(ClusterDiffersError, match=ours) as caught:
            lastword.open([first, second], mode)
        assert value in caught.value.message
