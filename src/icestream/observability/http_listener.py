"""The HTTP listener for health and metrics, of the broker and of the pipeline: short answers to GET and HEAD.

It runs on the process's loop; docs/adr/0013 has the reason for an implementation of our own.

    silent --a head is complete--> answering --sent--> idle --a head is complete--> answering …
       │                               │                └── HTTP_IDLE_SECONDS without a byte --> closed
       │                               └── not sent within HTTP_IDLE_SECONDS --> closed
       └── a head that takes longer than HTTP_HEAD_SECONDS_MAX, exceeds HTTP_HEAD_BYTES_MAX, or is malformed --> closed

A request that arrives before the first is answered waits in the socket. When all places are taken, silent and idle
connections are closed for new ones; those that have proved a credential have places of their own
(runtime/connection_room.py). Only requests for this machine by a name that it has
are answered (runtime/host_header.py). With TLS a connection is silent when its handshake is done
(runtime/tls_server.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

from icestream import error_codes, errors, limits
from icestream.observability.http_request import END, Request, parse
from icestream.observability.log import get_logger
from icestream.runtime.connection_room import ConnectionRoom, RoomState, Standing
from icestream.runtime.host_header import is_known
from icestream.runtime.instance import HEADER
from icestream.runtime.listener_tls import ListenerTls, peer_certificate
from icestream.runtime.listening import cannot_listen, listening_socket
from icestream.runtime.tls_server import TlsServer
from icestream.settings.text import is_loopback

TEXT = "text/plain; charset=utf-8"
_FULL = "all connections of this listener are busy; try again in a moment"
_log = get_logger("http")


class Response(NamedTuple):
    """One answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    is_recognised: bool = False  # the request proved a credential


Handler = Callable[[Request], Awaitable[Response]]


