"""Exports the newest snapshot and the log of a node's metadata store as JSON lines.

    {"identity": {node, cluster, voters}}
    {"snapshot": {index, term, sha256, revision}}, then {"key", "value" (text, or base64), revisions, times}
    {"entry": {index, term, kind}, "command": …} for each entry behind the snapshot

Offline: the node must not run. Its log is opened as at a start, so recovery after a crash happens first.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from icestream.metadata import command as cmd
from icestream.metadata import eraftpb
from icestream.metadata.entry import Entry
from icestream.metadata.open import MetadataOptions, OpenedMetadata, open_directory
from icestream.metadata.snapshot_file import snapshot_digest
from icestream.runtime.clock import Clock

Document = dict[str, Any]


async def export(path: Path, clock: Clock) -> AsyncIterator[Document]:
    """Yields the documents. Raises LogLocked while the node runs, LogDamaged for a damaged log."""
    opened = await open_directory(path, clock, MetadataOptions())
    try:
        for line in _lines(opened):
            yield line
    finally:
        await opened.close()


def _lines(opened: OpenedMetadata) -> list[Document]:
    """All documents of the export."""
    recovered, identity = opened.recovered, opened.identity
    lines: list[Document] = []
    if identity is not None:
        voters = eraftpb.decode_conf(identity.conf).voters if identity.conf else ()
        ids = {"node": f"{identity.node_id:016x}", "cluster": identity.cluster_id.hex()}
        lines.append({"identity": ids | {"founder": [f"{node_id:016x}" for node_id in voters]}})
    if recovered.snapshots:
        newest = recovered.snapshots[0]
        members = eraftpb.decode_conf(newest.head.conf)
        lines.append(
            {
                "snapshot": {
                    "index": newest.head.index,
                    "term": newest.head.term,
                    "sha256": snapshot_digest(newest.name).hex(),
                    "revision": recovered.machine.revision,
                    "voters": [f"{node_id:016x}" for node_id in members.voters],
                    "learners": [f"{node_id:016x}" for node_id in members.learners],
                }
            }
        )
        machine = recovered.machine
        lines += [_key(key, entry) for key, entry in machine.page("", "", len(machine.entries))]
    return lines + [_entry(eraftpb.decode_entry(node_id)) for node_id in recovered.entries]


def _key(key: str, entry: Entry) -> Document:
    """The document of one key."""
    return {
        "key": key,
        "value": _text_or_base64(entry.value),
        "create_revision": entry.create_revision,
        "mod_revision": entry.mod_revision,
        "version": entry.version,
        "deadline_ms": entry.deadline_ms,
        "lease_ms": entry.lease_ms,
    }


def _entry(entry: eraftpb.LogEntry) -> Document:
    """The document of one log entry."""
    kind = "normal" if entry.kind == eraftpb.NORMAL else "members"
    line: Document = {"entry": {"index": entry.index, "term": entry.term, "kind": kind}}
    if entry.kind == eraftpb.NORMAL and entry.data:
        envelope = cmd.decode_envelope(entry.data)
        line["command"] = _plain(msgspec.to_builtins(envelope.command, builtin_types=(bytes,)))
        line["time_ms"] = envelope.time_ms
    elif entry.data:
        line["change"] = entry.data.hex()
    return line


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text_or_base64(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _text_or_base64(value: bytes) -> str | Document:
    """UTF-8 text as it is; other bytes as base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
