"""The metrics of the pipeline over HTTP, by Prometheus' own small server: it is asked every few seconds at most."""

from __future__ import annotations

from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server

from icestream.runtime.listening import cannot_listen


class MetricsPort:
    def __init__(self, host: str, port: int) -> None:
        """0: any that is free."""
        self._host = host
        self._wanted = port
        self._server: tuple[WSGIServer, Thread] | None = None

    @property
    def number(self) -> int:
        return self._server[0].server_port if self._server is not None else 0

    def open(self) -> None:
        try:
            self._server = start_http_server(self._wanted, self._host)
        except OSError as error:
            raise cannot_listen("ports.pipeline_metrics", self._host, self._wanted, error) from None

    def close(self) -> None:
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
