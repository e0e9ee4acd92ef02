"""Namespaces in Iceberg's REST protocol."""

from __future__ import annotations

from icestream.catalog.catalog import Catalog
from icestream.iceberg import values
from icestream.iceberg.identifier import check_namespace
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.request import Asked, levels_of
from icestream.lake.iceberg.responses import NOTHING, Answer


async def list_namespaces(catalog: Catalog, asked: Asked) -> Answer:
    named = asked.parameter("parent")
    parent = levels_of(named) if named else ()
    page = await catalog.namespaces.list(parent, *asked.page())
    return responses.document({"namespaces": [[*parent, name] for name in page.names], "next-page-token": page.token})


async def create_namespace(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    namespace = check_namespace(values.texts(document, "namespace"))
    properties = values.optional_text_map(document, "properties")
    made = await catalog.namespaces.create(namespace, properties, asked.name)
    return responses.document({"namespace": namespace, "properties": made})


async def load_namespace(catalog: Catalog, asked: Asked) -> Answer:
    namespace = asked.namespace
    return responses.document({"namespace": namespace, "properties": await catalog.namespaces.load(namespace)})


async def namespace_exists(catalog: Catalog, asked: Asked) -> Answer:
    await catalog.namespaces.load(asked.namespace)
    return NOTHING


async def drop_namespace(catalog: Catalog, asked: Asked) -> Answer:
    await catalog.namespaces.drop(asked.namespace, asked.name)
    return NOTHING


async def change_properties(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    updates = values.optional_text_map(document, "updates")
    removals = values.texts(document, "removals") if document.get("removals") is not None else []
    changed = await catalog.namespaces.change_properties(asked.namespace, updates, removals, asked.name)
    return responses.document({"updated": changed.updated, "removed": changed.removed, "missing": changed.missing})
