"""The settings and groups of a real broker, read from its files while it runs and after it stopped."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import lastword
from lastword.config import TOPIC_SETTINGS
from lastword.records.internal import METADATA
from lastword.tools.dump import dump
from tests.golden.loader import case, partition_files
from tests.support.kafka import Broker, KafkaRecord, Tools
from tests.support.waiting import until

DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    METADATA: "--cluster-metadata-decoder",
}


@pytest.mark.parametrize("topic", DECODERS)
def test_kafkas_own_tool_decodes_the_same(topic: str, tools: Tools, tmp_path: Path) -> None:
    """Each field in the JSON of DumpLogSegments has the value that lastword decodes."""
    root = case("dir-clean").unpack(tmp_path)
    compared = 0
    for path in partition_files(root):
        if path.parent.name.rpartition("-")[0] == topic:
            printed = _payloads(tools.dump_log([path], "--deep-iteration", DECODERS[topic]))
            ours = {r.offset: r.decoded for batch in dump(path) for r in batch.records if r.decoded}
            assert set(ours) == set(printed)
            for offset, text in printed.items():
                compared += _compare(text, ours[offset])
    assert compared > 10


def _payloads(printed: str) -> dict[int, str]:
    lines = re.findall(r"^\| offset: (\d+) (.*)$", printed, re.MULTILINE)
    return {int(offset): text for offset, text in lines if "key: " in text or "payload: " in text}


def _compare(text: str, record) -> int:
    """Return how many values were compared; Kafka also prints defaults, lastword only fields that are set."""
    theirs: dict[str, object] = {}
    for part in re.findall(r"(?:key|payload): (\{.*?\})(?= payload: |$)", text):
        _flatten(json.loads(part), theirs)
    ours: dict[str, object] = {}
    _flatten({**record.key, **(record.value or {})}, ours)
    common = set(ours) & set(theirs)
    for name in common:
        assert str(ours[name]) == str(theirs[name]), (name, text)
    return len(common)


def _flatten(value: object, into: dict[str, object], name: str = "") -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, into, key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _flatten(inner, into, f"{name}.{number}")
    else:
        into[name] = value


def test_settings_and_groups_of_a_broker(tools: Tools, tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    settings = {"metadata.log.dir": str(directory), "metadata.log.max.record.bytes.between.snapshots": "2000"}
    topic_settings = {
        "users": {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": "0.25",
            "segment_bytes": "1048576",
        },
        "events": {"cleanup_policy": "delete", "retention_ms": "3600000"},
        "plain": {},
    }
    broker = Broker(tools, directory, settings)
    with broker:
        broker.create_topics(topic_settings)
        broker.produce("users", [[KafkaRecord(b"ada", b"%d" % n)] for n in range(20)])
        broker.commit("readers", "users", {0: 7})
        broker.alter("TOPIC", "users", delete_retention_ms="1234")
        broker.alter("TOPIC", "events", retention_ms=None, cleanup_policy="compact,delete")
        broker.alter("BROKER", "", log_retention_ms="7200000")
        for number in range(40):  # so that the broker writes a snapshot, and the log continues after it
            broker.alter("TOPIC", "plain", file_delete_delay_ms=str(60000 + number))
        broker_settings = {
            topic: broker.settings_of(topic) for topic in (*topic_settings, "__consumer_offsets")
        }
        until(lambda: _settings(directory, "plain") == _checked(broker_settings["plain"]))
        for topic, expected in broker_settings.items():  # beside the broker
            assert _settings(directory, topic) == _checked(expected), topic
    snapshots = list((directory / "__cluster_metadata-0").glob("*.checkpoint"))
    assert snapshots
    for topic, expected in broker_settings.items():
        assert _settings(directory, topic) == _checked(expected), topic

    with lastword.open(directory) as logs:
        assert logs.topic("plain").config.cleanup_policy is None  # the logs do not have the broker's default
        assert {plan.topic: plan.action for plan in logs.plan()}["plain"] == "keep"
    with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
        (result,) = logs.clean("users")  # this topic needs no explicit policy
        assert (result.records_read, result.records_kept) == (20, 1)
        logs.clean("__consumer_offsets")
        logs.set_config("users", delete_retention_ms="99s")  # the explicit setting wins
        assert logs.topic("users").config.delete_retention_ms == 99_000
    with broker:
        assert broker.consume("users")["users-0"].newest() == {b"ada": b"19"}
        broker.commit("readers", "users", {0: 20})
        broker.tools.ask("consume", bootstrap=broker.bootstrap, topics=["users"], isolation="read_committed")
    commits = [
        record.decoded.value["offset"]
        for path in partition_files(directory)
        if path.parent.name.startswith("__consumer_offsets")
        for batch in dump(path)
        for record in batch.records
        if record.decoded and record.decoded.type == "OffsetCommit" and record.decoded.value
    ]
    assert commits[-1] == 20


def _settings(directory: Path, topic: str) -> dict[str, object]:
    """Return the settings that come from the cluster's metadata."""
    with lastword.open(directory) as logs:
        if topic not in {t.name for t in logs.topics()}:
            return {}
        config = logs.topic(topic).config
        names = [name for name in TOPIC_SETTINGS if METADATA in config.source(name)]
        return {name: getattr(config, TOPIC_SETTINGS[name].keyword) for name in names}


def _checked(settings: dict[str, str]) -> dict[str, object]:
    return {
        name: TOPIC_SETTINGS[name].read(text) for name, text in settings.items() if name in TOPIC_SETTINGS
    }
