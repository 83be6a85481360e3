"""Certificates for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Pem(NamedTuple):
    ca: str
    cert: str
    key: str


def made_pem(directory: Path) -> Pem:
    """Write an authority, and a certificate of it for 127.0.0.1, which is for servers and clients."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def made(name: str, issuer: Any, issuer_key: Any, *extensions: Any) -> tuple[Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        # Python verifies strictly (RFC 5280) from 3.13 on: without these two a newer OpenSSL refuses.
        of_issuer = (issuer_key or key).public_key()
        identifiers = (
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(of_issuer),
        )
        for extension in (*identifiers, *extensions):
            is_critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(issuer_key or key, hashes.SHA256()), key

    signs = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    ca, ca_key = made("authority", None, None, x509.BasicConstraints(ca=True, path_length=None), signs)
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    )
    cert, key = made("localhost", ca.subject, ca_key, names)
    files = Pem(*(str(directory / name) for name in ("ca.pem", "cert.pem", "key.pem")))
    Path(files.ca).write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    Path(files.cert).write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    Path(files.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files
