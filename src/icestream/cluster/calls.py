"""RPC handlers of a node (wire.py): calls of other nodes, and calls of operators, which any node accepts.

Changes are made by the leader; a follower forwards the call to the leader once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from icestream import errors, limits
from icestream.cluster import wire
from icestream.cluster.join_token import check_token, token_key, token_missing
from icestream.cluster.members import (
    LEARNER,
    NODES,
    REMOVED,
    VOTER,
    NodeRecord,
    decode_record,
    encode_record,
    encode_removed,
    id_of_key,
    node_key,
    removed,
    removed_key,
)
from icestream.cluster.node_info import to_document
from icestream.cluster.shared_warehouse import (
    WAREHOUSE,
    check_mark,
    check_path,
    decode_warehouse,
    encode_warehouse,
    first_mark,
)
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.log_format import Promise
from icestream.observability.log import get_logger
from icestream.rpc import document
from icestream.security import security_records

if TYPE_CHECKING:
    from icestream.cluster.cluster_node import ClusterNode

Document = dict[str, Any]
DIGEST_BYTES: Final = 32
_log = get_logger("cluster")


class Calls:
    """The handlers of one node, by method."""

    def __init__(self, host: ClusterNode) -> None:
        self._host = host
        self.table = {
            "GetNodeInfo": self.get_node_info,
            "ClientWrite": self.client_write,
            "RenewLease": self.renew_lease,
            "StateHash": self.state_hash,
            "Confirmed": self.confirmed,
            "Join": self._on_leader("Join", self.join),
            "Promote": self._on_leader("Promote", self.promote),
            "Remove": self._on_leader("Remove", self.remove),
            "Transfer": self._on_leader("Transfer", self.transfer),
            "Snapshot": self.snapshot,
            "Invite": self.invite,
            "IsMember": self.is_member,
        }

    def _on_leader(self, method: str, handler: Callable[[Document], Awaitable[Document]]) -> Any:
        """Wraps a handler so that a follower forwards the call to the leader.

        At most once: a forwarded call is not forwarded again.
        """

        async def call(arguments: Document) -> Document:
            node = self._host.node
            if node.leads:
                return await handler(arguments)
            if not node.leader or node.leader == node.id or arguments.get("passed_on"):
                raise errors.NotReady("the cluster has no leader", hint="the call is retried automatically")
            return await self._host.peers.call(node.leader, method, {**arguments, "passed_on": True})

        return call

    async def get_node_info(self, arguments: Document) -> Document:
        """Identity and state of this node, and what it remembers of the caller."""
        caller_id = wire.id_of(arguments, "node") if arguments.get("node") else 0
        return to_document(self._host.info(caller_id))

    async def confirmed(self, arguments: Document) -> Document:
        """Notes the promise of another node (promises.py)."""
        term, index = document.number_of(arguments, "term", 0, 2**63), document.number_of(arguments, "index", 0, 2**63)
        self._host.memory.record_promise(wire.id_of(arguments, "node"), Promise(term, index))
        return {}

    async def client_write(self, arguments: Document) -> Document:
        """Executes a command that a follower has forwarded."""
        envelope = arguments.get("envelope")
        if not isinstance(envelope, bytes):
            raise errors.DecodeError("ClientWrite has no envelope")
        request = cmd.decode_envelope(envelope)
        store = self._host.running
        if not store.node.leads:
            raise errors.NotReady("this node is not the leader", hint="send the write to the leader")
        answer = await store.propose(request.command, request.client, request.sequence)
        store.node.commit_notice.send_now()  # the follower waits until its own state machine has applied the entry
        return {"answer": msgspec.msgpack.encode(answer)}

    async def renew_lease(self, arguments: Document) -> Document:
        """Renews a lease for a follower."""
        key, revision = arguments.get("key"), arguments.get("revision")
        if not isinstance(key, str) or not isinstance(revision, int):
            raise errors.DecodeError("RenewLease has no key or no revision")
        return {"held": await self._host.running.renew_here(key, revision)}

    async def state_hash(self, arguments: Document) -> Document:
        """Takes the digest of another node's state."""
        digest, index = arguments.get("hash"), arguments.get("index")
        if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES or not isinstance(index, int):
            raise errors.DecodeError("StateHash has no index or no hash")
        self._host.comparison.on_digest(wire.id_of(arguments, "node"), index, digest)
        return {}

    # --- members ---

    async def join(self, arguments: Document) -> Document:
        """Adds a node as a learner. Idempotent. Writes its address first, so that the leader can dial it."""
        node_id, node, store = wire.id_of(arguments, "node"), self._host.node, self._host.running
        record = arguments.get("record")
        if not isinstance(record, bytes) or len(record) > limits.METADATA_VALUE_BYTES_MAX:
            raise errors.DecodeError("Join has no node record")
        # Raft must not reuse an id: a removed node comes back as a new one.
        if node.machine.get(removed_key(node_id)) is not None:
            raise removed(node_id, self._host.identity.cluster_id)
        joining = decode_record(record)
        value = encode_record(joining)
        self._check_knows_security(arguments)
        entry = node.machine.get(node_key(node_id))
        token = self._checked_token(arguments, joining.name) if self._needs_token(node_id, entry) else None
        if arguments.get("rejoins"):
            await self._remove_predecessor(node_id, joining.name, arguments)
        # After the predecessor is removed: a rejoining node has its name.
        self._check_name(node_id, joining.name)
        await self._check_warehouse(joining)
        # Before the change of members: with the entry in force the leader dials the node, and needs its address.
        if token is not None:
            await self._use_token(token, node_key(node_id), value, joining.name)
        elif entry is None or entry.value != value:
            await store.put(node_key(node_id), value)
        if node_id not in self._members():
            await node.change_members([(LEARNER, node_id)])
        return {}

    def _check_knows_security(self, arguments: Document) -> None:
        """Raises ConfigurationError for a node of a version that would serve everybody (hazard 112)."""
        version = arguments.get("security")
        is_known = isinstance(version, int) and version >= security_records.VERSION
        if self._host.has_accounts and not is_known:
            raise errors.ConfigurationError(
                "security is on in this cluster, and this version of Icestream does not know it",
                hint="install the version of the other nodes",
            )

    def _needs_token(self, node_id: int, entry: Entry | None) -> bool:
        """Whether a node is new to a cluster with accounts. This node is not, also if it was alone until now."""
        return self._host.has_accounts and entry is None and node_id != self._host.id

    def _checked_token(self, arguments: Document, name: str) -> cmd.AtRevision:
        """The record of the join token of a new node. Raises ConfigurationError without a valid one (join_token.py)."""
        token = document.text_of(arguments, "token", limits.NAME_BYTES_MAX, "")
        if not token:
            raise token_missing(name)
        entry = self._host.node.machine.get(token_key(token))
        check_token(entry.value if entry is not None else None, name)
        assert entry is not None
        return cmd.AtRevision(token_key(token), entry.mod_revision)

    async def _use_token(self, token: cmd.AtRevision, key: str, value: bytes, name: str) -> None:
        """Creates the record of a node and deletes its token, in one transaction. Raises ConfigurationError if another
        node was faster."""
        done = await self._host.running.txn([token], [cmd.Delete(token.key), cmd.Put(key, value)])
        if not done.held:
            check_token(None, name)
        _log.info("a node joins with a one-time token", name=name)

    async def _remove_predecessor(self, successor: int, name: str, arguments: Document) -> None:
        """Removes the node that a rejoining node replaces (rejoin.py), by its id, or by its name if the id is lost."""
        node, machine = self._host.node, self._host.node.machine
        if arguments.get("predecessor"):
            predecessor = wire.id_of(arguments, "predecessor")
        else:
            records = machine.page(NODES, "", limits.METADATA_LIST_MAX)
            same_name_ids = [id_of_key(key) for key, entry in records if decode_record(entry.value).name == name]
            predecessor = next((other for other in same_name_ids if other != successor), 0)
        is_known = predecessor in self._members() or machine.get(node_key(predecessor)) is not None
        if (
            not predecessor
            or predecessor == successor
            or not (is_known or machine.get(removed_key(predecessor)) is not None)
        ):
            return
        # A node that still answers has not been replaced: removed now, it would lose its vote while it serves topics.
        progress = node.status()["progress"].get(predecessor)
        if predecessor == node.id or (predecessor in self._members() and progress is not None and progress[2]):
            raise errors.NotReady(
                f"node {wire.id_text(predecessor)} still answers, or did a moment ago",
                hint="the call is retried automatically",
            )
        # The successor is recorded before the removal: a topic whose owner is removed without one counts as orphaned.
        entry = machine.get(removed_key(predecessor))
        if entry is None or not entry.value:
            await self._host.running.put(removed_key(predecessor), encode_removed(wire.id_text(successor)))
        if is_known:
            await self.remove({"node": wire.id_text(predecessor)})

    def _check_name(self, node_id: int, name: str) -> None:
        """Raises ConfigurationError if another member has the name: logs and metrics could not tell them apart.

        Removed nodes do not count.
        """
        machine = self._host.node.machine
        for key, entry in machine.page(NODES, "", limits.METADATA_LIST_MAX):
            other = id_of_key(key)
            if name and other != node_id and decode_record(entry.value).name == name:
                if machine.get(removed_key(other)) is not None:
                    continue
                raise errors.ConfigurationError(
                    f"another node of the cluster is called {name}",
                    hint="set `node.name` to another name; or remove that node first: icestream cluster remove",
                )

    async def _check_warehouse(self, joining: NodeRecord) -> None:
        """Refuses a node that does not see the warehouse of the cluster: it would not find the tables of the others."""
        host = self._host
        if not joining.warehouse_mark:
            return
        stored = host.node.machine.get(WAREHOUSE)
        first = encode_warehouse(first_mark(host.record, joining))
        if stored is None or (host.is_alone and stored.value != first):
            expected = cmd.Absent(WAREHOUSE) if stored is None else cmd.AtRevision(WAREHOUSE, stored.mod_revision)
            await host.running.txn([expected], [cmd.Put(WAREHOUSE, first)])
            stored = await host.running.get(WAREHOUSE)
        if stored is not None:
            check_mark(joining, decode_warehouse(stored.value))
        check_path(joining, host.record)

    async def invite(self, arguments: Document) -> Document:
        """Tells this node, which is not a member of a cluster yet, the address of a member to join through."""
        host = self._host
        if host.identity.is_member:
            raise errors.AlreadyExists(
                f"node {wire.id_text(host.id)} is already a member of cluster {host.identity.cluster_id.hex()}",
                hint="a node that changes clusters begins with an empty data_dir",
            )
        host.invited(wire.address_of(arguments), document.text_of(arguments, "token", limits.NAME_BYTES_MAX, ""))
        return {"node": wire.id_text(host.id)}

    async def is_member(self, arguments: Document) -> Document:
        """Whether this node has a record of a node with this id and name, which is a member."""
        node_id, name = wire.id_of(arguments, "node"), document.text_of(arguments, "name", limits.NAME_BYTES_MAX)
        return {"is_member": node_id in self._members() and self._host.recorded_name(node_id) == name}

    async def promote(self, arguments: Document) -> Document:
        """Makes a learner a voter."""
        node_id = self._member(arguments)
        await self._host.node.change_members([(VOTER, node_id)])
        return {}

    async def remove(self, arguments: Document) -> Document:
        """Removes a node for good: its id is never used again. A leader transfers leadership before it is removed.

        Three steps; a change of leader may interrupt them, and a repeated call completes the missing ones.
        """
        node_id, node, store = self._member_or_recorded(arguments), self._host.node, self._host.running
        if node.members.voters == (node_id,):
            raise errors.InvalidInput("the only voter cannot be removed", hint="promote another node first")
        if node_id == node.id:
            await store.leadership.hand_over()
            raise errors.NotReady(
                "leadership is being transferred before this node is removed", hint="the call is retried automatically"
            )
        # The mark comes first: from the change of members on the node is refused, and must be told why.
        if node.machine.get(removed_key(node_id)) is None:
            await store.put(removed_key(node_id), b"")
        if node_id in self._members():
            await node.change_members([(REMOVED, node_id)])
        if node.machine.get(node_key(node_id)) is not None:
            await store.delete(node_key(node_id))
        return {}

    async def transfer(self, arguments: Document) -> Document:
        """Transfers leadership. Returns the leader known afterwards: this node, if the transfer failed."""
        node, to = self._host.node, self._member(arguments) if arguments.get("node") else 0
        if to and to not in node.members.voters:
            raise errors.InvalidInput(
                f"{wire.id_text(to)} is a learner; only a voter can become leader",
                hint="promote it first: icestream cluster promote",
            )
        await self._host.running.leadership.hand_over(to)
        return {"leader": wire.id_text(node.leader)}

    async def snapshot(self, arguments: Document) -> Document:
        """Takes a snapshot of this node's state machine now."""
        await self._host.running.snapshots.take_now()
        return to_document(self._host.info())

    def _members(self) -> tuple[int, ...]:
        return (*self._host.node.members.voters, *self._host.node.members.learners)

    def _member(self, arguments: Document) -> int:
        node_id = wire.id_of(arguments, "node")
        if node_id not in self._members():
            raise _no_node(node_id)
        return node_id

    def _member_or_recorded(self, arguments: Document) -> int:
        """The id of a member, or of a node whose join or removal was interrupted."""
        node_id, machine = wire.id_of(arguments, "node"), self._host.node.machine
        is_recorded = any(machine.get(key(node_id)) is not None for key in (removed_key, node_key))
        return node_id if is_recorded else self._member(arguments)


def _no_node(node_id: int) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{wire.id_text(node_id)} is not a node of this cluster", hint="`icestream cluster status` lists them"
    )
