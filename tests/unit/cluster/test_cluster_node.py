"""Nodes that find each other, join, forward, catch up by a snapshot, go and come back: over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.cluster.members import removed_key
from icestream.cluster.wire import PeerHello
from icestream.metadata import command as cmd
from icestream.metadata.raft_core import has_raft_core
from icestream.metadata.snapshot import encode_snapshot
from tests.support.cluster_nodes import SECONDS, ClusterNodes
from tests.support.until import until

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]


@pytest_asyncio.fixture
async def three(tmp_path: Path) -> AsyncIterator[ClusterNodes]:
    nodes = ClusterNodes(tmp_path, 3)
    await nodes.start_all()
    await nodes.until_voters(3)
    yield nodes
    await nodes.close()


async def test_three_seed_nodes_form_one_cluster_with_the_lowest_id_as_its_founder(three: ClusterNodes) -> None:
    infos = [node.info() for node in three.nodes.values()]
    assert len({info.cluster for info in infos}) == 1
    assert {info.founder for info in infos} == {min(info.node for info in infos)}
    assert all(set(info.voters) == {other.node for other in infos} for info in infos)


async def test_every_node_accepts_writes_and_reads_those_of_the_others(three: ClusterNodes) -> None:
    for number, node in three.nodes.items():
        await node.running.put(f"/{number}", b"x")
    for node in three.nodes.values():
        assert [key for key, _ in await node.running.list("/0")] == ["/0"]
        assert await node.running.get("/2") is not None


async def test_the_cluster_survives_the_loss_and_return_of_the_leader(three: ClusterNodes) -> None:
    leader = next(number for number, node in three.nodes.items() if node.node.leads)
    await three.nodes[leader].running.put("/before", b"")
    await three.stop(leader)
    left = next(iter(three.nodes.values()))
    async with asyncio.timeout(SECONDS):
        await left.running.put("/after", b"")
        again = await three.start(leader)
        await again.running.ready()
        assert await again.running.get("/after") is not None


async def test_a_leader_that_stops_in_order_hands_over_first(three: ClusterNodes) -> None:
    """After the stop the others need no election timeout: the leader has transferred leadership to one of them."""
    number, leader = next((number, node) for number, node in three.nodes.items() if node.node.leads)
    candidates = three.followers
    coming = [asyncio.ensure_future(node.running.leadership.until_leader()) for node in candidates]
    term = leader.running.leadership.term
    await three.stop(number)
    assert any(node.running.leadership.leader in {candidate.id for candidate in candidates} for node in candidates)
    async with asyncio.timeout(SECONDS):
        await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
    next_one = next(node for node in candidates if node.running.leadership.is_leader)
    assert next_one.running.leadership.term == term + 1
    for task in coming:
        task.cancel()
    await asyncio.gather(*coming, return_exceptions=True)


async def test_a_node_that_was_down_long_gets_a_snapshot(three: ClusterNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_TRAIL_ENTRIES", 0)
    monkeypatch.setattr(limits, "SNAPSHOT_CHUNK_BYTES", 1_000)
    away = next(number for number, node in three.nodes.items() if not node.node.leads)
    await three.stop(away)
    leader = three.leader
    await asyncio.gather(*(leader.running.put(f"/{number}", b"x" * 500) for number in range(100)))
    await leader.running.snapshots.take_now()
    async with asyncio.timeout(SECONDS):
        again = await three.start(away)
        await again.running.ready()
        assert await again.running.get("/99") is not None
        assert again.node.installs.count == 1
        await again.node.until(lambda: again.node.applied_index >= three.leader.node.applied_index)
    assert encode_snapshot(again.node.machine) == encode_snapshot(three.leader.node.machine)


async def test_trap_14_a_node_joining_after_log_truncation_gets_a_snapshot_that_contains_it(
    three: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner takes no snapshot from before it was one: a new one is taken with each change of the members."""
    monkeypatch.setattr(limits, "METADATA_TRAIL_ENTRIES", 0)
    leader = three.leader
    await asyncio.gather(*(leader.running.put(f"/{number}", b"x") for number in range(50)))
    await leader.running.snapshots.take_now()
    assert leader.node.status()["first"] > 50, "what came before is gone"
    more = ClusterNodes(three.folder / "more", 1)
    try:
        async with asyncio.timeout(SECONDS):
            fourth = await more.start(0, join=three.seeds[0])
            await fourth.running.ready()
            assert fourth.node.installs.count == 1
            assert fourth.id in fourth.node.members.learners
            assert await fourth.running.get("/49") is not None
    finally:
        await more.close()


async def test_a_lease_is_renewed_through_any_node(three: ClusterNodes) -> None:
    async with asyncio.timeout(SECONDS):
        done = await three.followers[0].running.txn([], [cmd.PutLease("/lease", b"", 60_000)])
        applied = three.leader.node.applied_index
        for node in three.nodes.values():
            assert await node.running.renew("/lease", done.revision)
            assert not await node.running.renew("/lease", done.revision + 1)
        assert three.leader.node.applied_index == applied
    for fields in ({}, {"key": "/lease"}, {"key": 1, "revision": 1}, {"key": "/lease", "revision": "1"}):
        with pytest.raises(errors.DecodeError, match="RenewLease"):
            await three.leader.calls["RenewLease"](fields)


