"""The route table of Iceberg's REST protocol. /v1/config lists the same routes as `endpoints`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from icestream import limits
from icestream.catalog.catalog import Catalog
from icestream.catalog.plans import relation_plans
from icestream.iceberg.values import Object
from icestream.lake.iceberg import lake_view_routes, namespace_routes, route_rights, table_routes, view_routes
from icestream.lake.iceberg.request import IcebergRequest
from icestream.lake.iceberg.responses import IcebergResponse, json_response
from icestream.lake.iceberg.route_rights import RouteRights
from icestream.security.action import Action

Handler = Callable[[Catalog, IcebergRequest], Awaitable[IcebergResponse]]


class IcebergEndpoint(NamedTuple):
    """The handler of a route, and the check of rights that runs before it."""

    handler: Handler
    rights: RouteRights


async def config(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    """The configuration for clients of the live tables, or of the view that the `warehouse` parameter names."""
    view = request.view
    document = _CONFIG if view is None else {**_VIEW_CONFIG, "overrides": {"prefix": view.name}}
    return json_response({**document, "defaults": request.access.defaults})


_NAMESPACE: Final = "/v1/namespaces/{namespace}"
_TABLE: Final = f"{_NAMESPACE}/tables/{{table}}"
_VIEW: Final = f"{_NAMESPACE}/views/{{view}}"
TABLE, VIEW = relation_plans.TABLE, relation_plans.VIEW
ROUTES: Final[dict[tuple[str, str], IcebergEndpoint]] = {
    ("GET", "/v1/config"): IcebergEndpoint(config, route_rights.nothing),
    ("GET", "/v1/namespaces"): IcebergEndpoint(namespace_routes.list_namespaces, route_rights.list_namespaces),
    ("POST", "/v1/namespaces"): IcebergEndpoint(namespace_routes.create_namespace, route_rights.create_namespace),
    ("GET", _NAMESPACE): IcebergEndpoint(namespace_routes.load_namespace, route_rights.see_namespace),
    ("HEAD", _NAMESPACE): IcebergEndpoint(namespace_routes.namespace_exists, route_rights.see_namespace),
    ("DELETE", _NAMESPACE): IcebergEndpoint(namespace_routes.drop_namespace, route_rights.drop_namespace),
    ("POST", f"{_NAMESPACE}/properties"): IcebergEndpoint(
        namespace_routes.change_properties, route_rights.change_properties
    ),
    ("GET", f"{_NAMESPACE}/tables"): IcebergEndpoint(table_routes.list_tables, route_rights.see_namespace),
    ("POST", f"{_NAMESPACE}/tables"): IcebergEndpoint(
        table_routes.create_table, route_rights.create(places_files=True)
    ),
    ("POST", f"{_NAMESPACE}/register"): IcebergEndpoint(table_routes.register_table, route_rights.register_table),
    ("GET", _TABLE): IcebergEndpoint(table_routes.load_table, route_rights.relation(Action.TABLE_READ)),
    ("HEAD", _TABLE): IcebergEndpoint(table_routes.table_exists, route_rights.relation()),
    ("POST", _TABLE): IcebergEndpoint(table_routes.commit_table, route_rights.commit_table),
    ("DELETE", _TABLE): IcebergEndpoint(table_routes.drop_table, route_rights.drop_table),
    ("POST", f"{_TABLE}/metrics"): IcebergEndpoint(table_routes.report_metrics, route_rights.relation()),
    ("GET", f"{_TABLE}/credentials"): IcebergEndpoint(
        table_routes.load_credentials, route_rights.relation(Action.TABLE_READ)
    ),
    ("POST", f"{_TABLE}/sign"): IcebergEndpoint(table_routes.sign_request, route_rights.sign_request),
    ("POST", "/v1/tables/rename"): IcebergEndpoint(table_routes.rename_table, route_rights.rename(TABLE)),
    ("POST", "/v1/transactions/commit"): IcebergEndpoint(
        table_routes.commit_transaction, route_rights.commit_transaction
    ),
    ("GET", f"{_NAMESPACE}/views"): IcebergEndpoint(view_routes.list_views, route_rights.see_namespace),
    ("POST", f"{_NAMESPACE}/views"): IcebergEndpoint(view_routes.create_view, route_rights.create(places_files=False)),
    ("POST", f"{_NAMESPACE}/register-view"): IcebergEndpoint(view_routes.register_view, route_rights.register_view),
    ("GET", _VIEW): IcebergEndpoint(view_routes.load_view, route_rights.relation(Action.QUERY, kind=VIEW)),
    ("HEAD", _VIEW): IcebergEndpoint(view_routes.view_exists, route_rights.relation(kind=VIEW)),
    ("POST", _VIEW): IcebergEndpoint(view_routes.replace_view, route_rights.replace_view),
    ("DELETE", _VIEW): IcebergEndpoint(view_routes.drop_view, route_rights.relation(Action.DELETE, kind=VIEW)),
    ("POST", "/v1/views/rename"): IcebergEndpoint(view_routes.rename_view, route_rights.rename(VIEW)),
}
# Below the prefix of a view; anything else there is refused, whatever the rights.
VIEW_ROUTES: Final[dict[tuple[str, str], IcebergEndpoint]] = {
    ("GET", "/v1/namespaces"): IcebergEndpoint(lake_view_routes.list_namespaces, route_rights.list_namespaces),
    ("GET", _NAMESPACE): IcebergEndpoint(lake_view_routes.load_namespace, route_rights.see_namespace),
    ("HEAD", _NAMESPACE): IcebergEndpoint(lake_view_routes.namespace_exists, route_rights.see_namespace),
    ("GET", f"{_NAMESPACE}/tables"): IcebergEndpoint(lake_view_routes.list_tables, route_rights.see_namespace),
    ("GET", _TABLE): IcebergEndpoint(lake_view_routes.load_table, route_rights.relation_of_view(Action.TABLE_READ)),
    ("HEAD", _TABLE): IcebergEndpoint(lake_view_routes.table_exists, route_rights.relation_of_view()),
    ("GET", f"{_TABLE}/credentials"): IcebergEndpoint(
        lake_view_routes.load_credentials, route_rights.relation_of_view(Action.TABLE_READ)
    ),
}


def _endpoints(routes: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{method} {path.replace('/v1/', '/v1/{prefix}/')}" for method, path in routes if path != "/v1/config"]


_CONFIG: Final[Object] = {
    "overrides": {},
    "endpoints": _endpoints(ROUTES),
    "idempotency-key-lifetime": f"PT{limits.CATALOG_REQUEST_TTL_MS // 60_000}M",
}
_VIEW_CONFIG: Final[Object] = {"overrides": {}, "endpoints": _endpoints(VIEW_ROUTES)}
# Deprecated in the protocol. A client with a `credential` requests a token here first (token_endpoint.py).
TOKENS_PATH: Final = b"/v1/oauth/tokens"
CONFIG_PATH: Final = b"/v1/config"  # needs no credential: a client reads here how it gets one


class Route(NamedTuple):
    path: str
    methods: dict[str, IcebergEndpoint]
    view_methods: dict[str, IcebergEndpoint]  # below the prefix of a view


def _by_shape() -> dict[tuple[bytes, ...], Route]:
    """The routes by their path segments, with empty segments for the names."""
    shapes: dict[tuple[bytes, ...], Route] = {}
    for (method, path), endpoint in ROUTES.items():
        shape = tuple(b"" if part.startswith("{") else part.encode() for part in path.split("/")[2:])
        route = shapes.setdefault(shape, Route(path, {}, {}))
        route.methods[method] = endpoint
        if (method, path) in VIEW_ROUTES:
            route.view_methods[method] = VIEW_ROUTES[method, path]
    return shapes


_SHAPES: Final = _by_shape()


def find_route(segments: Sequence[bytes]) -> Route | None:
    """The route of a path, given its segments after /v1; None if there is none. Names must not be empty."""
    if segments[0] != b"namespaces":
        return _SHAPES.get(tuple(segments))
    names = segments[1::2]
    if not all(names):
        return None
    return _SHAPES.get(tuple(b"" if number % 2 else part for number, part in enumerate(segments)))
