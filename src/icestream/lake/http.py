"""HTTP/1.1 of the lake process: uvicorn's fast parser, with a bound for the head of a request, which it lacks.

begun      a request begins              its head comes, and has at most HTTP_HEAD_BYTES_MAX
body       the head is whole             the guard bounds the body (guard.py)
Whatever is no HTTP, or too large, is answered with 400, and the connection ends.
"""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from icestream import errors, limits

_REFUSAL: Final = "Invalid HTTP request received."


class BoundedHttp(HttpToolsProtocol):
    _is_head = True
    _head_bytes = 0

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
