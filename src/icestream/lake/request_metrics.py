"""Counts and durations of HTTP requests to the lake process, by method, route and status, for /metrics."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request, Response

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self.seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self.in_progress = 0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Records a completed request."""
        key = (method if method in METHODS else "other", route, str(status))
        self.requests[key] += 1
        self.seconds[key] += seconds

    async def middleware(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """A middleware for FastAPI that records every request."""
        start = time.monotonic()
        self.in_progress += 1
        try:
            response = await call_next(request)
        finally:
            self.in_progress -= 1
        route = getattr(request.scope.get("route"), "path", "none")
        self.record(request.method, route, response.status_code, time.monotonic() - start)
        return response
