"""What nodes ask each other (wire.py), and what an operator asks of the cluster through any of them.

Whatever changes something is done by the leader; another node that is asked passes it on once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from icestream import errors, limits
from icestream.cluster import wire
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
    first_of,
)
from icestream.metadata import command as cmd
from icestream.metadata.log_format import Promise
from icestream.rpc import document

if TYPE_CHECKING:
    from icestream.cluster.cluster_node import ClusterNode

Document = dict[str, Any]
DIGEST_BYTES: Final = 32


class Calls:
    def __init__(self, host: ClusterNode) -> None:
        self._host = host
        self.table = {
            "GetNodeInfo": self.get_node_info,
            "ClientWrite": self.client_write,
            "RenewLease": self.renew_lease,
            "StateHash": self.state_hash,
            "Confirmed": self.confirmed,
            "Join": self._by_leader("Join", self.join),
            "Promote": self._by_leader("Promote", self.promote),
            "Remove": self._by_leader("Remove", self.remove),
            "Transfer": self._by_leader("Transfer", self.transfer),
            "Snapshot": self.snapshot,
            "Invite": self.invite,
        }

    def _by_leader(self, method: str, do: Callable[[Document], Awaitable[Document]]) -> Any:
        async def call(given: Document) -> Document:
            node = self._host.node
            if node.leads:
                return await do(given)
            if not node.leader or node.leader == node.id or given.get("passed_on"):
                raise errors.NotReady("no node leads now", hint="it is tried again by itself")
            return await self._host.peers.call(node.leader, method, {**given, "passed_on": True})

        return call

    async def get_node_info(self, given: Document) -> Document:
        asking = wire.id_of(given, "node") if given.get("node") else 0
        return to_document(self._host.info(asking))

    async def confirmed(self, given: Document) -> Document:
        term, index = document.number_of(given, "term", 0, 2**63), document.number_of(given, "index", 0, 2**63)
        self._host.memory.heard(wire.id_of(given, "node"), Promise(term, index))
        return {}

    async def client_write(self, given: Document) -> Document:
        envelope = given.get("envelope")
        if not isinstance(envelope, bytes):
            raise errors.DecodeError("a ClientWrite without an envelope")
        asked = cmd.decode_envelope(envelope)
        store = self._host.running
        if not store.node.leads:
            raise errors.NotReady("this node does not lead", hint="ask the node that does")
        answer = await store.propose(asked.command, asked.client, asked.sequence)
        store.node.telling.now()  # the one that asks waits until its own state has it
        return {"answer": msgspec.msgpack.encode(answer)}

    async def renew_lease(self, given: Document) -> Document:
        key, revision = given.get("key"), given.get("revision")
        if not isinstance(key, str) or not isinstance(revision, int):
            raise errors.DecodeError("a RenewLease without a key or a revision")
        return {"held": await self._host.running.renew_here(key, revision)}

    async def state_hash(self, given: Document) -> Document:
        digest, index = given.get("hash"), given.get("index")
        if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES or not isinstance(index, int):
            raise errors.DecodeError("a StateHash without an index or a hash")
        self._host.comparison.heard(wire.id_of(given, "node"), index, digest)
        return {}

    # --- members ---

    async def join(self, given: Document) -> Document:
        """Its address first, so that it can be dialled; then a learner. Harmless when it is known already."""
        node_id, node, store = wire.id_of(given, "node"), self._host.node, self._host.running
        record = given.get("record")
        if not isinstance(record, bytes) or len(record) > limits.METADATA_VALUE_BYTES_MAX:
            raise errors.DecodeError("a Join without a record")
        if node.machine.get(removed_key(node_id)) is not None:
            raise removed(node_id, self._host.identity.cluster_id)
        joining = decode_record(record)
        value = encode_record(joining)
        if given.get("rejoins"):
            await self._remove_predecessor(node_id, joining.name, given)
        self._check_name(node_id, joining.name)
        await self._check_warehouse(joining)
        entry = node.machine.get(node_key(node_id))
        if entry is None or entry.value != value:
            await store.put(node_key(node_id), value)
        if node_id not in self._members():
            await node.change_members([(LEARNER, node_id)])
        return {}

    async def _remove_predecessor(self, successor: int, name: str, given: Document) -> None:
        """Of a node that joins anew (rejoin.py): by its id, or by its name where nothing says the id any more."""
        node, machine = self._host.node, self._host.node.machine
        if given.get("predecessor"):
            gone = wire.id_of(given, "predecessor")
        else:
            records = machine.page(NODES, "", limits.METADATA_LIST_MAX)
            named = [id_of_key(key) for key, entry in records if decode_record(entry.value).name == name]
            gone = next((other for other in named if other != successor), 0)
        is_known = gone in self._members() or machine.get(node_key(gone)) is not None
        if not gone or gone == successor or not (is_known or machine.get(removed_key(gone)) is not None):
            return
        progress = node.status()["progress"].get(gone)
        if gone == node.id or (gone in self._members() and progress is not None and progress[2]):
            raise errors.NotReady(
                f"node {wire.id_text(gone)} still answers, or did a moment ago", hint="it is tried again by itself"
            )
        entry = machine.get(removed_key(gone))
        if entry is None or not entry.value:
            await self._host.running.put(removed_key(gone), encode_removed(wire.id_text(successor)))
        if is_known:
            await self.remove({"node": wire.id_text(gone)})

    def _check_name(self, node_id: int, name: str) -> None:
        """Two nodes of one name could not be told apart by whoever reads a log or a metric. Who was removed is none."""
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
        """Before it is a member: a node that would not find the tables of the others stays outside."""
        host = self._host
        if not joining.warehouse_mark:
            return
        kept = host.node.machine.get(WAREHOUSE)
        first = encode_warehouse(first_of(host.record, joining))
        if kept is None or (host.is_alone and kept.value != first):
            expected = cmd.Absent(WAREHOUSE) if kept is None else cmd.AtRevision(WAREHOUSE, kept.mod_revision)
            await host.running.txn([expected], [cmd.Put(WAREHOUSE, first)])
            kept = await host.running.get(WAREHOUSE)
        if kept is not None:
            check_mark(joining, decode_warehouse(kept.value))
        check_path(joining, host.record)

    async def invite(self, given: Document) -> Document:
        """A node that waits for others is told of one that is of a cluster: it asks that one to let it join."""
        host = self._host
        if host.identity.is_member:
            raise errors.AlreadyExists(
                f"node {wire.id_text(host.id)} is of cluster {host.identity.cluster_id.hex()} already",
                hint="a node that changes clusters begins with an empty data_dir",
            )
        host.invited(wire.address_of(given))
        return {"node": wire.id_text(host.id)}

    async def promote(self, given: Document) -> Document:
        node_id = self._member(given)
        await self._host.node.change_members([(VOTER, node_id)])
        return {}

    async def remove(self, given: Document) -> Document:
        """For good: its id never comes back. A leader that is removed hands over first. Three steps, of which a lost
        lead may leave some undone: whoever asks again has those that are missing done."""
        node_id, node, store = self._known(given), self._host.node, self._host.running
        if node.members.voters == (node_id,):
            raise errors.InvalidInput("the only voter cannot be removed", hint="promote another node first")
        if node_id == node.id:
            await store.leadership.hand_over()
            raise errors.NotReady("the lead was handed over first", hint="it is tried again by itself")
        if node.machine.get(removed_key(node_id)) is None:
            await store.put(removed_key(node_id), b"")
        if node_id in self._members():
            await node.change_members([(REMOVED, node_id)])
        if node.machine.get(node_key(node_id)) is not None:
            await store.delete(node_key(node_id))
        return {}

    async def transfer(self, given: Document) -> Document:
        """Who leads then, as far as this node knows: itself, when nobody took it."""
        node, to = self._host.node, self._member(given) if given.get("node") else 0
        if to and to not in node.members.voters:
            raise errors.InvalidInput(
                f"{wire.id_text(to)} is a learner, and only a voter leads",
                hint="make it one first: icestream cluster promote",
            )
        await self._host.running.leadership.hand_over(to)
        return {"leader": wire.id_text(node.leader)}

    async def snapshot(self, given: Document) -> Document:
        """Of this node, now."""
        await self._host.running.snapshots.take_now()
        return to_document(self._host.info())

    def _members(self) -> tuple[int, ...]:
        return (*self._host.node.members.voters, *self._host.node.members.learners)

    def _member(self, given: Document) -> int:
        node_id = wire.id_of(given, "node")
        if node_id not in self._members():
            raise _no_node(node_id)
        return node_id

    def _known(self, given: Document) -> int:
        """Or one whose removal has begun, or that has only begun to join."""
        node_id, machine = wire.id_of(given, "node"), self._host.node.machine
        is_noted = any(machine.get(key(node_id)) is not None for key in (removed_key, node_key))
        return node_id if is_noted else self._member(given)


def _no_node(node_id: int) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{wire.id_text(node_id)} is no node of this cluster", hint="`icestream cluster status` lists them"
    )
