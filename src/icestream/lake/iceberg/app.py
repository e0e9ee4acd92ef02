"""The HTTP face of the embedded catalog, /v1/…: plain ASGI, because every commit of every engine comes through it.

token wrong or missing          401
no such path, no such method    404, 405
answered by the catalog         its answer, or its error in Iceberg's form
a mistake of ours               500; a client takes it for an unknown outcome, and it may be one (hazard 13)
"""

from __future__ import annotations

import time
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from icestream import errors, limits
from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import Tokens
from icestream.lake.guard import Guard, Manner
from icestream.lake.iceberg import responses, routes
from icestream.lake.iceberg.access import NO_ACCESS, Access
from icestream.lake.iceberg.compression import compressed
from icestream.lake.iceberg.request import Asked
from icestream.lake.iceberg.responses import Answer
from icestream.lake.request_metrics import Requests
from icestream.observability.log import get_logger

_CHALLENGE: Final = ((b"www-authenticate", b'Bearer realm="icestream"'),)
_NO_CATALOG: Final = "the tables of this node are in another catalog: storage.iceberg_config.catalog names it"
_log = get_logger("catalog")


class IcebergFace:
    def __init__(
        self, catalog: Catalog | None, tokens: Tokens, counted: Requests, host: str, access: Access = NO_ACCESS
    ) -> None:
        """`catalog`: None where the tables of the node are in another one."""
        self._catalog = catalog
        self._access = access
        self._tokens = tokens
        self._counted = counted
        self._guard = Guard(self._serve, host=host, manner=MANNER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        body = (await receive())["body"]
        asked = Asked(scope["method"], scope["raw_path"], scope["query_string"], scope["headers"], body, self._access)
        route = routes.find(asked.segments)
        self._counted.under_way += 1
        try:
            answer = await self._answer(asked, route)
        finally:
            self._counted.under_way -= 1
        self._counted.note(asked.method, route.path if route else "none", answer.status, time.monotonic() - began)
        answer = await compressed(answer, asked.header(b"accept-encoding"))
        await sending(answer)(scope, receive, send)

    async def _answer(self, asked: Asked, route: routes.Route | None) -> Answer:
        if asked.path == routes.TOKENS_PATH:
            return responses.no_tokens()
        if not self._tokens.allows(asked.header(b"authorization")):
            return responses.of_status(401, "a bearer token is needed, and it must be one of this node's", _CHALLENGE)
        if route is None or self._catalog is None:
            return responses.of_status(404, "No route for this path" if route is None else _NO_CATALOG)
        handler = route.methods.get(asked.method)
        if handler is None:
            allowed = ", ".join(route.methods)
            message = f"{asked.method} is not allowed here; allowed: {allowed}"
            return responses.of_status(405, message, ((b"allow", allowed.encode()),))
        try:
            return await handler(self._catalog, asked)
        except errors.IcestreamError as error:
            return self._refused(asked, error)
        except Exception as error:  # noqa: BLE001  # the last word is ours: a client must not be left without an answer
            _log.error("a request failed", method=asked.method, route=route.path, exc_info=error)
            return responses.of_error(errors.IcestreamError("this is a mistake of ours; the log says more"))

    def _refused(self, asked: Asked, error: errors.IcestreamError) -> Answer:
        answer = responses.of_error(error)
        if answer.status >= 500:
            _log.warning(
                "a request could not be answered", method=asked.method, status=answer.status, reason=str(error)
            )
        return answer


def sending(answer: Answer) -> ASGIApp:
    """An answer as an application that gives it."""

    async def give(_scope: Scope, _receive: Receive, send: Send) -> None:
        length = () if answer.status in (204, 304) else ((b"content-length", str(len(answer.body)).encode()),)
        headers = [*answer.headers, *length]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    return give


def _refuse(status: int, message: str, _path: str) -> ASGIApp:
    return sending(responses.of_status(status, message))


MANNER: Final = Manner(_refuse, limits.CATALOG_BODY_BYTES_MAX, takes_slashes=True, knows_head=True)
