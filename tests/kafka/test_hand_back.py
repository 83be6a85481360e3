"""A log that was cleaned in parts goes back to Kafka: its cleaner takes over, no deleted key comes back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import lastword
from lastword.cleaner.drive import Place, look, rewrite
from lastword.cleaner.runs import Columns
from lastword.logdir import TopicPartition
from tests.support.kafka import Broker, KafkaRecord, Tools

T = TopicPartition("t", 0)
CONFIG = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": 0.001,
    "delete_retention_ms": 0,
    "segment_ms": 1000,
}


def checkpoint(root: Path) -> int:
    lines = (root / "cleaner-offset-checkpoint").read_text().split("\n")
    return next((int(line.split()[2]) for line in lines if line.startswith("t 0 ")), -1)


def cleaned_to(root: Path, offset: int, seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if checkpoint(root) >= offset:
            return True
        time.sleep(0.2)
    return False


@pytest.mark.kafka
@pytest.mark.slow
def test_no_deleted_key_comes_back(tools: Tools, tmp_path: Path) -> None:
    cleaning = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "200"}
    broker = Broker(tools, tmp_path / "logs", cleaning)
    with broker:
        broker.create_topics({"t": CONFIG})
    with lastword.open(broker.directory, "a", log_cleaner_enable=False) as logs:
        topic = logs.topic("t")
        topic.set_config(**CONFIG, lastword_strategy="generational")
        log = logs._log("t", 0)
        topic.extend([(b"gone", b"old"), *((b"a%d" % n, b"v") for n in range(50))], partition=0)
        log.roll()
        topic.extend([(b"b%d" % (n % 5), b"v") for n in range(50)], partition=0)
        log.roll()
        topic.append(b"gone", None, partition=0)
        topic.extend([(b"c%d" % (n % 5), b"v") for n in range(50)], partition=0)
        log.roll()
        place = Place(T, logs._home("t", 0))
        seen = look([place], "d", now_ms=logs._clock.now_ms(), space_target=1.5)
        account = seen.partitions[0]
        assert [one.dead_bytes > 0 for one in account.segments] == [True, True, True]
        behind = Columns.of(account, seen.t, 0.0).run(account, 1, 2, 0.0)  # and not the old value's segment
        with place.home.claim("t", 0):
            done = rewrite(place, behind)
        assert done is not None and done.removed.superseded == 90
        held = [(r.key, r.value) for r in topic.read() if r.key == b"gone"]
        assert held == [(b"gone", b"old"), (b"gone", None)]
        assert sum(r.key[:1] in b"bc" for r in topic.read()) == 10
        end = log.log_end
    assert checkpoint(broker.directory) <= 101, "never above the lowest killer of what is dead on disk"
    with broker:
        for number in range(2):
            broker.produce("t", [[KafkaRecord(b"d%d" % number, b"v", int(time.time() * 1000))]])
            time.sleep(1.5)
            broker.produce("t", [[KafkaRecord(b"e%d" % number, b"v", int(time.time() * 1000))]])
            assert cleaned_to(broker.directory, end + 2 * number + 1)
    with lastword.open(broker.directory) as logs:
        left = [(r.key, r.value) for r in logs.topic("t").read() if r.key == b"gone"]
        assert left in ([], [(b"gone", None)])
        assert {r.key for r in logs.topic("t").read()} >= {b"a7", b"b3", b"c4", b"d0", b"e1"}
