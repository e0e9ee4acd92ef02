"""Records of nodes, and which of them should be voters. Pure; evaluated repeatedly by the leader.

    key /cluster/nodes/<id>      a document in JSON: name, address (Raft), native, danube, http, mqtt, warehouse;
                                 written by the leader for a node that joins, or starts elsewhere
    key /cluster/removed/<id>    this node was removed for good: Raft must not reuse an id. Once it is not a member
                                 either, its connections are refused with the reason, and it stops. Empty, or a document
                                 in JSON: successor, the id of the node that has its messages now (rejoin.py)

    key /cluster/join_tokens/<hash>    a token with which a node may join (join_token.py)
    key /cluster/superseded/<id of a cluster>    the cluster that this one replaced (force_new_cluster.py): its nodes
                                 may not use the warehouse any more (processes/node/directory_fence.py)

One voter up to two nodes, three from three on, five from five on: an even number would not survive more failures.
Further nodes are learners, which replicate everything and do not vote. A learner becomes a voter when it has caught
up; all that are due are promoted in one change. Nodes are demoted and removed only by an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.metadata.eraftpb import Membership

NODES: Final = "/cluster/nodes/"
REMOVED_NODES: Final = "/cluster/removed/"
SUPERSEDED_CLUSTERS: Final = "/cluster/superseded/"
VOTER, REMOVED, LEARNER = 0, 1, 2
Changes = list[tuple[int, int]]


class RemovedRecord(msgspec.Struct, frozen=True):
    """A node that was removed, and its successor."""

    successor: str = ""  # node id; empty: no node has its messages


class NodeRecord(msgspec.Struct, frozen=True):
    """A node and its addresses, as the cluster knows it."""

    name: str
    address: str
    native: str = ""
    danube: str = ""
    http: str = ""
    warehouse: str = ""  # its location, where that is a directory (shared_warehouse.py)
    warehouse_mark: str = ""  # what the node found in it
    mqtt: str = ""  # host:port; empty while the node serves no MQTT
    mqtt_ws: str = ""  # the same for WebSocket


def node_key(node_id: int) -> str:
    """The key of a node's record."""
    return f"{NODES}{node_id:016x}"


def id_of_key(key: str) -> int:
    """The node id in the key of a node record."""
    return int(key.removeprefix(NODES), 16)


def removed_key(node_id: int) -> str:
    """The key that marks a node as removed."""
    return f"{REMOVED_NODES}{node_id:016x}"


def encode_removed(successor: str) -> bytes:
    return msgspec.json.encode(RemovedRecord(successor)) if successor else b""


def successor_of(value: bytes) -> str:
    """The id of the node that has the messages of a removed node; empty if there is none."""
    if not value:
        return ""
    try:
        return msgspec.json.decode(value, type=RemovedRecord).successor
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.MetadataDamaged(f"the record of a removed node cannot be decoded: {error}") from None


def removed(node_id: int, cluster: bytes) -> errors.NodeRemoved:
    """The error that a removed node gets when it connects, and stops with."""
    return errors.NodeRemoved(
        f"node {node_id:016x} was removed from cluster {cluster.hex()[:8]}",
        hint="its id is never used again: `icestream cluster rejoin` lets it join as a new node, with the "
        "topics that no node has taken over or deleted; or start it with an empty data_dir and `icestream serve --join "
        "HOST:PORT` (the Raft port of a node of the cluster)",
    )


def encode_record(record: NodeRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_record(value: bytes) -> NodeRecord:
    try:
        return msgspec.json.decode(value, type=NodeRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.MetadataDamaged(f"the record of a node cannot be decoded: {error}") from None


def voters_wanted(nodes: int) -> int:
    """The number of voters of a cluster with this many nodes: 1, 3 or 5."""
    if nodes < 3:
        return 1
    return 3 if nodes < 5 else 5


def promotions(members: Membership, progress: Mapping[int, tuple[int, int, bool]], last: int) -> Changes:
    """The learners to promote now: all that are missing, or none, so that the number of voters stays odd."""
    # A change of members is in progress: Raft allows one at a time.
    if members.voters_outgoing or members.learners_next:
        return []
    nodes = len(members.voters) + len(members.learners)
    missing = voters_wanted(nodes) - len(members.voters)
    ready = [
        node_id
        for node_id in members.learners
        if (state := progress.get(node_id)) and state[2] and last - state[0] <= limits.LEARNER_BEHIND_MAX
    ]
    if missing <= 0 or len(ready) < missing:
        return []
    return [(VOTER, node_id) for node_id in sorted(ready)[:missing]]
