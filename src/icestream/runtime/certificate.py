"""The expiry dates of certificates in a PEM file. Nothing else of them is read, and nothing is verified: TLS does that.

A certificate is DER (ITU-T X.690): SEQUENCE { tbsCertificate, …}, and tbsCertificate (RFC 5280, 4.1) is SEQUENCE { [0]
version, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, … }.
"""

from __future__ import annotations

import hashlib
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from icestream import errors, limits

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def end_of_file(path: Path) -> datetime:
    """The earliest expiry of the certificates in a file. Raises OSError, DecodeError."""
    with path.open("rb") as file:
        return end_of_text(file.read(limits.CERTIFICATE_FILE_BYTES_MAX).decode("latin-1"), str(path))


def end_of_text(text: str, path: str) -> datetime:
    """The earliest expiry of the certificates in the contents of the file `path`. Raises DecodeError."""
    return min(map(end_of, _certificates(text, path)))


def digest_of_text(text: str, path: str) -> str:
    """The SHA-256 of the first certificate in the contents of the file `path`, in hexadecimal. Raises DecodeError."""
    return hashlib.sha256(_certificates(text, path)[0]).hexdigest()


def _certificates(text: str, path: str) -> list[bytes]:
    """The certificates of a file in DER. Raises DecodeError."""
    parts = [part.partition(_END)[0] for part in text.split(_BEGIN)[1:]]
    if not parts:
        raise errors.DecodeError(f"{path} has no certificate")
    try:
        return [ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{part}{_END}\n") for part in parts]
    except ValueError as error:
        raise errors.DecodeError(f"{path} has no readable certificate: {error}") from None


def end_of(certificate: bytes) -> datetime:
    """The expiry (notAfter) of a certificate in DER. Raises DecodeError."""
    body = _value(certificate, 0, _SEQUENCE)[0]
    fields = _value(body, 0, _SEQUENCE)[0]
    position = 0
    if fields[:1] == bytes([_VERSION]):
        position = _value(fields, position, _VERSION)[1]
    for _ in range(3):  # serial number, signature, issuer
        position = _value(fields, position)[1]
    validity = _value(fields, position, _SEQUENCE)[0]
    position = _value(validity, 0)[1]
    tag = validity[position] if position < len(validity) else 0
    text = _value(validity, position)[0].decode("latin-1")
    formats = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
    try:
        return datetime.strptime(text, formats[tag]).replace(tzinfo=UTC)
    except (KeyError, ValueError):
        raise errors.DecodeError(f"malformed certificate: invalid notAfter {text[:20]!r}") from None


def _value(data: bytes, position: int, tag: int | None = None) -> tuple[bytes, int]:
    """The content of the DER element at `position`, and the position of the next one. Raises DecodeError."""
    header = data[position : position + 2]
    if len(header) < 2 or (tag is not None and header[0] != tag):
        raise errors.DecodeError("not an X.509 certificate")
    size, begin = header[1], position + 2
    if size & 0x80:
        count = size & 0x7F
        size, begin = int.from_bytes(data[begin : begin + count], "big"), begin + count
        if not 1 <= count <= 4:
            raise errors.DecodeError("not an X.509 certificate")
    if begin + size > len(data):
        raise errors.DecodeError("truncated certificate")
    return data[begin : begin + size], begin + size
