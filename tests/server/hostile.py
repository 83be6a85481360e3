"""Hostile clients of a server in a process of its own, beside a client that must be served meanwhile.

    python -m tests.server.hostile --frames 100000 --connections 1000 --seed 7

Mutated and random frames, half frames, announced sizes of 2 GB, clients that read nothing, idle connections,
batches that decompress to much more than they are, also many at the same time, and malformed records. Judged:
the memory of the server, the longest answer to the other client, and no traceback in the server's log.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lastword.protocol import ClientConnection, codes
from lastword.protocol.messages import ApiVersionsRequest, CreateTopicsRequest, MetadataRequest
from lastword.protocol.schemas import APIS, Message
from lastword.wire import GZIP, LZ4, SNAPPY, ZSTD
from tests.protocol.mutants import mutated
from tests.protocol.random_messages import random_message
from tests.server import malformed
from tests.server.client import (
    Address as Address,
)
from tests.server.client import (
    Client,
    batch,
    fetch_request,
    metadata,
    new_topic,
    produce_request,
)

MIB = 1 << 20
MOST_GROWTH = 400 * MIB
"""Bytes that the server may grow by: its limit of 64 MiB for requests, the largest batch decompressed, the
kernels and the topics that random requests create."""
MOST_BOMBED = 300 * MIB
MOST_SECONDS = 5.0
"""The longest answer to the other client, on a loaded machine."""
NO_SUCH = ("Shutdown", "ControlledShutdown")


@functools.cache
def zeros(size: int, codec: int) -> bytes:
    """Return a batch of one record with a value of `size` zeros."""
    return batch((b"k", bytes(size)), codec=codec)


class Hostile:
    """A server in a process of its own, and the clients that attack it."""

    def __init__(self, process: subprocess.Popen[str], log: Any, seed: int) -> None:
        assert process.stdout is not None
        self.process = process
        self.log = log
        port = int(json.loads(process.stdout.readline())["bootstrap_servers"].rpartition(":")[2])
        self.address: Any = Address("127.0.0.1", port)
        self.rng = random.Random(seed)
        self.slowest = 0.0
        self.answers = 0
        self.failed: BaseException | None = None
        self._ended = threading.Event()
        self._other = threading.Thread(target=self._be_served)
        with Client(self.address) as client:
            client.ask(metadata("users", "plain"))
            for _ in range(10):
                client.produce("plain", batch((b"k", bytes(900_000))))
            self.id = client.topic_id("plain")
        self._other.start()

    def rss(self, name: str = "VmHWM") -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(name))

    def _be_served(self) -> None:
        try:
            with Client(self.address, timeout=60) as client:
                while not self._ended.wait(0.01):
                    began = time.monotonic()
                    assert client.ask(ApiVersionsRequest()).error_code == 0
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self.answers += 1
        except BaseException as error:
            self.failed = error

    def end(self) -> str:
        """Return the server's log."""
        self._ended.set()
        self._other.join(120)
        self.process.terminate()
        assert self.process.wait(60) == 0
        self.log.seek(0)
        return self.log.read()

    def connected(self) -> socket.socket:
        return socket.create_connection(self.address, 30)

    # -------------------------------------------------------------- attacks

    def mutated_frames(self, count: int) -> None:
        """Frames with one to three changes, several on a connection, of which some close in the middle."""
        left = count
        while left > 0:
            with self.connected() as sock, contextlib.suppress(OSError):
                for _ in range(min(left, self.rng.randint(1, 20))):
                    left -= 1
                    sock.settimeout(5)
                    sock.sendall(self._frame())
                    sock.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        if not sock.recv(1 << 16):
                            break

    def _frame(self) -> bytes:
        if self.rng.random() < 0.1:
            data = self.rng.randbytes(self.rng.randrange(60))
            key, version = self.rng.randrange(80), self.rng.randrange(14)
            return struct.pack(">ihhih", 10 + len(data), key, version, 1, -1) + data
        api = self.rng.choice([api for api in APIS.values() if api.name not in NO_SUCH])
        version = self.rng.randint(api.first, api.last)
        body = random_message(f"{api.name}Request", version, self.rng)
        known(body, self, self.rng)
        data = b"".join(map(bytes, ClientConnection("c").request(body, version)))  # type: ignore[arg-type]
        return mutated(data, self.rng)

    @contextlib.contextmanager
    def half_frames(self, count: int) -> Iterator[None]:
        """Large requests of which a part is sent; and sizes of up to 2 GB."""
        with contextlib.ExitStack() as stack:
            for number in range(count):
                sock = stack.enter_context(self.connected())
                sock.setblocking(False)
                size = self.rng.choice((0x7FFFFFFF, 101 * MIB, 90 * MIB, 1000, 3))
                with contextlib.suppress(OSError):
                    sock.sendall(struct.pack(">i", size) + bytes(min(size - 1, 200_000) if number % 3 else 5))
            yield

    @contextlib.contextmanager
    def slow_readers(self, count: int) -> Iterator[None]:
        """Clients that ask for 9 MB a hundred times, or for all metadata, and read nothing."""
        with contextlib.ExitStack() as stack:
            for number in range(count):
                client = stack.enter_context(Client(self.address, timeout=0.1))
                with contextlib.suppress(OSError):
                    for _ in range(100):
                        if number % 2:
                            client.send(MetadataRequest(topics=None), 12)
                        else:
                            client.send(fetch_request([("plain", 0, 0)], partition_max_bytes=50 << 20), 12)
            yield

    @contextlib.contextmanager
    def idle(self, count: int) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(self.connected())
            yield

    def bombs(self, size: int) -> list[int]:
        """Batches of zeros in every codec, to a compacted topic and to another; return the error codes."""
        errors = []
        with Client(self.address, timeout=120) as client:
            policies = {"dense": "compact", "sparse": "delete"}
            topics = [new_topic(name, 1, {"cleanup.policy": policy}) for name, policy in policies.items()]
            client.ask(CreateTopicsRequest(topics=topics))
            for codec in (GZIP, SNAPPY, LZ4, ZSTD):
                many = batch(*[(b"", b"")] * 100_000, codec=codec)
                for topic in policies:
                    for data in (zeros(size, codec), many):
                        client.send(produce_request(topic, data), 9)
                        errors.append(client.receive().responses[0].partition_responses[0].error_code)
        return errors

    def crowd(self, count: int, size: int) -> set[int]:
        """Batches of zeros of many clients at the same time; return the error codes."""
        with Client(self.address, timeout=120) as client:
            topic = new_topic("crowd", count, {"cleanup.policy": "delete"})
            client.ask(CreateTopicsRequest(topics=[topic]))
        batches = [zeros(size, codec) for codec in (GZIP, LZ4, ZSTD)]

        def produce(partition: int) -> int:
            with Client(self.address, timeout=120) as client:
                return int(client.produce("crowd", batches[partition % 3], partition=partition).error_code)

        with ThreadPoolExecutor(count) as pool:
            return set(pool.map(produce, range(count)))

    def malformed(self, count: int) -> set[int]:
        """Batches with mutated records; return the error codes."""
        now = int(time.time() * 1000)
        with Client(self.address, timeout=60) as client:
            client.ask(metadata("plain"))  # a frame may have deleted it, by its id
            batches = (malformed.mutated(now, self.rng)[1] for _ in range(count))
            return {int(client.produce("plain", data).error_code) for data in batches}


