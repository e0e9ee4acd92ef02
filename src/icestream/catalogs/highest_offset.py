"""The highest offset in the files of a snapshot, by their manifests: how far a table has come, whoever wrote it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from icestream.iceberg.avro_manifests import AvroManifests
from icestream.iceberg.table_metadata import Table

_DELETED: Final = 2  # the status of an entry whose file is no longer there


async def highest_offset(manifests: AvroManifests, table: Table, snapshot_id: int | None) -> int | None:
    """None: the snapshot has no rows."""
    snapshot = None if snapshot_id is None else table.snapshots.find(snapshot_id)
    if snapshot is None:
        return None
    number = next(one["id"] for one in table.current_schema["fields"] if one["name"] == "offset")
    highest: int | None = None
    for manifest in await manifests.manifests(snapshot["manifest-list"]):
        for entry in await manifests.records(manifest):
            if entry["status"] != _DELETED and not entry["data_file"].get("content"):
                found = _upper(entry["data_file"], number)
                highest = found if highest is None else max(highest, found)
    return highest


def _upper(file: Mapping[str, Any], field_id: int) -> int:
    """A file without bounds may hold anything."""
    for one in file.get("upper_bounds") or ():
        if one["key"] == field_id:
            return int(struct.unpack("<q", one["value"])[0])
    return 2**63 - 1
