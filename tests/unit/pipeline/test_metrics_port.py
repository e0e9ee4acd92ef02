"""The pipeline's own port answers for metrics and health, and for nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream.pipeline.driver.metrics_port import metrics_listener
from icestream.processes.broker_process import BrokerNode
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from tests.support.local_broker import kept_link
from tests.support.node_settings import node_settings
from tests.support.raw_http import RawHttpContext

pytestmark = pytest.mark.asyncio


async def test_metrics_and_health_are_served_and_other_paths_are_404(tmp_path: Path) -> None:
    connect = RawHttpContext()
    node = await BrokerNode.start(node_settings(tmp_path))
    try:
        async with kept_link(node.settings.local_socket) as keeper:
            listener = metrics_listener(keeper)
            await listener.listen("127.0.0.1", 0)
            http = await connect(listener.port)
            replies = {
                path: await http.get(path) for path in ("/metrics", "/livez", "/readyz", "/", "/api", "/metricsx")
            }
            statuses = [reply.status for reply in replies.values()]
            assert statuses == [200, 200, 200, 404, 404, 404]
            assert b"icestream_pipeline_rounds_total" in replies["/metrics"].body
            assert {reply.headers["icestream-instance"] for reply in replies.values()} == {node.services.instance}
            await connect.close()
            await listener.close()
    finally:
        await node.stop()


async def test_a_pipeline_without_its_broker_is_alive_and_not_ready(tmp_path: Path) -> None:
    connect = RawHttpContext()
    listener = metrics_listener(LinkKeeper(tmp_path / "none.sock", "pipeline", SystemClock()))
    await listener.listen("127.0.0.1", 0)
    http = await connect(listener.port)
    assert [(await http.get(path)).status for path in ("/livez", "/readyz")] == [200, 503]
    assert "icestream-instance" not in (await http.get("/livez")).headers
    await connect.close()
    await asyncio.gather(listener.close())
