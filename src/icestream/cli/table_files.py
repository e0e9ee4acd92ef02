"""The files of a table, in whatever catalog: those of our own are asked of the lake process, others read here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream import limits

if TYPE_CHECKING:
    from icestream.iceberg.identifier import Identifier
    from icestream.settings import Settings

Files = tuple[list[dict[str, Any]], bool]  # and whether there are more


def own_files(settings: Settings, table: Identifier, snapshot: int | None, limit: int) -> Files:
    from icestream.cli.lake_http import LakeApi

    api = LakeApi(settings)
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None and len(found) < limit:
        size = min(limit - len(found), limits.API_PAGE_MAX)
        page = api.get("files", namespace=table.namespace, table=table.name, snapshot=snapshot, after=after, limit=size)
        found += page["items"]
        after = page["next"]
    return found, after is not None


def foreign_files(settings: Settings, table: Identifier, snapshot: int | None, limit: int) -> Files:
    """Read with what `object_store` says: this is how the pipeline reaches them, too."""
    from icestream.catalogs.factory import open_files
    from icestream.catalogs.store_options import StoreOptions
    from icestream.cli.table_catalog import ask_catalog
    from icestream.iceberg import file_listing
    from icestream.iceberg.manifest_reader import ManifestReader
    from icestream.iceberg.table_metadata import load
    from icestream.runtime.tasks import InlineOffload

    async def read(catalog: Any) -> Files:
        document = load((await catalog.load(table)).metadata)
        store = open_files(StoreOptions.of(settings.storage.iceberg_config.object_store))
        manifests = ManifestReader(store, InlineOffload())
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            page = await file_listing.list_files(document, manifests, snapshot, after, limit - len(found))
            found += page["items"]
            after = page["next"]
        return found, after is not None

    return ask_catalog(settings, read)
