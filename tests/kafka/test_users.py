"""The broker runs as one user, the administrator's commands as root: the broker starts again and serves."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka import Broker, KafkaRecord, Tools, errors_of, metadata_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a broker as another user")

KEYS = [f"key{number}".encode() for number in range(20)]


@pytest.fixture
def broker(tools: Tools) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="lastword-broker-") as above:
        Path(above).chmod(0o755)
        nobody = pwd.getpwnam("nobody").pw_uid
        broker = Broker(tools, Path(above) / "logs", settings={"log.segment.bytes": "1048576"}, uid=nobody)
        try:
            yield broker
        finally:
            broker.kill()


def produce(broker: Broker, value: str) -> None:
    batches = [[KafkaRecord(key, f"{value}{n}".encode() * 50) for key in KEYS] for n in range(200)]
    broker.produce("users", batches)


def test_a_broker_of_another_user_serves_what_root_has_cleaned(broker: Broker) -> None:
    with broker:
        broker.create_topic("users", cleanup_policy="compact", segment_bytes=1 << 20)
        produce(broker, "old")
        produce(broker, "new")
    root = broker.directory
    for path in root.rglob("*"):
        path.chmod(0o750 if path.is_dir() else 0o640)  # narrower than root's umask
    before = sum(path.stat().st_size for path in root.glob("users-0/*.log"))
    for arguments in (
        ["append", root, "users", "key0", "ours"],
        ["clean", root, "users", "--metadata", metadata_of(root)],
        ["create", root, "orders", "--set", "cleanup.policy=compact"],
        ["drop", root, "orders", "--yes"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "lastword", *map(str, arguments)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert sum(path.stat().st_size for path in root.glob("users-0/*.log")) < before / 10, "it was cleaned"
    assert (root / ".kafka_cleanshutdown").exists()
    for path in root.rglob("*"):
        facts = path.stat()
        assert (facts.st_uid, facts.st_gid) == (broker.uid, broker.uid), path
        assert stat.S_IMODE(facts.st_mode) == (0o750 if path.is_dir() else 0o640), path
    with broker:
        assert errors_of(broker.log_text) == []
        newest = broker.consume("users")["users-0"].newest()
        assert newest == dict.fromkeys(KEYS, b"new199" * 50) | {b"key0": b"ours"}
        produce(broker, "again")
