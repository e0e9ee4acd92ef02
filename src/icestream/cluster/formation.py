"""Formation of a cluster from seed nodes that list each other. Pure: replies in, decision out.

    1  the node id is random and synced before it is sent to any other node
    2  every seed node is asked for its identity (GetNodeInfo), repeatedly
    3  one is a member of a cluster            -> adopt its cluster id, synced; request to join
       all answer, none is, this id is lowest  -> found a cluster with this node as its only voter, synced
       else                                    -> wait, and ask again
    4  a node that joined is a learner, and becomes a voter when it has caught up (members.py)

Only the synced identity in its log makes a node a member of a cluster, so a node that crashes at any point repeats the
same decision. Only one node has the lowest id of a list, so there is one founder. Lists that differ between nodes can
result in two clusters, which refuse each other; nothing is mixed. Separate from cluster_node.py so that the decision is
tested for every combination of answers, without a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icestream import errors
from icestream.cluster.node_info import NodeInfo
from icestream.metadata.log_format import NO_CLUSTER


@dataclass(frozen=True, slots=True)
class JoinCluster:
    """This node joins the cluster of an answering seed node."""

    cluster: bytes
    founder: int
    address: str  # of a member


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """This node founds the cluster."""


@dataclass(frozen=True, slots=True)
class WaitForSeeds:
    """No decision yet, and why."""

    reason: str


def decide(
    own_id: int, seeds: Sequence[str], answers: Mapping[str, NodeInfo]
) -> JoinCluster | FoundCluster | WaitForSeeds:
    """Decides what this node does next. `answers`: by seed address, this node's own included.

    Raises ForeignCluster if the seeds belong to two clusters.
    """
    formed = {address: info for address, info in answers.items() if info.cluster != NO_CLUSTER}
    if len({info.cluster for info in formed.values()}) > 1:
        clusters = ", ".join(f"{address} ({info.cluster.hex()[:8]})" for address, info in sorted(formed.items()))
        raise errors.ForeignCluster(
            f"the seed nodes belong to different clusters: {clusters}", hint="list nodes of one cluster only"
        )
    if formed:
        address, info = min(formed.items())
        return JoinCluster(info.cluster, info.founder, address)
    # All must answer: a silent seed may be a member of a cluster, and founding a second one would split the nodes.
    missing = [address for address in seeds if address not in answers]
    if missing:
        return WaitForSeeds(f"no answer from {', '.join(missing)}")
    lowest = min(info.node for info in answers.values())
    if lowest == own_id:
        return FoundCluster()
    return WaitForSeeds(f"node {lowest:016x} founds the cluster")
