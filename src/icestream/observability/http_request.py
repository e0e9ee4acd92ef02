"""The head of an HTTP/1.x request, as far as the broker's own HTTP takes one. Pure.

    GET /readyz?verbose HTTP/1.1\\r\\n        a method, a path from `/` on, a version 1.x
    Host: 127.0.0.1:9040\\r\\n                names are tokens, values visible text; nothing is folded
    \\r\\n                                    no body follows: a request that announces one is refused, and its
                                            connection closed: no proxy can disagree about where it ends

Anything else is InvalidInput. Both values of a repeated header are kept, joined by a comma.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote

from icestream import errors

END: Final = b"\r\n\r\n"
_LINE: Final = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")


class Request(NamedTuple):
    """The head of one request."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]  # by lower-case name
    version: int  # the minor version: HTTP/1.0 or 1.1
    peer: str = ""  # the address of the client, and its verified certificate in DER
    certificate: bytes | None = None

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow on the same connection."""
        options = {word.strip() for word in self.headers.get("connection", "").lower().split(",")}
        return "close" not in options and (self.version == 1 or "keep-alive" in options)


def parse(head: bytes) -> Request:
    """Parses a head, which ends with the empty line. Raises InvalidInput."""
    line, *fields = head.removesuffix(END).decode("latin-1").split("\r\n")
    match = _LINE.fullmatch(line)
    if match is None:
        raise errors.InvalidInput("malformed request line: not HTTP/1.0 or HTTP/1.1")
    method, target, version = match.groups()
    headers = _headers(fields)
    if version == "1" and "host" not in headers:
        raise errors.InvalidInput("a request of HTTP/1.1 needs a Host header")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise errors.InvalidInput("requests with a body are not supported")
    path, _, query = target.partition("?")
    return Request(method, unquote(path), parse_qs(query, keep_blank_values=True), headers, int(version))


def _headers(fields: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for field in fields:
        match = _HEADER.fullmatch(field)
        if match is None:
            raise errors.InvalidInput(f"malformed header {field[:60]!r}")
        name, value = match[1].lower(), match[2]
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
