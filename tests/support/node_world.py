"""Whole nodes in one process (driver, core, log, snapshots): clock, network, disks and failures follow from one seed.

    network    messages overtake each other, come twice, or never; links are cut one way
    disk       a write and its sync are two steps; a power loss between them leaves any of the written sectors. Files of
               snapshots are made and read while everything else goes on
    members    come as learners, become voters and learners again, one or two in a change; the lead is handed over
    clients    put, get, delete, compare-and-swap and transactions at any node; what they saw must be linearizable
When all is whole again, all nodes come to the same state, and to the same snapshot bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable
from typing import Any, TypeVar

from icestream import errors, limits
from icestream.metadata import eraftpb
from icestream.metadata.eraftpb import Membership
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions
from icestream.runtime.tasks import Offload
from tests.chaos.door import command_of
from tests.chaos.history import OK, REFUSED, Operation
from tests.chaos.linearizability import violations
from tests.support.node_group import Member, NodeGroup
from tests.support.stepped_sink import SteppedSink

Answer = TypeVar("Answer")
WIDTH = 2
KINDS = ("get", "get", "put", "put", "delete", "cas", "txn")
GROUP_OPERATIONS = 40
UNDER_WAY_MAX = 6
VOTER, LEARNER = 0, 2  # of Node.change_members
VOTERS_MIN = 3


class LateOffload:
    """A thread that is slow: some turns pass before a call, and before its answer. One call at a time, in order."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._turn = asyncio.Lock()

    async def run(self, call: Callable[[], Answer]) -> Answer:
        async with self._turn:
            await self._pass()
            answer = call()
        await self._pass()
        return answer

    async def _pass(self) -> None:
        for _ in range(self._chance.choice((0, 1, 2, 10, 40))):
            await asyncio.sleep(0)

    def close(self) -> None:
        """Nothing is left to do."""


class SeededGroup(NodeGroup):
    """A network that the seed is unkind to."""

    def __init__(self, conf: Membership, chance: random.Random) -> None:
        super().__init__(conf)
        self.chance = chance
        self.is_kind = False

    def offload(self) -> Offload:
        return LateOffload(self.chance)

    async def _deliver(self) -> None:
        bag, self.network = self.network, []
        if not self.is_kind:
            self.chance.shuffle(bag)
        for sender, message in bag:
            luck = 0.5 if self.is_kind else self.chance.random()
            if luck < 0.05:
                self._lost(sender, message)
                continue
            self.network.append((sender, message))
            if luck > 0.95 and not message.is_snapshot:
                self.network.append((sender, message))
        await super()._deliver()


