"""The FastAPI application of the lake process: the API, its description, and the state of the process.

/, /api/v1                  an index of the resources
/api/v1/…                   lake/routes; documented in docs/api.md
/api/v1/openapi.json        the description for programs, generated from the routes and the declarations (admin_api)
/livez, /readyz, /metrics   of this process: ready means connected to the broker
"""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from starlette.responses import PlainTextResponse

from icestream.catalog.catalog import Catalog
from icestream.catalog.operations.file_rules import FileRules
from icestream.catalog.tokens import Tokens
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.lake import problems
from icestream.lake.backup_reports import BackupReports
from icestream.lake.broker_calls import LISTENER, PREFIX, identify_caller
from icestream.lake.guard import Guard
from icestream.lake.http import ConnectionSlots
from icestream.lake.http_models import model_of
from icestream.lake.operations import EmbeddedOperations, TopicTableOperations
from icestream.lake.request_caller import RequestCallers, UnsecuredCallers, client_address, client_certificate
from icestream.lake.request_metrics import RequestMetrics
from icestream.lake.routes import (
    backup_endpoints,
    lake_endpoints,
    mqtt_endpoints,
    namespace_endpoints,
    node_endpoints,
    security_endpoints,
    subscription_endpoints,
    topic_endpoints,
    verify_endpoints,
)
from icestream.observability import metrics
from icestream.observability.exposition import exposition
from icestream.observability.health import Check, connections_check, failure
from icestream.readers.lazy_scanner import LazyScanner
from icestream.rpc.link_keeper import LinkKeeper
from icestream.security.action import Action
from icestream.security.resource import CLUSTER

# Metrics of the readers in this process. The whole registry is not exposed: it also has the broker's metrics, all zero.
SCAN_METRICS = (
    metrics.SCANS,
    metrics.SCAN_SECONDS,
    metrics.SCAN_PLANS,
    metrics.GROUP_CACHE,
    metrics.GROUP_CACHE_BYTES,
    metrics.READ_DOUBLED,
    metrics.READ_MISSING,
)


def build_app(
    keeper: LinkKeeper,
    host: str,
    request_metrics: RequestMetrics | None = None,
    catalog: Catalog | None = None,
    manifests: ManifestReader | None = None,
    tokens: Tokens | None = None,
    scans: LazyScanner | None = None,
    operations: TopicTableOperations | None = None,
    slots: ConnectionSlots | None = None,
    host_names: frozenset[str] | None = None,
    callers: RequestCallers | None = None,
    backup_reports: BackupReports | None = None,
) -> FastAPI:
    """The application. `host`: the address it listens on; on a loopback address only this machine has access.

    `catalog`: the embedded one, if it is served, with the reader of its manifests and the tokens that it requires.
    `scans`: the tables of topics in any catalog. `operations`: operations on these tables; None: those of the embedded
    catalog. `slots`: the connections of the process, for its readiness. `host_names`: guard.py. `callers`: identifies
    the callers of requests; None: security is off. `backup_reports`: of the backup target; None without one.
    """
    # Without FastAPI's documentation pages, which load scripts from another server.
    app = FastAPI(
        title="Icestream",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a wrong path is an error, not a redirect
    )
    app.state.keeper, app.state.callers = keeper, callers or UnsecuredCallers()
    app.state.catalog, app.state.manifests, app.state.tokens = catalog, manifests, tokens or Tokens()
    app.state.scans, app.state.backup_reports = scans, backup_reports
    app.state.file_rules = None if catalog is None else FileRules(catalog.places, app.state.callers.is_secured)
    app.state.operations = EmbeddedOperations(catalog) if operations is None and catalog is not None else operations
    problems.install(app)
    routers = (
        namespace_endpoints.router,
        topic_endpoints.all_topics_router,
        topic_endpoints.router,
        subscription_endpoints.router,
        node_endpoints.router,
        lake_endpoints.router,
        verify_endpoints.router,
        security_endpoints.router,
        mqtt_endpoints.router,
        backup_endpoints.router,
    )
    for router in routers:
        app.include_router(router, dependencies=[Depends(identify_caller)])
    request_metrics = request_metrics or RequestMetrics()
    app.middleware("http")(request_metrics.middleware)
    _add_process_routes(app, keeper, request_metrics, slots)
    app.add_middleware(Guard, host=host, host_names=host_names)
    app.openapi = lambda: describe_api(app)  # type: ignore[method-assign]  # as FastAPI documents it
    return app


def _add_process_routes(
    app: FastAPI, keeper: LinkKeeper, request_metrics: RequestMetrics, slots: ConnectionSlots | None
) -> None:
    process_registry = CollectorRegistry()
    ProcessCollector(registry=process_registry)

    @app.get("/livez", include_in_schema=False)
    async def live() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    async def check_scraper(request: Request) -> None:
        """Requires the right to describe the cluster, for what the process tells about itself in detail. Without
        accounts nothing is required, also beside lake.token_file: scrapers have no token of the catalog."""
        callers: RequestCallers = request.app.state.callers
        authorization = request.headers.getlist("authorization")
        scope = request.scope
        caller = await callers.identify(authorization, client_address(scope), LISTENER, client_certificate(scope))
        try:
            await caller.require([(Action.DESCRIBE, CLUSTER)])
        finally:
            callers.release(caller)

    @app.get("/readyz", include_in_schema=False)
    async def ready(request: Request) -> PlainTextResponse:
        if "verbose" in request.query_params:
            await check_scraper(request)
        checks = [Check("broker", keeper.is_connected, "connected" if keeper.is_connected else "not connected")]
        if slots is not None:
            checks.append(connections_check([slots.state]))
        failed = failure(checks)
        verdict = "ready" if failed is None else f"not ready: {failed.name}: {failed.reason}"
        lines = [*(check.line for check in checks), verdict] if "verbose" in request.query_params else [verdict]
        return PlainTextResponse("".join(f"{line}\n" for line in lines), 200 if failed is None else 503)

    @app.get("/", include_in_schema=False)
    @app.get(PREFIX, include_in_schema=False)
    async def index() -> dict[str, Any]:
        names = ("namespaces", "topics", "wal", "config", "health")
        return {
            "name": "Icestream",
            "description": f"{PREFIX}/openapi.json",
            "resources": {name: f"{PREFIX}/{name}" for name in names},
            "catalog": "/v1/config",
            "process": {name: f"/{name}" for name in ("livez", "readyz", "metrics")},
        }

    @app.get("/metrics", include_in_schema=False)
    async def show_metrics(request: Request) -> Response:
        await check_scraper(request)
        families = [
            metrics.API_CONNECTED.family(int(keeper.is_connected)),
            metrics.API_REQUESTS.family(request_metrics.requests),
            metrics.API_SECONDS.family(request_metrics.seconds),
            *(family for metric in SCAN_METRICS for family in metric.collect()),
            *metrics.STORAGE_CALLS.collect(),
            *metrics.STORAGE_CIRCUIT.collect(),
        ]
        return Response(exposition(families) + generate_latest(process_registry), media_type=CONTENT_TYPE_LATEST)


def describe_api(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with our problem document for all errors instead of FastAPI's own format."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version="1",
            routes=app.routes,
            description="The admin API of a node.",
        )
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = model_of(problems.Problem).model_json_schema()
        problem_schema = {"$ref": "#/components/schemas/Problem"}
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = {
                    "description": "A problem; errors.py and docs/api.md list the codes.",
                    "content": {problems.MEDIA_TYPE: {"schema": problem_schema}},
                }
        app.openapi_schema = document
    return app.openapi_schema
