"""Who may connect: users with passwords (SASL PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), and TLS.

A file of users has for each user and mechanism a salt, a number of iterations and two keys, in Kafka's form.
Neither the password nor a key that a client could log in with can be computed from them (RFC 5802).

Until a connection is authenticated, only ApiVersions, SaslHandshake and SaslAuthenticate are answered, and
requests are small. A wrong password and an unknown user cost the same time, get the same answer after a
pause, and end the connection.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import socket
import ssl
import stat
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from lastword import metrics
from lastword.errors import UsageError
from lastword.files import system
from lastword.parse import check_path, stable_path
from lastword.protocol import Request, codes, messages
from lastword.server.topics import Refused

PLAIN = "PLAIN"
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 8192
SALT_BYTES = 16
DENIED_SECONDS = 0.2
"""Pause before a wrong password is answered."""
WRONG_PASSWORD = "Authentication failed: Invalid username or password"
WRONG_CREDENTIALS = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism"
)
"""Kafka's sentences for PLAIN and SCRAM, whatever was wrong."""
UNAUTHENTICATED_BYTES = 512 << 10
"""Largest request of a connection that is not authenticated; Kafka's `sasl.server.max.receive.size`."""
BEFORE = (17, 18, 36)
"""SaslHandshake, ApiVersions, SaslAuthenticate."""
RECORD_BYTES = 16 << 10
"""Largest record of TLS."""
_FIRST = re.compile(
    r"(?P<header>[ny],(a=(?P<identity>[^,]*))?,)(?P<bare>n=(?P<name>[^,]*),r=(?P<nonce>[!-+\--~]+)(,(?P<more>.*))?)"
)
_FINAL = re.compile(r"(?P<bare>c=(?P<header>[^,]*),r=(?P<nonce>[^,]*)(,.*)?),p=(?P<proof>[^,]*)")
_FIELD = re.compile(r"salt=([^,]+),stored_key=([^,]+),server_key=([^,]+),iterations=(\d+)")

_log = logging.getLogger("lastword.server")


class Denied(Exception):
    """Raised when a client is not the user that it claims to be."""


