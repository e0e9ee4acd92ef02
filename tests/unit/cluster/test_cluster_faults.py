"""Errors of nodes when others are unreachable, of another cluster, or replaced."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.topic_owners import TopicOwners
from icestream.cluster.cluster_node import ClusterNode, ClusterOptions
from icestream.cluster.force_new_cluster import force_new_cluster
from icestream.cluster.members import NODES, NodeRecord, encode_record
from icestream.metadata.open import MetadataOptions, open_directory, open_metadata
from icestream.metadata.raft_core import has_raft_core
from icestream.model.subscription_options import DispatchMode
from icestream.model.topic_name import TopicName
from icestream.processes.node.directory_fence import FENCE_NAME, enforce_fence, raise_fence, read_fence
from icestream.runtime.clock import SimulatedClock, SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.cluster_nodes import SECONDS
from tests.support.free_ports import free_ports
from tests.support.node_group import NodeGroup

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]
TOPIC = TopicName("default", "t")


async def test_a_command_without_a_majority_is_refused_when_there_was_no_leader_for_a_while() -> None:
    """Item 24: it took 30 s."""
    group = await NodeGroup.form(3)
    try:
        left = group.followers[0]
        for node_id in [store for store in group.stores if store != left.node.id]:
            await group.kill(node_id)
        begun = group.clock.monotonic_ns()
        outcome = await group.outcome(left.put("/a", b""))
        took_seconds = (group.clock.monotonic_ns() - begun) / 1e9
        assert isinstance(outcome, errors.NotReady | errors.OutcomeUnknown)
        assert took_seconds <= limits.METADATA_LEADERLESS_SECONDS_MAX + 2.0
    finally:
        await group.close()


async def begun(folder: Path, options: ClusterOptions) -> asyncio.Task[ClusterNode]:
    clock = SystemClock()
    opened = await open_directory(folder, clock, MetadataOptions())
    return asyncio.ensure_future(ClusterNode.start(opened, options, clock, SystemRandomness()))


async def test_a_joining_node_reports_that_the_other_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, is_said = list[str](), asyncio.Event()

    def say(self: ClusterNode, text: str) -> None:
        messages.append(text)
        is_said.set()

    monkeypatch.setattr(ClusterNode, "log_status", say)
    (port,) = free_ports(1)
    task = await begun(tmp_path / "raft", ClusterOptions(join=f"127.0.0.1:{port}"))
    async with asyncio.timeout(SECONDS):
        await is_said.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert f"no node answers at 127.0.0.1:{port}: Connection refused" in messages[0]


async def test_a_node_on_any_free_port_announces_its_port(tmp_path: Path) -> None:
    """`ports.raft=0`: the others cannot dial port 0."""
    clock = SystemClock()
    first = await open_directory(tmp_path / "first", clock, MetadataOptions())
    second = await open_directory(tmp_path / "second", clock, MetadataOptions())
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    async with asyncio.timeout(SECONDS):
        founder = await ClusterNode.start(
            first, ClusterOptions(port=port, address=place, seeds=(place,)), clock, SystemRandomness()
        )
        await founder.running.ready()
        joined = await ClusterNode.start(
            second, ClusterOptions(address="127.0.0.1:0", join=place), clock, SystemRandomness()
        )
        assert joined.address == f"127.0.0.1:{joined.listener.port}"
        await joined.running.ready()
        await joined.running.close()
        await founder.running.close()


async def test_a_topic_of_a_node_that_is_down_is_reported_without_a_redirect() -> None:
    owner = "00000000000000aa"
    node = encode_record(NodeRecord("node-2", "h:1", "h:2", "http://h:3", "http://h:4"))
    record = records.TopicRecord(1, 1, DispatchMode.RELIABLE, 0, "node-2", owner=owner)
    for is_up in (True, False):
        owners = TopicOwners("01", "01", {NODES + owner: node}.get, lambda _, is_up=is_up: is_up)  # type: ignore[misc]
        error = owners.redirect_error(TOPIC, record)
        assert ("which is down" in error.message) is not is_up
        assert ("http" in error.details) is is_up
        assert error.details["native"] == "h:2", "clients of the protocol keep trying"


async def test_members_of_a_cluster_that_was_replaced_may_not_use_the_warehouse(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    location, clock = f"file:{warehouse}", SimulatedClock()
    store = await open_metadata(tmp_path / "raft")
    await store.ready()
    old = store.identity.cluster_id.hex()
    await enforce_fence(store, location, clock)
    assert not (warehouse / FENCE_NAME).exists(), "nothing was replaced"
    await store.close()
    (tmp_path / "other").mkdir()
    for path in (tmp_path / "raft").iterdir():  # another member has the same log, and still runs
        (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
    member = await open_metadata(tmp_path / "other")
    await member.ready()
    await enforce_fence(member, location, clock)

    forced = await force_new_cluster(tmp_path / "raft", SystemClock(), SystemRandomness())
    new = await open_metadata(tmp_path / "raft")
    await new.ready()
    await enforce_fence(new, location, clock)
    assert read_fence(warehouse).fenced == {old: forced.cluster_id.hex()}
    async with asyncio.timeout(SECONDS):
        while member.stopped is None:
            clock.advance(limits.WAREHOUSE_FENCE_LOOK_SECONDS)
            await asyncio.sleep(0.01)
    assert "was replaced by cluster" in str(member.stopped)
    await member.close()
    again = await open_metadata(tmp_path / "other")
    await again.ready()
    with pytest.raises(errors.ForeignCluster, match="was replaced by cluster"):
        await enforce_fence(again, location, clock)
    await again.close()
    await new.close()


async def test_of_two_clusters_made_from_the_same_one_only_the_first_may_use_the_warehouse(tmp_path: Path) -> None:
    raise_fence(tmp_path, frozenset({"a"}), "b")
    with pytest.raises(errors.ForeignCluster, match="cluster a, which it replaced, was replaced by cluster b before"):
        raise_fence(tmp_path, frozenset({"a"}), "c")
    raise_fence(tmp_path, frozenset({"a", "b"}), "c")
    assert read_fence(tmp_path).fenced == {"a": "b", "b": "c"}


async def test_a_new_cluster_from_a_backup_reuses_no_id(tmp_path: Path) -> None:
    folder, backup = tmp_path / "raft", tmp_path / "backup"
    store = await open_metadata(folder)
    await store.ready()
    await store.put("/kept", b"value")
    await store.allocate_id("topic")
    await store.close()
    shutil.copytree(folder, backup)
    later = await open_metadata(folder)
    await later.ready()
    await later.put("/lost", b"value")
    last_id = await later.allocate_id("topic", 5)
    await later.close()
    shutil.rmtree(folder)
    shutil.move(backup, folder)
    with pytest.raises(errors.LogOutdated):
        await open_metadata(folder)

    forced = await force_new_cluster(folder, SystemClock(), SystemRandomness())
    assert re.fullmatch(r"the last \d+ records of its log", forced.forgotten)
    new = await open_metadata(folder)
    await new.ready()
    assert await new.get("/kept") is not None
    assert await new.get("/lost") is None
    assert await new.allocate_id("topic") > last_id + 5
    await new.close()
    assert not (await force_new_cluster(folder, SystemClock(), SystemRandomness())).forgotten
