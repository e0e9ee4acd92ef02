"""Runs the lake process until somebody ends it: a signal, or its parent.

uvicorn serves, without the habits that do not fit here: it looks ten times in a second whether it should end, it takes
the signals for itself, its parser reads a head of any size and waits for it for ever, and silent connections count
against its bound (http.py). What is a mistake of ours is logged by us (problems.py, iceberg/app.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import uvicorn

from icestream import errors, limits
from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import read_tokens
from icestream.catalogs.factory import open_catalog, open_files
from icestream.catalogs.table_catalog import TableCatalog
from icestream.catalogs.warehouse_fence import guard_files
from icestream.catalogs.warehouse_fence_record import is_object_location, object_warehouse_of
from icestream.iceberg.file_io import LocalFiles, TableFiles, open_inside
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.shared_sync import LogDiskMonitor
from icestream.lake.dispatch import LakeApp, build_lake_app
from icestream.lake.foreign_operations import ForeignOperations
from icestream.lake.http import BoundedHttpProtocol, ConnectionSlots
from icestream.lake.iceberg.access import NO_ACCESS, Access
from icestream.lake.lake_options import LakeOptions
from icestream.lake.operations import EmbeddedOperations, TableOperations
from icestream.lake.request_metrics import RequestMetrics
from icestream.lake.scan_worker import ScanWorker
from icestream.metadata.remote_store import RemoteStore
from icestream.observability.log import get_logger
from icestream.observability.spans import set_up_spans
from icestream.readers.embedded_table_views import EmbeddedTableViews
from icestream.readers.foreign_table_views import ForeignTableViews
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.table_views import TableViews
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.runtime.connection_room import RoomState
from icestream.runtime.garbage import calm_collector
from icestream.runtime.listening import cannot_listen
from icestream.runtime.parent_pipe import watch_parent
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.stop_signals import stopping_by_signal
from icestream.runtime.tasks import ShortOffload, ThreadOffload
from icestream.settings import Settings

_log = get_logger("lake")


class StillServer(uvicorn.Server):
    """Waits without looking."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._stop = stop

    async def main_loop(self) -> None:
        await self._stop.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    options: LakeOptions, on_ready: Callable[[int], None], on_crowding: Callable[[RoomState], None] | None = None
) -> None:
    """`on_ready` is told the port. Whether the broker is there is another matter: the API says so while it is not.
    `on_crowding`: when all connections are taken, and when they are no longer."""
    set_up_spans("lake")
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_connection_failed)
    with stopping_by_signal(stop.set):
        await _serve(options, stop, on_ready, on_crowding)


