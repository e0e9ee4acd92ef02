"""How long a TCP connection outlives its other end: a machine that is gone, or a cut of the network, closes nothing.

    nothing to send    the kernel asks after `idle_seconds`, then each third of it; three questions without an answer,
                       or `unacked_seconds` of them, end the connection
    something sent     and not taken by the other kernel for `unacked_seconds` ends it too, also when that one answers
                       and has no room (TCP_USER_TIMEOUT, Linux). Without it the kernel sends again for a quarter of an
                       hour, each time twice as late: that a network is back is noticed as long again as it was away

The kernel does all of it; no process wakes.
"""

from __future__ import annotations

import asyncio
import socket
import sys


def keep_alive(transport: asyncio.BaseTransport, idle_seconds: int, unacked_seconds: float = 0.0) -> None:
    """Nothing happens to what is no TCP. 0: as long as the kernel likes."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_seconds // 3))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unacked_seconds * 1000))
