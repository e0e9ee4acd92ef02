"""From a real broker's log to rows of a table, with everything real but Spark: its tasks run in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from icestream.catalog.identifier import Identifier
from icestream.client.connect import connect
from icestream.metadata.remote_store import RemoteStore
from icestream.model.written import TopicWritten
from icestream.pipeline.driver.broker import BrokerLink
from icestream.pipeline.round_plan import RoundPlan
from icestream.runtime.clock import SystemClock
from icestream.runtime.link_keeper import LinkKeeper
from icestream.runtime.randomness import SystemRandomness
from icestream.server.node import Node
from tests.support.node_settings import node_settings
from tests.support.paper_pipeline import PaperPipeline
from tests.support.pipeline_round import write_here


class TaskWriter:
    master = "here"
    tasks_max = 1

    def write(self, plan: RoundPlan) -> list[TopicWritten]:
        return write_here(plan)


@pytest.mark.asyncio
async def test_what_is_published_is_a_row(tmp_path: Path) -> None:
    settings = node_settings(tmp_path / "data")
    node = await Node.start(settings)
    keeper = LinkKeeper(settings.local_socket, "test", SystemClock())
    keeping = asyncio.create_task(keeper.run())
    await keeper.until_here(10)
    try:
        async with connect(f"icestream://127.0.0.1:{node.native.port}") as client:
            producer = await client.producer("/default/orders")
            for number in range(10):
                await producer.send(b"payload %d" % number, key=b"k", headers={"n": str(number)})
        store = RemoteStore(keeper, SystemClock(), SystemRandomness())
        pipeline = PaperPipeline(tmp_path / "warehouse", broker=BrokerLink(keeper), store=store)  # type: ignore[arg-type]
        pipeline.driver._writer = TaskWriter()
        await pipeline.round()
        loaded = await pipeline.world.catalog.load(Identifier(("default",), "orders"))
        rows = StaticTable.from_metadata(loaded.metadata_location or "").scan().to_arrow().sort_by("offset").to_pylist()
        assert [row["payload"] for row in rows] == [b"payload %d" % number for number in range(10)]
        assert [row["offset"] for row in rows] == list(range(10))
        assert rows[3]["headers"] == [("n", "3")]
        assert (await pipeline.broker.backlog(0, 0)).topics == []
        await pipeline.close()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await node.stop()
