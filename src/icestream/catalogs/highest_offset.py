"""The highest offset in the files of a snapshot, by the bounds in their manifests, whichever engine wrote them."""

from __future__ import annotations

from typing import Final

from icestream.iceberg.conversions import integer_from_bytes
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifests import DATA_CONTENT
from icestream.iceberg.table_metadata import TableMetadata

_UNBOUNDED: Final = 2**63 - 1


async def highest_offset(reader: ManifestReader, table: TableMetadata, snapshot_id: int | None) -> int | None:
    """Returns the highest offset that the snapshot's data files can hold; None if it has no data files."""
    snapshot = None if snapshot_id is None else table.snapshots.find(snapshot_id)
    if snapshot is None:
        return None
    offset_field_id = next(field["id"] for field in table.current_schema["fields"] if field["name"] == "offset")
    highest: int | None = None
    # Manifests, not footers: a few requests for a table of any size.
    for manifest in await reader.manifest_paths(snapshot["manifest-list"]):
        for entry in await reader.entries(manifest):
            if entry.is_live and entry.content == DATA_CONTENT:
                upper = integer_from_bytes(entry.upper_bounds.get(offset_field_id))
                # A file without bounds may hold any offset.
                upper = _UNBOUNDED if upper is None else upper
                highest = upper if highest is None else max(highest, upper)
    return highest
