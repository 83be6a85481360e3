"""End or stop the active server of a log in a bucket again and again: a standby takes over, nothing is lost.

    make kills-bucket-server N=50

Two processes `lastword serve s3://...` share a log on moto's server of S3, which runs in this process. An
idempotent producer of librdkafka and a consumer of aiokafka run all the time. Each turn sends SIGKILL or
SIGSTOP to the active server, waits until the other one has acknowledged a record, and lets the first one go
on: as a new process, or with SIGCONT. In the end each record that was acknowledged is in the log once, and
the consumer has read it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from examples.local_s3 import environment_of

import lastword
from lastword.bucket.commit import Bucket
from lastword.objects import open_store
from tests.server.client import Client

TOPIC, GROUP, PARTITIONS = "events", "readers", 2
SESSION_MS, HEARTBEAT_MS = 2_000, 500
LAST_SECONDS = 60.0


@dataclass
class Result:
    """What a run has shown.

    Attributes:
        served: Seconds from each signal until the other server answers as the active one.
        seconds: Seconds from each signal until the producer has an acknowledgement.
        acknowledged: Records that were acknowledged.
        violations: What must not be.
    """

    served: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    acknowledged: int = 0
    violations: list[str] = field(default_factory=list)


class Place(NamedTuple):
    """The address of a server."""

    host: str
    port: int


class Servers:
    """Two servers of one log, each at an address of its own."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url, self.options = url, options
        self.addresses = [f"127.0.0.1:{port}" for port in _free_ports(2)]
        self.processes = [self._started(address) for address in self.addresses]
        self.bucket = Bucket(open_store(url, options))

    def _started(self, address: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lastword", "serve", self.url, "--listen", address, "--json"]
        process = subprocess.Popen(
            [*command, "--partitions", str(PARTITIONS)],
            env=os.environ | environment_of(self.options["endpoint"]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
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
                with Client(Place(host, int(port))) as client:
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


class Producing(threading.Thread):
    """Produces the numbers from 0 on, idempotently, and notes those that are acknowledged."""

    def __init__(self, servers: list[str]) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, float] = {}
        self.last = 0.0  # when the last number was acknowledged
        self.stopping = threading.Event()
        self._servers = servers
        self.failed: list[str] = []

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": ",".join(self._servers),
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": 120_000,
                "request.timeout.ms": 1000,  # a server that is stopped keeps its connections
                "socket.timeout.ms": 2000,
                "log_level": 0,
            }
        )
        number = 0
        while not self.stopping.is_set():
            producer.produce(
                TOPIC,
                b"%d" % number,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=self._delivered,
            )
            number += 1
            producer.poll(0.01)
        producer.flush(LAST_SECONDS)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        self.last = self.acknowledged[int(message.value())] = time.monotonic()


class Consuming(threading.Thread):
    """Reads all records with a consumer of a group, and notes their offsets."""

    def __init__(self, servers: list[str]) -> None:
        super().__init__(daemon=True)
        self.read: dict[tuple[int, int], int] = {}
        self.failed: list[str] = []
        self.stopping = threading.Event()
        self._servers = servers

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=self._servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            retry_backoff_ms=50,
            request_timeout_ms=5000,
            connections_max_idle_ms=5000,
            metadata_max_age_ms=1000,
        )
        await consumer.start()
        try:
            while not self.stopping.is_set():
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    for record in batch:
                        number, place = int(record.value), (record.partition, record.offset)
                        if self.read.setdefault(place, number) != number:
                            self.failed.append(f"{place}: {number} after {self.read[place]}")
        finally:
            await consumer.stop()


def run(turns: int, seed: int, *, show: bool = False) -> Result:
    """Take the active server away `turns` times, and judge the log in the end."""
    from tests.support.stores import moto

    rng, result = random.Random(seed), Result()
    with moto() as store:
        url = f"{store.root}/takeovers-{seed}"
        with lastword.open(url, "a", storage_options=store.options) as logs:
            logs.set_config(
                broker_session_timeout_ms=SESSION_MS,
                broker_heartbeat_interval_ms=HEARTBEAT_MS,
                lastword_commit_linger_ms=20,
            )
            logs.create_topic(TOPIC, partitions=PARTITIONS, cleanup_policy="delete")
        servers = Servers(url, store.options)
        producing, consuming = Producing(servers.addresses), Consuming(servers.addresses)
        try:
            producing.start()
            consuming.start()
            _until(lambda: len(producing.acknowledged) > 20 and len(consuming.read) > 20)
            for turn in range(turns):
                time.sleep(rng.uniform(0.1, 1.0))
                index = servers.active()
                kind = rng.choice((signal.SIGKILL, signal.SIGSTOP)) if turn > 1 else (9, 19)[turn]
                began = time.monotonic()
                servers.processes[index].send_signal(kind)
                servers.await_active(1 - index)
                result.served.append(time.monotonic() - began)
                _until(lambda began=began: producing.last > began + SESSION_MS / 4000)  # type: ignore[misc]
                result.seconds.append(producing.last - began)
                if kind == signal.SIGKILL:
                    servers.processes[index].wait()
                    servers.processes[index] = servers._started(servers.addresses[index])
                else:
                    servers.processes[index].send_signal(signal.SIGCONT)
                if show:
                    text = f"{turn + 1} of {turns}: {signal.Signals(kind).name}"
                    text += f", served after {result.served[-1]:.2f} s"
                    text += f", acknowledged after {result.seconds[-1]:.2f} s"
                    print(f"{text}, {len(producing.acknowledged)} records", flush=True)
            producing.stopping.set()
            producing.join(LAST_SECONDS + 10)
            known = producing.acknowledged
            _until(lambda: known.keys() <= set(consuming.read.values()), fails=False)
            consuming.stopping.set()
            consuming.join(LAST_SECONDS)
        finally:
            servers.close()
        with lastword.open(url, storage_options=store.options) as logs:
            topic = logs.topic(TOPIC, value_serializer="bytes", key_serializer="bytes")
            numbers = Counter(int(record.value) for record in topic.read())
        result.acknowledged = len(known)
        lost, twice = known.keys() - numbers.keys(), [n for n, count in numbers.items() if count > 1]
        result.violations += [f"{len(lost)} lost: {sorted(lost)[:5]}"] * bool(lost)
        result.violations += [f"{len(twice)} twice: {sorted(twice)[:5]}"] * bool(twice)
        unread = known.keys() - set(consuming.read.values())
        result.violations += [f"{len(unread)} not read: {sorted(unread)[:5]}"] * bool(unread)
        result.violations += producing.failed[:5] + consuming.failed[:5]
    return result


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
    given = parser.parse_args()
    result = run(given.turns, given.seed, show=True)
    print(f"{len(result.served)} takeovers, {result.acknowledged} records, session timeout {SESSION_MS} ms")
    for what, seconds in (("served", result.served), ("acknowledged", result.seconds)):
        print(f"{what} again after: median {statistics.median(seconds):.2f} s, largest {max(seconds):.2f} s")
    for violation in result.violations:
        print(violation)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
