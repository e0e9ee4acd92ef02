"""Cluster administration through one of its nodes: the implementations of admin_api/cluster_api.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from icestream import errors, limits
from icestream.admin_api import cluster_api
from icestream.admin_api.admin_call import EmptyAnswer, NoArguments
from icestream.admin_api.cluster_api import (
    AddressOnly,
    ClusterComparison,
    ClusterState,
    CurrentLeader,
    JoiningNode,
    JoinToken,
    MemberDigest,
    MemberState,
    MetadataSnapshot,
    NewJoinToken,
    NodeOnly,
    OptionalNode,
)
from icestream.cluster.cluster_node import ClusterNode
from icestream.cluster.join_token import JOIN_TOKENS, encode_token, token_key
from icestream.cluster.members import NODES, NodeRecord, decode_record, id_of_key
from icestream.cluster.node_info import NodeInfo, from_document
from icestream.cluster.wire import ID
from icestream.frontends.native.public_calls import Call, Caller, Document
from icestream.internal_api.implementation import implements, native_calls
from icestream.metadata import command as cmd
from icestream.rpc import document
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.security.change_audit import ChangeAudit, cluster_change
from icestream.security.resource import is_plain


class ClusterCalls:
    """The calls of cluster_api. `cluster` is None for a single node, on which every call raises InvalidInput."""

    def __init__(
        self,
        cluster: ClusterNode | None,
        clock: Clock,
        audit: ChangeAudit | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self._cluster_node = cluster
        self._clock = clock
        self._audit = audit
        self._randomness = randomness or SystemRandomness()

    def calls(self) -> dict[str, Call]:
        return native_calls(self)

    @property
    def _cluster(self) -> ClusterNode:
        if self._cluster_node is None:
            raise errors.InvalidInput(
                "this broker is not part of a cluster", hint="docs/cluster.md shows how to form one"
            )
        return self._cluster_node

    # --- reading ---

    @implements(cluster_api.CLUSTER_STATUS)
    async def cluster_status(self, caller: Caller, _request: NoArguments) -> ClusterState:
        own = self._cluster.info()
        records, infos = self._records(), await self._infos()
        members = [*own.voters, *own.learners]
        return ClusterState(
            cluster=own.cluster.hex(),
            leader=f"{own.leader:016x}" if own.leader else None,
            term=own.term,
            nodes=[_member_state(node_id, records.get(node_id), infos.get(node_id), own) for node_id in members],
        )

    def _records(self) -> dict[int, NodeRecord]:
        page = self._cluster.node.machine.page(NODES, "", limits.METADATA_LIST_MAX)
        return {id_of_key(key): decode_record(entry.value) for key, entry in page}

    async def member_infos(self) -> dict[str, NodeInfo | None]:
        """The state of every member by its name, None for one that does not answer. Empty without a cluster."""
        if self._cluster_node is None:
            return {}
        records, infos = self._records(), await self._infos()
        return {
            _name(records.get(node_id)) or f"{node_id:016x}": infos.get(node_id) for node_id in sorted(self._members())
        }

    async def _infos(self) -> dict[int, NodeInfo]:
        """The state of every member that answers in time, by node id."""
        cluster = self._cluster
        replies = await asyncio.gather(*map(self._info, self._members() - {cluster.id}))
        infos = {info.node: info for info in replies if info is not None}
        return {**infos, cluster.id: cluster.info()}

    def _members(self) -> set[int]:
        return {*self._cluster.node.members.voters, *self._cluster.node.members.learners}

    async def _info(self, node_id: int) -> NodeInfo | None:
        try:
            async with asyncio.timeout(limits.CLUSTER_ASK_SECONDS):
                return from_document(await self._cluster.peers.call(node_id, "GetNodeInfo", {}))
        except (errors.IcestreamError, TimeoutError):
            return None

    # --- changing ---

    @implements(cluster_api.CLUSTER_ADD)
    async def cluster_add(self, caller: Caller, request: AddressOnly) -> JoiningNode:
        cluster = self._cluster
        invitation: Document = {"address": cluster.address}
        async with cluster_change(self._audit, caller.session, f"invite the node at {request.address}"):
            if cluster.has_accounts:
                waiting = from_document(await cluster.peers.ask(request.address, "GetNodeInfo", {}))
                invitation["token"] = await self._new_token(waiting.name, limits.JOIN_TOKEN_SECONDS_DEFAULT)
            reply = await cluster.peers.ask(request.address, "Invite", invitation)
        return JoiningNode(node=document.text_of(reply, "node", limits.NAME_BYTES_MAX))

    @implements(cluster_api.CLUSTER_JOIN_TOKEN)
    async def cluster_join_token(self, caller: Caller, request: NewJoinToken) -> JoinToken:
        """Makes a token with which the node of this name joins, once. Raises InvalidInput while security is off."""
        if not self._cluster.has_accounts:
            raise errors.InvalidInput(
                "nodes join this cluster without a token: it has no accounts",
                hint="switch security on first: icestream security init",
            )
        if not is_plain(request.node):
            raise errors.InvalidInput(f"{request.node[:100]!r} is not a node name", hint="the node.name of the node")
        if not 1 <= request.ttl_seconds <= limits.JOIN_TOKEN_SECONDS_MAX:
            raise errors.InvalidInput(
                f"a join token cannot be valid for {request.ttl_seconds} s",
                hint=f"1 to {limits.JOIN_TOKEN_SECONDS_MAX} s",
            )
        async with cluster_change(self._audit, caller.session, f"join token for node {request.node}"):
            token = await self._new_token(request.node, request.ttl_seconds)
        return JoinToken(
            token=token, node=request.node, expires_ms=self._clock.wall_us() // 1_000 + request.ttl_seconds * 1_000
        )

    async def _new_token(self, node: str, ttl_seconds: int) -> str:
        """A recorded token for a node (cluster/join_token.py). Raises Refused if too many wait for their nodes."""
        store = self._cluster.running
        if len(await store.list_all(JOIN_TOKENS)) >= limits.JOIN_TOKENS_MAX:
            raise errors.Refused(
                f"there are {limits.JOIN_TOKENS_MAX} join tokens that no node has used",
                hint="start the nodes, or wait until the tokens expire",
            )
        token = self._randomness.token(limits.JOIN_TOKEN_BYTES).hex()
        await store.put_with_ttl(token_key(token), encode_token(node), ttl_seconds * 1_000)
        return token

    @implements(cluster_api.CLUSTER_PROMOTE)
    async def cluster_promote(self, caller: Caller, request: NodeOnly) -> EmptyAnswer:
        """Makes a learner a voter, now."""
        async with cluster_change(self._audit, caller.session, f"promote node {request.node}"):
            await self._run_on_leader("Promote", self._id_of(request.node))
        return EmptyAnswer()

    @implements(cluster_api.CLUSTER_REMOVE)
    async def cluster_remove(self, caller: Caller, request: NodeOnly) -> EmptyAnswer:
        """Removes a node for good: its id is never used again."""
        async with cluster_change(self._audit, caller.session, f"remove node {request.node}"):
            await self._run_on_leader("Remove", self._id_of(request.node))
        return EmptyAnswer()

    @implements(cluster_api.CLUSTER_TRANSFER)
    async def cluster_transfer(self, caller: Caller, request: OptionalNode) -> CurrentLeader:
        """Transfers leadership to a voter. Raises NotReady if leadership does not move."""
        node, target = self._cluster.node, self._id_of(request.node) if request.node else ""
        old_leader = node.leader
        async with cluster_change(self._audit, caller.session, f"transfer leadership to {request.node or 'any voter'}"):
            reply = await self._run_on_leader("Transfer", target)

        def has_moved() -> bool:
            """According to this node, which may be the last to learn of it."""
            return f"{node.leader:016x}" == target if target else node.leader not in (0, old_leader)

        # The old leader itself reports that it stayed, so there is no need to wait for a change.
        is_unmoved = reply.get("leader") == f"{old_leader:016x}" != target
        if is_unmoved or not await node.until(has_moved, limits.CLUSTER_CHANGE_SECONDS):
            raise errors.NotReady(
                f"leadership did not move: {f'node {target}' if target else 'no other voter'} did not take it",
                hint="`icestream cluster status` shows which voters are up and how far each has applied the log",
            )
        return CurrentLeader(leader=f"{node.leader:016x}")

    @implements(cluster_api.CLUSTER_SNAPSHOT)
    async def cluster_snapshot(self, caller: Caller, _request: NoArguments) -> MetadataSnapshot:
        await self._cluster.running.snapshots.take_now()
        info = self._cluster.info()
        return MetadataSnapshot(index=info.snapshot_index, digest=info.snapshot_digest)

    @implements(cluster_api.CLUSTER_VERIFY)
    async def cluster_verify(self, caller: Caller, _request: NoArguments) -> ClusterComparison:
        """Compares the states of all reachable nodes by the snapshots that they take at the same log index.

        A node that is busy with another snapshot misses a TakeSnapshot command, so the command is repeated, at growing
        intervals. Nodes that are away are not compared.
        """
        old_index = self._cluster.info().snapshot_index
        infos: dict[int, NodeInfo] = {}
        pause_ns, retry_ns = int(limits.CLUSTER_MARK_SECONDS * 1e9), 0

        async def has_snapshots() -> bool:
            nonlocal infos, pause_ns, retry_ns
            infos = await self._infos()
            indexes = {info.snapshot_index for info in infos.values()}
            if len(indexes) == 1 and max(indexes) > old_index:
                return True
            if self._clock.monotonic_ns() >= retry_ns:
                await self._cluster.running.submit(cmd.TakeSnapshot())
                retry_ns, pause_ns = self._clock.monotonic_ns() + pause_ns, 2 * pause_ns
            return False

        await self._poll_until(has_snapshots)
        indexes = {info.snapshot_index for info in infos.values()}
        if len(indexes) > 1 or not max(indexes):
            raise errors.NotReady("the nodes took no snapshot at the same log index", hint="try again in a moment")
        records, digests = self._records(), {node_id: info.snapshot_digest for node_id, info in infos.items()}
        node_ids = sorted(self._members() | digests.keys())
        return ClusterComparison(
            index=indexes.pop(),
            is_equal=len(set(digests.values())) == 1,
            nodes=[
                MemberDigest(node=f"{node_id:016x}", name=_name(records.get(node_id)), sha256=digests.get(node_id))
                for node_id in node_ids
            ],
            away=len(node_ids) - len(digests),
        )

    async def _poll_until(self, is_reached: Callable[[], Awaitable[bool]]) -> None:
        deadline_ns = self._clock.monotonic_ns() + int(limits.CLUSTER_CHANGE_SECONDS * 1e9)
        while not await is_reached() and self._clock.monotonic_ns() < deadline_ns:
            await self._clock.sleep(limits.METADATA_TICK_SECONDS)

    async def _run_on_leader(self, method: str, node_id: str) -> Document:
        """Runs a membership change on the leader; retries while there is none, or while another change is running."""
        arguments: dict[str, Any] = {"node": node_id} if node_id else {}
        deadline_ns = self._clock.monotonic_ns() + int(limits.CLUSTER_CHANGE_SECONDS * 1e9)
        while True:
            try:
                return await self._cluster.calls[method](arguments)
            except errors.NotReady:
                if self._clock.monotonic_ns() >= deadline_ns:
                    raise
            await self._clock.sleep(limits.METADATA_TICK_SECONDS)

    def _id_of(self, node: str) -> str:
        """The id of the node with this name or id. Raises InvalidInput if there is none."""
        namesakes = [node_id for node_id, record in self._records().items() if record.name == node]
        if namesakes:
            # The record of a removed node may remain, with the name of a present member: members take precedence.
            return f"{min(namesakes, key=lambda node_id: node_id not in self._members()):016x}"
        if not ID.fullmatch(node):
            raise errors.InvalidInput(
                f"unknown node {node[:40]!r}", hint="`icestream cluster status` shows names and ids"
            )
        return node


def _name(record: NodeRecord | None) -> str:
    return record.name if record is not None else ""


def _member_state(node_id: int, record: NodeRecord | None, info: NodeInfo | None, own: NodeInfo) -> MemberState:
    role = "learner" if node_id in own.learners else "leader" if node_id == own.leader else "voter"
    return MemberState(
        node=f"{node_id:016x}",
        name=_name(record),
        role=role,
        address=record.address if record is not None else "",
        native=record.native if record is not None else "",
        is_up=info is not None,
        applied=info.applied if info is not None else None,
        commit=info.commit if info is not None else None,
        revision=info.revision if info is not None else None,
        snapshot_index=info.snapshot_index if info is not None else None,
    )
