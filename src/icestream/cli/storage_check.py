"""The checks of `icestream doctor` for external catalogs and object stores: one read-only request each.

The embedded catalog and local directories are covered by the other checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from icestream import errors
from icestream.cli.doctor_rules import CheckResult, CheckState
from icestream.observability.words import counted
from icestream.settings import Settings

# A person waits: the request is made once, with this timeout at most.
REQUEST_MS_MAX: Final = 10_000
# The object need not exist: only whether the request is permitted matters.
_PROBE: Final = "icestream-doctor"


def check_storage(settings: Settings) -> Iterator[CheckResult]:
    """The checks that apply to these settings."""
    probe_settings = _with_short_timeouts(settings)
    if not settings.catalog_embedded:
        yield asyncio.run(_catalog(probe_settings))
    yield from asyncio.run(_object_store(probe_settings))


async def _catalog(settings: Settings) -> CheckResult:
    from icestream.catalogs.storage_caller import CallTimeouts
    from icestream.processes.configured_catalog import open_catalog

    config = settings.catalog
    try:
        catalog = open_catalog(settings, timeouts=CallTimeouts(config.request_timeout_ms / 1000, attempts_max=1))
        try:
            namespaces = await catalog.list_namespaces()
        finally:
            await catalog.close()
    except errors.IcestreamError as error:
        return _problem("catalog", error)
    location = config.uri or "AWS Glue"
    if config.type == "glue" and (config.database or "",) not in namespaces:
        text = f"glue at {location} is reachable, but has no database {config.database}"
        fix = "create it, or set storage.iceberg_config.catalog.database"
        return CheckResult("catalog", CheckState.PROBLEM, text, fix)
    text = f"{config.type} at {location} is reachable: {counted(len(namespaces), 'namespace')}"
    return CheckResult("catalog", CheckState.OK, text)


async def _object_store(settings: Settings) -> list[CheckResult]:
    """The check of the warehouse's bucket; none if the warehouse is a directory, or in memory."""
    from icestream.catalogs.storage_caller import CallTimeouts
    from icestream.processes.configured_catalog import open_objects, warehouse_bucket

    kind, bucket = warehouse_bucket(settings) or ("local", "")
    if kind in ("local", "memory"):
        return []
    timeouts = CallTimeouts(settings.storage.iceberg_config.object_store.request_timeout_ms / 1000, attempts_max=1)
    try:
        objects = open_objects(settings, timeouts=timeouts)
        await objects.exists(_PROBE)
    except errors.IcestreamError as error:
        return [_problem("object store", error)]
    return [CheckResult("object store", CheckState.OK, f"{kind} bucket {bucket} is reachable")]


def _problem(check: str, error: errors.IcestreamError) -> CheckResult:
    return CheckResult(check, CheckState.PROBLEM, error.message, error.hint)


def _with_short_timeouts(settings: Settings) -> Settings:
    """The settings with the timeouts of this check."""
    iceberg = settings.storage.iceberg_config
    catalog, store = iceberg.catalog, iceberg.object_store
    shortened = iceberg.model_copy(
        update={
            "catalog": catalog.model_copy(
                update={"request_timeout_ms": min(catalog.request_timeout_ms, REQUEST_MS_MAX)}
            ),
            "object_store": store.model_copy(
                update={"request_timeout_ms": min(store.request_timeout_ms, REQUEST_MS_MAX)}
            ),
        }
    )
    return settings.model_copy(update={"storage": settings.storage.model_copy(update={"iceberg_config": shortened})})
