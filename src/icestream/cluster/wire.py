"""What nodes of a cluster say to each other. This page is the contract.

Frames as in the native protocol (rpc/frame.py), never compressed, at most PEER_FRAME_BYTES_MAX. A node dials every
other one; messages go the way of the connection, calls are answered on it. A snapshot has a connection of its own.

    HELLO            ->   MAGIC (8 bytes), then a document {version, cluster, node, address, to}
                          cluster: 32 hex digits, empty for a node that has none; node, to: 16 hex digits of an id;
                          to: who is meant, empty for whoever is there; address: where this node can be dialled
    WELCOME          <-   a document {version, cluster, node, founder, address}: founder: who began the cluster
    ERROR            <-   instead: another cluster, another node, another version. The connection is closed

    AppendEntries    ->   one eraftpb Message: entries, heartbeats, read indexes, or the answers to them
    Vote             ->   the same for elections and the transfer of the lead
    CALL             ->   a document {method, arguments}; RESULT or ERROR with its number comes back
        GetNodeInfo       node: the one that asks, or nothing; -> who this is, how it stands, and what it remembers of
                          the one that asks (node_info.py). The only one before there is a cluster
        Confirmed         node, term, index: what it has synced (promises.py)
        ClientWrite       envelope (metadata/command.py): carried out by the leader, who stamps the time; -> answer
        RenewLease        key, revision: kept by the leader without an entry (metadata/leases.py); -> held
        StateHash         node, index, hash: the SHA-256 of its state there (state_hashes.py)
        Join              node, record; rejoins, predecessor of a node that joins anew (rejoin.py): becomes a learner,
                          in time a voter; asked of anybody, done by the leader
        Invite            address: of a node of a cluster, which one that waits for others then asks to join
        Remove, Promote, Transfer, Snapshot    node: what an operator asks for (calls.py)

    InstallSnapshot  ->   the eraftpb Message that speaks of a snapshot; then
    CHUNK            ->   bytes of its state, in order, any number of them
    END              ->   nothing: all of it was sent. RESULT when size and SHA-256 are those announced, else ERROR

Messages and calls that come before both sides know that they are of one cluster are refused, except GetNodeInfo.
What is not valid ends the connection, and nothing else.
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


class Kind(IntEnum):
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


MESSAGES: Final = frozenset({Kind.APPEND_ENTRIES, Kind.VOTE})
FIRST: Final = frozenset({Kind.HELLO})
FROM_DIALLER: Final = MESSAGES | {Kind.CALL, Kind.INSTALL_SNAPSHOT, Kind.CHUNK, Kind.END}
FROM_DIALLED: Final = frozenset({Kind.WELCOME, Kind.RESULT, Kind.ERROR})
_KIND_OF_RPC: Final = {
    "AppendEntries": Kind.APPEND_ENTRIES,
    "Vote": Kind.VOTE,
    "InstallSnapshot": Kind.INSTALL_SNAPSHOT,
}


class Hello(NamedTuple):
    cluster: bytes  # NO_CLUSTER: none yet
    node: int
    address: str
    to: int  # 0: whoever is there


class Welcome(NamedTuple):
    cluster: bytes
    node: int
    founder: int
    address: str


def encode_message(data: bytes) -> bytes:
    """A frame for one eraftpb Message."""
    return encode_frame(_KIND_OF_RPC[eraftpb.rpc_of(data)], 0, data)


def encode_hello(hello: Hello) -> bytes:
    found = {
        "version": VERSION,
        "cluster": cluster_text(hello.cluster),
        "node": id_text(hello.node),
        "address": hello.address,
        "to": id_text(hello.to) if hello.to else "",
    }
    return MAGIC + document.encode(found)


def decode_hello(body: bytes) -> Hello:
    """Raises DecodeError, UnknownVersion."""
    if body[: len(MAGIC)] != MAGIC:
        raise errors.DecodeError("a HELLO without its magic", hint="is this the Raft port of a node?")
    found = document.decode(body[len(MAGIC) :])
    _check_version(found)
    to = document.text_of(found, "to", limits.NAME_BYTES_MAX, "")
    return Hello(_cluster_of(found), id_of(found, "node"), address_of(found), id_of(found, "to") if to else 0)


def encode_welcome(welcome: Welcome) -> bytes:
    found = {
        "version": VERSION,
        "cluster": cluster_text(welcome.cluster),
        "node": id_text(welcome.node),
        "founder": id_text(welcome.founder) if welcome.founder else "",
        "address": welcome.address,
    }
    return document.encode(found)


def decode_welcome(body: bytes) -> Welcome:
    found = document.decode(body)
    _check_version(found)
    founder = document.text_of(found, "founder", limits.NAME_BYTES_MAX, "")
    return Welcome(
        _cluster_of(found), id_of(found, "node"), id_of(found, "founder") if founder else 0, address_of(found)
    )


def _check_version(found: dict[str, Any]) -> None:
    version = document.number_of(found, "version", 1, 2**16)
    if version != VERSION:
        raise errors.UnknownVersion(
            f"the other node speaks version {version} of the cluster protocol, this one {VERSION}",
            hint="bring both to one version of Icestream",
        )


# --- fields -----------------------------------------------------------------------------------------------------------


def id_text(node_id: int) -> str:
    return f"{node_id:016x}"


def id_of(found: dict[str, Any], key: str) -> int:
    text = document.text_of(found, key, limits.NAME_BYTES_MAX)
    return parse_id(text)


def parse_id(text: str) -> int:
    """Raises DecodeError for what is no id of a node."""
    node_id = int(text, 16) if ID.fullmatch(text) else 0
    if not node_id:
        raise errors.DecodeError(f"{text[:40]!r} is no id of a node", hint="16 hex digits, as `cluster status` shows")
    return node_id


def cluster_text(cluster_id: bytes) -> str:
    return "" if cluster_id == NO_CLUSTER else cluster_id.hex()


def _cluster_of(found: dict[str, Any]) -> bytes:
    text = document.text_of(found, "cluster", limits.NAME_BYTES_MAX, "")
    if not text:
        return NO_CLUSTER
    try:
        cluster_id = bytes.fromhex(text)
    except ValueError:
        cluster_id = b""
    if len(cluster_id) != len(NO_CLUSTER):
        raise errors.DecodeError("cluster is no id of a cluster")
    return cluster_id


def address_of(found: dict[str, Any], key: str = "address") -> str:
    text = document.text_of(found, key, limits.NAME_BYTES_MAX, "")
    if text:
        split_address(text)
    return text


def split_address(text: str) -> tuple[str, int]:
    """Raises DecodeError for what is no `host:port`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise errors.DecodeError(f"{text[:60]!r} is no address host:port")
    return host.strip("[]"), int(port)


def dialled(text: str) -> tuple[str, int]:
    """Where to reach an address: one that means every interface of a machine is reached on this one."""
    host, port = split_address(text)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
