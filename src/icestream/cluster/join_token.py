"""One-time tokens with which a node joins a cluster that has accounts (hazard 105). Pure.

    key /cluster/join_tokens/<SHA-256 of the token>    a document in JSON: node, the name that may join with it. It
                                                       expires with the token; the join that uses it deletes it

A certificate proves which node asks; the token proves that an administrator wants it now, so a certificate that leaked
or was never revoked is not enough to become a member. The record of the node is created and the token deleted in one
transaction: a token makes one member, whichever nodes are asked, and a join that is repeated finds its record.

Only the hash is stored: exports and snapshots of the metadata store open nothing.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from icestream import errors

JOIN_TOKENS: Final = "/cluster/join_tokens/"


class JoinTokenRecord(msgspec.Struct, frozen=True):
    node: str  # the name of the node that may use it


def token_key(token: str) -> str:
    """The key of a token's record."""
    return f"{JOIN_TOKENS}{hashlib.sha256(token.encode()).hexdigest()}"


def encode_token(node: str) -> bytes:
    return msgspec.json.encode(JoinTokenRecord(node))


def check_token(value: bytes | None, node: str) -> None:
    """Raises ConfigurationError unless a record with this value lets the node of this name join. None: no record."""
    if value is None:
        raise errors.ConfigurationError(
            "the join token of this node is unknown: it expired, was used, or is that of another cluster",
            hint=f"make another one on a node of the cluster: icestream cluster join-token {node} --file FILE",
        )
    try:
        record = msgspec.json.decode(value, type=JoinTokenRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.MetadataDamaged(f"the record of a join token cannot be decoded: {error}") from None
    if record.node != node:
        raise errors.ConfigurationError(
            "the join token of this node was made for another node",
            hint=f"set node.name to its name, or make one for {node}: icestream cluster join-token {node} --file FILE",
        )


def token_missing(node: str) -> errors.ConfigurationError:
    """The refusal of a node that joins a cluster with accounts without a token."""
    return errors.ConfigurationError(
        "the cluster has accounts, and this node has no join token",
        hint=f"on a node of the cluster: icestream cluster join-token {node} --file FILE; then start this one with "
        "--set meta_store.join_token=file:FILE",
    )
