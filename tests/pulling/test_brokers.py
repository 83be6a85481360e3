"""Brokers that fail, move, throttle, are old, or send wrong bytes; TLS and SASL."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import (
    AuthenticationFailedError,
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptBatchError,
    FrameTooLargeError,
    InconsistentTopicIdError,
    MalformedMessageError,
    NotAuthorizedError,
    RecordTooLargeError,
    UnknownTopicError,
    UnsupportedVersionError,
    UsageError,
)
from lastword.parse import read_properties
from lastword.protocol import ServerConnection, codes
from lastword.protocol.messages import (
    DescribeConfigsResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from lastword.pulling import cluster as client
from lastword.pulling import leader, pulls
from lastword.pulling.client_config import client_config
from tests.partition.logs import at_offset, batch
from tests.pulling.fake import Closed, FakeBroker, FakeCluster
from tests.server.certificates import Pem, made_pem


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    FakeBroker(cluster)
    cluster.batches = [(n, n, at_offset(batch((b"k%d" % n, b"value")), n)) for n in range(6)]
    yield cluster
    for broker in cluster.brokers:
        broker.close()


def pull(fake: FakeCluster, copy: Path, **options: Any) -> Any:
    return lastword.pull(fake.at, "users", copy, **options)[0]


def offsets(copy: Path) -> list[int]:
    with lastword.open(copy) as logs:
        return [record.offset for record in logs["users"].read()]


def times(count: int, change: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an answer that is changed the first `count` times."""
    left = iter(range(count))
    return lambda request, body: change(request, body) if next(left, None) is not None else body


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "backoff", lambda attempt, rng: 0.001)


# ---------------------------------------------------------------- failures that pass


@pytest.mark.parametrize(
    "code",
    [
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.FENCED_LEADER_EPOCH,
        codes.UNKNOWN_TOPIC_ID,
        codes.KAFKA_STORAGE_ERROR,
        codes.OFFSET_OUT_OF_RANGE,
    ],
)
def test_a_retriable_error_is_repeated(fake: FakeCluster, copy: Path, code: int) -> None:
    fake.answers["Fetch"] = times(3, lambda request, body: fake.fetched(request, b"", error=code))
    assert pull(fake, copy).next_offset == 6
    assert len(fake.requests("Metadata")) >= 4
    fake.answers["Fetch"] = times(2, lambda request, body: type(body)(error_code=code))  # of the whole
    assert pull(fake, copy.with_name("other")).next_offset == 6


@pytest.mark.parametrize("which", [-2, -1])  # the earliest offset, the end
def test_an_offset_below_0_is_asked_for_again(fake: FakeCluster, copy: Path, which: int) -> None:
    def below_0(request: Any, body: Any) -> Any:
        if asked_of(request)[0].timestamp == which:
            body.topics[0].partitions[0].offset = -1
        return body

    fake.answers["ListOffsets"] = times(3, below_0)
    assert pull(fake, copy).next_offset == 6
    assert len(fake.requests("ListOffsets")) > 3
    assert offsets(copy) == list(range(6))


def test_the_leader_moves(fake: FakeCluster, copy: Path) -> None:
    FakeBroker(fake)

    def moved(request: Any, body: Any) -> Any:
        fake.leader, fake.leader_epoch = 1, 1
        return fake.fetched(request, b"", error=codes.NOT_LEADER_OR_FOLLOWER)

    fake.answers["Fetch"] = times(1, moved)
    assert pull(fake, copy).next_offset == 6
    served = [(number, r.body) for number, r in fake.asked if r.api.name == "Fetch"]
    assert [number for number, _ in served] == [0, 1]
    assert served[1][1].topics[0].partitions[0].current_leader_epoch == 1


