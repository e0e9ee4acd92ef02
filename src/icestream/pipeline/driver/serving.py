"""The pipeline process: puts the parts of a driver together and runs it until it is stopped.

Spark is started with the first messages: an idle pipeline is one small process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable

from icestream import limits
from icestream.catalog.catalog import Catalog
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.factory import open_catalog, open_files
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.table_catalog import TableCatalog
from icestream.catalogs.topic_table_name import fixed_namespace
from icestream.catalogs.warehouse_fence import guard_files
from icestream.catalogs.warehouse_fence_record import object_warehouse_of
from icestream.iceberg.file_io import LocalFiles, TableFiles, open_inside, open_local
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.shared_sync import LogDiskMonitor
from icestream.metadata.remote_store import RemoteStore
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.observability.spans import set_up_spans
from icestream.pipeline.commit.committer import Committer
from icestream.pipeline.commit.file_presence import FilePresenceCheck
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.broker_api import BrokerClient
from icestream.pipeline.driver.commit_now import watch_requests
from icestream.pipeline.driver.driver import Driver
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.effects import Effects
from icestream.pipeline.driver.ingest_job import IngestJob, RoundWriter
from icestream.pipeline.driver.job import JobRegistry
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.metrics_port import metrics_listener
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.file_cleanup.cleaner import FileCleaner
from icestream.pipeline.file_cleanup.cleanup_job import FileCleanupJob
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.pipeline.tables.embedded_ledger import EmbeddedLedger
from icestream.pipeline.tables.foreign_ledger import ForeignLedger
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.runtime.parent_pipe import watch_parent
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.stop_signals import stopping_by_signal
from icestream.runtime.tasks import Offload, ThreadOffload
from icestream.settings import Settings

_log = get_logger("pipeline")


async def serve(settings: Settings, on_ready: Callable[[int], None], *, is_child: bool = False) -> None:
    """Runs the pipeline until a signal, or the end of its parent. `on_ready` gets the port of the metrics. Raises
    MissingPart on a machine without Java or PySpark."""
    from icestream.pipeline.spark.writer import open_writer

    set_up_spans("pipeline")
    stop = asyncio.Event()
    parent = await watch_parent(stop.set) if is_child else None
    keeper = LinkKeeper(settings.local_socket.absolute(), "pipeline", SystemClock())
    metrics = metrics_listener(keeper)
    try:
        with stopping_by_signal(stop.set), open_writer(settings) as writer:
            await metrics.listen(settings.node.bind_host, settings.ports.pipeline_metrics)
            try:
                on_ready(metrics.port)
                async with _open_driver(settings, keeper, writer, metrics.port, is_child) as driver:
                    _log.info("the pipeline is ready", metrics_port=metrics.port)
                    await driver.run(stop)
            finally:
                await metrics.close()
    finally:
        if parent is not None:
            parent.close()


@contextlib.asynccontextmanager
async def _open_driver(
    settings: Settings, keeper: LinkKeeper, writer: RoundWriter, port: int, is_child: bool
) -> AsyncIterator[Driver]:
    clock, randomness = SystemClock(), SystemRandomness()
    keeping = asyncio.create_task(keeper.run())
    warehouse_threads, manifest_thread, spark_thread = (
        ThreadOffload("warehouse", limits.CATALOG_WRITES_AT_ONCE),
        ThreadOffload("manifests"),
        ThreadOffload("spark"),
    )
    store = RemoteStore(keeper, clock, randomness)
    store_options = StoreOptions.of(settings.storage.iceberg_config.object_store)
    files = open_files(store_options, clock, randomness, local=_local_files(settings, warehouse_threads))
    own_catalog = _own_catalog(settings, store, files)
    # Our own catalog is a library over the metadata store: the driver commits without HTTP, and without the lake
    # process.
    catalog = (
        open_catalog(settings, clock, randomness, files=files) if own_catalog is None else EmbeddedCatalog(own_catalog)
    )
    effects = Effects.of(os.environ)
    tasks = [keeping]
    if warehouse := object_warehouse_of(settings):
        tasks.append(asyncio.create_task(guard_files(files, warehouse, keeper, clock).run()))
    try:
        await store.ready()
        broker = BrokerClient(keeper)
        lease_name = await broker.lease_name()
        manifest_reader = ManifestReader(files, manifest_thread)
        namespace = fixed_namespace(settings)
        ledger: OffsetLedger = (
            ForeignLedger(store, catalog, manifest_reader, namespace)
            if own_catalog is None
            else EmbeddedLedger(store, catalog, own_catalog, namespace, lease_name)
        )
        storage = {} if store_options.kind == "local" else dataclasses.asdict(store_options)
        tables = TopicTableSet(ledger, catalog, effects, clock, randomness, storage)
        committer = Committer(
            catalog,
            ledger,
            files,
            ManifestCache(manifest_reader),
            clock,
            randomness,
            TagRetention(settings.pipeline.hourly_tags_kept_ms, settings.pipeline.daily_tags_kept_ms),
            None if SparkOptions.of(settings).is_local else FilePresenceCheck(files),
        )
        # A child of a broker takes over its predecessor's lease at once: its parent has seen it die.
        owner = f"{settings.node.name}/child" if is_child else ""
        lease = DriverLease(store, clock, owner, name=lease_name)
        report = DriverReport(writer.master, os.getpid(), port)
        options = DriverOptions.of(settings, writer.tasks_max, storage)
        jobs = JobRegistry()
        jobs.add(
            IngestJob(
                broker, lease, ledger, tables, committer, writer, spark_thread, effects, clock, options, report, jobs
            )
        )
        if (cleaner := _cleaner(settings, store, catalog, files, manifest_reader)) is not None:
            jobs.add(FileCleanupJob(cleaner, lease, effects))
        driver = Driver(broker, lease, tables, jobs, effects, clock, options, report)
        tasks.append(asyncio.create_task(watch_requests(store, clock, driver.expedite)))
        yield driver
        await lease.release()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await catalog.close()
        for offload in (warehouse_threads, manifest_thread, spark_thread):
            offload.close()


def _roots(settings: Settings) -> tuple[str, ...]:
    """The locations where our own catalog accepts tables."""
    return (settings.storage.iceberg_config.warehouse, *settings.lake.table_roots)


def _local_files(settings: Settings, offload: Offload) -> LocalFiles:
    """Files of this machine's disks. For our own catalog with the rules of the lake process: no symbolic link leads out
    of the roots, and full syncs leave the disk of the log some rest."""
    if not settings.catalog_embedded:
        return LocalFiles(open_local, offload)
    log_disk = LogDiskMonitor(settings.wal.base_path.absolute())
    return LocalFiles(open_inside(_roots(settings)), offload, SystemClock(), log_disk)


def _own_catalog(settings: Settings, store: MetadataStore, files: TableFiles) -> Catalog | None:
    """Our own catalog over the broker's metadata store; None if the tables are in another catalog."""
    if not settings.catalog_embedded:
        return None
    warehouse, *table_roots = _roots(settings)
    return Catalog(store, files, SystemClock(), SystemRandomness(), warehouse, table_roots)


def _cleaner(
    settings: Settings,
    store: MetadataStore,
    catalog: TableCatalog,
    files: TableFiles,
    manifest_reader: ManifestReader,
) -> FileCleaner | None:
    """None for a foreign catalog: only its owner knows which other readers need its files."""
    if not settings.catalog_embedded or not settings.pipeline.clean_up:
        return None
    references = ReferencedFiles(manifest_reader)
    return FileCleaner(store, catalog, files, references, SystemClock(), settings.pipeline.clean_up_delay_ms)
