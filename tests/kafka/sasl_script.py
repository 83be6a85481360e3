"""Requests of SASL for a listener with passwords: the continuation of `server_script`.

Each connection has one exchange, and a request after it that shows whether the connection is authenticated,
refused or closed. The answers of SCRAM have random parts; `_shown` replaces them, and checks the signature
of the server.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lastword.protocol.schemas import APIS
from tests.kafka.server_script import Step, cut, header, longer
from tests.support.exhaustive import stride

USERS = {"ada": "secret", "a,b=c": "other, =é"}
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *HASHES)
NONCE = "fyko+d2lbbFgONRv9qkxdawL"

NEWEST_FIRST = tuple(reversed(Step("SaslAuthenticate", "").versions))
WRONG_VERSIONS = NEWEST_FIRST[:: stride(len(NEWEST_FIRST))]
"""The versions in which wrong messages are sent."""

Token = bytes | Callable[[dict[str, Any]], bytes]


def _first(user: str, start: str = "n,,", nonce: str = NONCE, more: str = "") -> bytes:
    """Return the first message of a client of SCRAM."""
    name = user.replace("=", "=3D").replace(",", "=2C")
    return f"{start}n={name},r={nonce}{more}".encode()


def _final(
    connection: str, mechanism: str, user: str, password: str, change: Callable[[str], str] = str
) -> Callable[[dict[str, Any]], bytes]:
    """Return a function from the kept values to the final message; it keeps the server's signature."""

    def token(kept: dict[str, Any]) -> bytes:
        server_first = kept.pop(f"first of {connection}", "")
        fields = dict(part.split("=", 1) for part in server_first.split(",") if "=" in part)
        name = HASHES[mechanism]
        salt, iterations = b64decode(fields.get("s", "")), int(fields.get("i", "1"))
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        bare = f"c=biws,r={fields.get('r', NONCE)}"
        message = f"{_first(user).decode()[3:]},{server_first},{bare}".encode()
        signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
        proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
        server = hmac.digest(hmac.digest(salted, b"Server Key", name), message, name)
        kept[f"last of {connection}"] = f"v={b64encode(server).decode()}"
        return change(f"{bare},p={proof}").encode()

    return token


def _shown(connection: str, kept: dict[str, Any], data: bytes) -> str:
    """Return a message of the server without what is random in it."""
    text = data.decode()
    if text.startswith("r="):
        nonce, salt, iterations = text.split(",")
        is_longer = nonce.startswith(f"r={NONCE}") and len(nonce) >= len(NONCE) + 18
        is_salted = len(b64decode(salt[2:])) >= 8
        return (
            f"{'the nonce and more' if is_longer else nonce},{'a salt' if is_salted else salt},{iterations}"
        )
    return "the right signature" if text == kept.get(f"last of {connection}") else text


def _exchange(
    label: str, mechanism: str, *tokens: Token, handshake: int = 1, versions: Any = None
) -> Iterator[Step]:
    """Yield a handshake, tokens, and a request that needs authentication; in each version of the tokens."""
    for version in (0,) if not handshake else versions or WRONG_VERSIONS:
        connection = f"{label} {version}"
        client = {"client_id": connection, "first": version, "last": version}
        yield Step(
            "SaslHandshake",
            label,
            {"mechanism": mechanism},
            handshake,
            handshake,
            client_id=connection,
        )
        for number, token in enumerate(tokens):
            yield Step(
                "SaslAuthenticate",
                f"{label}, message {number + 1}",
                {"auth_bytes": token},
                keep={f"first of {connection}": lambda answer: bytes(answer.auth_bytes).decode()},
                shown_bytes=partial(_shown, connection),
                is_token=not handshake,
                **client,  # type: ignore[arg-type]
            )
        yield Step("DescribeCluster", f"behind {label}", {}, 1, 1, client_id=connection)


