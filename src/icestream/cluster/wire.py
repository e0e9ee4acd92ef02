"""The protocol between nodes of a cluster. This page is the contract.

Frames as in the native protocol (rpc/frame.py), never compressed, at most PEER_FRAME_BYTES_MAX. A node dials every
other one; messages go the way of the connection, calls are answered on it. A snapshot has a connection of its own.

    HELLO            ->   MAGIC (8 bytes), then a document {version, cluster, node, address, to}
                          cluster: 32 hex digits, empty for a node that has none; node, to: 16 hex digits of an id;
                          to: the node that is meant, empty for any; address: where this node can be dialled
    WELCOME          <-   a document {version, cluster, node, founder, address}; founder: of the cluster
    ERROR            <-   instead: another cluster, another node, another version. The connection is closed

    AppendEntries    ->   one eraftpb Message: entries, heartbeats, read indexes, or the answers to them
    Vote             ->   the same for elections and leadership transfers
    CALL             ->   a document {method, arguments}; RESULT or ERROR with its number comes back
        GetNodeInfo       node: the caller, or empty; -> identity and state of this node, and what it remembers of the
                          caller (node_info.py). The only call that is allowed before there is a cluster
        Confirmed         node, term, index: what it has synced (promises.py)
        ClientWrite       envelope (metadata/command.py): applied by the leader, which stamps the time; -> answer
        RenewLease        key, revision: kept by the leader without an entry (metadata/leases.py); -> held
        StateHash         node, index, hash: the SHA-256 of its state there (state_comparison.py)
        Join              node, record, token (join_token.py); rejoins, predecessor of a rejoining node (rejoin.py):
                          becomes a learner, later a voter; any node accepts the call, the leader executes it
        Invite            address of a member and a token, for a node that waits for others: it then asks that member
                          to join
        IsMember          node, name: whether a node of this id and name is a member (member_check.py); -> is_member
        Remove, Promote, Transfer, Snapshot    node: operator calls (calls.py)

    InstallSnapshot  ->   the eraftpb Message that announces a snapshot; then
    CHUNK            ->   bytes of its state, in order, any number of them
    END              ->   empty: everything was sent. RESULT if size and SHA-256 match the announcement, else ERROR

Messages and calls before both sides know that they belong to the same cluster are refused, except GetNodeInfo and
Invite. With accounts, a node that the cluster has no record of may also call Join, and nothing else; its messages are
dropped until a member confirms it (member_check.py), and so are messages from another id than that of the greeting.
An invalid frame closes the connection and has no other effect.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, Final, NamedTuple

from icestream import errors, limits
from icestream.metadata import eraftpb
from icestream.metadata.log_format import NO_CLUSTER
from icestream.rpc import document
from icestream.rpc.frame import encode_frame

MAGIC: Final = b"ICESRAFT"
ID: Final = re.compile(r"[0-9a-fA-F]{1,16}")
VERSION: Final = 1


class PeerFrame(IntEnum):
    """The kinds of frames; numbers are never reused."""

    HELLO = 1
    WELCOME = 2
    CALL = 3
    RESULT = 4
    ERROR = 5
    APPEND_ENTRIES = 32
    VOTE = 33
    INSTALL_SNAPSHOT = 34
    CHUNK = 35
    END = 36


MESSAGES: Final = frozenset({PeerFrame.APPEND_ENTRIES, PeerFrame.VOTE})
FIRST: Final = frozenset({PeerFrame.HELLO})
FROM_DIALLER: Final = MESSAGES | {PeerFrame.CALL, PeerFrame.INSTALL_SNAPSHOT, PeerFrame.CHUNK, PeerFrame.END}
FROM_DIALLED: Final = frozenset({PeerFrame.WELCOME, PeerFrame.RESULT, PeerFrame.ERROR})
_FRAME_OF_RPC: Final = {
    "AppendEntries": PeerFrame.APPEND_ENTRIES,
    "Vote": PeerFrame.VOTE,
    "InstallSnapshot": PeerFrame.INSTALL_SNAPSHOT,
}


class PeerHello(NamedTuple):
    """The greeting of the dialling node."""

    cluster: bytes  # NO_CLUSTER: none yet
    node: int
    address: str
    to: int  # 0: any node


class PeerWelcome(NamedTuple):
    """The greeting of the dialled node."""

    cluster: bytes
    node: int
    founder: int
    address: str


def encode_message(data: bytes) -> bytes:
    """A frame for one eraftpb Message."""
    return encode_frame(_FRAME_OF_RPC[eraftpb.rpc_of(data)], 0, data)


def encode_hello(hello: PeerHello) -> bytes:
    """The body of a HELLO frame."""
    fields = {
        "version": VERSION,
        "cluster": cluster_text(hello.cluster),
        "node": id_text(hello.node),
        "address": hello.address,
        "to": id_text(hello.to) if hello.to else "",
    }
    return MAGIC + document.encode(fields)


def decode_hello(body: bytes) -> PeerHello:
    """Decodes the body of a HELLO frame. Raises DecodeError, UnknownVersion."""
    if body[: len(MAGIC)] != MAGIC:
        raise errors.DecodeError("HELLO does not begin with the magic bytes", hint="is this the Raft port of a node?")
    fields = document.decode(body[len(MAGIC) :])
    _check_version(fields)
    to = document.text_of(fields, "to", limits.NAME_BYTES_MAX, "")
    return PeerHello(_cluster_of(fields), id_of(fields, "node"), address_of(fields), id_of(fields, "to") if to else 0)


def encode_welcome(welcome: PeerWelcome) -> bytes:
    fields = {
        "version": VERSION,
        "cluster": cluster_text(welcome.cluster),
        "node": id_text(welcome.node),
        "founder": id_text(welcome.founder) if welcome.founder else "",
        "address": welcome.address,
    }
    return document.encode(fields)


def decode_welcome(body: bytes) -> PeerWelcome:
    """Decodes the body of a WELCOME frame. Raises DecodeError, UnknownVersion."""
    fields = document.decode(body)
    _check_version(fields)
    founder = document.text_of(fields, "founder", limits.NAME_BYTES_MAX, "")
    return PeerWelcome(
        _cluster_of(fields), id_of(fields, "node"), id_of(fields, "founder") if founder else 0, address_of(fields)
    )


def _check_version(fields: dict[str, Any]) -> None:
    version = document.number_of(fields, "version", 1, 2**16)
    if version != VERSION:
        raise errors.UnknownVersion(
            f"the other node has version {version} of the cluster protocol, this node has {VERSION}",
            hint="run the same version of Icestream on all nodes",
        )


# --- fields -----------------------------------------------------------------------------------------------------------


def id_text(node_id: int) -> str:
    """A node id as 16 hex digits."""
    return f"{node_id:016x}"


def id_of(fields: dict[str, Any], key: str) -> int:
    """The node id in a field. Raises DecodeError."""
    text = document.text_of(fields, key, limits.NAME_BYTES_MAX)
    return parse_id(text)


def parse_id(text: str) -> int:
    """Parses a node id of hex digits. Raises DecodeError."""
    node_id = int(text, 16) if ID.fullmatch(text) else 0
    if not node_id:
        raise errors.DecodeError(f"{text[:40]!r} is not a node id", hint="16 hex digits, as `cluster status` shows")
    return node_id


def cluster_text(cluster_id: bytes) -> str:
    return "" if cluster_id == NO_CLUSTER else cluster_id.hex()


def _cluster_of(fields: dict[str, Any]) -> bytes:
    text = document.text_of(fields, "cluster", limits.NAME_BYTES_MAX, "")
    if not text:
        return NO_CLUSTER
    try:
        cluster_id = bytes.fromhex(text)
    except ValueError:
        cluster_id = b""
    if len(cluster_id) != len(NO_CLUSTER):
        raise errors.DecodeError("invalid cluster id")
    return cluster_id


def address_of(fields: dict[str, Any], key: str = "address") -> str:
    """The address in a field, empty if there is none. Raises DecodeError."""
    text = document.text_of(fields, key, limits.NAME_BYTES_MAX, "")
    if text:
        split_address(text)
    return text


def split_address(text: str) -> tuple[str, int]:
    """Splits `host:port`. Raises DecodeError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise errors.DecodeError(f"{text[:60]!r} is not an address host:port")
    return host.strip("[]"), int(port)


def dialled(text: str) -> tuple[str, int]:
    """The address to dial: a wildcard address is reached on the loopback interface."""
    host, port = split_address(text)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
