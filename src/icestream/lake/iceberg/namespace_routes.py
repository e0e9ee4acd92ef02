"""Namespaces in Iceberg's REST protocol."""

from __future__ import annotations

from icestream.catalog.catalog import Catalog
from icestream.iceberg import values
from icestream.iceberg.identifier import check_namespace
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.request import IcebergRequest, parse_namespace
from icestream.lake.iceberg.responses import NO_CONTENT, IcebergResponse


async def list_namespaces(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    parent_text = request.parameter("parent")
    parent = parse_namespace(parent_text) if parent_text else ()
    is_visible = None if request.rights is None else request.rights.visible_namespaces
    page = await catalog.namespaces.list(parent, *request.page(), is_visible)
    return responses.namespaces_response(parent, page.names, page.token)


async def create_namespace(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    document = request.document()
    namespace = check_namespace(values.texts(document, "namespace"))
    properties = values.optional_text_map(document, "properties")
    stored = await catalog.namespaces.create(namespace, properties, request.name, request.guard)
    return responses.json_response({"namespace": namespace, "properties": stored})


async def load_namespace(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    namespace = request.namespace
    return responses.json_response({"namespace": namespace, "properties": await catalog.namespaces.load(namespace)})


async def namespace_exists(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    await catalog.namespaces.load(request.namespace)
    return NO_CONTENT


async def drop_namespace(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    await catalog.namespaces.drop(request.namespace, request.name)
    return NO_CONTENT


async def change_properties(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    document = request.document()
    updates = values.optional_text_map(document, "updates")
    removals = values.texts(document, "removals") if document.get("removals") is not None else []
    changed = await catalog.namespaces.change_properties(
        request.namespace, updates, removals, request.name, request.guard
    )
    return responses.json_response({"updated": changed.updated, "removed": changed.removed, "missing": changed.missing})
