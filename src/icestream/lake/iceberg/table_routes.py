"""Tables in Iceberg's REST protocol, with commits to one table and to several in a transaction."""

from __future__ import annotations

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.operations.table_places import own_places
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg import values
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object, short_repr
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.access import NO_TABLE_ACCESS, TableAccess, mechanisms
from icestream.lake.iceberg.delegated_access import access_scope, no_signatures, staged_scope
from icestream.lake.iceberg.request import IcebergRequest, parse_identifier
from icestream.lake.iceberg.responses import NO_CONTENT, IcebergResponse


async def list_tables(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    namespace = request.namespace
    is_visible = None if request.rights is None else request.rights.visible_relations
    page = await catalog.tables.list(namespace, *request.page(), is_visible)
    return responses.identifiers_response(namespace, page.names, page.token)


async def create_table(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    document = request.document()
    identifier = request.new_relation(document)
    if values.optional_flag(document, "stage-create"):
        if request.guard is not None:
            await request.guard()  # no transaction yet: the commit that creates the table looks again
        staged = await catalog.tables.stage(identifier, document)
        return responses.staged_table_response(staged, await _staged_access(catalog, request, identifier, staged))
    table = await catalog.tables.create(identifier, document, request.name, request.guard)
    return responses.table_response(table, access=await _table_access(catalog, request, identifier, table.table))


async def register_table(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    document = request.document()
    location = values.text(document, "metadata-location")
    is_overwriting = values.optional_flag(document, "overwrite")
    identifier = request.new_relation(document)
    table = await catalog.tables.register(identifier, location, is_overwriting, request.name, request.guard)
    return responses.table_response(table, access=await _table_access(catalog, request, identifier, table.table))


async def load_table(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    snapshots = snapshots_parameter(request)
    table = await catalog.tables.load(request.relation)
    tag = responses.entity_tag(table.location, snapshots == "refs")
    access = await _table_access(catalog, request, request.relation, table.table)
    # With keys that expire, a client needs the response although it has this version of the table.
    if access == NO_TABLE_ACCESS and has_version(request.header(b"if-none-match"), tag):
        return IcebergResponse(304, headers=((b"etag", tag.encode()),))
    return responses.table_response(table, snapshots == "refs", access)


def snapshots_parameter(request: IcebergRequest) -> str:
    """Which snapshots the client wants: `all`, or `refs`. Raises InvalidInput."""
    snapshots = request.parameter("snapshots") or "all"
    if snapshots not in ("all", "refs"):
        raise errors.InvalidInput(f"Invalid snapshots: {short_repr(snapshots)}", hint="all or refs")
    return snapshots


async def _table_access(
    catalog: Catalog, request: IcebergRequest, identifier: Identifier, table: TableMetadata
) -> TableAccess:
    """The access to the files of an existing table that the response grants to this client."""
    if request.rights is None:
        return request.access.table(request.delegation)
    delegated = request.access.delegated
    if delegated is None or request.delegation is None:
        return NO_TABLE_ACCESS
    scope = await access_scope(catalog, request.rights, identifier, table)
    return NO_TABLE_ACCESS if scope is None else await delegated.grant(scope, mechanisms(request.delegation))


async def _staged_access(
    catalog: Catalog, request: IcebergRequest, identifier: Identifier, table: TableMetadata
) -> TableAccess:
    if request.rights is None:
        return request.access.table(request.delegation)
    delegated = request.access.delegated
    if delegated is None or request.delegation is None:
        return NO_TABLE_ACCESS
    locations = own_places(table.location, dict(table.properties))
    scope = await staged_scope(catalog, request.rights, identifier, locations)
    return NO_TABLE_ACCESS if scope is None else await delegated.grant(scope, mechanisms(request.delegation))


def has_version(if_none_match: str | None, tag: str) -> bool:
    """Whether the client already has this version of the table."""
    if if_none_match is None:
        return False
    tags = [text.strip().removeprefix("W/") for text in if_none_match.split(",")]
    return tag in tags or "*" in tags


async def table_exists(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    await catalog.tables.exists(request.relation)
    return NO_CONTENT


async def drop_table(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    is_purging = request.flag("purgeRequested")
    await catalog.tables.drop(request.relation, is_purging, request.is_forced, request.name)
    return NO_CONTENT


async def rename_table(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    source, target = request.renamed()
    await catalog.tables.rename(source, target, request.is_forced, request.name)
    return NO_CONTENT


async def report_metrics(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    """Accepts an engine's report about a scan or a commit; it is not used."""
    values.text(request.document(), "report-type")
    await catalog.tables.exists(request.relation)
    return NO_CONTENT


async def load_credentials(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    """The keys of an existing table; empty if the node has none to give. The protocol defines no delegation header for
    this request."""
    if request.rights is None:
        await catalog.tables.exists(request.relation)
        return responses.credentials_response(request.access.credentials)
    access, delegated = NO_TABLE_ACCESS, request.access.delegated
    if delegated is not None:
        table = (await catalog.tables.load(request.relation)).table
        scope = await access_scope(catalog, request.rights, request.relation, table)
        access = NO_TABLE_ACCESS if scope is None else await delegated.vend(scope)
    return responses.credentials_response(access.storage_credentials)


async def sign_request(_catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    """Signs a request to the object store for a client. What it may reach was decided before (route_rights.py)."""
    delegated, signable = request.access.delegated, request.signable
    if delegated is None or signable is None:
        raise no_signatures()
    headers = await delegated.sign(*signable)
    body = {"uri": signable.request.uri, "headers": {name: [value] for name, value in headers.items()}}
    return responses.json_response(body)


async def commit_table(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    commit = commit_request(request.document(), request.is_forced)
    return responses.table_response(await catalog.commits.commit(request.relation, commit, request.name, request.guard))


async def commit_transaction(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    return responses.transaction_response(
        await catalog.commits.commit_all(transaction_changes(request), request.name, request.guard)
    )


def transaction_changes(request: IcebergRequest) -> dict[Identifier, CommitRequest]:
    """The commits of a transaction, by table. Raises InvalidInput."""
    is_forced = request.is_forced
    changes: dict[Identifier, CommitRequest] = {}
    for change in values.objects(request.document(), "table-changes"):
        identifier = parse_identifier(values.as_object(values.required(change, "identifier"), "identifier"))
        if identifier in changes:
            raise errors.InvalidInput(
                f"transaction contains two changes of {identifier}", hint="combine them into one change"
            )
        changes[identifier] = commit_request(change, is_forced)
    return changes


def commit_request(document: Object, is_forced: bool) -> CommitRequest:
    return CommitRequest(values.objects(document, "requirements"), values.objects(document, "updates"), is_forced)
