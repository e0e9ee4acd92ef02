"""Where other machines reach a port of this node: what clients and executors are told to connect to."""

from __future__ import annotations

import socket
from typing import Final

from icestream.settings import Settings

_WILDCARDS: Final = ("0.0.0.0", "::")


def advertised_address(settings: Settings, port: int, host: str | None = None) -> str:
    """`host`: what one front end has for itself. A node that listens everywhere goes by the name of its machine."""
    host = host or settings.node.advertised_host or settings.node.bind_host
    if host in _WILDCARDS:
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
