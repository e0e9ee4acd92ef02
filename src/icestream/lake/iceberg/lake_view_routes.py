"""Namespaces and tables in the read-only views of the lake (lake_views.py), in Iceberg's REST protocol."""

from __future__ import annotations

from icestream.catalog.catalog import Catalog
from icestream.iceberg.table_metadata import TableMetadata
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.access import NO_TABLE_ACCESS, VENDED_CREDENTIALS, TableAccess, mechanisms
from icestream.lake.iceberg.delegated_access import access_scope
from icestream.lake.iceberg.lake_view import LakeView
from icestream.lake.iceberg.request import IcebergRequest, parse_namespace
from icestream.lake.iceberg.responses import NO_CONTENT, IcebergResponse
from icestream.lake.iceberg.table_routes import has_version, snapshots_parameter


def _view_of(request: IcebergRequest) -> LakeView:
    assert request.view is not None  # a route of views
    return request.view


async def list_namespaces(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    parent_text = request.parameter("parent")
    parent = parse_namespace(parent_text) if parent_text else ()
    page = await _view_of(request).list_namespaces(catalog, parent, *request.page(), request.rights)
    return responses.namespaces_response(parent, page.names, page.token)


async def load_namespace(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    namespace = request.namespace
    properties = await _view_of(request).load_namespace(catalog, namespace)
    return responses.json_response({"namespace": namespace, "properties": properties})


async def namespace_exists(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    await _view_of(request).load_namespace(catalog, request.namespace)
    return NO_CONTENT


async def list_tables(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    namespace = request.namespace
    page = await _view_of(request).list(catalog, namespace, *request.page(), request.rights)
    return responses.identifiers_response(namespace, page.names, page.token)


async def load_table(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    only_referenced = snapshots_parameter(request) == "refs"
    version, table = await _view_of(request).load(catalog, request.relation)
    tag = responses.entity_tag(version, only_referenced)
    access = NO_TABLE_ACCESS
    if VENDED_CREDENTIALS in mechanisms(request.delegation):
        access = await _read_access(catalog, request)
    if access == NO_TABLE_ACCESS and has_version(request.header(b"if-none-match"), tag):
        return IcebergResponse(304, headers=((b"etag", tag.encode()),))
    metadata: TableMetadata = table.with_referenced_snapshots() if only_referenced else table
    return responses.view_table_response(metadata, tag, access)


async def table_exists(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    await _view_of(request).load(catalog, request.relation)
    return NO_CONTENT


async def load_credentials(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    await _view_of(request).load(catalog, request.relation)
    return responses.credentials_response((await _read_access(catalog, request)).storage_credentials)


async def _read_access(catalog: Catalog, request: IcebergRequest) -> TableAccess:
    """Keys that read the table's files; none without accounts, because the node's own keys also write."""
    delegated = request.access.delegated
    if request.rights is None or delegated is None or not _view_of(request).shows_live_files:
        return NO_TABLE_ACCESS
    live = (await catalog.tables.load(request.relation)).table
    scope = await access_scope(catalog, request.rights, request.relation, live)
    return NO_TABLE_ACCESS if scope is None else await delegated.vend(scope._replace(is_writer=False))
