"""Who should be a voter, and what the cluster knows of each node. Pure; the leader asks again and again.

    key /cluster/nodes/<id>      a document in JSON: name, address (Raft), native, danube, http, warehouse; written by
                                 the leader for a node that joins, or starts elsewhere
    key /cluster/removed/<id>    this node was removed and never comes back: Raft gives no id twice. Once it is no
                                 member either, nobody listens to it; it is told so, and stops. Empty, or a document in
                                 JSON: successor, the id of the node that has its messages now (rejoin.py)

    key /cluster/superseded/<id of a cluster>    the cluster that this one replaced (force_new_cluster.py): its nodes
                                 may not use the warehouse any more (server/warehouse_fence.py)

One voter up to two nodes, three from three on, five from five on: an even number would not outlive more. Nodes above
that are learners, which have everything and count in no majority. A learner becomes a voter when it has caught up; as
many as are due at once, in one change. Nobody is made a learner again by itself: an operator removes nodes.
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
    successor: str = ""  # the id of a node; empty: nobody has its messages


class NodeRecord(msgspec.Struct, frozen=True):
    name: str
    address: str
    native: str = ""
    danube: str = ""
    http: str = ""
    warehouse: str = ""  # its location, where that is a directory (shared_warehouse.py)
    warehouse_mark: str = ""  # what the node found in it


def node_key(node_id: int) -> str:
    return f"{NODES}{node_id:016x}"


def id_of_key(key: str) -> int:
    """Whose record lies there."""
    return int(key.removeprefix(NODES), 16)


def removed_key(node_id: int) -> str:
    return f"{REMOVED_NODES}{node_id:016x}"


def encode_removed(successor: str) -> bytes:
    return msgspec.json.encode(RemovedRecord(successor)) if successor else b""


def successor_of(value: bytes) -> str:
    """Whose the messages of a removed node are; empty when nobody has them."""
    if not value:
        return ""
    try:
        return msgspec.json.decode(value, type=RemovedRecord).successor
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.MetadataDamaged(f"the record of a removed node does not add up: {error}") from None


def removed(node_id: int, cluster: bytes) -> errors.NodeRemoved:
    """What such a node is told, and what it stops with."""
    return errors.NodeRemoved(
        f"node {node_id:016x} was removed from cluster {cluster.hex()[:8]}",
        hint="it never comes back under its id: `icestream cluster rejoin` lets it join as another node, with the "
        "topics that no node has taken over or deleted; or start it with an empty data_dir and `icestream serve --join "
        "HOST:PORT` (the Raft port of a node of the cluster)",
    )


def encode_record(record: NodeRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_record(value: bytes) -> NodeRecord:
    try:
        return msgspec.json.decode(value, type=NodeRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.MetadataDamaged(f"the record of a node does not add up: {error}") from None


def voters_wanted(nodes: int) -> int:
    if nodes < 3:
        return 1
    return 3 if nodes < 5 else 5


def promotions(members: Membership, progress: Mapping[int, tuple[int, int, bool]], last: int) -> Changes:
    """Learners that become voters now. All that are missing, or none: not one of two."""
    if members.voters_outgoing or members.learners_next:
        return []
    nodes = len(members.voters) + len(members.learners)
    missing = voters_wanted(nodes) - len(members.voters)
    ready = [
        node_id
        for node_id in members.learners
        if (found := progress.get(node_id)) and found[2] and last - found[0] <= limits.LEARNER_BEHIND_MAX
    ]
    if missing <= 0 or len(ready) < missing:
        return []
    return [(VOTER, node_id) for node_id in sorted(ready)[:missing]]
