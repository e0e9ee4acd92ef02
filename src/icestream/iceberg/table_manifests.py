"""The manifests of a table, read when they are not known: at the start, and when others have committed.

Entries of manifests that we wrote lately are kept, because they are merged soon; how many is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from icestream import limits
from icestream.iceberg.avro_manifests import AvroManifests
from icestream.iceberg.manifest_entry import Entry, read_entries
from icestream.iceberg.manifest_file import ManifestFile, read_manifest_file
from icestream.iceberg.manifest_layout import ADDED, ManifestLayout, manifest_layout
from icestream.iceberg.table_metadata import Table
from icestream.iceberg.values import Object


class ManifestReader:
    def __init__(self, avro: AvroManifests) -> None:
        self._avro = avro
        self._entries: OrderedDict[str, Sequence[Entry]] = OrderedDict()
        self._entries_kept = 0
        self._layouts: OrderedDict[tuple[str | None, int, int], ManifestLayout] = OrderedDict()

    def layout(self, table: Table, schema: Object, spec: Object) -> ManifestLayout:
        key = (table.uuid, schema["schema-id"], spec["spec-id"])
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = manifest_layout(schema, spec)
            while len(self._layouts) > limits.MANIFEST_LAYOUTS_KEPT:
                self._layouts.popitem(last=False)
        return found

    async def manifests(self, table: Table) -> list[ManifestFile]:
        """Of the current snapshot, the newest first."""
        current = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
        if current is None:
            return []
        return sorted(await self.listed(current["manifest-list"]), key=lambda one: -one.sequence)

    async def listed(self, manifest_list: str) -> list[ManifestFile]:
        return [read_manifest_file(one) for one in await self._avro.records(manifest_list)]

    async def added(self, manifest: ManifestFile) -> list[str]:
        """The locations of files that a manifest brought into the table."""
        records = await self._avro.records(manifest.path)
        return [str(one["data_file"]["file_path"]) for one in records if one["status"] == ADDED]

    async def entries(self, layout: ManifestLayout, manifests: Sequence[ManifestFile]) -> dict[str, Sequence[Entry]]:
        found = {}
        for one in manifests:
            known = self._entries.get(one.path)
            if known is None:
                records = await self._avro.records(one.path)
                known = read_entries(layout, records, one.snapshot_id, one.sequence)
            found[one.path] = known
        return found

    def remember(self, entries: Mapping[str, Sequence[Entry]], gone: Sequence[str]) -> None:
        """Of manifests that are in force; `gone`: those that were merged into them."""
        for path in gone:
            self._entries_kept -= len(self._entries.pop(path, ()))
        for path, found in entries.items():
            self._entries[path] = found
            self._entries_kept += len(found)
        while self._entries_kept > limits.MANIFEST_ENTRIES_KEPT and self._entries:
            self._entries_kept -= len(self._entries.popitem(last=False)[1])
