"""The settings of a Kafka client: properties of Java's clients and of librdkafka, TLS, credentials.

Names that say how a connection is secured are all read; one that is not supported, or has a value that is
not, is refused. Other names (of consumers, producers, timeouts) are ignored, because one file serves
several programs.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from lastword.errors import AuthenticationFailedError, UsageError
from lastword.parse import check_path, read_properties, unescaped

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN = re.compile(r'([A-Za-z.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s;]+))')
_SAME_NAMES = {  # librdkafka's names, with those of Java
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "socket.timeout.ms": "request.timeout.ms",
}
_WITHOUT_EFFECT = re.compile(
    r"sasl\.(login|kerberos|oauthbearer|client\.callback)\..*|security\.providers"
    r"|ssl\.(protocol|provider|cipher\.suites|enabled\.protocols|trustmanager\.algorithm"
    r"|keymanager\.algorithm|secure\.random\.implementation|curves\.list|sigalgs\.list)"
)
_PEM_REMEDY = (
    "export it as PEM, for example `keytool -exportcert -rfc -alias NAME -keystore FILE`, and set "
    "ssl.truststore.type=PEM"
)


@dataclass(frozen=True)
class ClientConfig:
    """The settings of a connection.

    Attributes:
        client_id: The client's name in logs and quotas of brokers.
        timeout: Seconds until a broker without an answer counts as unreachable.
        tls: The context of TLS; None: no TLS.
        mechanism: The SASL mechanism; None: no SASL.
        username: The name for SASL.
        password: The password for SASL.
    """

    client_id: str = "lastword"
    timeout: float = 30.0
    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)


def client_config(given: Mapping[str, object] | str | os.PathLike[str] | None) -> ClientConfig:
    """Return the settings that properties or a file of properties give.

    Raises:
        UsageError: A setting of the connection's security that is not supported, or contradicts another one.
    """
    if given is None:
        return ClientConfig()
    if isinstance(given, Mapping):
        properties = {name: _text(value) for name, value in given.items()}
    else:
        properties = read_properties(check_path("client_config", given))
    named = {_SAME_NAMES.get(name, name): value for name, value in properties.items()}
    protocol = named.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise _refused("security.protocol", protocol, PROTOCOLS)
    for name in named:
        if name.startswith(("sasl.", "ssl.", "security.")) and name not in _KNOWN:
            if _WITHOUT_EFFECT.fullmatch(name):
                continue
            raise UsageError(
                f"the client setting {name} is not supported",
                remedy=f"remove it; supported: {', '.join(sorted(_KNOWN))}",
            )
    mechanism, username, password = _credentials(named) if protocol.startswith("SASL") else (None, "", "")
    timeout = named.get("request.timeout.ms", "30000")
    if not timeout.isdigit() or not int(timeout):
        raise UsageError(f"request.timeout.ms is {timeout!r}", remedy="a number of milliseconds")
    return ClientConfig(
        client_id=named.get("client.id") or "lastword",
        timeout=int(timeout) / 1000,
        tls=_tls(named) if protocol.endswith("SSL") else None,
        mechanism=mechanism,
        username=username,
        password=password,
    )


_KNOWN = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(name: str, value: str, supported: tuple[str, ...]) -> UsageError:
    return UsageError(f"{name}={value} is not supported", remedy=f"supported: {', '.join(supported)}")


# ---------------------------------------------------------------- SASL, TLS


def _credentials(named: Mapping[str, str]) -> tuple[str, str, str]:
    """Return mechanism, user name and password."""
    mechanism = named.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism not in MECHANISMS:
        raise _refused("sasl.mechanism", mechanism, MECHANISMS)
    username, password = named.get("sasl.username"), named.get("sasl.password")
    jaas = named.get("sasl.jaas.config")
    if jaas is not None:
        module = jaas.split(None, 1)[0].rpartition(".")[2] if jaas.split() else ""
        expected = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
        if module != expected:
            raise UsageError(
                f"sasl.jaas.config has the module {module or 'none'}, and {mechanism} needs {expected}",
                remedy=f"org.apache.kafka.common.security.{'plain' if mechanism == 'PLAIN' else 'scram'}."
                f'{expected} required username="..." password="...";',
            )
        options = {
            match[1]: next(unescaped(text) for text in match.groups()[1:] if text is not None)
            for match in _LOGIN.finditer(jaas)
        }
        username, password = options.get("username", username), options.get("password", password)
    if username is None or password is None:
        raise UsageError(
            "SASL needs a user name and a password",
            remedy="set sasl.jaas.config, or sasl.username and sasl.password",
        )
    return mechanism, username, password


def _checks_host(named: Mapping[str, str]) -> bool:
    algorithm = named.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "", "none"):
        raise _refused("ssl.endpoint.identification.algorithm", algorithm, ("https", "none", "(empty)"))
    return algorithm == "https"


def _tls(named: Mapping[str, str]) -> ssl.SSLContext:
    for store in ("truststore", "keystore"):
        file = named.get(f"ssl.{store}.location", "")
        kind = named.get(f"ssl.{store}.type", "JKS" if file.endswith((".jks", ".p12")) else "PEM")
        if kind.upper() != "PEM":
            raise UsageError(f"ssl.{store}.location is a {kind} file", remedy=_PEM_REMEDY, file=file)
    location, data = named.get("ssl.truststore.location"), named.get("ssl.truststore.certificates")
    try:
        context = ssl.create_default_context(cafile=location, cadata=data)
        certificate = named.get("ssl.keystore.location")
        if certificate is not None:
            password = named.get("ssl.key.password", named.get("ssl.keystore.password"))
            location = certificate
            context.load_cert_chain(certificate, named.get("ssl.key.location"), password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise AuthenticationFailedError(
            f"cannot read the certificates of {location or 'ssl.truststore.certificates'}: {error}",
            remedy=f"give a PEM file; {_PEM_REMEDY}",
            file=location,
        ) from None
    context.check_hostname = _checks_host(named)
    if named.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
