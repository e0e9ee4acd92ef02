"""The crate behind our interface: the traps of its use, each by itself, and the twin that is written in Python."""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.metadata import eraftpb
from icestream.metadata.core import HardState, RaftMessage, Role
from icestream.metadata.eraftpb import Membership
from icestream.metadata.raft_core import RaftCore, has_raft_core
from icestream.metadata.solo_core import SoloCore
from icestream.runtime.randomness import SeededRandomness
from tests.support.metadata_machine import MetadataMachine, contents, state_bytes
from tests.support.raft_world import SNAPSHOT_EVERY, RaftWorld, SimulatedNode

pytestmark = pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part")
PROPOSE, TIMEOUT_NOW = 2, 14
NEVER = 10 * 20  # ticks: an election by then, whatever was drawn


def led_world() -> tuple[RaftWorld, SimulatedNode]:
    """Three nodes, the first of them leads."""
    world = RaftWorld(1)
    world.nodes[1].core.campaign()
    settle(world)
    assert world.nodes[1].role == Role.LEADER
    return world, world.nodes[1]


def settle(world: RaftWorld, *, keeps_snapshots: bool = True) -> None:
    """Everything is written, synced and delivered; disks may stand still before the snapshot of another node."""
    for _ in range(50):
        for node in world.nodes.values():
            if node.is_up:
                node.pump()
                if keeps_snapshots or not any(write.ready.snapshot for write in node.writes):
                    node.sync(len(node.writes))
        world.network = [(sender, message) for sender, message in world.network if world.nodes[message.to].is_up]
        world._deliver_all()


def timeout_now(to: int, sender: int, term: int) -> bytes:
    """The lead is handed over to this node: it is to campaign at once."""
    return bytes([0x08, TIMEOUT_NOW, 0x10, to, 0x18, sender, 0x20, term])


def node_that_installs() -> tuple[RaftWorld, SimulatedNode]:
    """Node 3 was away until its log was gone: it has a snapshot of the leader, and its disk has not synced it."""
    world, leader = led_world()
    world.nodes[3].crash()
    for _ in range(2 * SNAPSHOT_EVERY):
        leader.core.propose([b"x"])
        settle(world)
    away = world.nodes[3]
    away.boot()
    for _ in range(10):  # the crate believes for a while that it knows how far the other one is
        leader.core.report_unreachable(3)
        leader.core.tick()
        settle(world, keeps_snapshots=False)
    assert (away.applied, world.installs) == (leader.applied - leader.applied % SNAPSHOT_EVERY, 1)
    assert any(write.ready.snapshot for write in away.writes)
    return world, away


def test_trap_1_a_node_may_campaign_after_it_has_installed_a_snapshot() -> None:
    world, node = node_that_installs()
    node.sync(len(node.writes))
    for _ in range(NEVER):
        node.core.tick()
        node.pump()
        node.sync(len(node.writes))
    assert node.role == Role.PRE_CANDIDATE
    assert world.network, "it asks for votes"


def test_trap_2_no_node_campaigns_while_it_installs_a_snapshot() -> None:
    world, node = node_that_installs()
    world.network.clear()
    term = node.core.status()["term"]
    for _ in range(NEVER):
        node.core.tick()
    node.core.campaign()
    node.core.step(timeout_now(3, 1, term))
    node.pump()
    assert (node.role, node.core.status()["term"], world.network) == (Role.FOLLOWER, term, [])
    node.sync(len(node.writes))
    node.core.step(timeout_now(3, 1, term))
    node.pump()
    assert node.role == Role.CANDIDATE, "afterwards it does"


def test_trap_5_members_are_sorted_by_id() -> None:
    core = RaftCore(SeededRandomness(1), 2, 10, 1, HardState(0, 0, 0), conf(2), [])
    core.campaign()
    for node_id in (9, 1, 5):
        assert core.propose_conf([(2, node_id)], 0, b"")
        ready = core.ready()
        while ready is not None:
            core.persisted(ready.number)
            for entry in ready.committed:
                if entry.kind != eraftpb.NORMAL:
                    conf_bytes = core.apply_conf(entry.kind, entry.data)
                core.applied(entry.index)
            ready = core.ready()
    assert eraftpb.decode_conf(conf_bytes).learners == (1, 5, 9)


