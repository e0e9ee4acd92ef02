"""Dispatches requests of the lake process: /v1 to the catalog, everything else to the API.

Every response carries the instance id of the broker that this process belongs to. A request for another instance is
rejected before either part sees it (runtime/instance.py).
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import Tokens
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.lake import problems
from icestream.lake.api_app import build_app
from icestream.lake.backup_reports import BackupReports
from icestream.lake.http import ConnectionSlots
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.access import NO_ACCESS, Access
from icestream.lake.iceberg.app import IcebergApp, as_asgi
from icestream.lake.iceberg.backup_view import ReadableBackups
from icestream.lake.operations import TopicTableOperations
from icestream.lake.request_caller import RequestCallers
from icestream.lake.request_metrics import RequestMetrics
from icestream.readers.lazy_scanner import LazyScanner
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.instance import HEADER, foreign_broker

_HEADER: Final = HEADER.lower().encode()


class LakeApp:
    """The ASGI application of the lake process."""

    def __init__(self, api: ASGIApp, iceberg: ASGIApp, keeper: LinkKeeper) -> None:
        self._api = api
        self._iceberg = iceberg
        self._keeper = keeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_iceberg = scope["type"] == "http" and scope["raw_path"].startswith(b"/v1/")
        app = self._foreign_response(scope, is_iceberg) or (self._iceberg if is_iceberg else self._api)
        await app(scope, receive, self._add_instance(send))

    def _foreign_response(self, scope: Scope, is_iceberg: bool) -> ASGIApp | None:
        """The error response to a request for another broker's instance; None if the request is for this one."""
        requested = next((value for name, value in scope.get("headers", ()) if name == _HEADER), b"").decode("latin-1")
        own = self._keeper.instance
        # Until this process has connected to its broker, it does not know its own instance. The request then passes,
        # and fails with the error that the broker is not connected.
        if not requested or not own or requested == own:
            return None
        host, port = scope.get("server") or ("", 0)
        error = foreign_broker(requested, own, f"{host}:{port}")
        return as_asgi(responses.error_response(error)) if is_iceberg else problems.error_problem(error, scope["path"])

    def _add_instance(self, send: Send) -> Send:
        async def send_with_instance(message: Message) -> None:
            if message["type"] == "http.response.start" and self._keeper.instance:
                message["headers"] = [*message["headers"], (_HEADER, self._keeper.instance.encode())]
            await send(message)

        return send_with_instance


def build_lake_app(
    keeper: LinkKeeper,
    host: str,
    catalog: Catalog | None,
    tokens: Tokens,
    manifests: ManifestReader | None = None,
    access: Access = NO_ACCESS,
    scans: LazyScanner | None = None,
    operations: TopicTableOperations | None = None,
    request_metrics: RequestMetrics | None = None,
    slots: ConnectionSlots | None = None,
    host_names: frozenset[str] | None = None,
    callers: RequestCallers | None = None,
    backups: ReadableBackups | None = None,
    backup_reports: BackupReports | None = None,
) -> LakeApp:
    """The application with its two parts, which share the request metrics. Parameters as in `build_app`; `backups`: as
    in IcebergApp."""
    request_metrics = request_metrics or RequestMetrics()
    return LakeApp(
        build_app(
            keeper,
            host,
            request_metrics,
            catalog,
            manifests,
            tokens,
            scans,
            operations,
            slots,
            host_names,
            callers,
            backup_reports,
        ),
        IcebergApp(catalog, tokens, request_metrics, host, access, host_names, callers, backups),
        keeper,
    )
