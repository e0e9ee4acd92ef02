"""What a shell offers at Tab: words that are known here, and names that the broker knows.

Nobody waits at Tab: a broker that does not answer at once, or at all, offers nothing, and nothing is said about it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import typer

from icestream import errors
from icestream.cli.broker import Target
from icestream.cli.connection import BrokerCalls, ask

WAIT_SECONDS: Final = 1.0
TYPES: Final = ("exclusive", "shared", "failover", "key-shared")
PLACES: Final = ("earliest", "latest", "-10m", "-1h", "-1d")
FORMATS: Final = ("text", "json", "payload")


def types() -> list[str]:
    return list(TYPES)


def places() -> list[str]:
    return list(PLACES)


def formats() -> list[str]:
    return list(FORMATS)


def setting_keys() -> list[str]:
    from icestream.settings import KEYS

    return list(KEYS)


def settings() -> list[str]:
    """For `--set`: the value is to follow."""
    return [f"{path}=" for path in setting_keys()]


def online_keys() -> list[str]:
    from icestream.settings import KEYS

    return [path for path, key in KEYS.items() if key.online]


def topics(ctx: typer.Context) -> list[str]:
    async def listed(broker: BrokerCalls) -> list[str]:
        return list((await broker.call("list_topics"))["topics"])

    return _asked(ctx, listed)


def subscriptions(ctx: typer.Context) -> list[str]:
    topic = ctx.params.get("topic") or ""

    async def listed(broker: BrokerCalls) -> list[str]:
        return list((await broker.call("describe_topic", topic=topic))["subscriptions"])

    return _asked(ctx, listed)


def namespaces(ctx: typer.Context) -> list[str]:
    async def listed(broker: BrokerCalls) -> list[str]:
        return [one["namespace"] for one in await broker.items("list_namespaces")]

    return _asked(ctx, listed)


def tables(ctx: typer.Context) -> list[str]:
    from icestream.cli.table_catalog import all_namespaces
    from icestream.cli.table_name import shown

    async def listed(catalog: Any) -> list[str]:
        found = [table for one in await all_namespaces(catalog) for table in await catalog.list_tables(one)]
        return [shown([*one.namespace, one.name]) for one in found]

    return _asked_catalog(ctx, listed)


def catalog_namespaces(ctx: typer.Context) -> list[str]:
    from icestream.cli.table_catalog import all_namespaces
    from icestream.cli.table_name import shown

    async def listed(catalog: Any) -> list[str]:
        return [shown(one) for one in await all_namespaces(catalog)]

    return _asked_catalog(ctx, listed)


def _asked_catalog(ctx: typer.Context, question: Callable[[Any], Awaitable[list[str]]]) -> list[str]:
    from icestream.cli.table_catalog import ask_catalog, catalog_settings

    async def in_time(catalog: Any) -> list[str]:
        async with asyncio.timeout(WAIT_SECONDS):
            return await question(catalog)

    with contextlib.suppress(errors.IcestreamError, TimeoutError, OSError):
        return ask_catalog(catalog_settings(_target(ctx)), in_time)
    return []


def _asked(ctx: typer.Context, question: Callable[[BrokerCalls], Awaitable[list[str]]]) -> list[str]:
    async def in_time(broker: BrokerCalls) -> list[str]:
        async with asyncio.timeout(WAIT_SECONDS):
            return await question(broker)

    with contextlib.suppress(errors.IcestreamError, TimeoutError, OSError):
        return ask(_target(ctx), in_time)
    return []


def _target(ctx: typer.Context) -> Target:
    given = ctx.params.get
    config = given("config")
    return Target(given("broker"), Path(config) if config else None, given("sets"))
