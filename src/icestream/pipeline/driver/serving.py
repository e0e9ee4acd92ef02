"""The pipeline process: the parts of a driver put together, until somebody stops it.

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
from icestream.catalog.tokens import first_token
from icestream.catalogs.factory import open_catalog, open_files
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.table_catalog import TableCatalog
from icestream.catalogs.topic_table_name import fixed_namespace
from icestream.catalogs.warehouse_fence import guard_files
from icestream.catalogs.warehouse_fence_record import object_warehouse_of
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.metadata.remote_store import RemoteStore
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.observability.spans import set_up_spans
from icestream.pipeline.commit.committer import Committer
from icestream.pipeline.commit.file_presence import FilePresenceCheck
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.broker_api import BrokerLink
from icestream.pipeline.driver.commit_now import watch_requests
from icestream.pipeline.driver.driver import Driver, RoundWriter
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.effects import Effects
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.metrics_port import metrics_listener
from icestream.pipeline.driver.topic_tables import TopicTables
from icestream.pipeline.file_cleanup.cleaner import FileCleaner
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.pipeline.tables.embedded_ledger import EmbeddedLedger
from icestream.pipeline.tables.foreign_ledger import ForeignLedger
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.runtime.parent_pipe import watch_parent
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.stop_signals import stopping_by_signal
from icestream.runtime.tasks import ThreadOffload
from icestream.settings import Settings
from icestream.settings.derive import lake_uri
from icestream.settings.document import as_document

_log = get_logger("pipeline")


async def serve(settings: Settings, on_ready: Callable[[int], None], *, is_child: bool = False) -> None:
    """`on_ready` is told the port of the metrics. Raises MissingPart on a machine without what Spark runs on."""
    from icestream.pipeline.spark.spark_startup import open_writer

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
                async with _driver(settings, keeper, writer, metrics.port, is_child) as driver:
                    _log.info("the pipeline is ready", metrics_port=metrics.port)
                    await driver.run(stop)
            finally:
                await metrics.close()
    finally:
        if parent is not None:
            parent.close()


@contextlib.asynccontextmanager
async def _driver(
    settings: Settings, keeper: LinkKeeper, writer: RoundWriter, port: int, is_child: bool
) -> AsyncIterator[Driver]:
    clock, randomness = SystemClock(), SystemRandomness()
    keeping = asyncio.create_task(keeper.run())
    disk, aside, spark = (
        ThreadOffload("warehouse", limits.CATALOG_WRITES_AT_ONCE),
        ThreadOffload("manifests"),
        ThreadOffload("spark"),
    )
    store = RemoteStore(keeper, clock, randomness)
    options = StoreOptions.of(settings.storage.iceberg_config.object_store)
    files = open_files(options, clock, randomness, disk)
    catalog = open_catalog(_with_token(settings), clock, randomness, instance=_instance(settings, keeper), files=files)
    effects = Effects.of(os.environ)
    tasks = [keeping]
    if warehouse := object_warehouse_of(settings):
        tasks.append(asyncio.create_task(guard_files(files, warehouse, keeper, clock).run()))
    try:
        await store.ready()
        avro = ManifestReader(files, aside)
        link = BrokerLink(keeper)
        name = await link.name()
        books = _books(settings, store, catalog, files, avro, name)
        storage = {} if options.kind == "local" else dataclasses.asdict(options)
        topics = TopicTables(books, catalog, effects, clock, randomness, storage)
        history = TagRetention(settings.pipeline.hourly_tags_kept_ms, settings.pipeline.daily_tags_kept_ms)
        reader = ManifestCache(avro)
        arrival = None if SparkOptions.of(settings).is_local else FilePresenceCheck(files)
        committer = Committer(catalog, books, files, reader, clock, randomness, history, arrival)
        owner = f"{settings.node.name}/child" if is_child else ""
        lease = DriverLease(store, clock, owner, name=name)
        report = DriverReport(writer.master, os.getpid(), port)
        own = DriverOptions.of(settings, writer.tasks_max, storage)
        cleaner = _cleaner(settings, store, catalog, files, avro)
        driver = Driver(link, lease, books, topics, committer, writer, spark, effects, clock, own, report, cleaner)
        tasks.append(asyncio.create_task(watch_requests(store, clock, driver.hurry)))
        yield driver
        await lease.give_up()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await catalog.close()
        for one in (disk, aside, spark):
            one.close()


def _instance(settings: Settings, keeper: LinkKeeper) -> Callable[[], str] | None:
    """The instance that must answer for the catalog: this node's own lake process is asked. Another node of the cluster
    may be named as the catalog of the same tables: then nothing is compared."""
    own_uri = lake_uri(settings.node.bind_host, settings.ports.lake)
    return (lambda: keeper.instance) if settings.catalog_embedded and settings.catalog.uri == own_uri else None


def _with_token(settings: Settings) -> Settings:
    """Our own catalog asks for a token where the node has a file of them."""
    token = first_token(settings.lake.token_file) if settings.catalog_embedded else None
    if token is None or settings.catalog.token is not None:
        return settings
    told = as_document(settings)
    told["storage"]["iceberg_config"]["catalog"]["token"] = token
    return Settings.model_validate(told)


def _cleaner(
    settings: Settings, store: MetadataStore, catalog: TableCatalog, files: TableFiles, avro: ManifestReader
) -> FileCleaner | None:
    """Another catalog may be somebody else's too: nobody but him knows who needs its files."""
    if not settings.catalog_embedded or not settings.pipeline.clean_up:
        return None
    return FileCleaner(store, catalog, files, ReferencedFiles(avro), SystemClock(), settings.pipeline.clean_up_delay_ms)


def _books(
    settings: Settings, store: MetadataStore, catalog: TableCatalog, files: TableFiles, avro: ManifestReader, lease: str
) -> OffsetLedger:
    fixed = fixed_namespace(settings)
    if not settings.catalog_embedded:
        return ForeignLedger(store, catalog, avro, fixed)
    making = Catalog(store, files, SystemClock(), SystemRandomness(), settings.storage.iceberg_config.warehouse)
    return EmbeddedLedger(store, catalog, making, fixed, lease)
