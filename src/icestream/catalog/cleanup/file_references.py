"""What a table names: its document by itself, and with what lists and manifests say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from icestream import errors
from icestream.iceberg.table_metadata import TableMetadata


class ManifestSource(Protocol):
    """Reads what lists and manifests name. Raises MetadataFileMissing and MetadataFileDamaged, and InvalidInput for
    what is no location."""

    async def manifest_paths(self, manifest_list: str) -> list[str]: ...

    async def file_paths(self, manifest: str) -> list[str]: ...


OnDamaged = Callable[[str, errors.IcestreamError], None]  # of a list or manifest that is there and of no use


async def manifests_of(table: TableMetadata, manifests: ManifestSource, damaged: OnDamaged) -> AsyncIterator[str]:
    """Each once. One list that is gone names nothing: nobody reads through it either."""
    seen: set[str] = set()
    for snapshot in table.snapshots:
        named: list[str] = list(snapshot.get("manifests") or ())
        if (where := snapshot.get("manifest-list")) is not None:
            try:
                named += await manifests.manifest_paths(where)
            except errors.MetadataFileMissing:
                continue
            except (errors.MetadataFileDamaged, errors.InvalidInput) as error:
                damaged(where, error)
        for manifest in named:
            if manifest not in seen:
                seen.add(manifest)
                yield manifest


async def files_of(manifest: str, manifests: ManifestSource, damaged: OnDamaged) -> list[str]:
    try:
        return await manifests.file_paths(manifest)
    except errors.MetadataFileMissing:
        return []
    except (errors.MetadataFileDamaged, errors.InvalidInput) as error:
        damaged(manifest, error)
        return []


def lists_of(table: TableMetadata) -> Iterator[str]:
    for snapshot in table.snapshots:
        if (found := snapshot.get("manifest-list")) is not None:
            yield found


def own_files(table: TableMetadata) -> Iterator[str]:
    """What the document itself names, apart from snapshots."""
    for entry in table.metadata_log:
        yield entry["metadata-file"]
    for name in ("statistics", "partition-statistics"):
        for entry in table.fields.get(name) or ():
            yield entry["statistics-path"]
