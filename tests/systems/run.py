"""Run outside clients and systems against the server and a real Kafka: `make systems ONLY=sarama,kafkajs`.

Each system runs twice on each of the two servers. Between its two lives the server's logs are cleaned and the
directory of its state is removed. The target is compared with a dict, after each life. The result is
`docs/systems.md`, written if all systems were run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin

import lastword
from tests.support.jars import KAFKA_VERSION, KafkaJars
from tests.support.kafka import Broker, Tools
from tests.systems.install import SystemMissing, environment, installed
from tests.systems.table import NOT_HERE, SYSTEMS, System

PAGE = Path(__file__).parents[2] / "docs" / "systems.md"
KEYS = 20
PARTITIONS = 2
SETTINGS = {"cleanup.policy": "compact", "segment.ms": "500", "min.compaction.lag.ms": "0"}
Newest = dict[str, str]


@dataclass
class Server:
    """A server under test, and what cleans its logs."""

    name: str
    address: str
    clean: Callable[[], object]


@dataclass
class Result:
    """The results of a system: "" or the difference, by server."""

    system: System
    missing: str = ""
    differences: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def fed(
    system: System, address: str, topic: str, first: int, last: int, records: dict[str, list[str]]
) -> None:
    """Append the records with the numbers from `first` to `last` - 1; add them to `records`."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 1})
    for number in range(first, last):
        key, value = f"k{number * 7 % KEYS}", f"value {number}"
        is_delete = system.deletes and number % 11 == 0
        producer.produce(topic, None if is_delete else value.encode(), key.encode())
        if is_delete:
            records.pop(key, None)
        else:
            records.setdefault(key, []).append(value)
        producer.poll(0)
    assert producer.flush(30) == 0


def expected(system: System, records: dict[str, list[str]]) -> Newest:
    if system.does == "count":
        return {key: str(len(values)) for key, values in records.items()}
    if system.does == "lines":
        return {value: value for values in records.values() for value in values}
    return {key: values[-1] for key, values in records.items()}


class Target:
    """The newest values of a topic, read as a committed consumer."""

    def __init__(self, address: str, topic: str) -> None:
        settings = {"bootstrap.servers": address, "group.id": "the test", "isolation.level": "read_committed"}
        self._consumer = confluent_kafka.Consumer(settings | {"enable.auto.commit": False})
        kind = confluent_kafka.TopicPartition
        self._consumer.assign([kind(topic, n, confluent_kafka.OFFSET_BEGINNING) for n in range(PARTITIONS)])
        self.newest: Newest = {}

    def becomes(self, wanted: Newest, process: subprocess.Popen[bytes], seconds: float) -> str:
        """Read until the newest values are those that are wanted; return "" or the difference."""
        deadline = time.monotonic() + seconds
        while self.newest != wanted:
            if process.poll() is not None:
                return f"the program ended with {process.returncode}"
            if time.monotonic() > deadline:
                wrong = sorted(k for k in wanted.keys() | self.newest if wanted.get(k) != self.newest.get(k))
                shown = ", ".join(f"{k}: {self.newest.get(k)}, not {wanted.get(k)}" for k in wrong[:3])
                return f"{len(wrong)} of {len(wanted)} keys differ after {seconds:.0f} s ({shown})"
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    key = (message.key() or b"").decode()
                    self.newest.pop(key, None)
                    if message.value() is not None:
                        self.newest[key] = message.value().decode()
        return ""

    def close(self) -> None:
        self._consumer.close()


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a program with its children: by SIGTERM, and after ten seconds by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    process.wait()


def lives(system: System, server: Server, other: Server, place: Path, size: int, seconds: float) -> str:
    """Run a system twice on a server; return "" or what differs from the dict."""
    command, env = installed(system)
    word = f"{Path(system.program).stem.replace('_', '-')}-{server.name.split()[0].lower()}"
    source, target = f"{word}-in", f"{word}-out"
    mirrored = system.does == "mirror"
    created(server.address, source, *([] if mirrored else [target]))
    if mirrored:
        target = f"here.{source}"
        created(other.address, target)
    reader = Target(other.address if mirrored else server.address, target)
    records: dict[str, list[str]] = {}
    state, log = place / word, place / f"{word}.log"
    try:
        for life in range(2):
            shutil.rmtree(state, ignore_errors=True)
            state.mkdir(parents=True)
            fed(system, server.address, source, life * size // 2, (life + 1) * size // 2, records)
            arguments = [server.address, source, target, f"{word}-group", str(state), other.address]
            with log.open("ab") as out:
                process = subprocess.Popen(
                    [*command, *arguments],
                    stdout=out,
                    stderr=out,
                    env=environment(env),
                    start_new_session=True,
                )
            try:
                difference = reader.becomes(expected(system, records), process, seconds)
                time.sleep(1.0)  # its offsets are committed
            finally:
                ended(process)
            if difference:
                return f"life {life + 1}: {difference}; {last_words(log)}"
            server.clean()
    finally:
        reader.close()
    return ""


def last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:]


