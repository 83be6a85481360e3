"""Users with passwords (SASL), and TLS: librdkafka, kafka-python and raw requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
import ssl
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import UsageError
from lastword.protocol import codes
from lastword.protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from lastword.protocol.schemas import APIS
from lastword.server import Server, security
from lastword.server import server as server_module
from lastword.server.security import Users, read_users, write_users
from tests.server.certificates import Pem, made_pem
from tests.server.client import Client, batch, fetch_request
from tests.server.test_clients import read
from tests.support.waiting import until

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USERS = {"ada": "secret, =\u00e9", "bob": "other"}


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    return made_pem(tmp_path_factory.mktemp("pem"))


Serve = Callable[..., Server]


@pytest.fixture
def serve(logs: lastword.LogDir) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(lastword.serve(logs, "127.0.0.1:0", **options))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "DENIED_SECONDS", 0.05)


def scram(user: str, password: str, mechanism: str, exchange: Callable[[bytes], bytes]) -> None:
    """A client of SCRAM, written from RFC 5802 alone."""
    name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    bare = f"n={user},r=fyko+d2lbbFgONRv9qkxdawL"
    first = exchange(b"n,," + bare.encode()).decode()
    fields = dict(part.split("=", 1) for part in first.split(","))
    assert fields["r"].startswith("fyko+d2lbbFgONRv9qkxdawL") and len(fields["r"]) > 40
    salted = hashlib.pbkdf2_hmac(name, password.encode(), b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", name)
    message = f"{bare},{first},c=biws,r={fields['r']}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
    proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    final = exchange(f"c=biws,r={fields['r']},p={proof}".encode())
    assert final == b"v=" + b64encode(hmac.digest(hmac.digest(salted, b"Server Key", name), message, name))


def log_in(client: Client, user: str, password: str, mechanism: str, version: int = 2) -> Any:
    """Return the last answer; the answers before have no error."""
    answer = client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
    assert answer.error_code == 0 and answer.mechanisms == list(MECHANISMS)

    def exchange(token: bytes) -> bytes:
        nonlocal answer
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), version)
        return bytes(answer.auth_bytes) if answer.error_code == 0 else b""

    if mechanism == "PLAIN":
        exchange(f"\0{user}\0{password}".encode())
    else:
        with contextlib.suppress(AssertionError) if password == "wrong" else contextlib.nullcontext():
            scram(user, password, mechanism, exchange)
    return answer


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_logs_in(mechanism: str, serve: Serve) -> None:
    server = serve(users=USERS)
    for version in range(3):
        with Client(server) as client:
            assert client.ask(ApiVersionsRequest(), 3).error_code == 0
            assert log_in(client, "ada", USERS["ada"], mechanism, version).error_code == 0
            assert client.ask(MetadataRequest(topics=None)).cluster_id == server.context.cluster_id
            again = client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
            assert again.error_code == codes.ILLEGAL_SASL_STATE
            token = SaslAuthenticateRequest(auth_bytes=b"\0ada\0secret")
            assert client.ask(token).error_code == codes.ILLEGAL_SASL_STATE
            assert client.ask(MetadataRequest(topics=None)).topics == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("ada", "wrong"), ("eve", "wrong"), ("ada", "")])
def test_a_wrong_password_ends_the_connection(
    mechanism: str, user: str, password: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with Client(serve(users=USERS)) as client:
        began = time.monotonic()
        try:
            answer = log_in(client, user, password, mechanism)
        except AssertionError:  # no signature of the server
            answer = None
        assert time.monotonic() - began > 0.05
        assert answer is None or answer.error_code == codes.SASL_AUTHENTICATION_FAILED
        sentence = "Invalid username or password" if mechanism == "PLAIN" else f"SASL mechanism {mechanism}"
        assert answer is None or answer.error_message.endswith(sentence)
        assert client.socket.recv(1) == b""
    lines = [record.getMessage() for record in caplog.records]
    assert any("denied: a wrong password, or an unknown user" in line for line in lines)
    assert not [record for record in caplog.records if record.exc_info]
    assert not any(secret in line for line in lines for secret in USERS.values())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_tokens_without_a_header(mechanism: str, serve: Serve) -> None:
    """As clients sent them after SaslHandshake in version 0."""
    server = serve(users=USERS)
    for password in ("other", "wrong"):
        with Client(server) as client:
            assert client.ask(SaslHandshakeRequest(mechanism=mechanism), 0).error_code == 0

            def exchange(token: bytes, sock: socket.socket = client.socket) -> bytes:
                sock.sendall(struct.pack(">i", len(token)) + token)
                size = sock.recv(4, socket.MSG_WAITALL)
                if not size:
                    raise ConnectionError
                return sock.recv(struct.unpack(">i", size)[0])

            try:
                if mechanism == "PLAIN":
                    assert exchange(f"bob\0bob\0{password}".encode()) == b""
                else:
                    scram("bob", password, mechanism, exchange)
            except ConnectionError:
                assert password == "wrong"
                continue
            assert password == "other"
            assert client.ask(MetadataRequest(topics=None)).topics == []


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0",
        b"n,,n=ada",
        b"\xff" * 20,
        b"p=tls-unique,,n=ada,r=abc",
        b"n,a=bob,n=ada,r=abc",
        b"n,,m=x,n=ada,r=abc",
        b"n,,n=ada,r=abc,tokenauth=true",
        b"n,,n=ada,r=",
        b"bob\0ada\0" + USERS["ada"].encode(),
        bytes(100_000),
    ],
)
def test_a_malformed_token_is_denied(token: bytes, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(users=USERS)
    for mechanism in MECHANISMS:
        with Client(server) as client:
            client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
            answer = client.ask(SaslAuthenticateRequest(auth_bytes=token))
            assert answer.error_code == codes.SASL_AUTHENTICATION_FAILED
            assert client.socket.recv(1) == b""
    assert not [record for record in caplog.records if record.exc_info]


def test_a_proof_is_bound_to_its_exchange(serve: Serve) -> None:
    """A proof that was right once is wrong the next time, and one for another nonce is not taken."""
    server = serve(users=USERS)
    sent: list[bytes] = []
    with Client(server) as client:
        client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)

        def exchange(token: bytes) -> bytes:
            sent.append(token)
            return bytes(client.ask(SaslAuthenticateRequest(auth_bytes=token)).auth_bytes)

        scram("bob", "other", "SCRAM-SHA-256", exchange)
    with Client(server) as client:
        client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        assert client.ask(SaslAuthenticateRequest(auth_bytes=sent[0])).error_code == 0
        assert client.ask(SaslAuthenticateRequest(auth_bytes=sent[1])).error_code != 0


def test_nothing_else_is_answered_before(serve: Serve, logs: lastword.LogDir) -> None:
    server = serve(users=USERS)
    logs.create_topic("users")
    assert set(security.BEFORE) <= set(APIS)
    for api in APIS.values():
        if api.key in (17, 18):
            continue
        with Client(server) as client:
            client.socket.sendall(struct.pack(">ihhih", 10, api.key, api.last, 1, -1))
            assert client.socket.recv(10) == b"", api.name
    with Client(server) as client:
        client.socket.sendall(struct.pack(">i", 600 << 10))
        assert client.socket.recv(10) == b""
    with Client(server) as client:
        answer = client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
        assert answer.error_code == codes.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == list(MECHANISMS)
        client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert client.socket.recv(1) == b""
    assert logs.topic("users").bounds()[0] == (0, 0)


def test_a_connection_that_does_not_log_in_is_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, pem: Pem
) -> None:
    monkeypatch.setattr(server_module, "READY_SECONDS", 0.2)
    for options in ({"users": USERS}, {"tls": (pem.cert, pem.key)}):
        server = serve(**options)
        with socket.create_connection((server.host, server.port), 5) as sock:
            assert sock.recv(1) == b""
    with Client(serve(users=USERS)) as client:
        log_in(client, "bob", "other", "PLAIN")
        time.sleep(0.3)
        assert client.ask(MetadataRequest(topics=None)).topics == []


def test_an_unknown_user_costs_the_same(tmp_path: Path) -> None:
    users = Users(USERS)
    for mechanism in MECHANISMS[1:]:
        one, is_one = users.find("eve", mechanism)
        same, _ = users.find("eve", mechanism)
        other, _ = users.find("mallory", mechanism)
        real, is_real = users.find("ada", mechanism)
        assert one.salt == same.salt != other.salt and len(one.salt) == len(real.salt)
        assert (one.iterations, len(one.stored_key)) == (real.iterations, len(real.stored_key))
        assert is_real and not is_one


def test_the_salt_of_an_unknown_user_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    known = {"ada": security.credentials("secret")}
    write_users(str(path), known)
    before = Users(path)
    assert before.find("eve", "SCRAM-SHA-256")[0] == Users(path).find("eve", "SCRAM-SHA-256")[0]
    write_users(str(path), known | {"bob": security.credentials("other")})
    assert before.find("eve", "SCRAM-SHA-256")[0] == Users(path).find("eve", "SCRAM-SHA-256")[0]


def test_the_file_of_users(tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "users.toml"
    write_users(str(path), {"ada": security.credentials("secret"), "b.o b": security.credentials("other")})
    text = path.read_text()
    assert "secret" not in text and path.stat().st_mode & 0o777 == 0o600
    assert list(read_users(str(path))) == ["ada", "b.o b"]
    server = serve(users=path)
    with Client(server) as client:
        assert log_in(client, "ada", "secret", "SCRAM-SHA-512").error_code == 0
    write_users(str(path), {"ada": security.credentials("changed")})
    with Client(server) as client:
        assert log_in(client, "ada", "changed", "PLAIN").error_code == 0
    path.chmod(0o640)
    with pytest.raises(UsageError, match="other users") as caught:
        Users(path)
    assert caught.value.remedy == f"chmod 600 {path}"
    path.chmod(0o600)
    for bad in ("[users", "[users.ada]\nSCRAM-SHA-256 = 'x'", "users = 3", "[users]\nada = 'secret'"):
        path.write_text(bad)
        with pytest.raises(UsageError, match="no file of users") as caught:
            Users(path)
        assert "secret" not in str(caught.value)
    with Client(server) as client:  # the last good list stays
        assert log_in(client, "ada", "changed", "SCRAM-SHA-256").error_code == 0
    assert any("the users stay as they were" in record.getMessage() for record in caplog.records)


def test_a_change_of_the_working_directory_does_not_change_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory, user in ((tmp_path, "ada"), (tmp_path / "elsewhere", "eve")):
        directory.mkdir(exist_ok=True)
        write_users(str(directory / "users.toml"), {user: security.credentials("secret")})
    monkeypatch.chdir(tmp_path)
    users = Users("users.toml")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [users.find(name, "SCRAM-SHA-256")[1] for name in ("ada", "eve")] == [True, False]


def test_another_interface_needs_users_or_certificates(tmp_path: Path, pem: Pem) -> None:
    for options in ({}, {"tls": (pem.cert, pem.key)}):
        with pytest.raises(UsageError, match="not a loopback address"):
            lastword.serve(tmp_path / "data", "0.0.0.0:0", advertise="h:1", **options)  # type: ignore[arg-type]
    for options, mechanisms in (
        ({"users": USERS}, list(MECHANISMS[1:])),  # PLAIN would send the password
        ({"users": USERS, "tls": (pem.cert, pem.key)}, list(MECHANISMS)),
        ({"tls": (pem.cert, pem.key, pem.ca)}, []),
        ({"insecure": True}, []),
    ):
        with lastword.serve(tmp_path / "data", "0.0.0.0:0", advertise="h:1", **options) as server:  # type: ignore[arg-type]
            assert (server.mechanisms, server.bootstrap_servers) == (mechanisms, "h:1")
    nowhere = Path("nowhere.pem")
    for files in ((pem.key,), (pem.ca, pem.key), nowhere, str(nowhere), (pem.cert, pem.key, pem.key)):
        with pytest.raises(UsageError, match="pem: "):
            lastword.serve(tmp_path / "data", "127.0.0.1:0", tls=files)
    for wrong in ([], 3, b"nowhere.pem"):
        with pytest.raises(UsageError, match="tls="):
            lastword.serve(tmp_path / "data", "127.0.0.1:0", tls=wrong)  # type: ignore[arg-type]


def confluent(server: Server, **config: str) -> dict[str, str]:
    return {"bootstrap.servers": server.bootstrap_servers} | {
        k.replace("_", "."): v for k, v in config.items()
    }


@pytest.mark.parametrize("mechanism", [None, *MECHANISMS])
def test_librdkafka_over_tls(mechanism: str | None, serve: Serve, pem: Pem, logs: lastword.LogDir) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    server = serve(tls=(pem.cert, pem.key), users=USERS if mechanism else None)
    logs.create_topic("users")
    config = confluent(server, security_protocol="SSL", ssl_ca_location=pem.ca)
    if mechanism:
        config |= confluent(
            server,
            security_protocol="SASL_SSL",
            sasl_mechanism=mechanism,
            sasl_username="ada",
            sasl_password=USERS["ada"],
        )
    producer = confluent_kafka.Producer(config)
    values = [os.urandom(20_000) for _ in range(100)]
    for value in values:
        producer.produce("users", value)
    assert producer.flush(20) == 0
    assert [message.value() for message in read(server, "users", count=100, **config)] == values


def test_kafka_python_over_tls(serve: Serve, pem: Pem) -> None:
    kafka = pytest.importorskip("kafka")
    server = serve(tls=(pem.cert, pem.key), users=USERS)
    producer = kafka.KafkaProducer(
        bootstrap_servers=server.bootstrap_servers,
        security_protocol="SASL_SSL",
        ssl_cafile=pem.ca,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="bob",
        sasl_plain_password="other",
    )
    assert producer.send("users", b"value").get(timeout=20).offset == 0
    producer.close()


def test_aiokafka_over_tls(serve: Serve, pem: Pem) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    server = serve(tls=(pem.cert, pem.key, pem.ca), users=USERS)
    context = ssl.create_default_context(cafile=pem.ca)
    context.load_cert_chain(pem.cert, pem.key)

    async def produce_and_read() -> bytes:
        config = {
            "bootstrap_servers": server.bootstrap_servers,
            "security_protocol": "SASL_SSL",
            "ssl_context": context,
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "bob",
            "sasl_plain_password": "other",
        }
        async with aiokafka.AIOKafkaProducer(**config) as producer:
            await producer.send_and_wait("users", b"value")
        reader = aiokafka.AIOKafkaConsumer("users", auto_offset_reset="earliest", **config)
        async with reader:
            value: bytes = (await reader.getone()).value
            return value

    assert asyncio.run(produce_and_read()) == b"value"


class TlsClient(Client):
    """A client over TLS that sends raw requests."""

    def __init__(self, server: Server, pem: Pem, *, cert: bool = False) -> None:
        super().__init__(server)
        context = ssl.create_default_context(cafile=pem.ca)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
        if cert:
            context.load_cert_chain(pem.cert, pem.key)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")


def test_large_answers_over_tls_and_a_client_that_reads_nothing(
    serve: Serve, pem: Pem, logs: lastword.LogDir
) -> None:
    server = serve(tls=(pem.cert, pem.key))
    logs.create_topic("users")
    batches = [batch((b"k", os.urandom(900_000))) for _ in range(5)]
    with TlsClient(server, pem) as client, TlsClient(server, pem) as slow:
        for data in batches:
            assert client.produce("users", data).error_code == 0
        for _ in range(20):
            slow.send(fetch_request([("users", 0, 0)], partition_max_bytes=50 << 20), 12)
        for _ in range(3):
            records = client.fetch("users", 0, partition_max_bytes=50 << 20).records
            received = b"".join(map(bytes, records)) if isinstance(records, list) else bytes(records)
            assert len(received) == sum(map(len, batches))
            assert received[-500_000:] == batches[-1][-500_000:]
        assert server.memory.used < 2 << 20
        time.sleep(0.1)
        for _ in range(20):
            assert slow.receive().error_code == 0


def test_a_client_certificate(serve: Serve, pem: Pem) -> None:
    server = serve(tls=(pem.cert, pem.key, pem.ca))
    with TlsClient(server, pem, cert=True) as client:
        assert client.ask(ApiVersionsRequest()).error_code == 0
    with pytest.raises(OSError), TlsClient(server, pem) as client:
        client.ask(ApiVersionsRequest())


def test_hostile_clients_of_tls(serve: Serve, pem: Pem, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    server = serve(tls=(pem.cert, pem.key))
    socks = []
    for data in (
        b"",
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(5000),
        struct.pack(">ihhih", 10, 18, 0, 1, -1),
    ):
        sock = socket.create_connection((server.host, server.port), 5)
        with contextlib.suppress(OSError):
            sock.sendall(data)
        socks.append(sock)
    with TlsClient(server, pem) as client:
        assert client.ask(ApiVersionsRequest()).error_code == 0
        raw = socket.socket(fileno=os.dup(client.socket.fileno()))
        with contextlib.suppress(OSError):
            raw.sendall(os.urandom(1000))  # no record of TLS, in the middle of the connection
            raw.settimeout(5)
            while raw.recv(1000):
                pass
        raw.close()
    with TlsClient(server, pem) as client:
        assert client.ask(ApiVersionsRequest()).error_code == 0
    for sock in socks:
        sock.close()
    assert not [record for record in caplog.records if record.exc_info]
    assert any("no handshake of TLS" in record.getMessage() for record in caplog.records)


def test_a_server_starts_again_on_the_port_of_one_that_closed_its_connections(tmp_path: Path) -> None:
    """The kernel keeps such a connection for a minute."""
    with lastword.serve(tmp_path / "data", "127.0.0.1:0") as server:
        client = socket.create_connection(("127.0.0.1", server.port))
        until(lambda: len(server.connections) == 1)
    with client:
        assert client.recv(1) == b""
    with lastword.serve(tmp_path / "data", f"127.0.0.1:{server.port}") as again:
        assert again.port == server.port
