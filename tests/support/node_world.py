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
from typing import Any, TypeVar

from icestream import errors, limits
from icestream.metadata import eraftpb
from icestream.metadata.eraftpb import Membership
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions
from icestream.runtime.tasks import Offload
from tests.chaos.history import OK, REFUSED, Operation
from tests.chaos.linearizability import violations
from tests.chaos.store_client import command_of
from tests.support.held_offload import HeldOffload
from tests.support.held_sink import HeldSink
from tests.support.node_group import GroupMember, NodeGroup

Answer = TypeVar("Answer")
WIDTH = 2
KINDS = ("get", "get", "put", "put", "delete", "cas", "txn")
GROUP_OPERATIONS = 40
UNDER_WAY_MAX = 6
VOTER, LEARNER = 0, 2  # of Node.change_members
VOTERS_MIN = 3


class SeededGroup(NodeGroup):
    """A network that the seed is unkind to."""

    def __init__(self, conf: Membership, chance: random.Random) -> None:
        super().__init__(conf)
        self.chance = chance
        self.is_kind = False

    def offload(self) -> Offload:
        return HeldOffload(delay=self.chance)

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
        """Runs the simulation; returns a digest of what clients saw and nodes stored."""
        for node_id in eraftpb.decode_conf(self.group.conf).voters:
            await self.group.start(node_id, HeldSink())
        for node_id in self._newcomers:
            await self.group.start(node_id, HeldSink(), conf=self.group.conf)
        for _ in range(steps):
            await self._step()
        await self._heal()
        assert violations(self.operations, WIDTH) == []
        (state,) = self.group.states()
        self.installs += sum(store.node.installs.count for store in self.group.stores.values())
        seen = [
            (operation.kind, operation.arguments, operation.outcome, operation.result, operation.revision)
            for operation in self.operations
        ]
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
            for victim in self.group.members.values():  # the power of all of them
                await self._crash(victim, power_loss=True)
        elif luck < 0.99:
            await self._boot(member)
        elif self.group.cuts and self.chance.random() < 0.7:
            self.group.cuts.clear()
        else:
            self.group.cuts.add((member.id, self.chance.choice(list(self.group.members))))

    def _sync(self, member: GroupMember, steps: int) -> None:
        if member.store is not None and isinstance(member.sink, HeldSink):
            for _ in range(steps):
                member.sink.step()
            member.store.node._on_news()

    async def _crash(self, member: GroupMember, *, power_loss: bool) -> None:
        if member.store is not None:
            self.crashes += 1
            self.installs += member.store.node.installs.count
            await self.group.kill(member.id, power_loss=power_loss)

    async def _boot(self, member: GroupMember) -> None:
        if member.store is None:
            await self.group.start(member.id, HeldSink())

    # --- members ---

    def _change_members(self) -> None:
        """The leader and two other nodes stay voters."""
        leader = self.group.leader
        if leader is None:
            return
        members = leader.node.members
        voters, changes = set(members.voters), dict[int, int]()
        for _ in range(self.chance.choice((1, 1, 2))):
            node_id = self.chance.choice(list(self.group.members))
            if node_id in changes or node_id == leader.node.id:
                continue
            if node_id in members.learners:
                changes[node_id] = VOTER
                voters.add(node_id)
            elif node_id not in voters or len(voters) > VOTERS_MIN:
                changes[node_id] = LEARNER
                voters.discard(node_id)
        self._propose_change(leader, changes)

    def _propose_change(self, leader: NodeStore, changes: dict[int, int]) -> None:
        def done(answer: asyncio.Future[Any]) -> None:
            self.changes += not answer.cancelled() and answer.exception() is None

        if changes:
            with contextlib.suppress(errors.IcestreamError):
                proposed = leader.node.change_members([(kind, node_id) for node_id, kind in changes.items()])
                proposed.add_done_callback(done)

    def _hand_over(self) -> None:
        leader = self.group.leader
        if leader is not None:
            leader.node.transfer(self.chance.choice(list(self.group.members)))

    def _let_in_all(self) -> None:
        """Adds all nodes as members, so that in the end all must have the same state."""
        leader = self.group.leader
        if leader is None or leader.node.members.voters_outgoing:
            return
        present = {*leader.node.members.voters, *leader.node.members.learners}
        missing = self.group.members.keys() - present
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
        operation = Operation(0, kind, number // GROUP_OPERATIONS, arguments[kind], self.now)
        self.operations.append(operation)
        task = asyncio.get_running_loop().create_task(self._execute(chance.choice(stores), operation))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _execute(self, store: NodeStore, operation: Operation) -> None:
        keys = [f"/{operation.group}/{place}" for place in range(WIDTH)]
        try:
            if operation.kind == "get":
                entry = await store.get(keys[operation.arguments[0]])
                operation.result, operation.revision = (entry.value, entry.mod_revision) if entry else (None, 0)
            else:
                done = await store._done(command_of(operation.kind, keys, operation.arguments))
                operation.result, operation.revision = (
                    (done.held if operation.kind in ("cas", "txn") else None),
                    done.revision,
                )
            operation.outcome = OK
        except errors.NotReady:
            operation.outcome = REFUSED
        except errors.IcestreamError:
            return
        self.now += 1
        operation.completed = self.now

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
