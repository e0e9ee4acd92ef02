"""The address under which other machines reach a port of this node, as clients and executors are told."""

from __future__ import annotations

import socket
from typing import Final

from icestream.runtime.listener_tls import tls_files
from icestream.settings import Settings
from icestream.settings.text import is_loopback

_WILDCARDS: Final = ("0.0.0.0", "::")


def advertised_address(settings: Settings, port: int, host: str | None = None) -> str:
    """Returns `host:port`. `host`: the advertised host of one front end, if it has its own.

    A node that listens on all addresses is advertised by the name of its machine.
    """
    host = host or settings.node.advertised_host or settings.node.bind_host
    if host in _WILDCARDS:
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def known_host_names(settings: Settings, listener: str) -> frozenset[str] | None:
    """The names that the Host header of a request to a listener may have, beside addresses; None: any (hazard 123).

    Any only for a plain listener that other machines may reach: the operator has accepted the risk, and we do not know
    the names that it is reached by.
    """
    node = settings.node
    if not is_loopback(node.bind_host) and tls_files(settings, listener) is None:
        return None
    if is_loopback(node.bind_host) and not node.host_names and node.advertised_host is None:
        return frozenset()
    names = (node.bind_host, node.advertised_host, socket.gethostname(), *node.host_names)
    return frozenset(name.lower() for name in names if name is not None)
