"""Makes a cluster of one node out of what one node has, when a majority of the voters is lost for good.

    1  everything in its log counts, whoever confirmed it; changes of members are passed over; it is the only voter
    2  the other nodes are written down as removed: their ids never come back
    3  a snapshot with this node as the only voter takes the place of the log before it
    4  a new cluster id, synced: nodes of the old cluster are strangers from now on

Offline: the node must not run. What only the lost nodes had is lost, and what was never confirmed may count now; that
is why a person has to ask for it. Cut off anywhere, it is run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from icestream import errors
from icestream.cluster.members import NODES, removed_key
from icestream.metadata import eraftpb
from icestream.metadata.command import Delete, Operation, Put
from icestream.metadata.core import Core, HardState
from icestream.metadata.eraftpb import Membership
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions, OpenedMetadata, new_identity, open_directory
from icestream.metadata.solo_core import SoloCore
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness


class Forced(NamedTuple):
    node_id: int
    cluster_id: bytes
    keys: int
    removed: list[str]  # ids of nodes


async def force_new_cluster(path: Path, clock: Clock, randomness: Randomness) -> Forced:
    """Raises LogLocked while the node runs."""
    opened = await _opened(path, clock)
    assert opened.identity is not None
    own, members = opened.identity.node_id, opened.known_members
    store = opened.start(_alone, eraftpb.encode_conf(Membership((own,))))
    try:
        await store.ready()
        removed = await _remove_others(store, members - {own}, own)
        keys = len(store.node.machine.entries)
        await store.snapshots.take_now()
    finally:
        await store.close()
    opened = await _opened(path, clock)
    try:
        identity = new_identity(own, randomness.token(16))
        await opened.identify(identity)
        return Forced(own, identity.cluster_id, keys, removed)
    finally:
        await opened.close()


async def _opened(path: Path, clock: Clock) -> OpenedMetadata:
    opened = await open_directory(path, clock, MetadataOptions())
    if opened.identity is None:
        await opened.close()
        raise errors.InvalidInput(f"nothing was ever written in {path}", hint="name the data_dir of a node")
    return opened


def _alone(
    node_id: int,
    election_tick: int,
    heartbeat_tick: int,
    hard_state: HardState,
    conf: bytes,
    entries: list[bytes],
    snapshot: bytes | None = None,
    applied: int = 0,
) -> Core:
    """The core of one voter, on a log with changes of members: those have become empty entries."""
    plain = [entry if _is_plain(entry) else _emptied(entry) for entry in entries]
    return SoloCore(node_id, election_tick, heartbeat_tick, hard_state, conf, plain, snapshot, applied)


def _is_plain(entry: bytes) -> bool:
    return eraftpb.decode_entry(entry).kind == eraftpb.NORMAL


def _emptied(entry: bytes) -> bytes:
    found = eraftpb.decode_entry(entry)
    return eraftpb.encode_entry(found.index, found.term, eraftpb.NORMAL, b"")


async def _remove_others(store: NodeStore, members: frozenset[int], own: int) -> list[str]:
    """A member that has only just joined has no record yet; one with a record may not vote any more."""
    recorded = {int(key.removeprefix(NODES), 16) for key, _ in await store.list_all(NODES)}
    others = [f"{one:016x}" for one in sorted((recorded | members) - {own})]
    for one in others:
        operations: list[Operation] = [Put(removed_key(int(one, 16)), b""), Delete(NODES + one)]
        await store.txn([], operations)
    return others