class Credential(NamedTuple):
    """What a server keeps of a password, for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of(cls, mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Credential:
        """Return the credential of a password."""
        hash_name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        stored_key = hashlib.new(hash_name, client_key).digest()
        return cls(salt, stored_key, hmac.digest(salted, b"Server Key", hash_name), iterations)

    def __str__(self) -> str:
        salt, stored, server = (base64.b64encode(data).decode() for data in self[:3])
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    def __repr__(self) -> str:
        return "Credential(****)"

    @classmethod
    def parse(cls, text: str) -> Credential:
        """Return the credential of a text as `str` gives it; ValueError."""
        match = _FIELD.fullmatch(text)
        if match is None or not 1 <= int(match[4]) <= 10_000_000:
            raise ValueError("not a credential")
        salt, stored, server = (base64.b64decode(part, validate=True) for part in match.groups()[:3])
        return cls(salt, stored, server, int(match[4]))


class Users:
    """The users of a file, or of a mapping from name to password. A changed file is read again.

    Args:
        source: The path of a TOML file, as `lastword users` writes it; or passwords by name, for tests.

    Raises:
        UsageError: The file cannot be read, is no list of users, or other users of the system can read it.
    """

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, str]) -> None:
        self._path: str | None = None
        self._key = secrets.token_bytes(32)
        self._state: Any = None
        self._credentials: dict[str, dict[str, Credential]] = {}
        if isinstance(source, Mapping):
            self._credentials = {name: credentials(password) for name, password in source.items()}
        else:
            self._path = stable_path(check_path("users", source))
            self._load()

    def _load(self) -> None:
        assert self._path is not None
        with opened_private(self._path) as file:
            state = os.fstat(file.fileno())
            self._credentials = parsed(file.read(), self._path)
        self._state = state.st_mtime_ns, state.st_size, state.st_ino

    def _load_changes(self) -> None:
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            state = os.stat(self._path)  # noqa: PTH116
            if (state.st_mtime_ns, state.st_size, state.st_ino) == self._state:
                return
        try:
            self._load()
        except UsageError as error:
            _log.warning("the users stay as they were: %s", error.message)

    def find(self, name: str, mechanism: str) -> tuple[Credential, bool]:
        """Return the credential of a user, and whether there is such a user.

        For an unknown user: a credential that no password has. It is the same each time, also after a restart
        and after a change of other users than the first, whose keys are its secret.
        """
        self._load_changes()
        credential = self._credentials.get(name, {}).get(mechanism)
        if credential is not None:
            return credential, True
        first = self._credentials.get(min(self._credentials, default=""), {})
        key = b"".join(each.server_key for each in first.values()) or self._key
        digest = hmac.digest(key, f"{mechanism} {name}".encode(), "sha512")
        size = hashlib.new(HASHES[mechanism]).digest_size
        others = next(iter(self._credentials.values()), {}).get(mechanism)
        salt_bytes, iterations = (SALT_BYTES, ITERATIONS)
        if others is not None:
            salt_bytes, iterations = len(others.salt), others.iterations
        return Credential(digest[:salt_bytes], bytes(size), bytes(size), iterations), False


def credentials(password: str) -> dict[str, Credential]:
    """Return new credentials of a password, by mechanism."""
    return {
        mechanism: Credential.of(mechanism, password, secrets.token_bytes(SALT_BYTES)) for mechanism in HASHES
    }


def read_users(path: str, *, missing_ok: bool = False) -> dict[str, dict[str, Credential]]:
    """Return the credentials of a file of users, by user and mechanism; none if it may be missing, and is."""
    if missing_ok and not os.path.lexists(path):
        return {}
    with opened_private(path) as file:
        return parsed(file.read(), path)


def write_users(path: str, users: Mapping[str, Mapping[str, Credential]]) -> None:
    """Replace a file of users, which only its owner can read. UsageError: it cannot be written."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment("Written by `lastword users`: salted keys, no passwords."))
    tables = tomlkit.table(is_super_table=True)
    for name, by_mechanism in users.items():
        table = tomlkit.table()
        for mechanism, credential in by_mechanism.items():
            table[mechanism] = str(credential)
        tables[name] = table
    document["users"] = tables
    temporary = f"{path}.new"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(tomlkit.dumps(document))
            file.flush()
            system.sync(descriptor)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="give a path that can be written") from None


