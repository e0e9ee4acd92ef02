"""Shell completions: fixed words, setting keys, and names that the broker or the catalog lists.

Completion must not block the prompt: if the broker does not reply within a second, nothing is offered and nothing is
printed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import typer

from icestream import errors
from icestream.admin_api.namespace_api import LIST_NAMESPACES
from icestream.admin_api.topic_api import DESCRIBE_TOPIC, LIST_TOPICS
from icestream.cli.broker_connection import BrokerCalls, call_broker
from icestream.cli.broker_location import Target

WAIT_SECONDS: Final = 1.0
TYPES: Final = ("exclusive", "shared", "failover", "key-shared")
POSITIONS: Final = ("earliest", "latest", "-10m", "-1h", "-1d")
FORMATS: Final = ("text", "json", "payload")


def types() -> list[str]:
    return list(TYPES)


def positions() -> list[str]:
    return list(POSITIONS)


def formats() -> list[str]:
    return list(FORMATS)


def setting_keys() -> list[str]:
    from icestream.settings import KEYS

    return list(KEYS)


def online_keys() -> list[str]:
    """The keys that `icestream config set` can change in a running broker."""
    from icestream.settings import KEYS

    return [path for path, key in KEYS.items() if key.online]


def topics(ctx: typer.Context) -> list[str]:
    async def list_names(broker: BrokerCalls) -> list[str]:
        return list((await broker.call(LIST_TOPICS))["topics"])

    return _complete_from_broker(ctx, list_names)


def subscriptions(ctx: typer.Context) -> list[str]:
    """The subscriptions of the topic that stands before this argument."""
    topic = ctx.params.get("topic") or ""

    async def list_names(broker: BrokerCalls) -> list[str]:
        return list((await broker.call(DESCRIBE_TOPIC, topic=topic))["subscriptions"])

    return _complete_from_broker(ctx, list_names)


def namespaces(ctx: typer.Context) -> list[str]:
    async def list_names(broker: BrokerCalls) -> list[str]:
        return [entry["namespace"] for entry in await broker.items(LIST_NAMESPACES)]

    return _complete_from_broker(ctx, list_names)


def tables(ctx: typer.Context) -> list[str]:
    from icestream.cli.catalog_access import list_all_namespaces
    from icestream.cli.table_name import format_levels

    async def list_names(catalog: Any) -> list[str]:
        return [
            format_levels([*table.namespace, table.name])
            for namespace in await list_all_namespaces(catalog)
            for table in await catalog.list_tables(namespace)
        ]

    return _complete_from_catalog(ctx, list_names)


def catalog_namespaces(ctx: typer.Context) -> list[str]:
    from icestream.cli.catalog_access import list_all_namespaces
    from icestream.cli.table_name import format_levels

    async def list_names(catalog: Any) -> list[str]:
        return [format_levels(namespace) for namespace in await list_all_namespaces(catalog)]

    return _complete_from_catalog(ctx, list_names)


def _complete_from_catalog(ctx: typer.Context, list_names: Callable[[Any], Awaitable[list[str]]]) -> list[str]:
    from icestream.cli.catalog_access import call_catalog, catalog_settings

    async def list_in_time(catalog: Any) -> list[str]:
        async with asyncio.timeout(WAIT_SECONDS):
            return await list_names(catalog)

    with contextlib.suppress(errors.IcestreamError, TimeoutError, OSError):
        return call_catalog(catalog_settings(_target(ctx)), list_in_time)
    return []


def _complete_from_broker(ctx: typer.Context, list_names: Callable[[BrokerCalls], Awaitable[list[str]]]) -> list[str]:
    async def list_in_time(broker: BrokerCalls) -> list[str]:
        async with asyncio.timeout(WAIT_SECONDS):
            return await list_names(broker)

    with contextlib.suppress(errors.IcestreamError, TimeoutError, OSError):
        return call_broker(_target(ctx), list_in_time)
    return []


def _target(ctx: typer.Context) -> Target:
    config = ctx.params.get("config")
    return Target(ctx.params.get("broker"), Path(config) if config else None, ctx.params.get("sets"))
