"""What `icestream doctor` asks of a catalog and an object store elsewhere: one question each, which changes nothing.

What lies inside this node (the embedded catalog, a local directory) is looked at by the other checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from icestream import errors
from icestream.cli.findings import Finding, State
from icestream.observability.words import counted
from icestream.settings import Settings

# A person waits: one answer, asked for once.
REQUEST_MS_MAX: Final = 10_000
# It need not be there; whether we may look is what counts.
_PROBE: Final = "icestream-doctor"


def storage(settings: Settings) -> Iterator[Finding]:
    hasty = _hasty(settings)
    if not settings.catalog_embedded:
        yield asyncio.run(_catalog(hasty))
    if settings.storage.iceberg_config.object_store.type in ("s3", "gcs", "azure"):
        yield asyncio.run(_object_store(hasty))


async def _catalog(settings: Settings) -> Finding:
    from icestream.catalogs.factory import open_catalog
    from icestream.catalogs.storage_caller import CallTimeouts

    catalog = settings.catalog
    try:
        found = open_catalog(settings, waits=CallTimeouts(catalog.request_timeout_ms / 1000, attempts_max=1))
        try:
            namespaces = await found.list_namespaces()
        finally:
            await found.close()
    except errors.IcestreamError as error:
        return _problem("catalog", error)
    place = catalog.uri or "AWS Glue"
    if catalog.type == "glue" and (catalog.database or "",) not in namespaces:
        text = f"glue at {place} answers, but has no database {catalog.database}"
        return Finding("catalog", State.PROBLEM, text, "create it, or set storage.iceberg_config.catalog.database")
    return Finding("catalog", State.OK, f"{catalog.type} at {place} answers: {counted(len(namespaces), 'namespace')}")


async def _object_store(settings: Settings) -> Finding:
    from icestream.catalogs.factory import open_objects
    from icestream.catalogs.storage_caller import CallTimeouts

    store = settings.storage.iceberg_config.object_store
    try:
        objects = open_objects(settings, waits=CallTimeouts(store.request_timeout_ms / 1000, attempts_max=1))
        await objects.exists(_PROBE)
    except errors.IcestreamError as error:
        return _problem("object store", error)
    return Finding("object store", State.OK, f"{store.type} bucket {store.bucket} answers")


def _problem(check: str, error: errors.IcestreamError) -> Finding:
    return Finding(check, State.PROBLEM, error.message, error.hint)


def _hasty(settings: Settings) -> Settings:
    """The same with little patience."""
    iceberg = settings.storage.iceberg_config
    catalog, store = iceberg.catalog, iceberg.object_store
    hasty = iceberg.model_copy(
        update={
            "catalog": catalog.model_copy(
                update={"request_timeout_ms": min(catalog.request_timeout_ms, REQUEST_MS_MAX)}
            ),
            "object_store": store.model_copy(
                update={"request_timeout_ms": min(store.request_timeout_ms, REQUEST_MS_MAX)}
            ),
        }
    )
    return settings.model_copy(update={"storage": settings.storage.model_copy(update={"iceberg_config": hasty})})