async def _serve(
    options: LakeOptions,
    stop: asyncio.Event,
    on_ready: Callable[[int], None],
    on_crowding: Callable[[RoomState], None] | None,
) -> None:
    parent = await watch_parent(stop.set) if options.is_child else None
    clock = SystemClock()
    keeper = LinkKeeper(options.socket, "lake", clock)
    disk, aside = ThreadOffload("warehouse", limits.CATALOG_WRITES_AT_ONCE), ThreadOffload("manifests")
    counted = RequestMetrics()

    def near() -> ShortOffload:
        return ShortOffload(disk, clock, lambda: counted.in_progress <= 1, limits.CATALOG_INLINE_BELOW_NS)

    log = None if options.log is None else LogDiskMonitor(options.log)
    local = LocalFiles(open_inside(options.roots), disk, clock, log, near)
    objects = None if options.is_local else open_files(options.store, local=local)
    files: TableFiles = objects or local
    tasks = [asyncio.create_task(keeper.run())]
    warehouse = _object_warehouse(options)
    if objects is not None and warehouse:
        tasks.append(asyncio.create_task(guard_files(objects, warehouse, keeper, clock).run()))
    scans: LazyScanner | None = None
    elsewhere: TableCatalog | None = None
    operations: TableOperations | None = None
    fixed = tuple(options.namespace.split(".")) if options.namespace else None
    try:
        catalog = built_catalog(keeper, options, files)
        manifests = ManifestReader(files, aside)
        if catalog is not None:
            tasks.append(asyncio.create_task(catalog.cleanup(manifests).run()))
            scans = LazyScanner(_own_tables(catalog, manifests), files, options.cache)
            operations = EmbeddedOperations(catalog, fixed)
        elif options.elsewhere:
            elsewhere = open_catalog(Settings.model_validate(options.elsewhere), files=objects if warehouse else None)
            scans = LazyScanner(_foreign_tables(keeper, elsewhere, manifests), files, options.cache)
            store = RemoteStore(keeper, SystemClock(), SystemRandomness())
            operations = ForeignOperations(store, elsewhere, manifests, SystemClock(), fixed)
        if scans is not None:
            worker = ScanWorker(keeper, scans.answer, SystemClock())
            tasks += [asyncio.create_task(coroutine) for coroutine in (scans.tables.run(), worker.run())]
        access = NO_ACCESS if options.is_local else Access.of(options.store, options.is_sharing_keys, options.roots)
        tokens = read_tokens(options.token_file)
        places = ConnectionSlots(options.connections_max, options.node_token, on_crowding or _log_crowding)
        parts = (catalog, tokens, manifests, access, scans, operations, counted, places)
        await _serve_http(build_lake_app(keeper, options.host, *parts), options, places, stop, on_ready)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if elsewhere is not None:
            await elsewhere.close()
        for resource in (disk, aside, scans, parent):
            if resource is not None:
                resource.close()


def _object_warehouse(options: LakeOptions) -> str:
    """The warehouse, where it is in an object store and this node places tables in it; else empty."""
    if options.elsewhere:
        return object_warehouse_of(Settings.model_validate(options.elsewhere))
    return options.warehouse if is_object_location(options.warehouse) else ""


def built_catalog(keeper: LinkKeeper, options: LakeOptions, files: TableFiles) -> Catalog | None:
    if not options.warehouse:
        return None
    clock, randomness = SystemClock(), SystemRandomness()
    store = RemoteStore(keeper, clock, randomness)
    try:
        return Catalog(store, files, clock, randomness, options.warehouse, options.table_roots)
    except errors.InvalidInput as error:
        raise errors.ConfigurationError(
            f"the catalog cannot use its warehouse: {error.message}", hint=error.hint
        ) from None


def _own_tables(catalog: Catalog, manifests: ManifestReader) -> Callable[[], TableViews]:
    return lambda: EmbeddedTableViews(catalog, manifests, SystemClock())


def _foreign_tables(keeper: LinkKeeper, catalog: TableCatalog, manifests: ManifestReader) -> Callable[[], TableViews]:
    store = RemoteStore(keeper, SystemClock(), SystemRandomness())
    return lambda: ForeignTableViews(store, catalog, SnapshotReader(manifests), SystemClock())


def _connection_failed(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody caught: a mistake of ours."""
    _log.error("something failed in the background", message=context["message"], exc_info=context.get("exception"))


def _log_crowding(room: RoomState) -> None:
    _log.warning("connections of the lake process", **room._asdict())


async def _serve_http(
    front: LakeApp, options: LakeOptions, places: ConnectionSlots, stop: asyncio.Event, on_ready: Callable[[int], None]
) -> None:
    listening = bound(options.host, options.port)
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        front,
        http=cast("type[asyncio.Protocol]", partial(BoundedHttpProtocol, places)),  # any factory will do
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.API_IDLE_SECONDS,
        timeout_graceful_shutdown=limits.API_STOP_SECONDS,
    )
    server = StillServer(config, stop)
    _log.info("the API listens", host=options.host, port=port)
    calm_collector()
    on_ready(port)  # the socket listens already: who comes before the server is up waits a moment
    await server.serve([listening])


def bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: asyncio turns Nagle's algorithm off only where it is, and 40 ms of each answer with it.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(limits.API_CONNECTIONS_MAX)
    except OSError as error:
        listening.close()
        raise cannot_listen("ports.lake", host, port, error) from None
    listening.setblocking(False)
    return listening
