"""Run confluent-kafka, the usual Python client for Kafka, as a rival, in a Python environment of its own.

The command `confluent_rival.py BOOTSTRAP TOPIC END REPETITIONS` in that environment prints one JSON line per
run. A run reads partition 0 of the topic from its start to END into a dict; a record without a value removes
its key.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

PACKAGE = "confluent-kafka==2.16.1"
TUNED = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1 << 20,
    "fetch.message.max.bytes": 16 << 20,
    "fetch.max.bytes": 128 << 20,
    "check.crcs": True,
}
"""With default queues the client takes three times as long. Our reader verifies checksums too."""
BATCH_MESSAGES = 10_000


def find_or_install() -> Path:
    """Return the Python with the client, after installing it if necessary.

    Raises:
        KafkaMissing: The network is missing.
    """
    from tests.support.jars import KafkaMissing, cache_directory

    home = cache_directory() / PACKAGE.replace("==", "-")
    python = home / "bin" / "python"
    if (home / "complete").exists():
        return python
    print(f"installing {PACKAGE} into {home} (once)", file=sys.stderr)
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-400:]
        raise KafkaMissing(f"confluent-kafka can't be installed: {said}", setup_fault=False)
    (home / "complete").touch()
    return python


def restore(python: Path, bootstrap: str, topic: str, end: int, repetitions: int) -> list[dict[str, float]]:
    """Return (seconds, keys, records) of each run, without the first one, which warms up."""
    command = [str(python), __file__, bootstrap, topic, str(end), str(repetitions)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"the rival ended with {done.returncode}: {done.stderr[-2000:]}")
    return lines[1:]


def main() -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    bootstrap, topic, end_text, repetitions = sys.argv[1:]
    end = int(end_text)
    for _ in range(int(repetitions) + 1):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, **TUNED}
        )
        started = time.perf_counter()
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        table: dict[bytes, bytes] = {}
        position = records = 0
        heard = started
        while position < end:
            # Returns after this number of messages or this time; the last call returns fewer messages.
            messages = consumer.consume(BATCH_MESSAGES, timeout=0.01)
            if not messages:
                if time.perf_counter() - heard > 60:
                    raise SystemExit(f"nothing came after offset {position} of {end}")
                continue
            heard = time.perf_counter()
            for message in messages:
                value = message.value()
                if value is None:
                    table.pop(message.key(), None)
                else:
                    table[message.key()] = value
            records += len(messages)
            position = messages[-1].offset() + 1
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "keys": len(table), "records": records}), flush=True)
        consumer.close()


if __name__ == "__main__":
    main()
