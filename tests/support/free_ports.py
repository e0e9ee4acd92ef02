"""Ports without a listener, for servers that cannot listen on port 0."""

from __future__ import annotations

import contextlib
import random
import socket

# Below the range that the kernel gives to outgoing connections: no connection takes one between check and start.
FIRST, LAST = 11_000, 21_000


def free_ports(count: int, also_at: tuple[int, ...] = ()) -> list[int]:
    """`also_at`: distances at which a server listens too, such as 10,000 for SeaweedFS."""
    ports: list[int] = []
    start = random.SystemRandom()
    while len(ports) < count:
        port = start.randrange(FIRST, LAST)
        candidates = [port, *(port + distance for distance in also_at)]
        if port not in ports and all(map(_is_free, candidates)):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
