"""The HTTP port of the pipeline: its metrics and its health.

/livez      200 while its event loop runs
/readyz     200 while it is connected to its broker, else 503
/metrics    Prometheus text
"""

from __future__ import annotations

from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from icestream.observability.http_listener import HttpListener, Response
from icestream.observability.http_request import Request
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.instance import HEADER


def metrics_listener(keeper: LinkKeeper, host_names: frozenset[str] | None = None) -> HttpListener:
    """`keeper`: the connection to the broker, whose instance every response names (runtime/instance.py). `host_names`:
    that requests may name as their Host."""

    async def respond(request: Request) -> Response:
        response = _response(request.path, is_connected=keeper.is_connected)
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
        case "/metrics":
            return Response(HTTPStatus.OK, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)
    return Response(HTTPStatus.NOT_FOUND, b"not found: use /livez, /readyz or /metrics\n")
