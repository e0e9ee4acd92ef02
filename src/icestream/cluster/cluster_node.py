"""A member of a cluster: its metadata log and store, its Raft port, and its links to the other nodes.

open       the directory; the node id is synced before it is sent to any other node
listen     other nodes may request this node's identity
form       until the log names the cluster of this node (formation.py); skipped at later starts
run        core, driver and store; links to all members; an existing log is compared with what the others remember of it
           (memory_check.py) before the node takes part. A node that is not a member yet requests to join

close      transfers leadership, finishes accepted work, then closes links and port
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from dataclasses import dataclass, field
from functools import partial

import msgspec

from icestream import errors, limits
from icestream.cluster import wire
from icestream.cluster.calls import Calls
from icestream.cluster.formation import FoundCluster, JoinCluster, WaitForSeeds, decide
from icestream.cluster.listener import Call, PeerListener
from icestream.cluster.member_check import MemberCheck, Question
from icestream.cluster.members import (
    NodeRecord,
    decode_record,
    encode_record,
    node_key,
    promotions,
    removed,
    removed_key,
    voters_wanted,
)
from icestream.cluster.memory_check import MemoryCheck
from icestream.cluster.node_info import ROLES, NodeInfo, from_document
from icestream.cluster.peers import Peers
from icestream.cluster.promises import NONE, Promises
from icestream.cluster.rejoin import Predecessor
from icestream.cluster.shared_warehouse import WAREHOUSE, check_mark, decode_warehouse
from icestream.cluster.snapshot_transfer import IncomingSnapshot, SnapshotSender
from icestream.cluster.state_comparison import StateComparison
from icestream.cluster.tls import PeerCertificates
from icestream.cluster.wire import PeerHello, PeerWelcome
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb
from icestream.metadata.core import RaftMessage
from icestream.metadata.eraftpb import Membership
from icestream.metadata.log_format import NO_CLUSTER, Identity
from icestream.metadata.node import Node
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import OpenedMetadata, new_identity, new_node_id
from icestream.metadata.raft_core import RaftCore
from icestream.metadata.snapshot_file import snapshot_digest
from icestream.metadata.ticker import Ticker
from icestream.observability.log import get_logger
from icestream.rpc.document import Document
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Tasks
from icestream.security import security_records

_log = get_logger("cluster")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of one member: addresses, the nodes it forms or joins a cluster with, certificates."""

    bind_host: str = "127.0.0.1"
    port: int = 0
    address: str = ""  # where others dial this node; empty: where it listens
    seeds: tuple[str, ...] = ()
    join: str = ""  # address of a member of an existing cluster
    join_token: str = field(default="", repr=False)  # for a cluster with accounts (join_token.py)
    predecessor: Predecessor | None = None  # the node that this one replaces (rejoin.py)
    record: NodeRecord = field(default_factory=lambda: NodeRecord("", ""))
    certificates: PeerCertificates | None = None  # None: plain text
    certified_cluster: str = ""  # the cluster that certificates must name (tls.py); empty: they need not


