"""A round on a Spark cluster: master, worker and executor are processes of their own; the log comes over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from icestream import limits
from icestream.client.connect import connect
from icestream.model.written import Trouble
from icestream.pipeline.driver.broker import BrokerLink
from icestream.pipeline.judgement import judge
from icestream.pipeline.log_bytes.places import LogOwner
from icestream.pipeline.planner import plan_round
from icestream.pipeline.round_plan import Budget, RoundPlan
from icestream.pipeline.task.run import read_range
from icestream.runtime.clock import SystemClock
from icestream.runtime.link_keeper import LinkKeeper
from icestream.server.node import Node
from tests.support.node_settings import node_settings
from tests.support.pipeline_round import NOW_US, all_rows, target_in
from tests.support.round_process import round_process
from tests.support.spark_cluster import spark_cluster

PAYLOADS = [b"%d-" % number * 1000 for number in range(600)]  # more than one piece


@pytest.mark.asyncio
async def test_executors_read_the_log_over_the_network_alone(tmp_path: Path) -> None:
    settings = node_settings(tmp_path / "data")
    node = await Node.start(settings)
    keeper = LinkKeeper(settings.local_socket, "test", SystemClock())
    keeping = asyncio.create_task(keeper.run())
    await keeper.until_here(10)
    try:
        async with connect(f"icestream://127.0.0.1:{node.native.port}") as client:
            producer = await client.producer("/default/orders")
            await asyncio.gather(*(producer.send(payload) for payload in PAYLOADS))
        plan = await leased_plan(BrokerLink(keeper), tmp_path)
        assert sum(one.end - one.start for one in plan.ranges) > 1_500_000
        await asyncio.to_thread(check_on_cluster, plan, tmp_path)
        await asyncio.to_thread(check_refusals, plan)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await node.stop()


async def leased_plan(broker: BrokerLink, folder: Path) -> RoundPlan:
    """As if the tasks ran on another machine: they are told of no folder."""
    backlog = msgspec.structs.replace(await broker.backlog(0, 0), directory="")
    (topic,) = backlog.topics
    target = target_in(folder / "tables")
    plan = plan_round(backlog, {topic.topic_id: {0: 0}}, {topic.topic_id: target}, Budget(age_due_ms=0), NOW_US)
    await broker.hold("a-round", 1, plan.files, limits.LEASE_TTL_MS_MAX)  # nobody renews it here
    return plan.leased("a-round", 1)


def check_on_cluster(plan: RoundPlan, folder: Path) -> None:
    local = ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.executor.memory=512m")
    with spark_cluster(folder) as master, round_process(folder, master, *local) as rounds:
        (judged,) = judge(plan, rounds.write(plan))
    assert judged.is_whole
    assert [(claim.shard, claim.start, claim.end) for claim in judged.claims] == [(0, 0, len(PAYLOADS))]
    assert [row["payload"] for row in all_rows(judged.files)] == PAYLOADS


def check_refusals(plan: RoundPlan) -> None:
    """What the broker says no to comes back as data."""
    (first, *_) = plan.ranges
    for change, trouble in (({"lease": "nobody's"}, Trouble.STALE), ({"token": "wrong"}, Trouble.UNREACHABLE)):
        source = msgspec.structs.replace(plan.source, **change)
        owner = LogOwner(source)
        found, failed = read_range(source, first, owner)
        owner.close()
        assert len(found) == 0
        assert {error.trouble for error in failed.values()} == {trouble}
