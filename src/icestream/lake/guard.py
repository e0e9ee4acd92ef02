"""A guard before the API and the catalog: rejects requests that they must not see, adds headers to responses. ASGI.

    a body above the limit, or one that does not arrive in time             413, 408; the body is read here, bounded
    more bodies at a time than the memory limit allows                      503
    a Host that this machine does not have (runtime/host_header.py)          421: DNS rebinding
    a change by a page of another site (Origin, Sec-Fetch-Site)             403: cross-site request forgery; a browser
                                                                            on this machine would send it
    a name that contains a slash (%2F), except in the catalog               404: it would be read as another path

HEAD is handled as GET without the body, except by the catalog, which implements it. Responses carry a date, because the
server does not add one, and must not be cached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icestream import limits
from icestream.lake import problems
from icestream.runtime.host_header import is_known
from icestream.settings.text import is_loopback

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_COMPLETE: Final = 200
_BODY_ERRORS: Final = {
    408: "timeout: the request body did not arrive in time",
    503: "too many concurrent request bodies; retry later",
}


class GuardPolicy(NamedTuple):
    """How a guard treats requests to one application."""

    error_response: Callable[[int, str, str], ASGIApp]  # of status, message and path
    body_bytes_max: int
    allows_slashes: bool = False  # %2F in names
    implements_head: bool = False


API_POLICY: Final = GuardPolicy(problems.status_problem, limits.API_BODY_BYTES_MAX)


class Guard:
    """Wraps an ASGI application; `host` is the address that the process listens on. `host_names`: that requests may
    name as their Host, beside addresses; None: any, unless the listener is on a loopback address."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        policy: GuardPolicy = API_POLICY,
        host_names: frozenset[str] | None = None,
    ) -> None:
        self._app = app
        self._policy = policy
        self._is_loopback_only = is_loopback(host)
        self._host_names = host_names
        self._body_bytes = 0  # of all requests in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"unsupported protocol {scope['type']}: the API is HTTP only")
        rejection = self._rejection(scope)
        if rejection is not None:
            await rejection(scope, receive, _add_headers(send))
            return
        body = bytearray()
        try:
            status = await self._read(body, receive)
            if status is None:
                return
            await self._forward(scope, receive, send, bytes(body), status)
        finally:
            self._body_bytes -= len(body)

    async def _forward(self, scope: Scope, receive: Receive, send: Send, body: bytes, status: int) -> None:
        """Passes a complete request to the application; sends an error for an incomplete one."""
        if status != _COMPLETE:
            too_large = f"request body exceeds the limit of {self._policy.body_bytes_max} bytes"
            rejection = self._policy.error_response(status, _BODY_ERRORS.get(status, too_large), scope["path"])
            await rejection(scope, receive, _add_headers(send))
            return
        method = "GET" if scope["method"] == "HEAD" and not self._policy.implements_head else scope["method"]
        await self._app({**scope, "method": method}, _replay(body, receive), _add_headers(send))

    async def _read(self, body: bytearray, receive: Receive) -> int | None:
        """Reads the body and returns 200; an error status if it is too large or too slow; None if the client
        disconnected."""
        try:
            async with asyncio.timeout(limits.API_BODY_SECONDS_MAX):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    piece = message.get("body", b"")
                    # Counted as it arrives: the length that a client declares proves nothing.
                    body += piece
                    self._body_bytes += len(piece)
                    if len(body) > self._policy.body_bytes_max:
                        return 413
                    if self._body_bytes > limits.HTTP_BODIES_BYTES_MAX:
                        return 503
                    if not message.get("more_body", False):
                        return _COMPLETE
        except TimeoutError:
            return 408

    def _rejection(self, scope: Scope) -> ASGIApp | None:
        """The error response to a request that its head disqualifies; None for an acceptable one."""
        reject, path = self._policy.error_response, scope["path"]
        host, origin, site = _origin_headers(scope["headers"])
        if not self._is_known(host):
            reason = (
                "this process listens on a loopback address only" if self._is_loopback_only else "not a name of ours"
            )
            return reject(421, f"wrong Host: {reason}", path)
        if not self._policy.allows_slashes and b"%2f" in scope.get("raw_path", b"").lower():
            return reject(404, "names cannot contain a slash (%2F)", path)
        if scope["method"] not in _SAFE and is_cross_site(origin, host, site):
            return reject(403, "cross-site requests cannot change anything", path)
        return None

    def _is_known(self, host: str) -> bool:
        if self._host_names is None and not self._is_loopback_only:
            return True
        return is_known(host, self._host_names or frozenset(), is_only_local=self._is_loopback_only)


def _origin_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str | None, str | None]:
    """The first Host, Origin and Sec-Fetch-Site header."""
    host = origin = site = None
    for name, value in headers:
        if name == b"host" and host is None:
            host = value.decode("latin-1")
        elif name == b"origin" and origin is None:
            origin = value.decode("latin-1")
        elif name == b"sec-fetch-site" and site is None:
            site = value.decode("latin-1")
    return host or "", origin, site


def is_cross_site(origin: str | None, host: str, site: str | None) -> bool:
    """Whether a browser marks the request as one of another site. Other clients do not send these headers."""
    if site is not None and site not in ("same-origin", "none"):
        return True
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != host
    except ValueError:
        return True


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body in one piece, then whatever `receive` returns (the disconnect)."""
    is_consumed = False

    async def receive_body() -> Message:
        nonlocal is_consumed
        if is_consumed:
            return await receive()
        is_consumed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


def _add_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                (b"date", _date(int(time.time()))),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
            ]
        await send(message)

    return send_with_headers
