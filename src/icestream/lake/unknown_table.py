"""Where to look for a table that is not there: the hint of /api/v1/lake.

The catalog itself gives none: clients of Iceberg's protocol compare its words.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.iceberg.identifier import Identifier, join_levels


@contextlib.asynccontextmanager
async def looking_for(catalog: Catalog, table: Identifier) -> AsyncIterator[None]:
    """Whoever finds no table is told what there is."""
    try:
        yield
    except errors.UnknownTable as error:
        raise errors.UnknownTable(error.message, hint=await _what_there_is(catalog, table)) from None


async def _what_there_is(catalog: Catalog, table: Identifier) -> str:
    try:
        await catalog.views.exists(table)
    except errors.UnknownView:
        pass
    else:
        return f"{table} is a view, and these commands are for tables: ask an engine about it"
    try:
        await catalog.namespaces.load(table.namespace)
    except errors.UnknownNamespace:
        namespace = join_levels(table.namespace)
        return f"there is no namespace {namespace}: `icestream lake namespaces` lists those that there are"
    return f"`icestream lake tables {join_levels(table.namespace)}` lists those that there are"
