"""The certificates that this machine trusts, in the form that Java reads (JKS, version 2).

    magic FEEDFEED | version 2 | count | per certificate: 2 | alias | time in ms | "X.509" | length | DER | SHA-1

A Java from a Python package knows only the public authorities. If a proxy or a mirror has a certificate of a private
authority, pip can connect, because the machine trusts it, and Java could not.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

_MAGIC: Final = 0xFEEDFEED
_VERSION: Final = 2
_TRUSTED: Final = 2
# The default password of every Java; it protects nothing, because the file has no secret.
PASSWORD: Final = "changeit"
_SALT: Final = b"Mighty Aphrodite"


def trust_store(certificates: Sequence[bytes]) -> bytes:
    """`certificates` in DER, as Python's ssl module hands them out."""
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED) + _text(f"ca-{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + _SALT + body).digest()


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
