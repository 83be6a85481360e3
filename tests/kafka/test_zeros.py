"""A writer of synced records is killed: a broker cuts the zeros behind its log, and goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lastword
from tests.support.kafka import Broker, KafkaRecord, Tools, errors_of

START_MS = 1_700_000_000_000
COUNT = 50
WRITER = f"""
import os, signal, sys
import lastword
logs = lastword.open(sys.argv[1], "a", log_cleaner_enable=False)
for number in range({COUNT}):
    logs["users"].append(b"k%d" % number, b"v", timestamp={START_MS}, ack="disk")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_broker_takes_over_from_a_killed_writer(tools: Tools, tmp_path: Path) -> None:
    root = tmp_path / "broker"
    with Broker(tools, root) as broker:
        broker.create_topics({"users": {"cleanup_policy": "compact"}})
    subprocess.run([sys.executable, "-c", WRITER, str(root)], check=False)
    log = root / "users-0" / f"{0:020d}.log"
    written = log.read_bytes()
    sound_bytes = len(written.rstrip(b"\0"))
    assert len(written) > sound_bytes + 64, "the test needs zeros behind the log"
    with lastword.open(root) as logs:
        assert [r.key for r in logs["users"].read()] == [b"k%d" % n for n in range(COUNT)]
        assert logs.verify().ok
    with broker:
        served = broker.consume("users")["users-0"]
        appended = broker.produce("users", [[KafkaRecord(b"after", b"v", START_MS)]])
    assert [r.key for r in served.records] == [b"k%d" % n for n in range(COUNT)]
    assert served.end == COUNT and appended == [COUNT]
    assert errors_of(broker.log_text) == []
    with lastword.open(root) as logs:
        assert [r.key for r in logs["users"].read()] == [*(b"k%d" % n for n in range(COUNT)), b"after"]