async def test_nodes_take_snapshots_at_the_same_index_and_compare_them(three: ClusterNodes) -> None:
    await three.leader.running.put("/a", b"x")
    async with asyncio.timeout(SECONDS):
        await three.leader.running.submit(cmd.TakeSnapshot())
        for node in three.nodes.values():
            await node.node.until(lambda node=node: node.comparison.hashes.compared >= 1)  # type: ignore[misc]
    infos = [node.info() for node in three.nodes.values()]
    assert len({(info.snapshot_index, info.snapshot_digest) for info in infos}) == 1
    assert infos[0].snapshot_digest
    assert all(node.running.stopped is None for node in three.nodes.values())


async def test_a_node_whose_state_differs_from_the_majority_stops_and_the_others_continue(three: ClusterNodes) -> None:
    wrong = three.followers[0]
    await three.leader.running.put("/a", b"x")
    await wrong.node.until(lambda: wrong.node.machine.get("/a") is not None)
    entries = wrong.node.machine.entries
    entries["/a"] = msgspec.structs.replace(entries["/a"], value=b"y")
    async with asyncio.timeout(SECONDS):
        await three.leader.running.submit(cmd.TakeSnapshot())
        with pytest.raises(errors.LogStopped, match="differs from the state of a majority"):
            await wrong.node.until(lambda: False)
        assert await three.leader.running.put("/b", b"") > 0
    assert sum(node.running.stopped is None for node in three.nodes.values()) == 2


async def test_an_invalid_hash_is_refused(three: ClusterNodes) -> None:
    for fields in ({}, {"index": 1, "hash": b"short"}, {"index": "1", "hash": bytes(32)}, {"index": 1, "hash": "text"}):
        with pytest.raises(errors.DecodeError, match="StateHash"):
            await three.leader.calls["StateHash"]({"node": "1", **fields})


async def test_more_nodes_join_as_learners_and_two_become_voters(three: ClusterNodes) -> None:
    more = ClusterNodes(three.folder / "more", 2)
    try:
        async with asyncio.timeout(SECONDS):
            fourth = await more.start(0, join=three.seeds[0])
            await fourth.running.ready()
            await fourth.node.until(lambda: fourth.id in fourth.node.members.learners)
            await fourth.running.put("/from a learner", b"")
            fifth = await more.start(1, join=more.seeds[0])
            await fifth.node.until(lambda: len(fifth.node.members.voters) == 5)
            await fifth.running.ready()
            assert await fifth.running.get("/from a learner") is not None
    finally:
        await more.close()


async def test_a_node_of_another_cluster_is_refused(three: ClusterNodes, tmp_path: Path) -> None:
    stranger = ClusterNodes(tmp_path / "stranger", 1)
    async with asyncio.timeout(SECONDS):
        alone = await stranger.start(0)
        await alone.running.ready()
        with pytest.raises(errors.ForeignCluster, match="is a member of cluster"):
            await alone.peers.ask(three.seeds[0], "GetNodeInfo", {})
    await stranger.close()


async def test_a_removed_node_does_not_rejoin_by_itself(three: ClusterNodes) -> None:
    number, gone = next((number, node) for number, node in three.nodes.items() if not node.node.leads)
    async with asyncio.timeout(SECONDS):
        await three.leader.calls["Remove"]({"node": f"{gone.id:016x}"})
        await three.leader.running.put("/without it", b"")
        await three.stop(number)
        again = await three.start(number)
        with pytest.raises(errors.ForeignCluster, match="was removed"):
            await again.running.ready()
    assert gone.id not in three.leader.node.members.voters


async def test_a_node_is_refused_after_its_removal_and_not_before(three: ClusterNodes) -> None:
    """If the membership change fails after its note was written, the node is still a voter, which the others need."""
    gone, leader = three.followers[0], three.leader
    hello = PeerHello(leader.identity.cluster_id, gone.id, gone.address, leader.id)
    async with asyncio.timeout(SECONDS):
        await leader.running.put(removed_key(gone.id), b"")
        assert leader.greet(hello).node == leader.id
        connections = leader.listener.connections
        before = {
            connection
            for connection in connections
            if connection.hello is not None and connection.hello.node == gone.id
        }
        assert before
        await leader.calls["Remove"]({"node": f"{gone.id:016x}"})
        with pytest.raises(errors.NodeRemoved, match="was removed"):
            leader.greet(hello)
        with pytest.raises(errors.NodeRemoved, match="was removed"):
            await gone.node.until(lambda: False)  # the first node that removes it says so on its connections
        await until(lambda: not before & connections)
    assert leader.listener.connections is connections


async def test_connections_without_a_hello_are_closed(three: ClusterNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PEER_OPEN_SECONDS_MAX", 0.2)
    listener = three.nodes[0].listener
    before = set(listener.connections)
    reader, writer = await asyncio.open_connection("127.0.0.1", three.ports[0])
    await until(lambda: listener.connections - before)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    writer.close()
    await until(lambda: not listener.connections - before)
    assert before <= listener.connections, "those that have greeted stay"


async def test_an_invalid_message_ends_only_its_connection(three: ClusterNodes) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 64):
        reader, writer = await asyncio.open_connection("127.0.0.1", three.ports[0])
        writer.write(data)
        await asyncio.wait_for(reader.read(), SECONDS)
        writer.close()
    assert await three.nodes[0].running.put("/a", b"") > 0
