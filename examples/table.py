"""A table that a stream processor keeps in memory, and restores from its changelog when it was killed.

python examples/table.py            (the demonstration: a broker, a worker, three kills)

The worker counts the clicks of each user, as a Faust or Kafka Streams program does. Every change of the table
is a record of its changelog, a compacted topic: user -> count, and the offset of the click. A worker that
starts reads the changelog to its end, and goes on behind the largest offset in it. All changes of a partition
are in the order of its clicks, so no click is lost or counted twice, whenever the worker is killed.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

from confluent_kafka import Consumer, Producer, TopicPartition

import lastword

CLICKS, CHANGELOG = "clicks", "counts-changelog"
USERS = [f"user-{number}" for number in range(50)]


class Table:
    """A dict whose changes are records of a changelog."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.counts: Counter[str] = Counter()
        self.position = 0
        self.read = 0
        self._servers = bootstrap_servers
        # One producer that is idempotent: the records of a partition stay in their order.
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True})

    def restore(self) -> None:
        """Read the changelog to the end that it has now."""
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "restore"})
        partition = TopicPartition(CHANGELOG, 0, 0)
        first, end = consumer.get_watermark_offsets(partition)
        consumer.assign([partition])
        while first < end:
            for message in consumer.consume(1000, 1):
                first = message.offset() + 1
                change = json.loads(message.value())
                self.counts[message.key().decode()] = change["count"]
                self.position = max(self.position, change["offset"] + 1)
                self.read += 1
        consumer.close()

    def add(self, user: str, offset: int) -> None:
        """Count one click."""
        self.counts[user] += 1
        change = {"count": self.counts[user], "offset": offset}
        self._producer.produce(CHANGELOG, json.dumps(change), user)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all changes are in the changelog."""
        self._producer.flush()


def worker(bootstrap_servers: str, clicks: int) -> None:
    """Count clicks until there were this many."""
    table = Table(bootstrap_servers)
    table.restore()
    print(
        f"{len(table.counts)} users from {table.read} records; goes on at click {table.position}", flush=True
    )
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "count"})
    consumer.assign([TopicPartition(CLICKS, 0, table.position)])
    position = table.position
    while position < clicks:
        for message in consumer.consume(20, 1):
            table.add(message.key().decode(), message.offset())
            position = message.offset() + 1
        table.flush()
    consumer.close()


def main(directory: str, clicks: int = 5000, kills: int = 3) -> bool:
    """Produce clicks, kill the worker that counts them, and compare its counts."""
    rng = random.Random(16)
    sent = [rng.choice(USERS) for _ in range(clicks)]
    with lastword.open(directory, "a") as logs, lastword.serve(logs, "127.0.0.1:0") as server:
        logs.create_topic(CLICKS, cleanup_policy="delete")
        changelog = logs.create_topic(CHANGELOG, cleanup_policy="compact")
        producer = Producer({"bootstrap.servers": server.bootstrap_servers, "linger.ms": 5})
        for user in sent:
            producer.produce(CLICKS, b"", user)
        producer.flush()
        command = [sys.executable, __file__, server.bootstrap_servers, str(clicks)]
        for number in range(kills):
            process = subprocess.Popen(command)
            while process.poll() is None and changelog.bounds()[0][1] < (number + 1) * clicks // (kills + 1):
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            process.wait()
            if number:
                logs.clean(CHANGELOG)
        subprocess.run(command, check=True)
        table = Table(server.bootstrap_servers)
        table.restore()
        exact = table.counts == Counter(sent)
        print(f"{clicks} clicks, {kills} kills: the counts are {'exact' if exact else 'WRONG'}")
        return exact


if __name__ == "__main__":
    if len(sys.argv) == 3:
        worker(sys.argv[1], int(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            sys.exit(not main(scratch))
