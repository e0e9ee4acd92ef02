"""Leases with several voters: renewals keep a lease under any leader, and write nothing (hazard 46)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icestream import errors
from icestream.metadata import command as cmd
from icestream.metadata.node_store import NodeStore
from icestream.metadata.raft_core import has_raft_core
from tests.support.node_group import NodeGroup

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]
TTL_MS = 2_000
MS = 1_000_000


@pytest_asyncio.fixture
async def group() -> AsyncIterator[NodeGroup]:
    node_group = await NodeGroup.form(3)
    yield node_group
    await node_group.close()


async def take(group: NodeGroup, store: NodeStore, key: str = "/lease") -> int:
    done: cmd.Done = await group.do(store.put_lease(cmd.Absent(key), b"", TTL_MS))
    assert done.held
    return done.revision


async def pass_time(group: NodeGroup, milliseconds: int) -> None:
    end_ns = group.clock.monotonic_ns() + milliseconds * MS
    while group.clock.monotonic_ns() < end_ns:
        await group.tick()


def is_there(group: NodeGroup, key: str = "/lease") -> bool:
    return group.led.node.machine.get(key) is not None


async def test_hazard_46_renewals_through_any_node_write_nothing(group: NodeGroup) -> None:
    revision = await take(group, group.followers[0])
    await group.settle()
    marks = [(store.node.applied_index, store.node._log.plan.planned_bytes) for store in group.stores.values()]
    for _ in range(5):
        for store in group.stores.values():
            assert await group.do(store.renew("/lease", revision))
            await pass_time(group, TTL_MS // 2)
    assert is_there(group)
    assert [(store.node.applied_index, store.node._log.plan.planned_bytes) for store in group.stores.values()] == marks
    await pass_time(group, TTL_MS + 200)
    assert not is_there(group)
    for store in group.stores.values():
        assert not await group.do(store.renew("/lease", revision))


async def test_a_lease_outlives_its_leader_and_ends_without_renewals(group: NodeGroup) -> None:
    holder = group.followers[0]
    revision = await take(group, holder)
    for _ in range(6):
        await pass_time(group, TTL_MS // 2)
        renewed_ns = group.clock.monotonic_ns()
        assert await group.do(holder.renew("/lease", revision))
    assert group.led.node.machine.leases["/lease"].deadline_ms < group.led.node.machine.time_ms + 3 * TTL_MS
    await group.kill(group.led.node.id)
    await group.until(lambda: group.leader is not None)
    while group.clock.monotonic_ns() < renewed_ns + TTL_MS * MS:
        assert is_there(group)
        await group.tick()
    assert await group.do(holder.renew("/lease", revision)), "it is the same lease for the new leader"
    await pass_time(group, TTL_MS + 200)
    assert not is_there(group)


async def test_a_deposed_leader_renews_no_lease(group: NodeGroup) -> None:
    """A deposed leader would confirm renewals for ever, while the new leader grants the lease to another holder."""
    old = group.led
    revision = await take(group, old)
    others = [store for store in group.stores.values() if store is not old]
    group.cuts = {(old.node.id, 0), (0, old.node.id)}
    renewals = [asyncio.ensure_future(old.renew("/lease", revision)) for _ in range(3)]
    await group.until(lambda: any(store.node.leads for store in others))
    new = next(store for store in others if store.node.leads)
    await group.until(lambda: new.node.machine.get("/lease") is None)
    assert not any(renewal.done() and not renewal.exception() and renewal.result() for renewal in renewals)
    await take(group, new)
    group.cuts.clear()
    assert not any(await group.do(asyncio.gather(*renewals)))


async def test_a_lease_whose_end_is_proposed_is_not_renewed(group: NodeGroup) -> None:
    leader = group.led
    revision = await take(group, leader)
    await group.settle()
    term, applied = leader.node._term, leader.node.applied_index
    group.hold = lambda sender, message: sender != leader.node.id and leader.node.status()["last"] > applied
    while leader.node.status()["last"] == applied:
        await group.tick()
    assert is_there(group), "the end is in the log and not in force"
    group.hold = lambda sender, message: False
    assert not await group.do(leader.renew("/lease", revision))
    await group.until(lambda: not is_there(group))
    assert leader.node._term == term


async def test_hazard_25_a_renewal_that_was_not_noted_is_not_confirmed_when_the_end_is_refused(
    group: NodeGroup,
) -> None:
    """The leader ends the lease next time it looks: its holder must not think that it has it for its whole time."""
    leader = group.led
    revision = await take(group, leader)
    assert leader._leases is not None
    with leader._leases.ending([("/lease", revision)]):  # until that is refused: no room, or the lead goes elsewhere
        renewal = asyncio.ensure_future(leader.renew_here("/lease", revision))
        await asyncio.sleep(0)
    assert leader._leases.is_held("/lease", revision)
    assert not await group.do(renewal)
    assert await group.do(leader.renew_here("/lease", revision)), "the next one is noted"


async def test_a_single_node_gives_a_lease_its_whole_time_after_a_restart() -> None:
    group = await NodeGroup.form(1)
    revision = await take(group, group.led)
    await pass_time(group, TTL_MS // 2)
    assert await group.do(group.led.renew("/lease", revision))
    await pass_time(group, TTL_MS - 200)
    await group.kill(1)
    await group.start(1)
    await group.until(lambda: group.leader is not None)
    await pass_time(group, TTL_MS - 200)
    assert await group.do(group.led.renew("/lease", revision))
    await pass_time(group, TTL_MS + 200)
    assert not is_there(group)
    await group.close()


# --- any history ------------------------------------------------------------------------------------------------------


class LeaseHolder:
    """Has one lease as long as it can, and knows until when: measured from before it asked."""

    def __init__(self, group: NodeGroup, number: int, chance: random.Random) -> None:
        self._group = group
        self._chance = chance
        self.key = f"/lease/{number}"
        self.revision = 0
        self.until_ns = 0
        self.renewals = self.takes = 0

    async def run(self) -> None:
        while True:
            await self._group.clock.sleep(self._chance.uniform(0.1, 0.9) * TTL_MS / 1000)
            stores = list(self._group.stores.values())
            if not stores:
                continue
            sent_ns = self._group.clock.monotonic_ns()
            try:
                if await self._ask(self._chance.choice(stores)):
                    self.until_ns = sent_ns + TTL_MS * MS
            except errors.IcestreamError:
                continue

    async def _ask(self, store: NodeStore) -> bool:
        if self.revision:
            is_renewed = await store.renew(self.key, self.revision)
            self.renewals += is_renewed
            self.revision = self.revision if is_renewed else 0
            return is_renewed
        done = await store.put_lease(cmd.Absent(self.key), b"", TTL_MS)
        self.revision = done.revision if done.held else 0
        self.takes += done.held
        return done.held

    def check(self) -> None:
        """No other node may consider the lease expired while its holder still relies on it."""
        if self._group.clock.monotonic_ns() >= self.until_ns:
            return
        for store in self._group.stores.values():
            if store.node.machine.revision >= self.revision:
                assert store.node.machine.get(self.key) is not None, f"{self.key} died while it was held"


@pytest.mark.parametrize("seed", range(12))
async def test_no_renewed_lease_expires_in_any_history(seed: int) -> None:
    chance = random.Random(seed)
    group = await NodeGroup.form(3)
    holders = [LeaseHolder(group, number, chance) for number in range(3)]
    tasks = [asyncio.ensure_future(holder.run()) for holder in holders]
    for _ in range(1_500):
        await group.tick()
        for holder in holders:
            holder.check()
        luck = chance.random()
        if luck < 0.005 and group.stores:
            await group.kill(chance.choice(list(group.stores)), power_loss=True)
        elif luck < 0.02 and len(group.stores) < 3:
            await group.start(next(number for number in (1, 2, 3) if number not in group.stores))
        elif luck < 0.03:
            group.cuts = {(chance.randint(0, 3), chance.randint(0, 3)) for _ in range(chance.randint(0, 2))}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(holder.renewals for holder in holders) > 20
    assert sum(holder.takes for holder in holders) >= 3
    await group.close()
