"""The HTTP of the lake process: the API, its description, and how the process itself is doing.

/, /api/v1                  what there is, for somebody who looks around
/api/v1/…                   lake/routes; docs/api.md shows them to people
/api/v1/openapi.json        the same for programs, made of the routes and lake/models.py
/livez, /readyz, /metrics   of this process: ready means connected to the broker
"""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from starlette.responses import PlainTextResponse

from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import Tokens
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.lake import problems
from icestream.lake.broker_calls import PREFIX, BrokerCalls
from icestream.lake.guard import Guard
from icestream.lake.http import Places
from icestream.lake.models import Problem
from icestream.lake.operations import Operations, OwnOperations
from icestream.lake.request_metrics import Requests
from icestream.lake.routes import lake, namespaces, node, subscriptions, topics, verify
from icestream.lake.token_check import check_token
from icestream.observability import metrics
from icestream.observability.exposition import exposition
from icestream.observability.health import Check, connections_check, failure
from icestream.readers.lazy_scanner import LazyScanner
from icestream.rpc.link_keeper import LinkKeeper

# What readers do here. The registry as a whole is not shown: it has the broker's metrics too, all zero.
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
    counted: Requests | None = None,
    catalog: Catalog | None = None,
    manifests: ManifestReader | None = None,
    tokens: Tokens | None = None,
    scans: LazyScanner | None = None,
    operations: Operations | None = None,
    places: Places | None = None,
) -> FastAPI:
    """`host`: what the process listens on; on a loopback address only this machine may ask. `catalog`: our own, if it
    is served, with the reader of its manifests and the tokens that it asks for. `scans`: the tables of topics, wherever
    they are. `operations`: what an operator does to them; None: in our own catalog. `places`: the connections of the
    process, for its readiness."""
    # without the pages that fetch their scripts from elsewhere
    app = FastAPI(
        title="Icestream",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # an answer is what was asked for, or a problem
    )
    app.state.broker = BrokerCalls(keeper)
    app.state.catalog, app.state.manifests, app.state.tokens = catalog, manifests, tokens or Tokens()
    app.state.scans = scans
    app.state.operations = OwnOperations(catalog) if operations is None and catalog is not None else operations
    problems.install(app)
    routers = (
        namespaces.router,
        topics.everywhere,
        topics.router,
        subscriptions.router,
        node.router,
        lake.router,
        verify.router,
    )
    for router in routers:
        app.include_router(router, dependencies=[Depends(check_token)])
    counted = counted or Requests()
    app.middleware("http")(counted.count)
    _add_process_routes(app, keeper, counted, places)
    app.add_middleware(Guard, host=host)
    app.openapi = lambda: described(app)  # type: ignore[method-assign]  # the way that FastAPI documents
    return app


def _add_process_routes(app: FastAPI, keeper: LinkKeeper, counted: Requests, places: Places | None) -> None:
    own = CollectorRegistry()
    ProcessCollector(registry=own)

    @app.get("/livez", include_in_schema=False)
    async def live() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    async def ready(request: Request) -> PlainTextResponse:
        checks = [Check("broker", keeper.is_connected, "connected" if keeper.is_connected else "it is away")]
        if places is not None:
            checks.append(connections_check([places.state]))
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
    async def show_metrics() -> Response:
        families = [
            metrics.API_CONNECTED.family(int(keeper.is_connected)),
            metrics.API_REQUESTS.family(counted.requests),
            metrics.API_SECONDS.family(counted.seconds),
            *(family for one in SCAN_METRICS for family in one.collect()),
            *metrics.STORAGE_CALLS.collect(),
            *metrics.STORAGE_CIRCUIT.collect(),
        ]
        return Response(exposition(families) + generate_latest(own), media_type=CONTENT_TYPE_LATEST)


def described(app: FastAPI) -> dict[str, Any]:
    """OpenAPI, with one form for everything that is not 2xx: FastAPI knows only its own."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title,
            version="1",
            routes=app.routes,
            description="Everything that an operator may ask of a node.",
        )
        schemas = found["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = Problem.model_json_schema()
        refused = {"$ref": "#/components/schemas/Problem"}
        for path in found["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = {
                    "description": "A problem; errors.py and docs/api.md list the codes.",
                    "content": {problems.MEDIA_TYPE: {"schema": refused}},
                }
        app.openapi_schema = found
    return app.openapi_schema
