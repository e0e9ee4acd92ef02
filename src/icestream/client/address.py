"""Addresses of brokers: `icestream://host:port`, `host:port`, `host`, or `unix:///path/of/a/socket`.

The default port is 6651. An IPv6 address is written in brackets: `icestream://[::1]:6651`.
"""

from __future__ import annotations

import re
import reprlib
from typing import Final, NamedTuple

from icestream import errors

DEFAULT: Final = "icestream://127.0.0.1:6651"
DEFAULT_PORT: Final = 6651
_TCP: Final = re.compile(r"(?:icestream://)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]@?#]+)(?::(?P<port>\d{1,5}))?/?")
_UNIX: Final = "unix://"


class Address(NamedTuple):
    """The address of a broker. `path`: of a local socket; empty for TCP."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return _UNIX + self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"icestream://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parses an address in one of the forms above. Raises InvalidInput."""
    if not isinstance(text, str):
        raise errors.InvalidInput(f"an address must be str, got {type(text).__name__}", hint=f"for example {DEFAULT}")
    if text.startswith(_UNIX + "/") and "\0" not in text:
        return Address("", 0, text.removeprefix(_UNIX))
    match = _TCP.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match is not None else 0
    if match is None or not text.isprintable() or not 0 < port < 2**16:
        raise errors.InvalidInput(
            f"{reprlib.repr(text)} is not the address of a broker",
            hint=f"for example {DEFAULT}, 127.0.0.1:6651 or unix:///run/icestream.sock",
        )
    return Address(match["host"].strip("[]"), port)