def _log_in(
    label: str, mechanism: str, user: str, password: str, versions: Any = WRONG_VERSIONS, **options: Any
) -> Iterator[Step]:
    """Yield the requests of a client that logs in."""
    if mechanism == "PLAIN":
        token = f"\0{user}\0{password}".encode()
        yield from _exchange(label, mechanism, token, versions=versions, **options)
        return
    for version in (0,) if options.get("handshake") == 0 else versions:
        final = _final(f"{label} {version}", mechanism, user, password)
        yield from _exchange(label, mechanism, _first(user), final, **options | {"versions": (version,)})


def _passwords() -> Iterator[Step]:
    for mechanism in MECHANISMS:
        for user, password in USERS.items():
            if mechanism != "PLAIN" or user.isalpha():  # as in the configuration of the broker
                yield from _log_in(f"{mechanism}, {user}", mechanism, user, password, NEWEST_FIRST)
        yield from _log_in(f"{mechanism}, wrong password", mechanism, "ada", "wrong", NEWEST_FIRST)
        for label, user, password in (
            ("password of another user", "ada", USERS["a,b=c"]),
            ("empty password", "ada", ""),
            ("unknown user", "eve", "secret"),
        ):
            yield from _log_in(f"{mechanism}, {label}", mechanism, user, password)
        for label, user, password in (
            ("right", "ada", "secret"),
            ("wrong", "ada", "wrong"),
            ("unknown", "eve", "secret"),
        ):
            name = f"{mechanism}, without headers, {label}"
            yield from _log_in(name, mechanism, user, password, handshake=0)


def _messages() -> Iterator[Step]:
    """Yield wrong messages of each mechanism."""
    for mechanism in MECHANISMS:
        for label, token in (("no message", b""), ("zeros", b"\0\0\0\0"), ("garbage", b"\xff\xfe garbage")):
            yield from _exchange(f"{mechanism}, {label}", mechanism, token)
            yield from _exchange(f"{mechanism}, {label}, no header", mechanism, token, handshake=0)
    for label, text in (
        ("own name twice", "ada\0ada\0secret"),
        ("for another user", "eve\0ada\0secret"),
        ("no user", "\0\0secret"),
        ("four parts", "\0ada\0secret\0"),
        ("two parts", "ada\0secret"),
    ):
        yield from _exchange(f"PLAIN, {label}", "PLAIN", text.encode())
    for mechanism in HASHES:
        for label, token in (
            ("of another user", _first("ada", "n,a=eve,")),
            ("of the same user", _first("ada", "n,a=ada,")),
            ("with a binding", _first("ada", "p=tls-unique,,")),
            ("without a binding", _first("ada", "y,,")),
            ("no header", _first("ada", "")),
            ("no user", _first("")),
            ("no nonce", b"n,,n=ada"),
            ("empty nonce", _first("ada", nonce="")),
            ("extension", _first("ada", more=",x=1")),
            ("mandatory extension", _first("ada", "n,,m=1,")),
            ("delegation token", _first("ada", more=",tokenauth=true")),
        ):
            yield from _exchange(f"{mechanism}, first {label}", mechanism, token)
        for label, change in (
            ("another nonce", lambda text: text.replace(f"r={NONCE}", "r=x")),
            ("another header", lambda text: text.replace("c=biws", "c=eSws")),
            ("no proof", lambda text: text.partition(",p=")[0]),
            ("empty proof", lambda text: text.partition(",p=")[0] + ",p="),
            ("short proof", lambda text: text.partition(",p=")[0] + ",p=AAAA"),
            ("proof that is not base64", lambda text: text.partition(",p=")[0] + ",p=*"),
            ("extension", lambda text: text.replace(",p=", ",x=1,p=")),
            ("longer", lambda text: text + ",x=1"),
        ):
            for version in WRONG_VERSIONS:
                name = f"{mechanism}, final {label}"
                final = _final(f"{name} {version}", mechanism, "ada", "secret", change)
                yield from _exchange(name, mechanism, _first("ada"), final, versions=(version,))
        yield from _exchange(f"{mechanism}, first twice", mechanism, _first("ada"), _first("ada"))


