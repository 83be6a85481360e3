"""Clients that send half a frame, read nothing, or announce too much: others are served meanwhile."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import time
from typing import Any

import pytest

import lastword
from lastword.protocol.codes import APIS
from lastword.protocol.messages import ApiVersionsRequest
from lastword.protocol.schemas import Message
from lastword.server import Server
from tests.protocol.random_messages import random_message
from tests.server.client import Client, batch, fetch_request


def connected(server: Server) -> socket.socket:
    return socket.create_connection((server.host, server.port), 5)


def is_served(server: Server) -> bool:
    with Client(server) as client:
        return client.ask(ApiVersionsRequest()).error_code == 0


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 0x7FFFFFFF),
        struct.pack(">i", -5),
        struct.pack(">i", 101 << 20) + b"x" * 1000,
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
    ],
)
def test_a_frame_that_is_refused_closes_its_connection_only(server: Server, sent: bytes) -> None:
    with connected(server) as sock:
        sock.sendall(sent)
        assert sock.recv(10) == b""
    assert is_served(server)


def test_half_frames_and_idle_connections_do_not_stop_others(server: Server) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        for number in range(min(300, soft // 4)):
            sock = stack.enter_context(connected(server))
            if number % 2:
                sock.sendall(struct.pack(">i", 50 << 20) + b"half")
        assert is_served(server)


def test_a_client_that_reads_nothing_is_not_served_ahead(
    server: Server, client: Client, logs: lastword.LogDir
) -> None:
    logs.create_topic("users")
    for _ in range(10):
        client.produce("users", batch((b"k", b"v" * 900_000)))
    slow = Client(server)
    for _ in range(200):  # 1.8 GB of answers
        slow.send(fetch_request([("users", 0, 0)], partition_max_bytes=50 << 20), 12)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    time.sleep(0.2)
    assert is_served(server)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
    slow.socket.close()


@pytest.mark.parametrize("name", sorted(api.name for api in APIS.values()))
def test_random_messages_give_no_traceback(
    name: str, server: Server, logs: lastword.LogDir, caplog: pytest.LogCaptureFixture
) -> None:
    """Valid messages with random fields, some of them with names and ids that exist."""
    api = next(api for api in APIS.values() if api.name == name)
    if api.key not in server.broker.apis:
        return  # not served yet
    rng = random.Random(api.key)
    for version in range(api.first, api.stable + 1):
        for _ in range(4):
            logs.create_topic("users", exist_ok=True)
            body = random_message(f"{name}Request", version, rng)
            known(body, server.broker.topics.get("users"), rng)
            with Client(server, timeout=0.05) as client, contextlib.suppress(OSError):
                client.send(body, version)
                client.receive()
    assert is_served(server)
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


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


def test_random_bytes_give_no_traceback(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(5)
    for _ in range(100):
        with connected(server) as sock, contextlib.suppress(OSError):
            key, body = rng.randrange(80), rng.randbytes(rng.randrange(60))
            sock.sendall(struct.pack(">ihhih", 10 + len(body), key, rng.randrange(14), 1, -1) + body)
    assert is_served(server)
    assert not [record for record in caplog.records if record.exc_info]
