"""Odd and torn batches beside Kafka's own recovery: Kafka never keeps more bytes than ours."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.crash.odd import KafkaRecovery, case, compare
from tests.support.exhaustive import stride
from tests.support.jars import KafkaJars


def test_kafka_never_keeps_more(kafka_jars: KafkaJars, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    kafka = KafkaRecovery(kafka_jars)
    try:
        for seed in range(0, 1000, stride(10)):
            outcome, fault = compare(case(seed), tmp_path / str(seed), kafka)
            assert not fault, (seed, fault)
            outcomes[outcome] += 1
    finally:
        kafka.close()
    assert outcomes["odd: refused, Kafka kept"] and outcomes["torn: cut, Kafka cut"], outcomes
