"""The API in front of a real node, over its local socket, without the second process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from icestream.lake.api_app import build_app
from icestream.processes.broker_process import BrokerNode
from tests.support.asgi import AsgiClient
from tests.support.local_broker import kept_link
from tests.support.node_settings import node_settings


class Api:
    def __init__(self, node: BrokerNode, ask: AsgiClient) -> None:
        self.node = node
        self.ask = ask

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request that must succeed."""
        answer = await self.ask(method, f"/api/v1{path}", body)
        assert answer.status in (200, 201, 204), (answer.status, answer.body)
        return answer.json if answer.body else None

    async def problem(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self.ask(method, f"/api/v1{path}", body)
        assert answer.is_problem, answer
        problem: dict[str, Any] = answer.json
        assert problem["status"] == answer.status
        return problem


@contextlib.asynccontextmanager
async def served_api(data_dir: Path, **sections: Any) -> AsyncIterator[Api]:
    node = await BrokerNode.start(node_settings(data_dir, **sections))
    try:
        async with kept_link(node.settings.local_socket) as keeper:
            yield Api(node, AsgiClient(build_app(keeper, "127.0.0.1")))
    finally:
        await node.stop()
