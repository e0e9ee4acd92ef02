"""Identity and state of a node: the reply to GetNodeInfo."""

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
    remembered_term: int = 0  # what this node remembers of the caller (promises.py)
    remembered_index: int = 0
    is_certified: bool = False  # other nodes prove to it by certificates which nodes they are (tls.py)
    security: int = 0  # the version of the security records that the node knows; 0: none


def to_document(info: NodeInfo) -> dict[str, Any]:
    """The reply document."""
    fields = msgspec.structs.asdict(info)
    fields["cluster"] = "" if info.cluster == NO_CLUSTER else info.cluster.hex()
    for key in ("node", "founder", "leader"):
        fields[key] = f"{fields[key]:016x}"
    for key in ("voters", "learners"):
        fields[key] = [f"{node_id:016x}" for node_id in fields[key]]
    return fields


def from_document(fields: dict[str, Any]) -> NodeInfo:
    """Decodes a reply. Raises DecodeError."""
    try:
        values = {key: fields[key] for key in NodeInfo.__struct_fields__ if key in fields}
        for key in ("node", "founder", "leader"):
            values[key] = int(values.get(key, "0"), 16)
        for key in ("voters", "learners"):
            values[key] = tuple(int(text, 16) for text in values.get(key, ()))
        values["cluster"] = bytes.fromhex(values.get("cluster", "")) or NO_CLUSTER
        return msgspec.convert(values, NodeInfo)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise errors.DecodeError(f"invalid node info: {error}") from None
