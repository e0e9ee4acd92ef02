"""The route table of Iceberg's REST protocol. /v1/config lists the same routes as `endpoints`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from icestream import limits
from icestream.catalog.catalog import Catalog
from icestream.iceberg.values import Object
from icestream.lake.iceberg import namespace_routes, table_routes, view_routes
from icestream.lake.iceberg.request import IcebergRequest
from icestream.lake.iceberg.responses import IcebergResponse, json_response

Handler = Callable[[Catalog, IcebergRequest], Awaitable[IcebergResponse]]


async def config(_catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    """The configuration for clients. There is only one warehouse: the `warehouse` parameter is ignored."""
    return json_response({**_CONFIG, "defaults": request.access.defaults})


_NAMESPACE: Final = "/v1/namespaces/{namespace}"
_TABLE: Final = f"{_NAMESPACE}/tables/{{table}}"
_VIEW: Final = f"{_NAMESPACE}/views/{{view}}"
ROUTES: Final[dict[tuple[str, str], Handler]] = {
    ("GET", "/v1/config"): config,
    ("GET", "/v1/namespaces"): namespace_routes.list_namespaces,
    ("POST", "/v1/namespaces"): namespace_routes.create_namespace,
    ("GET", _NAMESPACE): namespace_routes.load_namespace,
    ("HEAD", _NAMESPACE): namespace_routes.namespace_exists,
    ("DELETE", _NAMESPACE): namespace_routes.drop_namespace,
    ("POST", f"{_NAMESPACE}/properties"): namespace_routes.change_properties,
    ("GET", f"{_NAMESPACE}/tables"): table_routes.list_tables,
    ("POST", f"{_NAMESPACE}/tables"): table_routes.create_table,
    ("POST", f"{_NAMESPACE}/register"): table_routes.register_table,
    ("GET", _TABLE): table_routes.load_table,
    ("HEAD", _TABLE): table_routes.table_exists,
    ("POST", _TABLE): table_routes.commit_table,
    ("DELETE", _TABLE): table_routes.drop_table,
    ("POST", f"{_TABLE}/metrics"): table_routes.report_metrics,
    ("GET", f"{_TABLE}/credentials"): table_routes.load_credentials,
    ("POST", "/v1/tables/rename"): table_routes.rename_table,
    ("POST", "/v1/transactions/commit"): table_routes.commit_transaction,
    ("GET", f"{_NAMESPACE}/views"): view_routes.list_views,
    ("POST", f"{_NAMESPACE}/views"): view_routes.create_view,
    ("POST", f"{_NAMESPACE}/register-view"): view_routes.register_view,
    ("GET", _VIEW): view_routes.load_view,
    ("HEAD", _VIEW): view_routes.view_exists,
    ("POST", _VIEW): view_routes.replace_view,
    ("DELETE", _VIEW): view_routes.drop_view,
    ("POST", "/v1/views/rename"): view_routes.rename_view,
}
_CONFIG: Final[Object] = {
    "overrides": {},
    "endpoints": [
        f"{method} {path.replace('/v1/', '/v1/{prefix}/')}" for method, path in ROUTES if path != "/v1/config"
    ],
    "idempotency-key-lifetime": f"PT{limits.CATALOG_REQUEST_TTL_MS // 60_000}M",
}
# Deprecated in the protocol. A client with a `credential` requests a token here first.
TOKENS_PATH: Final = b"/v1/oauth/tokens"


class Route(NamedTuple):
    path: str
    methods: dict[str, Handler]


def _by_shape() -> dict[tuple[bytes, ...], Route]:
    """The routes by their path segments, with empty segments for the names."""
    shapes: dict[tuple[bytes, ...], Route] = {}
    for (method, path), handler in ROUTES.items():
        shape = tuple(b"" if part.startswith("{") else part.encode() for part in path.split("/")[2:])
        shapes.setdefault(shape, Route(path, {})).methods[method] = handler
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
