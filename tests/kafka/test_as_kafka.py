"""`explain --as kafka` beside Kafka's own cleaner, and a directory from which keys were erased.

broker     makes a topic for each cause, with its cleaner off; stops
lastword   answers for each topic; a segment is damaged, keys are erased
broker     runs its cleaner: the topics that are due are cleaned, the others are not; serves what was erased
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import lastword
from lastword.api.explaining import explain_as_kafka
from lastword.clock import ManualClock
from lastword.tools.as_kafka import KafkaVerdict
from tests.kafka.conftest import VERSIONS, jars_of
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools

HOUR_MS = 3_600_000
COMPACT = {"cleanup_policy": "compact", "segment_ms": "200"}
TOPICS: dict[str, dict[str, str]] = {
    "due": COMPACT,
    "ratio": COMPACT | {"min_cleanable_dirty_ratio": "1.0"},
    "lag": COMPACT | {"min_compaction_lag_ms": str(24 * HOUR_MS)},
    "future": COMPACT | {"min_compaction_lag_ms": "1"},
    "active": {"cleanup_policy": "compact"},
    "delete": {"cleanup_policy": "delete", "segment_ms": "200"},
    "broken": COMPACT | {"compression_type": "zstd"},
    "undecided": COMPACT,
    "erased": {"cleanup_policy": "compact"},
}
EXPECTED = {
    "due": "clean above-ratio",
    "ratio": "keep below-ratio",
    "lag": "keep compaction-lag",
    "future": "keep future-timestamp",
    "active": "keep active-segment",
    "delete": "keep no-policy",
    "empty": "keep empty-policy",
    "broken": "keep uncleanable",
    "undecided": "keep undecided-transaction",
}
CLEANED = {"due"}


@dataclass
class Case:
    verdicts: dict[str, KafkaVerdict] = field(default_factory=dict)
    later: dict[str, KafkaVerdict] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)
    served: dict[str, Consumed] = field(default_factory=dict)
    complete: bool = False
    log: str = ""


def verdicts(directory: Path, now_ms: int) -> dict[str, KafkaVerdict]:
    metadata = directory.with_name(directory.name + ".kafka") / "server.properties"
    with lastword.open(directory, clock=ManualClock(now_ms), metadata=metadata) as logs:
        failed: list[lastword.LastwordError] = []
        chosen = [(name, 0) for name in EXPECTED if name in logs.dirs.topics()]
        found = {verdict.topic: verdict for verdict in explain_as_kafka(logs.dirs, chosen, failed)}
        assert failed == []
        return found


def fill(broker: Broker, now_ms: int) -> None:
    """Write three rounds to each topic: three segments where segment.ms is short."""
    for number in range(3):
        for name in TOPICS:
            began = {"future": now_ms + 600_000, "lag": now_ms - 10_000}.get(name, now_ms - HOUR_MS)
            stamp = began + 1000 * number  # the timestamps of records decide when Kafka rolls
            keys = [b"key of %d" % (key % 5) for key in range(100)]
            batch = [KafkaRecord(key, b"value of a record %d" % number, stamp) for key in keys]
            if name == "undecided" and number == 0:
                broker.keep_producer("open", transactional_id="open", transaction_timeout_ms="600000")
                broker.send(name, ("open", "begin"), ("open", batch[:3]))
            broker.produce(name, [batch])


@pytest.fixture(scope="module", params=VERSIONS)
def case(request: pytest.FixtureRequest, tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Case:
    jars, case = jars_of(request.param), Case()
    root = tmp_path_factory.mktemp("as-kafka") / "logs"
    now_ms = int(time.time() * 1000)
    broker = Broker(tools, root, {"log.cleaner.enable": "false"}, jars=jars)
    with broker:
        topics = dict(TOPICS)
        if request.param == VERSIONS[0]:
            topics["empty"] = COMPACT | {"cleanup_policy": ""}
        broker.create_topics(topics)
        fill(broker, now_ms)
        if "empty" in topics:
            broker.produce("empty", [[KafkaRecord(b"k", b"v")]])
    log = sorted((root / "broken-0").glob("*.log"))[0]
    data = bytearray(log.read_bytes())
    data[70:90] = bytes(20)
    log.write_bytes(data)
    now_ms = int(time.time() * 1000)
    case.verdicts, case.later = verdicts(root, now_ms), verdicts(root, now_ms + HOUR_MS // 2)
    with lastword.open(root, "a", metadata=broker.home / "server.properties") as logs:
        done = logs.topic("erased").erase([b"key of 1", b"key of 2"], now=True)
        case.complete = done.complete
    broker.settings = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "100"}
    broker.settings |= {"log.cleaner.dedupe.buffer.size": "2097152"}
    checkpoint = root / "cleaner-offset-checkpoint"
    with broker:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (checkpoint.exists() and "due 0" in checkpoint.read_text()):
            time.sleep(0.1)
        time.sleep(1.5)  # several checks of the cleaner
        case.log = broker.log_text
        case.served = broker.consume("erased")
        broker.produce("erased", [[KafkaRecord(b"key of 1", b"again")]])
        case.served |= {f"{name} again": seen for name, seen in broker.consume("erased").items()}
    lines = checkpoint.read_text().splitlines()[2:]
    case.checkpoints = {line.split()[0]: int(line.split()[2]) for line in lines}
    return case


def test_each_cause_has_its_answer_and_the_cleaner_does_as_it_says(case: Case) -> None:
    found = {name: f"{v.action} {v.reasons[0].code}" for name, v in case.verdicts.items()}
    assert found == {name: EXPECTED[name] for name in case.verdicts}
    cleaned = {
        name for name in case.verdicts if case.checkpoints.get(name, 0) > case.verdicts[name].first_dirty
    }
    assert cleaned == CLEANED
    assert "broken-0" in case.log  # the cleaner names the partition that it sets aside


def test_the_cleaner_that_was_off_looks_dead(case: Case) -> None:
    assert "idle-cleaner" in [reason.code for reason in case.later["due"].reasons]
    assert "idle-cleaner" not in [reason.code for reason in case.verdicts["due"].reasons]


def test_the_settings_are_those_of_the_cluster(case: Case) -> None:
    assert case.verdicts["ratio"].settings["min.cleanable.dirty.ratio"][0] == "1.0"
    assert case.verdicts["future"].reasons[0].numbers["min_compaction_lag_ms"] == 1


def test_a_broker_serves_a_directory_from_which_keys_were_erased(case: Case) -> None:
    assert case.complete
    seen = case.served["erased-0"]
    assert {record.key for record in seen.records} == {b"key of 0", b"key of 3", b"key of 4"}
    assert (len(seen.records), seen.end) == (3, 302)  # its own cleaner has cleaned it, too
    again = case.served["erased-0 again"]
    assert (again.records[-1].offset, again.records[-1].value) == (302, b"again")