def test_partitions_of_several_leaders(fake: FakeCluster, copy: Path) -> None:
    """Each leader has a thread; a leader that is gone for a while does not stop the others."""
    for _ in range(3):
        FakeBroker(fake)
    fake.others = [1, 2, 3, 3]
    gone = times(3, lambda request, body: type(body)(error_code=codes.REQUEST_TIMED_OUT, responses=[]))
    fake.answers["Fetch"] = lambda request, body: (
        gone(request, body) if request.body.topics[0].partitions[0].partition == 1 else body
    )
    results = lastword.pull(fake.at, "users", copy)
    assert [(result.partition, result.next_offset) for result in results] == [(n, 6) for n in range(5)]
    asked = {(number, p.partition) for number, r in fake.asked if r.api.name == "Fetch" for p in asked_of(r)}
    assert asked == {(0, 0), (1, 1), (2, 2), (3, 3), (3, 4)}
    sizes = {request.max_bytes for request in fake.requests("Fetch")}
    assert max(sizes) <= pulls.BUFFER_BYTES // 4


def asked_of(request: Any) -> Any:
    return request.body.topics[0].partitions


@pytest.mark.parametrize("api", ["Fetch", "ListOffsets", "ListGroups", "DescribeConfigs"])
def test_a_connection_that_is_closed(fake: FakeCluster, copy: Path, api: str) -> None:
    def closed(request: Any, body: Any) -> Any:
        raise Closed

    fake.answers[api] = times(1, closed)
    if api == "DescribeConfigs":
        with pytest.raises(BrokerUnreachableError, match="closed the connection"):
            pull(fake, copy)
    assert pull(fake, copy).next_offset == 6
    assert offsets(copy) == list(range(6))


def test_half_an_answer(fake: FakeCluster, copy: Path) -> None:
    fake.answers["Fetch"] = times(1, lambda request, body: _then_closed(fake, b"\0\0\x10\0" + bytes(100)))
    assert pull(fake, copy).next_offset == 6


def _then_closed(fake: FakeCluster, data: bytes) -> bytes:
    connection = fake.brokers[0].connections[-1]
    connection.sendall(data)
    raise Closed


def test_there_is_no_leader_for_a_while(fake: FakeCluster, copy: Path) -> None:
    fake.leader = -1

    def found(request: Any, body: Any) -> Any:
        if len(fake.requests("Metadata")) > 3:
            fake.leader = 0
        return body

    fake.answers["Metadata"] = found
    assert pull(fake, copy).next_offset == 6


def test_a_high_watermark_that_is_behind(fake: FakeCluster, copy: Path) -> None:
    """No batch up to the high watermark does not mean that there is none up to the end."""

    def behind(request: Any, body: Any) -> Any:
        answer = fake.fetched(request, fake.batches[0][2] if left[0] > 4 else b"")
        answer.responses[0].partitions[0].high_watermark = 1
        left[0] -= 1
        return answer if left[0] >= 0 else body

    left = [8]
    fake.answers["Fetch"] = behind
    assert pull(fake, copy).next_offset == 6
    assert offsets(copy) == list(range(6))


def test_batches_above_the_high_watermark(fake: FakeCluster, copy: Path) -> None:
    """A base offset has no checksum: a batch that claims to be far above is asked for again."""
    far = at_offset(fake.batches[0][2], 1 << 40)
    fake.answers["Fetch"] = times(2, lambda request, body: fake.fetched(request, far))
    assert pull(fake, copy).next_offset == 6
    assert offsets(copy) == list(range(6))


def test_failures_without_an_end(fake: FakeCluster, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "backoff", lambda attempt, rng: 30.0)
    fake.answers["Fetch"] = lambda request, body: fake.fetched(
        request, b"", error=codes.NOT_LEADER_OR_FOLLOWER
    )
    with pytest.raises(BrokerRefusedError, match="cannot fetch: NOT_LEADER_OR_FOLLOWER"):
        pull(fake, copy, clock=ManualClock())
    assert 2 <= len(fake.requests("Fetch")) <= 4


def test_a_broker_that_does_not_answer(fake: FakeCluster, copy: Path) -> None:
    ended = threading.Event()

    def silent(request: Any, body: Any) -> Any:
        ended.wait(10)
        raise Closed

    fake.answers["Metadata"] = silent
    with pytest.raises(BrokerUnreachableError, match=r"does not answer within 0\.1 s"):
        pull(fake, copy, client_config={"request.timeout.ms": 100})
    ended.set()


