"""The broker's HTTP endpoints.

/livez              200 while the event loop runs, and nothing more
/readyz             200 when the broker serves, else 503 with the first reason
/readyz?verbose     a line for each check: [+] passed, [-] failed and required, [!] failed and informational
                    (as JSON if the request accepts application/json)
/metrics            Prometheus text
/wal/NUMBER         bytes of a log file, for tasks of the pipeline on other machines (log_range.py)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from icestream.observability.health import Check, failure
from icestream.observability.http_listener import Response
from icestream.observability.http_request import Request


class Endpoints:
    """`metrics` is None if the settings disable it, `log_range` without a log on disk."""

    def __init__(
        self,
        checks: Callable[[], Awaitable[Sequence[Check]]],
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        log_range: Callable[[Request], Awaitable[Response]] | None = None,
    ) -> None:
        self._checks = checks
        self._metrics = metrics
        self._log_range = log_range

    async def __call__(self, request: Request) -> Response:
        match request.path:
            case "/livez":
                return Response(HTTPStatus.OK, b"ok\n")
            case "/readyz":
                return await self._ready(request)
            case "/metrics" if self._metrics is not None:
                return Response(HTTPStatus.OK, await self._metrics(), CONTENT_TYPE_LATEST)
            case path if path.startswith("/wal/") and self._log_range is not None:
                return await self._log_range(request)
        return Response(HTTPStatus.NOT_FOUND, b"not found; available: /livez, /readyz, /readyz?verbose and /metrics\n")

    async def _ready(self, request: Request) -> Response:
        checks = await self._checks()
        failed = failure(checks)
        status = HTTPStatus.OK if failed is None else HTTPStatus.SERVICE_UNAVAILABLE
        if "application/json" in request.headers.get("accept", ""):
            document = {"ready": failed is None, "checks": [check._asdict() for check in checks]}
            return Response(status, msgspec.json.encode(document), "application/json")
        lines = [check.line for check in checks] if "verbose" in request.query else []
        lines.append("ready" if failed is None else f"not ready: {failed.name}: {failed.reason}")
        return Response(status, "".join(f"{line}\n" for line in lines).encode())
