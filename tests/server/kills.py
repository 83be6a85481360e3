"""Kill the server and its clients at random moments: no record is lost, twice, aborted or out of order.

    make kills-server N=500

`lastword serve` and each client are processes of their own: idempotent and transactional producers, and the
members of a group that reads committed records. A process that is killed starts again under its name. The
server's cleaner runs all the time. Each client writes what it does to a file, so that a kill loses no line;
the judge compares these files with the log.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lastword

EVENTS, STATE = "events", "state"
PARTITIONS = 3
KEYS = 20
PER_TRANSACTION = 5
GROUP = "readers"
SETTINGS = """
log.cleaner.backoff.ms = 100
[topics.state]
cleanup.policy = "compact"
segment.bytes = 32768
min.cleanable.dirty.ratio = 0.01
[topics.events]
cleanup.policy = "delete"
retention.ms = -1
segment.bytes = 262144
"""
CLIENTS = {
    "idempotent-0": "idempotent",
    "idempotent-1": "idempotent",
    "transactional-0": "transactional",
    "transactional-1": "transactional",
    "reader-0": "reader",
    "reader-1": "reader",
}
QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "log_level": 0}
LAST_SECONDS = 60.0
LEAST_ACKNOWLEDGED, LEAST_COMMITTED = 100, 10
"""Records and transactions of a run, at least."""


# ---------------------------------------------------------------- the processes


@dataclass
class Journal:
    """The lines that a client has written. Each is one write, so that a kill cuts at most the last one."""

    path: Path

    def write(self, *words: Any) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(words).encode() + b"\n")

    def lines(self) -> list[list[Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]


class _Ended(Exception):
    pass


class Client:
    """One client process. `life` rises with each start, and with each new producer of a process."""

    def __init__(self, name: str, folder: Path, bootstrap: str, life: int) -> None:
        self.name, self.folder, self.bootstrap, self.life = name, folder, bootstrap, life
        self.journal = Journal(folder / f"{name}.jsonl")
        self.rng = random.Random(f"{name} {life}")

    def check(self) -> None:
        if (self.folder / "stop").exists():
            raise _Ended

    def value(self, number: int) -> bytes:
        return json.dumps([self.name, self.life, number]).encode()

    def idempotent(self) -> None:
        """Produce records to both topics; write a line for each that is acknowledged."""
        import confluent_kafka

        producer = confluent_kafka.Producer(
            QUICK
            | {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "compression.type": self.rng.choice(["none", "lz4", "zstd"]),
                "message.timeout.ms": 0,
            }
        )

        def acknowledged(number: int, topic: str) -> Any:
            def call(error: Any, message: Any) -> None:
                if error is None:
                    self.journal.write(
                        "acked", self.life, number, topic, message.partition(), message.offset()
                    )

            return call

        number = 0
        try:
            while True:
                self.check()
                topic = self.rng.choice([EVENTS, STATE])
                producer.produce(
                    topic,
                    key=f"{self.name}-{number % KEYS}",
                    value=self.value(number),
                    partition=self.rng.randrange(PARTITIONS) if topic == EVENTS else 0,
                    on_delivery=acknowledged(number, topic),
                )
                number += 1
                producer.poll(0)
                time.sleep(0.002)
        except _Ended:
            producer.flush(LAST_SECONDS)

    def transactional(self) -> None:
        """Write transactions over both topics, of which some are aborted."""
        import confluent_kafka

        while True:
            producer = confluent_kafka.Producer(
                QUICK
                | {
                    "bootstrap.servers": self.bootstrap,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": 5000,
                    "linger.ms": 1,
                }
            )
            try:
                producer.init_transactions(LAST_SECONDS)
                while True:
                    self.check()
                    self._transaction(producer)
            except _Ended:
                return
            except confluent_kafka.KafkaException as error:
                self.journal.write("failed", self.life, str(error))
                self.life += 1
                time.sleep(0.02)

    def _transaction(self, producer: Any) -> None:
        import confluent_kafka

        self.transactions = number = getattr(self, "transactions", -1) + 1
        rows = [
            (topic, 0 if topic == STATE else self.rng.randrange(PARTITIONS), number * PER_TRANSACTION + n)
            for n, topic in enumerate(
                self.rng.choices([EVENTS, STATE], k=self.rng.randint(1, PER_TRANSACTION))
            )
        ]
        self.journal.write("begin", self.life, number, rows)
        try:
            producer.begin_transaction()
            for topic, partition, row in rows:
                producer.produce(
                    topic, key=f"{self.name}-{row % KEYS}", value=self.value(row), partition=partition
                )
            if self.rng.random() < 0.3:
                producer.flush(0.01)
                producer.abort_transaction(LAST_SECONDS)
                self.journal.write("aborted", self.life, number)
                return
            self.journal.write("commits", self.life, number)
            producer.commit_transaction(LAST_SECONDS)
            self.journal.write("committed", self.life, number)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(LAST_SECONDS)
            self.journal.write("aborted", self.life, number)

    def reader(self) -> None:
        """Read committed records as a member of the group; commit after some of them."""
        import confluent_kafka

        consumer = confluent_kafka.Consumer(
            QUICK
            | {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )

        held: list[int] = []
        quiet_since = time.monotonic()

        def assigned(_: Any, partitions: Any) -> None:
            nonlocal quiet_since
            held[:] = [p.partition for p in partitions]
            quiet_since = time.monotonic()
            self.journal.write("assigned", self.life, held)

        consumer.subscribe([EVENTS], on_assign=assigned)
        last = self.folder / "last"
        try:
            while True:
                if not last.exists():
                    self.check()
                elif len(held) == PARTITIONS and time.monotonic() - quiet_since > 2:
                    return
                for message in consumer.consume(50, 0.1):
                    if message.error() is None:
                        quiet_since = time.monotonic()
                        self.journal.write(
                            "read", self.life, message.partition(), message.offset(), message.value().decode()
                        )
                try:
                    consumer.commit(asynchronous=False)
                except confluent_kafka.KafkaException:
                    continue  # nothing to commit, or the server is away: the records come again
        except _Ended:
            return
        finally:
            consumer.close()


# ---------------------------------------------------------------- the judge


@dataclass
class Verdict:
    """What was counted, and the violations."""

    kills: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def text(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        return f"{self.kills.total()} kills ({dict(self.kills)}): {counts}; {len(self.violations)} violations"


def judge(folder: Path, verdict: Verdict) -> None:
    """Compare the files of the clients with the log."""
    journals = {name: Journal(folder / f"{name}.jsonl").lines() for name in CLIENTS}
    with lastword.open(folder / "data") as logs:
        events = [(r.partition, r.offset, r.value) for r in logs.topic(EVENTS).read()]
        state = {r.key: json.loads(r.value) for r in logs.topic(STATE).read(view="newest")}
        kept = [json.loads(r.value) for r in logs.topic(STATE).read()]
        for topic in (EVENTS, STATE):
            verdict.violations += [f"verify: {problem}" for problem in logs.verify(topic).problems]
    seen = Counter(value for _, _, value in events)
    stored = {(EVENTS, *json.loads(value)) for value in seen}
    in_state = Counter(map(tuple, kept))
    verdict.counts.update(events=len(events), state=len(kept))
    bad = verdict.violations.append
    for value, count in seen.items():
        if count > 1:
            bad(f"twice: {value!r} is in {EVENTS} {count} times")
    for row, count in in_state.items():
        if count > 1:
            bad(f"twice: {row} is in {STATE} {count} times")
    _judge_order(events, verdict)
    at = {(partition, offset): value.decode() for partition, offset, value in events}
    for name, kind in CLIENTS.items():
        lines = journals[name]
        if kind == "idempotent":
            _judge_idempotent(name, lines, at, state, verdict)
        elif kind == "transactional":
            _judge_transactional(name, lines, stored, set(in_state), state, verdict)
    _judge_readers(
        [line for name in CLIENTS if CLIENTS[name] == "reader" for line in journals[name]], at, verdict
    )


def _judge_order(events: list[tuple[int, int, bytes]], verdict: Verdict) -> None:
    """Records of one producer's life have ascending numbers in a partition."""
    last: dict[tuple[int, str, int], int] = {}
    for partition, offset, value in events:
        name, life, number = json.loads(value)
        if last.get((partition, name, life), -1) >= number:
            verdict.violations.append(f"out of order: {value!r} at {partition}:{offset}")
        last[partition, name, life] = number


