"""The catalog of the settings, whichever it is, as commands ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from icestream import errors, limits
from icestream.cli.broker import Target

if TYPE_CHECKING:
    from icestream.catalogs.table_catalog import TableCatalog
    from icestream.iceberg.identifier import Namespace
    from icestream.settings import Settings

Answer = TypeVar("Answer")
# A command is one call: it ends with the reason of the last failure, before the circuit opens and hides that.
ATTEMPTS_MAX: Final = limits.BREAKER_FAILURES_MAX - 2


def catalog_settings(target: Target, *, needs_node: bool = False) -> Settings:
    """As the broker that is meant says, else those of the command; with the token of the node's own catalog.

    `needs_node`: the node is asked, too, whichever catalog has the tables. Raises as `told_settings` does.
    """
    from icestream.cli.lake_http import own_token
    from icestream.cli.told_settings import told_settings

    settings = told_settings(target, needs_node=needs_node)
    if settings.catalog_embedded and settings.catalog.token is None and (token := own_token(settings)) is not None:
        with_token = [*(target.sets or ()), f"storage.iceberg_config.catalog.token={token}"]
        return told_settings(replace(target, sets=with_token), needs_node=needs_node)
    return settings


def ask_catalog(settings: Settings, question: Callable[[TableCatalog], Awaitable[Answer]]) -> Answer:
    """Opens, asks, leaves. Raises ConnectionLost where the node's own catalog is not there."""
    from icestream.catalogs.factory import open_catalog
    from icestream.catalogs.storage_caller import CallTimeouts
    from icestream.cli.lake_http import LakeApi
    from icestream.cli.told_settings import instance_of

    waits = CallTimeouts(settings.catalog.request_timeout_ms / 1000, 1 if settings.catalog_embedded else ATTEMPTS_MAX)

    async def asked() -> Answer:
        catalog = open_catalog(settings, waits=waits, instance=lambda: instance_of(settings))
        try:
            return await question(catalog)
        finally:
            await catalog.close()

    try:
        return asyncio.run(asked())
    except errors.UnknownNamespace as error:
        hint = error.hint or "`icestream lake namespaces` lists those that there are"
        raise errors.UnknownNamespace(error.message, hint=hint) from None
    except errors.StorageUnavailable:
        if settings.catalog_embedded:
            LakeApi(settings).check_listens()
        raise


async def all_namespaces(catalog: TableCatalog, parent: Namespace = ()) -> list[Namespace]:
    """With those in them, each before what is in it."""
    found: list[Namespace] = []
    for one in await catalog.list_namespaces(parent):
        found += [one, *await all_namespaces(catalog, one)]
    return found
