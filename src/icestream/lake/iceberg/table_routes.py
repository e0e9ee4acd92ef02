"""Tables in Iceberg's REST protocol, apart from commits."""

from __future__ import annotations

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.iceberg import values
from icestream.iceberg.values import short_repr
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.request import Asked, identifier_of
from icestream.lake.iceberg.responses import NOTHING, Answer


async def list_tables(catalog: Catalog, asked: Asked) -> Answer:
    namespace = asked.namespace
    page = await catalog.tables.list(namespace, *asked.page())
    return responses.identifiers(namespace, page.names, page.token)


async def create_table(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    identifier = asked.new_relation(document)
    if values.optional_flag(document, "stage-create"):
        return responses.staged(await catalog.tables.stage(identifier, document), asked.table_access)
    made = await catalog.tables.create(identifier, document, asked.name)
    return responses.table(made, access=asked.table_access)


async def register_table(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    location = values.text(document, "metadata-location")
    is_overwriting = values.optional_flag(document, "overwrite")
    identifier = asked.new_relation(document)
    made = await catalog.tables.register(identifier, location, is_overwriting, asked.name)
    return responses.table(made, access=asked.table_access)


async def load_table(catalog: Catalog, asked: Asked) -> Answer:
    snapshots = asked.parameter("snapshots") or "all"
    if snapshots not in ("all", "refs"):
        raise errors.InvalidInput(f"Invalid snapshots: {short_repr(snapshots)}", hint="all or refs")
    found = await catalog.tables.load(asked.relation)
    tag = responses.entity_tag(found.location, snapshots == "refs")
    if _is_known(asked.header(b"if-none-match"), tag):
        return Answer(304, headers=((b"etag", tag.encode()),))
    return responses.table(found, snapshots == "refs", asked.table_access)


def _is_known(given: str | None, tag: str) -> bool:
    """Whether a client has this version already (If-None-Match)."""
    if given is None:
        return False
    known = [one.strip().removeprefix("W/") for one in given.split(",")]
    return tag in known or "*" in known


async def table_exists(catalog: Catalog, asked: Asked) -> Answer:
    await catalog.tables.exists(asked.relation)
    return NOTHING


async def drop_table(catalog: Catalog, asked: Asked) -> Answer:
    is_purging = asked.flag("purgeRequested")
    await catalog.tables.drop(asked.relation, is_purging, asked.is_forced, asked.name)
    return NOTHING


async def rename_table(catalog: Catalog, asked: Asked) -> Answer:
    document = asked.document()
    source = identifier_of(values.as_object(values.required(document, "source"), "source"))
    target = identifier_of(values.as_object(values.required(document, "destination"), "destination"))
    await catalog.tables.rename(source, target, asked.is_forced, asked.name)
    return NOTHING


async def report_metrics(catalog: Catalog, asked: Asked) -> Answer:
    """What an engine measured about a scan or a commit of a table that exists. It is accepted and not used yet."""
    values.text(asked.document(), "report-type")
    await catalog.tables.exists(asked.relation)
    return NOTHING


async def load_credentials(catalog: Catalog, asked: Asked) -> Answer:
    """The keys of the store for a table that exists; none where the node hands out none. No header has to ask for them:
    the protocol has none for this request."""
    await catalog.tables.exists(asked.relation)
    return responses.credentials(asked.access.credentials)