def opened_private(path: str) -> Any:
    """Return an open file that only its owner can read.

    Raises:
        UsageError: There is no such file, or others can read it.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115, PTH123  # closed by the caller
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", remedy="give a file of users, as `users FILE --add NAME` writes it"
        ) from None
    if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        file.close()
        raise UsageError(f"{path} can be read by other users of this machine", remedy=f"chmod 600 {path}")
    return file


def parsed(data: bytes, path: str) -> dict[str, dict[str, Credential]]:
    """Return the credentials of a file of users, by user and mechanism. UsageError: it is none."""
    try:
        tables = tomllib.loads(data.decode()).get("users", {})
        users = {
            name: {mechanism: Credential.parse(text) for mechanism, text in table.items()}
            for name, table in tables.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        why = error if isinstance(error, tomllib.TOMLDecodeError) else "a user without credentials"
        raise UsageError(
            f"{path} is no file of users: {why}",
            remedy="give a file of users, as `users FILE --add NAME` writes it",
        ) from None
    return users


class Scram:
    """One exchange of SCRAM (RFC 5802), the server's side.

    Attributes:
        user: The user that the client claims to be.
    """

    def __init__(self, mechanism: str, users: Users) -> None:
        self.user = ""
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._users = users
        self._messages: tuple[str, str] | None = None

    def answer(self, token: bytes) -> tuple[bytes, bool]:
        """Return the next message, and whether the client is authenticated. Denied: it is not that user."""
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise Denied("a message that is not UTF-8") from None
        return (self._first(text), False) if self._messages is None else (self._final(text), True)

    def _first(self, text: str) -> bytes:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise Denied("a malformed first message")
        if match["more"] is not None and "tokenauth=true" in match["more"]:
            raise Denied("delegation tokens are not served")
        self.user = match["name"].replace("=2C", ",").replace("=3D", "=")
        if match["identity"] not in (None, "", match["name"]):
            raise Denied("an authorization id that is not the user")
        self._credential, self._is_known = self._users.find(self.user, self._mechanism)
        self._header = base64.b64encode(match["header"].encode()).decode()
        self._nonce = match["nonce"] + secrets.token_hex(16)
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = match["bare"], answer
        return answer.encode()

    def _final(self, text: str) -> bytes:
        assert self._messages is not None
        match = _FINAL.fullmatch(text)
        if match is None or match["header"] != self._header or match["nonce"] != self._nonce:
            raise Denied("a malformed final message")
        try:
            proof = base64.b64decode(match["proof"], validate=True)
        except binascii.Error:
            raise Denied("a malformed proof") from None
        message = ",".join((*self._messages, match["bare"])).encode()
        signature = hmac.digest(self._credential.stored_key, message, self._hash)
        if len(proof) != len(signature):
            raise Denied("a malformed proof")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if not (hmac.compare_digest(stored_key, self._credential.stored_key) and self._is_known):
            raise Denied("a wrong password, or an unknown user")
        return b"v=" + base64.b64encode(hmac.digest(self._credential.server_key, message, self._hash))


def check_plain(token: bytes, users: Users) -> str:
    """Return the user of a message of PLAIN (RFC 4616), whose password is right. Takes some milliseconds.

    Raises:
        Denied: It is not.
    """
    try:
        identity, user, password = token.decode().split("\0")
    except ValueError:
        raise Denied("a malformed message") from None
    mechanism = "SCRAM-SHA-256"
    stored, is_known = users.find(user, mechanism)
    given = Credential.of(mechanism, password, stored.salt, stored.iterations)
    if not (hmac.compare_digest(given.stored_key, stored.stored_key) and is_known):
        raise Denied("a wrong password, or an unknown user")
    if identity not in ("", user):
        raise Denied("an authorization id that is not the user")
    return user


class Peer(Protocol):
    """The connection of a client, as handlers use it.

    Attributes:
        address: Address and port of the client.
        has_failed: The commit of a Produce has failed. No later batch of the connection is appended, or a
            producer whose first batch is missing would be taken for one that begins with the next batch.
        awaited: The sequence of a batch that its producer is to send again, because the coordinator of its
            transaction could not admit it, by partition, producer id and epoch.
    """

    address: str
    has_failed: bool
    awaited: dict[tuple[Any, ...], int]

    def has_gone(self) -> bool:
        """Return whether the client has closed the connection. Any thread may call it."""

    def begun(self, request: Request[Any]) -> None:
        """Take note that a Produce has its place in a commit. Those behind it may follow."""

    def log(self, level: int, text: str, *arguments: Any, request: Request[Any] | None = None) -> None:
        """Log a line about the connection."""

    def expect_tokens(self, has_tokens: bool) -> None:
        """Take the next frames for tokens of SASL, or for requests."""

    def authenticated(self, user: str) -> None:
        """Serve all requests from now on."""

    def drain(self) -> None:
        """Finish the requests that were received, then close."""


class Authentication:
    """The requests of one connection until it is authenticated.

    Args:
        connection: The connection.
        users: The users.
        mechanisms: The mechanisms of SASL.
        in_pool: Runs a function in a thread; returns a future of its result.
        handle: Answers ApiVersions.
    """

    def __init__(
        self,
        connection: Peer,
        users: Users,
        mechanisms: list[str],
        in_pool: Callable[..., asyncio.Future[Any]],
        handle: Callable[[Request[Any], Peer], Any],
    ) -> None:
        self._connection = connection
        self._users = users
        self._mechanisms = mechanisms
        self._in_pool = in_pool
        self._handle = handle
        self._mechanism: str | None = None
        self._scram: Scram | None = None
        self._is_denied = False

    def handle(self, request: Request[Any]) -> Any:
        """Return the answer to a request, or a future of it. Refused: the connection must be closed."""
        if self._is_denied:
            raise Refused(codes.SASL_AUTHENTICATION_FAILED, "a request after a wrong password")
        name = request.api.name
        if name == "ApiVersions" and self._mechanism is None:
            return self._handle(request, self._connection)
        if name == "SaslHandshake" and self._mechanism is None:
            return self._handshake(request)
        if name == "SaslAuthenticate" and self._mechanism is not None:
            return asyncio.get_running_loop().create_task(self._authenticate(request))
        raise Refused(codes.ILLEGAL_SASL_STATE, f"{name} before authentication")

    def _handshake(self, request: Request[messages.SaslHandshakeRequest]) -> Any:
        wanted = request.body.mechanism
        if wanted not in self._mechanisms:
            self._is_denied = True
            self._connection.log(logging.INFO, "no mechanism %.40r", wanted, request=request)
            return messages.SaslHandshakeResponse(
                error_code=codes.UNSUPPORTED_SASL_MECHANISM, mechanisms=self._mechanisms
            )
        self._mechanism = wanted
        self._scram = Scram(wanted, self._users) if wanted in HASHES else None
        self._connection.expect_tokens(request.version == 0)
        return messages.SaslHandshakeResponse(mechanisms=self._mechanisms)

    async def _authenticate(self, request: Request[messages.SaslAuthenticateRequest]) -> Any:
        token = bytes(request.body.auth_bytes)
        try:
            if self._scram is None:
                user = await self._in_pool(check_plain, token, self._users)
                answer, is_done = b"", True
            else:
                answer, is_done = self._scram.answer(token)
                user = self._scram.user
        except Denied as denied:
            self._is_denied = True
            self._connection.log(logging.INFO, "denied: %s", denied, request=request)
            metrics.SERVER_REFUSED_CONNECTIONS.add(1, "authentication")
            await asyncio.sleep(DENIED_SECONDS)
            if request.version < 0:  # a token has no answer with an error
                raise Refused(codes.SASL_AUTHENTICATION_FAILED, "authentication failed") from None
            self._connection.drain()
            return messages.SaslAuthenticateResponse(
                error_code=codes.SASL_AUTHENTICATION_FAILED,
                error_message=WRONG_PASSWORD
                if self._scram is None
                else f"{WRONG_CREDENTIALS} {self._mechanism}",
            )
        if is_done:
            self._connection.authenticated(user)
        return messages.SaslAuthenticateResponse(error_message="", auth_bytes=answer)


# -------------------------------------------------------------- TLS


def tls_context(cert: str, key: str | None = None, ca: str | None = None) -> ssl.SSLContext:
    """Return the context of a server.

    Args:
        cert: A PEM file with the certificate, and those between it and a known authority.
        key: A PEM file with its key; None: `cert` has it.
        ca: A PEM file with authorities. Clients then have to show a certificate of one of them.

    Raises:
        UsageError: A file cannot be read, or is none of these.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(cert, key, password="")  # an encrypted key is an error, not a question
        if ca is not None:
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        names = ", ".join(name for name in (cert, key, ca) if name is not None)
        raise UsageError(
            f"{names}: {why or error}", remedy="give PEM files: a certificate, its key without a password"
        ) from None
    return context