def _judge_idempotent(
    name: str, lines: list[Any], at: dict[tuple[int, int], str], state: dict[bytes, Any], verdict: Verdict
) -> None:
    newest: dict[str, tuple[int, int]] = {}
    for _, life, number, topic, partition, offset in lines:
        verdict.counts["acknowledged"] += 1
        if topic == EVENTS:
            if at.get((partition, offset)) != json.dumps([name, life, number]):
                verdict.violations.append(f"lost: {name} {life} {number} at {partition}:{offset}")
        else:
            key = f"{name}-{number % KEYS}"
            newest[key] = max(newest.get(key, (-1, -1)), (life, number))
    for key, (life, number) in newest.items():
        now = state.get(key.encode())
        if now is None or now[0] != name or (now[1], now[2]) < (life, number):
            verdict.violations.append(f"lost: {key} is {now}, {name} {life} {number} was acknowledged")


def _judge_transactional(
    name: str,
    lines: list[Any],
    stored: set[tuple[Any, ...]],
    in_state: set[tuple[Any, ...]],
    state: dict[bytes, Any],
    verdict: Verdict,
) -> None:
    rows: dict[tuple[int, int], list[Any]] = {}
    outcomes: dict[tuple[int, int], str] = {}
    for line in lines:
        if line[0] == "begin":
            rows[line[1], line[2]] = line[3]
            outcomes[line[1], line[2]] = "begin"
        elif line[0] != "failed":
            outcomes[line[1], line[2]] = line[0]
    for (life, number), outcome in outcomes.items():
        verdict.counts[f"transactions {outcome}"] += 1
        events = [
            (EVENTS, name, life, row) in stored for topic, _, row in rows[life, number] if topic == EVENTS
        ]
        values = [(name, life, row) for topic, _, row in rows[life, number] if topic == STATE]
        shown = [
            value in in_state or _superseded(value, state.get(f"{name}-{value[2] % KEYS}".encode()))
            for value in values
        ]
        if outcome == "committed" and not (all(events) and all(shown)):
            verdict.violations.append(f"lost: transaction {name} {life} {number}: {events} {shown}")
        if outcome in ("begin", "aborted") and (any(events) or any(value in in_state for value in values)):
            verdict.violations.append(f"aborted, but there: {name} {life} {number}: {events}")
        if outcome == "commits" and any(events) and not (all(events) and all(shown)):
            verdict.violations.append(f"half of a transaction: {name} {life} {number}: {events} {shown}")


