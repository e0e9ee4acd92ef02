"""One broker process: its components, started in order and stopped in reverse.

    HTTP               before everything: it says what the start waits for (node_services.py)
    metadata store     it knows the positions that the log must not fall behind; with others, when there is a leader
    log, storage       recovery happens here
    broker             every topic and subscription that was there before
    settings that change, local socket
    listeners          native, Danube: whoever connects finds everything ready
    lake process       nobody waits for it

A stop goes the other way: nobody is let in, the acks that are due leave, cursors are written, the log is closed, then
the metadata store. When the disk of either log cannot be trusted any more, `failed` has the reason and the node must
stop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from icestream import errors, limits
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.pipeline_service import LogLocation, PipelineService
from icestream.broker.scan_requests import ScanRequests
from icestream.broker.service import Broker
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_owners import TopicOwners
from icestream.cluster.cluster_node import ClusterNode
from icestream.frontends.native.native_listener import NativeListener
from icestream.frontends.native.public_calls import CALLS, PORTS, CallTable
from icestream.metadata import eraftpb
from icestream.metadata.node_store import NodeStore
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.model.shard import ShardKey
from icestream.rpc import handshake, local_socket
from icestream.rpc.compression import Compression
from icestream.runtime.clock import SystemClock
from icestream.runtime.open_files import connections_allowed
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.server.advertised import advertised_address
from icestream.server.certificates import read_certificates
from icestream.server.component_options import broker_options, frame_bytes_max, log_options
from icestream.server.danube import DanubeListeners
from icestream.server.deferred_table_checks import DeferredTableChecks
from icestream.server.directories import check_directories
from icestream.server.fence_monitor import open_fence_monitor
from icestream.server.log_identity import check_log, record_log
from icestream.server.metadata_startup import Stop, node_record, open_store
from icestream.server.node_services import NodeServices
from icestream.server.ports import check_ports
from icestream.server.stored_positions import own_shards, stored_positions
from icestream.settings import Origin, Settings
from icestream.wal.open_log import open_log, open_log_on
from icestream.wal.sink import InlineSink
from icestream.wal.write_ahead_log import WriteAheadLog


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

    def peek(key: str) -> bytes | None:
        entry = store.node.machine.get(key)
        return entry.value if entry is not None else None

    def is_reached(node_id: int) -> bool:
        return cluster is None or cluster.peers.is_connected(node_id)

    return TopicOwners(f"{store.identity.node_id:016x}", f"{founders[0]:016x}", peek, is_reached)


def _check_not_running(settings: Settings) -> None:
    """Raises LogLocked when a broker answers at this one's own socket."""
    with contextlib.suppress(OSError):
        if local_socket.is_listening(settings.local_socket):
            raise errors.LogLocked(
                f"another broker runs on {settings.data_dir}", hint="stop it first, or give this one its own data_dir"
            )


class BrokerNode:
    """Open one with `Node.start`."""

    def __init__(
        self,
        settings: Settings,
        store: MetadataStore,
        storage: PersistentStorage,
        log: WriteAheadLog | None,
        around: NodeServices | None = None,
        cluster: ClusterNode | None = None,
    ) -> None:
        """`cluster`: where the metadata store is shared with other nodes."""
        self.clock = clock = SystemClock()
        self.settings = settings
        self.services = around or NodeServices(settings)
        self.store = store
        self.cluster = cluster
        self.log = log
        self.broker = Broker(broker_options(settings), store, storage, clock, topic_owners(store, cluster))
        policy = self.broker.topics.table_policy
        self.ingest = PipelineService(log, clock, self._place(), policy) if log is not None else None
        if self.ingest is not None:
            self.ingest.on_committed = self.broker.on_tables_committed
        welcome = handshake.HandshakeServer(
            settings.node.name, clock.wall_us, frame_bytes_max(settings), Compression(), self.services.instance
        )
        native_max = connections_allowed(limits.CONNECTIONS_MAX, limits.OPEN_FILES_MESSAGE_SHARE)
        offered = CallTable({**CALLS, PORTS: self.services.tell_ports})
        self.native = NativeListener(self.broker, welcome, offered, connections_max=native_max)
        self.danube = DanubeListeners(settings)
        self.certificates = read_certificates(settings)
        self.fence = open_fence_monitor(settings, store, clock) if isinstance(store, NodeStore) else None
        self.late_tables: DeferredTableChecks | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if log is not None:
            log.on_stop = self._fail
        if isinstance(store, NodeStore):
            store.node.on_stop = self._fail

    def _place(self) -> LogLocation:
        """Where tasks of the pipeline find the log. The token is made anew by each start."""
        address = advertised_address(self.settings, self.services.http.port)
        return LogLocation(str(self.settings.wal.base_path), address, SystemRandomness().token(32).hex())

    def _fail(self, error: errors.IcestreamError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    @classmethod
    async def start(
        cls, settings: Settings, origins: Mapping[str, Origin] | None = None, join: str = "", stop: Stop | None = None
    ) -> BrokerNode:
        """`origins`: where the settings came from, for those who ask. `join`: a node of the cluster to enter. `stop`:
        ends the wait for other nodes, which has no end of its own."""
        check_directories(settings)
        around = NodeServices(settings, origins)
        try:
            await check_ports(settings, join)
            await around.open_http()
        except errors.ConfigurationError:
            await around.close_http()
            _check_not_running(settings)  # the port is taken by another broker of the same data: that is the news
            raise
        try:
            node = await cls._open(settings, around, join, stop)
        except BaseException:
            await around.close_http()
            raise
        try:
            await node.broker.start()
            if node.late_tables is not None:
                node.late_tables.start()
            await around.attach(node)
            await node.native.listen(settings.node.bind_host, settings.ports.native)
            await node.danube.listen(node.broker, around.http.port)
            if node.cluster is not None:
                node.cluster.announce(node_record(settings, node.native.port, node.danube.url))
        except BaseException:
            await node.stop()
            raise
        around.start_children()
        return node

    @classmethod
    async def _open(cls, settings: Settings, around: NodeServices, join: str, stop: Stop | None) -> BrokerNode:
        if settings.storage.type == "memory":
            if settings.meta_store.seed_nodes or join:
                raise errors.ConfigurationError(
                    "a node in memory has no metadata store that others could share", hint="set `storage.type: iceberg`"
                )
            store = MemoryStore()
            storage = MemoryStorage(store, SystemClock(), settings.broker.cursor_flush_ms, log_options(settings))
            return cls(settings, store, storage, None, around)
        return await cls._open_on_disk(settings, around, join, stop)

    @classmethod
    async def _open_on_disk(cls, settings: Settings, around: NodeServices, join: str, stop: Stop | None) -> BrokerNode:
        opened = await open_store(settings, join, stop)
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
        node = cls(settings, store, storage, log, around, opened.cluster)
        node.late_tables = DeferredTableChecks(store, storage, stored.unread)
        return node

    async def stop(self) -> None:
        """Whatever fails on the way, what was taken is finished and the log closed.

        Clients, children and processes of the node take their leave at the same time: each may take seconds, and all
        of it must not take ten.
        """
        try:
            leaving = await asyncio.gather(
                self.native.close(), self.danube.close(), self.services.close(), return_exceptions=True
            )
            if self.late_tables is not None:
                await self.late_tables.stop()
            await self.broker.shutdown()
            for failure in leaving:
                if isinstance(failure, BaseException):
                    raise failure
        finally:
            await self.services.close_http()
