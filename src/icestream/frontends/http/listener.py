"""The broker's own HTTP: short answers to GET and HEAD, on the broker's loop (docs/adr has why it is our own).

    waiting --a head is whole--> answering --sent--> waiting | closed
       └── HTTP_IDLE_SECONDS without one, a head above HTTP_HEAD_BYTES_MAX, anything that is no request --> closed

A request that follows before the first is answered waits in the socket. Beyond HTTP_CONNECTIONS_MAX connections the
oldest goes: a forgotten one must not keep a scraper out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

from icestream import errors, limits
from icestream.frontends.http.request import END, Request, parse
from icestream.observability.log import get_logger
from icestream.runtime.listening import cannot_listen

TEXT = "text/plain; charset=utf-8"
_log = get_logger("http")


class Response(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Awaitable[Response]]


class HttpListener:
    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], None] = {}  # the oldest first
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=limits.HTTP_HEAD_BYTES_MAX)
        except OSError as error:
            raise cannot_listen("ports.broker_http", host, port, error) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="http")
        self._open[task] = None
        task.add_done_callback(lambda done: self._open.pop(done, None))
        if len(self._open) > limits.HTTP_CONNECTIONS_MAX:
            next(iter(self._open)).cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # it went away, or is too slow: there is nobody to tell
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether another request may follow."""
        async with asyncio.timeout(limits.HTTP_IDLE_SECONDS):
            try:
                head = await reader.readuntil(END)
                request = parse(head)
            except asyncio.LimitOverrunError:
                await _send(writer, _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long"), "")
                return False
            except errors.InvalidInput as error:
                await _send(writer, _error(HTTPStatus.BAD_REQUEST, error.message), "")
                return False
            response = await self._answer(request)
            await _send(writer, response, request.method, keeps_alive=request.keeps_alive)
            return request.keeps_alive

    async def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            refused = _error(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD have a meaning here")
            return refused._replace(headers=(("Allow", "GET, HEAD"),))
        try:
            return await self._handler(request)
        except Exception:  # noqa: BLE001 (a mistake of ours is said in the log, and the client gets an answer)
            _log.exception("a request failed", path=request.path)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "the log of the broker says why")


async def _send(writer: asyncio.StreamWriter, response: Response, method: str, *, keeps_alive: bool = False) -> None:
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        f"Connection: {'keep-alive' if keeps_alive else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers),
    ]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    body = b"" if method == "HEAD" else response.body
    with contextlib.suppress(ConnectionError):
        for part in (head + body,) if len(body) <= limits.HTTP_JOINED_BYTES_MAX else (head, body):
            writer.write(part)
        await writer.drain()


def _error(status: HTTPStatus, message: str) -> Response:
    return Response(status, f"{message}\n".encode())
