"""How long a TCP connection outlives its peer: a machine that crashed or a network that was cut closes no connection.

    nothing to send    the kernel probes after `idle_seconds`, then each third of it; three probes without an answer,
                       or `unacked_seconds` of them, end the connection
    data in flight     that the other kernel does not accept for `unacked_seconds` ends it, too, even if that kernel
                       answers and has no room (TCP_USER_TIMEOUT, Linux). Without it the kernel retransmits for a
                       quarter of an hour with growing pauses, and notices the end of an outage only that much later

The kernel does all of it; no process wakes.
"""

from __future__ import annotations

import asyncio
import socket
import sys


def keep_alive(transport: asyncio.BaseTransport, idle_seconds: int, unacked_seconds: float = 0.0) -> None:
    """Sets the limits on a TCP connection; does nothing for other sockets.

    `unacked_seconds` 0: the kernel's default.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_seconds // 3))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unacked_seconds * 1000))
