"""A snapshot of another node is installed once and for all, whatever begins or ends beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.metadata.log_store import LogStore
from icestream.metadata.node_store import NodeStore
from icestream.metadata.raft_core import has_raft_core
from icestream.metadata.snapshot_file import SnapshotHead, received_name, snapshot_name, snapshot_of
from tests.support.node_group import NodeGroup

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]
LEARNER = 2


@pytest_asyncio.fixture
async def group(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeGroup]:
    """A node that was away needs a snapshot."""
    monkeypatch.setattr(limits, "METADATA_TRAIL_ENTRIES", 0)
    node_group = await NodeGroup.form(3)
    yield node_group
    await node_group.close()


class HeldCall:
    """The first call of one of the log's methods waits, before or after its work, until it is released."""

    def __init__(self, log: LogStore, name: str, *, is_behind: bool = False) -> None:
        self._real = getattr(log, name)
        self._is_behind = is_behind
        self._go = asyncio.Event()
        self.calls = 0
        setattr(log, name, self._call)

    async def _call(self, *arguments: Any) -> Any:
        self.calls += 1
        is_held = self.calls == 1
        if is_held and not self._is_behind:
            await self._go.wait()
        answer = await self._real(*arguments)
        if is_held and self._is_behind:
            await self._go.wait()
        return answer

    def let_go(self) -> None:
        self._go.set()


async def write_on(group: NodeGroup, name: str) -> None:
    """Writes so much that the leader has the state only in a snapshot."""
    for number in range(30):
        await group.do(group.led.put(f"/{name}/{number}", b"x"))
    await group.led.snapshots.take()


def cut(group: NodeGroup, follower: NodeStore) -> None:
    group.cuts = {(0, follower.node.id), (follower.node.id, 0)}


async def cut_off(group: NodeGroup) -> NodeStore:
    """A follower that will need the leader's snapshot."""
    follower = group.followers[0]
    cut(group, follower)
    await write_on(group, "away")
    return follower


async def begun(group: NodeGroup, follower: NodeStore, count: int) -> None:
    group.cuts = set()
    await group.until(lambda: follower.node.installs.count == count)


async def check_is_whole(group: NodeGroup, follower: NodeStore) -> None:
    """Checks that the node has every key, and has them again after a kill."""
    await group.turn()
    await group.settle()
    assert follower.stopped is None
    assert len(group.states()) == 1
    await group.kill(follower.node.id, power_loss=True)
    await group.start(follower.node.id)
    await group.until(lambda: group.is_ready)
    await group.settle()
    assert len(group.states()) == 1
    received = [name for name in group.members[follower.node.id].disk.names() if name.startswith("received-")]
    assert received == []


async def test_a_second_stream_does_not_touch_the_file_of_the_first(group: NodeGroup) -> None:
    follower = await cut_off(group)
    log = follower.node._log
    loading = HeldCall(log, "load_received")
    await begun(group, follower, 1)
    head = SnapshotHead(10**6, 1, log.log_id, group.conf)
    writer = await log.begin_received(head)  # of a leader that dies soon
    loading.let_go()
    await group.settle()
    await log.abandon_received(writer)
    await check_is_whole(group, follower)


async def test_a_second_snapshot_begins_before_the_first_one_counts(group: NodeGroup) -> None:
    follower = await cut_off(group)
    loading = HeldCall(follower.node._log, "load_received")
    await begun(group, follower, 1)
    await write_on(group, "meanwhile")
    await begun(group, follower, 2)
    loading.let_go()
    await check_is_whole(group, follower)


async def test_a_second_snapshot_begins_while_the_first_one_gets_its_name(group: NodeGroup) -> None:
    """Otherwise the first snapshot would be taken for the newer one, and the file of the second would be removed."""
    follower = await cut_off(group)
    naming = HeldCall(follower.node._log, "adopt_received")
    await begun(group, follower, 1)
    await group.until(lambda: naming.calls == 1)
    cut(group, follower)
    await write_on(group, "meanwhile")
    await begun(group, follower, 2)
    for _ in range(5):
        await group.turn()
    naming.let_go()
    await check_is_whole(group, follower)


async def test_an_own_snapshot_that_ends_meanwhile_is_discarded(group: NodeGroup) -> None:
    follower = await cut_off(group)
    ending = HeldCall(follower.node._log, "finish_snapshot", is_behind=True)
    loading = HeldCall(follower.node._log, "load_received")
    follower.snapshots.request()
    await asyncio.sleep(0)
    assert follower.snapshots.is_running
    await begun(group, follower, 1)
    ending.let_go()
    await group.turn()
    loading.let_go()
    await check_is_whole(group, follower)


async def test_no_own_snapshot_begins_while_the_core_is_ahead_of_the_state(group: NodeGroup) -> None:
    follower = await cut_off(group)
    loading = HeldCall(follower.node._log, "load_received")
    await begun(group, follower, 1)
    follower.snapshots.request()
    assert not follower.snapshots.is_running
    loading.let_go()
    await check_is_whole(group, follower)


async def test_two_nodes_send_the_same_snapshot_at_a_time(group: NodeGroup) -> None:
    """A deposed leader continues to send. Each snapshot has its own file until it is complete."""
    await write_on(group, "all")
    stored = group.led.node._log.snapshots[0]
    state = bytes(group.members[group.led.node.id].disk.content(stored.name)[512:])
    follower = group.followers[0]
    log, disk = follower.node._log, group.members[follower.node.id].disk
    head = SnapshotHead(stored.head.index, stored.head.term, log.log_id, stored.head.conf)
    name = received_name(snapshot_of(stored.descriptor)[0])
    old, new = await log.begin_received(head), await log.begin_received(head)
    await log.add_received(old, state[:100])
    await log.add_received(new, state)
    await log.finish_received(new, name)
    await log.add_received(old, state[100:])
    assert bytes(disk.content(name)[512:]) == state
    await log.finish_received(old, name)
    await log.release_received(name)
    assert bytes(disk.content(name)[512:]) == state, "the other one is not done with it"
    await log.release_received(name)
    assert name not in disk.names()


async def test_a_state_that_is_not_the_announced_one_gets_no_name(group: NodeGroup) -> None:
    log = group.led.node._log
    name = received_name(snapshot_name(9, "ab" * 32))
    writer = await log.begin_received(SnapshotHead(9, 1, log.log_id, group.conf))
    await log.add_received(writer, b"something else")
    with pytest.raises(errors.DecodeError, match="announced was abab"):
        await log.finish_received(writer, name)
    await log.abandon_received(writer)
    assert [
        file_name for file_name in group.members[group.led.node.id].disk.names() if file_name.startswith("received-")
    ] == []


@pytest.mark.parametrize("has_older", [True, False])
async def test_a_node_that_joins_during_a_snapshot_is_in_the_next_one(group: NodeGroup, has_older: bool) -> None:
    """Trap 14: it takes only a snapshot that knows it, and nothing else may happen for a long time."""
    leader = group.led
    await write_on(group, "first") if has_older else await group.do(leader.put("/first", b""))
    await group.do(leader.put("/more", b""))
    ending = HeldCall(leader.node._log, "finish_snapshot")
    leader.snapshots.request()
    await asyncio.sleep(0)
    await group.start(4, conf=group.conf)
    group.cuts = {(leader.node.id, 4)}
    await group.do(leader.node.change_members([(LEARNER, 4)]))
    ending.let_go()
    await group.turn()
    group.cuts = set()
    await group.until(lambda: group.stores[4].node.applied_index == leader.node.applied_index)
    assert len(group.states()) == 1
