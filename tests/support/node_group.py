"""Several nodes of the metadata store in one process: real driver, core, log, store; simulated disks, clock, network.

    group = await NodeGroup.form(3)        voters 1, 2, 3, one of them leads
    await group.run()                      until nothing is under way; a tick moves the clock and all timers
What each node has confirmed is remembered (ADR 45): a start that shows less than that fails, whatever the disk did.
Messages go from node to node through `network`, which a test may cut, hold or look at. A snapshot is copied as a file,
whole, before the message that speaks of it is delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from icestream import errors, limits
from icestream.cluster.promises import NONE, confirmed, present
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb
from icestream.metadata.core import Core, RaftMessage
from icestream.metadata.eraftpb import Membership
from icestream.metadata.log_format import Identity, Promise
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions, OpenedMetadata, open_on
from icestream.metadata.raft_core import RaftCore
from icestream.metadata.snapshot import encode_snapshot
from icestream.metadata.snapshot_file import SnapshotHead, StoredSnapshot, received_name, snapshot_of
from icestream.metadata.watermark import MemoryWatermark
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.runtime.tasks import InlineOffload, Offload
from icestream.wal.sink import InlineSink, Sink
from tests.support.held_sink import HeldSink

CLUSTER = bytes([7] * 16)
OPTIONS = MetadataOptions(log_file_bytes=64 * limits.KIB, snapshot_every_bytes=2**40)
TURNS_MAX = 2_000


class GroupMember:
    """One node: its disk outlives its store."""

    def __init__(self, node_id: int, conf: bytes) -> None:
        self.id = node_id
        self.first_conf = conf
        self.disk = SimulatedDisk(node_id)
        self.sink: Sink | None = None
        self.lives = 0
        self.store: NodeStore | None = None
        self.watermark = MemoryWatermark()

    @property
    def up(self) -> NodeStore:
        assert self.store is not None
        return self.store


class NodeGroup:
    def __init__(self, conf: Membership) -> None:
        self.clock = SimulatedClock()
        self.options = OPTIONS
        self.conf = eraftpb.encode_conf(conf)
        self.members: dict[int, GroupMember] = {}
        self.network: list[tuple[int, RaftMessage]] = []
        self.cuts: set[tuple[int, int]] = set()
        self.hold: Callable[[int, RaftMessage], bool] = lambda sender, message: False
        self.sent: list[tuple[int, RaftMessage]] = []
        self.forwarded = 0
        self.remembered: dict[int, Promise] = {}
        self.lose_answers = 0  # of so many forwarded commands the answer is lost

    @classmethod
    async def form(cls, count: int, **options: Any) -> NodeGroup:
        group = cls(Membership(tuple(range(1, count + 1))))
        if options:
            group.options = MetadataOptions(log_file_bytes=64 * limits.KIB, **options)
        for node_id in range(1, count + 1):
            await group.start(node_id)
        await group.until(lambda: group.is_ready)
        return group

    # --- lives ---

    def offload(self) -> Offload:
        """The offload with which a node makes and reads its files."""
        return InlineOffload()

    async def start(self, node_id: int, sink: Sink | None = None, conf: bytes | None = None) -> NodeStore:
        member = self.members.setdefault(node_id, GroupMember(node_id, self.conf if conf is None else conf))
        member.lives += 1
        member.sink = sink or InlineSink()
        randomness = SeededRandomness(1000 * node_id + member.lives)
        opened = await open_on(
            member.disk, self.clock, randomness, member.sink, self.options, lambda name: self.offload(),
            lambda: member.watermark,
        )  # fmt: skip
        if opened.identity is None:
            opened.log.plan.identity = Identity(node_id, CLUSTER, member.first_conf)
            opened.identity = opened.log.plan.identity
        return self._start(member, opened, randomness)

    def _start(self, member: GroupMember, opened: OpenedMetadata, randomness: SeededRandomness) -> NodeStore:
        def core(*arguments: Any) -> Core:
            return RaftCore(randomness, *arguments)

        member.store = opened.start(core)
        node = member.store.node
        remembered = self.remembered.get(member.id, NONE)
        assert present(node.status()) >= remembered, "a log that forgot nothing is taken for one that did"
        node.send = partial(self._send, member.id)
        # as ClusterNode: a new learner takes no snapshot that does not know it (trap 14)
        node.on_members = lambda: node.request_snapshot() if opened.log.snapshots else None
        member.store.forward = partial(self._forward, member.id)
        member.store.forward_renewal = partial(self._forward_renewal, member.id)
        return member.store

    async def kill(self, node_id: int, *, power_loss: bool = False) -> None:
        member = self.members[node_id]
        self.remember()
        store, member.store = member.up, None
        store.node.send = lambda _: None
        store.node.on_leading = lambda _: None
        store.node._stop(errors.LogStopped("killed"))
        await store.node.tasks.stop()
        if power_loss:
            member.disk.power_loss()
        else:
            member.disk.kill()

    def remember(self) -> None:
        """Notes what every node has confirmed about itself, and what a leader has heard from the others."""
        for node_id, store in self.stores.items():
            promises = {node_id: store.node.writes.promise, **confirmed(store.node.status(), node_id)}
            for other, promise in promises.items():
                self.remembered[other] = max(promise, self.remembered.get(other, NONE))

    # --- network ---

    def _send(self, sender: int, messages: list[RaftMessage]) -> None:
        self.network += [(sender, message) for message in messages]
        self.sent += [(sender, message) for message in messages]

    def is_cut(self, sender: int, to: int) -> bool:
        return bool({(sender, to), (0, to), (sender, 0)} & self.cuts)

    async def _deliver(self) -> None:
        bag, self.network = self.network, []
        for sender, message in bag:
            if self.hold(sender, message):
                self.network.append((sender, message))
                continue
            target = self.members.get(message.to)
            if target is None or target.store is None or self.is_cut(sender, message.to):
                self._lost(sender, message)
                continue
            if message.is_snapshot:
                await self._install(sender, target, message)
            else:
                target.up.node.receive([message.data])

    async def _install(self, sender: int, target: GroupMember, message: RaftMessage) -> None:
        """A stream ends with either of its ends."""
        source, store = self.members[sender].up, target.up
        snapshot_name = snapshot_of(eraftpb.snapshot_in(message.data).data)[0]
        stored = next((snapshot for snapshot in source.node._log.snapshots if snapshot.name == snapshot_name), None)
        if stored is None:  # a newer one has replaced it
            self._lost(sender, message)
            return
        is_whole = False
        try:
            name = await self._copy_snapshot(stored, sender, store)
            is_whole = target.store is store and store.stopped is None
        finally:
            source.node.snapshot_sent(target.id, succeeded=is_whole)
        if is_whole:
            store.node.receive([message.data])
            await store.node._log.release_received(name)

    def _lost(self, sender: int, message: RaftMessage) -> None:
        source = self.members[sender].store
        if source is not None:
            source.node.unreachable(message.to)
            if message.is_snapshot:
                source.node.snapshot_sent(message.to, succeeded=False)

    async def _copy_snapshot(self, stored: StoredSnapshot, sender: int, to: NodeStore) -> str:
        data = self.members[sender].disk.content(stored.name)[512:]
        log = to.node._log
        head = SnapshotHead(stored.head.index, stored.head.term, log.log_id, stored.head.conf)
        writer = await log.begin_received(head)
        await log.add_received(writer, bytes(data))
        name = received_name(snapshot_of(stored.descriptor)[0])
        await log.finish_received(writer, name)
        return name

    async def _forward(self, sender: int, leader: int, envelope: bytes) -> cmd.Answer:
        self.forwarded += 1
        target = self.members[leader].store
        if target is None or self.is_cut(sender, leader):
            raise errors.ConnectionLost("cut")
        request = cmd.decode_envelope(envelope)
        answer = await target.propose(request.command, request.client, request.sequence)
        target.node.commit_notice.send_now()
        if self.is_cut(leader, sender) or self.lose_answers > 0:
            self.lose_answers -= 1
            raise errors.ConnectionLost("cut on the way back")
        return answer

    async def _forward_renewal(self, sender: int, leader: int, key: str, revision: int) -> bool:
        target = self.members[leader].store
        if target is None or self.is_cut(sender, leader):
            raise errors.ConnectionLost("cut")
        is_renewed = await target.renew_here(key, revision)
        if self.is_cut(leader, sender):
            raise errors.ConnectionLost("cut on the way back")
        return is_renewed

    # --- time ---

    @property
    def stores(self) -> dict[int, NodeStore]:
        return {node_id: member.store for node_id, member in self.members.items() if member.store is not None}

    @property
    def leader(self) -> NodeStore | None:
        leading = [store for store in self.stores.values() if store.node.leads]
        return max(leading, key=lambda store: store.node._term) if leading else None

    @property
    def led(self) -> NodeStore:
        assert self.leader is not None
        return self.leader

    @property
    def followers(self) -> list[NodeStore]:
        return [store for store in self.stores.values() if not store.node.leads]

    @property
    def is_ready(self) -> bool:
        return self.leader is not None and all(store.is_ready for store in self.stores.values())

    async def turn(self) -> None:
        """Lets everything happen that needs no time."""
        for _ in range(3):
            await asyncio.sleep(0)
        await self._deliver()
        for member in self.members.values():
            if isinstance(member.sink, HeldSink):
                continue
            if member.store is not None:
                member.store.node._on_news()

    async def tick(self, *, turns: int = 4) -> None:
        self.clock.advance(limits.METADATA_TICK_SECONDS)
        for store in self.stores.values():
            store.node.tick()
        for _ in range(turns):
            await self.turn()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if is_reached():
                return
            await self.tick()
        raise AssertionError("it never happened")

    async def do(self, work: Awaitable[Any]) -> Any:
        """The result of a call, while time passes."""
        task = asyncio.ensure_future(work)
        await self.until(task.done)
        return task.result()

    async def outcome(self, work: Awaitable[Any]) -> Any:
        try:
            return await self.do(work)
        except errors.IcestreamError as error:
            return error

    async def settle(self) -> None:
        """Waits until all nodes have applied the same entries."""
        await self.until(lambda: len({store.node.applied_index for store in self.stores.values()}) == 1)

    def states(self) -> set[bytes]:
        return {encode_snapshot(store.node.machine) for store in self.stores.values()}

    async def close(self) -> None:
        for node_id in tuple(self.stores):
            await self.kill(node_id)
