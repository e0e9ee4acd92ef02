"""The broker process: front ends, topics, delivery, the log and the metadata store, and the two child processes.

    signals             before the log is opened: a signal during a long recovery stops the process after it, not within
    early front ends    they report what the start waits for (node/node_services.py)
    metadata store      records the offsets that the log must reach; in a cluster, once there is a leader
    log, storage        recovery happens here
    broker              every topic and subscription of earlier runs
    access control      the records of security, by a linearizable read: no client is accepted before (hazard 112)
    online settings, local socket
    front ends          a client finds everything ready (node/front_ends.py)
    child processes     nothing waits for them

A stop closes them in reverse order: no more clients are accepted, pending responses are sent, cursors are written, the
log is closed, then the metadata store. When the disk of either log cannot be trusted any more, `BrokerNode.failed` has
the reason and the process stops.

`BrokerNode` is the process without its signals and its output: tests and `icestream.testing` run it in a process of
their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from icestream import errors
from icestream.broker.archive_service import ArchiveService
from icestream.broker.audit_log import AuditLog
from icestream.broker.backup_service import BackupService
from icestream.broker.erasure_service import ErasureService
from icestream.broker.guarded_broker import BrokerDoor
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.pipeline_service import LogLocation, PipelineService
from icestream.broker.scan_requests import ScanRequests
from icestream.broker.service import Broker
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_owners import TopicOwners
from icestream.catalog.tokens import read_tokens
from icestream.cluster.cluster_node import ClusterNode
from icestream.frontends.danube.danube_front_end import DanubeFrontEnd
from icestream.frontends.mqtt.mqtt_front_end import MqttFrontEnd
from icestream.frontends.native.native_front_end import NativeFrontEnd
from icestream.frontends.native.native_listener import NativeListener
from icestream.metadata import eraftpb
from icestream.metadata.node_store import NodeStore
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.model.shard import ShardKey
from icestream.observability.log import get_logger
from icestream.processes.component_options import broker_options, log_options, mqtt_options
from icestream.processes.node.bind_check import check_accounts
from icestream.processes.node.configured_authenticator import configured_tokens, open_authenticator
from icestream.processes.node.deferred_table_checks import DeferredTableChecks
from icestream.processes.node.directories import check_directories
from icestream.processes.node.fence_monitor import open_fence_monitor
from icestream.processes.node.log_identity import check_log, record_log
from icestream.processes.node.metadata_startup import Stop, node_record, open_store
from icestream.processes.node.node_services import NodeServices
from icestream.processes.node.ports import check_ports
from icestream.processes.node.presentation import demo
from icestream.processes.node.presentation.greeting import announcement, greeting
from icestream.processes.node.stored_positions import own_shards, stored_positions
from icestream.rpc import local_socket
from icestream.runtime.advertised_address import advertised_address
from icestream.runtime.clock import SystemClock
from icestream.runtime.garbage import calm_collector
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.runtime.stop_signals import stopping_by_signal
from icestream.security.access_control import AccessControl
from icestream.security.password_hashing import PasswordHashing
from icestream.security.policy_watch import PolicyWatch, PolicyWatchOptions
from icestream.security.security_store import SecurityStore
from icestream.settings import Origin, Settings
from icestream.wal.open_log import open_log, open_log_on
from icestream.wal.sink import InlineSink
from icestream.wal.write_ahead_log import WriteAheadLog

_log = get_logger("server")


async def open_configured_log(
    settings: Settings, positions: dict[ShardKey, int] | None = None, *, must_exist: bool = False
) -> WriteAheadLog:
    """The log that the settings describe; in memory when the storage is. Raises LogDamaged when it `must_exist` and
    does not."""
    options = log_options(settings)
    if settings.storage.type == "memory":
        disk = SimulatedDisk(seed=0)
        return await open_log_on(disk, options, {}, SystemClock(), SystemRandomness(), InlineSink())
    return await open_log(Path(settings.wal.base_path), options, positions, must_exist=must_exist)


def topic_owners(store: MetadataStore, cluster: ClusterNode | None = None) -> TopicOwners:
    if not isinstance(store, NodeStore):
        return TopicOwners()
    founders = eraftpb.decode_conf(store.identity.conf).voters

    def local_get(key: str) -> bytes | None:
        entry = store.node.machine.get(key)
        return entry.value if entry is not None else None

    def is_reached(node_id: int) -> bool:
        return cluster is None or cluster.peers.is_connected(node_id)

    return TopicOwners(f"{store.identity.node_id:016x}", f"{founders[0]:016x}", local_get, is_reached)


def _check_not_running(settings: Settings) -> None:
    """Raises LogLocked when a broker answers at this one's own socket."""
    with contextlib.suppress(OSError):
        if local_socket.is_listening(settings.local_socket):
            raise errors.LogLocked(
                f"another broker runs on {settings.data_dir}", hint="stop it first, or give this one its own data_dir"
            )


