"""A client of a Kafka cluster: connections, authentication, metadata. It has no log.

A `BrokerConnection` belongs to one thread and has one request under way. It sends each API in the newest
version that both sides have. It waits as long as the broker's last answer demands (`throttle_time_ms`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import random
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lastword.clock import Clock
from lastword.errors import (
    AuthenticationFailedError,
    BrokerRefusedError,
    BrokerUnreachableError,
    LastwordError,
    MalformedMessageError,
    NotAuthorizedError,
    UnsupportedVersionError,
    UsageError,
)
from lastword.protocol import ClientConnection, Message, codes
from lastword.protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from lastword.protocol.schemas import BY_NAME, ZERO_UUID
from lastword.pulling.client_config import ClientConfig
from lastword.version import __version__

RECEIVE_BYTES = 1 << 20
MAX_FRAME = 128 << 20
MOST_ITERATIONS = 1_000_000
"""Iterations of SCRAM that a broker may demand: about a second."""
WAIT_SECONDS = 0.2
"""Longest wait without a look at `stop`."""
NO_NODE = -1

_AUTHORIZATION = frozenset(
    {
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def refused(where: str, code: int, what: str) -> LastwordError:
    """Return the error for an error code in an answer. `what`: the request, as the end of a sentence."""
    name = codes.ERROR_NAMES.get(code, str(code))
    if code in _AUTHORIZATION:
        return NotAuthorizedError(
            f"{where} does not allow to {what} ({name})",
            remedy="allow READ and DESCRIBE on the topics to this user; for positions DESCRIBE on the groups",
        )
    return BrokerRefusedError(f"{where} cannot {what}: {name}", remedy="try again; see the broker's log")


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The leader of a partition and its epoch; `NO_NODE` without one, with the error code."""

    leader: int
    epoch: int
    error: int


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic of the cluster: its id (None in an old cluster), its partitions, its error code."""

    topic_id: bytes | None
    internal: bool
    partitions: dict[int, PartitionFacts]
    error: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The cluster as a broker describes it: its id, the address of each node, topics."""

    cluster_id: str
    nodes: dict[int, tuple[str, int]]
    topics: dict[str, TopicFacts]


