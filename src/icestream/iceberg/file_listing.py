"""Lists the files of a snapshot page by page, for the admin API and the command line.

A page is bounded by the number of files and by the number of manifests that are read for it, so it may be short, or
empty, and still have a next one. `after` says where the next page begins: `snapshot:manifest:entry`. It names the
snapshot so that all pages belong to the same one, whatever is committed in between.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from icestream import errors, limits
from icestream.iceberg.conversions import integer_from_bytes
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifests import ManifestEntry
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

CONTENT_NAMES: Final = ("data", "position-deletes", "equality-deletes")
_PAGE_TOKEN: Final = re.compile(r"(-?\d{1,19}):(\d{1,9}):(\d{1,9})")


class PagePosition(NamedTuple):
    snapshot_id: int
    manifest: int  # its number in the manifest list
    entry: int  # its number in the manifest

    def __str__(self) -> str:
        return f"{self.snapshot_id}:{self.manifest}:{self.entry}"


async def list_files(
    table: TableMetadata,
    reader: ManifestReader,
    snapshot_id: int | None,
    after: str,
    limit: int,
    check: Callable[[TableMetadata, Sequence[str]], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Returns a page as `items` and `next`. `snapshot_id` None: the current one. `after`: empty for the first page.
    `check` raises for manifests that the table must not name; what these name is shown as it is.

    Raises InvalidInput for a snapshot that the table does not have, and for an `after` of another listing.
    """
    start = _page_start(table, snapshot_id, after)
    if start is None:  # a table without snapshots
        return {"items": [], "next": None}
    snapshot = table.snapshots.find(start.snapshot_id)
    if snapshot is None:
        raise errors.InvalidInput(
            f"the table has no snapshot {start.snapshot_id}", hint="`icestream lake snapshots` lists its snapshots"
        )
    if check is not None:
        await check(table, [str(snapshot.get("manifest-list") or table.location)])
    manifests = await _manifest_paths(snapshot, reader)
    if check is not None:
        await check(table, manifests)
    offset_field_id = next((field["id"] for field in table.current_schema["fields"] if field["name"] == "offset"), None)
    items: list[Object] = []
    position = start
    while position.manifest < len(manifests) and len(items) < limit:
        if position.manifest - start.manifest >= limits.API_MANIFESTS_PER_PAGE:
            break
        entries = await reader.entries(manifests[position.manifest])
        for number, entry in enumerate(entries[position.entry :], position.entry):
            if len(items) == limit:
                position = position._replace(entry=number)
                break
            if entry.is_live:
                items.append(_item(entry, offset_field_id))
        else:
            position = PagePosition(position.snapshot_id, position.manifest + 1, 0)
    return {"items": items, "next": str(position) if position.manifest < len(manifests) else None}


def _page_start(table: TableMetadata, snapshot_id: int | None, after: str) -> PagePosition | None:
    if not after:
        first_id = table.current_snapshot_id if snapshot_id is None else snapshot_id
        return None if first_id is None else PagePosition(first_id, 0, 0)
    token = _PAGE_TOKEN.fullmatch(after)
    if token is None:
        raise errors.InvalidInput(
            "`after` is not a page token of this listing", hint="take it from `next` of the page before"
        )
    return PagePosition(*map(int, token.groups()))


async def _manifest_paths(snapshot: Object, reader: ManifestReader) -> list[str]:
    """Old v1 snapshots name their manifests themselves, without a list."""
    inline = list(snapshot.get("manifests") or ())
    manifest_list = snapshot.get("manifest-list")
    return inline if manifest_list is None else [*inline, *await reader.manifest_paths(manifest_list)]


def _item(entry: ManifestEntry, offset_field_id: int | None) -> Object:
    return {
        "path": entry.file_path,
        "content": CONTENT_NAMES[entry.content],
        "format": entry.file_format,
        "records": entry.record_count,
        "bytes": entry.file_size_bytes,
        "sequence": entry.explicit_sequence_number,
        "snapshot_id": entry.snapshot_id,
        "first_offset": _offset_bound(entry.lower_bounds, offset_field_id),
        "last_offset": _offset_bound(entry.upper_bounds, offset_field_id),
    }


def _offset_bound(bounds: dict[int, bytes], offset_field_id: int | None) -> int | None:
    return None if offset_field_id is None else integer_from_bytes(bounds.get(offset_field_id))