def known(message: Message, topic: Any, rng: random.Random) -> None:
    """Replace some names, ids and partitions by those of a topic and a group that exist."""
    for name in message.__slots__:
        value = getattr(message, name)
        if name in ("name", "topic", "resource_name") and value and rng.random() < 0.7:
            setattr(message, name, "users")
        elif name == "group_id" and value and rng.random() < 0.7:
            setattr(message, name, "g")
        elif name == "topic_id" and any(value) and rng.random() < 0.7:
            setattr(message, name, topic.id)
        elif name in ("partition", "partition_index", "index") and rng.random() < 0.7:
            setattr(message, name, 0)
        elif name in ("num_partitions", "count") and value:
            setattr(message, name, rng.randrange(-2, 4))
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Message):
                known(part, topic, rng)


@contextlib.contextmanager
def attacked(seed: int) -> Iterator[Hostile]:
    shared = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory,
        tempfile.TemporaryFile("w+") as log,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "lastword", "serve", directory, "--listen", "127.0.0.1:0", "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ
            | {"LASTWORD_QUEUED_MAX_REQUEST_BYTES": "64MiB", "LASTWORD_DECOMPRESSION_BYTES": "256MiB"},
        )
        try:
            yield Hostile(process, log, seed)
        finally:
            process.kill()
            process.communicate()


def run(frames: int, connections: int, seed: int, crowd: int = 24) -> str:
    """Attack a server; return a line with the figures."""
    with attacked(seed) as server:
        before = server.rss()
        with server.idle(connections), server.half_frames(connections // 4), server.slow_readers(20):
            server.mutated_frames(frames)
            grown = server.rss() - before
            errors = server.bombs(64 * MIB)
            crowd_errors = server.crowd(crowd, 64 * MIB)
            mutants = server.malformed(min(frames, 10_000))
        assert not set(errors) - {0, codes.MESSAGE_TOO_LARGE}, errors
        assert 0 in crowd_errors and crowd_errors <= {0, codes.REQUEST_TIMED_OUT}, crowd_errors
        assert mutants == {0, codes.INVALID_RECORD}, mutants
        bombed = server.rss() - before
        log = server.end()
    assert server.failed is None, server.failed
    wrong = [line for line in log.splitlines() if "Traceback" in line or '"level":"error"' in line]
    assert not wrong, "\n".join(wrong[:10])
    assert grown < MOST_GROWTH, f"{grown / MIB:.0f} MiB"
    assert bombed < MOST_GROWTH + MOST_BOMBED, f"{bombed / MIB:.0f} MiB"
    assert server.answers > 10 and server.slowest < MOST_SECONDS, server.slowest
    return (
        f"{frames} frames, {connections} connections: memory grew by {grown / MIB:.0f} MiB, by "
        f"{bombed / MIB:.0f} with bombs; the other client got {server.answers} answers, the slowest after "
        f"{server.slowest * 1000:.0f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(run(arguments.frames, arguments.connections, arguments.seed))