def test_groups_that_cannot_be_asked(fake: FakeCluster, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are copied first; then the request is repeated, and its error is raised at the end."""
    fake.answers["ListGroups"] = times(
        4, lambda request, body: type(body)(error_code=codes.REQUEST_TIMED_OUT)
    )
    assert pull(fake, copy).next_offset == 6
    monkeypatch.setattr(pulls, "backoff", lambda attempt, rng: 30.0)
    fake.answers["ListGroups"] = lambda request, body: type(body)(error_code=codes.UNKNOWN_SERVER_ERROR)
    with pytest.raises(BrokerRefusedError, match="cannot list its groups: UNKNOWN_SERVER_ERROR") as raised:
        pull(fake, copy.with_name("other"), clock=ManualClock())
    assert [result.next_offset for result in raised.value.results] == [6]  # type: ignore[attr-defined]


def test_the_topic_is_deleted_under_way(
    fake: FakeCluster, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "backoff", lambda attempt, rng: 30.0)

    def deleted(request: Any, body: Any) -> Any:
        for topic in body.topics if fake.requests("Fetch") else ():
            topic.error_code = codes.UNKNOWN_TOPIC_OR_PARTITION
        return body

    fake.answers["Metadata"] = deleted
    fake.answers["Fetch"] = lambda request, body: fake.fetched(request, b"", error=codes.UNKNOWN_TOPIC_ID)
    for follow in (False, True):
        fake.asked.clear()
        with pytest.raises(UnknownTopicError, match=r"users is not in .* any more"):
            pull(fake, copy, clock=ManualClock(), follow=follow)


def test_throttling_is_observed(fake: FakeCluster, copy: Path) -> None:
    clock = ManualClock()
    fake.answers["Fetch"] = times(
        1, lambda request, body: fake.fetched(request, fake.batches[0][2], throttle_time_ms=5000)
    )
    began = clock.monotonic()
    assert pull(fake, copy, clock=clock).next_offset == 6
    assert clock.monotonic() - began >= 5


def test_the_topic_is_created_again_under_way(fake: FakeCluster, copy: Path) -> None:
    def again(request: Any, body: Any) -> Any:
        fake.topic_id = bytes(reversed(range(16)))
        return fake.fetched(request, b"", error=codes.UNKNOWN_TOPIC_ID)

    fake.answers["Fetch"] = times(1, again)
    with pytest.raises(InconsistentTopicIdError, match="was deleted in"):
        pull(fake, copy)


@pytest.mark.parametrize("api", ["Fetch", "ListOffsets", "Metadata"])
def test_requests_that_are_not_allowed(fake: FakeCluster, copy: Path, api: str) -> None:
    def denied(request: Any, body: Any) -> Any:
        if api == "Fetch":
            return fake.fetched(request, b"", error=codes.TOPIC_AUTHORIZATION_FAILED)
        if api == "ListOffsets":
            body.topics[0].partitions[0].error_code = codes.TOPIC_AUTHORIZATION_FAILED
        else:
            body.topics[0].error_code = codes.TOPIC_AUTHORIZATION_FAILED
        return body

    fake.answers[api] = denied
    with pytest.raises(NotAuthorizedError, match="TOPIC_AUTHORIZATION_FAILED"):
        pull(fake, copy)


def test_settings_of_the_copy_stay_if_the_cluster_does_not_describe_them(
    fake: FakeCluster, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def described(request: Any, body: Any) -> Any:
        row = DescribeConfigsResponse.DescribeConfigsResourceResult
        values = {"cleanup.policy": "compact", "lastword.ttl.ms": "1000"}
        body.results[0].configs = [row(name=n, value=value, config_source=1) for n, value in values.items()]
        return body

    def denied(request: Any, body: Any) -> Any:
        body.results[0].error_code = codes.TOPIC_AUTHORIZATION_FAILED
        return body

    fake.answers["DescribeConfigs"] = described
    pull(fake, copy)
    file = copy / "lastword.topic-users.toml"
    with lastword.open(copy, "a", log_cleaner_enable=False) as logs:
        logs["users"].set_config(lastword_ack="disk")
    before = file.read_text()
    assert all(text in before for text in ("compact", "lastword.ttl.ms", "lastword.ack", "pulled.from"))
    fake.answers["DescribeConfigs"] = denied
    pull(fake, copy)
    assert file.read_text() == before
    assert "DESCRIBE_CONFIGS is not allowed" in caplog.text


def test_an_old_broker(fake: FakeCluster, copy: Path) -> None:
    """Kafka 2.1: no topic ids, no flexible versions."""
    fake.most = {
        "ApiVersions": 2,
        "Metadata": 7,
        "Fetch": 10,
        "ListOffsets": 4,
        "OffsetForLeaderEpoch": 1,
        "DescribeConfigs": 2,
        "ListGroups": 2,
        "OffsetFetch": 5,
    }
    assert pull(fake, copy).next_offset == 6
    assert fake.requests("Fetch")[0].topics[0].topic == "users"
    assert not fake.requests("OffsetForLeaderEpoch")
    assert pull(fake, copy).batches == 0
    fake.most["Fetch"] = 3
    with pytest.raises(UnsupportedVersionError, match="has Fetch in the versions"):
        pull(fake, copy)


# ---------------------------------------------------------------- answers that are cut or wrong


def test_answers_that_end_in_a_batch(fake: FakeCluster, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(fake.batches[0][2])
    for most in (size * 2 + 40, size + 1, size, size - 1, 20, 5):
        monkeypatch.setattr(leader, "PARTITION_BYTES", most)
        to = copy.with_name(str(most))
        assert pull(fake, to).next_offset == 6
        assert offsets(to) == list(range(6))


def test_a_batch_above_every_limit(fake: FakeCluster, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "PARTITION_BYTES", 20)
    monkeypatch.setattr(leader, "MAX_FRAME", 40)
    with pytest.raises(RecordTooLargeError, match="the batch at 0 is larger"):
        pull(fake, copy)


def damaged(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_wrong_batches_are_not_appended(fake: FakeCluster, copy: Path) -> None:
    good = [data for _, _, data in fake.batches]
    wrong = {
        "CRC": damaged(good[2], 70),
        "offset 1": at_offset(good[2], 1),
        "length": good[2][:8] + b"\xff\xff\xff\xff" + good[2][12:],
        "length 13": good[2][:8] + struct.pack(">i", 13) + good[2][12:],
        "leader epoch": at_offset(good[2], 2, -1) + at_offset(good[2], 3, 5) + at_offset(good[2], 4, 1),
    }
    for number, (text, data) in enumerate(wrong.items()):
        to = copy.with_name(str(number))
        fake.answers["Fetch"] = lambda request, body, data=data: fake.fetched(  # type: ignore[misc]
            request,
            good[0] + good[1] + data if request.body.topics[0].partitions[0].fetch_offset < 2 else data,
        )
        with pytest.raises(CorruptBatchError, match=text):
            pull(fake, to)
        assert set(offsets(to)) <= {0, 1}
        del fake.answers["Fetch"]
        assert pull(fake, to).next_offset == 6
        assert offsets(to) == list(range(6))


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (b"\x7f\xff\xff\xff", FrameTooLargeError),
        (b"\xff\xff\xff\xff", MalformedMessageError),
        (struct.pack(">ii", 4, 1 << 30), MalformedMessageError),
        (struct.pack(">i", 3) + b"\0\0\0", MalformedMessageError),
    ],
)
def test_frames_that_are_no_answers(fake: FakeCluster, copy: Path, frame: bytes, error: Any) -> None:
    fake.answers["Fetch"] = lambda request, body: frame
    with pytest.raises(error):
        pull(fake, copy)
    del fake.answers["Fetch"]
    assert pull(fake, copy).next_offset == 6


def test_random_answers(fake: FakeCluster, copy: Path) -> None:
    """Bytes of a right answer, one of them changed: an error of lastword, or the same records."""
    usual = fake.on_Fetch
    for position in range(0, 160, 9):

        def changed(request: Any, body: Any, position: int = position) -> bytes:
            frame = b"".join(ServerConnection().response(request, usual(fake.brokers[0], request)))  # type: ignore[arg-type]
            return frame[: 8 + position] + bytes([frame[8 + position] ^ 0x41]) + frame[9 + position :]

        fake.answers["Fetch"] = times(1, changed)
        to = copy.with_name(str(position))
        try:
            pull(fake, to, client_config={"request.timeout.ms": 300})
        except lastword.errors.LastwordError:
            fake.answers.pop("Fetch")
            pull(fake, to)
        with lastword.open(to) as logs:
            assert logs.verify().ok
            assert [(r.offset, r.key) for r in logs["users"].read()] == [(n, b"k%d" % n) for n in range(6)]


def test_something_else_listens(fake: FakeCluster, copy: Path) -> None:
    fake.answers["ApiVersions"] = lambda request, body: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(BrokerUnreachableError, match="does not answer in Kafka's protocol"):
        pull(fake, copy)
    assert not copy.exists()


# ---------------------------------------------------------------- SASL


class Scram:
    """The server's side of RFC 5802."""

    def __init__(self, digest: str, password: str, *, iterations: int = 4096, proves: bool = True) -> None:
        self.digest, self.salt, self.iterations = digest, b"salt of the user", iterations
        self.salted = hashlib.pbkdf2_hmac(digest, password.encode(), self.salt, min(iterations, 10_000))
        self.proves = proves
        self.first = self.server_first = ""

    def __call__(self, request: Any, body: Any) -> Any:
        text = bytes(request.body.auth_bytes).decode()
        if text.startswith("n,,"):
            self.first = text[3:]
            nonce = self.first.partition(",r=")[2]
            salt = base64.b64encode(self.salt).decode()
            self.server_first = f"r={nonce}more,s={salt},i={self.iterations}"
            return SaslAuthenticateResponse(auth_bytes=self.server_first.encode())
        last, _, proof = text.rpartition(",p=")
        signed = f"{self.first},{self.server_first},{last}".encode()
        key = hmac.digest(self.salted, b"Client Key", self.digest)
        signature = hmac.digest(hashlib.new(self.digest, key).digest(), signed, self.digest)
        if base64.b64decode(proof) != bytes(a ^ b for a, b in zip(key, signature, strict=True)):
            return SaslAuthenticateResponse(
                error_code=codes.SASL_AUTHENTICATION_FAILED, error_message="invalid credentials"
            )
        server = hmac.digest(hmac.digest(self.salted, b"Server Key", self.digest), signed, self.digest)
        server = server if self.proves else bytes(len(server))
        return SaslAuthenticateResponse(auth_bytes=b"v=" + base64.b64encode(server))


def plain(password: str) -> Callable[[Any, Any], Any]:
    def answer(request: Any, body: Any) -> Any:
        if bytes(request.body.auth_bytes) == b"\0backup\0" + password.encode():
            return SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=60_000)
        return SaslAuthenticateResponse(error_code=codes.SASL_AUTHENTICATION_FAILED, error_message="no")

    return answer


