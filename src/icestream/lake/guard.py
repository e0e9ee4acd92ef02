"""In front of the API and the catalog: what they must never see, and what every answer carries. Plain ASGI.

    a body above the bound, or one that does not come in time               413, 408; it is read here, within the bound
    more bodies at a time than there is room for                            503
    a Host that is not this machine's, where only this machine may ask      421: a web page that renamed itself
                                                                            (DNS rebinding)
    a change asked for by a page of another site (Origin, Sec-Fetch-Site)   403: there is no authentication yet, and a
                                                                            browser on this machine would do it
    a name with a slash in it (%2F), except for the catalog's               404: it would be taken for another path

HEAD is answered as GET is, without the body, except by the catalog, which knows it. Answers carry a date (the server
has no clock that ticks), and are kept by nobody.
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
from icestream.runtime.host_header import is_local
from icestream.settings.text import is_loopback

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_WHOLE: Final = 200
_BODY_WORDS: Final = {408: "the body did not come in time", 503: "too much is being asked at a time; try again"}


class Manner(NamedTuple):
    """What differs between those behind a guard."""

    refuse: Callable[[int, str, str], ASGIApp]  # status, words, path
    body_bytes_max: int
    takes_slashes: bool = False  # %2F in names
    knows_head: bool = False


API: Final = Manner(problems.of_status, limits.API_BODY_BYTES_MAX)


class Guard:
    def __init__(self, app: ASGIApp, *, host: str, manner: Manner = API) -> None:
        self._app = app
        self._manner = manner
        self._only_local = is_loopback(host)
        self._held_bytes = 0  # of bodies that are being read or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the API speaks HTTP, not {scope['type']}")
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, _dated(send))
            return
        body = bytearray()
        try:
            status = await self._read(body, receive)
            if status is None:
                return
            await self._answer(scope, receive, send, bytes(body), status)
        finally:
            self._held_bytes -= len(body)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, body: bytes, status: int) -> None:
        if status != _WHOLE:
            words = f"a body has at most {self._manner.body_bytes_max} bytes"
            refused = self._manner.refuse(status, _BODY_WORDS.get(status, words), scope["path"])
            await refused(scope, receive, _dated(send))
            return
        method = "GET" if scope["method"] == "HEAD" and not self._manner.knows_head else scope["method"]
        await self._app({**scope, "method": method}, _replayed(body, receive), _dated(send))

    async def _read(self, body: bytearray, receive: Receive) -> int | None:
        """All of it; a status when it is too large or too slow; None when the client went away."""
        try:
            async with asyncio.timeout(limits.API_BODY_SECONDS_MAX):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    piece = message.get("body", b"")
                    body += piece
                    self._held_bytes += len(piece)
                    if len(body) > self._manner.body_bytes_max:
                        return 413
                    if self._held_bytes > limits.HTTP_BODIES_BYTES_MAX:
                        return 503
                    if not message.get("more_body", False):
                        return _WHOLE
        except TimeoutError:
            return 408

    def _refused(self, scope: Scope) -> ASGIApp | None:
        host, origin, site = _asker(scope["headers"])
        if self._only_local and not is_local(host):
            return self._manner.refuse(421, "this broker listens for its own machine only", scope["path"])
        if not self._manner.takes_slashes and b"%2f" in scope.get("raw_path", b"").lower():
            return self._manner.refuse(404, "no name has a slash in it", scope["path"])
        if scope["method"] not in _SAFE and is_foreign(origin, host, site):
            return self._manner.refuse(403, "a page of another site may not change anything here", scope["path"])
        return None


def _asker(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str | None, str | None]:
    """Host, Origin and Sec-Fetch-Site; of each the first one."""
    host = origin = site = None
    for name, value in headers:
        if name == b"host" and host is None:
            host = value.decode("latin-1")
        elif name == b"origin" and origin is None:
            origin = value.decode("latin-1")
        elif name == b"sec-fetch-site" and site is None:
            site = value.decode("latin-1")
    return host or "", origin, site


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


def _replayed(body: bytes, receive: Receive) -> Receive:
    was_given = False

    async def replay() -> Message:
        nonlocal was_given
        if was_given:
            return await receive()
        was_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


def _dated(send: Send) -> Send:
    async def dated(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                (b"date", _date(int(time.time()))),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
            ]
        await send(message)

    return dated
