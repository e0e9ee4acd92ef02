"""The broker's HTTP front end: health, metrics and log ranges. It listens before recovery begins.

/livez              200 while the event loop runs, and nothing more
/readyz             200 when the broker serves, else 503 with the first reason
/readyz?verbose     a line for each check: [+] passed, [-] failed and required, [!] failed and informational
                    (as JSON if the request accepts application/json)
/metrics            Prometheus text
/wal/NUMBER         bytes of a log file, for tasks of the pipeline on other machines (log_range.py)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from icestream.frontends.front_end import FrontEnd, NodeView, local_address
from icestream.observability.health import Check, failure
from icestream.observability.http_listener import HttpListener, Response
from icestream.observability.http_request import Request
from icestream.runtime.advertised_address import known_host_names
from icestream.runtime.connection_room import RoomState
from icestream.settings import Settings


class HttpFrontEnd(FrontEnd):
    """The HTTP listener of the broker process."""

    name = "http"
    is_early = True

    def __init__(self, settings: Settings, node: NodeView) -> None:
        super().__init__(settings, node)
        exposition = node.exposition if settings.metrics.enable else None
        self.listener = HttpListener(
            Endpoints(node.checks, exposition, node.log_range),
            node.instance,
            host_names=known_host_names(settings, "http"),
        )

    @classmethod
    def configured_ports(cls, settings: Settings) -> Iterator[tuple[str, int]]:
        yield "ports.broker_http", settings.ports.broker_http

    async def listen(self) -> None:
        settings = self._settings
        await self.listener.listen(settings.node.bind_host, settings.ports.broker_http, self._node.tls(self.name))

    async def close(self) -> None:
        await self.listener.close()

    @property
    def open_ports(self) -> Mapping[str, int]:
        return {"http_port": self.listener.port}

    @property
    def connections(self) -> Sequence[RoomState]:
        return [self.listener.room]

    @property
    def url(self) -> str:
        """The URL for clients on this machine; empty while the listener is closed."""
        scheme = "http" if self._node.tls(self.name) is None else "https"
        address = local_address(self._settings.node.bind_host, self.listener.port)
        return f"{scheme}://{address}" if self.listener.port else ""

    def greeting_lines(self) -> Iterator[str]:
        if self.url:
            yield f"health and metrics: {self.url}/readyz?verbose, /livez, /metrics"

    def addresses(self) -> dict[str, object]:
        return {"http": self.url or None}


class Endpoints:
    """Answers the requests of the HTTP listener."""

    def __init__(
        self,
        checks: Callable[[], Awaitable[Sequence[Check]]],
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        log_range: Callable[[Request], Awaitable[Response]] | None = None,
    ) -> None:
        """`metrics`: None if the settings disable them. `log_range`: None without a log on disk."""
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
        """Answers /readyz by the node's checks; informational ones are shown and do not count."""
        checks = await self._checks()
        failed = failure(checks)
        status = HTTPStatus.OK if failed is None else HTTPStatus.SERVICE_UNAVAILABLE
        if "application/json" in request.headers.get("accept", ""):
            document = {"ready": failed is None, "checks": [check._asdict() for check in checks]}
            return Response(status, msgspec.json.encode(document), "application/json")
        lines = [check.line for check in checks] if "verbose" in request.query else []
        lines.append("ready" if failed is None else f"not ready: {failed.name}: {failed.reason}")
        return Response(status, "".join(f"{line}\n" for line in lines).encode())
