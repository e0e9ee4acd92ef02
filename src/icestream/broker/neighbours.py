"""Which topics are this node's, and where the others are.

A topic is served by the node that made it, whose log has its messages: `owner` in its record, the id of that node. Ids
are made of chance and never come back (cluster/members.py), so a node that takes the place of another one does not take
its topics for its own: it does not have their messages. Records of before there were owners are the founder's.

Reads here go to the state of this node, at once and however old: an owner never changes.
"""

from __future__ import annotations

from collections.abc import Callable

from icestream import errors
from icestream.broker import records
from icestream.cluster.members import NODES, NodeRecord, decode_record
from icestream.model.topic_name import TopicName


def _nothing(key: str) -> bytes | None:
    return None


class Neighbours:
    """Without arguments: a node that has none and never will, as one in memory."""

    def __init__(self, own: str = "", founder: str = "", peek: Callable[[str], bytes | None] = _nothing) -> None:
        """`own`, `founder`: ids of nodes. `peek`: what the state of this node has under a key."""
        self.own = own
        self._founder = founder
        self._peek = peek

    @property
    def there_may_be_some(self) -> bool:
        return bool(self.own)

    def is_own(self, owner: str) -> bool:
        return not self.own or (owner or self._founder) == self.own

    def is_unclaimed(self, owner: str) -> bool:
        """This node's, and nobody has written that down."""
        return bool(self.own) and not owner and self.is_own(owner)

    def find(self, name: TopicName) -> records.TopicRecord | None:
        """A topic of whomever, as far as this node knows."""
        key = records.topic_key(name)
        value = self._peek(key)
        return records.decode(records.TopicRecord, key, value) if value is not None else None

    def namespace(self, name: str) -> records.Namespace | None:
        key = records.namespace_key(name)
        value = self._peek(key)
        return records.decode(records.Namespace, key, value) if value is not None else None

    def node(self, owner: str) -> NodeRecord | None:
        value = self._peek(NODES + (owner or self._founder))
        return decode_record(value) if value is not None else None

    def elsewhere(self, name: TopicName, record: records.TopicRecord) -> errors.TopicElsewhere:
        """What whoever asks this node for it is told."""
        node = self.node(record.owner)
        if node is None:
            return errors.TopicElsewhere(
                f"topic {name} is served by node {record.node}, which is not in the cluster any more",
                hint="its messages are in that node's log: start it with its data, or delete the topic",
            )
        places = {"native": node.native, "danube": node.danube, "http": node.http}
        known = {way: place for way, place in places.items() if place}
        return errors.TopicElsewhere(
            f"topic {name} is served by node {node.name}",
            hint=f"ask that node: {known.get('native') or node.address}",
            details=known,
        )