class HttpListener:
    """One HTTP port and its connections."""

    def __init__(
        self,
        handler: Handler,
        instance: str = "",
        name: str = "http",
        setting: str = "ports.broker_http",
        connections_max: int = limits.HTTP_CONNECTIONS_MAX,
        host_names: frozenset[str] | None = None,
        has_accounts: Callable[[], bool] = lambda: False,
    ) -> None:
        """`instance`: of the broker, in the header of every answer (runtime/instance.py).

        `name`: of the listener in metrics and readiness. `setting`: the key of its port. `host_names`: that a request
        may name as its Host; None: any, unless the listener is on a loopback address. `has_accounts`: whether a client
        is a stranger until it has proved a credential (runtime/connection_room.py).
        """
        self._handler = handler
        self._has_accounts = has_accounts
        self._headers = ((HEADER, instance),) if instance else ()
        self._setting = setting
        self._server: asyncio.Server | TlsServer | None = None
        self._host_names = host_names
        self._room: ConnectionRoom[asyncio.StreamWriter] = ConnectionRoom(name, connections_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_only_local = True
        self.port = 0

    @property
    def room(self) -> RoomState:
        return self._room.state

    async def listen(self, host: str, port: int, tls: ListenerTls | None = None) -> None:
        """Opens the port. Raises ConfigurationError if it cannot be opened."""
        self._is_only_local = is_loopback(host)
        try:
            if tls is None:
                self._server = await asyncio.start_server(self._accept, host, port, limit=limits.HTTP_HEAD_BYTES_MAX)
            else:
                self._server = TlsServer(listening_socket(host, port), self._new_stream, tls)
        except OSError as error:
            raise cannot_listen(self._setting, host, port, error) from None
        self.port = self._server.sockets[0].getsockname()[1]

    def _new_stream(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limits.HTTP_HEAD_BYTES_MAX), self._accept)

    async def close(self) -> None:
        """Closes the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        admission = self._room.admit(writer, is_stranger=self._has_accounts())
        if admission.evicted is not None:
            admission.evicted.transport.abort()
        if not admission.is_admitted:
            writer.write(_encoded(_error(HTTPStatus.SERVICE_UNAVAILABLE, _FULL), keeps_alive=False))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="http")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        idle_seconds = limits.HTTP_HEAD_SECONDS_MAX
        try:
            while await self._serve_one(reader, writer, idle_seconds):
                self._room.move(writer, Standing.IDLE)
                idle_seconds = limits.HTTP_IDLE_SECONDS
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            # The client went away, or is too slow: an answer that it does not read must not keep the socket open.
            writer.transport.abort()
        finally:
            self._room.leave(writer)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_seconds: float) -> bool:
        """Answers one request; returns whether another one may follow."""
        try:
            request = (await _read(reader, idle_seconds))._replace(
                peer=_address(writer), certificate=peer_certificate(writer.transport)
            )
        except asyncio.LimitOverrunError:
            await self._send(writer, _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long"))
            return False
        except errors.InvalidInput as error:
            await self._send(writer, _error(HTTPStatus.BAD_REQUEST, error.message))
            return False
        self._room.move(writer, Standing.BUSY)
        async with asyncio.timeout(limits.HTTP_IDLE_SECONDS):
            response = await self._answer(request)
            if response.is_recognised and (evicted := self._room.recognise(writer)) is not None:
                evicted.transport.abort()
            await self._send(writer, response, request.method, keeps_alive=request.keeps_alive)
        return request.keeps_alive

    async def _send(
        self, writer: asyncio.StreamWriter, response: Response, method: str = "", *, keeps_alive: bool = False
    ) -> None:
        response_with_headers = response._replace(headers=(*response.headers, *self._headers))
        await _send(writer, response_with_headers, method, keeps_alive=keeps_alive)

    async def _answer(self, request: Request) -> Response:
        if not self._is_known(request.headers.get("host", "localhost")):
            return _error(HTTPStatus.MISDIRECTED_REQUEST, "this listener answers requests for its own machine only")
        if request.method not in ("GET", "HEAD"):
            refused = _error(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported")
            return refused._replace(headers=(("Allow", "GET, HEAD"),))
        try:
            return await self._handler(request)
        except Exception:  # noqa: BLE001 (a bug is logged, and the client gets an answer)
            _log.exception("HTTP request failed with a bug", path=request.path)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error: the broker's log has the reason")

    def _is_known(self, host: str) -> bool:
        if self._host_names is None and not self._is_only_local:
            return True
        return is_known(host, self._host_names or frozenset(), is_only_local=self._is_only_local)


def _address(writer: asyncio.StreamWriter) -> str:
    host, port, *_ = writer.get_extra_info("peername") or ("", 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _read(reader: asyncio.StreamReader, idle_seconds: float) -> Request:
    """Reads the next request. Raises TimeoutError if its head does not arrive in time."""
    async with asyncio.timeout(idle_seconds):
        first = await reader.readexactly(1)
    async with asyncio.timeout(min(idle_seconds, limits.HTTP_HEAD_SECONDS_MAX)):
        return parse(first + await reader.readuntil(END))


async def _send(writer: asyncio.StreamWriter, response: Response, method: str, *, keeps_alive: bool = False) -> None:
    head = _encoded(response._replace(body=b""), keeps_alive=keeps_alive, length=len(response.body))
    body = b"" if method == "HEAD" else response.body
    with contextlib.suppress(ConnectionError):
        for part in (head + body,) if len(body) <= limits.HTTP_JOINED_BYTES_MAX else (head, body):
            writer.write(part)
        await writer.drain()


def _encoded(response: Response, *, keeps_alive: bool, length: int | None = None) -> bytes:
    """Head and body of an answer. `length`: of the body, if it is sent separately."""
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body) if length is None else length}",
        "Cache-Control: no-store",
        f"Connection: {'keep-alive' if keeps_alive else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + response.body


def error_response(error: errors.IcestreamError) -> Response:
    """The answer to a request that ended with an error."""
    headers = (("WWW-Authenticate", "Bearer"),) if isinstance(error, errors.Unauthenticated) else ()
    return Response(HTTPStatus(error_codes.http_status(error)), f"{error}\n".encode(), headers=headers)


def _error(status: HTTPStatus, message: str) -> Response:
    return Response(status, f"{message}\n".encode())
