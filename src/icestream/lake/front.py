"""Which part of the lake process answers: the catalog below /v1, the API everywhere else."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from icestream.catalog.catalog import Catalog
from icestream.lake.app import build_app
from icestream.lake.iceberg.access import NO_ACCESS, Access
from icestream.lake.iceberg.face import IcebergFace
from icestream.lake.iceberg.tokens import Tokens
from icestream.lake.manifests import AvroManifests
from icestream.lake.operations import Operations
from icestream.lake.requests import Requests
from icestream.lake.scan.opening import Scans
from icestream.runtime.link_keeper import LinkKeeper


class Front:
    def __init__(self, api: ASGIApp, iceberg: ASGIApp) -> None:
        self._api = api
        self._iceberg = iceberg

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_iceberg = scope["type"] == "http" and scope["raw_path"].startswith(b"/v1/")
        await (self._iceberg if is_iceberg else self._api)(scope, receive, send)


def build_front(
    keeper: LinkKeeper,
    host: str,
    catalog: Catalog | None,
    tokens: Tokens,
    manifests: AvroManifests | None = None,
    access: Access = NO_ACCESS,
    scans: Scans | None = None,
    operations: Operations | None = None,
    counted: Requests | None = None,
) -> Front:
    counted = counted or Requests()
    return Front(
        build_app(keeper, host, counted, catalog, manifests, tokens, scans, operations),
        IcebergFace(catalog, tokens, counted, host, access),
    )
