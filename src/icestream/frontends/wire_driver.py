"""What the drivers of native servers (native/src/wire) share: the burst on the loop, the listener, and transports.

A native server has one descriptor on the loop. When it is readable, `poll` returns what arrived since, as a list of
tuples in the order in which they are decided; the first value of a tuple says which handler it is for. The numbers of
StreamEvent (native/src/wire/burst.rs) are those of every protocol, its own begin behind them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from icestream import limits
from icestream.observability.log import get_logger
from icestream.runtime.listener_tls import PEER_CERTIFICATE, ListenerTls

_log = get_logger("wire")
CONNECTED, GONE, ROOM, SILENT, ACCEPT_FAILED = range(5)
PROTOCOL_ROWS: Final = 5  # the first number of a protocol's own rows
ACCEPT_PAUSE_SECONDS: Final = 0.1
WRITE_BYTES_HIGH: Final = 64 * 1024  # until a connection has a share, as asyncio has it


class WireDriver:
    """Listens by a native server, and hands its rows to handlers."""

    def __init__(self, server: Any, listener: socket.socket, tls: ListenerTls | None) -> None:
        """`listener` is given away. `tls`: None for plain text."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[int, Callable[..., None]] = {ACCEPT_FAILED: self._on_accept_failed}
        listener.setblocking(False)
        self._tls = tls
        if tls is None:
            server.listen(listener.detach(), limits.KEEP_ALIVE_SECONDS)
        else:
            server.listen_tls(
                listener.detach(), limits.KEEP_ALIVE_SECONDS, tls.pem, limits.TLS_HALF_OPEN_MAX,
                limits.TLS_HANDSHAKE_SECONDS_MAX,
            )  # fmt: skip
            tls.on_change.append(server.set_tls)
        self._loop.add_reader(server.fileno(), self._on_ready)

    def _poll(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._server.poll()
        return rows

    def _on_ready(self) -> None:
        for kind, *details in self._poll():
            try:
                self._handlers[kind](*details)
            except Exception as error:  # noqa: BLE001 (a bug in one handler must not lose the rest of the burst)
                self._report(error)

    def _report(self, error: BaseException) -> None:
        context = {"message": "a row of the native wire was not handled", "exception": error}
        self._loop.call_exception_handler(context)

    def _on_accept_failed(self, errno: int) -> None:
        """Pauses accepting: it would fail again at once, for instance while all descriptors are in use."""
        _log.warning("cannot accept a connection; trying again in a moment", errno=errno)
        self._server.set_accepting(False)
        self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._server.set_accepting, True)

    def stop_listening(self) -> None:
        if self._tls is not None:
            self._tls.on_change.remove(self._server.set_tls)
            self._tls = None
        self._server.stop_listening()


class WireTransport:
    """A connection of a native server with the methods of an asyncio transport that our connections use."""

    def __init__(self, server: Any, number: int, peer: str, certificate: bytes | None = None) -> None:
        """`number`: of the connection in the server, never used twice. `certificate`: the verified one of the client,
        in DER."""
        self._server = server
        self.number = number
        self._details: dict[str, object] = {"peername": peer, PEER_CERTIFICATE: certificate}
        self._is_closing = False
        self._high_bytes = WRITE_BYTES_HIGH
        self._is_full = False
        self.on_full: Callable[[], None] = lambda: None
        self.on_drained: Callable[[], None] = lambda: None

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._details.get(name, default)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._server.pause(self.number)

    def resume_reading(self) -> None:
        self._server.resume(self.number)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high or WRITE_BYTES_HIGH
        self._server.set_queue_high(self.number, self._high_bytes)

    def write(self, data: bytes) -> None:
        self.writelines((data,))

    def writelines(self, pieces: Sequence[bytes]) -> None:
        queued_bytes = self._server.send(self.number, pieces)
        if queued_bytes > self._high_bytes:
            self.filled()

    def filled(self) -> None:
        """Called when the queue has exceeded its bound."""
        if not self._is_full:
            self._is_full = True
            self.on_full()

    def drained(self) -> None:
        """Called when the queue has fallen below its bound."""
        if self._is_full:
            self._is_full = False
            self.on_drained()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Ends our side behind everything queued; what still arrives is discarded."""
        self._server.end(self.number)

    def abort(self) -> None:
        self._is_closing = True
        self._server.abort(self.number)

    def lost(self) -> None:
        """Called when the connection is gone."""
        self._is_closing = True


def transport_of(connection: WireTransport) -> asyncio.Transport:
    """The connection as the transport that it stands for."""
    return connection  # type: ignore[return-value]
