"""The files of a snapshot, page by page, as its manifests name them.

A page is bounded in files and in manifests that are read for it, so it may be short, or empty, and still have a next
one. `after` says where that begins: `snapshot:manifest:entry`. So all pages are of one snapshot, whatever is committed
meanwhile.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, NamedTuple

from icestream import errors, limits
from icestream.iceberg.avro_manifests import AvroManifests, Record
from icestream.iceberg.table_metadata import Table
from icestream.iceberg.values import Object

CONTENT: Final = ("data", "position-deletes", "equality-deletes")
DELETED: Final = 2  # the status of an entry that is in the manifest to say that it is gone
_AFTER: Final = re.compile(r"(-?\d{1,19}):(\d{1,9}):(\d{1,9})")


class Place(NamedTuple):
    snapshot_id: int
    manifest: int
    entry: int

    def __str__(self) -> str:
        return f"{self.snapshot_id}:{self.manifest}:{self.entry}"


async def page(
    table: Table, manifests: AvroManifests, snapshot_id: int | None, after: str, limit: int
) -> dict[str, Any]:
    """`snapshot_id`: None: the current one. `after`: empty for the first page."""
    place = _place(table, snapshot_id, after)
    if place is None:
        return {"items": [], "next": None}
    snapshot = table.snapshots.find(place.snapshot_id)
    if snapshot is None:
        raise errors.InvalidInput(
            f"the table has no snapshot {place.snapshot_id}", hint="`icestream lake snapshots` lists those that it has"
        )
    named = await _manifests(snapshot, manifests)
    offset_id = next((one["id"] for one in table.current_schema["fields"] if one["name"] == "offset"), None)
    items: list[Object] = []
    at = place
    while at.manifest < len(named) and len(items) < limit:
        if at.manifest - place.manifest >= limits.API_MANIFESTS_PER_PAGE:
            break
        entries = await manifests.records(named[at.manifest])
        for number, entry in enumerate(entries[at.entry :], at.entry):
            if len(items) == limit:
                at = at._replace(entry=number)
                break
            if entry.get("status") != DELETED:
                items.append(_shown(entry, offset_id))
        else:
            at = Place(at.snapshot_id, at.manifest + 1, 0)
    return {"items": items, "next": str(at) if at.manifest < len(named) else None}


def _place(table: Table, snapshot_id: int | None, after: str) -> Place | None:
    if not after:
        wanted = table.current_snapshot_id if snapshot_id is None else snapshot_id
        return None if wanted is None else Place(wanted, 0, 0)
    found = _AFTER.fullmatch(after)
    if found is None:
        raise errors.InvalidInput("`after` is none of this listing", hint="take it from `next` of the page before")
    return Place(*map(int, found.groups()))


async def _manifests(snapshot: Object, manifests: AvroManifests) -> list[str]:
    named = list(snapshot.get("manifests") or ())
    where = snapshot.get("manifest-list")
    return named if where is None else [*named, *await manifests.manifests(where)]


def _shown(entry: Record, offset_id: int | None) -> Object:
    file = entry["data_file"]
    return {
        "path": file["file_path"],
        "content": CONTENT[file.get("content") or 0],
        "format": str(file.get("file_format") or "").lower(),
        "records": file.get("record_count") or 0,
        "bytes": file.get("file_size_in_bytes") or 0,
        "sequence": entry.get("sequence_number"),
        "snapshot_id": entry.get("snapshot_id"),
        "first_offset": _bound(file.get("lower_bounds"), offset_id),
        "last_offset": _bound(file.get("upper_bounds"), offset_id),
    }


def _bound(bounds: Any, field_id: int | None) -> int | None:
    """Bounds are pairs of a field and its bytes; a long has eight, the lowest first."""
    for one in bounds or ():
        if one["key"] == field_id and len(one["value"]) == struct.calcsize("<q"):
            return int(struct.unpack("<q", one["value"])[0])
    return None
