"""Headers of the PROXY protocol, version 2."""

from __future__ import annotations

import struct
from ipaddress import ip_address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def proxy_header(host: str, port: int, *, extensions: bytes = b"") -> bytes:
    """The header of a client; the destination is of the same family."""
    source = ip_address(host).packed
    body = source + bytes(len(source)) + struct.pack("!HH", port, 1883) + extensions
    family = 0x11 if len(source) == 4 else 0x21
    return SIGNATURE + struct.pack("!BBH", 0x21, family, len(body)) + body
