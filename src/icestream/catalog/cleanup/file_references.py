"""The files that a table refers to: in its metadata document, in manifest lists and in manifests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from icestream import errors
from icestream.iceberg.table_metadata import TableMetadata


class ManifestSource(Protocol):
    """Reads manifest lists and manifests. Raises MetadataFileMissing, MetadataFileDamaged, and InvalidInput for a path
    that is not a location."""

    async def manifest_paths(self, manifest_list: str) -> list[str]: ...

    async def file_paths(self, manifest: str) -> list[str]: ...


OnDamaged = Callable[[str, errors.IcestreamError], None]  # receives the path of an unreadable list or manifest


async def manifests_of(table: TableMetadata, manifests: ManifestSource, on_damaged: OnDamaged) -> AsyncIterator[str]:
    """Yields the manifests of all snapshots, each once. A missing manifest list counts as empty: no engine can read
    it."""
    yielded: set[str] = set()
    for snapshot in table.snapshots:
        paths: list[str] = list(snapshot.get("manifests") or ())
        if (manifest_list := snapshot.get("manifest-list")) is not None:
            try:
                paths += await manifests.manifest_paths(manifest_list)
            except errors.MetadataFileMissing:
                continue
            except (errors.MetadataFileDamaged, errors.InvalidInput) as error:
                on_damaged(manifest_list, error)
        for path in paths:
            if path not in yielded:
                yielded.add(path)
                yield path


async def files_of(manifest: str, manifests: ManifestSource, on_damaged: OnDamaged) -> list[str]:
    """Returns the data and delete files of a manifest; none of a manifest that is missing or damaged."""
    try:
        return await manifests.file_paths(manifest)
    except errors.MetadataFileMissing:
        return []
    except (errors.MetadataFileDamaged, errors.InvalidInput) as error:
        on_damaged(manifest, error)
        return []


def lists_of(table: TableMetadata) -> Iterator[str]:
    for snapshot in table.snapshots:
        if (manifest_list := snapshot.get("manifest-list")) is not None:
            yield manifest_list


def document_references(table: TableMetadata) -> Iterator[str]:
    """Yields the files that the document itself names, apart from snapshots: old metadata files and statistics."""
    for entry in table.metadata_log:
        yield entry["metadata-file"]
    for name in ("statistics", "partition-statistics"):
        for entry in table.fields.get(name) or ():
            yield entry["statistics-path"]
