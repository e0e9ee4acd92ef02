"""Reads what a rewrite changes in the files of its table: from the manifests of its snapshot and of main.

A manifest that both snapshots have is not read, unless it is of delete files: what it holds is unchanged. So a rewrite
costs as much as the manifests that it replaces and writes, however large the table is. One that removes delete files
costs a read of all manifests: any file of the table may need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from icestream import errors
from icestream.catalog.documents import Documents
from icestream.catalog.topic_rules.rewritten_rows import (
    BoundColumns,
    DataFile,
    DeleteFile,
    FileChanges,
    bound_columns,
    data_file_of_entry,
    delete_file_of_entry,
)
from icestream.iceberg.manifests import (
    DATA_CONTENT,
    ManifestEntry,
    ManifestFile,
    decode_entries,
    decode_manifest_list,
)
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.runtime.tasks import Offload


class FileChangesReader:
    def __init__(self, documents: Documents, offload: Offload) -> None:
        """`offload` decodes manifests beside the loop."""
        self._documents = documents
        self._offload = offload

    async def read(self, table: TableMetadata, added: Object) -> FileChanges | None:
        """Returns the changes from main of `table` to the snapshot `added`; None if one of them has no manifest list.

        Raises MetadataFileMissing and MetadataFileDamaged, InvalidInput for a location outside the warehouse, and
        Contradiction for a snapshot that adds delete files, or changes the entry of a file that it does not replace.
        """
        main = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
        before_list, after_list = (main or {}).get("manifest-list"), added.get("manifest-list")
        if not isinstance(before_list, str) or not isinstance(after_list, str):
            return None
        return await self.between(table, before_list, after_list)

    async def between(self, table: TableMetadata, before_list: str, after_list: str) -> FileChanges:
        """Returns the changes from one manifest list of the table to another. Raises as `read` does."""
        before, after = await self._manifests(before_list), await self._manifests(after_list)
        columns = bound_columns(table)
        old_files = await self._data_files([before[path] for path in before.keys() - after.keys()], columns)
        new_files = await self._data_files([after[path] for path in after.keys() - before.keys()], columns)
        for location in old_files.keys() & new_files.keys():
            # Engines decide by the sequence number which deletes apply to a file: it must not change on the way.
            if old_files[location] != new_files[location]:
                raise errors.Contradiction(f"a rewrite changes the entry of {location}, which it does not replace")
        deletes = await self._delete_files(before.values())
        removed_deletes: list[DeleteFile] = []
        live: dict[str, DataFile] = {}
        if _delete_manifests(before.values()) != _delete_manifests(after.values()):
            removed_deletes = _removed_deletes(deletes, await self._delete_files(after.values()))
            live = await self._data_files(after.values(), columns)
        return FileChanges(
            [old_files[location] for location in sorted(old_files.keys() - new_files.keys())],
            [new_files[location] for location in sorted(new_files.keys() - old_files.keys())],
            deletes,
            removed_deletes,
            [*live.values()],
        )

    async def _manifests(self, location: str) -> Mapping[str, ManifestFile]:
        data = await self._documents.read_file(location)
        manifests = await self._offload.run(lambda: decode_manifest_list(location, data))
        return {manifest.path: manifest for manifest in manifests}

    async def _data_files(self, manifests: Iterable[ManifestFile], columns: BoundColumns) -> dict[str, DataFile]:
        files: dict[str, DataFile] = {}
        for manifest in manifests:
            if manifest.content != DATA_CONTENT:
                continue
            for entry in await self._live_entries(manifest):
                if entry.file_path in files:
                    raise errors.Contradiction(f"{entry.file_path} is in the manifests of one snapshot twice")
                files[entry.file_path] = data_file_of_entry(entry, columns, manifest.sequence_number)
        return files

    async def _delete_files(self, manifests: Iterable[ManifestFile]) -> list[DeleteFile]:
        return [
            delete_file_of_entry(entry, manifest.sequence_number)
            for manifest in manifests
            if manifest.content != DATA_CONTENT
            for entry in await self._live_entries(manifest)
        ]

    async def _live_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        data = await self._documents.read_file(manifest.path)
        entries = await self._offload.run(lambda: decode_entries(manifest.path, data, list))
        return [entry for entry in entries if entry.is_live]


def _removed_deletes(before: Sequence[DeleteFile], after: Sequence[DeleteFile]) -> list[DeleteFile]:
    """The delete files that a snapshot removes. Raises Contradiction if it adds or changes one: a rewrite deletes no
    row that was not deleted before."""
    if added := set(after) - set(before):
        raise errors.Contradiction(
            f"a rewrite adds or changes delete files, such as {min(delete.location for delete in added)}"
        )
    return sorted(set(before) - set(after), key=lambda delete: delete.name)


def _delete_manifests(manifests: Iterable[ManifestFile]) -> set[str]:
    return {manifest.path for manifest in manifests if manifest.content != DATA_CONTENT}
