"""Certificates for TLS, and the keys that authenticate nodes. All are made here, offline.

Flower accepts a node's key only on a NIST curve in OpenSSH's format, and a server's certificate
only if its names cover the address that nodes connect to.
"""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedstill.engine.flower import require_flower

_YEARS = 5
_LOCAL = ("localhost", "127.0.0.1")  # the operator's commands run on the server's own machine


def make_certificates(folder: Path, host: str) -> None:
    """A certificate authority, and a server certificate for ``host`` that it issues."""
    require_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    now = datetime.now(UTC)

    def builder(subject: str, issuer: str, key: Any) -> Any:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))  # clocks differ
            .not_valid_after(now + timedelta(days=365 * _YEARS))
        )

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = "fedstill authority"
    root = (
        builder(name, name, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    certificate = (
        builder("fedstill server", name, server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .add_extension(
            x509.SubjectAlternativeName([_alternative(n) for n in dict.fromkeys((host, *_LOCAL))]),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_secret(folder / "ca.key", _pem(authority))
    _write_secret(folder / "server.key", _pem(server))
    (folder / "ca.crt").write_bytes(_encoded(root))
    (folder / "server.crt").write_bytes(_encoded(certificate))


def make_node_key(path: Path) -> None:
    """A node's private key at ``path`` and its public key at ``path.pub``."""
    require_flower()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_secret(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public_path(path).write_bytes(public + b"\n")


def public_path(key: Path) -> Path:
    """The path of a node's public key."""
    return key.with_name(f"{key.name}.pub")


def _name(common: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, sign_certificates: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoded: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return encoded


def _encoded(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoded: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return encoded


def _write_secret(path: Path, data: bytes) -> None:
    """Readable by the owner only, from the first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
