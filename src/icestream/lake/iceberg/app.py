"""The HTTP application of the embedded catalog, /v1/…: plain ASGI, because every commit of every engine passes here.

no valid credential             401
right missing                   403, or the error of an absent name where the caller may not see it (route_rights.py)
no such path, no such method    404, 405
not a read, in a view           403
handled by the catalog          its result, or its error in Iceberg's format
an internal error               500; clients treat it as an unknown outcome, which it may be (hazard 13)
"""

from __future__ import annotations

import time
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from icestream import errors, limits
from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import Tokens
from icestream.lake.catalog_rights import CatalogRights
from icestream.lake.guard import Guard, GuardPolicy
from icestream.lake.iceberg import responses, routes
from icestream.lake.iceberg.access import NO_ACCESS, Access
from icestream.lake.iceberg.backup_view import BACKUP, ReadableBackups
from icestream.lake.iceberg.lake_views import LakeViews
from icestream.lake.iceberg.request import IcebergRequest, decode_segment
from icestream.lake.iceberg.responses import IcebergResponse, compress
from icestream.lake.iceberg.token_endpoint import issue_token
from icestream.lake.request_caller import (
    RequestCaller,
    RequestCallers,
    UnsecuredCallers,
    check_tokens,
    client_address,
    client_certificate,
    mark_authenticated,
)
from icestream.lake.request_metrics import RequestMetrics
from icestream.observability.log import get_logger

LISTENER: Final = "iceberg"
_NO_CATALOG: Final = "this node has no embedded catalog: its tables are in that of storage.iceberg_config.catalog"
_log = get_logger("catalog")


class IcebergApp:
    def __init__(
        self,
        catalog: Catalog | None,
        tokens: Tokens,
        request_metrics: RequestMetrics,
        host: str,
        access: Access = NO_ACCESS,
        host_names: frozenset[str] | None = None,
        callers: RequestCallers | None = None,
        backups: ReadableBackups | None = None,
    ) -> None:
        """`catalog` is None if the tables of the node are in another catalog. `tokens` are for brokers without
        accounts; `callers` identifies the callers of requests; None: security is off. `backups`: those that
        views show; None without a target."""
        self._catalog = catalog
        self._backups = backups
        self._access = access
        self._tokens = tokens
        self._metrics = request_metrics
        self._callers = callers or UnsecuredCallers()
        self._guard = Guard(self._serve, host=host, policy=GUARD_POLICY, host_names=host_names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        body = (await receive())["body"]
        method, path = scope["method"], scope["raw_path"]
        request = IcebergRequest(method, path, scope["query_string"], scope["headers"], body, self._access)
        route = routes.find_route(request.segments)
        self._metrics.in_progress += 1
        try:
            response = await self._handle(scope, request, route)
        finally:
            self._metrics.in_progress -= 1
        self._metrics.record(method, route.path if route else "none", response.status, time.monotonic() - start)
        response = await compress(response, request.header(b"accept-encoding"))
        await as_asgi(response)(scope, receive, send)

    async def _handle(self, scope: Scope, request: IcebergRequest, route: routes.Route | None) -> IcebergResponse:
        address = client_address(scope)
        try:
            if self._is_open(request) and self._catalog is not None:
                return await self._config(self._catalog, request)
            if request.path == routes.TOKENS_PATH:
                return await issue_token(self._callers, request, address)
            authorization = request.headers(b"authorization")
            caller = await self._callers.identify(authorization, address, LISTENER, client_certificate(scope))
            try:
                check_tokens(self._tokens, caller, authorization)
                mark_authenticated(scope, caller)
                return await self._answer(request, route, caller)
            finally:
                self._callers.release(caller)
        except errors.IcestreamError as error:
            return self._error_response(request, error)
        except Exception as error:  # noqa: BLE001  # last resort: every request must get a response
            path = route.path if route else "none"
            _log.error("internal error in catalog request", method=request.method, route=path, exc_info=error)
            return responses.error_response(errors.IcestreamError("internal error; see the log of the lake process"))

    def _is_open(self, request: IcebergRequest) -> bool:
        """Whether the request needs no credential. Engines read the configuration before they have logged in: it tells
        them where tokens are. Which backups there are is told after a login only."""
        is_config = request.path == routes.CONFIG_PATH and request.method == "GET" and not self._tokens
        return is_config and not (request.parameter("warehouse") or "").startswith(BACKUP)

    async def _config(self, catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
        request.view = await self._views(catalog).of_warehouse(request.parameter("warehouse"))
        return await routes.config(catalog, request)

    def _views(self, catalog: Catalog) -> LakeViews:
        return LakeViews(catalog.warehouse, lambda: catalog.clock.wall_us() // 1000, self._backups)

    async def _answer(
        self, request: IcebergRequest, route: routes.Route | None, caller: RequestCaller
    ) -> IcebergResponse:
        if route is None or self._catalog is None:
            return responses.status_response(404, "No route for this path" if route is None else _NO_CATALOG)
        endpoint = route.methods.get(request.method)
        name = request.parameter("warehouse") if request.prefix is None else decode_segment(request.prefix)
        if (name or "").startswith(BACKUP) and caller.is_secured and caller.is_anonymous:
            raise caller.unauthenticated()
        if request.path == routes.CONFIG_PATH and endpoint is not None:
            return await self._config(self._catalog, request)
        if request.prefix is not None:
            request.view = await self._views(self._catalog).of_name(name or "")
            endpoint = route.view_methods.get(request.method)
            if endpoint is None:
                raise errors.PermissionDenied(f"view {request.view.name} is read-only: {request.method} is refused")
        if endpoint is None:
            allowed = ", ".join(route.methods)
            message = f"method {request.method} not allowed; allowed: {allowed}"
            return responses.status_response(405, message, ((b"allow", allowed.encode()),))
        # Before the handler runs: its errors would tell what the caller may not see.
        if caller.is_secured:
            request.rights = CatalogRights(self._catalog, caller)
            await endpoint.rights(self._catalog, request, request.rights)
        return await endpoint.handler(self._catalog, request)

    def _error_response(self, request: IcebergRequest, error: errors.IcestreamError) -> IcebergResponse:
        response = responses.error_response(error)
        if response.status >= 500:
            _log.warning("catalog request failed", method=request.method, status=response.status, reason=str(error))
        return response


def as_asgi(response: IcebergResponse) -> ASGIApp:
    """An ASGI application that sends this response."""

    async def send_response(_scope: Scope, _receive: Receive, send: Send) -> None:
        length = () if response.status in (204, 304) else ((b"content-length", str(len(response.body)).encode()),)
        headers = [*response.headers, *length]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    return send_response


def _guard_response(status: int, message: str, _path: str) -> ASGIApp:
    return as_asgi(responses.status_response(status, message))


GUARD_POLICY: Final = GuardPolicy(
    _guard_response, limits.CATALOG_BODY_BYTES_MAX, allows_slashes=True, implements_head=True
)