def created(address: str, *topics: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
    kind = confluent_kafka.admin.NewTopic
    for done in admin.create_topics([kind(name, PARTITIONS, 1, config=SETTINGS) for name in topics]).values():
        done.result(30)


@contextmanager
def servers(root: Path) -> Iterator[tuple[Server, Server]]:
    """Start the server and a real Kafka beside it."""
    kafka_settings = {"auto.create.topics.enable": "true", "group.initial.rebalance.delay.ms": "0"}
    with (
        Tools(KafkaJars.find_or_fetch()) as tools,
        Broker(tools, root / "kafka", kafka_settings) as broker,
        lastword.open(root / "lastword", "a", log_cleaner_enable=False) as logs,
        lastword.serve(logs, "127.0.0.1:0", auto_create_topics=True) as server,
    ):
        yield (
            Server("lastword", server.bootstrap_servers, logs.clean),
            Server(f"Kafka {KAFKA_VERSION}", broker.bootstrap, lambda: None),
        )


def page(results: list[Result]) -> str:
    """Return the text of docs/systems.md."""
    lines = [
        "# Outside systems",
        "",
        "Written by `make systems`. Each system runs twice on the server, and twice on a real Kafka.",
        "Between its two lives the server's logs are cleaned, and the files of its state are removed.",
        "After each life the target topic is compared with a dict.",
        "",
        f"| system | packages | shown | lastword | Kafka {KAFKA_VERSION} |",
        "|---|---|---|---|---|",
    ]
    shown = {
        "copy": "copies each record, in a group",
        "count": "counts the records of each key",
        "lines": "writes values to a file, and its lines to a topic",
        "mirror": "copies a topic to the other cluster",
    }
    for result in results:
        system = result.system
        text = shown[system.does] + (f"; {system.remark}" if system.remark else "")
        names = "<br>".join(f"`{package}`" for package in system.packages)
        if result.missing:
            cells = [f"not run: {result.missing}", ""]
        else:
            cells = [difference or "right" for difference in result.differences.values()]
        lines.append(f"| {system.name} | {names} | {text} | {' | '.join(cells)} |".replace("\n", " "))
    lines += ["", "Not in the table yet:", "", *(f"- {name}" for name in NOT_HERE)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the systems and write the page; exit with 1 if one differs on the server only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of systems, separated by commas")
    parser.add_argument("--records", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=60, help="the most for one life")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else [system.name for system in SYSTEMS]
    chosen = [system for system in SYSTEMS if system.name in wanted]
    unknown = set(wanted) - {system.name for system in chosen}
    if unknown:
        parser.error(f"no such system: {', '.join(sorted(unknown))}")
    results = []
    with tempfile.TemporaryDirectory(prefix="lastword-systems-") as root, servers(Path(root)) as both:
        for system in chosen:
            result, began = Result(system), time.monotonic()
            try:
                for server, other in (both, both[::-1]):
                    result.differences[server.name] = lives(
                        system, server, other, Path(root), given.records, given.seconds
                    )
            except SystemMissing as missing:
                result.missing = str(missing)
            result.seconds = time.monotonic() - began
            results.append(result)
            outcome = result.missing or {name: text or "right" for name, text in result.differences.items()}
            print(f"{system.name}: {outcome} ({result.seconds:.0f} s)", flush=True)
    if not given.only:
        PAGE.write_text(page(results), encoding="utf-8")
    ours, kafkas = ([list(r.differences.values())[n] for r in results if not r.missing] for n in (0, 1))
    sys.exit(any(a and not b for a, b in zip(ours, kafkas, strict=True)))


if __name__ == "__main__":
    main()
