"""What was asked of the lake process, by route and status: counted for /metrics."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request, Response

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Requests:
    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self.seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self.under_way = 0

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method if method in METHODS else "other", route, str(status))
        self.requests[key] += 1
        self.seconds[key] += seconds

    async def count(self, request: Request, ask: Callable[[Request], Awaitable[Response]]) -> Response:
        """The same as a middleware of FastAPI."""
        began = time.monotonic()
        self.under_way += 1
        try:
            response = await ask(request)
        finally:
            self.under_way -= 1
        route = getattr(request.scope.get("route"), "path", "none")
        self.note(request.method, route, response.status_code, time.monotonic() - began)
        return response