class NodeWorld:
    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.chance = random.Random(seed)
        self.group = SeededGroup(Membership(tuple(range(1, nodes + 1))), self.chance)
        self.group.options = MetadataOptions(log_file_bytes=64 * limits.KIB, snapshot_every_entries=25)
        self.operations: list[Operation] = []
        self.under_way: set[asyncio.Task[None]] = set()
        self.now = 0
        self._newcomers = (nodes + 1, nodes + 2)  # of no cluster yet
        self.crashes = self.installs = self.changes = 0

    async def run(self, steps: int) -> str:
        """Everything that clients saw and the nodes hold, in a few bytes."""
        for node_id in eraftpb.decode_conf(self.group.conf).voters:
            await self.group.start(node_id, SteppedSink())
        for node_id in self._newcomers:
            await self.group.start(node_id, SteppedSink(), conf=self.group.conf)
        for _ in range(steps):
            await self._step()
        await self._heal()
        assert violations(self.operations, WIDTH) == []
        (state,) = self.group.states()
        self.installs += sum(store.node.installs.count for store in self.group.stores.values())
        seen = [(one.kind, one.arguments, one.outcome, one.result, one.revision) for one in self.operations]
        await self.group.close()
        return hashlib.sha256(repr(seen).encode() + state).hexdigest()

    async def _step(self) -> None:
        luck = self.chance.random()
        member = self.chance.choice(list(self.group.members.values()))
        if luck < 0.08:
            await self.group.tick(turns=self.chance.randint(0, 2))
        elif luck < 0.50:
            self._sync(member, self.chance.choice((1, 1, 1, 3, 8)))  # often between a write and its sync
        elif luck < 0.75:
            await self.group.turn()
        elif luck < 0.951:
            self._ask()
        elif luck < 0.961:
            self._change_members()
        elif luck < 0.965:
            self._hand_over()
        elif luck < 0.969:
            await self._crash(member, power_loss=self.chance.random() < 0.7)
        elif luck < 0.970:
            for one in self.group.members.values():  # the power of all of them
                await self._crash(one, power_loss=True)
        elif luck < 0.99:
            await self._boot(member)
        elif self.group.cuts and self.chance.random() < 0.7:
            self.group.cuts.clear()
        else:
            self.group.cuts.add((member.id, self.chance.choice(list(self.group.members))))

    def _sync(self, member: Member, steps: int) -> None:
        if member.store is not None and isinstance(member.sink, SteppedSink):
            for _ in range(steps):
                member.sink.step()
            member.store.node._on_news()

    async def _crash(self, member: Member, *, power_loss: bool) -> None:
        if member.store is not None:
            self.crashes += 1
            self.installs += member.store.node.installs.count
            await self.group.kill(member.id, power_loss=power_loss)

    async def _boot(self, member: Member) -> None:
        if member.store is None:
            await self.group.start(member.id, SteppedSink())

    # --- members ---

    def _change_members(self) -> None:
        """Who leads stays a voter, and two others do."""
        leader = self.group.leader
        if leader is None:
            return
        members = leader.node.members
        voters, changes = set(members.voters), dict[int, int]()
        for _ in range(self.chance.choice((1, 1, 2))):
            one = self.chance.choice(list(self.group.members))
            if one in changes or one == leader.node.id:
                continue
            if one in members.learners:
                changes[one] = VOTER
                voters.add(one)
            elif one not in voters or len(voters) > VOTERS_MIN:
                changes[one] = LEARNER
                voters.discard(one)
        self._propose_change(leader, changes)

    def _propose_change(self, leader: NodeStore, changes: dict[int, int]) -> None:
        def done(answer: asyncio.Future[Any]) -> None:
            self.changes += not answer.cancelled() and answer.exception() is None

        if changes:
            with contextlib.suppress(errors.IcestreamError):
                proposed = leader.node.change_members([(kind, one) for one, kind in changes.items()])
                proposed.add_done_callback(done)

    def _hand_over(self) -> None:
        leader = self.group.leader
        if leader is not None:
            leader.node.transfer(self.chance.choice(list(self.group.members)))

    def _let_in_all(self) -> None:
        """So that in the end everybody has to have the same state."""
        leader = self.group.leader
        if leader is None or leader.node.members.voters_outgoing:
            return
        known = {*leader.node.members.voters, *leader.node.members.learners}
        missing = self.group.members.keys() - known
        self._propose_change(leader, dict.fromkeys(sorted(missing)[:1], LEARNER))

    # --- clients ---

    def _ask(self) -> None:
        stores = list(self.group.stores.values())
        if not stores or len(self.under_way) >= UNDER_WAY_MAX:
            return
        chance, number = self.chance, len(self.operations)
        place, kind = chance.randrange(WIDTH), chance.choice(KINDS)
        expected = b"%d" % chance.randrange(number + 1) if chance.random() < 0.6 else None
        arguments: dict[str, tuple[Any, ...]] = {
            "get": (place,),
            "put": (place, b"%d" % number),
            "delete": (place,),
            "cas": (place, expected, b"%d" % number),
            "txn": (place, expected, chance.randrange(WIDTH), b"%d" % number, b"-%d" % number),
        }
        self.now += 1
        one = Operation(0, kind, number // GROUP_OPERATIONS, arguments[kind], self.now)
        self.operations.append(one)
        task = asyncio.get_running_loop().create_task(self._carry_out(chance.choice(stores), one))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _carry_out(self, store: NodeStore, one: Operation) -> None:
        keys = [f"/{one.group}/{place}" for place in range(WIDTH)]
        try:
            if one.kind == "get":
                entry = await store.get(keys[one.arguments[0]])
                one.result, one.revision = (entry.value, entry.mod_revision) if entry else (None, 0)
            else:
                done = await store._done(command_of(one.kind, keys, one.arguments))
                one.result, one.revision = (done.held if one.kind in ("cas", "txn") else None), done.revision
            one.outcome = OK
        except errors.NotReady:
            one.outcome = REFUSED
        except errors.IcestreamError:
            return
        self.now += 1
        one.completed = self.now

    # --- the end ---

    async def _heal(self) -> None:
        self.group.cuts.clear()
        self.group.is_kind = True
        for member in self.group.members.values():
            await self._boot(member)
        for _ in range(2_000):
            for member in self.group.members.values():
                self._sync(member, 100)
            self._let_in_all()
            await self.group.tick()
            stores = self.group.stores.values()
            applied = {store.node.applied_index for store in stores}
            is_still = not any(store.snapshots.is_running for store in stores)
            if not self.under_way and self.group.is_ready and is_still and len(applied) == 1:
                return
        stands = [(store.node.id, store.node.applied_index, store.stopped) for store in self.group.stores.values()]
        raise AssertionError(f"the nodes do not come together: {stands}, {len(self.under_way)} operations under way")
