"""The pipeline process: the driver with its jobs, which writes messages from the log to Iceberg tables.

    parent, signals     first: a stop during the start is not lost
    Spark               is only checked: a session starts with the first messages, an idle pipeline is one small process
    metrics             from here on the process is reported as running
    files, catalog      of the warehouse; the catalog commits without HTTP if it is the embedded one
    background tasks    link to the broker, warehouse fence, backups; the rest of the start waits for the broker
    driver              lease, jobs (ingest, compaction, file clean-up), requests (commit-now, maintenance)

A stop closes them in reverse order: the driver ends its round, gives back its lease, background tasks end, then
catalog, threads, metrics and Spark are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from icestream import limits
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.object_files import open_files
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.table_catalog import TableCatalog
from icestream.catalogs.warehouse_fence import guard_files
from icestream.iceberg.file_io import LocalFiles, TableFiles, open_inside, open_local
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.shared_sync import LogDiskMonitor
from icestream.lake.request_caller import BrokerCallers
from icestream.metadata.remote_store import RemoteStore
from icestream.observability.http_request import Request
from icestream.observability.log import get_logger
from icestream.observability.spans import set_up_spans
from icestream.pipeline.commit.committer import Committer
from icestream.pipeline.commit.file_presence import FilePresenceCheck
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.compaction.compaction_job import CompactionJob, GroupWriter
from icestream.pipeline.driver.broker_api import BrokerClient
from icestream.pipeline.driver.commit_now import watch_requests
from icestream.pipeline.driver.commit_sequence import CommitSequence
from icestream.pipeline.driver.driver import Driver
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.effects import Effects
from icestream.pipeline.driver.ingest_job import IngestJob, RoundWriter
from icestream.pipeline.driver.job import JobRegistry
from icestream.pipeline.driver.job_guard import JobGuard
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.maintenance_request import MaintenanceRequest, watch_maintenance
from icestream.pipeline.driver.metrics_port import metrics_listener
from icestream.pipeline.driver.requested_care import RequestedCareJob
from icestream.pipeline.driver.rewrite_commit import RewriteCommit
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.erasure.erasure_job import ErasureJob, ErasureOptions, FileSearcher, watch_erasures
from icestream.pipeline.expiry.expiry_job import ExpiryJob
from icestream.pipeline.expiry.table_expiry import TableExpiry
from icestream.pipeline.expiry.topic_table_list import TopicTableList
from icestream.pipeline.file_cleanup.cleaner import FileCleaner
from icestream.pipeline.file_cleanup.cleanup_job import FileCleanupJob
from icestream.pipeline.file_cleanup.folder_survey import FolderSurvey
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.pipeline.retention.retention_clock import RetentionClock
from icestream.pipeline.retention.shard_ranges import ShardRanges
from icestream.pipeline.retention.table_retention_job import TableRetentionJob
from icestream.pipeline.tables.embedded_ledger import EmbeddedLedger
from icestream.pipeline.tables.foreign_ledger import ForeignLedger
from icestream.pipeline.tables.learned_structures import LearnedStructures
from icestream.pipeline.task_keys import TaskKeys, settings_storage
from icestream.processes.component_options import fixed_namespace, object_warehouse, store_options, table_roots
from icestream.processes.configured_catalog import open_catalog, open_embedded_catalog, open_table_role
from icestream.processes.continuous_archive import ContinuousArchive
from icestream.processes.copy_tasks import CopyTasks
from icestream.processes.erased_ledger_copy import ErasedLedgerCopy
from icestream.processes.node.certificates import report_change
from icestream.processes.pipeline_options import compaction_options, driver_options, setup_paths, spark_options
from icestream.processes.scheduled_backups import ScheduledBackups, ScheduledDrills, broker_call
from icestream.readers.lazy_scanner import file_opener
from icestream.rpc.handshake import role_credential
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.advertised_address import known_host_names
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.listener_tls import follow_files, open_listener_tls
from icestream.runtime.parent_pipe import watch_parent
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.stop_signals import stopping_by_signal
from icestream.runtime.tasks import Offload, Tasks, ThreadOffload
from icestream.security.action import Action
from icestream.security.caller_address import host_of
from icestream.security.resource import CLUSTER
from icestream.settings import Settings

_log = get_logger("pipeline")


async def run_pipeline(
    settings: Settings, on_ready: Callable[[int], None], *, is_child: bool = False, role_secret: Callable[[], str] = str
) -> None:
    """Runs the pipeline until a signal, or until its parent closes its stdin if it `is_child`.

    `on_ready` gets the port of the metrics. `role_secret`: proves the role of this process to the broker, and is read
    for each connection. Raises
    MissingPart on a machine without Java or PySpark, ConfigurationError for a port or a warehouse that cannot be used.
    """
    from icestream.pipeline.spark.writer import open_writer

    set_up_spans("pipeline")
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as closing:
        if is_child:
            closing.callback((await watch_parent(stop.set)).close)
        closing.enter_context(stopping_by_signal(stop.set))
        link = LinkKeeper(
            settings.local_socket.absolute(),
            "pipeline",
            SystemClock(),
            lambda: role_credential("pipeline", role_secret()),
        )
        writer = closing.enter_context(open_writer(spark_options(settings), setup_paths(settings, os.environ)))
        callers = BrokerCallers(link, SystemClock(), _log_failed_task)
        closing.push_async_callback(callers.stop)
        metrics = metrics_listener(link, known_host_names(settings, "http"), partial(_check_scraper, callers))
        tls = open_listener_tls(settings, "http")
        await metrics.listen(settings.node.bind_host, settings.ports.pipeline_metrics, tls)
        closing.push_async_callback(metrics.close)
        on_ready(metrics.port)

        background = Tasks(_log_failed_task)
        if tls is not None:
            background.start(follow_files([tls], SystemClock(), report_change), "certificates")
        driver, lease = await _open_driver(settings, link, writer, metrics.port, is_child, background, closing)
        _log.info("the pipeline is ready", metrics_port=metrics.port)
        await driver.run(stop)
        # So that the next driver need not wait. After a failure the lease expires by itself.
        await lease.release()


async def _open_driver(
    settings: Settings,
    link: LinkKeeper,
    writer: TaskWriter,
    metrics_port: int,
    is_child: bool,
    background: Tasks,
    closing: contextlib.AsyncExitStack,
) -> tuple[Driver, DriverLease]:
    """The driver with its jobs, when the broker has answered. What it uses is closed by `closing`."""
    clock, randomness = SystemClock(), SystemRandomness()
    warehouse_threads = ThreadOffload("warehouse", limits.CATALOG_WRITES_AT_ONCE)
    manifest_thread, spark_thread = ThreadOffload("manifests"), ThreadOffload("spark")
    compaction_thread = ThreadOffload("compaction")
    backup_threads = ThreadOffload("backup", limits.BACKUP_UPLOADS_AT_ONCE)
    for offload in (compaction_thread, spark_thread, manifest_thread, backup_threads, warehouse_threads):
        closing.callback(offload.close)
    store = RemoteStore(link, clock, randomness)
    files = open_files(store_options(settings), clock, randomness, local=_local_files(settings, warehouse_threads))
    # The embedded catalog is a library over the metadata store: the driver commits without HTTP, and without the lake
    # process.
    own_catalog = open_embedded_catalog(settings, store, files, manifest_thread) if settings.catalog_embedded else None
    catalog = (
        open_catalog(settings, clock, randomness, files=files) if own_catalog is None else EmbeddedCatalog(own_catalog)
    )
    closing.push_async_callback(catalog.close)
    closing.push_async_callback(background.stop)
    background.start(link.run(), "link to the broker")
    if warehouse := object_warehouse(settings):
        background.start(guard_files(files, warehouse, link, clock).run(), "warehouse fence")

    await store.ready()
    broker = BrokerClient(link)
    lease_name = await broker.lease_name()
    effects = Effects.of(os.environ)
    manifest_reader = ManifestReader(files, manifest_thread)
    namespace = fixed_namespace(settings)
    ledger: OffsetLedger = (
        ForeignLedger(store, catalog, manifest_reader, namespace, clock, lease_name)
        if own_catalog is None
        else EmbeddedLedger(store, catalog, own_catalog, namespace, lease_name)
    )
    storage = settings_storage(store_options(settings))
    keys = _task_keys(store_options(settings), clock, closing)
    tables = TopicTableSet(ledger, catalog, LearnedStructures(store), effects, clock, randomness, storage)
    manifests = ManifestCache(manifest_reader)
    tag_retention = TagRetention(settings.pipeline.hourly_tags_kept_ms, settings.pipeline.daily_tags_kept_ms)
    committer = Committer(
        catalog,
        ledger,
        files,
        manifests,
        clock,
        randomness,
        tag_retention,
        # Executors on other machines may write to a directory that this machine does not share.
        None if spark_options(settings).is_local else FilePresenceCheck(files),
    )
    # A child of a broker takes over its predecessor's lease at once: its parent has seen it die.
    owner = f"{settings.node.name}/child" if is_child else ""
    lease = DriverLease(store, clock, owner, name=lease_name)
    report = DriverReport(writer.master, os.getpid(), metrics_port)
    options = driver_options(settings, writer.tasks_max, keys)
    jobs = JobRegistry(JobGuard(clock))
    jobs.add(
        IngestJob(broker, lease, ledger, tables, committer, writer, spark_thread, effects, clock, options, report, jobs)
    )
    sequence = CommitSequence(lease, ledger, committer, effects, clock, report)
    commits = RewriteCommit(lease, committer, sequence, jobs)
    expiry = TableExpiry(catalog, manifest_reader, clock, tag_retention, settings.pipeline.tag_bytes_max)
    expiry_job = ExpiryJob(
        expiry,
        TopicTableList(store, is_embedded=own_catalog is not None),
        lease,
        tables,
        catalog,
        jobs,
        effects,
        clock,
        lists_tables=not lease_name,
    )
    closing.push_async_callback(expiry_job.close)
    jobs.add(expiry_job)
    delay_ms = settings.pipeline.clean_up_delay_ms
    cleaner: FileCleaner | None = None
    # Not for another catalog: only its owner knows which other readers need its files.
    if own_catalog is not None:
        references = ReferencedFiles(manifest_reader)
        in_use = own_catalog.files_in_use(manifest_reader)
        cleaner = FileCleaner(store, catalog, files, references, in_use, clock, jobs.guard, delay_ms)
        jobs.add(FileCleanupJob(cleaner, lease, effects, is_enabled=settings.pipeline.clean_up))
    retention_clock = RetentionClock(store, clock, lease_name, settings.pipeline.retention_downtime_max_ms)
    ranges = ShardRanges(file_opener(files, table_roots(settings)))
    retention = TableRetentionJob(
        broker, store, tables, manifests, commits, retention_clock, ranges, manifest_thread, effects, clock
    )
    jobs.add(retention)
    care = compaction_options(settings, storage, keys, is_clustered=bool(lease_name))
    compaction = CompactionJob(
        lease, tables, manifests, commits, writer, compaction_thread, effects, clock, care, report
    )
    closing.push_async_callback(compaction.close)
    jobs.add(compaction)
    requested = RequestedCareJob(
        lease,
        tables,
        FolderSurvey(store, catalog, manifest_reader, clock, delay_ms),
        expiry,
        retention,
        cleaner.clean_now if cleaner is not None and settings.pipeline.clean_up else None,
        compaction.request,
        jobs,
        report,
        opens_tables=not lease_name,
    )
    jobs.add(requested)
    if own_catalog is not None:
        erasure_thread = ThreadOffload("erasure")
        closing.callback(erasure_thread.close)
        erasure = ErasureJob(
            broker,
            store,
            catalog,
            lease,
            tables,
            manifests,
            compaction.erasable_files,
            files,
            commits,
            jobs,
            writer,
            erasure_thread,
            effects,
            clock,
            randomness,
            ErasureOptions(storage, keys, delay_ms, lease_name),
        )
        closing.push_async_callback(erasure.close)
        jobs.add(erasure)
    backups = BackupParts(link, store, catalog, files, clock, randomness, backup_threads, writer)
    _start_backups(settings, backups, background, closing)
    driver = Driver(broker, lease, tables, jobs, effects, clock, options, report)
    background.start(watch_requests(store, clock, driver.expedite), "commit-now requests")

    def accept(request: MaintenanceRequest) -> None:
        requested.request(request)
        driver.wake()

    background.start(watch_maintenance(store, clock, accept), "maintenance requests")
    if own_catalog is not None:

        def ask() -> None:
            erasure.ask()
            driver.wake()

        background.start(watch_erasures(store, clock, lease_name, ask), "erasure requests")
    return driver, lease


def _task_keys(store: StoreOptions, clock: Clock, closing: contextlib.AsyncExitStack) -> TaskKeys:
    role = open_table_role(store, StoreKeys(store, clock), clock)
    if role is not None:
        closing.push_async_callback(role.close)
    return TaskKeys(store, role)


class TaskWriter(RoundWriter, GroupWriter, FileSearcher, Protocol):
    """Runs the tasks of every job of the driver, and of backups."""

    def run_tasks(
        self, function: Callable[[Iterable[bytes]], Iterator[bytes]], task_jobs: Sequence[bytes]
    ) -> list[bytes]: ...


class BackupParts(NamedTuple):
    """What backups use of the parts of a driver."""

    link: LinkKeeper
    store: RemoteStore
    catalog: TableCatalog
    files: TableFiles
    clock: SystemClock
    randomness: SystemRandomness
    threads: ThreadOffload
    writer: TaskWriter


def _start_backups(
    settings: Settings, parts: BackupParts, background: Tasks, closing: contextlib.AsyncExitStack
) -> None:
    """Starts backups in intervals, their drills, and the archive, as far as the settings ask for them."""
    clock, randomness = parts.clock, parts.randomness
    call = broker_call(parts.link.call)
    if settings.backup.schedule.interval_ms:
        copy_thread = ThreadOffload("backup jobs")
        closing.callback(copy_thread.close)
        copy_tasks = CopyTasks(parts.writer.run_tasks, copy_thread, max(1, parts.writer.tasks_max - 1))
        schedule = ScheduledBackups(
            settings, call, parts.catalog, parts.files, clock, randomness, parts.threads, copy_tasks
        )
        background.start(schedule.run(), "scheduled backups")
    if settings.backup.target is not None:
        drills = ScheduledDrills(settings, call, clock, randomness, parts.threads)
        background.start(drills.run(), "drills of backups")
        ledgers = ErasedLedgerCopy(settings, parts.store, call, parts.files, clock, randomness, parts.threads)
        background.start(ledgers.run(), "ledgers of erased offsets")
    if settings.backup.archive.enable:
        archive_thread = ThreadOffload("archive")
        closing.callback(archive_thread.close)
        archive = ContinuousArchive(settings, call, clock, randomness, archive_thread)
        background.start(archive.run(), "archive")


def _local_files(settings: Settings, offload: Offload) -> LocalFiles:
    """Files of this machine's disks. For the embedded catalog with the rules of the lake process: no symbolic link
    leads out of the roots, and full syncs leave the disk of the log some rest."""
    if not settings.catalog_embedded:
        return LocalFiles(open_local, offload)
    log_disk = LogDiskMonitor(settings.wal.base_path.absolute())
    return LocalFiles(open_inside(table_roots(settings)), offload, SystemClock(), log_disk)


async def _check_scraper(callers: BrokerCallers, request: Request) -> None:
    """Raises Unauthenticated or PermissionDenied unless the client of a request may describe the cluster."""
    authorization = [request.headers["authorization"]] if "authorization" in request.headers else []
    caller = await callers.identify(authorization, host_of(request.peer), "pipeline", request.certificate or b"")
    try:
        await caller.require([(Action.DESCRIBE, CLUSTER)])
    finally:
        callers.release(caller)


def _log_failed_task(error: BaseException) -> None:
    _log.error("a background task of the pipeline failed", error=repr(error), exc_info=error)
