"""The broker's HTTP front end: health, metrics and log ranges. It listens before recovery begins.

/livez              200 while the event loop runs, and nothing more
/readyz             200 when the broker serves, else 503 with the first reason
/readyz?verbose     a line for each check: [+] passed, [-] failed and required, [!] failed and informational
                    (as JSON if the request accepts application/json)
/metrics            Prometheus text
/wal/NUMBER         bytes of a log file, for tasks of the pipeline on other machines (log_range.py)

On a broker with accounts, what names topics and reasons needs the right to describe the cluster (role `monitor`), by
`authorization: Bearer TOKEN` or a client certificate: /metrics, /readyz?verbose, and the reason of /readyz.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from icestream import errors
from icestream.frontends.front_end import FrontEnd, NodeView, local_address
from icestream.observability.health import Check, failure
from icestream.observability.http_listener import HttpListener, Response, error_response
from icestream.observability.http_request import Request
from icestream.runtime.advertised_address import known_host_names
from icestream.runtime.connection_room import RoomState
from icestream.security.action import Action
from icestream.security.authenticator import unauthenticated
from icestream.security.credential import BearerCredential, CertificateCredential, Credential, bearer_token
from icestream.security.resource import CLUSTER
from icestream.settings import Settings


class HttpFrontEnd(FrontEnd):
    """The HTTP listener of the broker process."""

    name = "http"
    is_early = True

    def __init__(self, settings: Settings, node: NodeView) -> None:
        super().__init__(settings, node)
        exposition = node.exposition if settings.metrics.enable else None
        self.listener = HttpListener(
            Endpoints(node.checks, exposition, node.log_range, self._check_scraper),
            node.instance,
            host_names=known_host_names(settings, "http"),
            has_accounts=self._has_accounts,
        )

    @classmethod
    def configured_ports(cls, settings: Settings) -> Iterator[tuple[str, int]]:
        yield "ports.broker_http", settings.ports.broker_http

    async def listen(self) -> None:
        settings = self._settings
        await self.listener.listen(settings.node.bind_host, settings.ports.broker_http, self._node.tls(self.name))

    async def close(self) -> None:
        await self.listener.close()

    def _has_accounts(self) -> bool:
        door = self._node.open_door
        return door is not None and door.is_secured

    async def _check_scraper(self, request: Request, *, is_recorded: bool) -> bool:
        """Whether the client of a request has proved a credential. Raises Unauthenticated or PermissionDenied unless it
        may describe the cluster.

        `is_recorded`: a denial is an event of the audit.
        """
        door = self._node.open_door
        if door is None or not door.is_secured:  # while it starts, the node knows nothing that it would tell
            return False
        token = bearer_token(_values(request, "authorization"))
        credential: Credential | None = BearerCredential(token) if token else None
        if credential is None and request.certificate:
            credential = CertificateCredential(request.certificate)
        client = await door.authenticate(credential, request.peer, self.name)
        try:
            if is_recorded:
                client.session.require(Action.DESCRIBE, CLUSTER)
            elif not client.session.is_allowed(Action.DESCRIBE, CLUSTER):
                raise unauthenticated()
            return not client.session.is_anonymous
        finally:
            door.leave(client)

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


def _values(request: Request, name: str) -> list[str]:
    """The header, if the request has it. Repeated ones are joined by a comma, which no token has."""
    return [request.headers[name]] if name in request.headers else []


class ScraperCheck(Protocol):
    async def __call__(self, request: Request, *, is_recorded: bool) -> bool:
        """Raises an error for a client that may not see the state of the node; else returns whether it has proved a
        credential."""


async def _allow_all(request: Request, *, is_recorded: bool) -> bool:
    return False


class Endpoints:
    """Answers the requests of the HTTP listener."""

    def __init__(
        self,
        checks: Callable[[], Awaitable[Sequence[Check]]],
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        log_range: Callable[[Request], Awaitable[Response]] | None = None,
        check_scraper: ScraperCheck = _allow_all,
    ) -> None:
        """`metrics`: None if the settings disable them. `log_range`: None without a log on disk. `check_scraper`:
        whether a client may see the state of the node."""
        self._checks = checks
        self._metrics = metrics
        self._log_range = log_range
        self._check_scraper = check_scraper

    async def __call__(self, request: Request) -> Response:
        try:
            return await self._respond(request)
        except errors.IcestreamError as error:
            return error_response(error)

    async def _respond(self, request: Request) -> Response:
        match request.path:
            case "/livez":
                return Response(HTTPStatus.OK, b"ok\n")
            case "/readyz":
                return await self._ready(request)
            case "/metrics" if self._metrics is not None:
                is_recognised = await self._check_scraper(request, is_recorded=True)
                return Response(HTTPStatus.OK, await self._metrics(), CONTENT_TYPE_LATEST, is_recognised=is_recognised)
            case path if path.startswith("/wal/") and self._log_range is not None:
                return await self._log_range(request)
        return Response(HTTPStatus.NOT_FOUND, b"not found; available: /livez, /readyz, /readyz?verbose and /metrics\n")

    async def _ready(self, request: Request) -> Response:
        """Answers /readyz by the node's checks; informational ones are shown and do not count."""
        is_json = "application/json" in request.headers.get("accept", "")
        if is_json or "verbose" in request.query:
            await self._check_scraper(request, is_recorded=True)
        checks = await self._checks()
        failed = failure(checks)
        status = HTTPStatus.OK if failed is None else HTTPStatus.SERVICE_UNAVAILABLE
        if is_json:
            document = {"ready": failed is None, "checks": [check._asdict() for check in checks]}
            return Response(status, msgspec.json.encode(document), "application/json")
        lines = [check.line for check in checks] if "verbose" in request.query else []
        if failed is None:
            lines.append("ready")
        else:
            is_shown = await self._is_scraper(request)
            lines.append(f"not ready: {failed.name}: {failed.reason}" if is_shown else "not ready")
        return Response(status, "".join(f"{line}\n" for line in lines).encode())

    async def _is_scraper(self, request: Request) -> bool:
        """Whether the client may see a reason. Load balancers ask without a credential: that is no denial."""
        try:
            await self._check_scraper(request, is_recorded=False)
        except errors.IcestreamError:
            return False
        return True
