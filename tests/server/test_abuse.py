"""Clients that send half a frame, read nothing, or announce too much: others are served meanwhile."""

from __future__ import annotations

import contextlib
import errno
import random
import resource
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.protocol import ClientConnection
from lastword.protocol.messages import ApiVersionsRequest, MetadataRequest, MetadataResponse
from lastword.protocol.schemas import APIS
from lastword.records import produced
from lastword.server import Server
from lastword.server import memory as memory_module
from lastword.server import server as server_module
from lastword.wire import GZIP, UNCOMPRESSED
from tests.protocol.random_messages import LONGEST, TEXTS, random_message
from tests.server import hostile
from tests.server.client import Client, batch, fetch_request, served
from tests.server.hostile import known
from tests.support.exhaustive import stride
from tests.support.waiting import until


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
        b"GET / HTTP/1.1\r\n\r\n" * 10,
    ],
)
def test_a_frame_that_is_refused_closes_its_connection_only(server: Server, sent: bytes) -> None:
    with connected(server) as sock:
        sock.sendall(sent)
        assert sock.recv(10) == b""
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
    """Valid messages with random fields: names and ids that exist among them, or the longest texts."""
    api = next(api for api in APIS.values() if api.name == name)
    rng = random.Random(api.key)
    for version in range(api.first, api.stable + 1):
        for texts in (TEXTS, TEXTS, LONGEST, LONGEST)[:: stride(2)]:
            logs.create_topic("users", exist_ok=True)
            body = random_message(f"{name}Request", version, rng, texts)
            known(body, server.context.topics.get("users"), rng)
            with Client(server, timeout=0.05) as client, contextlib.suppress(OSError):
                client.send(body, version)
                client.receive()
    assert is_served(server)
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


def test_a_client_that_ends_while_its_fetch_waits_is_not_reported(
    server: Server, logs: lastword.LogDir, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lastword.server")
    logs.create_topic("users")
    for _ in range(3):
        with Client(server) as client:
            client.send(fetch_request([("users", 0, 0)], max_wait_ms=200, min_bytes=1), 12)
            client.send(fetch_request([("users", 0, 0)], max_wait_ms=200, min_bytes=1), 12)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.5)
    assert is_served(server)
    assert not [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]


# -------------------------------------------------------------- limits


def is_closed(sock: socket.socket, seconds: float = 5) -> bool:
    sock.settimeout(seconds)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_a_connection_above_the_number_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path, max_connections=2) as (_, server, first), Client(server) as second:
        for client in (first, second):
            assert client.ask(ApiVersionsRequest()).error_code == 0
        for _ in range(20):
            with connected(server) as sock:
                assert is_closed(sock)
        assert [r.getMessage().partition(": ")[2] for r in caplog.records if r.levelname == "WARNING"] == [
            "refused: 2 connections are open (max.connections)"
        ]
        first.socket.close()
        time.sleep(0.05)
        assert is_served(server)


def test_an_idle_connection_is_closed_and_a_long_poll_is_not(tmp_path: Path) -> None:
    with served(tmp_path, connections_max_idle_ms=150) as (logs, server, client):
        logs.create_topic("users")
        with connected(server) as idle, connected(server) as half:
            half.sendall(struct.pack(">i", 1000) + b"half")
            client.send(fetch_request([("users", 0, 0)], max_wait_ms=500), 12)
            began = time.monotonic()
            assert is_closed(idle) and is_closed(half)
            assert 0.1 < time.monotonic() - began < 2
            assert client.receive().error_code == 0


def test_a_client_that_goes_during_a_long_poll_keeps_no_connection(tmp_path: Path) -> None:
    with served(tmp_path, connections_max_idle_ms=150) as (logs, server, _):
        logs.create_topic("users")
        for _ in range(3):
            with Client(server) as client:
                client.send(fetch_request([("users", 0, 0)], max_wait_ms=(1 << 31) - 1), 12)
                until(lambda: server.node._fetches._waiting)
        until(lambda: not server.connections and not server.node._fetches._waiting)


def test_without_descriptors_nothing_is_accepted_for_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "ACCEPT_PAUSE_SECONDS", 0.2)
    with served(tmp_path) as (_, server, _):
        calls = []

        class Listener:
            def accept(self) -> Any:
                calls.append(time.monotonic())
                if len(calls) <= 3:
                    raise OSError(errno.EMFILE, "Too many open files")
                return listener.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(listener, name)

        listener, server._listener = server._listener, Listener()  # type: ignore[assignment]
        assert is_served(server)
        assert calls[3] - calls[0] > 0.5 and len(calls) < 10
        assert len([record for record in caplog.records if "Too many open files" in record.getMessage()]) == 1


