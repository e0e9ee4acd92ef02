"""How nodes that list each other become one cluster, once. Pure: what is known in, what to do out.

    1  the id of the node is made of chance and synced; only then it says anything to anybody
    2  every seed node is asked who it is (GetNodeInfo), again and again
    3  one of them is of a cluster             -> take over its id, synced; ask it to let this node join
       all answer, none is, this id is lowest  -> a new cluster with this node as its only voter, synced
       else                                    -> wait, and ask again
    4  whoever joined is a learner, and a voter when it has caught up and enough are there (members.py)

Whether a node is of a cluster is said by the synced identity in its log, and by nothing else: a crash at any point
leaves a node that does the same again. Two nodes cannot both be lowest of the same list, so there is one founder. A
list that differs from node to node can give two clusters, which then refuse each other; nothing is mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icestream import errors
from icestream.cluster.node_info import NodeInfo
from icestream.metadata.log_format import NO_CLUSTER


@dataclass(frozen=True, slots=True)
class Join:
    cluster: bytes
    founder: int
    address: str  # of a node that is of it


@dataclass(frozen=True, slots=True)
class Found:
    """This node begins the cluster."""


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


def decide(own_id: int, seeds: Sequence[str], answers: Mapping[str, NodeInfo]) -> Join | Found | Wait:
    """`answers`: by seed address, this node's own included. Raises ConfigurationError when there are two clusters."""
    formed = {address: info for address, info in answers.items() if info.cluster != NO_CLUSTER}
    if len({info.cluster for info in formed.values()}) > 1:
        named = ", ".join(f"{address} ({info.cluster.hex()[:8]})" for address, info in sorted(formed.items()))
        raise errors.ForeignCluster(
            f"the seed nodes are of different clusters: {named}", hint="list nodes of one cluster only"
        )
    if formed:
        address, info = min(formed.items())
        return Join(info.cluster, info.founder, address)
    missing = [address for address in seeds if address not in answers]
    if missing:
        return Wait(f"no answer from {', '.join(missing)}")
    lowest = min(info.node for info in answers.values())
    if lowest == own_id:
        return Found()
    return Wait(f"node {lowest:016x} begins the cluster")
