"""What a commit means for condemned files: compares the generation, and takes off what the commit adds (hazard 82).

The manifests that a commit adds are read only while some file is condemned. What cannot be read may name any file.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import errors
from icestream.catalog import condemned_files
from icestream.catalog.catalog_keys import CONDEMNED_GENERATION
from icestream.catalog.condemned_files import CondemnedState, RecordChanges, StoredRecord
from icestream.catalog.documents import Documents
from icestream.iceberg.location import normalize
from icestream.iceberg.manifests import ManifestFile, decode_entries, decode_manifest_list
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.runtime.tasks import Offload


class CondemnedCheck:
    """Plans the part of a transaction that concerns condemned files."""

    def __init__(self, store: MetadataStore, documents: Documents, offload: Offload) -> None:
        """`offload` decodes manifests beside the loop."""
        self._store = store
        self._documents = documents
        self._offload = offload
        self._generation = -1
        self._records: list[StoredRecord] = []  # of that generation

    async def plan(
        self, added: Sequence[tuple[TableMetadata | None, Sequence[Object]]], files: Sequence[str] = ()
    ) -> RecordChanges:
        """What the transaction of a commit compares and changes. `added`: per table, as it was before, the snapshots
        that are added; `files`: other files that it names for the first time. Raises CommitConflict if one of them is
        being removed."""
        entry = await self._store.get(CONDEMNED_GENERATION)
        generation = 0 if entry is None else entry.mod_revision
        unchanged: cmd.Compare = (
            cmd.AtRevision(CONDEMNED_GENERATION, generation) if generation else cmd.Absent(CONDEMNED_GENERATION)
        )
        if generation != self._generation:
            records = await condemned_files.read_all_records(self._store) if generation else []
            self._records = [stored for stored in records if stored.record.state is not CondemnedState.UNNAMED]
            self._generation = generation
        if not self._records:
            return RecordChanges([unchanged], [])
        changes = condemned_files.take_off(self._records, await self._locations(added, files))
        return RecordChanges([unchanged, *changes.comparisons], changes.operations)

    async def _locations(
        self, added: Sequence[tuple[TableMetadata | None, Sequence[Object]]], files: Sequence[str]
    ) -> set[str] | None:
        """The files that a commit names for the first time; None if that cannot be read."""
        try:
            locations = {normalize(path) for path in files}
            for before, snapshots in added:
                for snapshot in snapshots:
                    locations |= await self._named(before, snapshot)
        except (errors.MetadataFileMissing, errors.MetadataFileDamaged, errors.InvalidInput):
            return None
        return locations

    async def _named(self, before: TableMetadata | None, snapshot: Object) -> set[str]:
        """The manifest list, manifests and files that a snapshot names and its parent does not."""
        parent_id = snapshot.get("parent-snapshot-id")
        parent = None if before is None or parent_id is None else before.snapshots.find(parent_id)
        inherited = set() if parent is None else {manifest.path for manifest in await self._manifests(parent)}
        paths = [path for path in (snapshot.get("manifest-list"), *(snapshot.get("manifests") or ())) if path]
        manifests = [
            manifest.path for manifest in await self._manifests(snapshot) if manifest.path not in inherited
        ] + [*(snapshot.get("manifests") or ())]
        for manifest in manifests:
            paths += [manifest, *await self._live_files(manifest)]
        return {normalize(path) for path in paths}

    async def _manifests(self, snapshot: Object) -> list[ManifestFile]:
        location = snapshot.get("manifest-list")
        if not isinstance(location, str):
            return []
        data = await self._documents.read_file(location)
        return await self._offload.run(lambda: decode_manifest_list(location, data))

    async def _live_files(self, manifest: str) -> list[str]:
        data = await self._documents.read_file(manifest)
        return await self._offload.run(
            lambda: decode_entries(
                manifest, data, lambda entries: [entry.file_path for entry in entries if entry.is_live]
            )
        )