def test_large_requests_share_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a large request each from many clients: the memory is bounded, small requests are answered,
    and the slow clients are closed, so that the large request of another one is received."""
    monkeypatch.setattr(memory_module, "SLOW_SECONDS", 0.1)
    with (
        served(tmp_path, queued_max_request_bytes="1MiB") as (logs, server, client),
        contextlib.ExitStack() as stack,
    ):
        logs.create_topic("users")
        slow = [stack.enter_context(connected(server)) for _ in range(5)]
        for sock in slow:
            sock.setblocking(False)
            sock.sendall(struct.pack(">i", 1 << 20))
        sent = [0] * len(slow)
        for _ in range(40):
            for number, sock in enumerate(slow):
                with contextlib.suppress(OSError):
                    sent[number] += sock.send(bytes(min(64 << 10, (900 << 10) - sent[number])))
            assert server.memory.used < (1 << 20) + (1 << 20) + 5 * 384 * 1024
            time.sleep(0.002)
        assert server.memory.used > 1 << 20
        assert is_served(server)
        assert client.produce("users", batch((b"k", bytes(1_000_000)))).error_code == 0
        assert is_served(server)
        assert sum(is_closed(sock, 0.01) for sock in slow) >= 1
    assert server.memory.used == 0


def test_the_memory_of_answers_is_counted(server: Server) -> None:
    name = "n" * 30_000
    topics = [MetadataResponse.MetadataResponseTopic(name=name, partitions=[]) for _ in range(20)]
    handle = server.handle
    server.handle = lambda request, connection: (
        MetadataResponse(brokers=[], topics=topics)
        if request.api.name == "Metadata"
        else handle(request, connection)
    )
    slow = [Client(server) for _ in range(4)]
    for reader in slow:
        for _ in range(50):
            reader.send(MetadataRequest(topics=None), 12)
    until(lambda: server.memory.used > 1_200_000)
    assert server.memory.used < 3_000_000
    server.handle = handle
    assert is_served(server)
    for reader in slow:
        reader.socket.close()
    until(lambda: not server.memory.used)


def test_many_small_requests_of_a_client_leave_time_for_others(server: Server) -> None:
    handle = server.handle

    def slow(request: Any, connection: Any) -> Any:
        if request.client_id == "many":
            time.sleep(0.002)
        return handle(request, connection)

    server.handle = slow
    protocol = ClientConnection("many")
    data = b"".join(b"".join(protocol.request(ApiVersionsRequest(), 0)) for _ in range(1000))  # type: ignore[arg-type]
    with connected(server) as many:
        many.sendall(data)
        time.sleep(0.05)
        began = time.monotonic()
        assert is_served(server)
        assert time.monotonic() - began < 1  # all requests of the other take 2 s
        answers = 0
        while answers < 200:
            answers += sum(1 for _ in protocol.receive_data(many.recv(1 << 16)))


@pytest.mark.parametrize(
    ("records", "codec", "in_pool"),
    [
        ([(b"k", bytes(100_000))], GZIP, False),
        ([(b"k", bytes(3 << 20))], GZIP, True),
        ([(b"k", b"")] * 10_000, UNCOMPRESSED, True),
    ],
)
def test_records_that_take_long_are_checked_in_the_pool(
    records: Any,
    codec: int,
    in_pool: bool,
    server: Server,
    client: Client,
    logs: lastword.LogDir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, run = [], server.context.in_pool
    server.context.in_pool = lambda *given: (calls.append(given), run(*given))[1]  # type: ignore[method-assign]
    for topic, policy in (("dense", "compact"), ("sparse", "delete")):
        logs.create_topic(topic, cleanup_policy=policy).append(b"k", b"")
        monkeypatch.setattr(produced, "_kernels_used", False)
        calls.clear()
        assert client.produce(topic, batch(*records, codec=codec)).error_code == 0
        assert bool(calls) == in_pool
    monkeypatch.setattr(produced, "_kernels_used", True)
    calls.clear()
    assert client.produce("dense", batch(*[(b"k", b"")] * 500, codec=codec)).error_code == 0
    assert not calls


@pytest.mark.slow
def test_hostile_clients() -> None:
    """A few of each kind. `make hostile N=100000` has more."""
    hostile.run(frames=200, connections=40, seed=3, crowd=8)