def _superseded(value: tuple[Any, ...], now: Any) -> bool:
    """Return whether a cleaning may have removed the record: its key has a newer one of the same producer."""
    return now is not None and now[0] == value[0] and tuple(now[1:]) > tuple(value[1:])


def _judge_readers(lines: list[Any], at: dict[tuple[int, int], str], verdict: Verdict) -> None:
    read: set[tuple[int, int]] = set()
    position: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    for line in lines:
        if line[0] == "assigned":
            for partition in line[2]:
                position[line[1], partition] = -1
            continue
        _, life, partition, offset, value = line
        if at.get((partition, offset)) != value:
            verdict.violations.append(f"phantom: {value} at {partition}:{offset} was read")
        if offset <= position[life, partition]:
            verdict.violations.append(f"out of order: a reader got {partition}:{offset} after a later one")
        position[life, partition] = offset
        read.add((partition, offset))
    missing = sorted(set(at) - read)
    verdict.counts["read"] = len(lines)
    if missing:
        verdict.violations.append(f"not read: {len(missing)} records, first {missing[0]}")


# ---------------------------------------------------------------- the run


class World:
    """The processes of one run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.running: dict[str, subprocess.Popen[Any]] = {}
        self.lives: Counter[str] = Counter()
        (folder / "data").mkdir()
        (folder / "data" / "lastword.toml").write_text(SETTINGS)
        with lastword.open(folder / "data", "a", log_cleaner_enable=False) as logs:
            logs.create_topic(EVENTS, PARTITIONS)
            logs.create_topic(STATE)

    def start(self, name: str) -> None:
        if name == "server":
            command = ["-m", "lastword", "serve", str(self.folder / "data"), "--json"]
            command += ["--listen", f"127.0.0.1:{self.port}"]
        else:
            self.lives[name] += 1
            command = ["-m", "tests.server.kills", "--client", name, "--life", str(self.lives[name])]
            command += ["--folder", str(self.folder), "--bootstrap", f"127.0.0.1:{self.port}"]
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.running[name] = subprocess.Popen(
                [sys.executable, *command], stdout=subprocess.DEVNULL, stderr=errors
            )

    def kill(self) -> str:
        """End one process and start it again."""
        name = "server" if self.rng.random() < 0.4 else self.rng.choice(list(CLIENTS))
        process = self.running[name]
        process.kill()
        process.wait()
        time.sleep(self.rng.choice([0, 0, 0.05, 0.2]))
        self.start(name)
        return CLIENTS.get(name, name)

    def wait_for_work(self) -> None:
        """Wait until the clients have done enough for a verdict: a machine with other work is slow."""
        last = time.monotonic() + LAST_SECONDS
        while time.monotonic() < last:
            done = Counter(
                line[0]
                for name, kind in CLIENTS.items()
                if kind != "reader"
                for line in Journal(self.folder / f"{name}.jsonl").lines()
            )
            enough = done["acked"] > LEAST_ACKNOWLEDGED and done["committed"] > LEAST_COMMITTED
            if enough and done["aborted"]:
                return
            time.sleep(0.2)

    def end(self) -> None:
        """Let the producers end, then the readers, when they have read everything; stop the server."""
        (self.folder / "stop").touch()
        for name, kind in CLIENTS.items():
            if kind != "reader":
                self.running[name].wait(2 * LAST_SECONDS)
        time.sleep(5.5)  # a transaction of a producer that was killed times out
        for name, kind in CLIENTS.items():
            if kind == "reader":
                self.running[name].wait(LAST_SECONDS)
        (self.folder / "last").touch()
        self.start("reader-0")
        self.running["reader-0"].wait(2 * LAST_SECONDS)
        server = self.running["server"]
        server.send_signal(signal.SIGTERM)
        if server.wait(LAST_SECONDS) != 0:
            raise RuntimeError(f"the server ended with {server.returncode}: {self.errors()}")

    def errors(self) -> str:
        """Return what the processes wrote to stderr."""
        return "\n".join(
            f"{path.name}: {text[-2000:]}" for path in self.folder.glob("*.err") if (text := path.read_text())
        )

    def abandon(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def run(folder: Path, kills: int, seed: int, *, progress: bool = False) -> Verdict:
    """Kill processes `kills` times, and judge."""
    verdict = Verdict()
    world = World(folder, seed)
    try:
        for name in ("server", *CLIENTS):
            world.start(name)
        time.sleep(2)
        for number in range(kills):
            time.sleep(world.rng.uniform(0.1, 0.8))
            verdict.kills[world.kill()] += 1
            if progress and number % 50 == 49:
                print(f"{number + 1} kills", flush=True)
        time.sleep(1)
        world.wait_for_work()
        world.end()
        tracebacks = [line for line in world.errors().splitlines() if "Traceback" in line]
        verdict.violations += [f"a traceback: {world.errors()}"] if tracebacks else []
        judge(folder, verdict)
    finally:
        world.abandon()
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--client")
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--bootstrap", default="")
    given = parser.parse_args()
    if given.client:
        client = Client(given.client, given.folder, given.bootstrap, given.life * 1000)
        getattr(client, CLIENTS[given.client])()
        return 0
    with tempfile.TemporaryDirectory(prefix="kills-server-") as name:
        verdict = run(given.folder or Path(name), given.kills, given.seed, progress=True)
        print(verdict.text())
        for violation in verdict.violations[:20]:
            print(violation)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
