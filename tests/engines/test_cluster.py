"""The pipeline on a Spark cluster: master, worker and executor are processes of their own; the log comes over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from pyiceberg.catalog.rest import RestCatalog

from icestream import limits
from icestream.client.client import connect
from icestream.model.task_messages import TaskErrorKind
from icestream.pipeline.driver.broker_api import BrokerClient
from icestream.pipeline.log_bytes.log_sources import LogOwner
from icestream.pipeline.planner import plan_round
from icestream.pipeline.round_judgement import judge_round
from icestream.pipeline.round_plan import RoundBudget, RoundPlan
from icestream.pipeline.task.task_run import read_range
from icestream.processes.broker_process import BrokerNode
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from tests.support.lake_run import children_of
from tests.support.node_settings import node_settings
from tests.support.pipeline_process import PipelineRun
from tests.support.pipeline_round import NOW_US, all_rows, target_in
from tests.support.round_process import round_process
from tests.support.spark_cluster import spark_cluster

PAYLOADS = [b"%d-" % number * 1000 for number in range(600)]  # more than one piece
SECRET = "canary-of-the-cluster-0123456789"
# As beside accounts (hazard 122).
PRIVATE = {
    "spark.authenticate": "true", "spark.authenticate.secret": SECRET, "spark.network.crypto.enabled": "true",
}  # fmt: skip
CONF = ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.executor.memory=512m")
ALL_CONF = (*CONF, *(f"{name}={value}" for name, value in PRIVATE.items()))


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_cluster(tmp_path_factory.mktemp("cluster"), PRIVATE) as address:
        yield address


@pytest.mark.timeout(180)
def test_the_pipeline_of_a_broker_runs_on_a_cluster(master: str, tmp_path: Path) -> None:
    """Published, committed, readable, off the log, verified: `pipeline.spark.master` is all that differs.

    The broker calls its log by a path that leads there from its own working directory alone: any other process
    finds nothing, as on another machine, and asks the broker.
    """
    (tmp_path / "data").mkdir()
    config = tmp_path / "broker.yml"
    config.touch(0o600)
    config.write_text(f"pipeline: {{spark: {{conf: {json.dumps(ALL_CONF)}}}}}\n")
    sets = {
        "pipeline.spark.master": master,
        "storage.iceberg_config.wal.base_path": "/proc/self/cwd/data/wal",
    }
    with (
        PipelineRun(
            tmp_path / "data",
            *("--config", str(config), *(word for name in sets for word in ("--set", f"{name}={sets[name]}"))),
        ) as run,
        closing(RestCatalog("ice", uri=run.uri)) as catalog,
    ):
        for begin, topic in ((0, "orders"), (0, "others"), (300, "orders")):
            run.produce(f"/default/{topic}", 300)
            run.icestream("lake", "commit-now", "--wait", "120")
            rows = catalog.load_table(f"default.{topic}").scan().to_arrow().sort_by("offset").to_pylist()
            assert [row["offset"] for row in rows] == list(range(begin + 300))
            assert [row["payload"] for row in rows[begin:]] == [b"%d" % number for number in range(300)]
        assert run.icestream("lake", "lag") == [], "the log may let go of all of it"
        state = run.icestream("pipeline", "status")
        assert (state["master"], state["rows"], state["stopped_topics"]) == (master, 900, [])
        processes = processes_below(run.pid)
        assert any(b"org.apache.spark" in Path(f"/proc/{process}/cmdline").read_bytes() for process in processes)
        for process in processes:
            for name in ("cmdline", "environ"):
                shown = Path(f"/proc/{process}/{name}").read_bytes().decode(errors="replace")
                assert SECRET not in shown, f"hazard 122: {name} of {shown[:200]}"
        for topic in ("orders", "others"):
            report = run.verified(f"/default/{topic}", "--deep")
            assert (report["is_good"], report["findings"]) == (True, [])


def processes_below(pid: int) -> list[int]:
    return [pid, *(below for child in children_of(pid) for below in processes_below(child))]


@pytest.mark.asyncio
async def test_executors_read_the_log_over_the_network_alone(master: str, tmp_path: Path) -> None:
    settings = node_settings(tmp_path / "data")
    node = await BrokerNode.start(settings)
    keeper = LinkKeeper(settings.local_socket, "test", SystemClock())
    keeping = asyncio.create_task(keeper.run())
    await keeper.wait_connected(10)
    try:
        async with connect(f"icestream://127.0.0.1:{node.native.port}") as client:
            producer = await client.producer("/default/orders")
            await asyncio.gather(*(producer.send(payload) for payload in PAYLOADS))
        plan = await leased_plan(BrokerClient(keeper), tmp_path)
        assert sum(log_range.end - log_range.start for log_range in plan.ranges) > 1_500_000
        await asyncio.to_thread(check_on_cluster, plan, master, tmp_path)
        await asyncio.to_thread(check_refusals, plan)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await node.stop()


async def leased_plan(broker: BrokerClient, folder: Path) -> RoundPlan:
    """A leased plan for tasks on another machine: it names no local folder."""
    backlog = msgspec.structs.replace(await broker.backlog(0), directory="")
    (topic,) = backlog.topics
    target = target_in(folder / "tables")
    plan = plan_round(backlog, {topic.topic_id: {0: 0}}, {topic.topic_id: target}, RoundBudget(age_due_ms=0), NOW_US)
    token = await broker.hold("a-round", 1, plan.files, limits.LEASE_TTL_MS_MAX)  # it is not renewed here
    return plan.leased("a-round", token, 1)


def check_on_cluster(plan: RoundPlan, master: str, folder: Path) -> None:
    with round_process(folder, master, *ALL_CONF) as rounds:
        (judged,) = judge_round(plan, rounds.write(plan))
    assert judged.is_complete
    assert [(claim.shard, claim.start, claim.end) for claim in judged.claims] == [(0, 0, len(PAYLOADS))]
    assert [row["payload"] for row in all_rows(judged.files)] == PAYLOADS


def check_refusals(plan: RoundPlan) -> None:
    """A refusal of the broker is returned as data."""
    (first, *_) = plan.ranges
    for change in ({"lease": "nobody's"}, {"token": "wrong"}):
        source = msgspec.structs.replace(plan.source, **change)
        owner = LogOwner(source)
        rows, failed = read_range(source, first, owner)
        owner.close()
        assert len(rows) == 0
        assert {error.trouble for error in failed.values()} == {TaskErrorKind.UNREACHABLE}