def _order() -> Iterator[Step]:
    """Yield requests in a wrong order."""
    for api in APIS.values():
        fields = {
            "SaslHandshake": {"mechanism": "PLAIN"},
            "ApiVersions": {"client_software_name": "tests", "client_software_version": "1"},
        }.get(api.name, {})
        yield Step(api.name, "before authentication", fields, client_id=f"before {api.name} {{v}}")
    for mechanism in ("GSSAPI", "", "plain", "SCRAM-SHA-1", "x" * 300):
        for version in Step("SaslHandshake", "").versions:
            label, client = f"mechanism {mechanism:.20}", f"mechanism {mechanism} {version}"
            yield Step("SaslHandshake", label, {"mechanism": mechanism}, version, version, client_id=client)
            again = {"mechanism": "PLAIN"}
            yield Step("SaslHandshake", f"{label}, again", again, version, version, client_id=client)
    plain, token = {"mechanism": "PLAIN"}, {"auth_bytes": b"\0ada\0secret"}

    def step(api: str, label: str, version: int, fields: Any = None) -> Step:
        return Step(api, label, fields or {}, version, version, client_id=f"{label} {version}")

    for version in Step("SaslHandshake", "").versions:
        for _ in range(2):
            yield step("SaslHandshake", "handshake twice", version, plain)
        yield step("SaslHandshake", "ApiVersions behind a handshake", version, plain)
        yield step("ApiVersions", "ApiVersions behind a handshake", version)
        yield step("ApiVersions", "ApiVersions twice", version)
        yield step("ApiVersions", "ApiVersions twice", version)
        yield step("SaslHandshake", "ApiVersions twice", version, plain)
        yield step("SaslHandshake", "Metadata behind a handshake", version, plain)
        yield step("Metadata", "Metadata behind a handshake", version)
    for number, version in enumerate(Step("SaslAuthenticate", "").versions):
        label = "authenticated before"
        client = f"{label} {version}"
        yield Step("ApiVersions", label, {}, 2, 2, client_id=client)
        yield Step("SaslHandshake", label, plain, 1, 1, client_id=client)
        yield Step("SaslAuthenticate", label, token, version, version, client_id=client)
        yield Step("SaslHandshake", f"{label}, again", plain, number % 2, number % 2, client_id=client)
        yield Step("SaslAuthenticate", f"{label}, again", token, version, version, client_id=client)
        yield Step("ApiVersions", f"{label}, again", {}, 2, 2, client_id=client)
        yield Step("DescribeCluster", f"{label}, again", {}, 1, 1, client_id=client)


def _hostile() -> Iterator[Step]:
    """Yield frames that are wrong, each on a connection of its own."""
    for name, change in (
        ("cut", cut),
        ("longer", longer),
        ("only a header", lambda frame: frame[:14]),
        ("version 9", header(2, b"\0\x09")),
        ("600 kB", lambda frame: frame + bytes(600_000)),
        ("negative API", header(0, b"\xff\xff")),
    ):
        for version in Step("SaslHandshake", "").versions:
            client, fields = f"handshake {name} {version}", {"mechanism": "PLAIN"}
            at = {"first": version, "last": version, "client_id": client}
            yield Step("SaslHandshake", name, fields, bytes_of=change, **at)  # type: ignore[arg-type]
            yield Step("SaslHandshake", f"behind {name}", fields, **at)  # type: ignore[arg-type]
        for version in Step("SaslAuthenticate", "").versions:
            client, fields = f"authenticate {name} {version}", {"auth_bytes": b"\0ada\0secret"}  # type: ignore[dict-item]
            yield Step("SaslHandshake", f"before {name}", {"mechanism": "PLAIN"}, 1, 1, client_id=client)
            at = {"first": version, "last": version, "client_id": client}
            yield Step("SaslAuthenticate", name, fields, bytes_of=change, **at)  # type: ignore[arg-type]
            yield Step("DescribeCluster", f"behind {name}", {}, 1, 1, client_id=client)


WITHOUT_PASSWORDS = [
    Step("SaslHandshake", "no passwords", {"mechanism": "PLAIN"}),
    Step("SaslAuthenticate", "no passwords", {"auth_bytes": b"\0ada\0secret"}),
]
"""Requests to a listener that needs no password."""
SASL_SCRIPT = [*_passwords(), *_messages(), *_order(), *_hostile()]