def handshake(request: Any, body: Any) -> Any:
    known = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    code = 0 if request.body.mechanism in known else codes.UNSUPPORTED_SASL_MECHANISM
    return SaslHandshakeResponse(error_code=code, mechanisms=known)


def secured(mechanism: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "backup",
        "sasl.password": password,
    }


@pytest.mark.parametrize(
    ("mechanism", "server"),
    [
        ("PLAIN", plain("s3cret")),
        ("SCRAM-SHA-256", Scram("sha256", "s3cret")),
        ("SCRAM-SHA-512", Scram("sha512", "s3cret")),
    ],
)
def test_sasl(fake: FakeCluster, copy: Path, mechanism: str, server: Any) -> None:
    fake.answers |= {"SaslHandshake": handshake, "SaslAuthenticate": server}
    assert pull(fake, copy, client_config=secured(mechanism, "s3cret")).next_offset == 6
    with pytest.raises(AuthenticationFailedError, match="refuses the user backup") as raised:
        pull(fake, copy, client_config=secured(mechanism, "wrong"))
    assert "wrong" not in str(raised.value)


def test_a_broker_that_requires_a_login(tmp_path: Path) -> None:
    """It answers the request for its versions, and closes the connection at the next one."""
    with (
        lastword.serve(tmp_path / "served", "127.0.0.1:0", users={"backup": "s3cret"}) as server,
        pytest.raises(BrokerUnreachableError, match="closed the connection") as raised,
    ):
        lastword.pull(server.bootstrap_servers, ["users"], tmp_path / "copy")
    assert "requires a login" in raised.value.remedy