class BrokerNode:
    """Use `BrokerNode.start`."""

    def __init__(
        self,
        settings: Settings,
        store: MetadataStore,
        storage: PersistentStorage,
        log: WriteAheadLog | None,
        services: NodeServices | None = None,
        cluster: ClusterNode | None = None,
    ) -> None:
        """`cluster` is None for a single node."""
        self.clock = clock = SystemClock()
        self.settings = settings
        self.services = services or NodeServices(settings)
        self.store = store
        self.cluster = cluster
        self.log = log
        self.broker = Broker(
            broker_options(settings), store, storage, clock, topic_owners(store, cluster), mqtt_options(settings)
        )
        security, randomness = settings.security, SystemRandomness()
        self.audit = AuditLog(
            self.broker, storage, clock, settings.node.name, security.audit_events_per_second,
            records_access=security.audit_access,
        )  # fmt: skip
        self.access_control = AccessControl(clock, on_denied=self.audit.denied, on_allowed=self.audit.accessed)
        graces = PolicyWatchOptions(security.partition_grace_login_ms, security.partition_grace_hold_ms)
        self.policy_watch = PolicyWatch(store, clock, self.access_control, graces)
        self.security = SecurityStore(store, self.policy_watch, clock, randomness)
        self.passwords = PasswordHashing()
        self.service_tokens = configured_tokens(settings, self.policy_watch, clock, randomness)
        self.authenticator = open_authenticator(
            settings,
            self.policy_watch,
            self.passwords,
            self.service_tokens,
            clock,
            self.audit.login_failed,
        )
        self.access_control.authenticator = self.authenticator
        self.door = BrokerDoor(self.broker, self.access_control, self.services.role_secrets)
        topics = self.broker.topics
        self.ingest = (
            PipelineService(
                log,
                clock,
                self._log_location(),
                topics.table_policy,
                topics.next_retained_topics,
                self.broker.consumed_offsets,
            )
            if log is not None
            else None
        )
        storage, mqtt = self.broker.storage, self.broker.mqtt
        self.backups = (
            BackupService(log, store, clock, storage.flush_cursors, mqtt.write_state) if log is not None else None
        )
        key_file = settings.data_dir / "erasure.key"
        self.erasures = (
            ErasureService(
                log,
                store,
                clock,
                key_file,
                settings.node.name,
                f"{cluster.id:016x}" if cluster is not None else "",
                mqtt,
            )
            if log is not None and settings.catalog_embedded  # another catalog cannot judge an erasure
            else None
        )
        archive = settings.backup.archive
        held_bytes_max = archive.held_bytes_max if archive.enable else 0
        self.archive = ArchiveService(log, store, clock, held_bytes_max) if log is not None else None
        if self.ingest is not None and isinstance(self.broker.storage, IcebergStorage):
            self.ingest.erased_below = self.broker.storage.erased.of
        if self.ingest is not None:
            self.ingest.on_committed = self.broker.on_tables_committed
            self.ingest.certificate = self._http_certificate
        self.certificates = self.services.certificates
        self.fence = open_fence_monitor(settings, store, clock) if isinstance(store, NodeStore) else None
        self.deferred_table_checks: DeferredTableChecks | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if log is not None:
            log.on_stop = self._fail
        if isinstance(store, NodeStore):
            store.node.on_stop = self._fail

    @property
    def native(self) -> NativeListener:
        return self.services.front_end(NativeFrontEnd).listener

    @property
    def danube(self) -> DanubeFrontEnd:
        return self.services.front_end(DanubeFrontEnd)

    @property
    def mqtt(self) -> MqttFrontEnd:
        return self.services.front_end(MqttFrontEnd)

    def _log_location(self) -> LogLocation:
        """Where tasks of the pipeline read the log. Each start has a new secret."""
        address = advertised_address(self.settings, self.services.http.port)
        if self.services.tls("http") is not None:
            address = f"https://{address}"
        return LogLocation(str(self.settings.wal.base_path), address, SystemRandomness().token(32).hex())

    def _http_certificate(self) -> str:
        tls = self.services.tls("http")
        return "" if tls is None else tls.digest

    def _fail(self, error: errors.IcestreamError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    @classmethod
    async def start(
        cls, settings: Settings, origins: Mapping[str, Origin] | None = None, join: str = "", stop: Stop | None = None
    ) -> BrokerNode:
        """Starts a node and returns it when it serves clients.

        `origins`: where each setting comes from. `join`: the address of a member of the cluster to join. `stop` ends
        the wait for other nodes, which has no timeout.
        """
        check_directories(settings)
        services = NodeServices(settings, origins)
        try:
            await check_ports(settings, join)
            await services.open_early_front_ends()
        except errors.ConfigurationError:
            await services.close_early_front_ends()
            _check_not_running(settings)  # a running broker on the same data is the better explanation
            raise
        try:
            node = await cls._open(settings, services, join, stop)
        except BaseException:
            await services.close_early_front_ends()
            raise
        try:
            await check_accounts(settings, node.store, node.cluster)
            await services.load_settings(node)
            if node.archive is not None:
                # Before anything frees log files that are not archived yet.
                await node.archive.start()
            if node.erasures is not None:
                await node.erasures.start()
            await node.broker.start()
            if node.deferred_table_checks is not None:
                node.deferred_table_checks.start()
            await services.attach(node)
            await services.open_front_ends()
            if node.cluster is not None:
                mqtt = node.mqtt
                node.cluster.announce(
                    node_record(settings, node.native.port, node.danube.url, mqtt.port, mqtt.web_port)
                )
        except BaseException:
            await node.stop()
            raise
        # Last: they call the broker by its local socket at once.
        services.start_children()
        return node

    @classmethod
    async def _open(cls, settings: Settings, services: NodeServices, join: str, stop: Stop | None) -> BrokerNode:
        if settings.storage.type == "memory":
            if settings.meta_store.seed_nodes or join:
                raise errors.ConfigurationError(
                    "a node in memory cannot be a member of a cluster", hint="set `storage.type: iceberg`"
                )
            store = MemoryStore()
            storage = MemoryStorage(store, SystemClock(), settings.broker.cursor_flush_ms, log_options(settings))
            return cls(settings, store, storage, None, services)
        return await cls._open_on_disk(settings, services, join, stop)

    @classmethod
    async def _open_on_disk(
        cls, settings: Settings, services: NodeServices, join: str, stop: Stop | None
    ) -> BrokerNode:
        opened = await open_store(settings, join, stop, services.certificates.peers)
        store = opened.store
        try:
            owners = topic_owners(store)
            stored = await stored_positions(store, owners)
            unstored = dict.fromkeys(await own_shards(store, owners), 0)
            path = Path(settings.wal.base_path)
            had_log = await check_log(store, owners, path, has_topics=bool(unstored))
            log = await open_configured_log(settings, unstored | stored.positions, must_exist=had_log)
        except BaseException:
            await store.close()
            raise
        try:
            await record_log(store, owners, log.log_id)
        except BaseException:
            await log.close()
            await store.close()
            raise
        storage = IcebergStorage(log, store, SystemClock(), settings.broker.cursor_flush_ms, ScanRequests())
        await storage.retained.load()  # before the first reader
        await storage.erased.load()
        node = cls(settings, store, storage, log, services, opened.cluster)
        node.deferred_table_checks = DeferredTableChecks(store, storage, stored.unread)
        return node

    async def stop(self) -> None:
        """Stops the node; accepted messages are finished and the log is closed, whatever fails.

        Clients, children and processes of the node are closed at the same time: each may take seconds, all together
        must take less than ten.
        """
        try:
            closings = await asyncio.gather(
                self.services.close_front_ends(), self.services.close(), return_exceptions=True
            )
            if self.deferred_table_checks is not None:
                await self.deferred_table_checks.stop()
            if self.archive is not None:
                await self.archive.stop()
            await self.authenticator.close()
            await self.audit.close()
            await self.broker.shutdown()
            # Raised only now: a front end that failed to close must not keep the log from being closed.
            for failure in closings:
                if isinstance(failure, BaseException):
                    raise failure
        finally:
            await self.services.close_early_front_ends()


async def run_broker(
    settings: Settings,
    print_line: Callable[[str], None],
    origins: Mapping[str, Origin] | None = None,
    *,
    to_a_program: bool = False,
    has_demo: bool = False,
    join: str = "",
) -> None:
    """Runs a broker until SIGTERM, SIGINT or SIGHUP (runtime/stop_signals.py), or until the log stops because of its
    disk; then raises the reason.

    `print_line` gets the greeting; with `to_a_program` one line of JSON as soon as the broker is ready. `has_demo`: a
    broker without topics runs the demo (node/presentation/demo.py). `join`: the address of a member of the cluster to
    join.
    """
    if settings.lake.managed:
        read_tokens(settings.lake.token_file)  # fail here, or the child would fail at each start, unnoticed
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    with stopping_by_signal(lambda: _request_stop(stop)):
        try:
            node = await BrokerNode.start(settings, origins, join, stop)
        except errors.ShuttingDown:
            if stop.done():
                return  # a stop before the node was ready is not an error
            raise
        calm_collector()
        _log.info("broker ready", topics=len(node.broker.topics), native_port=node.native.port)
        for line in [json.dumps(announcement(node))] if to_a_program else greeting(node):
            print_line(line)
        runs_demo = has_demo and not to_a_program and demo.should_run_demo(node)
        async with _background(demo.run_demo(node, print_line) if runs_demo else None):
            await run_node(node, stop)
    if not to_a_program:
        print_line(
            "stopped cleanly: the next start needs no recovery" if settings.storage.type != "memory" else "stopped"
        )


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """Runs the work beside the body; an IcestreamError in it is only logged."""
    if work is None:
        yield
        return
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, errors.IcestreamError):
            _log.warning("the demo failed", reason=str(outcome))
        elif isinstance(outcome, Exception):
            raise outcome


def _request_stop(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)


async def run_node(node: BrokerNode, stop: asyncio.Future[None]) -> None:
    """Runs until `stop`, then stops the node. Raises the error that made the node fail."""
    try:
        await asyncio.wait({stop, node.failed}, return_when=asyncio.FIRST_COMPLETED)
        if node.failed.done():
            node.failed.result()
    finally:
        await node.stop()
