"""Links to the other nodes of a cluster: kept open, redialled with backoff; and the addresses of nodes.

    DISCONNECTED --dialled, greeted--> CONNECTED --lost--> DISCONNECTED

A lost link is redialled after PEER_RETRY_SECONDS_MIN, doubling up to PEER_RETRY_SECONDS_MAX.
Messages to a disconnected node are dropped and reported to the core, which retransmits. A node of another cluster, or a
different node at the address, is redialled too, because an operator may fix that; it is logged once. A node that learns
that it was removed from the cluster stops dialling.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from icestream import errors, limits
from icestream.cluster.peer_link import PeerLink, dial
from icestream.cluster.tls import PeerCertificates
from icestream.cluster.wire import PeerHello, id_text
from icestream.metadata import eraftpb
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.rpc.backoff import RetryBackoff
from icestream.rpc.document import Document
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("cluster")


class Peer:
    """The link to one other node, redialled until the node is no longer a member."""

    def __init__(self, peers: Peers, node_id: int) -> None:
        self._peers = peers
        self.id = node_id
        self.link: PeerLink | None = None
        self.reason = "not dialled yet"

    async def run(self) -> None:
        """Dials, waits until the link is lost, and dials again."""
        # No jitter: a node dials each of its few peers on its own.
        backoff = RetryBackoff(None, limits.PEER_RETRY_SECONDS_MIN, limits.PEER_RETRY_SECONDS_MAX)
        try:
            while True:
                try:
                    self.link = await self._peers.dial(self.id)
                except errors.NodeRemoved as error:
                    self._peers.on_removed(error)
                    return
                except errors.IcestreamError as error:
                    self._log_failure(error)
                    await self._peers.clock.sleep(backoff.next_seconds())
                    continue
                backoff.reset()
                self.reason = ""
                _log.info("connected to node", node=id_text(self.id))
                await self.link.lost.wait()
                self.link = None
        finally:
            if self.link is not None:
                self.link.close()

    def _log_failure(self, error: errors.IcestreamError) -> None:
        if error.message != self.reason:
            self.reason = error.message
            _log.warning("node unreachable", node=id_text(self.id), error=str(error))

    def send(self, messages: list[bytes]) -> bool:
        """Sends Raft messages; False if there is no link or it is full."""
        return self.link is not None and self.link.send(messages)

    async def call(self, method: str, arguments: Document) -> Document:
        """Calls the node. Raises NotReady if it is disconnected."""
        if self.link is None:
            raise errors.NotReady(f"node {id_text(self.id)} cannot be reached: {self.reason}")
        return await self.link.call(method, arguments)


class Peers:
    """The links of one node to all members, and the addresses of nodes."""

    def __init__(
        self,
        clock: Clock,
        hello: Callable[[int], PeerHello],
        address_of: Callable[[int], str],
        certificates: PeerCertificates | None = None,
        certified_cluster: str = "",
        check_certificate: Callable[[int, str], None] = lambda _node, _name: None,
    ) -> None:
        """`hello`: the greeting to a node; `address_of`: its address in the cluster's records, empty if unknown.
        `check_certificate`: raises if a certificate for a node's name may not speak for a node id."""
        self.clock = clock
        self._hello = hello
        self._address_of = address_of
        self._certificates = certificates
        self._certified_cluster = certified_cluster
        self._check_certificate = check_certificate
        self._tasks = Tasks(self._task_failed)
        self._running: dict[int, tuple[Peer, asyncio.Task[None]]] = {}
        self._learned: dict[int, str] = {}
        self.on_unreachable: Callable[[int], None] = lambda _: None
        self.on_removed: Callable[[errors.IcestreamError], None] = lambda _: None

    def _task_failed(self, error: BaseException) -> None:
        _log.error("cluster background task failed", error=repr(error))

    def learn(self, node_id: int, address: str) -> None:
        """Remembers the address that a node reported, used until the cluster has a record of it.

        Bounded, because any client can report one: the least recently reported nodes without a link are forgotten.
        """
        if not address:
            return
        self._learned.pop(node_id, None)
        self._learned[node_id] = address
        if len(self._learned) > limits.PEERS_LEARNED_MAX:
            unlinked = (node_id for node_id in self._learned if node_id not in self._running)
            del self._learned[next(unlinked, next(iter(self._learned)))]

    def address(self, node_id: int) -> str:
        """The address of a node: the cluster's record, else the last that it reported; empty if unknown."""
        return self._address_of(node_id) or self._learned.get(node_id, "")

    def set_members(self, others: set[int]) -> None:
        """Keeps links to exactly these nodes."""
        for node_id in others - self._running.keys():
            peer = Peer(self, node_id)
            self._running[node_id] = (peer, self._tasks.start(peer.run(), f"peer-{id_text(node_id)}"))
        for node_id in self._running.keys() - others:
            self._running.pop(node_id)[1].cancel()

    def get(self, node_id: int) -> Peer | None:
        running = self._running.get(node_id)
        return running[0] if running else None

    def is_connected(self, node_id: int) -> bool:
        """True if there is a link to this member now."""
        peer = self.get(node_id)
        return peer is not None and peer.link is not None

    async def dial(self, node_id: int) -> PeerLink:
        """Opens a further link to a member. Raises NotReady if the node or its address is unknown."""
        address = self.address(node_id)
        if not address:
            raise errors.NotReady(f"the address of node {id_text(node_id)} is unknown")
        hello = self._hello(node_id)
        link = await self._dial(address, hello)
        if link.welcome.cluster != hello.cluster or link.welcome.node != node_id:
            link.close()
            raise errors.NotReady(f"node {id_text(node_id)} is not a member of this cluster (yet)")
        return link

    async def _dial(self, address: str, hello: PeerHello) -> PeerLink:
        context = None if self._certificates is None else self._certificates.client_context
        link = await dial(address, hello, context, self._certified_cluster)
        try:
            if link.certified_name:
                self._check_certificate(link.welcome.node, link.certified_name)
        except errors.IcestreamError:
            link.close()
            raise
        return link

    async def ask(self, address: str, method: str, arguments: Document) -> Document:
        """Makes one call to the node at an address, over a separate connection."""
        link = await self._dial(address, self._hello(0))
        try:
            return await link.call(method, arguments)
        finally:
            link.close()

    def send(self, to: int, messages: list[bytes]) -> None:
        """Sends Raft messages to a node, or drops them and reports the node as unreachable: Raft retransmits."""
        for message in messages:
            metrics.RAFT_MESSAGES.add(eraftpb.rpc_of(message))
        if to not in self._running and self.address(to):
            # A leader that is not a member by this node's log: this node has not applied the change of members yet.
            self.set_members({*self._running, to})
        peer = self.get(to)
        if peer is None or not peer.send(messages):
            metrics.RAFT_DROPPED.value += len(messages)
            self.on_unreachable(to)

    async def call(self, node_id: int, method: str, arguments: dict[str, Any]) -> Document:
        """Raises NotReady if the node is disconnected: the call was certainly not sent."""
        peer = self.get(node_id)
        if peer is None:
            raise errors.NotReady(f"node {id_text(node_id)} is not a member known to this node")
        return await peer.call(method, arguments)

    async def close(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks.stop()
