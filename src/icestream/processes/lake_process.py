"""The lake process: the HTTP API, Iceberg's REST protocol for the embedded catalog, and scans of tables for the broker.

    signals, parent     first: a stop during the start is not lost
    files               of the warehouse: threads for disk and manifests, object store
    tables              the embedded catalog, or the catalog that the settings name; scans of their files
    background tasks    link to the broker, warehouse fence, clean-up, scans. Nothing waits for the broker: requests
                        report that it is not connected
    HTTP                last, when everything can answer

A stop closes them in reverse order: open requests are finished (API_STOP_SECONDS at most), background tasks end, then
catalog, files and threads are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from icestream import limits
from icestream.backup.backup_target import BackupTarget, open_target
from icestream.backup.viewed_backups import ViewedBackups
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalog.catalog import Catalog
from icestream.catalog.operations.file_rules import FileRules
from icestream.catalog.tokens import read_tokens
from icestream.catalogs.object_files import open_files
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.warehouse_fence import guard_files
from icestream.iceberg.file_io import LocalFiles, TableFiles, open_inside
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.shared_sync import LogDiskMonitor
from icestream.lake.dispatch import build_lake_app
from icestream.lake.foreign_operations import ForeignOperations
from icestream.lake.http import ConnectionSlots, bind_listener, serve_http
from icestream.lake.iceberg.access import NO_ACCESS, Access
from icestream.lake.iceberg.delegated_access import DelegatedAccess
from icestream.lake.operations import EmbeddedOperations, TopicTableOperations
from icestream.lake.request_caller import BrokerCallers
from icestream.lake.request_metrics import RequestMetrics
from icestream.lake.scan_worker import ScanWorker
from icestream.metadata.remote_store import RemoteStore
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.observability.spans import set_up_spans
from icestream.processes.component_options import (
    backed_up_roots,
    fixed_namespace,
    has_local_tables,
    object_warehouse,
    row_group_cache_options,
    store_options,
    table_roots,
)
from icestream.processes.configured_catalog import open_catalog, open_embedded_catalog, open_table_role
from icestream.processes.node.certificates import report_change
from icestream.processes.target_reports import TargetReports
from icestream.readers.embedded_table_views import EmbeddedTableViews
from icestream.readers.foreign_table_views import ForeignTableViews
from icestream.readers.lazy_scanner import LazyScanner, file_opener
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.table_views import TableViews
from icestream.rpc.handshake import role_credential
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.advertised_address import known_host_names
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.connection_room import RoomState
from icestream.runtime.garbage import calm_collector
from icestream.runtime.listener_tls import follow_files, open_listener_tls
from icestream.runtime.parent_pipe import watch_parent
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.stop_signals import stopping_by_signal
from icestream.runtime.tasks import Offload, ShortOffload, Tasks, ThreadOffload
from icestream.settings import Settings

_log = get_logger("lake")


class ServedTables(NamedTuple):
    """The tables of topics as this process serves them: of the embedded catalog, or of another one."""

    catalog: Catalog | None  # the embedded one, which is served over HTTP; None for another catalog
    new_views: Callable[[], TableViews]
    operations: TopicTableOperations
    rules: FileRules | None = None  # which files of tables are read; None: all


async def run_lake(
    settings: Settings,
    on_ready: Callable[[int], None],
    *,
    is_child: bool = False,
    socket: Path | None = None,
    node_token: str = "",
    role_secret: Callable[[], str] = str,
    on_crowding: Callable[[RoomState], None] | None = None,
    connections_max: int = limits.API_CONNECTIONS_MAX,
) -> None:
    """Runs the lake process until a signal, or until its parent closes its stdin if it `is_child`.

    `on_ready` gets the port of the listener. `socket`: the local socket of the broker, if it is not in `data_dir`.
    `node_token`: of requests that may use the reserve of connections (lake/http.py). `role_secret`: proves the role of
    this process to the broker, and is read for each connection. `on_crowding` is called when all connections are taken,
    and when they are no longer.
    Raises ConfigurationError for a port, a warehouse or a token file that cannot be used.
    """
    set_up_spans("lake")
    stop, clock = asyncio.Event(), SystemClock()
    asyncio.get_running_loop().set_exception_handler(_log_unhandled)
    async with contextlib.AsyncExitStack() as closing:
        closing.enter_context(stopping_by_signal(stop.set))
        if is_child:
            closing.callback((await watch_parent(stop.set)).close)

        request_metrics = RequestMetrics()
        local = _open_local_files(settings, clock, request_metrics, closing)
        objects = None if has_local_tables(settings) else open_files(store_options(settings), local=local)
        files: TableFiles = objects or local
        manifest_thread = ThreadOffload("manifests")
        closing.callback(manifest_thread.close)
        manifests = ManifestReader(files, manifest_thread)

        link = LinkKeeper(
            (socket or settings.local_socket).absolute(), "lake", clock, lambda: role_credential("lake", role_secret())
        )
        store = RemoteStore(link, clock, SystemRandomness())
        callers = BrokerCallers(link, clock, _log_failed_task)
        closing.push_async_callback(callers.stop)
        tables = (
            _embedded_tables(settings, store, files, manifests, manifest_thread, callers)
            if settings.catalog_embedded
            else _foreign_tables(settings, store, objects, manifests, closing)
        )
        scans = LazyScanner(
            tables.new_views,
            files,
            row_group_cache_options(settings),
            table_roots(settings),
            None if tables.rules is None else tables.rules.rule,
        )
        closing.callback(scans.close)

        background = Tasks(_log_failed_task)
        closing.push_async_callback(background.stop)
        background.start(link.run(), "link to the broker")
        if objects is not None and (warehouse := object_warehouse(settings)):
            background.start(guard_files(objects, warehouse, link, clock).run(), "warehouse fence")
        if tables.catalog is not None:
            background.start(tables.catalog.cleanup(manifests).run(), "catalog clean-up")
        background.start(scans.tables.run(), "table views")
        background.start(ScanWorker(link, scans.answer, clock).run(), "scan worker")

        tls = open_listener_tls(settings, "lake")
        if tls is not None:
            background.start(follow_files([tls], clock, report_change), "certificates")
        slots = ConnectionSlots(connections_max, node_token, on_crowding or _log_crowding)
        app = build_lake_app(
            link,
            settings.node.bind_host,
            tables.catalog,
            read_tokens(settings.lake.token_file),
            manifests,
            _access(settings, clock, closing),
            scans,
            tables.operations,
            request_metrics,
            slots,
            known_host_names(settings, "lake"),
            callers,
            *_served_backups(settings, files, clock, closing),
        )
        listening = bind_listener(settings.node.bind_host, settings.ports.lake)
        port = listening.getsockname()[1]
        _log.info("the API listens", host=settings.node.bind_host, port=port)
        calm_collector()
        on_ready(port)  # early clients wait in the backlog of the socket until the server runs
        await serve_http(app, listening, slots, stop, tls)


def _open_local_files(
    settings: Settings, clock: Clock, request_metrics: RequestMetrics, closing: contextlib.AsyncExitStack
) -> LocalFiles:
    """Files of this machine's disks. No symbolic link leads out of the roots, and full syncs leave the disk of the log
    some rest."""
    threads = ThreadOffload("warehouse", limits.CATALOG_WRITES_AT_ONCE)
    closing.callback(threads.close)

    def short_offload() -> ShortOffload:
        # Inline only for a single request: others would wait for its sync on the loop.
        return ShortOffload(threads, clock, lambda: request_metrics.in_progress <= 1, limits.CATALOG_INLINE_BELOW_NS)

    log_disk = LogDiskMonitor(settings.wal.base_path.absolute())
    return LocalFiles(open_inside(table_roots(settings)), threads, clock, log_disk, short_offload)


def _embedded_tables(
    settings: Settings,
    store: MetadataStore,
    files: TableFiles,
    manifests: ManifestReader,
    manifest_thread: Offload,
    callers: BrokerCallers,
) -> ServedTables:
    catalog = open_embedded_catalog(settings, store, files, manifest_thread)
    rules = FileRules(catalog.places, callers.is_secured)
    return ServedTables(
        catalog,
        lambda: EmbeddedTableViews(catalog, manifests, SystemClock(), rules.check),
        EmbeddedOperations(catalog, fixed_namespace(settings)),
        rules,
    )


def _foreign_tables(
    settings: Settings,
    store: MetadataStore,
    objects: TableFiles | None,
    manifests: ManifestReader,
    closing: contextlib.AsyncExitStack,
) -> ServedTables:
    # A catalog that writes metadata files itself must write them behind the fence that guards `objects`.
    catalog = open_catalog(settings, files=objects if object_warehouse(settings) else None)
    closing.push_async_callback(catalog.close)
    clock = SystemClock()
    return ServedTables(
        None,
        lambda: ForeignTableViews(store, catalog, SnapshotReader(manifests), clock),
        ForeignOperations(store, catalog, manifests, clock, fixed_namespace(settings)),
    )


def _access(settings: Settings, clock: Clock, closing: contextlib.AsyncExitStack) -> Access:
    if has_local_tables(settings):
        return NO_ACCESS
    store = store_options(settings)
    roots = table_roots(settings)
    delegated = _delegated_access(store, roots, clock, closing) if store.kind == "s3" else None
    return Access.of(store, settings.lake.share_keys, roots, delegated)


class _ServedBackups(NamedTuple):
    """What the catalog and the API serve of the backups of the target of this node; None without a target."""

    views: ViewedBackups | None = None
    reports: TargetReports | None = None


def _served_backups(
    settings: Settings, files: TableFiles, clock: Clock, closing: contextlib.AsyncExitStack
) -> _ServedBackups:
    location = settings.backup.target
    if location is None:
        return _ServedBackups()
    threads, randomness = ThreadOffload("backups"), SystemRandomness()
    closing.callback(threads.close)
    # Nothing is written: the folder for temporary files is never used.
    spool = settings.data_dir.absolute()

    def open_once() -> BackupTarget:
        return open_target(location, store_options(settings), clock, randomness, threads, spool)

    roots = backed_up_roots(settings)  # whatever the target was made to say
    source = WarehouseFiles(file_opener(files, roots), roots).chunks
    return _ServedBackups(ViewedBackups(open_once), TargetReports(open_once, source, threads, settings.data_dir))


def _delegated_access(
    store: StoreOptions, roots: Sequence[str], clock: Clock, closing: contextlib.AsyncExitStack
) -> DelegatedAccess:
    keys = StoreKeys(store, clock)
    if (role := open_table_role(store, keys, clock)) is not None:
        closing.push_async_callback(role.close)
    return DelegatedAccess(store, roots, keys, role, clock)


def _log_unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _log.error("unhandled error in the event loop", message=context["message"], exc_info=context.get("exception"))


def _log_failed_task(error: BaseException) -> None:
    _log.error("a background task of the lake process failed", error=repr(error), exc_info=error)


def _log_crowding(room: RoomState) -> None:
    _log.warning("connections of the lake process", **room._asdict())
