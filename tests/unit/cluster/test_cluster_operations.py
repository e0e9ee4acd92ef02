"""Operations on a cluster: inspect it, change it through any node, and recover from lost nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.cluster.cluster_node import ClusterNode
from icestream.cluster.export import export
from icestream.cluster.force_new_cluster import force_new_cluster
from icestream.cluster.members import NodeRecord, encode_record, node_key, removed_key
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.internal_api.implementation import implemented_calls
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.cluster_nodes import SECONDS, ClusterNodes

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def three(tmp_path: Path) -> AsyncIterator[ClusterNodes]:
    nodes = ClusterNodes(tmp_path, 3)
    await nodes.start_all()
    await nodes.until_voters(3)
    for node in nodes.nodes.values():
        await until_connected(node)
    yield nodes
    await nodes.close()


async def until_connected(node: ClusterNode) -> None:
    """Two nodes that joined at the same time may hear of each other a moment later."""
    async with asyncio.timeout(SECONDS):
        are_up = False
        while not are_up:
            await SystemClock().sleep(0.02)
            are_up = all(row["is_up"] for row in (await ask(node, "cluster_status"))["nodes"])


async def ask(through: ClusterNode | None, method: str, /, **arguments: Any) -> dict[str, Any]:
    calls = ClusterCalls(through, SystemClock()).calls()
    async with asyncio.timeout(SECONDS):
        caller = SimpleNamespace(session=None)  # without an audit its session is not used
        return await calls[method](cast("Any", caller), arguments)


async def test_any_node_reports_all_nodes_and_their_reachability(three: ClusterNodes) -> None:
    status = await ask(three.followers[0], "cluster_status")
    assert status["cluster"] == three.leader.identity.cluster_id.hex()
    assert status["leader"] == f"{three.leader.id:016x}"
    assert [row["role"] for row in status["nodes"]].count("leader") == 1
    assert all(row["is_up"] for row in status["nodes"])
    number = next(number for number, node in three.nodes.items() if not node.node.leads)
    gone = f"{three.nodes[number].id:016x}"
    await three.stop(number)
    status = await ask(three.leader, "cluster_status")
    (line,) = [row for row in status["nodes"] if row["node"] == gone]
    assert (line["is_up"], line["applied"]) == (False, None)
    assert line["address"] == three.seeds[number]


async def test_states_are_compared_at_one_log_index(three: ClusterNodes) -> None:
    await three.leader.running.put("/a", b"1")
    comparison = await ask(three.followers[0], "cluster_verify")
    assert comparison["is_equal"]
    assert {row["node"]: row["name"] for row in comparison["nodes"]} == {
        f"{node.id:016x}": node.record.name for node in three.nodes.values()
    }
    assert len({row["sha256"] for row in comparison["nodes"]}) == 1
    snapshot = await ask(three.followers[0], "cluster_snapshot")
    assert snapshot["index"] >= comparison["index"]


async def test_a_node_busy_with_a_snapshot_is_compared_at_a_later_index(
    three: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLUSTER_MARK_SECONDS", 0.1)
    busy, contacted = three.followers[0], three.leader
    real, is_free = busy.node._log.finish_snapshot, asyncio.Event()

    async def finish(*arguments: Any) -> None:
        await is_free.wait()
        await real(*arguments)

    monkeypatch.setattr(busy.node._log, "finish_snapshot", finish)
    await contacted.running.put("/a", b"1")
    await busy.node.until(lambda: busy.node.machine.get("/a") is not None)
    busy.node.request_snapshot()
    comparing = asyncio.ensure_future(ask(contacted, "cluster_verify"))
    async with asyncio.timeout(SECONDS):
        await contacted.node.until(lambda: contacted.info().snapshot_index > 0)
        assert not comparing.done()
        is_free.set()
        comparison = await comparing
    assert comparison["is_equal"]
    assert len(comparison["nodes"]) == 3


async def test_leadership_is_transferred_by_name_or_id(three: ClusterNodes) -> None:
    successor, leader = three.followers
    assert await ask(leader, "cluster_transfer", node=successor.record.name) == {"leader": f"{successor.id:016x}"}
    async with asyncio.timeout(SECONDS):
        await successor.node.until(lambda: successor.node.leads)


async def test_leadership_is_not_transferred_to_learners_or_unknown_nodes(three: ClusterNodes) -> None:
    leader = three.leader
    await leader.calls["Join"]({"node": f"{0xAA:016x}", "record": encode_record(NodeRecord("aa", "127.0.0.1:9"))})
    for through in three.nodes.values():
        with pytest.raises(errors.InvalidInput, match="a learner"):
            await ask(through, "cluster_transfer", node=f"{0xAA:016x}")
        with pytest.raises(errors.InvalidInput, match="not a node of this cluster"):
            await ask(through, "cluster_transfer", node=f"{0xBB:016x}")
    assert three.leader is leader
    assert await ask(leader, "cluster_transfer", node=f"{leader.id:016x}") == {"leader": f"{leader.id:016x}"}


async def test_a_failed_leadership_transfer_is_reported(three: ClusterNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_CLOSE_SECONDS_MAX", 0.5)
    monkeypatch.setattr(limits, "CLUSTER_CHANGE_SECONDS", 10 * SECONDS)  # it is known long before
    leader = three.leader
    number, gone = next((number, node) for number, node in three.nodes.items() if node is not leader)
    other = next(node for node in three.followers if node is not gone)
    await three.stop(number)
    for through in (leader, other):
        with pytest.raises(errors.NotReady, match=f"leadership did not move: node {gone.id:016x}"):
            await ask(through, "cluster_transfer", node=f"{gone.id:016x}")
    assert three.leader is leader


async def test_an_unknown_name_is_not_taken_for_an_id(three: ClusterNodes) -> None:
    for call in ("cluster_transfer", "cluster_remove", "cluster_promote"):
        with pytest.raises(errors.InvalidInput, match="unknown node 'nobody'"):
            await ask(three.leader, call, node="nobody")


async def test_a_leader_that_is_removed_hands_over_first(three: ClusterNodes) -> None:
    leader, contacted = three.leader, three.followers[0]
    await ask(contacted, "cluster_remove", node=f"{leader.id:016x}")
    async with asyncio.timeout(SECONDS):
        await contacted.node.until(lambda: leader.id not in contacted.node.members.voters)
    assert contacted.node.machine.get(removed_key(leader.id)) is not None
    with pytest.raises(errors.InvalidInput, match="not a node of this cluster"):
        await ask(contacted, "cluster_promote", node=f"{leader.id:016x}")


@pytest.mark.parametrize("step", ["put", "change_members", "delete"])
async def test_a_removal_that_was_cut_off_at_any_step_is_finished_by_the_next_one(
    three: ClusterNodes, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The lead was lost behind it. Until then the record stays, and another node may have the name already."""
    leader, gone = three.leader, three.followers[0]
    request, name = {"node": f"{gone.id:016x}"}, gone.record.name
    with monkeypatch.context() as patched:
        patched.setattr(leader.node if step == "change_members" else leader.running, step, lost)
        with pytest.raises(errors.OutcomeUnknown):
            await leader.calls["Remove"](request)
    join = {"node": "00000000000000aa", "record": encode_record(NodeRecord(name, "127.0.0.1:9"))}
    if step == "put":
        with pytest.raises(errors.ConfigurationError, match="another node"):
            await leader.calls["Join"](join)
    async with asyncio.timeout(SECONDS):
        await ask(leader, "cluster_remove", node=name)
        assert gone.id not in leader.node.members.voters
        assert leader.node.machine.get(removed_key(gone.id)) is not None
        assert leader.node.machine.get(node_key(gone.id)) is None
        await leader.calls["Remove"](request)  # and once more is once
        await leader.calls["Join"](join)
    assert leader.node.members.learners == (0xAA,)


