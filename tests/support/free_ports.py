"""Ports that nobody listens on, for servers that take none of the kernel's choice."""

from __future__ import annotations

import contextlib
import random
import socket

# Below the range that the kernel gives to outgoing connections: nobody takes one between the look and the start.
FIRST, LAST = 11_000, 21_000


def free_ports(count: int, also_at: tuple[int, ...] = ()) -> list[int]:
    """`also_at`: distances at which a server listens too, such as 10,000 for SeaweedFS."""
    found: list[int] = []
    start = random.SystemRandom()
    while len(found) < count:
        port = start.randrange(FIRST, LAST)
        wanted = [port, *(port + distance for distance in also_at)]
        if port not in found and all(map(_is_free, wanted)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as found:
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
