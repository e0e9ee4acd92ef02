"""Hints for unknown tables in responses of /api/v1/lake.

The catalog itself adds none, because clients of Iceberg's protocol compare its error messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.iceberg.identifier import Identifier, join_levels


@contextlib.asynccontextmanager
async def hint_on_unknown_table(catalog: Catalog, table: Identifier) -> AsyncIterator[None]:
    """Adds a hint to an UnknownTable error."""
    try:
        yield
    except errors.UnknownTable as error:
        raise errors.UnknownTable(error.message, hint=await _hint(catalog, table)) from None


async def _hint(catalog: Catalog, table: Identifier) -> str:
    try:
        await catalog.views.exists(table)
    except errors.UnknownView:
        pass
    else:
        return f"{table} is a view; only tables are supported here"
    try:
        await catalog.namespaces.load(table.namespace)
    except errors.UnknownNamespace:
        namespace = join_levels(table.namespace)
        return f"unknown namespace {namespace}: `icestream lake namespaces` lists the namespaces"
    return f"`icestream lake tables {join_levels(table.namespace)}` lists the tables"