def test_a_broker_that_does_not_know_the_password(fake: FakeCluster, copy: Path) -> None:
    fake.answers |= {
        "SaslHandshake": handshake,
        "SaslAuthenticate": Scram("sha256", "s3cret", proves=False),
    }
    with pytest.raises(AuthenticationFailedError, match="does not prove that it has the password"):
        pull(fake, copy, client_config=secured("SCRAM-SHA-256", "s3cret"))
    fake.answers["SaslAuthenticate"] = Scram("sha256", "s3cret", iterations=2_000_000_000)
    with pytest.raises(AuthenticationFailedError, match="2000000000 iterations"):
        pull(fake, copy, client_config=secured("SCRAM-SHA-256", "s3cret"))
    fake.answers["SaslAuthenticate"] = lambda request, body: SaslAuthenticateResponse(auth_bytes=b"\xff")
    with pytest.raises(AuthenticationFailedError, match="is not valid"):
        pull(fake, copy, client_config=secured("SCRAM-SHA-256", "s3cret"))


def test_a_mechanism_that_the_broker_does_not_have(fake: FakeCluster, copy: Path) -> None:
    fake.answers["SaslHandshake"] = lambda request, body: SaslHandshakeResponse(
        error_code=codes.UNSUPPORTED_SASL_MECHANISM, mechanisms=["GSSAPI"]
    )
    with pytest.raises(AuthenticationFailedError) as raised:
        pull(fake, copy, client_config=secured("PLAIN", "s3cret"))
    assert raised.value.remedy == "set sasl.mechanism to one that it has: GSSAPI"


