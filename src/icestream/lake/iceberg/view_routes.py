"""Views in Iceberg's REST protocol."""

from __future__ import annotations

from icestream.catalog.catalog import Catalog
from icestream.iceberg import values
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.request import IcebergRequest
from icestream.lake.iceberg.responses import NO_CONTENT, IcebergResponse


async def list_views(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    namespace = request.namespace
    is_visible = None if request.rights is None else request.rights.visible_relations
    page = await catalog.views.list(namespace, *request.page(), is_visible)
    return responses.identifiers_response(namespace, page.names, page.token)


async def create_view(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    document = request.document()
    return responses.view_response(
        await catalog.views.create(request.new_relation(document), document, request.name, request.guard)
    )


async def register_view(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    document = request.document()
    location = values.text(document, "metadata-location")
    return responses.view_response(
        await catalog.views.register(request.new_relation(document), location, request.name, request.guard)
    )


async def load_view(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    return responses.view_response(await catalog.views.load(request.relation))


async def view_exists(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    await catalog.views.exists(request.relation)
    return NO_CONTENT


async def replace_view(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    document = request.document()
    requirements = values.optional_objects(document, "requirements")
    updates = values.objects(document, "updates")
    return responses.view_response(
        await catalog.views.replace(request.relation, requirements, updates, request.name, request.guard)
    )


async def drop_view(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    await catalog.views.drop(request.relation, request.name)
    return NO_CONTENT


async def rename_view(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    source, target = request.renamed()
    await catalog.views.rename(source, target, request.name)
    return NO_CONTENT
