"""From a real broker's log to rows of a table, with everything real but Spark: its tasks run in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from icestream.client.client import connect
from icestream.iceberg.identifier import Identifier
from icestream.metadata.remote_store import RemoteStore
from icestream.model.task_messages import TopicTaskResult
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.pipeline.driver.broker_api import BrokerClient
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.round_plan import RoundBudget, RoundPlan
from icestream.processes.broker_process import BrokerNode
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.node_settings import node_settings
from tests.support.pipeline_harness import PipelineHarness
from tests.support.pipeline_round import write_here


class InProcessTaskWriter:
    master = "here"
    tasks_max = 1

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]:
        return write_here(plan)


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[tuple[BrokerNode, PipelineHarness]]:
    settings = node_settings(path / "data")
    node = await BrokerNode.start(settings)
    keeper = LinkKeeper(settings.local_socket, "test", SystemClock())
    keeping = asyncio.create_task(keeper.run())
    await keeper.wait_connected(10)
    try:
        store = RemoteStore(keeper, SystemClock(), SystemRandomness())
        pipeline = PipelineHarness(path / "warehouse", broker=BrokerClient(keeper), store=store)  # type: ignore[arg-type]
        pipeline.ingest.writer = InProcessTaskWriter()
        yield node, pipeline
        await pipeline.close()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await node.stop()


async def table_of(pipeline: PipelineHarness) -> StaticTable:
    loaded = await pipeline.world.catalog.load(Identifier(("default",), "orders"))
    return StaticTable.from_metadata(loaded.metadata_location or "")


@pytest.mark.asyncio
async def test_published_messages_become_rows(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, pipeline):
        async with connect(f"icestream://127.0.0.1:{node.native.port}") as client:
            producer = await client.producer("/default/orders")
            for number in range(10):
                await producer.send(b"payload %d" % number, key=b"k", headers={"n": str(number)})
        await pipeline.round()
        rows = (await table_of(pipeline)).scan().to_arrow().sort_by("offset").to_pylist()
        assert [row["payload"] for row in rows] == [b"payload %d" % number for number in range(10)]
        assert [row["offset"] for row in rows] == list(range(10))
        assert rows[3]["headers"] == [("n", "3")]
        assert {row["topic_name"] for row in rows} == {"/default/orders"}
        # As docs/pipeline.md says: the Python client sends no such fields, and there are no typed columns.
        for column in ("broker_addr", "subscription_name", "schema_error"):
            assert {row[column] for row in rows} == {None}, column
        assert (await pipeline.broker.backlog(0)).topics == []


@pytest.mark.asyncio
async def test_a_table_follows_the_current_layout_of_its_topic(tmp_path: Path) -> None:
    """Each layout gets new messages; existing files keep their layout."""
    layouts = [
        ({"partitioning": "key", "compression": "gzip:6"}, "identity", "GZIP", 2),
        ({"partitioning": "bucket[4]", "compression": "zstd:9"}, "bucket[4]", "ZSTD", 2),
        ({"partitioning": "day", "compression": "snappy"}, "day", "SNAPPY", 1),
        (
            {"partitioning": "none", "compression": "uncompressed", "target_file_bytes": 100_000},
            None,
            "UNCOMPRESSED",
            1,
        ),
    ]
    previous_paths: set[str] = set()
    async with (
        running(tmp_path) as (node, pipeline),
        connect(f"icestream://127.0.0.1:{node.native.port}") as client,
    ):
        await client.create_topic("/default/orders", **layouts[0][0])  # type: ignore[arg-type]
        producer = await client.producer("/default/orders")
        for number, (policies, transform, codec, files) in enumerate(layouts):
            if number:
                await node.broker.set_topic_policies(TopicName.parse("/default/orders"), PolicyValues(**policies))  # type: ignore[arg-type]
            for key in (b"a", b"d"):
                await producer.send(b"payload %d" % number, key=key)
            await pipeline.round()
            table = await table_of(pipeline)
            assert [str(field.transform) for field in table.spec().fields] == ([transform] if transform else [])
            paths = {file["file_path"] for file in table.inspect.files().to_pylist()}
            assert previous_paths < paths
            written = [path.removeprefix("file://") for path in paths - previous_paths]
            assert [pq.ParquetFile(path).metadata.row_group(0).column(0).compression for path in written] == [
                codec
            ] * files
            previous_paths = paths
        assert table.properties["write.target-file-size-bytes"] == "100000"
        assert table.scan().to_arrow()["offset"].sort().to_pylist() == list(range(2 * len(layouts)))


@pytest.mark.asyncio
async def test_a_driver_follows_the_settings_while_it_runs(tmp_path: Path) -> None:
    section = "storage.iceberg_config"
    async with running(tmp_path) as (node, pipeline):
        async with connect(f"icestream://127.0.0.1:{node.native.port}") as client:
            producer = await client.producer("/default/orders")
            for _ in range(3):
                await producer.send(b"payload")
        online = node.services.online
        assert online is not None
        await online.set(f"{section}.writer_flush_interval_ms", "1d")
        for rows, is_due in ((4, False), (3, True)):
            await online.set(f"{section}.writer_batch_size", rows)
            turn = await pipeline.driver.round(await pipeline.broker.backlog(0))
            assert (pipeline.driver.report.age_limit_ms, bool(turn.report.topics)) == (86_400_000, is_due)


def test_settings_of_the_broker_override_those_of_the_driver() -> None:
    own = DriverOptions(RoundBudget(rows_due=1, bytes_due=2, age_due_ms=3, tasks_max=4))
    assert own.current_budget({}) == own.budget
    changed = {"writer_batch_size": 10, "writer_max_memory_bytes": 20, "writer_flush_interval_ms": 30, "of_later": 5}
    assert own.current_budget(changed) == RoundBudget(rows_due=10, bytes_due=20, age_due_ms=30, tasks_max=4)