class TlsSocket:
    """A non-blocking socket over TLS, with the calls that a `ClientConnection` makes.

    A call raises BlockingIOError if it has to wait for the client.
    """

    def __init__(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        self._tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._tls.fileno()

    def close(self) -> None:
        """Close the socket, after a message that ends TLS if the client takes it."""
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        self._tls.close()

    def handshake(self) -> str | None:
        """Go on with the handshake: None if it is done, else "read" or "write", which it waits for."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return "read"
        except ssl.SSLWantWriteError:
            return "write"
        return None

    def peek(self) -> bytes:
        """Return the next byte from the client, which stays to be received; none at the end."""
        return socket.socket.recv(self._tls, 1, socket.MSG_PEEK)

    def recv(self, size: int) -> bytes:
        """Return received bytes; none at the end."""
        parts = []
        try:
            while size >= RECORD_BYTES:
                data = self._tls.recv(size)
                if not data:
                    break
                parts.append(data)
                size -= len(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not parts:
                raise BlockingIOError from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sendmsg(self, buffers: list[Any]) -> int:
        """Send as much as the client takes; return the number of bytes.

        A write that waits must be repeated with the same bytes: the caller sends the same ones next.
        """
        view = memoryview(buffers[0] if len(buffers[0]) >= RECORD_BYTES else b"".join(buffers))
        sent = 0
        try:
            while sent < len(view):
                sent += self._tls.send(view[sent : sent + 4 * RECORD_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not sent:
                raise BlockingIOError from None
        return sent
