"""HTTP/1.1 of the lake process: uvicorn's fast parser, with a bound for the head of a request, which it lacks.

begun      a request begins              its head comes, and has at most HTTP_HEAD_BYTES_MAX
body       the head is whole             the guard bounds the body (guard.py)
Whatever is no HTTP, or too large, is answered with 400, and the connection ends.

uvicorn writes head and body of an answer one after the other, which is a packet each, and the client wakes twice. So
the head waits for the body (`Gathered`), until the end of the loop's turn at most: some answers have none. A large body
goes by itself: to copy it would cost more than a packet.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from icestream import errors, limits

_REFUSAL: Final = "Invalid HTTP request received."
_HEAD: Final = b"HTTP/1.1 "


class Gathered:
    """A transport as far as answers need one."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""  # that waits for its body

    def write(self, data: bytes) -> None:
        head, self._head = self._head, b""
        if head and len(data) <= limits.HTTP_JOINED_BYTES_MAX:
            self._transport.write(head + data)
        elif head:  # by writelines some versions of asyncio would not tell who writes that he has to wait
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


class BoundedHttp(HttpToolsProtocol):
    _is_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self.transport = cast("asyncio.Transport", Gathered(self.transport, self.loop))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_head:
            self._head_bytes += len(data)
            if self._head_bytes > limits.HTTP_HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response(_REFUSAL)

    def on_message_begin(self) -> None:
        self._is_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > limits.HTTP_HEAD_BYTES_MAX or self.parser.get_method() == b"CONNECT":
            raise errors.InvalidInput(_REFUSAL)  # the parser makes it a refusal of its own
        super().on_headers_complete()
