"""Lets a member whose metadata log is unusable join its cluster anew, as another node with its topics (ADR 45).

    1  on the stopped node, `icestream cluster rejoin`: the identity of the node is noted in `raft.rejoin` beside
       `raft`, then `raft` is renamed to `raft.left-N`, then its mark is removed. Interrupted, it can be run again
    2  at its next start the node has a new id, and requests to join with the id of its predecessor, or with its name if
       the id is lost
    3  the leader records that the predecessor was removed and which node succeeds it, removes it, and adds the new node
    4  topics of the predecessor belong to its successor (broker/topic_owners.py); the note is removed

The message log of the node is not touched: its topics are served from it as before.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from icestream import errors
from icestream.metadata.log_format import NO_CLUSTER, Identity
from icestream.metadata.log_recovery import MetadataReport, Walk
from icestream.metadata.snapshot_file import find_snapshots
from icestream.metadata.watermark import mark_path, read_mark
from icestream.runtime.files import LocalDirectory
from icestream.wal.log_file import LOCK_NAME
from icestream.wal.survey import survey


class Predecessor(msgspec.Struct, frozen=True):
    """The node that this one replaces. Ids are hex digits, empty if they are lost."""

    node: str
    cluster: str
    left: str  # the new path of its metadata log


def note_path(directory: Path) -> Path:
    """The path of the note."""
    return directory.with_name(directory.name + ".rejoin")


def read_predecessor(directory: Path) -> Predecessor | None:
    """Reads the note; None if there is none. Raises ConfigurationError for a malformed one."""
    try:
        return msgspec.json.decode(note_path(directory).read_bytes(), type=Predecessor)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.ConfigurationError(
            f"{note_path(directory)} is not the note of a node that joins anew: {error}",
            hint="remove it, and call `icestream cluster rejoin` again",
        ) from None


def forget_predecessor(directory: Path) -> None:
    """Removes the note: the node has joined."""
    note_path(directory).unlink(missing_ok=True)


def leave(directory: Path) -> Predecessor:
    """Moves the metadata log in `directory` away, so that the next start joins anew.

    Raises LogLocked while the node runs, InvalidInput for a directory without a metadata log.
    """
    note = read_predecessor(directory)
    if not directory.exists():
        if note is None:
            raise errors.InvalidInput(
                f"there is no metadata store in {directory}", hint="name it: --dir DATA_DIR/raft, as the node has it"
            )
        _forget_mark(directory)
        return note
    opened = LocalDirectory(directory)
    try:
        lock = opened.lock(LOCK_NAME)
        try:
            predecessor = _predecessor(opened, directory)
            if note is not None and not predecessor.node:
                predecessor = msgspec.structs.replace(predecessor, node=note.node, cluster=note.cluster)
            # The note is durable before the log is renamed: without it the next start would join as a stranger without
            # topics.
            _write_note(directory, predecessor)
            directory.rename(predecessor.left)
            _sync_directory(directory.parent)
        finally:
            lock.close()
    finally:
        opened.close()
    _forget_mark(directory)
    return predecessor


def _predecessor(opened: LocalDirectory, directory: Path) -> Predecessor:
    """The identity of the node, from its log or its mark, and the new path of its log."""
    identity = _identity_in(opened)
    mark = read_mark(directory)
    if identity is None and mark is not None:
        identity = Identity(mark.node_id, mark.cluster_id, b"")
    if identity is not None and not identity.is_member:
        raise errors.InvalidInput(
            f"the node in {directory} is not a member of a cluster yet", hint="start it: it waits for the seed nodes"
        )
    number = 1
    while (moved_to := directory.with_name(f"{directory.name}.left-{number}")).exists():
        number += 1
    return Predecessor(
        f"{identity.node_id:016x}" if identity else "",
        identity.cluster_id.hex() if identity and identity.cluster_id != NO_CLUSTER else "",
        str(moved_to),
    )


def _identity_in(opened: LocalDirectory) -> Identity | None:
    """The identity in the log, as far as the log can be read."""
    with contextlib.suppress(errors.IcestreamError):
        walk = Walk(opened, survey(opened), find_snapshots(opened), MetadataReport())
        with contextlib.suppress(errors.IcestreamError):
            walk.run()
        return walk.identity
    return None


def _write_note(directory: Path, predecessor: Predecessor) -> None:
    path = note_path(directory)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(predecessor))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    _sync_directory(path.parent)


def _forget_mark(directory: Path) -> None:
    mark_path(directory).unlink(missing_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
