"""The id of this node's log in the metadata store: a start without that log, or with another, is refused (hazard 5).

A directory whose files were deleted, or whose disk is not mounted, looks like a new log; a start would assign offsets
again that were acked. The log of another node, mounted by mistake, does the same to shards that it does not know, and
mixes the messages of two nodes.

    /node_logs/{node}    the log id, which every log file contains. Written once for a log, when it is open and before
                         any message is accepted. A crash in between leaves a log without a record, as older versions
                         do: the next start writes it
    a node that          answers for the logs and topics of its predecessors (cluster/rejoin.py) until it has a record
    rejoined             of its own: a node with topics has had a log, with or without a record
    a repaired log       has a new id (wal/lost_log.py), which is recorded before that log is opened, so that a crash
                         afterwards leaves the expected id
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from icestream import errors
from icestream.broker import records
from icestream.broker.records import NODE_LOGS, NodeLogRecord
from icestream.broker.topic_owners import TopicOwners
from icestream.metadata.store import MetadataStore
from icestream.runtime.files import open_directory
from icestream.wal.lost_log import replaces_lost_log
from icestream.wal.survey import survey

# The id after a repair of a log whose files had all lost their id (wal/damage.py): any node may open it.
_UNKNOWN_ID: Final = bytes(16).hex()


class LogRecords(NamedTuple):
    """Log ids in hex, by node id; an empty log id was written by an older version, which did not record it."""

    own: Mapping[str, str]  # of this node; if it has no record, of its predecessors
    others: Mapping[str, str]

    def is_expected(self, log_id: str) -> bool:
        """Whether this node may open a log with this id."""
        if log_id == _UNKNOWN_ID:
            return True
        expected = set(self.own.values())
        return log_id in expected or (self.owner_of(log_id) is None and (not expected or "" in expected))

    def owner_of(self, log_id: str) -> str | None:
        """The other node that has recorded this log id, if any."""
        return next((node for node, log in self.others.items() if log == log_id), None)


async def check_log(store: MetadataStore, owners: TopicOwners, path: Path, *, has_topics: bool) -> bool:
    """Returns whether a log must exist in `path`. Raises ForeignLog for the log of another node.

    `has_topics`: this node owns topics.
    """
    logs = await _log_records(store, owners)
    log_id = await asyncio.to_thread(_log_id_in, path)
    if log_id and not logs.is_expected(log_id):
        if logs.owner_of(log_id) is not None or not await asyncio.to_thread(_replaces_lost_log, path):
            raise _foreign_log(path, log_id, logs, owners)
        await _write(store, owners, log_id)
    return bool(logs.own) or has_topics


async def record_log(store: MetadataStore, owners: TopicOwners, log_id: bytes) -> None:
    """Records the id of the open log, unless it is recorded already."""
    await _write(store, owners, log_id.hex())
    for node in (await _all_records(store)).keys() - {owners.node_id}:
        if owners.is_local(node):
            await store.delete(NODE_LOGS + node)  # a predecessor: its log is the recorded one now, or was given up


async def _write(store: MetadataStore, owners: TopicOwners, log_id: str) -> None:
    key = NODE_LOGS + owners.node_id
    entry = await store.get(key)
    if entry is None or records.decode(NodeLogRecord, key, entry.value).log != log_id:
        await store.put(key, msgspec.json.encode(NodeLogRecord(log_id)))


async def _all_records(store: MetadataStore) -> dict[str, str]:
    return {
        key.removeprefix(NODE_LOGS): records.decode(NodeLogRecord, key, entry.value).log
        for key, entry in await store.list_all(NODE_LOGS)
    }


async def _log_records(store: MetadataStore, owners: TopicOwners) -> LogRecords:
    logs = await _all_records(store)
    own = {node: log for node, log in logs.items() if owners.is_local(node)}
    others = {node: log for node, log in logs.items() if node not in own}
    return LogRecords({owners.node_id: own[owners.node_id]} if owners.node_id in own else own, others)


def _log_id_in(path: Path) -> str:
    """Empty without a log, or if it cannot be read: opening it will raise the reason."""
    if not path.is_dir():
        return ""
    directory = open_directory(path, read_only=True)
    try:
        return (survey(directory).log_id or b"").hex()
    except OSError:
        return ""
    finally:
        directory.close()


def _replaces_lost_log(path: Path) -> bool:
    directory = open_directory(path, read_only=True)
    try:
        return replaces_lost_log(directory)
    finally:
        directory.close()


def _foreign_log(path: Path, log_id: str, logs: LogRecords, owners: TopicOwners) -> errors.ForeignLog:
    owner = logs.owner_of(log_id)
    expected = ", ".join(sorted(logs.own.values()))
    if owner is not None:
        node = owners.find_node(owner)
        name = node.name if node is not None else f"{owner}, which was removed from the cluster"
        reason = f"it is log {log_id}, of node {name}"
    else:
        reason = f"it is log {log_id}, and by the metadata store this node has log {expected}"
    without = "the start after that says how to give up what is lost" if logs.own else "this node then begins its own"
    return errors.ForeignLog(
        f"the log in {path} is not the log of this node: {reason}",
        hint="nothing was changed; mount the disk of this node's own log there, or let "
        "storage.iceberg_config.wal.base_path name it. If there is none any more, move the files of this one away: "
        f"{without}",
    )
