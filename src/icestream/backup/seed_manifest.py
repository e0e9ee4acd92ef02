"""Manifests of seed 003: a JSON document for each flushed batch of objects. Pure.

    <warehouse>/<namespace>/<table>/metadata/<prefix>_<snapshot_end>_<seq>.json

Fields of the seed: format_version, warehouse, namespace, table, generated_at_ms, snapshot_start_ts, snapshot_end_ts,
and for each file file_name, cf, sha256, start_version, end_version, total_kvs, total_bytes, size, start_key, end_key.
Its terms here: an SST is an object, a region is a topic shard, a column family is the role of an object (`data`, `wal`,
`meta`), a key is a topic and an offset, a version is a time in ms. Beyond the seed: batch_id, backup_id, revisions, and
for each file topic, shard, offsets, times and the Iceberg snapshot.

    key of `data` and `wal`    i64 topic id | u32 shard | i64 offset, big-endian; `end_key` is behind the last one
    key of `meta`              the first key of the metadata store; empty for an open bound

The sequence number comes from a counter of the metadata store (B-04): the seed's counter in each process gives equal
names on two nodes and after a restart. A manifest has no bytes of messages (B-17).
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from icestream import errors
from icestream.backup.object_list import ObjectRow

FORMAT_VERSION: Final = 1
_KEY: Final = struct.Struct(">qIq")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_FAMILIES: Final = {"tail": "wal", "metadata": "meta", "checkpoint": "meta", "erased": "meta"}


class SeedOptions(msgspec.Struct, frozen=True):
    """The settings `backup.iceberg.…` as a run takes them: a running backup keeps its copy (B-13)."""

    enable: bool = False
    warehouse: str = "warehouse"
    namespace: str = "icestream"
    table: str = "backup"
    manifest_prefix: str = "manifest"
    strict: bool = False


def normalized_path(text: str) -> str:
    """Slashes at both ends are cut off and doubles collapse."""
    return "/".join(part for part in text.split("/") if part)


def normalized_namespace(text: str) -> str:
    """As `normalized_path`, with dots as slashes: Iceberg's namespaces have levels."""
    return normalized_path(text.replace(".", "/"))


def check_options(options: SeedOptions) -> None:
    """Raises ConfigurationError that names the key."""
    for name in ("warehouse", "namespace", "table", "manifest_prefix"):
        value: str = getattr(options, name)
        if ".." in value.split("/") or _CONTROL.search(value):
            raise errors.ConfigurationError(
                f"backup.iceberg.{name} is not a path: {value!r}", hint="no `..` and no control characters"
            )
    for name in ("table", "manifest_prefix"):
        if not normalized_path(getattr(options, name)):
            raise errors.ConfigurationError(f"backup.iceberg.{name} is empty", hint="give it a name")


def manifest_name(options: SeedOptions, snapshot_end_ms: int, seq: int) -> str:
    """The name of a manifest below the target; empty parts are left out."""
    parts = (
        normalized_path(options.warehouse),
        normalized_namespace(options.namespace),
        normalized_path(options.table),
        "metadata",
        f"{options.manifest_prefix}_{snapshot_end_ms}_{seq}.json",
    )
    return "/".join(part for part in parts if part)


def encode_key(topic_id: int, shard: int, offset: int) -> bytes:
    return _KEY.pack(topic_id, shard, offset)


def encode_manifest(
    options: SeedOptions,
    rows: Sequence[ObjectRow],
    *,
    backup_id: str,
    batch_id: str,
    generated_ms: int,
    start_ms: int,
    end_ms: int,
    begin_revision: int,
) -> bytes:
    """The JSON text of the manifest of a batch."""
    document = {
        "format_version": FORMAT_VERSION,
        "warehouse": normalized_path(options.warehouse),
        "namespace": normalized_namespace(options.namespace),
        "table": normalized_path(options.table),
        "generated_at_ms": generated_ms,
        "snapshot_start_ts": start_ms,
        "snapshot_end_ts": end_ms,
        "backup_id": backup_id,
        "batch_id": batch_id,
        "begin_revision": begin_revision,
        "files": [_file(row, start_ms, end_ms) for row in rows],
    }
    return msgspec.json.encode(document)


def _file(row: ObjectRow, start_ms: int, end_ms: int) -> dict[str, Any]:
    return {
        "file_name": row.path,
        "cf": _FAMILIES.get(row.role, "data"),
        "role": row.role,
        "sha256": row.sha256,
        "start_version": start_ms,
        "end_version": end_ms,
        "total_kvs": row.rows or 0,
        "total_bytes": row.content_size,
        "size": row.size,
        "start_key": _bound(row, row.first_offset),
        "end_key": _bound(row, row.end_offset),
        "topic_id": row.topic_id,
        "topic": row.topic,
        "shard": row.shard,
        "first_offset": row.first_offset,
        "end_offset": row.end_offset,
        "min_time_ms": None if row.min_time_us is None else row.min_time_us // 1_000,
        "max_time_ms": None if row.max_time_us is None else row.max_time_us // 1_000,
        "snapshot_id": row.snapshot_id,
    }


def _bound(row: ObjectRow, offset: int | None) -> str:
    if row.topic_id is None or offset is None:
        return ""
    return base64.b64encode(encode_key(row.topic_id, row.shard or 0, offset)).decode()
