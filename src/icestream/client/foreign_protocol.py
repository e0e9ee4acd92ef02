"""Recognises servers that are not a broker's native port by their first bytes. Pure.

HTTP/1       the status line of an answer, `HTTP/1.1 400 …`
HTTP/2       a SETTINGS frame, which a server of HTTP/2 (so of gRPC) sends first
TLS          an alert

None of these can begin a native frame: read as one, each is larger than the first frame of a broker may be.
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.client.address import DEFAULT_PORT, Address

FIRST_BYTES: Final = 9  # enough to recognise each of them
_SETTINGS: Final = 4
_SETTING_BYTES: Final = 6
_TLS_ALERT: Final = b"\x15\x03"


def protocol_of(first: bytes) -> str:
    """The protocol of a server whose answer begins with `first`, FIRST_BYTES of it or more. Empty: not recognised."""
    if first.startswith(b"HTTP/"):
        return "HTTP"
    if first.startswith(_TLS_ALERT):
        return "TLS"
    is_settings = len(first) >= FIRST_BYTES and first[3] == _SETTINGS and not any(first[4:9])
    if is_settings and int.from_bytes(first[:3], "big") % _SETTING_BYTES == 0:
        return "gRPC (HTTP/2)"
    return ""


def wrong_port(address: Address, first: bytes) -> errors.WrongPort | None:
    """The error for a server at `address` that speaks another protocol; None when it may be a broker."""
    protocol = protocol_of(first)
    if not protocol:
        return None
    port = "changed here" if address.port == DEFAULT_PORT else f"{DEFAULT_PORT} unless it was changed"
    return errors.WrongPort(
        f"{address} answers in {protocol}, not in the native protocol",
        hint=f"connect to the broker's native port (setting ports.native, {port}); its greeting at the start names it",
    )
