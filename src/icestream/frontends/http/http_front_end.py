"""The broker's HTTP listener for health, metrics and log ranges (endpoints.py). It listens before recovery begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from icestream.frontends.front_end import FrontEnd, NodeView, local_address
from icestream.frontends.http.endpoints import Endpoints
from icestream.observability.http_listener import HttpListener
from icestream.runtime.connection_room import RoomState
from icestream.settings import Settings


class HttpFrontEnd(FrontEnd):
    name = "http"
    is_early = True

    def __init__(self, settings: Settings, node: NodeView) -> None:
        super().__init__(settings, node)
        exposition = node.exposition if settings.metrics.enable else None
        self.listener = HttpListener(Endpoints(node.checks, exposition, node.log_range), node.instance)

    @classmethod
    def configured_ports(cls, settings: Settings) -> Iterator[tuple[str, int]]:
        yield "ports.broker_http", settings.ports.broker_http

    async def listen(self) -> None:
        await self.listener.listen(self._settings.node.bind_host, self._settings.ports.broker_http)

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
        return (
            f"http://{local_address(self._settings.node.bind_host, self.listener.port)}" if self.listener.port else ""
        )

    def greeting_lines(self) -> Iterator[str]:
        if self.url:
            yield f"health and metrics: {self.url}/readyz?verbose, /livez, /metrics"

    def addresses(self) -> dict[str, object]:
        return {"http": self.url or None}
