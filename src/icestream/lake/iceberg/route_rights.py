"""What each route of Iceberg's protocol needs, asked for before the route runs; only while security is on.

    list, HEAD, metrics           describe; listings show what is visible
    load, credentials             table-read; load of a view, which is a query of tables by its invoker: query
    sign                          table-read, or table-write for a request that writes; create for a staged table
    commit, transaction           table-write of every table, create of new ones; with icestream-force also delete
    create                        create of the name
    register                      create, or table-write of what it overwrites; a file of another table: admin
    rename                        alter of the source, create of the destination; with icestream-force also delete
    drop                          delete; with its files also table-write
    namespaces                    create, alter, delete; their `location`: admin

A commit with a requirement of the pipeline (a round, a rewrite) is refused, also for an administrator: the pipeline
commits without HTTP (ADR 51), and a forged round would lose messages (hazard 107).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import Relation, TableRecord
from icestream.catalog.plans import relation_plans
from icestream.catalog.plans.namespace_plans import LOCATION
from icestream.catalog.topic_rules import commit_rules
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg import table_commit, values
from icestream.iceberg import updates as update
from icestream.iceberg.identifier import Identifier, check_namespace
from icestream.iceberg.location import normalize
from icestream.lake.catalog_rights import CatalogRights, name_resource
from icestream.lake.iceberg.delegated_access import SignableFile, no_signatures, signing_scope
from icestream.lake.iceberg.remote_signing import parse_sign_request
from icestream.lake.iceberg.request import IcebergRequest, parse_namespace
from icestream.lake.iceberg.table_routes import commit_request, transaction_changes
from icestream.lake.location_rights import LocationRights
from icestream.lake.request_caller import Right
from icestream.security.action import Action
from icestream.security.resource import CLUSTER

RouteRights = Callable[[Catalog, IcebergRequest, CatalogRights], Awaitable[None]]
_ADMINISTRATOR: Right = (Action.ADMIN, CLUSTER)


async def nothing(_catalog: Catalog, _request: IcebergRequest, _rights: CatalogRights) -> None:
    """The route tells nothing that needs a right."""


# --- namespaces ---


async def list_namespaces(_catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    parent = request.parameter("parent")
    if parent:
        await rights.require_namespace(parse_namespace(parent))
    elif rights.caller.is_anonymous and not await rights.sees_anything():
        raise rights.caller.unauthenticated()


async def create_namespace(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    document = request.document()
    properties = values.optional_text_map(document, "properties")
    namespace = check_namespace(values.texts(document, "namespace"))
    await rights.require_new_namespace(namespace)
    if LOCATION in properties:
        await rights.require_administrator()
    request.guard = catalog.places.namespace_guard(namespace, properties)


async def see_namespace(_catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    await rights.require_namespace(request.namespace)


async def drop_namespace(_catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    await rights.require_namespace(request.namespace, Action.DELETE)


async def change_properties(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    document = request.document()
    updates = values.optional_text_map(document, "updates")
    is_placed = LOCATION in {*updates, *(document.get("removals") or ())}
    await rights.require_namespace(request.namespace, Action.ALTER, more=[_ADMINISTRATOR] if is_placed else ())
    if is_placed:
        request.guard = catalog.places.namespace_guard(request.namespace, updates)


# --- tables ---


def relation(*actions: Action, kind: str = relation_plans.TABLE) -> RouteRights:
    """The table or view of the path, for these actions."""

    async def require(_catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
        await rights.require_relation(request.relation, *actions, kind=kind, repeat=request.name)

    return require


def relation_of_view(*actions: Action) -> RouteRights:
    """The table of the path in a view of the lake, for these actions."""

    async def require(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
        assert request.view is not None  # a route of views
        await request.view.require(catalog, rights, request.relation, *actions)

    return require


def create(places_files: bool) -> RouteRights:
    """A new table (`places_files`) or view, whose name is in the body."""

    async def require(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
        document = request.document()
        identifier = request.new_relation(document)
        await rights.require_new(identifier)
        properties = values.optional_text_map(document, "properties") if places_files else {}
        location = values.optional_text(document, "location")
        locations = LocationRights(catalog, rights)
        await locations.check_new(identifier, location, properties)
        request.guard = locations.guard()

    return require


async def register_table(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    document = request.document()
    identifier, location = request.new_relation(document), values.text(document, "metadata-location")
    await rights.require_new(identifier)
    table = None
    if values.optional_flag(document, "overwrite") and await rights.exists(identifier):
        await rights.require_relation(identifier, Action.TABLE_WRITE)
        table = (await catalog.commits.load(identifier)).state.table
    locations = LocationRights(catalog, rights)
    await locations.check_registered(identifier, location, table)
    request.guard = locations.guard()


async def register_view(_catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    await rights.require_new(request.new_relation(request.document()))
    await rights.require_administrator()


async def sign_request(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    delegated, signable = request.access.delegated, parse_sign_request(request.document())
    if delegated is None:
        raise no_signatures()
    scope = await signing_scope(catalog, rights, delegated, request.relation, signable)
    request.signable = SignableFile(signable, scope)


async def drop_table(_catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    actions = [Action.DELETE, *([Action.TABLE_WRITE] if request.flag("purgeRequested") else ())]
    await rights.require_relation(request.relation, *actions, repeat=request.name)


def rename(kind: str) -> RouteRights:
    async def require(_catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
        source, target = request.renamed()
        actions = [Action.ALTER, *([Action.DELETE] if request.is_forced else ())]
        await rights.require_relation(
            source, *actions, kind=kind, more=[(Action.CREATE, name_resource(target))], repeat=request.name
        )

    return require


async def commit_table(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    await _commit(catalog, request, rights, {request.relation: commit_request(request.document(), request.is_forced)})


async def commit_transaction(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    await _commit(catalog, request, rights, transaction_changes(request))


async def _commit(
    catalog: Catalog, request: IcebergRequest, rights: CatalogRights, commits: Mapping[Identifier, CommitRequest]
) -> None:
    created = {identifier for identifier, commit in commits.items() if table_commit.is_create(commit.requirements)}
    actions = [Action.TABLE_WRITE, *([Action.DELETE] if request.is_forced else ())]
    records: dict[Identifier, Relation | None] = await rights.require_relations(
        {identifier: actions for identifier in commits if identifier not in created},
        more=[(Action.CREATE, name_resource(identifier)) for identifier in created],
        repeat=request.name,
    )
    for commit in commits.values():
        if commit_rules.pipeline_claims(commit.requirements):
            raise errors.PermissionDenied(
                "only the pipeline of this node commits rounds", hint="commit without its requirement"
            )
    locations = LocationRights(catalog, rights)
    for identifier, commit in commits.items():
        state: Any = None
        record = records.get(identifier)
        if isinstance(record, TableRecord):
            state = (await catalog.commits.load(identifier)).state.table
        elif identifier not in created:
            continue  # a repeat of a commit to a table that is gone
        is_topic = isinstance(record, TableRecord) and record.binding is not None
        await locations.check_commit(identifier, state, commit.updates, is_topic)
    request.guard = locations.guard()


# --- views ---


async def replace_view(catalog: Catalog, request: IcebergRequest, rights: CatalogRights) -> None:
    identifier = request.relation
    record = await rights.require_relation(
        identifier, Action.TABLE_WRITE, kind=relation_plans.VIEW, repeat=request.name
    )
    updates = values.objects(request.document(), "updates")
    if record is not None and any(update.action(entry) == "set-location" for entry in updates):
        locations = LocationRights(catalog, rights)
        view = (await catalog.views.load(identifier)).view
        await locations.check_moved(identifier, record.uuid, normalize(view.location), updates)
        request.guard = locations.guard()