def conf(*voters: int) -> bytes:
    return eraftpb.encode_conf(Membership(voters))


def test_trap_11_a_follower_refuses_and_forwards_no_proposal() -> None:
    world, _ = led_world()
    follower = world.nodes[2]
    assert follower.core.status()["leader"] == 1, "the crate would forward it"
    assert not follower.core.propose([b"x"])
    assert not follower.core.propose_conf([(2, 9)], 0, b"")
    ready = follower.core.ready()
    sent: list[RaftMessage] = ready.send_now + ready.send_after if ready is not None else []
    assert PROPOSE not in [eraftpb.message_kind(message.data) for message in sent]


def test_trap_13_a_start_applies_the_snapshot_and_returns_the_rest_again() -> None:
    """The commit index was never written by itself; it is learned anew."""
    world, leader = led_world()
    for _ in range(SNAPSHOT_EVERY + 5):
        leader.core.propose([b"x"])
        settle(world)
        leader.core.tell_commit()  # by itself, not with the next entries
        settle(world)
    follower = world.nodes[2]
    applied, state = follower.applied, follower.state
    follower.crash()
    follower.boot()
    assert follower.applied == SNAPSHOT_EVERY
    leader.core.tick()
    settle(world)
    assert (follower.applied, follower.state) == (applied, state)


def test_hostile_bytes_are_refused_and_change_nothing() -> None:
    world, leader = led_world()
    before = leader.core.status()
    for data in (b"\xff", b"\x08", bytes(100)):
        with pytest.raises(errors.DecodeError):
            leader.core.step(data)
    assert leader.core.status() == before
    assert world.nodes[1].core.propose([b"x"])


# --- the twin ---------------------------------------------------------------------------------------------------------


def test_both_cores_commit_the_same_log_for_one_voter() -> None:
    """Same commands, same disk: the same entries, byte by byte, and the same order of events."""
    histories = []
    for core in (SoloCore(7, 10, 1, HardState(0, 0, 0), conf(7), []), RaftCore(*seeded(7))):
        core.campaign()
        log: dict[int, bytes] = {}
        committed: list[tuple[int, int, int, bytes]] = []
        for batch in ([], [b"a"], [b"b", b"c"], [b"d"] * 5):
            if batch:
                assert core.propose(batch)
            while (ready := core.ready()) is not None:
                log |= dict(ready.entries)
                core.persisted(ready.number)
                committed += [(entry.index, entry.term, entry.kind, entry.data) for entry in ready.committed]
                for entry in ready.committed:
                    core.applied(entry.index)
        histories.append((log, committed, core.status()["term"], core.status()["commit"]))
    assert histories[0] == histories[1]


def seeded(node_id: int) -> tuple[SeededRandomness, int, int, int, HardState, bytes, list[bytes]]:
    return SeededRandomness(1), node_id, 10, 1, HardState(0, 0, 0), conf(node_id), []


def crate(*arguments: object) -> RaftCore:
    return RaftCore(SeededRandomness(1), *arguments)  # type: ignore[arg-type]


@pytest.mark.asyncio
@pytest.mark.parametrize("order", [(SoloCore, crate, SoloCore), (crate, SoloCore, crate)], ids=["twin", "crate"])
async def test_a_log_that_one_core_wrote_is_opened_by_the_other(order: tuple[object, ...]) -> None:
    machine = MetadataMachine()
    expected: dict[str, bytes] = {}
    for number, core in enumerate(order):
        machine.core = core  # type: ignore[assignment]
        store = await machine.start()
        assert await contents(store) == expected
        for key in range(20):
            expected[f"/{number}/{key:02}"] = b"%d" % key
            await store.put(f"/{number}/{key:02}", b"%d" % key)
        if number == 1:
            await store.snapshots.take()
        state = state_bytes(store)
        await machine.kill()
    machine.core = order[1]  # type: ignore[assignment]
    store = await machine.start()
    assert state_bytes(store) == state
    await store.close()
