"""The saved answers of a broker to batches with wrong content, and its answers to mutated records.

python -m tests.kafka.test_malformed 100000     more mutants, beside a broker of its own
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import lastword
from lastword.testing.unsynced import UNSYNCED
from tests.kafka.conftest import client_of
from tests.server import malformed
from tests.server.client import Client
from tests.support.jars import KafkaJars
from tests.support.kafka import Broker, Tools
from tests.support.waiting import until

SMALL = 300


def create_topics(broker: Broker) -> Client:
    """Create the topics; return a client when they have leaders."""
    for topic, config in malformed.TOPICS.items():
        broker.create_topic(topic, **{name.replace(".", "_"): value for name, value in config.items()})
    client = client_of(broker)
    until(lambda: not any(client.offset(topic, -1).error_code for topic in malformed.TOPICS), 30)
    return client


def compare_mutants(theirs: Client, directory: Path, count: int, seed: int) -> str:
    """Produce mutants to a broker and to us; return how many were appended by whom.

    We append only batches that the broker appends, and all that are valid for our readers.
    """
    rng = random.Random(seed)
    counts = {(0, 0): 0, (0, 1): 0, (1, 1): 0}
    with (
        lastword.open(directory, "a", files=UNSYNCED, log_cleaner_enable=False) as logs,
        lastword.serve(logs, "127.0.0.1:0") as server,
        Client(server) as ours,
    ):
        malformed.create(logs)
        for number in range(count):
            now = int(time.time() * 1000)
            name, data = malformed.mutated(now, rng)
            for topic in ("plain", "table"):
                a, b = (malformed.answer(client, topic, data, now) for client in (ours, theirs))
                if b[0] == malformed.UNKNOWN_SERVER_ERROR:
                    b = [malformed.INVALID_RECORD, []]
                assert a[0] or not b[0], f"{number}, {topic}, {name}: Kafka answers {b}"
                assert a[0] in (b[0], malformed.INVALID_RECORD), f"{number}, {topic}, {name}: {a}, not {b}"
                if not a[0]:
                    assert a == b, f"{number}, {topic}, {name}: {a}, not {b}"
                elif not b[0]:
                    assert malformed.is_strict(data), f"{number}, {topic}, {name}: refused, as {a}"
                counts[not a[0], not b[0]] += 1
        malformed.check_readers(logs)
    return f"{count} mutants: both appended {counts[1, 1]}, Kafka alone {counts[0, 1]}"


def test_the_table_has_the_answers_of_a_broker(tools: Tools, tmp_path: Path) -> None:
    with (
        Broker(tools, tmp_path / "broker", settings={"log.cleaner.enable": "false"}) as broker,
        create_topics(broker) as client,
    ):
        assert malformed.answers(client, int(time.time() * 1000)) == malformed.saved()
        compare_mutants(client, tmp_path / "ours", SMALL, seed=1)


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as scratch,
        Tools(KafkaJars.find_or_fetch()) as jvm,
        Broker(jvm, Path(scratch, "broker"), settings={"log.cleaner.enable": "false"}) as real,
        create_topics(real) as connected,
    ):
        print(compare_mutants(connected, Path(scratch, "ours"), int(sys.argv[1]), seed=int(sys.argv[2])))
