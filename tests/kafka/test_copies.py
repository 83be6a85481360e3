"""A broker's directory is copied to a bucket, cleaned there, and copied back for the broker."""

from __future__ import annotations

from pathlib import Path

import lastword
from tests.support.kafka import Broker, KafkaRecord, Tools, errors_of

START_MS = 1_700_000_000_000
BUCKET = "memory://kafka-copies/log"
RECORDS = [KafkaRecord(b"k%d" % (n % 20), b"v%d" % n + b"." * 300, START_MS + n) for n in range(120)]


def test_a_copy_that_comes_back_is_served(tools: Tools, tmp_path: Path) -> None:
    root = tmp_path / "broker"
    with Broker(tools, root) as broker:
        settings = {"cleanup_policy": "compact", "internal_segment_bytes": 4 << 10, "partitions": 2}
        broker.create_topics({"users": settings})
        broker.produce("users", [RECORDS[first : first + 8] for first in range(0, len(RECORDS), 8)])
    lastword.copy(root, BUCKET, "users", verify=True)
    with lastword.open(BUCKET, "a", log_cleaner_enable=False, lastword_commit_linger_ms=0) as logs:
        users = logs["users"]
        users.set_config(cleanup_policy="compact")
        assert sum(result.freed_bytes for result in logs.clean("users")) > 0
        users.append(b"k1", None, partition=0, timestamp=START_MS)
        records = [(r.partition, r.offset, r.timestamp, r.key, r.value) for r in users.read()]
    lastword.copy(BUCKET, root, "users", verify=True)
    with broker:
        served = broker.consume("users")
        appended = broker.produce("users", [[KafkaRecord(b"after", b"it", START_MS)]])
    assert [
        (partition, r.offset, r.timestamp, r.key, r.value)
        for partition in range(2)
        for r in served[f"users-{partition}"].records
    ] == records
    assert appended == [served["users-0"].end]
    assert errors_of(broker.log_text, ignored=["Could not find offset index"]) == []
    with lastword.open(root) as logs:
        assert logs.verify().ok
