"""Asks an ASGI application without a network: what a client sends, and what it gets back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

HOST = "127.0.0.1:8181"


@dataclass(frozen=True)
class AsgiResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_problem(self) -> bool:
        return self.headers.get("content-type") == "application/problem+json"


class AsgiClient:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> AsgiResponse:
        """`body`: bytes as they are, anything else as JSON."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        all_headers = {"host": HOST, **({"content-type": "application/json"} if raw else {}), **(headers or {})}
        return await self._ask(method, target, [raw], all_headers)

    async def _ask(self, method: str, target: str, pieces: list[bytes], headers: Mapping[str, str]) -> AsgiResponse:
        path, _, query = target.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8181),
        }  # fmt: skip
        coming = [
            {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
            for number, piece in enumerate(pieces, 1)
        ]
        sent: list[Message] = []

        async def receive() -> Message:
            if not coming:
                await asyncio.Event().wait()  # the client stays
            return coming.pop(0)

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        start, *rest = sent
        response_headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return AsgiResponse(start["status"], response_headers, b"".join(event.get("body", b"") for event in rest))

    async def in_pieces(
        self, method: str, target: str, pieces: list[bytes], headers: Mapping[str, str]
    ) -> AsgiResponse:
        return await self._ask(method, target, pieces, {"host": HOST, **headers})
