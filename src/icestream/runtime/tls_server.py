"""Accepts connections on an event loop that begin with something else than their protocol: a TLS handshake, or what a
load balancer sends in front of it. A protocol hears of a connection when that is done.

    half open    at most TLS_HALF_OPEN_MAX, each for TLS_HANDSHAKE_SECONDS_MAX; at the bound the oldest is closed for a
                 new one, and no connection that is open (hazard 120)

Each connection gets the certificate that is in use when it is accepted (listener_tls.py). The twin of
native/src/wire/handshakes.rs, for listeners that asyncio serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from icestream import errors, limits
from icestream.runtime.listener_tls import ListenerTls

ACCEPT_PAUSE_SECONDS = 0.1

NewProtocol: TypeAlias = Callable[[], asyncio.BaseProtocol]


class TlsServer:
    """One listening socket; it has the methods of asyncio.Server that our listeners use."""

    def __init__(
        self,
        listening: socket.socket,
        new_protocol: NewProtocol,
        tls: ListenerTls | None,
        read_prelude: Callable[[socket.socket], Awaitable[NewProtocol]] | None = None,
    ) -> None:
        """`listening` is given away. `tls`: None for plain text.

        `read_prelude` reads what comes before the handshake, and nothing more, and returns what makes the protocol of
        this connection. It may raise DecodeError.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._new_protocol = new_protocol
        self._tls = tls
        self._read_prelude = read_prelude
        self._half_open_max = limits.TLS_HALF_OPEN_MAX
        self._handshake_seconds = limits.TLS_HANDSHAKE_SECONDS_MAX
        self._half_open: dict[asyncio.Task[None], None] = {}  # oldest first
        self.evicted = 0
        self.failed = 0
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return (self._socket,)

    @property
    def half_open(self) -> int:
        return len(self._half_open)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # such as all descriptors being in use: it would fail again at once
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume)
            return
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._half_open) >= self._half_open_max:
            oldest = next(iter(self._half_open))
            del self._half_open[oldest]
            oldest.cancel()
            self.evicted += 1
        task = self._loop.create_task(self._shake_hands(connection), name="tls-handshake")
        self._half_open[task] = None
        task.add_done_callback(lambda done: self._half_open.pop(done, None))

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._handshake_seconds):
                new_protocol = self._new_protocol
                if self._read_prelude is not None:
                    new_protocol = await self._read_prelude(connection)
                context = None if self._tls is None else self._tls.context
                seconds = None if self._tls is None else self._handshake_seconds
                await self._loop.connect_accepted_socket(
                    new_protocol, connection, ssl=context, ssl_handshake_timeout=seconds
                )
        except (OSError, EOFError, errors.DecodeError):  # ssl.SSLError and TimeoutError are OSErrors
            self.failed += 1
            connection.close()
        except BaseException:  # a cancelled handshake or an unexpected error: the socket must not leak
            connection.close()
            raise

    def close(self) -> None:
        """Stops accepting; what is half open is closed."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for task in list(self._half_open):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._half_open, return_exceptions=True)
