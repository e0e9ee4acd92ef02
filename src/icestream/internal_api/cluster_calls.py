"""What an operator asks of a cluster through one of its nodes: methods of a CALL that only the local socket offers.

method             arguments     result
cluster_status                   cluster, leader, term, nodes: each with its place, its role and how far it is
cluster_add        address       node: the one that waits there, and now joins as a learner, in time a voter
cluster_promote    node          nothing. A learner becomes a voter, now
cluster_remove     node          nothing. For good: its id never comes back
cluster_transfer   node          leader. To that voter, or without one to whoever is furthest; NotReady when it stays
cluster_snapshot                 the snapshot that this node has taken: index, digest
cluster_verify                   index, is_equal, away, nodes: of each its id, its name and the SHA-256 of its state at
                                 one place of the log, none where it is away

`node` is the name of a node, or its id as the status shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from icestream import errors, limits
from icestream.cluster.cluster_node import ClusterNode
from icestream.cluster.members import NODES, NodeRecord, decode_record, id_of_key
from icestream.cluster.node_info import NodeInfo, from_document
from icestream.cluster.wire import ID
from icestream.frontends.native.public_calls import Call, Document, arguments_of
from icestream.metadata import command as cmd
from icestream.runtime.clock import Clock

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection

CLUSTER_METHODS: Final = (
    "cluster_status", "cluster_add", "cluster_promote", "cluster_remove", "cluster_transfer", "cluster_snapshot",
    "cluster_verify",
)  # fmt: skip


class NodeOnly(msgspec.Struct):
    node: str


class OptionalNode(msgspec.Struct):
    node: str = ""


class AddressOnly(msgspec.Struct):
    address: str


class ClusterCalls:
    """`cluster` is None for a node on its own. Its methods have the names of CLUSTER_METHODS."""

    def __init__(self, cluster: ClusterNode | None, clock: Clock) -> None:
        self._found = cluster
        self._clock = clock

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in CLUSTER_METHODS}

    @property
    def _cluster(self) -> ClusterNode:
        if self._found is None:
            raise errors.InvalidInput(
                "this node is on its own: it is of no cluster", hint="docs/cluster.md shows how nodes form one"
            )
        return self._found

    # --- looking ---

    async def cluster_status(self, connection: NativeConnection, given: Document) -> Document:
        own = self._cluster.info()
        known, infos = self._records(), await self._infos()
        members = [*own.voters, *own.learners]
        return {
            "cluster": own.cluster.hex(),
            "leader": f"{own.leader:016x}" if own.leader else None,
            "term": own.term,
            "nodes": [_line(one, known.get(one), infos.get(one), own) for one in members],
        }

    def _records(self) -> dict[int, NodeRecord]:
        page = self._cluster.node.machine.page(NODES, "", limits.METADATA_LIST_MAX)
        return {id_of_key(key): decode_record(entry.value) for key, entry in page}

    async def _infos(self) -> dict[int, NodeInfo]:
        """Of all members that answer."""
        cluster = self._cluster
        answers = await asyncio.gather(*map(self._info, self._members() - {cluster.id}))
        found = {info.node: info for info in answers if info is not None}
        return {**found, cluster.id: cluster.info()}

    def _members(self) -> set[int]:
        return {*self._cluster.node.members.voters, *self._cluster.node.members.learners}

    async def _info(self, node_id: int) -> NodeInfo | None:
        try:
            async with asyncio.timeout(limits.CLUSTER_ASK_SECONDS):
                return from_document(await self._cluster.peers.call(node_id, "GetNodeInfo", {}))
        except (errors.IcestreamError, TimeoutError):
            return None

    # --- changing ---

    async def cluster_add(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(AddressOnly, given)
        cluster = self._cluster
        return await cluster.peers.ask(asked.address, "Invite", {"address": cluster.address})

    async def cluster_promote(self, connection: NativeConnection, given: Document) -> Document:
        return await self._done("Promote", self._id_of(arguments_of(NodeOnly, given).node))

    async def cluster_remove(self, connection: NativeConnection, given: Document) -> Document:
        return await self._done("Remove", self._id_of(arguments_of(NodeOnly, given).node))

    async def cluster_transfer(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(OptionalNode, given)
        node, wanted = self._cluster.node, self._id_of(asked.node) if asked.node else ""
        before = node.leader
        answer = await self._done("Transfer", wanted)

        def has_moved() -> bool:
            """As far as this node knows, which may hear of it last."""
            return f"{node.leader:016x}" == wanted if wanted else node.leader not in (0, before)

        stays = answer.get("leader") == f"{before:016x}" != wanted  # the one that led says so itself
        if stays or not await node.until(has_moved, limits.CLUSTER_CHANGE_SECONDS):
            raise errors.NotReady(
                f"the lead stays where it is: {f'node {wanted}' if wanted else 'no other voter'} did not take it",
                hint="`icestream cluster status` shows which voters are up, and how far each is",
            )
        return {"leader": f"{node.leader:016x}"}

    async def cluster_snapshot(self, connection: NativeConnection, given: Document) -> Document:
        await self._cluster.running.snapshots.take_now()
        info = self._cluster.info()
        return {"index": info.snapshot_index, "digest": info.snapshot_digest}

    async def cluster_verify(self, connection: NativeConnection, given: Document) -> Document:
        """All nodes take a snapshot at one place of the log. One that is away is not compared. One that is just taking
        another passes that place by: there are more of them, further and further apart."""
        before = self._cluster.info().snapshot_index
        found: dict[int, NodeInfo] = {}
        pause_ns, again_ns = int(limits.CLUSTER_MARK_SECONDS * 1e9), 0

        async def is_taken() -> bool:
            nonlocal found, pause_ns, again_ns
            found = await self._infos()
            places = {info.snapshot_index for info in found.values()}
            if len(places) == 1 and max(places) > before:
                return True
            if self._clock.monotonic_ns() >= again_ns:
                await self._cluster.running.submit(cmd.TakeSnapshot())
                again_ns, pause_ns = self._clock.monotonic_ns() + pause_ns, 2 * pause_ns
            return False

        await self._until(is_taken)
        places = {info.snapshot_index for info in found.values()}
        if len(places) > 1 or not max(places):
            raise errors.NotReady("the nodes took no snapshot at one place of the log", hint="try again in a moment")
        known, digests = self._records(), {node_id: info.snapshot_digest for node_id, info in found.items()}
        everybody = sorted(self._members() | digests.keys())
        return {
            "index": places.pop(),
            "is_equal": len(set(digests.values())) == 1,
            "nodes": [
                {"node": f"{one:016x}", "name": _name(known.get(one)), "sha256": digests.get(one)} for one in everybody
            ],
            "away": len(everybody) - len(digests),
        }

    async def _until(self, is_reached: Callable[[], Awaitable[bool]]) -> None:
        end_ns = self._clock.monotonic_ns() + int(limits.CLUSTER_CHANGE_SECONDS * 1e9)
        while not await is_reached() and self._clock.monotonic_ns() < end_ns:
            await self._clock.sleep(limits.METADATA_TICK_SECONDS)

    async def _done(self, method: str, node_id: str) -> Document:
        """By whoever leads; again while nobody does, or while another change is under way."""
        arguments: dict[str, Any] = {"node": node_id} if node_id else {}
        end_ns = self._clock.monotonic_ns() + int(limits.CLUSTER_CHANGE_SECONDS * 1e9)
        while True:
            try:
                return await self._cluster.calls[method](arguments)
            except errors.NotReady:
                if self._clock.monotonic_ns() >= end_ns:
                    raise
            await self._clock.sleep(limits.METADATA_TICK_SECONDS)

    def _id_of(self, node: str) -> str:
        """The id of a node that is named by it or by its name."""
        named = [node_id for node_id, record in self._records().items() if record.name == node]
        if named:
            # one that was removed while its record stayed may have had the name of a node that is there
            return f"{min(named, key=lambda one: one not in self._members()):016x}"
        if not ID.fullmatch(node):
            raise errors.InvalidInput(
                f"no node is called {node[:40]!r}", hint="`icestream cluster status` shows names and ids"
            )
        return node


def _name(record: NodeRecord | None) -> str:
    return record.name if record is not None else ""


def _line(node_id: int, record: NodeRecord | None, info: NodeInfo | None, own: NodeInfo) -> Document:
    role = "learner" if node_id in own.learners else "leader" if node_id == own.leader else "voter"
    return {
        "node": f"{node_id:016x}",
        "name": _name(record),
        "role": role,
        "address": record.address if record is not None else "",
        "native": record.native if record is not None else "",
        "is_up": info is not None,
        "applied": info.applied if info is not None else None,
        "commit": info.commit if info is not None else None,
        "revision": info.revision if info is not None else None,
        "snapshot_index": info.snapshot_index if info is not None else None,
    }
