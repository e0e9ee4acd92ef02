"""Repairs a damaged metadata log of a single node: salvages what is readable into a new log.

    examine   the newest valid snapshot, then every record up to the first unreadable one. Nothing is changed
    repair    the state at that point becomes the first snapshot of a new log, in a directory beside the old one; then
              the old one is renamed to `raft.damaged-N`, the new one takes its place, and the mark is removed.
              Interrupted anywhere, it can be run again

Everything behind that point is lost: there is no other copy. Counters continue IDS_SKIPPED further, so that no id is
given out twice. If no valid snapshot reaches the remaining entries, nothing can be saved: a new log would give out ids
again that the message log and the tables use. A member of a cluster is refused: its peers have everything, and it joins
anew (cluster/rejoin.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb
from icestream.metadata.core import HardState
from icestream.metadata.eraftpb import Membership
from icestream.metadata.log_format import NO_CLUSTER, Base, Identity
from icestream.metadata.log_recovery import MEMBER_HINT, MetadataReport, Walk
from icestream.metadata.open import MetadataOptions, open_directory
from icestream.metadata.snapshot import encode_snapshot
from icestream.metadata.snapshot_file import (
    SnapshotHead,
    find_snapshots,
    open_snapshot,
    received_name,
    snapshot_name,
)
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.watermark import Mark, mark_path, read_mark
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, LocalDirectory
from icestream.wal.log_file import LOCK_NAME
from icestream.wal.survey import survey

IDS_SKIPPED = limits.METADATA_IDS_PER_COMMAND_MAX
NOTHING_SAVED_HINT = "bring the whole data directory back from a backup, or begin with an empty one"


@dataclass(frozen=True, slots=True)
class Saved:
    """What a repair would keep of a damaged log."""

    last_index: int  # of the entries that count
    keys: int


@dataclass(frozen=True, slots=True)
class TrialRecovery:
    """The result of a trial recovery."""

    damage: errors.IcestreamError | None
    is_member: bool  # of a cluster with others
    records: int
    last_index: int
    last_lsn: int
    synced_lsn: int  # by the mark; 0 without one
    saved: Saved | None = None  # of a damaged log: what a repair keeps; None: nothing can be saved


@dataclass(frozen=True, slots=True)
class Salvage:
    """The state at the last readable record, and the identity of the log."""

    identity: Identity
    state: HardState
    index: int
    term: int
    machine: StateMachine


def examine(path: Path) -> TrialRecovery:
    """Examines the metadata log in `path` by a trial recovery; changes nothing.

    Raises OSError if it cannot be read at all, and for files that a running node removes at this moment.
    """
    mark = read_mark(path)  # before the log: a running node moves both, and the mark must not be the newer one
    with contextlib.closing(LocalDirectory(path, read_only=True)) as directory:
        walk, damage = _walked(directory, mark)
        is_member = walk.knows_others or (mark is not None and mark.has_others)
        saved = _saved(directory, walk, mark) if damage is not None and not is_member else None
    synced_lsn = mark.lsn if mark is not None else 0
    return TrialRecovery(damage, is_member, walk.report.records, walk.last_index, walk.lsn, synced_lsn, saved)


def repair(path: Path, clock: Clock) -> Path:
    """Creates a new log from what can be saved; returns the new path of the old one.

    Blocks, and runs a loop of its own: call it in a thread. Raises LogLocked, InvalidInput for a member of a cluster,
    LogDamaged if nothing can be saved.
    """
    import asyncio

    built = path.with_name(path.name + ".repaired")
    if not path.exists() and built.exists():
        built.rename(path)  # an earlier repair was interrupted between its two renames
        mark_path(path).unlink(missing_ok=True)
        return path
    with contextlib.closing(LocalDirectory(path)) as directory, contextlib.closing(directory.lock(LOCK_NAME)):
        mark = read_mark(path)
        walk, _ = _walked(directory, mark)
        if walk.knows_others or (mark is not None and mark.has_others):
            raise errors.InvalidInput(f"the metadata log in {path} belongs to a member of a cluster", hint=MEMBER_HINT)
        salvage = _salvaged(directory, walk, mark)
        shutil.rmtree(built, ignore_errors=True)
        asyncio.run(_build(built, salvage, clock))
        mark_path(built).unlink(missing_ok=True)
        number = 1
        while (damaged := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        path.rename(damaged)
        built.rename(path)
    mark_path(path).unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return damaged


def _walked(directory: Directory, mark: Mark | None) -> tuple[Walk, errors.IcestreamError | None]:
    """Walks through the log; returns the walk and the damage that ended it, None for a sound log."""
    surveyed, snapshots = survey(directory), find_snapshots(directory)
    walk = Walk(directory, surveyed, snapshots, MetadataReport(files=len(surveyed.files)), mark)
    try:
        walk.run()
    except errors.LogError as error:
        return walk, error
    return walk, None


def _saved(directory: Directory, walk: Walk, mark: Mark | None) -> Saved | None:
    """What a repair would keep; None if nothing can be saved."""
    try:
        salvage = _salvaged(directory, walk, mark)
    except errors.LogError:
        return None
    return Saved(salvage.index, len(salvage.machine.entries))


def _salvaged(directory: Directory, walk: Walk, mark: Mark | None) -> Salvage:
    """The state at the last readable record. Raises LogDamaged if nothing can be saved."""
    walk.take_prefix()
    identity = walk.identity
    if identity is None and mark is not None:
        identity = Identity(mark.node_id, mark.cluster_id, b"")
    if identity is None or identity.cluster_id == NO_CLUSTER:
        raise _nothing_saved(directory, "no record contains the identity of the node")
    snapshot = walk.newest_snapshot
    if snapshot is None and not walk.joins_snapshot:
        raise _nothing_saved(directory, f"it begins with entry {walk.first_index}, and no valid snapshot reaches it")
    machine = open_snapshot(directory, snapshot) if snapshot is not None else StateMachine()
    index, term = (snapshot.head.index, snapshot.head.term) if snapshot is not None else (0, 0)
    for encoded in walk.entries if walk.joins_snapshot else ():
        entry = eraftpb.decode_entry(encoded)
        if entry.data and entry.kind == eraftpb.NORMAL:
            machine.apply(cmd.decode_envelope(entry.data))
        index, term = entry.index, entry.term
    for key in [key for key, _ in machine.page(cmd.COUNTERS, "", limits.METADATA_LIST_MAX)]:
        # Ids that were allocated in the lost part may be in use: they are skipped.
        skip = cmd.AllocateMonotonicId(key.removeprefix(cmd.COUNTERS), IDS_SKIPPED)
        machine.apply(cmd.Envelope(cmd.VERSION, b"", 0, machine.time_ms, skip))
    term = max(term, walk.state.term, 1)
    alone = Identity(identity.node_id, identity.cluster_id, eraftpb.encode_conf(Membership((identity.node_id,))))
    return Salvage(alone, HardState(term, 0, max(index, 1)), max(index, 1), term, machine)


def _nothing_saved(directory: Directory, reason: str) -> errors.LogDamaged:
    """The error of a log from which nothing can be saved."""
    return errors.LogDamaged(
        f"nothing of the metadata log in {directory.describe('')} can be saved: {reason}", hint=NOTHING_SAVED_HINT
    )


async def _build(path: Path, salvage: Salvage, clock: Clock) -> None:
    """Writes a new log that continues behind a snapshot of the salvaged state."""
    opened = await open_directory(path, clock, MetadataOptions(node_id=salvage.identity.node_id))
    try:
        log, data = opened.log, encode_snapshot(salvage.machine)
        digest = hashlib.sha256(data)
        await opened.identify(salvage.identity)
        head = SnapshotHead(salvage.index, salvage.term, log.log_id, salvage.identity.conf)
        writer = await log.begin_received(head)
        await log.add_received(writer, data)
        await log.finish_received(writer, received_name(snapshot_name(salvage.index, digest.hexdigest())))
        base = Base(salvage.index, salvage.term, digest.digest())
        await log.until_synced(log.append((), salvage.state, base))
    finally:
        await opened.close()
