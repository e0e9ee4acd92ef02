"""Creates certificates for development: an authority in a directory, and node certificates signed by it.

    DIRECTORY/ca.pem, ca.key         created once; the key can sign certificates of further nodes
    DIRECTORY/NAME.pem, NAME.key     for one node or many, valid for the given hosts

In production, certificates should come from a managed authority: these expire after a year, and the key of the
authority is stored beside them. Import this module late: `cryptography` takes time to load.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, cast

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from icestream import errors
from icestream.cluster.tls import NODE_URI, PeerTls

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
VALID: Final = timedelta(days=365)
BEFORE: Final = timedelta(hours=1)  # valid from an hour ago: clocks of nodes differ
AUTHORITY: Final = "Icestream development authority"


def make_certificate(folder: Path, name: str, hosts: tuple[str, ...], now: datetime, cluster: str = "") -> PeerTls:
    """Creates a certificate for these hosts, and the authority if there is none. Existing files stay.

    `cluster`: the certificate is for the node `name` of it, and no other (tls.py); empty: for any node.

    Raises InvalidInput for an invalid or existing name, ConfigurationError if the authority cannot sign.
    """
    files = PeerTls(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")
    if name in ("", "ca") or Path(name).name != name:
        raise errors.InvalidInput(
            f"{name!r} is not a valid certificate name", hint="use a plain file name, for example node-1"
        )
    if files.certificate.exists():
        raise errors.InvalidInput(f"{files.certificate} exists already", hint="choose another name, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = _authority(folder, now)
    key = _new_key()
    names = list(map(_host, hosts))
    if cluster:
        names.append(x509.UniformResourceIdentifier(NODE_URI.format(cluster=cluster, node=name)))
    builder = _builder(_name(name), authority.subject, key, now, is_authority=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write(files.key, files.certificate, key, builder.sign(authority_key, SHA256()))
    return files


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Loads the authority of the folder, or creates it."""
    certificate_file, key_file = folder / "ca.pem", folder / "ca.key"
    if certificate_file.exists():
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            authority = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise errors.ConfigurationError(
                f"{certificate_file} cannot sign with {key_file}: {error}", hint="name another directory"
            ) from None
        return authority, cast("ec.EllipticCurvePrivateKey", key)
    key = _new_key()
    name = _name(AUTHORITY)
    authority = _builder(name, name, key, now, is_authority=True).sign(key, SHA256())
    _write(key_file, certificate_file, key, authority)
    return authority, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, *, is_authority: bool
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - BEFORE)
        .not_valid_after(now.astimezone(UTC) + VALID)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _write(
    key_file: Path, certificate_file: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> None:
    """Writes key and certificate; the key is readable by its owner only.

    The key is first: a certificate without its key would block the name.
    """
    encoding = serialization.Encoding.PEM
    plain = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_file.unlink(missing_ok=True)
    with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(plain)
    certificate_file.write_bytes(certificate.public_bytes(encoding))