class BrokerConnection:
    """A connection to one broker, authenticated.

    Args:
        address: Host and port.
        config: The client's settings.
        clock: The time of waits.
        stop: True ends a wait.
    """

    def __init__(
        self, address: tuple[str, int], config: ClientConfig, clock: Clock, stop: Callable[[], bool]
    ) -> None:
        self.name = f"{address[0]}:{address[1]}"
        self._config = config
        self._clock = clock
        self._stop = stop
        self._protocol = ClientConnection(config.client_id, max_frame=MAX_FRAME)
        self._versions: dict[int, tuple[int, int]] = {}
        self._not_before = 0.0
        self._answered = self._is_served = False
        self.expires: float | None = None
        """When the broker ends the authentication, in seconds of the clock; None: never."""
        self._socket = self._connected(address)
        try:
            self._ask_versions()
            if config.mechanism is not None:
                self._authenticate(config.mechanism)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._socket.close()

    @property
    def is_expired(self) -> bool:
        """Whether the connection must be replaced before the broker ends the authentication."""
        return self.expires is not None and self._clock.monotonic() >= self.expires

    # -------------------------------------------------------------- socket

    def _connected(self, address: tuple[str, int]) -> socket.socket:
        config = self._config
        try:
            plain = socket.create_connection(address, config.timeout)
        except OSError as error:
            why = (error.strerror or str(error) or "no answer").lower()
            raise BrokerUnreachableError(
                f"cannot connect to {self.name}: {why}",
                remedy="check host and port, and that a broker listens there for clients",
            ) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if config.tls is None:
                return plain
            return config.tls.wrap_socket(plain, server_hostname=address[0])
        except ssl.SSLCertVerificationError as error:
            plain.close()
            raise AuthenticationFailedError(
                f"the certificate of {self.name} is refused: {error.verify_message}",
                remedy="name the CA's certificates (PEM) in ssl.truststore.location",
            ) from None
        except OSError as error:
            plain.close()
            raise BrokerUnreachableError(
                f"no TLS with {self.name}: {getattr(error, 'reason', None) or error}",
                remedy="check security.protocol, and that the port is a listener with TLS",
            ) from None

    def _exchange(self, body: Message, version: int, wait: float) -> Any:
        """Send a request and return the body of its answer."""
        try:
            self._socket.settimeout(self._config.timeout + wait)
            self._socket.sendall(b"".join(self._protocol.request(body, version)))  # type: ignore[arg-type]
            while True:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise self._closed("closed the connection")
                for answer in self._protocol.receive_data(data):
                    self._answered = True
                    return answer.body
        except TimeoutError:
            raise BrokerUnreachableError(
                f"{self.name} does not answer within {self._config.timeout:g} s",
                remedy="try again; request.timeout.ms is the limit",
            ) from None
        except OSError as error:
            raise self._closed(str(error.strerror or error).lower()) from None
        except MalformedMessageError as error:
            if not self._answered:
                raise self._closed("does not answer in Kafka's protocol") from error
            raise

    def _closed(self, why: str) -> BrokerUnreachableError:
        remedy = "try again"
        if not self._answered:
            is_tls = self._config.tls is not None
            other = "check its listener" if is_tls else "it may be a listener with TLS or SASL"
            remedy = f"check security.protocol: {other}, or no Kafka broker"
        elif self._config.mechanism is None and not self._is_served:
            remedy += "; if the broker requires a login, set security.protocol and sasl.mechanism"
        return BrokerUnreachableError(f"{self.name}: {why}", remedy=remedy)

    # -------------------------------------------------------------- requests

    def version(self, api: str, most: int = 1 << 15) -> int:
        """Return the newest version of an API that both sides have, `most` at most.

        Raises:
            UnsupportedVersionError: There is none.
        """
        own = BY_NAME[api]
        first, last = self._versions.get(own.key, (0, -1))
        version = min(own.stable, last, most)
        if version < max(own.first, first):
            raise UnsupportedVersionError(
                f"{self.name} has {api} in the versions {first} to {last}; {own.first} to "
                f"{min(own.stable, most)} are needed",
                remedy="Kafka 2.1 and newer have them",
            )
        return version

    def ask(self, body: Message, *, most: int = 1 << 15, wait: float = 0.0) -> Any:
        """Send a request in the newest version; return the body of its answer.

        Args:
            body: The request.
            most: The newest version to use.
            wait: Seconds that the broker may wait, besides the timeout.

        Raises:
            BrokerUnreachableError: No answer; the connection must be closed.
            MalformedMessageError: The answer is not in Kafka's protocol; as above.
            UnsupportedVersionError: There is no common version.
        """
        version = self.version(type(body).__name__.removesuffix("Request"), most)
        pause(self._clock, self._not_before - self._clock.monotonic(), self._stop)
        answer = self._exchange(body, version, wait)
        self._is_served = True
        throttled = getattr(answer, "throttle_time_ms", 0)
        if throttled > 0:
            self._not_before = self._clock.monotonic() + throttled / 1000
        return answer

    def _ask_versions(self) -> None:
        newest = BY_NAME["ApiVersions"].stable
        body = ApiVersionsRequest(
            client_software_name="lastword", client_software_version=__version__.replace("+", ".")
        )
        answer = self._exchange(body, newest, 0)
        if answer.error_code == codes.UNSUPPORTED_VERSION:
            answer = self._exchange(ApiVersionsRequest(), 0, 0)
        if answer.error_code:
            raise refused(self.name, answer.error_code, "list its versions")
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    # -------------------------------------------------------------- SASL

    def _authenticate(self, mechanism: str) -> None:
        answer = self.ask(SaslHandshakeRequest(mechanism=mechanism))
        if answer.error_code:
            raise AuthenticationFailedError(
                f"{self.name} does not have the SASL mechanism {mechanism}",
                remedy=f"set sasl.mechanism to one that it has: {', '.join(answer.mechanisms) or 'none'}",
            )
        config = self._config
        if mechanism == "PLAIN":
            answer = self._sasl(f"\0{config.username}\0{config.password}".encode())
        else:
            answer = self._scram(mechanism.removeprefix("SCRAM-").replace("-", "").lower())
        lifetime = getattr(answer, "session_lifetime_ms", 0)
        if lifetime > 0:  # a new connection well before, as Java's client authenticates again
            self.expires = self._clock.monotonic() + lifetime / 1000 * 0.85

    def _sasl(self, data: bytes) -> Any:
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=data))
        if answer.error_code:
            raise self._failed(answer.error_message)
        return answer

    def _failed(self, why: str | None) -> AuthenticationFailedError:
        config = self._config
        return AuthenticationFailedError(
            f"{self.name} refuses the user {config.username} ({config.mechanism}): {why or 'without reason'}",
            remedy="check user name, password and sasl.mechanism",
        )

    def _scram(self, digest: str) -> Any:
        """Authenticate by RFC 5802; the broker must prove that it has the password's key, too."""
        user = self._config.username.replace("=", "=3D").replace(",", "=2C")
        nonce = base64.b64encode(os.urandom(24)).decode()
        first = f"n={user},r={nonce}"
        server_first = bytes(self._sasl(f"n,,{first}".encode()).auth_bytes).decode("utf-8", "replace")
        fields = dict(part.split("=", 1) for part in server_first.split(",") if "=" in part)
        try:
            salt, iterations = base64.b64decode(fields["s"], validate=True), int(fields["i"])
            combined = fields["r"]
        except (KeyError, ValueError):
            raise self._failed("its SCRAM message is not valid") from None
        if not combined.startswith(nonce) or not 0 < iterations <= MOST_ITERATIONS:
            raise self._failed(f"its SCRAM message has another nonce, or {iterations} iterations")
        salted = hashlib.pbkdf2_hmac(digest, self._config.password.encode(), salt, iterations)
        last = f"c=biws,r={combined}"
        signed = f"{first},{server_first},{last}".encode()
        client_key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        answer = self._sasl(f"{last},p={base64.b64encode(proof).decode()}".encode())
        expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        final = bytes(answer.auth_bytes)
        if not hmac.compare_digest(final, b"v=" + base64.b64encode(expected)):
            raise self._failed("the broker does not prove that it has the password")
        return answer


