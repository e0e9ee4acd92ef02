"""Which request is answered by what. The same table tells clients what there is (`endpoints` of /v1/config)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from icestream import limits
from icestream.catalog.catalog import Catalog
from icestream.iceberg.values import Object
from icestream.lake.iceberg import commits, namespaces, tables, views
from icestream.lake.iceberg.answers import Answer, document
from icestream.lake.iceberg.asked import Asked

Handler = Callable[[Catalog, Asked], Awaitable[Answer]]


async def config(_catalog: Catalog, asked: Asked) -> Answer:
    """There is one warehouse here, whatever a client calls it."""
    return document({**_CONFIG, "defaults": asked.access.defaults})


_NAMESPACE: Final = "/v1/namespaces/{namespace}"
_TABLE: Final = f"{_NAMESPACE}/tables/{{table}}"
_VIEW: Final = f"{_NAMESPACE}/views/{{view}}"
ROUTES: Final[dict[tuple[str, str], Handler]] = {
    ("GET", "/v1/config"): config,
    ("GET", "/v1/namespaces"): namespaces.list_namespaces,
    ("POST", "/v1/namespaces"): namespaces.create_namespace,
    ("GET", _NAMESPACE): namespaces.load_namespace,
    ("HEAD", _NAMESPACE): namespaces.namespace_exists,
    ("DELETE", _NAMESPACE): namespaces.drop_namespace,
    ("POST", f"{_NAMESPACE}/properties"): namespaces.change_properties,
    ("GET", f"{_NAMESPACE}/tables"): tables.list_tables,
    ("POST", f"{_NAMESPACE}/tables"): tables.create_table,
    ("POST", f"{_NAMESPACE}/register"): tables.register_table,
    ("GET", _TABLE): tables.load_table,
    ("HEAD", _TABLE): tables.table_exists,
    ("POST", _TABLE): commits.commit_table,
    ("DELETE", _TABLE): tables.drop_table,
    ("POST", f"{_TABLE}/metrics"): tables.report_metrics,
    ("GET", f"{_TABLE}/credentials"): tables.load_credentials,
    ("POST", "/v1/tables/rename"): tables.rename_table,
    ("POST", "/v1/transactions/commit"): commits.commit_transaction,
    ("GET", f"{_NAMESPACE}/views"): views.list_views,
    ("POST", f"{_NAMESPACE}/views"): views.create_view,
    ("POST", f"{_NAMESPACE}/register-view"): views.register_view,
    ("GET", _VIEW): views.load_view,
    ("HEAD", _VIEW): views.view_exists,
    ("POST", _VIEW): views.replace_view,
    ("DELETE", _VIEW): views.drop_view,
    ("POST", "/v1/views/rename"): views.rename_view,
}
_CONFIG: Final[Object] = {
    "overrides": {},
    "endpoints": [
        f"{method} {path.replace('/v1/', '/v1/{prefix}/')}" for method, path in ROUTES if path != "/v1/config"
    ],
    "idempotency-key-lifetime": f"PT{limits.CATALOG_REQUEST_TTL_MS // 60_000}M",
}
# Deprecated in the protocol. A client with a `credential` asks here first, without a token.
TOKENS_PATH: Final = b"/v1/oauth/tokens"


class Route(NamedTuple):
    path: str
    methods: dict[str, Handler]


def _by_shape() -> dict[tuple[bytes, ...], Route]:
    found: dict[tuple[bytes, ...], Route] = {}
    for (method, path), handler in ROUTES.items():
        shape = tuple(b"" if part.startswith("{") else part.encode() for part in path.split("/")[2:])
        found.setdefault(shape, Route(path, {})).methods[method] = handler
    return found


_SHAPES: Final = _by_shape()


def find(segments: Sequence[bytes]) -> Route | None:
    """The route of a path behind /v1. A name that is empty is not one: no route has it."""
    if segments[0] != b"namespaces":
        return _SHAPES.get(tuple(segments))
    named = segments[1::2]
    if not all(named):
        return None
    return _SHAPES.get(tuple(b"" if number % 2 else part for number, part in enumerate(segments)))
