"""Access of commands to the catalog that the settings name: the embedded one or another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from icestream import errors, limits
from icestream.cli.broker_location import Target
from icestream.cli.output import print_note
from icestream.cli.table_name import format_levels

if TYPE_CHECKING:
    from icestream.catalogs.table_catalog import TableCatalog
    from icestream.iceberg.identifier import Namespace
    from icestream.settings import Settings

Result = TypeVar("Result")
# Fewer attempts than open the circuit breaker: the user sees the cause of the last failure, not "circuit open".
ATTEMPTS_MAX: Final = limits.BREAKER_FAILURES_MAX - 2


def catalog_settings(target: Target, *, needs_node: bool = False) -> Settings:
    """The settings of the catalog: as the broker reports them, else those of the command; with the token of the
    embedded catalog.

    `needs_node`: the command talks to the node, whichever catalog holds the tables. Raises what `broker_settings` does.
    """
    from icestream.cli.broker_settings import broker_settings
    from icestream.cli.lake_http import read_catalog_token

    settings = broker_settings(target, needs_node=needs_node)
    has_token = settings.catalog.token is not None
    if settings.catalog_embedded and not has_token and (token := read_catalog_token(settings)) is not None:
        return _with_token(settings, token)
    return settings


def _with_token(settings: Settings, token: str) -> Settings:
    """The settings with a token for the catalog. A copy, because a secret is not accepted as a flag (`--set`)."""
    from pydantic import SecretStr

    catalog = settings.catalog.model_copy(update={"token": SecretStr(token)})
    iceberg_config = settings.storage.iceberg_config.model_copy(update={"catalog": catalog})
    storage = settings.storage.model_copy(update={"iceberg_config": iceberg_config})
    return settings.model_copy(update={"storage": storage})


def call_catalog(settings: Settings, call: Callable[[TableCatalog], Awaitable[Result]]) -> Result:
    """Opens the catalog, runs the call, closes the catalog. Raises ConnectionLost if the embedded catalog does not
    listen."""
    from icestream.catalogs.storage_caller import CallTimeouts
    from icestream.cli.broker_settings import broker_instance
    from icestream.cli.lake_http import LakeApi
    from icestream.processes.configured_catalog import open_catalog

    waits = CallTimeouts(settings.catalog.request_timeout_ms / 1000, 1 if settings.catalog_embedded else ATTEMPTS_MAX)

    async def run() -> Result:
        catalog = open_catalog(settings, timeouts=waits, instance=lambda: broker_instance(settings))
        try:
            return await call(catalog)
        finally:
            await catalog.close()

    try:
        return asyncio.run(run())
    except errors.UnknownNamespace as error:
        hint = error.hint or "`icestream lake namespaces` lists the namespaces"
        raise errors.UnknownNamespace(error.message, hint=hint) from None
    except errors.StorageUnavailable:
        if settings.catalog_embedded:
            LakeApi(settings).check_listens()
        raise


async def list_all_namespaces(catalog: TableCatalog, parent: Namespace = ()) -> list[Namespace]:
    """Every namespace below the parent, at any depth, each before its children."""
    namespaces: list[Namespace] = []
    for namespace in await catalog.list_namespaces(parent):
        namespaces += [namespace, *await list_all_namespaces(catalog, namespace)]
    return namespaces


def resolve_table(text: str, target: Target) -> str:
    """The table that the text means: the name of a topic becomes that of its table, and a note says so.

    Raises UnknownTable for a topic without a table.
    """
    if not text.startswith("/"):
        return text
    levels = _find_topic_table(text, catalog_settings(target))
    if levels is None:
        raise errors.UnknownTable(
            f"topic {text} has no table yet",
            hint=f"`icestream lake commit-now {text}` writes its messages; `icestream lake tables` lists tables",
        )
    print_note(f"{text} is a topic; its table is {format_levels(levels)}")
    return format_levels(levels)


def _find_topic_table(topic: str, settings: Settings) -> tuple[str, ...] | None:
    """The levels of the topic's table: asked of the embedded catalog; in another catalog the name that the pipeline
    gives it."""
    from icestream.catalogs.topic_table_name import table_for_topic
    from icestream.cli.lake_http import LakeApi
    from icestream.model.topic_name import TopicName
    from icestream.processes.component_options import fixed_namespace

    if not settings.catalog_embedded:
        table = table_for_topic(TopicName.parse(topic), fixed_namespace(settings))
        return (*table.namespace, table.name)
    entry = LakeApi(settings).get("topics", topic=topic)["table"]
    return (*entry["namespace"], entry["table"]) if entry is not None else None