def test_a_session_is_replaced_before_it_ends(fake: FakeCluster, copy: Path) -> None:
    clock = ManualClock()
    fake.answers |= {"SaslHandshake": handshake, "SaslAuthenticate": plain("s3cret")}

    def late(request: Any, body: Any) -> Any:
        clock.advance(30_000)
        return fake.fetched(request, fake.batches[request.body.topics[0].partitions[0].fetch_offset][2])

    fake.answers["Fetch"] = late
    assert pull(fake, copy, client_config=secured("PLAIN", "s3cret"), clock=clock).next_offset == 6
    assert len(fake.requests("SaslAuthenticate")) >= 4


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    return made_pem(tmp_path_factory.mktemp("pem"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_our_server_with_tls_and_users(source: lastword.LogDir, copy: Path, pem: Pem, mechanism: str) -> None:
    source.create_topic("users")
    source["users"].extend([(b"k", b"v")] * 100)
    password = "secret, =\u00e9"
    config = secured(mechanism, password) | {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": pem.ca,
        "ssl.certificate.location": pem.cert,
        "ssl.key.location": pem.key,
    }
    tls = (pem.cert, pem.key, pem.ca)
    with lastword.serve(source, "127.0.0.1:0", tls=tls, users={"backup": password}) as server:
        at = server.bootstrap_servers
        assert lastword.pull(at, "users", copy, client_config=config)[0].records == 100
        with pytest.raises(AuthenticationFailedError, match="refuses the user backup"):
            lastword.pull(at, "users", copy, client_config=config | {"sasl.password": "wrong"})


def test_tls(pem: Pem, copy: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem.cert, pem.key)
    fake = FakeCluster()
    FakeBroker(fake, context)
    try:
        trusted = {"security.protocol": "SSL", "ssl.truststore.location": pem.ca}
        assert pull(fake, copy, client_config=trusted).next_offset == 0
        with pytest.raises(AuthenticationFailedError, match=r"the certificate of .* is refused"):
            pull(fake, copy, client_config={"security.protocol": "SSL"})
        with pytest.raises(BrokerUnreachableError, match=r"it may be a listener with TLS|does not answer"):
            pull(fake, copy, client_config={"request.timeout.ms": 500})
        unverified = {"security.protocol": "SSL", "enable.ssl.certificate.verification": False}
        assert pull(fake, copy, client_config=unverified).next_offset == 0
    finally:
        fake.brokers[0].close()


def test_tls_with_a_broker_without(fake: FakeCluster, copy: Path) -> None:
    with pytest.raises(BrokerUnreachableError, match="no TLS with"):
        pull(fake, copy, client_config={"security.protocol": "SSL", "request.timeout.ms": 500})


# ---------------------------------------------------------------- properties


def test_properties_of_javas_clients(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "# of an application\n! also\n"
        "security.protocol = SASL_PLAINTEXT\n"
        "sasl.mechanism:SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="ba=ck\\\\"up" \\\n    password="p;w d";\n'
        "group.id=an-application\nacks=all\nclient.id backup\\u0031\n"
        "sasl.login.refresh.window.factor=0.8\n"
    )
    config = client_config(path)
    assert (config.mechanism, config.username, config.password) == ("SCRAM-SHA-512", 'ba=ck"up', "p;w d")
    assert (config.client_id, config.tls, config.timeout) == ("backup1", None, 30)
    assert "p;w d" not in repr(config)
    assert read_properties(str(path))["acks"] == "all"


def test_properties_of_librdkafka(pem: Pem) -> None:
    config = client_config(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
            "ssl.ca.location": pem.cert,
            "ssl.certificate.location": pem.cert,
            "ssl.key.location": pem.key,
            "ssl.endpoint.identification.algorithm": "none",
            "socket.timeout.ms": 1500,
            "queue.buffering.max.ms": 5,
        }
    )
    assert (config.mechanism, config.username, config.timeout) == ("PLAIN", "u", 1.5)
    assert config.tls is not None
    assert (config.tls.check_hostname, config.tls.verify_mode) == (False, ssl.CERT_REQUIRED)
    assert client_config(None).tls is None


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS is not supported"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism=GSSAPI is not supported"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs a user name"),
        ({"ssl.cipher": "x"}, "ssl.cipher is not supported"),
        ({"sasl.oauthbearer": "x"}, "sasl.oauthbearer is not supported"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms is 'soon'"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "trust.jks"}, "is a JKS file"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "missing.pem"},
            "cannot read the certificates",
        ),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"}, "ldaps"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": 'x.ScramLoginModule required username="u" password="p";',
            },
            "PLAIN needs PlainLoginModule",
        ),
    ],
)
def test_properties_that_are_refused(properties: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text.replace(".", r"\.")):
        client_config(properties)


@pytest.mark.parametrize(
    "address", ["kafka", "kafka:", ":9092", "kafka:99999", "kafka:x", "http://kafka:1", ""]
)
def test_addresses_that_are_refused(address: str, copy: Path) -> None:
    with pytest.raises(UsageError):
        lastword.pull(address, "users", copy)


def test_addresses() -> None:
    assert client.address_of("kafka:9092") == ("kafka", 9092)
    assert client.address_of("[::1]:9092") == ("::1", 9092)


def test_the_first_broker_is_gone(fake: FakeCluster, copy: Path) -> None:
    result = lastword.pull(f"127.0.0.1:1, {fake.at}", "users", copy)[0]
    assert result.next_offset == 6
