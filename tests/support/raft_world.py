"""Several consensus cores in one process: clock, network, disks and failures follow from one seed.

    clock      a node ticks when the seed says so; no two clocks agree
    network    a message waits, in a bag: it may overtake others, come twice, or never; links may be cut one way
    disk       what was written is on it once it is synced; a crash forgets the rest. A sync covers the oldest writes
    state      a hash over all that was applied, in order: equal hashes mean equal histories

What must hold, at every step: a term has one leader; an entry that was applied anywhere is the same everywhere; nothing
is applied twice or left out; a read is answered from a state that holds everything acked before it was asked. When all
is whole again, all nodes come to the same state.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from icestream.metadata import eraftpb
from icestream.metadata.core import HardState, RaftMessage, Ready, Role
from icestream.metadata.eraftpb import LogEntry, Membership, SnapshotParts
from icestream.metadata.raft_core import RaftCore
from icestream.runtime.randomness import SeededRandomness

ELECTION_TICK: Final = 10
SNAPSHOT_EVERY: Final = 15
NETWORK_MAX: Final = 400
NOTHING: Final = HardState(0, 0, 0)


@dataclass
class SimulatedRaftDisk:
    """The disk of a simulated node: what is left after a crash."""

    hard_state: HardState = NOTHING
    entries: dict[int, bytes] = field(default_factory=dict)
    snapshot: bytes | None = None

    def store(self, hard_state: HardState | None, entries: list[tuple[int, bytes]], snapshot: bytes | None) -> None:
        if snapshot is not None:
            self.take_snapshot(snapshot)
            self.entries.clear()
        if entries:
            first = entries[0][0]
            self.entries = {index: data for index, data in self.entries.items() if index < first}
            self.entries.update(entries)
        if hard_state is not None:
            self.hard_state = hard_state

    def take_snapshot(self, snapshot: bytes) -> None:
        self.snapshot = snapshot
        index = eraftpb.decode_snapshot(snapshot).index
        self.entries = {at: data for at, data in self.entries.items() if at > index}


@dataclass
class RaftWrite:
    ready: Ready
    hard_state: HardState | None


class SimulatedNode:
    def __init__(self, world: RaftWorld, node_id: int, conf: bytes) -> None:
        self.world = world
        self.id = node_id
        self.first_conf = conf
        self.disk = SimulatedRaftDisk()
        self.lives = 0
        self.is_up = False
        self.boot()

    def boot(self) -> None:
        self.lives += 1
        self.is_up = True
        self.writes: list[RaftWrite] = []
        parts = eraftpb.decode_snapshot(self.disk.snapshot) if self.disk.snapshot else SnapshotParts(0, 0, b"", b"")
        self.applied, self.state = parts.index, parts.data
        self.conf = parts.conf or self.first_conf
        self.core = RaftCore(
            SeededRandomness(self.world.seed * 1000 + self.id * 100 + self.lives),
            self.id,
            ELECTION_TICK,
            1,
            self.disk.hard_state,
            self.conf,
            [self.disk.entries[index] for index in sorted(self.disk.entries)],
            self.disk.snapshot,
            parts.index,
        )
        self.pump()

    def crash(self) -> None:
        self.is_up = False
        self.writes = []

    @property
    def role(self) -> int:
        return self.core.status()["role"]

    def pump(self) -> None:
        """Does everything that the core requests, except what waits for the disk."""
        while (ready := self.core.ready()) is not None:
            if ready.soft_state is not None and ready.soft_state.role == Role.LEADER:
                self.world.check_leader(self.core.status()["term"], self.id)
            self.world.send(self.id, ready.send_now)
            self.writes.append(RaftWrite(ready, ready.hard_state if ready.must_sync else None))
            if ready.snapshot is not None:
                self._install(eraftpb.decode_snapshot(ready.snapshot))
            for entry in ready.committed:
                self._apply(entry)
            for read in ready.reads:
                self.world.check_read(read.index, read.context)
            if self.world.plant == "acked before the sync" and self.writes:
                self._persist(len(self.writes), is_stored=False)

    def _install(self, parts: SnapshotParts) -> None:
        assert parts.index > self.applied, "a snapshot of the past"
        self.applied, self.state, self.conf = parts.index, parts.data, parts.conf
        self.world.installs += 1

    def _apply(self, entry: LogEntry) -> None:
        assert entry.index == self.applied + 1, f"node {self.id} applies {entry.index} after {self.applied}"
        self.world.check_applied(entry)
        self.applied = entry.index
        if entry.kind == eraftpb.NORMAL:
            self.state = hashlib.sha256(self.state + entry.data).digest()
        else:
            self.conf = self.core.apply_conf(entry.kind, entry.data)
        self.core.applied(entry.index)
        if entry.index % SNAPSHOT_EVERY == 0:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        """Takes a snapshot as the driver does: it is on disk before the log below it is dropped."""
        if self.writes and self.world.plant is None:
            self._persist(len(self.writes))
        snapshot = self.core.snapshot(self.applied, self.conf, self.state)
        self.disk.take_snapshot(snapshot)
        self.core.compact(max(self.applied - 3, 0))

    def sync(self, count: int) -> None:
        self._persist(count)
        self.pump()

    def _persist(self, count: int, *, is_stored: bool = True) -> None:
        done, self.writes = self.writes[:count], self.writes[count:]
        if not done:
            return
        for write in done:
            if is_stored:
                hard_state = write.hard_state
                if self.world.plant == "the vote is not stored" and hard_state is not None:
                    hard_state = hard_state._replace(term=self.disk.hard_state.term, vote=self.disk.hard_state.vote)
                self.disk.store(hard_state, write.ready.entries, write.ready.snapshot)
            self.world.send(self.id, write.ready.send_after)
        self.core.persisted(done[-1].ready.number)


class RaftWorld:
    def __init__(self, seed: int, nodes: int = 3, plant: str | None = None) -> None:
        self.seed = seed
        self.plant = plant
        self.random = random.Random(seed)
        self.network: list[tuple[int, RaftMessage]] = []
        self.cuts: set[tuple[int, int]] = set()
        self.leaders: dict[int, int] = {}
        self.log: dict[int, tuple[int, bytes]] = {}
        self.read_floors: dict[bytes, int] = {}
        self.proposed = self.crashes = self.installs = self.answered = 0
        conf = eraftpb.encode_conf(Membership(tuple(range(1, nodes + 1))))
        self.nodes = {node_id: SimulatedNode(self, node_id, conf) for node_id in range(1, nodes + 1)}

    # --- what must hold ---

    def check_leader(self, term: int, node_id: int) -> None:
        assert self.leaders.setdefault(term, node_id) == node_id, f"term {term} has two leaders"

    def check_applied(self, entry: LogEntry) -> None:
        content = (entry.term, entry.data)
        assert self.log.setdefault(entry.index, content) == content, f"entry {entry.index} has two contents"

    def check_read(self, index: int, context: bytes) -> None:
        self.answered += 1
        assert index >= self.read_floors[context], f"a read of state {index} misses {self.read_floors[context]}"

    # --- what happens ---

    def send(self, sender: int, messages: list[RaftMessage]) -> None:
        self.network.extend((sender, message) for message in messages)
        while len(self.network) > NETWORK_MAX:
            self._drop(self.random.randrange(len(self.network)))

    def _drop(self, at: int) -> None:
        sender, message = self.network.pop(at)
        if message.is_snapshot and self.nodes[sender].is_up:
            self.nodes[sender].core.report_snapshot(message.to, False)

    def step(self) -> None:
        chance = self.random.random()
        node = self.random.choice(list(self.nodes.values()))
        for limit, do in self._events:
            if chance < limit:
                do(self, node)
                return

    def _tick(self, node: SimulatedNode) -> None:
        if node.is_up:
            node.core.tick()
            node.pump()

    def _deliver(self, node: SimulatedNode) -> None:
        if not self.network:
            return
        at = self.random.randrange(len(self.network))
        sender, message = self.network[at]
        if self.random.random() < 0.05 or (sender, message.to) in self.cuts or not self.nodes[message.to].is_up:
            self._drop(at)
            return
        if self.random.random() > 0.05:  # else it comes once more
            self.network.pop(at)
        receiver = self.nodes[message.to]
        receiver.core.step(message.data)
        if message.is_snapshot and self.nodes[sender].is_up:
            self.nodes[sender].core.report_snapshot(message.to, True)
        receiver.pump()

    def _sync(self, node: SimulatedNode) -> None:
        if node.is_up and node.writes:
            node.sync(self.random.randint(1, len(node.writes)))

    def _propose(self, node: SimulatedNode) -> None:
        if node.is_up and node.role == Role.LEADER:
            self.proposed += 1
            node.core.propose([b"%d" % self.proposed])
            node.pump()

    def _read(self, node: SimulatedNode) -> None:
        """Starts a linearizable read; it must see every entry that was applied anywhere, for it may have been acked."""
        if node.is_up and node.role == Role.LEADER:
            context = b"read %d" % len(self.read_floors)
            self.read_floors[context] = max(self.log, default=0)
            node.core.read_index(context)
            node.pump()

    def _crash(self, node: SimulatedNode) -> None:
        if node.is_up:
            self.crashes += 1
            node.crash()

    def _boot(self, node: SimulatedNode) -> None:
        if not node.is_up:
            node.boot()

    def _cut(self, node: SimulatedNode) -> None:
        if self.cuts and self.random.random() < 0.6:
            self.cuts.clear()
        else:
            self.cuts.add((node.id, self.random.choice(list(self.nodes))))

    _events: tuple[tuple[float, Callable[[RaftWorld, SimulatedNode], None]], ...] = (
        (0.25, _tick), (0.70, _deliver), (0.90, _sync), (0.96, _propose),
        (0.98, _read), (0.985, _crash), (0.995, _boot), (1.0, _cut),
    )  # fmt: skip

    # --- the end ---

    def run(self, steps: int) -> str:
        """Runs the simulation; returns a digest of everything that happened."""
        for _ in range(steps):
            self.step()
        self._heal()
        history = repr((sorted(self.leaders.items()), sorted(self.log.items()), self.crashes, self.installs))
        return hashlib.sha256(history.encode()).hexdigest()

    def _heal(self) -> None:
        self.cuts.clear()
        for node in self.nodes.values():
            self._boot(node)
        for _ in range(300):
            if self._is_whole():
                return
            for node in self.nodes.values():
                node.core.tick()
                node.pump()
            while self.network or any(node.writes for node in self.nodes.values()):
                for node in self.nodes.values():
                    node.sync(len(node.writes))
                self._deliver_all()
        raise AssertionError(f"no common state: {[(node.applied, node.role) for node in self.nodes.values()]}")

    def _deliver_all(self) -> None:
        bag, self.network = self.network, []
        for sender, message in bag:
            self.nodes[message.to].core.step(message.data)
            if message.is_snapshot:
                self.nodes[sender].core.report_snapshot(message.to, True)
            self.nodes[message.to].pump()

    def _is_whole(self) -> bool:
        leaders = [node for node in self.nodes.values() if node.role == Role.LEADER]
        states = {(node.applied, node.state) for node in self.nodes.values()}
        return bool(leaders) and len(states) == 1 and max(self.log, default=0) == leaders[0].applied