class ClusterNode:
    """One member of a cluster. `ClusterNode.start` opens it."""

    def __init__(
        self, opened: OpenedMetadata, options: ClusterOptions, clock: Clock, randomness: Randomness, node_id: int
    ) -> None:
        self._opened = opened
        self._options = options
        self._clock = clock
        self._randomness = randomness
        self.id = node_id
        self.store: NodeStore | None = None
        self.peers = Peers(
            clock,
            self._hello,
            self._known_address,
            options.certificates,
            options.certified_cluster,
            self._check_certified_name,
        )
        self.peers.on_unreachable = self._unreachable
        tls = None if options.certificates is None else options.certificates.listener
        self.listener = PeerListener(self, tls, certified_cluster=options.certified_cluster)
        self.calls: dict[str, Call] = Calls(self).table
        self.open_calls = frozenset({"GetNodeInfo", "Invite"})
        self.ticker: Ticker | None = None
        self._sender: SnapshotSender | None = None
        self._comparison: StateComparison | None = None
        self.memory = MemoryCheck(self, clock, Promises(opened.recovered.promises))
        self._tasks = Tasks(self._task_failed)
        self._member_check = MemberCheck(clock, self._tasks, self._member_questions)
        self._last_status = ""
        self._unanswered: dict[str, str] = {}  # by address of a seed node: why it did not answer

    @classmethod
    async def start(
        cls, opened: OpenedMetadata, options: ClusterOptions, clock: Clock, randomness: Randomness
    ) -> ClusterNode:
        """Opens, forms and runs the node. Wait for `store.ready()` before using the store."""
        try:
            if opened.identity is None:
                await opened.identify(Identity(new_node_id(randomness), NO_CLUSTER, b""))
            assert opened.identity is not None
            node = cls(opened, options, clock, randomness, opened.identity.node_id)
            await node.listener.listen(options.bind_host, options.port)
        except BaseException:
            await opened.close()
            raise
        try:
            # Before forming: a log that has confirmed entries in an earlier run must be compared with the memory of its
            # peers.
            was_member = node.identity.is_member
            if was_member and not opened.knows_others:
                await node._ask_seeds()  # a cluster of one node: the seeds must not belong to another cluster
            await node._form()
            node._run(has_past=was_member)
        except BaseException:
            await node._end()
            await opened.close()
            raise
        return node

    # --- identity ---

    @property
    def identity(self) -> Identity:
        """The node id and cluster id in the log."""
        assert self._opened.identity is not None
        return self._opened.identity

    @property
    def address(self) -> str:
        """Where other nodes dial this one."""
        host, _, port = (self._options.address or f"{self._options.bind_host}:0").rpartition(":")
        return f"{host}:{self.listener.port if port == '0' else port}"

    @property
    def record(self) -> NodeRecord:
        """The record of this node for the cluster."""
        return msgspec.structs.replace(self._options.record, address=self.address)

    @property
    def running(self) -> NodeStore:
        """The store. Raises NotReady before the node is a member of a cluster."""
        if self.store is None:
            raise errors.NotReady(
                "this node is not a member of a cluster yet", hint="it waits for the other seed nodes"
            )
        return self.store

    @property
    def node(self) -> Node:
        """The Raft node. Raises NotReady before the node is a member of a cluster."""
        return self.running.node

    @property
    def comparison(self) -> StateComparison:
        if self._comparison is None:
            raise errors.NotReady(
                "this node is not a member of a cluster yet", hint="it waits for the other seed nodes"
            )
        return self._comparison

    @property
    def is_alone(self) -> bool:
        """Whether the cluster has no other member."""
        return self._members() <= {self.id}

    async def check_warehouse(self) -> None:
        """Raises ConfigurationError if this node does not see the cluster's warehouse, such as an unmounted directory.

        Checked at each start.
        """
        stored = await self.running.get(WAREHOUSE)
        if stored is not None and not self.is_alone:
            check_mark(self.record, decode_warehouse(stored.value))

    def info(self, caller_id: int = 0) -> NodeInfo:
        """Identity and state of this node, and what it remembers of the node `caller_id`."""
        remembered = self.memory.remembered(caller_id) if caller_id else NONE
        founder = eraftpb.decode_conf(self.identity.conf).voters
        info = NodeInfo(self.id, self.identity.cluster_id, founder[0] if founder else 0, self._options.record.name)
        info = msgspec.structs.replace(
            info,
            address=self.address,
            remembered_term=remembered.term,
            remembered_index=remembered.last,
            security=security_records.VERSION,
            is_certified=self.is_certified,
        )
        if self.store is None:
            return info
        node, status = self.node, self.node.status()
        snapshot = self._opened.log.snapshots[0] if self._opened.log.snapshots else None
        return msgspec.structs.replace(
            info,
            role="learner" if self.id in node.members.learners else ROLES[status["role"]],
            term=status["term"],
            leader=status["leader"],
            commit=status["commit"],
            applied=node.applied_index,
            last=status["last"],
            revision=node.machine.revision,
            voters=node.members.voters,
            learners=node.members.learners,
            snapshot_index=snapshot.head.index if snapshot else 0,
            snapshot_digest=snapshot_digest(snapshot.name).hex() if snapshot else "",
        )

    # --- incoming connections (listener.Host) ---

    def greet(self, hello: PeerHello) -> PeerWelcome:
        """Answers the greeting of another node. Raises ForeignCluster, NodeRemoved, NotReady."""
        own = self.identity.cluster_id
        if NO_CLUSTER not in (hello.cluster, own) and hello.cluster != own:
            raise errors.ForeignCluster(
                f"node {wire.id_text(self.id)} is a member of cluster {own.hex()}, not of {hello.cluster.hex()}",
                hint="list nodes of one cluster only; a node that changes clusters begins with an empty data_dir",
            )
        if self._is_removed(hello):
            raise removed(hello.node, own)
        if hello.to and hello.to != self.id:
            raise errors.NotReady(f"this is node {wire.id_text(self.id)}, not node {wire.id_text(hello.to)}")
        if hello.cluster == own:
            self.peers.learn(hello.node, hello.address)
        return PeerWelcome(own, self.id, self.info().founder, self.address)

    @property
    def is_certified(self) -> bool:
        """Whether other nodes prove by certificates which node they are: accounts need that (hazard 105)."""
        return self._options.certificates is not None and bool(self._options.certified_cluster)

    def check_certificate(self, hello: PeerHello, name: str) -> None:
        self._check_certified_name(hello.node, name)

    def _check_certified_name(self, node_id: int, name: str) -> None:
        expected = self.recorded_name(node_id) or self._member_check.name_of(node_id)
        if node_id == self.id:
            expected = expected or self._options.record.name
        if expected and expected != name:
            raise errors.ForeignCluster(
                "the certificate is that of another node", hint="each node has a certificate of its own, for its name"
            )

    def check_join(self, hello: PeerHello, name: str, arguments: Document) -> None:
        """A node joins under the name of its certificate; members pass on what others asked of them."""
        record = arguments.get("record")
        if wire.id_of(arguments, "node") == hello.node:
            is_allowed = isinstance(record, bytes) and decode_record(record).name == name
        else:
            is_allowed = self.recorded_name(hello.node) == name
        if not is_allowed:
            raise errors.ForeignCluster(
                "a node can only join under the name of its certificate", hint="set node.name to that name"
            )

    def recorded_name(self, node_id: int) -> str:
        """The name in the cluster's record of a node; empty if there is none."""
        entry = self.node.machine.get(node_key(node_id)) if self.store is not None else None
        return decode_record(entry.value).name if entry is not None else ""

    def _is_removed(self, hello: PeerHello) -> bool:
        """True if this node has applied both the removal record of that node and the change of members."""
        if self.store is None or hello.cluster != self.identity.cluster_id:
            return False
        is_gone = hello.node not in self._members()
        return is_gone and self.node.machine.get(removed_key(hello.node)) is not None

    def _members(self) -> set[int]:
        members = self.node.members
        return {*members.voters, *members.learners, *members.voters_outgoing}

    def is_of_cluster(self, hello: PeerHello) -> bool:
        """Whether the greeting node says that it belongs to the same cluster."""
        return self.store is not None and hello.cluster == self.identity.cluster_id

    def may_call(self, hello: PeerHello, name: str) -> bool:
        """Whether calls of the greeting node are executed: with accounts, only those of nodes that have joined.

        The name is compared again: the record may be younger than the greeting, and that of another node.
        """
        if not self.is_of_cluster(hello):
            return False
        if not self.has_accounts:
            return True
        return bool(self._known_address(hello.node)) and self._is_recorded_as(hello.node, name)

    def may_send(self, hello: PeerHello, name: str) -> bool:
        """Whether messages of the greeting node are accepted now: with accounts, those of members.

        A node that was away knows the record of a new leader only by the messages of that leader, and one that joins
        knows none: it asks the members that it knows (member_check.py).
        """
        has_accounts = self.has_accounts or bool(self._options.join_token)
        if not has_accounts or not self.is_certified:
            return True
        if self.recorded_name(hello.node):
            return self._is_recorded_as(hello.node, name)
        return self._member_check.is_member(hello.node, name)

    def _is_recorded_as(self, node_id: int, name: str) -> bool:
        return not self.is_certified or self.recorded_name(node_id) == name

    def _member_questions(self) -> list[Question]:
        """Ways to ask the members that this node knows; the seed nodes, as long as it knows no record, nor its own."""
        members = [node_id for node_id in self._members() - {self.id} if self.recorded_name(node_id)]
        if members or self.recorded_name(self.id):
            return [partial(self.peers.call, node_id, "IsMember") for node_id in members]
        return [partial(self.peers.ask, address, "IsMember") for address in self.seed_addresses]

    @property
    def has_accounts(self) -> bool:
        """Whether security is on, by the state that this node has applied."""
        return self.store is not None and self.node.machine.get(security_records.ENABLED) is not None

    def receive(self, messages: list[bytes]) -> None:
        """Passes Raft messages to the node, unless it does not take part yet."""
        if self.store is not None and self.store.node.takes_part:  # dropped otherwise: Raft retransmits
            self.store.node.receive(messages)

    async def begin_snapshot(self, message: bytes) -> IncomingSnapshot:
        """Begins to receive a snapshot."""
        return await IncomingSnapshot.begin(self._opened.log, message)

    # --- outgoing calls ---

    def _hello(self, to: int) -> PeerHello:
        return PeerHello(self.identity.cluster_id, self.id, self.address, to)

    def _known_address(self, node_id: int) -> str:
        if self.store is None:
            return ""
        entry = self.store.node.machine.get(node_key(node_id))
        return decode_record(entry.value).address if entry is not None else ""

    def _unreachable(self, node_id: int) -> None:
        if self.store is not None:
            self.store.node.unreachable(node_id)

    def _send(self, messages: list[RaftMessage]) -> None:
        for to in {message.to for message in messages}:
            # Deduplicated: heartbeats of several ticks are equal.
            plain = dict.fromkeys(message.data for message in messages if message.to == to and not message.is_snapshot)
            if plain:
                self.peers.send(to, [*plain])
        for message in messages:
            if message.is_snapshot and self._sender is not None:
                self._sender.start(message.to, message.data)

    async def _forward(self, leader: int, envelope: bytes) -> cmd.Answer:
        try:
            reply = await self.peers.call(leader, "ClientWrite", {"envelope": envelope})
        except errors.IcestreamError as error:
            _log.debug(
                "the leader rejected a forwarded command",
                rpc="ClientWrite",
                leader=wire.id_text(leader),
                error=str(error),
            )
            raise
        return cmd.decode_answer(reply.get("answer"))

    async def _forward_renewal(self, leader: int, key: str, revision: int) -> bool:
        reply = await self.peers.call(leader, "RenewLease", {"key": key, "revision": revision})
        return reply.get("held") is True

    # --- formation ---

    async def _form(self) -> None:
        """Waits until this node belongs to a cluster: founds one, or joins one; the identity is synced."""
        while not self.identity.is_member:
            decision = self._decision(await self._ask_seeds())
            match decision:
                case FoundCluster():
                    await self._opened.identify(new_identity(self.id, self._randomness.token(16)))
                    _log.info("founding a new cluster", cluster=self.identity.cluster_id.hex())
                case JoinCluster(cluster, founder, _):
                    conf = eraftpb.encode_conf(Membership((founder,)))
                    await self._opened.identify(Identity(self.id, cluster, conf))
                    _log.info("joining a cluster", cluster=cluster.hex())
                case WaitForSeeds(reason):
                    self.log_status(f"waiting for the other nodes: {reason}")
                    await self._clock.sleep(limits.MEMBERSHIP_LOOK_SECONDS)

    def _decision(self, answers: dict[str, NodeInfo]) -> FoundCluster | JoinCluster | WaitForSeeds:
        """What the node does next by the answers of the seed nodes."""
        if not self._options.join:
            return decide(self.id, self._options.seeds, answers)
        decision = decide(self.id, [self._options.join], answers)
        if isinstance(decision, JoinCluster):
            return decision
        if self._options.join in answers:
            return WaitForSeeds(f"{self._options.join} is not a member of a cluster yet")
        return WaitForSeeds(self._unanswered.get(self._options.join) or f"{self._options.join} does not answer")

    async def _ask_seeds(self) -> dict[str, NodeInfo]:
        """Asks all seed nodes for their identity; returns the replies by address, including this node's own."""
        addresses = self.seed_addresses
        infos = await asyncio.gather(*(self.fetch_info(address) for address in addresses))
        return {address: info for address, info in zip(addresses, infos, strict=True) if info is not None}

    @property
    def seed_addresses(self) -> list[str]:
        return [self._options.join] if self._options.join else [*self._options.seeds]

    async def fetch_info(self, address: str) -> NodeInfo | None:
        """Asks the node at an address for its identity; None if it does not answer. Raises ForeignCluster."""
        try:
            info = from_document(await self.peers.ask(address, "GetNodeInfo", {"node": wire.id_text(self.id)}))
        except errors.ForeignCluster:
            raise
        except errors.IcestreamError as error:
            _log.debug("seed node unreachable", rpc="GetNodeInfo", address=address, error=str(error))
            self._unanswered[address] = error.message
            return None
        self.peers.learn(info.node, info.address or address)
        return info

    def log_status(self, text: str) -> None:
        """Logs a status line, unless it is the same as the last one."""
        if text != self._last_status:
            self._last_status = text
            _log.info(text)

    # --- running ---

    def _run(self, *, has_past: bool) -> None:
        """Starts core, driver and links. `has_past`: this node may have confirmed entries in an earlier run."""
        self.store = store = self._opened.start(partial(RaftCore, self._randomness), takes_part=not has_past)
        node = store.node
        self._sender = SnapshotSender(node, self._opened.log, self.peers.dial)
        node.send, store.forward, store.forward_renewal = self._send, self._forward, self._forward_renewal
        node.on_members = self._members_changed
        self.peers.on_removed = node.fail
        self._comparison = StateComparison(node, self.peers)
        store.snapshots.on_taken = self._comparison.on_snapshot
        store.before_close, store.after_close = self._leave, self._end
        self.ticker = Ticker(self._clock, node)
        if not has_past:
            self._take_part()
        node.tasks.start(self.memory.run(self._take_part if has_past else lambda: None), "promises")
        node.tasks.start(LeaderDuties(store, self._clock).run(), "leader-duties")
        self._tasks.start(self._join_cluster(), "join")
        self._members_changed()

    def _take_part(self) -> None:
        """Lets the node vote, and starts its ticks."""
        assert self.ticker is not None
        self.node.take_part()
        self.node.tasks.start(self.ticker.run(), "metadata-ticks")

    def invited(self, address: str, token: str = "") -> None:
        """Takes over the address of a member to join through, and a token for it."""
        self._options = dataclasses.replace(self._options, join=address, join_token=token or self._options.join_token)

    def announce(self, record: NodeRecord) -> None:
        """Takes over the addresses of this node when its ports are known.

        Its record in the cluster is written only if they changed.
        """
        configured = self._options.record
        announced = msgspec.structs.replace(
            record, warehouse=configured.warehouse, warehouse_mark=configured.warehouse_mark
        )
        self._options = dataclasses.replace(self._options, record=announced)
        self._tasks.start(self._join_cluster(), "join")

    def _members_changed(self) -> None:
        """Adapts links to the members, and requests a snapshot that contains them."""
        self.peers.set_members(self._members() - {self.id})
        self._tasks.start(self._disconnect_removed(), "parting")
        if self._opened.log.snapshots:
            # Raft rejects a snapshot whose membership does not contain the receiving learner (trap 14).
            self.node.request_snapshot()

    async def _disconnect_removed(self) -> None:
        """Closes the connections of removed nodes: they dial again and then get the reason.

        Delayed, because the removal may have been requested through such a node, which must still return the reply.
        """
        await self._clock.sleep(limits.PEER_PARTING_SECONDS)
        self.listener.part_from(self._is_removed)

    async def _join_cluster(self) -> None:
        """Asks to join until the cluster has this node as a member under its present address."""
        while self.node.stopped is None and not self._has_joined():
            try:
                await self._ask_to_join()
            except errors.ConfigurationError as error:
                self.node.fail(error)
                return
            except errors.IcestreamError as error:
                self.log_status(f"waiting to join the cluster: {error}")
            await self._clock.sleep(limits.MEMBERSHIP_LOOK_SECONDS)

    def _has_joined(self) -> bool:
        """Whether the cluster has this node as a member, with its present record."""
        members, entry = self.node.members, self.node.machine.get(node_key(self.id))
        is_member = self.id in (*members.voters, *members.learners)
        return is_member and entry is not None and entry.value == encode_record(self.record)

    async def _ask_to_join(self) -> None:
        """Sends one join request, to the leader if it is known."""
        arguments: dict[str, object] = {
            "node": wire.id_text(self.id),
            "record": encode_record(self.record),
            "security": security_records.VERSION,
            "token": self._options.join_token,
        }
        if (predecessor := self._options.predecessor) is not None:
            arguments |= {"rejoins": True, "predecessor": predecessor.node}
        if self.node.leads or self.node.leader:
            await self.calls["Join"](arguments)
            return
        answers = await self._ask_seeds()
        mine = [(info, address) for address, info in answers.items() if info.cluster == self.identity.cluster_id]
        # The leader first, then nodes that know the leader; not another node that is still waiting.
        for info, address in sorted(mine, key=lambda candidate: (candidate[0].role != "leader", candidate[1])):
            if info.node != self.id and info.leader:
                await self.peers.ask(address, "Join", arguments)
                return

    # --- the end ---

    async def _leave(self) -> None:
        """Before the store is closed: transfers leadership, so that the others need not wait for an election."""
        await self._tasks.stop()
        await self.running.leadership.hand_over()

    async def _end(self) -> None:
        """After the store is closed: closes links and port."""
        await self._tasks.stop()
        await self.peers.close()
        await self.listener.close()

    def _task_failed(self, error: BaseException) -> None:
        _log.error("cluster background task failed", error=repr(error))


