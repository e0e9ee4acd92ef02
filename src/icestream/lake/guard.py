"""In front of the API: what it must never see, and what every answer carries. Plain ASGI.

    a body above API_BODY_BYTES_MAX, or one that does not come in time      413, 408; it is read here, within the bound
    a Host that is not this machine's, where only this machine may ask      421: a web page that renamed itself
                                                                            (DNS rebinding)
    a change asked for by a page of another site (Origin, Sec-Fetch-Site)   403: there is no authentication yet, and a
                                                                            browser on this machine would do it
    a name with a slash in it (%2F)                                         404: it would be taken for another path

HEAD is answered as GET is, without the body. Answers carry a date (the server has no clock that ticks), and are kept by
nobody.
"""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icestream import limits
from icestream.lake import problems
from icestream.settings.text import is_loopback

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self._app = app
        self._only_local = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the API speaks HTTP, not {scope['type']}")
        refused = self._refused(scope)
        body = b"" if refused is not None else await _body(receive)
        if body is None:
            return
        if isinstance(body, int):
            refused = problems.of_status(body, f"a body has at most {limits.API_BODY_BYTES_MAX} bytes", scope["path"])
        if refused is not None:
            await refused(scope, receive, _dated(send))
            return
        assert isinstance(body, bytes)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # the server leaves the body out
        await self._app({**scope, "method": method}, _replayed(body, receive), _dated(send))

    def _refused(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._only_local and not is_loopback(host_name(host)):
            return problems.of_status(421, "this broker listens for its own machine only", scope["path"])
        if b"%2f" in scope.get("raw_path", b"").lower():
            return problems.of_status(404, "no name has a slash in it", scope["path"])
        if scope["method"] not in _SAFE and is_foreign(headers.get("origin"), host, headers.get("sec-fetch-site")):
            return problems.of_status(403, "a page of another site may not change anything here", scope["path"])
        return None


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_foreign(origin: str | None, host: str, site: str | None) -> bool:
    """Whether a browser says that another site asks. Whoever is no browser says nothing."""
    if site is not None and site not in ("same-origin", "none"):
        return True
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != host
    except ValueError:
        return True


async def _body(receive: Receive) -> bytes | int | None:
    """All of it; a status when it is too large or too slow; None when the client went away."""
    found = bytearray()
    try:
        async with asyncio.timeout(limits.API_BODY_SECONDS_MAX):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                found += message.get("body", b"")
                if len(found) > limits.API_BODY_BYTES_MAX:
                    return 413
                if not message.get("more_body", False):
                    return bytes(found)
    except TimeoutError:
        return 408


def _replayed(body: bytes, receive: Receive) -> Receive:
    was_given = False

    async def replay() -> Message:
        nonlocal was_given
        if was_given:
            return await receive()
        was_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _dated(send: Send) -> Send:
    async def dated(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                (b"date", formatdate(time.time(), usegmt=True).encode()),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
            ]
        await send(message)

    return dated
