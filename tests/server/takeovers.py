"""End or stop the active server of a log in a bucket again and again: a standby takes over, nothing is lost.

    make kills-bucket-server N=50

Two processes `lastword serve s3://...` share a log on moto's server of S3, which runs in this process.
Clients of one maker, or of all three, run all the time (`takeover_clients.py`). Each turn sends SIGKILL or
SIGSTOP to the active server, waits until the other one has acknowledged a record and a transaction of each
maker's, and lets the first one go on: as a new process, or with SIGCONT. Some of the stopped servers go on as
soon as the other one is active, so that they find requests of clients that have not left yet. A thread reads
the committed offsets of all groups all the time.

In the end each record that was acknowledged is in the log once, where its producer was told; each reader has
read every record; each copy is there once, all of a transaction or nothing; no committed offset went back.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.local_s3 import environment_of

import lastword
from lastword.bucket.commit import Bucket
from lastword.objects import open_store
from lastword.protocol.messages import OffsetFetchRequest
from tests.server.client import Address, Client
from tests.server.takeover_clients import (
    KINDS,
    LAST_SECONDS,
    PARTITIONS,
    ROLES,
    TOPIC,
    Journal,
    copies,
    ends,
    started,
)

SESSION_MS, HEARTBEAT_MS, LINGER_MS = 2_000, 500, 100
FIRST_WORDS = {"producer": "acked", "reader": "read", "copier": "committed"}
Chosen = Sequence[tuple[str, str]]
EVERY: Chosen = [(kind, role) for kind in KINDS for role in ROLES]
FEW: Chosen = [("librdkafka", "producer"), ("aiokafka", "reader")]
"""Clients, each a kind and a role: all, and those of the test command."""
Row = tuple[int, int, str]
"""Partition, offset and value of a record."""


@dataclass
class Result:
    """What a run has shown.

    Attributes:
        kinds: Takeovers by signal.
        epochs: Server epochs: a takeover by a standby that waited too long for a busy server is one, too.
        served: Seconds from each signal until the other server answers as the active one.
        seconds: Seconds from each signal until an acknowledgement, by client.
        events: Records of the producers in the log.
        counts: Lines of the clients, by client and word.
        failed: Errors of the clients' libraries, after which a client began again, and records that failed.
        answers: Committed offsets that were read.
        violations: What must not be.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    epochs: int = 0
    served: list[float] = field(default_factory=list)
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    events: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    violations: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the times of the last turn."""
        after = ", ".join(f"{kind} {role} {times[-1]:.2f}" for (kind, role), times in self.seconds.items())
        return f"served after {self.served[-1]:.2f} s; acknowledged after {after}"

    def add(self, other: Result) -> None:
        self.kinds += other.kinds
        self.epochs += other.epochs
        self.served += other.served
        for client, times in other.seconds.items():
            self.seconds[client] += times
        self.events += other.events
        self.counts += other.counts
        self.failed += other.failed
        self.answers += other.answers
        self.violations += other.violations

    def summary(self) -> str:
        def times(name: str, seconds: list[float]) -> str:
            return f"{name}: median {statistics.median(seconds):.2f} s, largest {max(seconds):.2f} s"

        lines = [
            f"{len(self.served)} takeovers {dict(self.kinds)}, {self.epochs} server epochs, "
            f"{self.events:,} records of producers, "
            f"{self.answers:,} committed offsets read; {len(self.violations)} violations",
            ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items())),
            times("served again", self.served),
            *(times(f"{kind} {role}", seconds) for (kind, role), seconds in sorted(self.seconds.items())),
            *(f"{count} times {text}" for text, count in self.failed.most_common(20)),
            *self.violations[:20],
        ]
        return "\n".join(lines)


class Servers:
    """Two servers of one log, each at an address of its own."""

    def __init__(self, url: str, options: dict[str, str], logs: Path | None = None) -> None:
        self.url, self.options, self.logs = url, options, logs
        self.addresses = [f"127.0.0.1:{port}" for port in _free_ports(2)]
        self.processes = [self._started(address) for address in self.addresses]
        self.bucket = Bucket(open_store(url, options))

    def _started(self, address: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lastword", "serve", self.url, "--listen", address, "--json"]
        errors = self.logs / f"server-{address.rpartition(':')[2]}.log" if self.logs else Path(os.devnull)
        with errors.open("ab") as stderr:
            process = subprocess.Popen(
                [*command, "--partitions", str(PARTITIONS)],
                env=os.environ | environment_of(self.options["endpoint"]),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert process.stdout is not None
        row = json.loads(process.stdout.readline() or "{}")
        assert row.get("type") == "serving", row
        return process

    def active(self) -> int:
        """Return which server is active."""
        node = self.bucket.load().manifest.servers.node
        assert node is not None
        return self.addresses.index(node.address)

    def await_active(self, index: int) -> None:
        """Return when a server answers what only the active one may answer."""
        host, _, port = self.addresses[index].rpartition(":")

        def answers() -> bool:
            try:
                with Client(Address(host, int(port))) as client:
                    return bool(client.offset(TOPIC, -1).error_code == 0)
            except OSError:  # it closes its connections when it becomes the active one
                return False

        _until(answers)

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes:
            process.wait(30)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


class Watching(threading.Thread):
    """Reads the committed offsets of groups all the time: none goes back, none is older than acknowledged."""

    def __init__(self, servers: Servers, groups: list[str], journal: Journal) -> None:
        super().__init__(daemon=True)
        self.groups, self.journal = groups, journal
        self.places = [
            Address(host, int(port)) for host, _, port in (a.rpartition(":") for a in servers.addresses)
        ]
        self.newest: dict[tuple[str, int], int] = {}
        self.answers = 0
        self.violations: list[str] = []

    def run(self) -> None:
        while self.journal.running.is_set():
            for place in self.places:
                try:
                    with Client(place, timeout=1) as client:
                        while self._read(client) and self.journal.running.is_set():
                            time.sleep(0.3)
                except OSError:
                    time.sleep(0.05)

    def _read(self, client: Client) -> bool:
        """Read the offsets once; return False if the server is not the coordinator."""
        known = dict(self.journal.committed)
        kind = OffsetFetchRequest
        topics = [kind.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(PARTITIONS)))]
        groups = [kind.OffsetFetchRequestGroup(group_id=name, topics=topics) for name in self.groups]
        answer = client.ask(kind(groups=groups, require_stable=False), 8)
        for group in answer.groups:
            if group.error_code:
                return False
            for partition in group.topics[0].partitions:
                at, offset = (group.group_id, partition.partition_index), partition.committed_offset
                floor = max(known.get(at, -1), self.newest.get(at, -1))
                if offset < floor:
                    self.violations.append(f"committed offset of {at}: {offset} after {floor}")
                self.newest[at] = max(offset, floor)
                self.answers += 1
        return True


def run(
    turns: int, seed: int, chosen: Chosen = EVERY, *, show: bool = False, kept: Path | None = None
) -> Result:
    """Take the active server away `turns` times, and judge the log in the end.

    Args:
        turns: Takeovers.
        seed: Of the signals, their times, and the transactions that are aborted.
        chosen: The clients, each a kind and a role.
        show: Print a line for each turn.
        kept: A directory for the logs of the servers and the lines of the clients.
    """
    from tests.support.stores import moto

    rng, result, journal = random.Random(seed), Result(), Journal(kept)
    with moto() as store:
        url = f"{store.root}/takeovers-{seed}"
        with lastword.open(url, "a", storage_options=store.options) as logs:
            logs.set_config(
                broker_session_timeout_ms=SESSION_MS,
                broker_heartbeat_interval_ms=HEARTBEAT_MS,
                lastword_commit_linger_ms=LINGER_MS,
            )
            logs.create_topic(TOPIC, partitions=PARTITIONS, cleanup_policy="delete")
            for kind, role in chosen:
                if role == "copier":
                    logs.create_topic(copies(kind), partitions=PARTITIONS + 1, cleanup_policy="delete")
        servers = Servers(url, store.options, kept)
        groups = [f"{kind}-{role}" for kind, role in chosen if role != "producer"]
        watching = Watching(servers, groups, journal)
        try:
            threads = [*started(chosen, servers.addresses, seed, journal), watching]
            watching.start()
            _until(lambda: all(count > 20 for count in _first_counts(journal, chosen)))
            for turn in range(turns):
                _turn(turn, servers, journal, chosen, rng, result)
                if show:
                    print(f"{turn + 1} of {turns}: {result.text()}", flush=True)
            journal.writing.clear()
            producers = [client for client in chosen if client[1] == "producer"]
            _until(lambda: all(journal.counts[*client, "ended"] for client in producers), fails=False)
            events = _content(url, store.options, TOPIC)
            last = ends((partition, offset) for partition, offset, _ in events)
            wanted = {(group, at): end for group in groups for at, end in last.items()}
            _until(lambda: journal.committed.items() >= wanted.items(), fails=False)
            journal.running.clear()
            for thread in threads:
                thread.join(LAST_SECONDS)
            result.epochs = servers.bucket.load().manifest.servers.epoch
        finally:
            journal.writing.clear()
            journal.running.clear()
            servers.close()
        result.events = len(events)
        result.counts = Counter({" ".join(key): count for key, count in journal.counts.items()})
        for kind, role in chosen:
            result.failed.update(f"{kind} {role}: {text}" for (text,) in journal.of(kind, role, "failed"))
        made = {kind: _content(url, store.options, copies(kind)) for kind, role in chosen if role == "copier"}
        result.violations += watching.violations[:5] + judge(journal, chosen, events, made)
        result.answers = watching.answers
    return result


def _content(url: str, options: dict[str, str], name: str) -> list[Row]:
    with lastword.open(url, storage_options=options) as logs:
        topic = logs.topic(name, value_serializer="bytes", key_serializer="bytes")
        records = topic.read(isolation="read_committed")
        return [(record.partition, record.offset, record.value.decode()) for record in records]


def _first_counts(journal: Journal, chosen: Chosen) -> list[int]:
    return [journal.counts[kind, role, FIRST_WORDS[role]] for kind, role in chosen]


def _turn(
    turn: int, servers: Servers, journal: Journal, chosen: Chosen, rng: random.Random, result: Result
) -> None:
    """Take the active server away, and let it go on."""
    time.sleep(rng.uniform(0.1, 1.0))
    index = servers.active()
    kind = (
        rng.choice((signal.SIGKILL, signal.SIGSTOP)) if turn > 1 else (signal.SIGKILL, signal.SIGSTOP)[turn]
    )
    goes_on_early = rng.random() < 0.5 and turn > 1
    began = time.monotonic()
    journal.note("turn", "signal", signal.Signals(kind).name, servers.addresses[index])
    servers.processes[index].send_signal(kind)
    servers.await_active(1 - index)
    result.served.append(time.monotonic() - began)

    def go_on() -> None:
        if kind == signal.SIGKILL:
            servers.processes[index].wait()
            servers.processes[index] = servers._started(servers.addresses[index])
        else:
            servers.processes[index].send_signal(signal.SIGCONT)

    if goes_on_early:
        go_on()
    waiting = [client for client in chosen if client[1] != "reader"]
    moment = began + SESSION_MS / 4000  # what was acknowledged before the signal has been noted
    _until(lambda: all(journal.first_after(client, moment) for client in waiting))
    for client in waiting:
        result.seconds[client].append((journal.first_after(client, moment) or 0.0) - began)
    if not goes_on_early:
        go_on()
    result.kinds[signal.Signals(kind).name] += 1


# ------------------------------------------------------------------ the judge


def judge(journal: Journal, chosen: Chosen, events: list[Row], made: dict[str, list[Row]]) -> list[str]:
    """Return what is wrong with the log after a run.

    Args:
        journal: What the clients have done.
        chosen: The clients.
        events: Partition, offset and value of each record of the topic of events.
        made: The same of the committed records of each copier's topic.
    """
    at = {(partition, offset): value for partition, offset, value in events}
    found = _twice("events", events)
    last: dict[tuple[int, str, str], int] = {}
    for partition, _, value in events:
        kind, life, number = value.split(":")
        if last.get((partition, kind, life), -1) >= int(number):
            found.append(f"out of order: {value}")
        last[partition, kind, life] = int(number)
    numbers = defaultdict(set)
    for value in at.values():
        kind, _, number = value.split(":")
        numbers[kind].add(int(number))
    for kind, role in chosen:
        if role == "producer":
            for number, partition, offset in journal.of(kind, role, "acked"):
                if number not in numbers[kind]:
                    found.append(f"lost: {kind} {number}")
                elif offset >= 0 and at[partition, offset].split(":")[::2] != [kind, str(number)]:
                    found.append(f"not at {partition}:{offset}: {kind} {number}")
        elif role == "reader":
            found += _judge_reader(kind, journal.lines[kind, role], at)
        else:
            found += _judge_copier(kind, journal, at, made[kind])
    return found


def _twice(name: str, rows: list[Row]) -> list[str]:
    counts = Counter(value for _, _, value in rows)
    return [f"twice: {value} in {name}" for value, count in counts.items() if count > 1]


def _judge_reader(kind: str, lines: list[list[Any]], at: dict[tuple[int, int], str]) -> list[str]:
    found, seen, position = [], set(), dict.fromkeys(range(PARTITIONS), -1)
    for word, *rest in lines:
        if word == "assigned":
            position[rest[0]] = -1
        elif word == "read":
            partition, offset, value = rest
            if at.get((partition, offset)) != value:
                found.append(f"phantom: the reader of {kind} got {value} at {partition}:{offset}")
            if offset <= position[partition]:
                found.append(f"out of order: the reader of {kind} got {partition}:{offset} again")
            position[partition] = offset
            seen.add((partition, offset))
    missing = sorted(at.keys() - seen)
    return found + [f"not read by {kind}: {len(missing)}, first {missing[:1]}"] * bool(missing)


def _judge_copier(kind: str, journal: Journal, at: dict[tuple[int, int], str], rows: list[Row]) -> list[str]:
    name = copies(kind)
    found, copied = _twice(name, rows), []
    sizes: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for partition, _, value in rows:
        number, size, *source = value.split(":")
        if not source:
            sizes[number] = int(size)
            continue
        counts[number] += 1
        copied.append((partition, int(source[1])))
    found += [
        f"half of a transaction: {kind} {number} has {counts[number]} of {sizes.get(number, 0)}"
        for number in sorted(sizes.keys() | counts.keys())
        if counts[number] != sizes.get(number, 0)
    ]
    for number, size in journal.of(kind, "copier", "copied"):
        if sizes.get(str(number)) != size:
            found.append(f"lost: transaction {kind} {number}")
    for (number,) in journal.of(kind, "copier", "aborted"):
        if str(number) in sizes or counts[str(number)]:
            found.append(f"aborted, but read: {kind} {number}")
    if len(set(copied)) < len(copied):
        found.append(f"copied twice by {kind}: {len(copied) - len(set(copied))}")
    for partition in range(PARTITIONS):
        order = [offset for number, offset in copied if number == partition]
        if order != sorted(order):
            found.append(f"copied out of order by {kind} in {partition}")
    missing = sorted(at.keys() - set(copied))
    return found + [f"not copied by {kind}: {len(missing)}, first {missing[:1]}"] * bool(missing)


def _until(is_true: Any, *, fails: bool = True) -> None:
    end = time.monotonic() + LAST_SECONDS
    while not is_true():
        if time.monotonic() > end:
            assert not fails, "nothing happens"
            return
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", help="makers of the clients; else each alone, then all, log by log")
    parser.add_argument("--each", type=int, default=25, help="the most turns of one log")
    parser.add_argument("--keep", type=Path, help="a directory for the logs of the servers and the clients")
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    rotation = [given.kinds.split(",")] if given.kinds else [*([kind] for kind in KINDS), list(KINDS)]
    total, seed = Result(), given.seed
    while len(total.served) < given.turns:
        turns = min(given.each, given.turns - len(total.served))
        kinds = rotation[(seed - given.seed) % len(rotation)]
        chosen = [client for client in EVERY if client[0] in kinds]
        total.add(run(turns, seed, chosen, show=True, kept=given.keep))
        seed += 1
        print(total.summary(), flush=True)
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