class LeaderDuties:
    """Duties of the leader: promotes learners that have caught up until there are enough voters (members.py)."""

    def __init__(self, store: NodeStore, clock: Clock) -> None:
        self._node = store.node
        self._clock = clock

    async def run(self) -> None:
        """Runs until the node stops. Sleeps while this node is not the leader or has enough voters."""
        with contextlib.suppress(errors.IcestreamError):
            while True:
                await self._node.until(self._are_voters_missing)
                await self._promote()
                await self._clock.sleep(limits.MEMBERSHIP_LOOK_SECONDS)

    def _are_voters_missing(self) -> bool:
        if not self._node.leads:
            return False
        members = self._node.members
        nodes = len(members.voters) + len(members.learners)
        return bool(members.learners) and len(members.voters) < voters_wanted(nodes)

    async def _promote(self) -> None:
        """Promotes the learners that are due, in one change."""
        status = self._node.status()
        changes = promotions(self._node.members, status["progress"], status["last"])
        if not changes:
            return
        try:
            await self._node.change_members(changes)
            _log.info(
                "learners promoted to voters",
                voters=" ".join(f"{node_id:016x}" for node_id in self._node.members.voters),
            )
        except errors.IcestreamError as error:
            _log.warning("promotion of learners failed", error=str(error))
