"""The address under which other machines reach a port of this node, as clients and executors are told."""

from __future__ import annotations

import socket
from typing import Final

from icestream.settings import Settings

_WILDCARDS: Final = ("0.0.0.0", "::")


def advertised_address(settings: Settings, port: int, host: str | None = None) -> str:
    """Returns `host:port`. `host`: the advertised host of one front end, if it has its own.

    A node that listens on all addresses is advertised by the name of its machine.
    """
    host = host or settings.node.advertised_host or settings.node.bind_host
    if host in _WILDCARDS:
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
