"""Which part of the lake process answers: the catalog below /v1, the API everywhere else.

Every answer names the broker that this process belongs to, and a request that is meant for another one is refused
before either part sees it (runtime/instance.py).
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import Tokens
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.lake import problems
from icestream.lake.api_app import build_app
from icestream.lake.http import Places
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.access import NO_ACCESS, Access
from icestream.lake.iceberg.app import IcebergFace, sending
from icestream.lake.operations import Operations
from icestream.lake.request_metrics import Requests
from icestream.readers.lazy_scanner import LazyScanner
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.instance import HEADER, foreign_broker

_HEADER: Final = HEADER.lower().encode()


class Front:
    def __init__(self, api: ASGIApp, iceberg: ASGIApp, keeper: LinkKeeper) -> None:
        self._api = api
        self._iceberg = iceberg
        self._keeper = keeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_iceberg = scope["type"] == "http" and scope["raw_path"].startswith(b"/v1/")
        app = self._refused(scope, is_iceberg) or (self._iceberg if is_iceberg else self._api)
        await app(scope, receive, self._named(send))

    def _refused(self, scope: Scope, is_iceberg: bool) -> ASGIApp | None:
        """What answers a request that is meant for another broker. Before the first connection to its own broker this
        process does not know its instance: the request goes on, and hears that the broker is away."""
        wanted = next((value for name, value in scope.get("headers", ()) if name == _HEADER), b"").decode("latin-1")
        own = self._keeper.instance
        if not wanted or not own or wanted == own:
            return None
        host, port = scope.get("server") or ("", 0)
        error = foreign_broker(wanted, own, f"{host}:{port}")
        return sending(responses.of_error(error)) if is_iceberg else problems.of_error(error, scope["path"])

    def _named(self, send: Send) -> Send:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start" and self._keeper.instance:
                message["headers"] = [*message["headers"], (_HEADER, self._keeper.instance.encode())]
            await send(message)

        return named


def build_front(
    keeper: LinkKeeper,
    host: str,
    catalog: Catalog | None,
    tokens: Tokens,
    manifests: ManifestReader | None = None,
    access: Access = NO_ACCESS,
    scans: LazyScanner | None = None,
    operations: Operations | None = None,
    counted: Requests | None = None,
    places: Places | None = None,
) -> Front:
    counted = counted or Requests()
    return Front(
        build_app(keeper, host, counted, catalog, manifests, tokens, scans, operations, places),
        IcebergFace(catalog, tokens, counted, host, access),
        keeper,
    )
