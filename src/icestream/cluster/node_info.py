"""What a node says of itself: the answer to GetNodeInfo."""

from __future__ import annotations

from typing import Any

import msgspec

from icestream import errors
from icestream.metadata.log_format import NO_CLUSTER

ROLES = ("follower", "candidate", "leader", "candidate")


class NodeInfo(msgspec.Struct, frozen=True):
    """Ids are numbers here and hex digits on the wire."""

    node: int
    cluster: bytes = NO_CLUSTER
    founder: int = 0
    name: str = ""
    address: str = ""
    role: str = ""
    term: int = 0
    leader: int = 0
    commit: int = 0
    applied: int = 0
    last: int = 0
    revision: int = 0
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    snapshot_index: int = 0
    snapshot_digest: str = ""
    remembered_term: int = 0  # what this node knows that the one that asks has confirmed (promises.py)
    remembered_index: int = 0


def to_document(info: NodeInfo) -> dict[str, Any]:
    found = msgspec.structs.asdict(info)
    found["cluster"] = "" if info.cluster == NO_CLUSTER else info.cluster.hex()
    for key in ("node", "founder", "leader"):
        found[key] = f"{found[key]:016x}"
    for key in ("voters", "learners"):
        found[key] = [f"{one:016x}" for one in found[key]]
    return found


def from_document(found: dict[str, Any]) -> NodeInfo:
    try:
        known = {key: found[key] for key in NodeInfo.__struct_fields__ if key in found}
        for key in ("node", "founder", "leader"):
            known[key] = int(known.get(key, "0"), 16)
        for key in ("voters", "learners"):
            known[key] = tuple(int(one, 16) for one in known.get(key, ()))
        known["cluster"] = bytes.fromhex(known.get("cluster", "")) or NO_CLUSTER
        return msgspec.convert(known, NodeInfo)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise errors.DecodeError(f"this is no description of a node: {error}") from None
