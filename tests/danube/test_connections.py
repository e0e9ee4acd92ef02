"""How many clients of Danube are connected: in the metrics, from the first to the last."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from icestream.processes.broker_process import BrokerNode
from tests.support.danube_broker import danube_broker
from tests.support.until import until

pytestmark = pytest.mark.asyncio


async def listeners(node: BrokerNode) -> dict[str, float]:
    families = text_string_to_metric_families((await node.services.exposition()).decode())
    (family,) = [family for family in families if family.name == "icestream_connections"]
    return {sample.labels["listener"]: sample.value for sample in family.samples}


async def test_connections_are_counted_by_listener(tmp_path: Path) -> None:
    async with danube_broker(tmp_path) as danube:
        node = danube.node
        assert node is not None
        assert await listeners(node) == {"native": 0, "http": 0, "danube": 0, "danube_admin": 0}
        await danube.producer("/default/t")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.danube.admin_port}") as channel:
            await channel.unary_unary("/danube_admin.BrokerAdmin/ListBrokers")(b"")
            counts = await listeners(node)
            assert (counts["danube"], counts["danube_admin"]) == (1, 1)
        await until(lambda: all(not room.open for room in node.danube.connections if room.listener == "danube_admin"))
        assert (await listeners(node))["danube"] == 1