def pause(clock: Clock, seconds: float, stop: Callable[[], bool]) -> None:
    """Wait; end early if `stop` returns True."""
    end = clock.monotonic() + seconds
    while (left := end - clock.monotonic()) > 0 and not stop():
        clock.sleep(min(left, WAIT_SECONDS))


class Cluster:
    """The brokers of a cluster. Each thread opens its own connections.

    Args:
        bootstrap: `host:port`, several with commas.
        config: The client's settings.
        clock: The time of waits.
        stop: True ends a wait.
    """

    def __init__(self, bootstrap: str, config: ClientConfig, clock: Clock, stop: Callable[[], bool]) -> None:
        self.bootstrap = bootstrap
        self._seeds = [address_of(text.strip()) for text in bootstrap.split(",") if text.strip()]
        if not self._seeds:
            raise UsageError(f"{bootstrap!r} names no broker", remedy="give host:port")
        self._config = config
        self._clock = clock
        self._stop = stop
        self._nodes: dict[int, tuple[str, int]] = {}
        self._main: BrokerConnection | None = None

    def close(self) -> None:
        """Close the connection for metadata."""
        if self._main is not None:
            self._main.close()
            self._main = None

    def connect(self, node: int) -> BrokerConnection:
        """Return a new connection to a node of the last metadata."""
        address = self._nodes.get(node)
        if address is None:
            raise BrokerUnreachableError(f"node {node} is not in the cluster", remedy="try again")
        return BrokerConnection(address, self._config, self._clock, self._stop)

    def ask(self, body: Message, *, most: int = 1 << 15) -> Any:
        """Ask any broker."""
        main = self._main
        if main is None or main.is_expired:
            self.close()
            main = self._main = self._any()
        try:
            return main.ask(body, most=most)
        except LastwordError:
            self.close()
            raise

    def _any(self) -> BrokerConnection:
        """Connect to a bootstrap broker, or to a node of the last metadata."""
        failed: LastwordError | None = None
        for address in dict.fromkeys([*self._seeds, *self._nodes.values()]):
            try:
                return BrokerConnection(address, self._config, self._clock, self._stop)
            except (BrokerUnreachableError, MalformedMessageError) as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def metadata(self, topics: Sequence[str] | None) -> Metadata:
        """Ask for the nodes, and for topics by name; None: all topics. Creates no topic."""
        wanted = (
            None
            if topics is None
            else [MetadataRequest.MetadataRequestTopic(name=name, topic_id=ZERO_UUID) for name in topics]
        )
        answer = self.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        if getattr(answer, "error_code", 0):
            raise refused(self.bootstrap, answer.error_code, "describe the cluster")
        self._nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        found = {
            topic.name: TopicFacts(
                None if topic.topic_id == ZERO_UUID else bytes(topic.topic_id),
                topic.is_internal,
                {
                    p.partition_index: PartitionFacts(p.leader_id, p.leader_epoch, p.error_code)
                    for p in sorted(topic.partitions, key=lambda p: p.partition_index)
                },
                topic.error_code,
            )
            for topic in answer.topics
        }
        return Metadata(answer.cluster_id or "unknown", dict(self._nodes), found)


def backoff(attempt: int, rng: random.Random) -> float:
    """Return the seconds to wait before a further attempt: 0.1 to 2, with jitter."""
    return float(min(2.0, 0.1 * 2 ** min(attempt, 8)) * rng.uniform(0.8, 1.2))


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[address]:port`. UsageError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
        raise UsageError(f"{text!r} is not the address of a broker", remedy="give host:port")
    return host, int(port)
