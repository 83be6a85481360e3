"""Measure `lastword serve` beside a Kafka broker: CPU time, latency, start and memory of the server process.

The servers run on the same cores, one at a time, and get the same bytes from the same client, which sends
requests that were built before. So the client costs each the same, and CPU seconds are those of the server.

The third rival is kfake, franz-go's broker for tests, if Go is there: `kfake/` is built once, into the user's
cache, by a run of at least KFAKE_RECORDS records. It keeps records in memory and writes no file, so it is a
bound for start, memory and CPU time.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.server.client import Client, batch, produce_request
from tests.support.jars import KAFKA_VERSION, KafkaJars, cache_directory
from tests.support.kafka import Broker, Tools

from bench import kafka
from bench.registry import Measured, Run, workload
from lastword.protocol import ClientConnection
from lastword.protocol.messages import CreateTopicsRequest, MetadataRequest
from lastword.wire import LZ4, ZSTD

VALUE_BYTES = 100
TICKS = os.sysconf("SC_CLK_TCK")
RATE = 400
"""Requests per second while latency is measured, over all connections."""
LATENCY_SECONDS = 5.0
KAFKA = f"Kafka {KAFKA_VERSION}"
KFAKE = "kfake, in memory"
KFAKE_SOURCE = Path(__file__).parent / "kfake"
KFAKE_RECORDS = 100_000
"""A smaller run is not worth the minute that a build of kfake takes on two cores."""


@dataclass
class Peer:
    """A running server."""

    host: str
    port: int
    pid: int
    seconds_to_metadata: float = 0.0

    def client(self) -> Client:
        return Client(self, timeout=60)

    def cpu(self) -> float:
        """Return the CPU seconds of the process up to now."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def spent_since(self, before: float) -> float:
        """Return the CPU seconds since `cpu` returned `before`: a tick at least, so that a ratio exists."""
        return max(self.cpu() - before, 1 / TICKS)

    def memory(self) -> float:
        """Return the resident memory in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

    def create(self, **topics: dict[str, Any]) -> None:
        kind = CreateTopicsRequest.CreatableTopic
        asked = [
            kind(
                name=name,
                num_partitions=config.pop("partitions", 1),
                replication_factor=1,
                assignments=[],
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                    for key, value in config.items()
                ],
            )
            for name, config in topics.items()
        ]
        with self.client() as client:
            answer = client.ask(CreateTopicsRequest(topics=asked, timeout_ms=30_000), 7)
            failed = [topic for topic in answer.topics if topic.error_code]
            if failed:
                raise RuntimeError(f"{failed[0].name}: {failed[0].error_message}")
            deadline = time.monotonic() + 30
            while not (
                all(self._partitions(client, list(topics)))
                and all(client.offset(name, -1, version=5).error_code == 0 for name in topics)
            ):  # Kafka names a leader some time before it serves
                if time.monotonic() > deadline:
                    raise RuntimeError("the topics have no leaders")
                time.sleep(0.02)

    @staticmethod
    def _partitions(client: Client, names: list[str]) -> list[int]:
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        answer = client.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 9)
        return [
            0 if any(p.leader_id < 0 for p in topic.partitions) else len(topic.partitions)
            for topic in answer.topics
        ]


@contextmanager
def ours(directory: Path, settings: str = "", url: str | None = None) -> Iterator[Peer]:
    """Run `lastword serve`, over a directory or the log in a bucket at `url`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "lastword.toml").write_text(settings)
    began = time.perf_counter()
    place = str(directory) if url is None else url
    command = [sys.executable, "-m", "lastword", "serve", place, "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "bootstrap_servers" in line)
        host, _, port = json.loads(line)["bootstrap_servers"].rpartition(":")
        peer = Peer(host, int(port), process.pid)
        _first_metadata(peer)
        peer.seconds_to_metadata = time.perf_counter() - began
        yield peer
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def broker(tools: Tools, directory: Path, **settings: str) -> Iterator[Peer]:
    """Run a broker with the flags of Kafka's start script."""
    flags = ["-Xmx1g", "-Xms1g", *kafka.BROKER_FLAGS]
    names = {name.replace("_", "."): value for name, value in settings.items()}
    running = Broker(tools, directory, settings=names, java_flags=flags)
    began = time.perf_counter()
    with running:
        host, _, port = running.bootstrap.rpartition(":")
        peer = Peer(host, int(port), running.pid)
        _first_metadata(peer)
        peer.seconds_to_metadata = time.perf_counter() - began
        yield peer


def built_kfake(run: Run) -> Path | None:
    """Return kfake's program, built once with modules in the user's cache; None, with the reason printed."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        print("kfake is left out: Go is not there", file=sys.stderr)
        return None
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(KFAKE_SOURCE.iterdir())))
    program = cache_directory() / f"kfake-{digest.hexdigest()[:16]}"
    if not program.exists():
        if run.records < KFAKE_RECORDS:
            print(f"kfake is left out: it is built by runs of {KFAKE_RECORDS:,} records", file=sys.stderr)
            return None
        paths = {"GOMODCACHE": "go-modules", "GOCACHE": "go-build"}
        settings = {name: str(cache_directory() / folder) for name, folder in paths.items()}
        command = [go, "build", "-mod=readonly", "-trimpath", "-o", str(program), "."]
        environment = {**os.environ, **settings, "GOTOOLCHAIN": "local"}
        built = subprocess.run(command, cwd=KFAKE_SOURCE, env=environment, capture_output=True, text=True)
        if built.returncode:
            print(f"kfake is left out: {built.stderr.strip()}", file=sys.stderr)
            return None
    return program


@contextmanager
def kfake(program: Path) -> Iterator[Peer]:
    """Run kfake."""
    began = time.perf_counter()
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        host, _, port = process.stdout.readline().strip().rpartition(":")
        peer = Peer(host, int(port), process.pid)
        _first_metadata(peer)
        peer.seconds_to_metadata = time.perf_counter() - began
        yield peer
        process.stdin.close()


def _first_metadata(peer: Peer) -> None:
    with peer.client() as client:
        client.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False), 9)


def records(batch_bytes: int, codec: int = 0) -> tuple[bytes, int]:
    """Return a batch of about this size before it is compressed, and its number of records."""
    count = max(1, (batch_bytes - 61) // (VALUE_BYTES + 24))
    value = bytes(range(VALUE_BYTES))
    return batch(*[(b"key-%012d" % number, value) for number in range(count)], codec=codec), count


def pump(peer: Peer, frames: Callable[[Client], Any], requests: int) -> None:
    """Send the same request again and again on one connection; check each answer."""
    with peer.client() as client:
        for _ in range(requests):
            frames(client)


def produce_all(peer: Peer, topic: str, total: int, batch_bytes: int, codec: int = 0) -> int:
    """Produce about `total` records; return how many."""
    data, count = records(batch_bytes, codec)
    body = produce_request(topic, data, acks=1)
    requests = max(1, total // count)

    def send(client: Client) -> None:
        answer = client.ask(body, 9).responses[0].partition_responses[0]
        assert answer.error_code == 0, answer

    pump(peer, send, requests)
    return requests * count


def fetch_all(peer: Peer, topic: str, end: int) -> None:
    """Fetch a partition from its start to `end`, at most 1 MiB at a time; the records are not parsed."""
    with peer.client() as client:
        offset = 0
        while offset < end:
            answer = client.fetch(topic, offset, version=11, partition_max_bytes=1 << 20)
            assert answer.error_code == 0 and len(answer.records), answer
            data, position = memoryview(answer.records), 0
            while position + 61 <= len(data):
                base, size = struct.unpack_from(">qi", data, position)
                (delta,) = struct.unpack_from(">i", data, position + 23)
                if position + size + 12 > len(data):
                    break
                offset, position = base + delta + 1, position + size + 12


@workload("server")
def server(run: Run) -> Iterator[Measured]:
    """Serve Kafka's protocol: produce, fetch, latency, start, memory, partitions.

    Rivals: a Kafka broker, and kfake (start, memory, produce and fetch), one at a time on the same cores. CPU
    seconds are those of the server's process for a million records of 124 bytes, after as many to warm up.
    """
    program = built_kfake(run)
    with Tools(KafkaJars.find_or_fetch()) as tools:
        mine = _measured(run, "ours", tools)
        rivals = {KAFKA: _measured(run, "rival", tools)}
    if program is not None:
        rivals[KFAKE] = _measured_kfake(run, program)
    for name, rival in rivals.items():
        for (what, unit), amounts in mine.amounts.items():
            if (what, unit) in rival.amounts:
                ours, theirs = statistics.median(amounts), statistics.median(rival.amounts[what, unit])
                facts = (
                    {"cleaned": mine.cleaned, "rival_cleaned": rival.cleaned} if "cleaning" in what else {}
                )
                yield Measured("server", what, unit, ours, theirs, name, theirs / (ours or 1 / TICKS), facts)


@dataclass
class _Side:
    """The amounts of one server by what they are and their unit; the lower is the better."""

    amounts: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    cleaned: float = 0.0
    """Share of the bytes that the cleaning removed while latency was measured."""

    def add(self, what: str, unit: str, amount: float) -> None:
        self.amounts.setdefault((what, unit), []).append(amount)

    def spent(self, what: str, peer: Peer, count: int, work: Callable[[], Any]) -> None:
        """Add the CPU and wall seconds of `work` for a million of `count`."""
        cpu, wall = peer.cpu(), time.perf_counter()
        work()
        self.add(what, "CPU s/M records", peer.spent_since(cpu) / count * 1e6)
        self.add(what, "s/M records", (time.perf_counter() - wall) / count * 1e6)


def _measured(run: Run, name: str, tools: Tools) -> _Side:
    side = _Side()
    for number in range(run.repetitions):
        place = run.scratch / f"server-{name}-{number}"
        with _started(name, place, tools) as peer:
            _add_start(side, peer)
            _fixture(side, name, peer.seconds_to_metadata)
            if number == 0:
                _throughput(run, peer, side)
                _latency(run, peer, side, place)
                partitions = 1000 if run.records >= 1_000_000 else 50
                cpu = peer.cpu()
                peer.create(many={"partitions": partitions})
                side.add(f"create {partitions:,} partitions", "CPU s", peer.spent_since(cpu))
    return side


def _measured_kfake(run: Run, program: Path) -> _Side:
    side = _Side()
    for number in range(run.repetitions):
        with kfake(program) as peer:
            _add_start(side, peer)
            if number == 0:
                _throughput(run, peer, side)
    return side


def _add_start(side: _Side, peer: Peer) -> None:
    side.add("start to first metadata", "s", peer.seconds_to_metadata)
    side.add("memory after the start", "MB", peer.memory())


FIXTURE = """
import time
import pytest  # a session of tests has loaded it
began = time.perf_counter()
from lastword.testing import Broker
with Broker():
    pass
first = time.perf_counter()
for _ in range(20):
    with Broker():
        pass
print(first - began, (time.perf_counter() - first) / 20)
"""


def _fixture(side: _Side, name: str, seconds: float) -> None:
    """Add the time of the test broker: the first one of a process, and each further one.

    The rival is the start of a broker, which a test would have to wait for.
    """
    first = further = seconds
    if name == "ours":
        done = subprocess.run([sys.executable, "-c", FIXTURE], capture_output=True, text=True, check=True)
        first, further = map(float, done.stdout.split())
    side.add("first broker of a test session", "s", first)
    side.add("broker of each further test", "s", further)


def _started(name: str, place: Path, tools: Tools) -> AbstractContextManager[Peer]:
    if name == "ours":
        return ours(place, "log.cleaner.backoff.ms = 500\n")
    return broker(tools, place, log_cleaner_enable="true", log_cleaner_backoff_ms="500")


def _throughput(run: Run, peer: Peer, side: _Side) -> None:
    for label, size in (("16 KiB", 16 << 10), ("1 MiB", 1_000_000)):
        topic = f"t{size}"
        peer.create(**{topic: {"cleanup_policy": "delete"}})
        produce = partial(produce_all, peer, topic, run.records, size)
        written = produce()
        fetch = partial(fetch_all, peer, topic, written)
        for _ in range(run.repetitions):
            side.spent(f"produce, {label} batches", peer, written, produce)
        fetch()
        for _ in range(run.repetitions):
            side.spent(f"fetch, {label} batches", peer, written, fetch)


@workload("produce")
def produce(run: Run) -> Iterator[Measured]:
    """Produce batches of each size and codec, with the check of every record, beside a Kafka broker.

    CPU seconds are those of the server's process for a million records of 124 bytes, after as many before.
    """
    with Tools(KafkaJars.find_or_fetch()) as tools:
        sides = {}
        for name in ("ours", "rival"):
            side = sides[name] = _Side()
            with _started(name, run.scratch / f"produce-{name}", tools) as peer:
                for what, policy, size, codec in PRODUCED:
                    topic = what.replace(", ", "-").replace(" ", "")
                    peer.create(**{topic: {"cleanup_policy": policy}})
                    work = partial(produce_all, peer, topic, run.records, size, codec)
                    written = work()
                    for _ in range(run.repetitions):
                        side.spent(what, peer, written, work)
    for (what, unit), amounts in sides["ours"].amounts.items():
        mine, theirs = statistics.median(amounts), statistics.median(sides["rival"].amounts[what, unit])
        yield Measured("produce", what, unit, mine, theirs, KAFKA, theirs / (mine or 1 / TICKS), {})


PRODUCED = [
    (f"{label}, {codec}, {policy}", policy, size, number)
    for label, size in (("16 KiB", 16 << 10), ("1 MB", 1_000_000))
    for codec, number in (("none", 0), ("lz4", LZ4), ("zstd", ZSTD))
    for policy in ("delete", "compact")
]
"""What is produced: its name, the policy of the topic, bytes of a batch and codec."""


# ---------------------------------------------------------------- latency


class _Caller:
    """A connection that sends one Produce request again and again, and times the answers."""

    def __init__(self, peer: Peer, body: Any) -> None:
        self.socket = socket.create_connection((peer.host, peer.port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = ClientConnection("bench")
        self._body = body
        self.sent_at: float | None = None

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        parts: list[Any] = self._protocol.request(self._body, 9)
        self.socket.sendall(b"".join(parts))

    def receive(self) -> float | None:
        """Return the seconds since the request, when the answer is whole."""
        for answer in self._protocol.receive_data(self.socket.recv(1 << 16)):
            partition = answer.body.responses[0].partition_responses[0]
            assert partition.error_code == 0 and self.sent_at is not None, partition
            took, self.sent_at = time.perf_counter() - self.sent_at, None
            return took
        return None


def latencies(peer: Peer, topic: str, connections: int, seconds: float) -> list[float]:
    """Return the seconds of each request, sent at a fixed rate over all connections.

    A request counts from the time at which it was due: a server that pauses delays all that follow.
    """
    body = produce_request(topic, records(1024)[0], acks=1)
    callers = [_Caller(peer, body) for _ in range(connections)]
    for caller in callers:  # a new connection costs more than a request
        caller.send()
        while caller.receive() is None:
            pass
    took: list[float] = []
    with selectors.DefaultSelector() as ready:
        for caller in callers:
            ready.register(caller.socket, selectors.EVENT_READ, caller)
        start = time.perf_counter()
        due, number = start, 0
        while (now := time.perf_counter()) < start + seconds:
            if now >= due:
                caller = callers[number % connections]
                if caller.sent_at is None:
                    caller.send()
                    caller.sent_at = due
                    number, due = number + 1, due + 1 / RATE
            for key, _ in ready.select(max(0.0, min(due - time.perf_counter(), 0.01))):
                answered = key.data.receive()
                if answered is not None:
                    took.append(answered)
    for caller in callers:
        caller.socket.close()
    return took


def _latency(run: Run, peer: Peer, side: _Side, place: Path) -> None:
    seconds = LATENCY_SECONDS if run.records >= 1_000_000 else 0.5
    churn = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": 0.001,
        "segment_bytes": max(run.records * 8, 1 << 20),
    }
    peer.create(latency={"cleanup_policy": "delete"}, churn=churn)
    latencies(peer, "latency", 10, seconds)
    for connections, cleans in ((1, False), (10, False), (100, False), (10, True)):
        before = 0
        if cleans:
            produce_all(peer, "churn", run.records, 1_000_000)
            before = _size(place / "churn-0")
        took = sorted(latencies(peer, "latency", connections, seconds))
        if cleans:
            side.cleaned = 1 - _size(place / "churn-0") / before
        what = f"produce, {connections} connections" + (", a cleaning runs" if cleans else "")
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            side.add(f"{what}, {label}", "ms", took[int(len(took) * share)] * 1e3)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))
