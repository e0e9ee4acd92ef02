"""Lists the files of a table: through the lake process for the embedded catalog, else by reading the manifests here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream import limits

if TYPE_CHECKING:
    from icestream.iceberg.identifier import Identifier
    from icestream.settings import Settings

Files = tuple[list[dict[str, Any]], bool]  # the files, and whether there are more than the limit


def list_embedded_files(settings: Settings, table: Identifier, snapshot: int | None, limit: int) -> Files:
    from icestream.cli.lake_http import LakeApi

    api = LakeApi(settings)
    entries: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None and len(entries) < limit:
        size = min(limit - len(entries), limits.API_PAGE_MAX)
        page = api.get("files", namespace=table.namespace, table=table.name, snapshot=snapshot, after=after, limit=size)
        entries += page["items"]
        after = page["next"]
    return entries, after is not None


def list_foreign_files(settings: Settings, table: Identifier, snapshot: int | None, limit: int) -> Files:
    """Reads the manifests with the settings of `object_store`, as the pipeline does."""
    from icestream.catalogs.factory import open_files
    from icestream.catalogs.store_options import StoreOptions
    from icestream.cli.table_catalog import call_catalog
    from icestream.iceberg import file_listing
    from icestream.iceberg.manifest_reader import ManifestReader
    from icestream.iceberg.table_metadata import load
    from icestream.runtime.tasks import InlineOffload

    async def read(catalog: Any) -> Files:
        document = load((await catalog.load(table)).metadata)
        store = open_files(StoreOptions.of(settings.storage.iceberg_config.object_store))
        manifests = ManifestReader(store, InlineOffload())
        entries: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None and len(entries) < limit:
            page = await file_listing.list_files(document, manifests, snapshot, after, limit - len(entries))
            entries += page["items"]
            after = page["next"]
        return entries, after is not None

    return call_catalog(settings, read)
