"""Which node serves a topic.

A topic is served by the node that created it, because that node's log holds its messages: `owner` in the topic record
is the id of that node. Node ids are random and never reused (cluster/members.py), so a replacement node does not
inherit topics whose messages it does not have. The exception is a node that rejoined with its messages: it owns what
its predecessor owned (cluster/rejoin.py). Topic records without an owner, written before clusters existed, belong to
the founding node.

Lookups read this node's local copy of the metadata, without consensus: an owner never changes, so a stale read is safe.
"""

from __future__ import annotations

from collections.abc import Callable

from icestream import errors, limits
from icestream.broker import records
from icestream.cluster.members import NODES, REMOVED_NODES, NodeRecord, decode_record, successor_of
from icestream.model.topic_name import TopicName


def _no_metadata(key: str) -> bytes | None:
    return None


class TopicOwners:
    """Finds the node that serves a topic.

    An instance without a node id, the default, is that of a single node: it owns every topic.
    """

    def __init__(
        self,
        node_id: str = "",
        founder_id: str = "",
        local_get: Callable[[str], bytes | None] = _no_metadata,
        is_reachable: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """`local_get` reads this node's local copy of the metadata. `is_reachable`: whether the node with this id
        answers this one."""
        self.node_id = node_id
        self._founder_id = founder_id
        self._local_get = local_get
        self._is_reachable = is_reachable

    @property
    def is_clustered(self) -> bool:
        """True if other nodes may exist, now or later."""
        return bool(self.node_id)

    def is_local(self, owner_id: str) -> bool:
        """True if this node serves the topics of this owner."""
        return not self.node_id or self.current_owner(owner_id) == self.node_id

    def current_owner(self, owner_id: str) -> str:
        """The id of the node that has the owner's messages now: the owner itself, or the node that it rejoined as."""
        current_id = owner_id or self._founder_id
        for _ in range(limits.NODE_SUCCESSORS_MAX):  # bounded, in case damaged records form a cycle
            value = self._local_get(REMOVED_NODES + current_id)
            successor_id = successor_of(value) if value else ""
            if not successor_id:
                break
            current_id = successor_id
        return current_id

    def is_orphaned(self, owner_id: str) -> bool:
        """True if the owner was removed from the cluster for good and no node has its messages."""
        current_id = self.current_owner(owner_id)
        return self.find_node(owner_id) is None and self._local_get(REMOVED_NODES + current_id) is not None

    def needs_owner_record(self, owner_id: str) -> bool:
        """True for a local topic whose record does not name its owner yet."""
        return bool(self.node_id) and not owner_id and self.is_local(owner_id)

    def find_topic(self, name: TopicName) -> records.TopicRecord | None:
        """The topic record in the local metadata copy, whichever node owns it."""
        key = records.topic_key(name)
        value = self._local_get(key)
        return records.decode(records.TopicRecord, key, value) if value is not None else None

    def find_namespace(self, name: str) -> records.NamespaceRecord | None:
        """The namespace record in the local metadata copy."""
        key = records.namespace_key(name)
        value = self._local_get(key)
        return records.decode(records.NamespaceRecord, key, value) if value is not None else None

    def find_node(self, owner_id: str) -> NodeRecord | None:
        """The node that serves the owner's topics now; None if it is not a member."""
        value = self._local_get(NODES + self.current_owner(owner_id))
        return decode_record(value) if value is not None else None

    def read_local(self, key: str) -> bytes | None:
        """A value in the local metadata copy."""
        return self._local_get(key)

    def redirect_error(self, name: TopicName, record: records.TopicRecord) -> errors.TopicElsewhere:
        """The redirect error that names the node which serves this topic."""
        node = self.find_node(record.owner)
        if node is None:
            return errors.TopicElsewhere(
                f"topic {name} is served by node {record.node}, which is no longer in the cluster",
                hint=f"`icestream topic takeover {name}` lets another node serve it with what its table holds, "
                f"`icestream topic delete {name}` deletes it; messages that only that node's log had are lost",
            )
        all_addresses = {
            "node": node.name,
            "native": node.native,
            "danube": node.danube,
            "http": node.http,
            "mqtt": node.mqtt,
        }
        addresses = {protocol: address for protocol, address in all_addresses.items() if address}
        if not self._is_reachable(int(self.current_owner(record.owner), 16)):
            # An HTTP client would follow the redirect to a dead node. Clients of the other protocols keep retrying.
            addresses.pop("http", None)
            return errors.TopicElsewhere(
                f"topic {name} is served by node {node.name}, which is down or cannot be reached from here",
                hint=f"start {node.name}, or check its network: its clients resume when it is back",
                details=addresses,
            )
        return errors.TopicElsewhere(
            f"topic {name} is served by node {node.name}",
            hint=f"connect to that node: {addresses.get('native') or node.address}",
            details=addresses,
        )
