"""Views in Iceberg's REST protocol."""

from __future__ import annotations

from icestream.catalog.catalog import Catalog
from icestream.iceberg import values
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.request import Asked, identifier_of
from icestream.lake.iceberg.responses import NOTHING, Answer


async def list_views(catalog: Catalog, asked: Asked) -> Answer:
    namespace = asked.namespace
    page = await catalog.views.list(namespace, *asked.page())
    return responses.identifiers(namespace, page.names, page.token)


async def create_view(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    return responses.view(await catalog.views.create(asked.new_relation(document), document, asked.name))


async def register_view(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    location = values.text(document, "metadata-location")
    return responses.view(await catalog.views.register(asked.new_relation(document), location, asked.name))


async def load_view(catalog: Catalog, asked: Asked) -> Answer:
    return responses.view(await catalog.views.load(asked.relation))


async def view_exists(catalog: Catalog, asked: Asked) -> Answer:
    await catalog.views.exists(asked.relation)
    return NOTHING


async def replace_view(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    requirements = values.optional_objects(document, "requirements")
    updates = values.objects(document, "updates")
    return responses.view(await catalog.views.replace(asked.relation, requirements, updates, asked.name))


async def drop_view(catalog: Catalog, asked: Asked) -> Answer:
    await catalog.views.drop(asked.relation, asked.name)
    return NOTHING


async def rename_view(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    source = identifier_of(values.as_object(values.required(document, "source"), "source"))
    target = identifier_of(values.as_object(values.required(document, "destination"), "destination"))
    await catalog.views.rename(source, target, asked.name)
    return NOTHING
