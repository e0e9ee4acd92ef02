"""The cluster: its nodes, and changes of its members."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from icestream import limits
from icestream.admin_api.admin_call import AdminCall, Answer, EmptyAnswer, NoArguments
from icestream.model.field_metadata import Doc


class AddressOnly(msgspec.Struct):
    address: str


class NodeOnly(msgspec.Struct):
    """`node` is the name of a node, or its id as the status shows it."""

    node: str


class OptionalNode(msgspec.Struct):
    """An empty `node` is the most advanced voter."""

    node: str = ""


class MemberState(Answer):
    node: str
    name: str
    role: Annotated[str, Doc("`leader`, `voter` or `learner`.")]
    address: str
    native: str
    is_up: bool
    applied: int | None
    commit: int | None
    revision: int | None
    snapshot_index: int | None


class ClusterState(Answer):
    cluster: str
    leader: str | None
    term: int
    nodes: list[MemberState]


class JoiningNode(Answer):
    """The node that waits at the address joins as a learner, later as a voter."""

    node: str


class NewJoinToken(msgspec.Struct):
    """`node` is the name of the node that may join with the token."""

    node: str
    ttl_seconds: int = limits.JOIN_TOKEN_SECONDS_DEFAULT


class JoinToken(Answer):
    """A token that lets one node join, once. It is not stored anywhere."""

    token: str
    node: str
    expires_ms: int

    def __repr__(self) -> str:
        return f"JoinToken({self.node})"


class CurrentLeader(Answer):
    leader: str


class MetadataSnapshot(Answer):
    """The snapshot that this node has taken."""

    index: int
    digest: str


class MemberDigest(Answer):
    node: str
    name: str
    sha256: Annotated[str | None, Doc("Of the state at the index; null for a node that is away.")]


class ClusterComparison(Answer):
    """The states of all nodes at one log index."""

    index: int
    is_equal: bool
    nodes: list[MemberDigest]
    away: int


CLUSTER_STATUS: Final = AdminCall("cluster_status", NoArguments, ClusterState)
CLUSTER_ADD: Final = AdminCall("cluster_add", AddressOnly, JoiningNode)
CLUSTER_JOIN_TOKEN: Final = AdminCall("cluster_join_token", NewJoinToken, JoinToken)
CLUSTER_PROMOTE: Final = AdminCall("cluster_promote", NodeOnly, EmptyAnswer)
CLUSTER_REMOVE: Final = AdminCall("cluster_remove", NodeOnly, EmptyAnswer)
CLUSTER_TRANSFER: Final = AdminCall("cluster_transfer", OptionalNode, CurrentLeader)
CLUSTER_SNAPSHOT: Final = AdminCall("cluster_snapshot", NoArguments, MetadataSnapshot)
CLUSTER_VERIFY: Final = AdminCall("cluster_verify", NoArguments, ClusterComparison)
