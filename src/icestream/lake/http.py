"""HTTP/1.1 of the lake process: uvicorn's fast parser with bounds on what a client may send and how long it may take.

    silent      a new connection        HTTP_HEAD_SECONDS_MAX until its first head is complete
    receiving   the head is complete    it has at most HTTP_HEAD_BYTES_MAX; the guard bounds the body (guard.py)
    busy        the request is complete until the response is sent; API_UNREAD_SECONDS_MAX for the client to read it
    idle        between requests        API_IDLE_SECONDS until the next head begins, HTTP_HEAD_SECONDS_MAX until it ends

Malformed or oversized requests get 400, and the connection is closed. When all slots are in use, silent and idle
connections are closed in favour of new ones (runtime/connection_room.py). While all are busy, new connections are
admitted to a reserve, where a request needs the token of this node (its pipeline has it) and gets 503 without.

uvicorn writes head and body of a response separately: two packets, and two wake-ups of the client. Therefore the head
is held back for the body (`HeadJoiningTransport`), until the end of the loop's turn at most, because some responses
have no body. A large body is written separately: copying it would cost more than a packet.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from icestream import errors, limits
from icestream.lake.request_caller import AUTHENTICATED, CLIENT_CERTIFICATE
from icestream.runtime.connection_room import ConnectionRoom, RoomState, Standing
from icestream.runtime.instance import NODE_TOKEN_HEADER
from icestream.runtime.keep_alive import keep_alive
from icestream.runtime.listener_tls import ListenerTls, peer_certificate
from icestream.runtime.listening import cannot_listen
from icestream.runtime.tls_server import TlsServer

_REFUSAL: Final = "Invalid HTTP request received."
_HEAD: Final = b"HTTP/1.1 "
_NODE_TOKEN: Final = NODE_TOKEN_HEADER.lower().encode()
_BUSY_BODY: Final = b"all connections of this listener are busy; try again in a moment\n"
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b"
) % (len(_BUSY_BODY), _BUSY_BODY)


class HeadJoiningTransport:
    """The part of a transport that responses need; joins a response's head with its body in one write."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""  # held back for its body

    def write(self, data: bytes) -> None:
        head, self._head = self._head, b""
        if head and len(data) <= limits.HTTP_JOINED_BYTES_MAX:
            self._transport.write(head + data)
        elif head:  # not writelines: some versions of asyncio would not signal back-pressure to the writer
            self._transport.write(head)
            self._transport.write(data)
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class ConnectionSlots:
    """The connection slots of the lake process, and the token of requests that may use the reserve (empty: none).

    `report` is called with the state shortly after the slots become scarce or connections are refused, and when
    that ends.
    """

    def __init__(self, capacity: int, node_token: str, report: Callable[[RoomState], None]) -> None:
        self.room: ConnectionRoom[BoundedHttpProtocol] = ConnectionRoom(
            "lake", capacity, limits.API_CONNECTIONS_RESERVED
        )
        self._node_token = node_token.encode()
        self._report = report
        self.has_accounts = False  # since the first request that said so
        self._reported = (False, False)
        self._report_timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> RoomState:
        return self.room.state

    def has_node_token(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether a request comes from a process of this node."""
        token = next((value for name, value in headers if name == _NODE_TOKEN), b"")
        return bool(self._node_token) and hmac.compare_digest(token, self._node_token)

    def on_change(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedules a report if the state differs from the one last reported; the delay absorbs short peaks."""
        if self._report_timer is None and self._crowding() != self._reported:
            self._report_timer = loop.call_later(limits.API_CROWDING_SECONDS, self._report_state)

    def _crowding(self) -> tuple[bool, bool]:
        state = self.room.state
        return (state.is_crowded, state.is_refusing)

    def _report_state(self) -> None:
        self._report_timer = None
        if self._crowding() != self._reported:
            self._reported = self._crowding()
            self._report(self.room.state)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on heads, times and connections."""

    _is_head = True
    _head_bytes = 0
    _is_reserved = False
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, slots: ConnectionSlots, *arguments: Any, **options: Any) -> None:
        """The arguments after `slots` are uvicorn's."""
        super().__init__(*arguments, **options)
        self._slots = slots
        self._room = slots.room

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        if (certificate := peer_certificate(transport)) is not None:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: certificate}
        self.transport = cast("asyncio.Transport", HeadJoiningTransport(self.transport, self.loop))
        keep_alive(transport, limits.KEEP_ALIVE_SECONDS, limits.API_UNREAD_SECONDS_MAX)
        admission = self._room.admit(self, is_stranger=self._slots.has_accounts)
        self._slots.on_change(self.loop)
        if admission.evicted is not None:
            admission.evicted.transport.close()
        if not admission.is_admitted:
            self._refuse()
            return
        self._is_reserved = admission.is_reserved
        self._expect_head_within(limits.HTTP_HEAD_SECONDS_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.leave(self)
        self._slots.on_change(self.loop)
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._is_head:
            self._head_bytes += len(data)
            if self._head_bytes > limits.HTTP_HEAD_BYTES_MAX:
                self.send_400_response(_REFUSAL)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        self._is_head, self._head_bytes = True, 0
        if not self._is_responding:
            self._expect_head_within(limits.HTTP_HEAD_SECONDS_MAX)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > limits.HTTP_HEAD_BYTES_MAX or self.parser.get_method() == b"CONNECT":
            raise errors.InvalidInput(_REFUSAL)  # the parser turns it into an error of its own, which gives 400
        if self._is_reserved and not self._slots.has_node_token(self.headers):
            self._refuse()
            raise errors.InvalidInput(_REFUSAL)  # stops the parser
        self._cancel_deadline()
        if not self._is_responding:
            self._room.move(self, Standing.RECEIVING)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._is_responding:
            self._room.move(self, Standing.BUSY)
            self._slots.on_change(self.loop)

    def on_response_complete(self) -> None:
        is_followed = bool(self.pipeline)  # by a request whose head arrived before this response was sent
        self._recognise()
        super().on_response_complete()
        if not is_followed:
            self._room.move(self, Standing.IDLE)
            self._slots.on_change(self.loop)
            self._expect_head_within(limits.HTTP_HEAD_SECONDS_MAX if self._is_head else limits.API_IDLE_SECONDS)

    def _recognise(self) -> None:
        """A connection whose request had a valid credential has a place of its own (runtime/connection_room.py)."""
        is_authenticated = self.cycle.scope.get("state", {}).get(AUTHENTICATED)
        if is_authenticated is None:
            return
        self._slots.has_accounts = True
        if is_authenticated and (evicted := self._room.recognise(self)) is not None:
            evicted.transport.close()

    @property
    def _is_responding(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None at first, against uvicorn's annotation
        return cycle is not None and not cycle.response_complete

    def _refuse(self) -> None:
        self._room.refused += self._is_reserved  # connections that were not admitted are already counted by the room
        self.transport.write(_BUSY)
        self.transport.close()

    def _expect_head_within(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class EventServer(uvicorn.Server):
    """A uvicorn server that ends with an event."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event, tls: ListenerTls | None = None) -> None:
        super().__init__(config)
        self._stop = stop
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None or not sockets:
            await super().startup(sockets)
            return
        # uvicorn would keep one certificate for its life, and as many half-open connections as come.
        protocol = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        new_protocol = partial(protocol, config=self.config, server_state=self.server_state, app_state={})
        self.servers = [cast("asyncio.Server", TlsServer(listening, new_protocol, self._tls)) for listening in sockets]
        self.started = True

    async def main_loop(self) -> None:
        # uvicorn's own loop wakes up ten times a second to look whether it should end.
        await self._stop.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The process handles signals itself (runtime/stop_signals.py): they stop more than this server.
        yield


async def serve_http(
    app: ASGIApp,
    listening: socket.socket,
    slots: ConnectionSlots,
    stop: asyncio.Event,
    tls: ListenerTls | None = None,
) -> None:
    """Serves the application until `stop`; open requests then have API_STOP_SECONDS. `tls`: None for plain text."""
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(BoundedHttpProtocol, slots)),  # uvicorn accepts any factory
        log_config=None,
        log_level="critical",  # our own applications log their errors (problems.py, iceberg/app.py)
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.API_IDLE_SECONDS,
        timeout_graceful_shutdown=limits.API_STOP_SECONDS,
    )
    await EventServer(config, stop, tls).serve([listening])


def bind_listener(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait in its backlog until the server runs. Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is given because asyncio sets TCP_NODELAY only if it is; without, Nagle's algorithm delays each
    # response by 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(limits.API_CONNECTIONS_MAX)
    except OSError as error:
        listening.close()
        raise cannot_listen("ports.lake", host, port, error) from None
    listening.setblocking(False)
    return listening