async def test_the_name_of_a_removed_node_can_be_used_again(
    three: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, gone = three.leader, three.followers[0]
    name = gone.record.name
    with monkeypatch.context() as patched:
        patched.setattr(leader.running, "delete", lost)
        with pytest.raises(errors.OutcomeUnknown):
            await leader.calls["Remove"]({"node": f"{gone.id:016x}"})
    for node_id in (1, 2**64 - 1):  # before and behind the old one
        await leader.calls["Join"](
            {"node": f"{node_id:016x}", "record": encode_record(NodeRecord(name, "127.0.0.1:9"))}
        )
        await ask(leader, "cluster_remove", node=name)
        assert leader.node.machine.get(removed_key(node_id)) is not None, "the name is that of the node that is there"
    assert leader.node.machine.get(node_key(gone.id)) is not None


async def lost(*arguments: Any) -> Any:
    raise errors.OutcomeUnknown("another node took the lead")


async def test_a_node_waiting_for_others_is_added_by_the_cluster(three: ClusterNodes, tmp_path: Path) -> None:
    more = ClusterNodes(tmp_path / "more", 1)
    starting = asyncio.ensure_future(more.start(0, seeds=(more.seeds[0], "127.0.0.1:9")))  # no node listens on port 9
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                added = await ask(three.leader, "cluster_add", address=more.seeds[0])
                break
            except errors.ConnectionLost:
                await asyncio.sleep(0.05)
        fourth = await starting
        assert added == {"node": f"{fourth.id:016x}"}
        await fourth.node.until(lambda: fourth.id in fourth.node.members.learners)
    with pytest.raises(errors.AlreadyExists):
        await ask(three.leader, "cluster_add", address=more.seeds[0])
    await more.close()


async def test_one_node_becomes_a_new_cluster_when_the_others_are_lost(three: ClusterNodes) -> None:
    await three.leader.running.put("/kept", b"value")
    others = [f"{node.id:016x}" for number, node in three.nodes.items() if number]
    old, own = three.nodes[0].identity.cluster_id, three.nodes[0].id
    async with asyncio.timeout(SECONDS):
        await three.nodes[0].node.until(lambda: three.nodes[0].node.machine.get("/kept") is not None)
    await three.close()
    path = three.folder / "0"
    forced = await force_new_cluster(path, SystemClock(), SystemRandomness())
    assert forced.node_id == own
    assert forced.cluster_id != old
    assert sorted(forced.removed) == sorted(others)
    alone = await three.start(0, seeds=(three.seeds[0],))
    async with asyncio.timeout(SECONDS):
        await alone.running.ready()
        entry = await alone.running.get("/kept")
        assert entry is not None
        assert entry.value == b"value"
        assert alone.node.members.voters == (own,)
        for node_id in others:
            assert await alone.running.get(removed_key(int(node_id, 16))) is not None
        lost = await three.start(1, seeds=(three.seeds[0],))  # it comes back
        with pytest.raises(errors.ForeignCluster):
            await lost.peers.ask(three.seeds[0], "GetNodeInfo", {})


async def test_log_and_snapshot_are_written_as_json(three: ClusterNodes) -> None:
    await three.leader.running.put("/before", b"\xff")
    await three.leader.running.snapshots.take_now()
    await three.leader.running.put("/behind", b"text")
    number = next(number for number, node in three.nodes.items() if node.node.leads)
    with pytest.raises(errors.LogLocked):
        [line async for line in export(three.folder / str(number), SystemClock())]
    await three.stop(number)
    lines = [line async for line in export(three.folder / str(number), SystemClock())]
    assert [name for line in lines for name in line if name in ("identity", "snapshot")] == ["identity", "snapshot"]
    keys = {line["key"]: line["value"] for line in lines if "key" in line}
    assert keys["/before"] == {"base64": "/w=="}
    assert ["put", "/behind", "text"] in [line["command"] for line in lines if "command" in line]


async def test_cluster_calls_of_a_single_node_are_refused() -> None:
    for method in implemented_calls(ClusterCalls):
        with pytest.raises(errors.InvalidInput, match="not part of a cluster"):
            await ask(None, method, node="x", address="127.0.0.1:1")
