"""The HTTP port of the pipeline: its metrics and its health.

/livez      200 while its event loop runs
/readyz     200 while it is connected to its broker, else 503
/metrics    Prometheus text; on a broker with accounts for principals that may describe the cluster, by
            `authorization: Bearer TOKEN`
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from icestream import errors
from icestream.observability.http_listener import HttpListener, Response, error_response
from icestream.observability.http_request import Request
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.instance import HEADER

METRICS: Final = "/metrics"


async def _allow_all(request: Request) -> None:
    pass


def metrics_listener(
    keeper: LinkKeeper,
    host_names: frozenset[str] | None = None,
    check_scraper: Callable[[Request], Awaitable[None]] = _allow_all,
) -> HttpListener:
    """`keeper`: the connection to the broker, whose instance every response names (runtime/instance.py). `host_names`:
    that requests may name as their Host. `check_scraper` raises an error for a client that may not see the metrics."""

    async def respond(request: Request) -> Response:
        try:
            if request.path == METRICS:
                await check_scraper(request)
            response = _response(request.path, is_connected=keeper.is_connected)
        except errors.IcestreamError as error:
            response = error_response(error)
        return response._replace(headers=((HEADER, keeper.instance),)) if keeper.instance else response

    return HttpListener(respond, name="pipeline", setting="ports.pipeline_metrics", host_names=host_names)


def _response(path: str, *, is_connected: bool) -> Response:
    match path:
        case "/livez":
            return Response(HTTPStatus.OK, b"ok\n")
        case "/readyz" if is_connected:
            return Response(HTTPStatus.OK, b"ready\n")
        case "/readyz":
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready: no connection to the broker\n")
        case path if path == METRICS:
            return Response(HTTPStatus.OK, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)
    return Response(HTTPStatus.NOT_FOUND, b"not found: use /livez, /readyz or /metrics\n")
