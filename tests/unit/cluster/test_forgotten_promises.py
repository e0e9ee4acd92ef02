"""A member whose metadata log was set back, or lost its end, stops before it votes, and joins anew (ADR 45)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.cluster.members import removed_key, successor_of
from icestream.cluster.memory_check import MemoryCheck
from icestream.cluster.promises import NONE, Promises, confirmed, is_quorum, may_take_part
from icestream.cluster.rejoin import leave, note_path, read_predecessor
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.metadata.core import HardState, Status
from icestream.metadata.eraftpb import Membership, encode_conf
from icestream.metadata.log_format import Promise
from icestream.metadata.raft_core import RaftCore, has_raft_core
from icestream.metadata.watermark import FileWatermark, Mark, decode_slots, encode_slot, mark_path, read_mark
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SeededRandomness
from icestream.wal.format import RECORDS_START
from tests.support.cluster_nodes import SECONDS, ClusterNodes

pytestmark = pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part")


@pytest_asyncio.fixture
async def three(tmp_path: Path) -> AsyncIterator[ClusterNodes]:
    nodes = ClusterNodes(tmp_path / "nodes", 3)
    await nodes.start_all()
    await nodes.until_voters(3)
    yield nodes
    await nodes.close()


def follower_of(nodes: ClusterNodes) -> int:
    return next(number for number, node in nodes.nodes.items() if not node.node.leads)


async def set_back(nodes: ClusterNodes, number: int, *, with_mark: bool) -> None:
    """Restores the directory from before 20 keys were confirmed, as from a backup."""
    folder = nodes.folder / str(number)
    await nodes.stop(number)
    shutil.copytree(folder, nodes.folder / "backup")
    shutil.copy(mark_path(folder), nodes.folder / "backup.mark")
    await (await nodes.start(number)).running.ready()
    for key in range(20):
        await nodes.nodes[number].running.put(f"/{key}", b"confirmed")
    applied = nodes.leader.node.applied_index
    await nodes.nodes[number].node.until(lambda: nodes.nodes[number].node.writes.promise.last >= applied)
    await nodes.stop(number)
    shutil.rmtree(folder)
    shutil.move(nodes.folder / "backup", folder)
    if with_mark:
        shutil.move(nodes.folder / "backup.mark", mark_path(folder))


@pytest.mark.asyncio
async def test_a_directory_from_a_backup_is_refused_by_its_mark_without_any_peer(three: ClusterNodes) -> None:
    number = follower_of(three)
    async with asyncio.timeout(SECONDS):
        await set_back(three, number, with_mark=False)
    with pytest.raises(errors.LogOutdated, match="brought back from a backup") as raised:
        await three.start(number)
    assert "cluster rejoin" in raised.value.hint


@pytest.mark.asyncio
async def test_a_directory_from_a_backup_with_its_mark_is_refused_by_the_leader(three: ClusterNodes) -> None:
    number = follower_of(three)
    async with asyncio.timeout(SECONDS):
        await set_back(three, number, with_mark=True)
        node = await three.start(number)
        with pytest.raises(errors.LogOutdated, match="is outdated") as raised:
            await node.running.ready()
    assert "cluster rejoin" in raised.value.hint
    assert not node.node.takes_part
    assert node.node.writes.promise == NONE, "it has confirmed nothing in this life"


@pytest.mark.asyncio
async def test_nodes_that_start_together_remember_from_their_logs(three: ClusterNodes) -> None:
    number = follower_of(three)
    async with asyncio.timeout(SECONDS):
        await set_back(three, number, with_mark=True)
        gone = next(name for name, member in three.nodes.items() if not member.node.leads)
        leader = three.leader
        present = {node.id for node in three.nodes.values()}
        (lost,) = (voter for voter in leader.node.members.voters if voter not in present)
        before = leader.memory.remembered(lost)
        await leader.node.until(lambda: leader.node._log.plan.promises.get(lost, NONE) >= before)
        leading = next(name for name, member in three.nodes.items() if member is leader)
        await three.stop(gone)
        await three.stop(leading)
        await asyncio.gather(*(three.start(name) for name in range(3)))
        with pytest.raises(errors.LogOutdated, match="is outdated"):
            await three.nodes[number].running.ready()
        for name in (gone, leading):
            await three.nodes[name].running.ready()
        assert await three.nodes[gone].running.get("/19") is not None


@pytest.mark.asyncio
async def test_nodes_that_forgot_nothing_start_together_and_without_the_third(three: ClusterNodes) -> None:
    async with asyncio.timeout(SECONDS):
        await three.leader.running.put("/kept", b"")
        await three.close()
        await asyncio.gather(*(three.start(number) for number in range(2)))
        for node in three.nodes.values():
            await node.running.ready()
            assert await node.running.get("/kept") is not None


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["newest file", "last records"])
async def test_a_log_that_lost_its_end_is_refused(three: ClusterNodes, way: str) -> None:
    number = follower_of(three)
    async with asyncio.timeout(SECONDS):
        await three.nodes[number].running.put("/lost", b"x" * 100)
        await three.stop(number)
    folder = three.folder / str(number)
    # of those with a record: a file that was being prepared at the stop may lie behind it
    newest = max(path for path in folder.glob("log-*.wal") if any(path.read_bytes()[RECORDS_START:]))
    if way == "newest file":
        newest.unlink()
    else:
        data = newest.read_bytes()
        newest.write_bytes(data[:512] + bytes(len(data) - 512))  # no seal, no record: as if never written
    with pytest.raises(errors.LogOutdated, match="was synced"):
        await three.start(number)


@pytest.mark.asyncio
async def test_a_member_rejoins_in_place_of_its_former_self(three: ClusterNodes) -> None:
    number = follower_of(three)
    folder, old = three.folder / str(number), three.nodes[number].id
    async with asyncio.timeout(SECONDS):
        await set_back(three, number, with_mark=False)
        left = leave(folder)
        assert (left.node, left.cluster) == (f"{old:016x}", three.leader.identity.cluster_id.hex())
        assert leave(folder) == left, "run again, it is the same"
        assert not mark_path(folder).exists()
        node = await three.start(number, predecessor=read_predecessor(folder))
        await node.running.ready()
        assert node.id != old
        assert await node.running.get("/19") is not None
        await node.node.until(lambda: node.id in node.node.members.voters)
        assert old not in node.node.members.everybody
        gone = await node.running.get(removed_key(old))
        assert gone is not None
        assert successor_of(gone.value) == f"{node.id:016x}"
    assert Path(left.left).name in {path.name for path in three.folder.iterdir()}, "kept for a report"
    assert note_path(folder).exists(), "the broker removes it when it is ready"


@pytest.mark.asyncio
async def test_a_removed_node_rejoins_with_the_hint_it_gets(three: ClusterNodes) -> None:
    number = follower_of(three)
    folder, old = three.folder / str(number), three.nodes[number].id
    async with asyncio.timeout(SECONDS):
        await three.stop(number)
        remove = ClusterCalls(three.leader, SystemClock()).calls()["cluster_remove"]
        await remove(cast("Any", SimpleNamespace(session=None)), {"node": f"{old:016x}"})
        removed_node = await three.start(number)
        with pytest.raises(errors.NodeRemoved) as raised:
            await removed_node.running.ready()
        assert "icestream cluster rejoin" in raised.value.hint
        await three.stop(number)
        leave(folder)
        node = await three.start(number, predecessor=read_predecessor(folder))
        await node.running.ready()
        gone = await node.running.get(removed_key(old))
        assert gone is not None
        assert successor_of(gone.value) == f"{node.id:016x}", "the topics of the removed node are its own"


@pytest.mark.asyncio
async def test_a_running_node_cannot_leave(three: ClusterNodes) -> None:
    with pytest.raises(errors.LogLocked):
        leave(three.folder / "0")


@pytest.mark.asyncio
async def test_a_node_of_another_cluster_stops_with_the_reason(three: ClusterNodes, tmp_path: Path) -> None:
    """The members that the node knows are all unreachable, and its seed nodes are of another cluster."""
    others = ClusterNodes(tmp_path / "others", 3)
    async with asyncio.timeout(SECONDS):
        await others.start_all()
        await others.until_voters(3)
        await others.close()
        node = await others.start(0, seeds=(others.seeds[0], *three.seeds))
        with pytest.raises(errors.ForeignCluster, match="is a member of cluster"):
            await node.running.ready()
        await others.close()


def test_a_heartbeat_that_commits_beyond_the_log_does_not_panic() -> None:
    """Item 23: the crate panicked with "to_commit 215 is out of range"."""
    core = RaftCore(SeededRandomness(1), 1, 10, 1, HardState(3, 0, 0), encode_conf(Membership((1, 2, 3))), [])
    heartbeat = bytes([0x08, 8, 0x10, 1, 0x18, 2, 0x20, 3, 0x40, 215, 1])  # to 1, from 2, term 3, commit 215
    with pytest.raises(errors.LogOutdated, match="entry 215"):
        core.step(heartbeat)
    assert core.status()["last"] == 0


# --- what is decided --------------------------------------------------------------------------------------------------

TERMS = st.builds(Promise, st.integers(0, 5), st.integers(0, 5))


@given(st.lists(st.tuples(st.integers(1, 4), TERMS)))
def test_the_highest_promise_of_each_node_is_remembered(reports: list[tuple[int, Promise]]) -> None:
    promises = Promises({})
    for node_id, promise in reports:
        promises.note(node_id, promise)
    for node_id in range(1, 5):
        assert promises.of(node_id) == max([NONE, *(reported for other, reported in reports if other == node_id)])
    assert promises.keep({1, 2}) == {
        node: promises.of(node) for node in (1, 2) if node in {name for name, _ in reports}
    }
    assert promises.of(3) == NONE


def test_a_majority_must_have_answered_also_that_before_a_change() -> None:
    members = Membership((1, 2, 3), (4,))
    assert not may_take_part(1, members, set())
    assert may_take_part(1, members, {3})
    assert may_take_part(1, Membership((1,), (2,)), set()), "the only voter needs no other node"
    assert not may_take_part(4, members, set())
    assert may_take_part(4, members, {2})
    assert not is_quorum(Membership((1, 2, 3), voters_outgoing=(1, 4, 5)), {1, 2})
    assert is_quorum(Membership((1, 2, 3), voters_outgoing=(1, 4, 5)), {1, 2, 5})


def test_only_a_leader_knows_what_others_have_confirmed() -> None:
    status = {"term": 7, "role": 2, "progress": {1: (9, 10, True), 2: (5, 6, True), 3: (0, 1, False)}}
    assert confirmed(cast("Status", status), 1) == {2: Promise(7, 5)}
    assert confirmed(cast("Status", {**status, "role": 0}), 1) == {}


# --- the mark ---------------------------------------------------------------------------------------------------------

MARKS = st.builds(
    Mark,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=16, max_size=16),
    st.booleans(),
)


@given(MARKS, MARKS, st.integers(0, 255), st.integers(1, 255))
def test_a_torn_mark_leaves_the_previous_one(first: Mark, second: Mark, place: int, change: int) -> None:
    slots = bytearray(encode_slot(2, first) + encode_slot(3, second))
    assert decode_slots(bytes(slots)) == (3, second)
    slots[place] ^= change
    assert decode_slots(bytes(slots)) == ((3, second) if place < 128 else (2, first))
    assert decode_slots(bytes(slots[:100])) == (0, None)


def test_a_mark_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "raft"
    mark = Mark(bytes(16), 7, 8, bytes(16), has_others=True)
    watermark = FileWatermark(mark_path(path))
    assert watermark.read() is None
    for lsn in range(8):
        watermark.note(mark._replace(lsn=lsn))
    watermark.close()
    assert read_mark(path) == mark
    again = FileWatermark(mark_path(path))
    assert again.read() == mark
    again.close()


def test_the_remembered_index_is_the_higher_of_log_and_heartbeat() -> None:
    class PromiseHost:
        store = None
        id = 1

    memory = MemoryCheck(PromiseHost(), None, Promises({2: Promise(3, 9)}))  # type: ignore[arg-type]
    memory.record_promise(2, Promise(3, 4))
    assert memory.remembered(2) == Promise(3, 9)
    memory.record_promise(2, Promise(4, 1))
    assert memory.remembered(2) == Promise(4, 1)
