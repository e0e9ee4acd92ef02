"""The inventory table of a target: the object lists of all its backups as one Iceberg table of format v2 (ADR 70).

It is built anew from the roots each time a backup is completed or deleted, so nothing that was interrupted is wrong for
long. Its versions are created exclusively; the last few stay for readers that opened them.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

import orjson

from icestream import errors
from icestream.backup import backup_layout as layout
from icestream.backup.backup_root import BackupRoot
from icestream.backup.backup_target import BackupTarget
from icestream.backup.object_list import COLUMN_TYPES
from icestream.backup.stored_backups import StoredBackups
from icestream.iceberg import avro
from icestream.iceberg.manifests import encode_list_header, manifest_layout, new_entry, new_manifest_file
from icestream.iceberg.values import Object
from icestream.model.task_messages import WrittenFile

_VERSION: Final = re.compile(rf"{layout.INVENTORY}/metadata/v([0-9]+)\.metadata\.json")
_OF_VERSION: Final = re.compile(rf"{layout.INVENTORY}/metadata/(?:v|list-|manifest-)([0-9]+)\.[a-z.]+")
_KEPT: Final = 5
_ATTEMPTS: Final = 5
_NAMESPACE: Final = uuid.UUID("b2b7c5b0-9a35-4d5c-8d0b-0f8f4a2a6c11")
_HINT_FILE: Final = f"{layout.INVENTORY}/metadata/version-hint.text"
_SPEC: Final[Object] = {"spec-id": 0, "fields": []}


def inventory_schema() -> Object:
    """The Iceberg schema of the inventory: a column for each of the object list."""
    return {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": number, "name": name, "required": False, "type": kind}
            for number, (name, kind) in enumerate(COLUMN_TYPES.items(), 1)
        ],
    }


async def update_inventory(target: BackupTarget, stored: StoredBackups, now_ms: int) -> str:
    """Writes the next version of the inventory, without backups whose root is damaged; returns the location of its
    metadata file."""
    for _ in range(_ATTEMPTS):
        roots = [backup.root for backup in await stored.readable() if backup.root is not None]
        names = await target.names(f"{layout.INVENTORY}/metadata/")
        version = max((int(match[1]) for name in names if (match := _VERSION.fullmatch(name))), default=0) + 1
        try:
            location = await _write_version(target, roots, version, now_ms)
        except errors.AlreadyExists:  # another backup was completed at the same time: it is in the next version
            continue
        await target.put(_HINT_FILE, str(version).encode())
        for name in names:
            if (match := _OF_VERSION.fullmatch(name)) and int(match[1]) <= version - _KEPT:
                await target.remove(name)
        return location
    raise errors.CommitConflict(f"the inventory of {target.location('')} changed {_ATTEMPTS} times")


async def _write_version(target: BackupTarget, roots: list[BackupRoot], version: int, now_ms: int) -> str:
    folder = f"{layout.INVENTORY}/metadata"
    marker = uuid.uuid5(_NAMESPACE, f"{target.location('')}{version}/{now_ms}").bytes
    spec_layout = manifest_layout(inventory_schema(), _SPEC)
    entries = [new_entry(spec_layout, _file(target, root), version) for root in roots]
    records = []
    if entries:
        manifest = f"{folder}/manifest-{version}.avro"
        data = b"".join(avro.encode_file(spec_layout.header, [entry.encode() for entry in entries], marker))
        await target.put_new(manifest, data)
        records = [
            new_manifest_file(spec_layout, target.location(manifest), len(data), entries, version, version).encode()
        ]
    manifest_list = f"{folder}/list-{version}.avro"
    await target.put_new(
        manifest_list, b"".join(avro.encode_file(encode_list_header(version, None, version), records, marker))
    )
    snapshot: Object = {
        "snapshot-id": version,
        "sequence-number": version,
        "timestamp-ms": now_ms,
        "manifest-list": target.location(manifest_list),
        "summary": {"operation": "overwrite", "total-records": str(sum(root.objects.rows for root in roots))},
        "schema-id": 0,
    }
    name = f"{folder}/v{version}.metadata.json"
    await target.put_new(name, orjson.dumps(_document(target, snapshot, now_ms), option=orjson.OPT_INDENT_2))
    return target.location(name)


def _file(target: BackupTarget, root: BackupRoot) -> WrittenFile:
    objects = root.objects
    return WrittenFile(
        topic_id=0, location=target.location(objects.path), size_bytes=objects.size, rows=objects.rows, covered=[],
        schema_id=0, spec_id=0, partition=[], column_sizes={}, value_counts={}, null_counts={}, lower_bounds={},
        upper_bounds={}, split_offsets=[],
    )  # fmt: skip


def _document(target: BackupTarget, snapshot: Object, now_ms: int) -> Object:
    return {
        "format-version": 2,
        "table-uuid": str(uuid.uuid5(_NAMESPACE, target.location(layout.INVENTORY))),
        "location": target.location(layout.INVENTORY),
        "last-sequence-number": snapshot["sequence-number"],
        "last-updated-ms": now_ms,
        "last-column-id": len(COLUMN_TYPES),
        "schemas": [inventory_schema()],
        "current-schema-id": 0,
        "partition-specs": [_SPEC],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {},
        "current-snapshot-id": snapshot["snapshot-id"],
        "snapshots": [snapshot],
        "snapshot-log": [{"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": now_ms}],
        "metadata-log": [],
        "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}},
    }
