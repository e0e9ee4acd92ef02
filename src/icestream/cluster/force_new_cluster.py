"""Turns one node into a new cluster of its own, when a majority of the voters is lost for good.

    1  all entries in its log are accepted, committed or not; changes of members are skipped; it is the only voter
    2  the other nodes are recorded as removed: their ids never come back; so is the old cluster, which is fenced off
       the warehouse when the new one starts (processes/node/directory_fence.py)
    3  counters continue IDS_SKIPPED further: ids that only the lost nodes knew are not given out again
    4  a snapshot with this node as the only voter replaces the log before it
    5  a new cluster id, synced: nodes of the old cluster are foreign from now on

Offline: the node must not run. Entries that only the lost nodes had are lost, and entries that were never committed may
be applied now; therefore an operator must request it. A log from a backup, which ends before its mark (ADR 45), is
accepted: no other node relies on what it lacks. Interrupted anywhere, it can be run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from icestream import errors, limits
from icestream.cluster.members import NODES, SUPERSEDED_CLUSTERS, removed_key
from icestream.metadata import eraftpb
from icestream.metadata.command import COUNTERS, Delete, Operation, Put
from icestream.metadata.core import Core, HardState
from icestream.metadata.eraftpb import Membership
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions, OpenedMetadata, new_identity, open_directory
from icestream.metadata.solo_core import SoloCore
from icestream.metadata.watermark import Mark, read_mark
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness

IDS_SKIPPED = limits.METADATA_IDS_PER_COMMAND_MAX


class Forced(NamedTuple):
    """The result: the new cluster, and what was given up."""

    node_id: int
    cluster_id: bytes
    keys: int
    removed: list[str]  # ids of nodes
    forgotten: str  # description of synced records that the log lacks; empty if it is complete


async def force_new_cluster(path: Path, clock: Clock, randomness: Randomness) -> Forced:
    """Turns the node in `path` into a new cluster. Raises LogLocked while the node runs."""
    mark = read_mark(path)
    opened = await _opened(path, clock)
    assert opened.identity is not None
    forgotten = _forgotten(mark, opened)
    own, members = opened.identity.node_id, opened.known_members
    store = opened.start(_alone, eraftpb.encode_conf(Membership((own,))))
    try:
        await store.ready()
        removed = await _remove_others(store, members - {own}, own)
        await store.put(SUPERSEDED_CLUSTERS + opened.identity.cluster_id.hex(), b"")
        for key, _ in await store.list_all(COUNTERS):
            await store.allocate_id(key.removeprefix(COUNTERS), IDS_SKIPPED)
        keys = len(store.node.machine.entries)
        await store.snapshots.take_now()
    finally:
        await store.close()
    opened = await _opened(path, clock)
    try:
        identity = new_identity(own, randomness.token(16))
        await opened.identify(identity)
        return Forced(own, identity.cluster_id, keys, removed, forgotten)
    finally:
        await opened.close()


def _forgotten(mark: Mark | None, opened: OpenedMetadata) -> str:
    """Describes synced records that the log lacks."""
    recovered = opened.recovered
    if mark is None:
        return ""
    if mark.log_id != recovered.log_id:
        return "everything in the log that this node used last: this log was copied here"
    missing = mark.lsn - recovered.lsn
    return f"the last {missing} records of its log" if missing > 0 else ""


async def _opened(path: Path, clock: Clock) -> OpenedMetadata:
    """Opens the log whatever its mark says. Raises InvalidInput for an empty directory."""
    opened = await open_directory(path, clock, MetadataOptions(), checks_mark=False)
    if opened.identity is None:
        await opened.close()
        raise errors.InvalidInput(f"{path} contains no metadata log", hint="name the data_dir of a node")
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
    """The core of one voter on a log with changes of members: those are replaced by empty entries."""
    plain = [entry if _is_plain(entry) else _emptied(entry) for entry in entries]
    return SoloCore(node_id, election_tick, heartbeat_tick, hard_state, conf, plain, snapshot, applied)


def _is_plain(entry: bytes) -> bool:
    return eraftpb.decode_entry(entry).kind == eraftpb.NORMAL


def _emptied(entry: bytes) -> bytes:
    decoded = eraftpb.decode_entry(entry)
    return eraftpb.encode_entry(decoded.index, decoded.term, eraftpb.NORMAL, b"")


async def _remove_others(store: NodeStore, members: frozenset[int], own: int) -> list[str]:
    """Records all other nodes as removed; returns their ids.

    Members and records are both used: a member that has just joined has no record yet, one with a record may have left.
    """
    recorded = {int(key.removeprefix(NODES), 16) for key, _ in await store.list_all(NODES)}
    others = [f"{node_id:016x}" for node_id in sorted((recorded | members) - {own})]
    for node_id in others:
        operations: list[Operation] = [Put(removed_key(int(node_id, 16)), b""), Delete(NODES + node_id)]
        await store.txn([], operations)
    return others
