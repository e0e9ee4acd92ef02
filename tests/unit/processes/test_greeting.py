"""The lines that a start prints."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from icestream.cluster.node_info import NodeInfo
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node.child_processes import ChildProcess
from icestream.processes.node.presentation import demo
from icestream.processes.node.presentation.greeting import announcement, example_commands, greeting, members_text
from icestream.processes.node.presentation.read_commands import read_commands
from icestream.runtime.clock import SystemClock
from tests.support.free_ports import free_ports
from tests.support.node_settings import node_settings

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


@pytest.mark.asyncio
async def test_a_cluster_node_names_the_leader(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    seeds = {"seed_nodes": [f"127.0.0.1:{port}"]}
    ports = {"native": 0, "broker_http": 0, "lake": 0, "danube": 0, "danube_admin": 0, "raft": port}
    node = await BrokerNode.start(node_settings(tmp_path, meta_store=seeds, ports=ports))
    try:
        (line,) = [line for line in greeting(node) if "of cluster" in line]
        assert "node node-1 of cluster" in line
        assert f"this node is the leader; 1 voter, 0 learners; other nodes reach it at 127.0.0.1:{port}" in line
        assert f"icestream cluster status --broker {tmp_path}" in "".join(example_commands(node))
    finally:
        await node.stop()


@pytest.mark.asyncio
async def test_a_disk_that_is_full_before_its_quota_is_reported_at_start(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path, wal={"quota": 2**60}))
    try:
        warnings = [line for line in greeting(node) if line.startswith("  warning: ")]
        assert len(warnings) == 1
        assert "warning: disk: the free space is smaller than the rest of the quota" in warnings[0]
        assert announcement(node)["warnings"] == [warnings[0].removeprefix("  warning: ")]
    finally:
        await node.stop()


@pytest.mark.parametrize(
    ("voters", "learners", "seeds", "text"),
    [
        ((1, 2, 3), (), 3, "3 voters, 0 learners"),
        ((1, 2, 3), (4,), 0, "3 voters, 1 learner"),
        ((1,), (2,), 0, "1 voter, 1 learner"),
        ((1,), (), 1, "1 voter, 0 learners"),
        ((2,), (), 3, "1 of 3 nodes is in it so far, 1 of 3 voters votes; the others follow once they are there"),
        ((1,), (2, 3), 3, "3 of 3 nodes are in it so far, 1 of 3 voters votes; the others follow once they are there"),
        ((1, 2, 3), (4, 5), 3, "5 of 5 nodes are in it so far, 3 of 5 voters vote; the others "
         "follow once they are there"),
        ((2, 3, 4), (), 0, "this node is being let in; 3 voters, 0 learners as far as it knows"),
        ((2,), (), 0, "this node is being let in; 1 voter, 0 learners as far as it knows"),
    ],
)  # fmt: skip
def test_an_incomplete_cluster_is_not_greeted_as_one(
    voters: tuple[int, ...], learners: tuple[int, ...], seeds: int, text: str
) -> None:
    assert members_text(NodeInfo(1, voters=voters, learners=learners), seeds) == text


def with_pipeline(node: BrokerNode) -> BrokerNode:
    """A node with a pipeline that is not started: only the texts about it matter here."""
    node.services.pipeline = ChildProcess("pipeline", ["false"], SystemClock())
    return node


@pytest.mark.asyncio
@pytest.mark.parametrize(("namespace", "table"), [(None, "default.hello"), ("danube", "danube.hello")])
async def test_the_table_of_the_greeting_is_the_one_that_is_created(
    tmp_path: Path, namespace: str | None, table: str
) -> None:
    settings = node_settings(tmp_path, iceberg={"namespace": namespace} if namespace else {})
    node = with_pipeline(await BrokerNode.start(settings))
    try:
        assert [line.rpartition(": ")[2] for line in example_commands(node) if "commit-now" in line] == [table]
    finally:
        node.services.pipeline = None
        await node.stop()


@pytest.mark.asyncio
async def test_the_demo_is_shown_when_the_driver_reports_its_first_snapshot(tmp_path: Path) -> None:
    node = with_pipeline(await BrokerNode.start(node_settings(tmp_path)))
    printed: list[str] = []
    try:
        assert node.ingest is not None
        assert demo.should_run_demo(node)
        showing = asyncio.create_task(demo.run_demo(node, printed.append))
        async with asyncio.timeout(30):
            while node.ingest.on_report is None:  # noqa: ASYNC110 (it publishes first)
                await asyncio.sleep(0.001)
        first = {"topic": "/default/demo", "table": ["default", "demo"], "snapshot_id": 7}
        other = {"topic": "/default/other", "table": ["default", "other"], "snapshot_id": 6}
        for snapshots in ([], [other], [other, first]):
            assert len(printed) == 1
            node.ingest.report({"first_snapshots": snapshots})
            await asyncio.sleep(0)
        await asyncio.wait_for(showing, 30)
        assert "table default.demo; its first snapshot, 7, has 3 rows" in printed[1]
        assert not demo.should_run_demo(node)  # a later start has a topic
        shard = node.broker.topics.get(demo.TOPIC).shard_key(0)
        assert node.broker.storage.stream(shard).visible == 3  # type: ignore[attr-defined]  # the one on disk has it
    finally:
        node.services.pipeline = None
        await node.stop()


@pytest.mark.parametrize("state", [None, {}, {"first_snapshots": []}])
def test_a_driver_without_a_report_has_no_snapshot_yet(state: dict[str, Any] | None) -> None:
    assert demo.first_snapshot(state) is None


def test_the_example_queries_quote_the_table_levels() -> None:
    own, by_pyiceberg, by_duckdb, by_spark, _ = read_commands(["default", "demo"], "http://127.0.0.1:8181")
    assert own.endswith("icestream lake describe default.demo")
    assert 'uri="http://127.0.0.1:8181"' in by_pyiceberg
    assert 'FROM ice."default"."demo";' in by_duckdb
    assert "FROM ice.`default`.`demo`" in by_spark
    assert len(list(read_commands(["default", "demo"], ""))) == 1


@pytest.mark.asyncio
async def test_metrics_tell_of_the_consensus(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path))
    try:
        await node.broker.create_namespace("shop")
        text = (await node.services.exposition()).decode()
    finally:
        await node.stop()
    lines = [line.split(" ") for line in text.splitlines() if line.startswith("icestream_raft_")]
    metrics = {name: float(value) for name, value in lines}
    assert (
        metrics["icestream_raft_is_leader"]
        == metrics["icestream_raft_has_leader"]
        == metrics["icestream_raft_voters"]
        == 1
    )
    assert metrics["icestream_raft_applied_index"] == metrics["icestream_raft_commit_index"] > 1
    assert metrics["icestream_raft_term"] >= 1
    assert 0 < metrics["icestream_raft_proposal_seconds"] < 60
    named = re.findall(r"`(icestream_raft_\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if name not in metrics] == [], "docs/cluster.md"


@pytest.mark.asyncio
async def test_the_page_shows_every_field_of_the_json_greeting(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    (shown,) = re.findall(r"```json\n(\{\"ready\".*?\})\n```", page, re.DOTALL)
    node = await BrokerNode.start(node_settings(tmp_path))
    try:
        assert list(json.loads(shown)) == list(announcement(node))
    finally:
        await node.stop()
