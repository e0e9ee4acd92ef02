"""What stands around the broker: its HTTP, the local socket, settings that change, the lake process.

    HTTP             before everything else: it says what the start waits for
    settings         what was stored counts before anybody connects; then they are watched
    local socket     for processes of this node; not where nothing of the node is on disk and nobody needs it
    lake process     last, and nobody waits for it; nor for the pipeline

They end together, before the broker does.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from icestream import limits
from icestream.broker.online_settings import OnlineSettings
from icestream.frontends.http import gauges
from icestream.frontends.http.endpoints import Endpoints
from icestream.frontends.http.log_range import log_range
from icestream.frontends.native.native_listener import NativeListener
from icestream.internal_api.admin_calls import AdminCalls
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.internal_api.fence_calls import FenceCalls
from icestream.internal_api.pipeline_calls import PipelineCalls
from icestream.lake.lake_options import LakeOptions
from icestream.metadata.node_store import NodeStore
from icestream.observability import metrics
from icestream.observability.health import Check, failure
from icestream.observability.http_listener import HttpListener, Response
from icestream.observability.http_request import Request
from icestream.observability.log import get_logger
from icestream.pipeline.driver.child import command as pipeline_command
from icestream.pipeline.driver.child import environment as pipeline_environment
from icestream.rpc import handshake
from icestream.runtime.clock import SystemClock
from icestream.runtime.connection_room import RoomState
from icestream.runtime.instance import new_instance
from icestream.runtime.open_files import connections_allowed
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import Tasks
from icestream.server import node_health
from icestream.server.child_processes import ChildProcess
from icestream.server.lake_probe import LakeProbe
from icestream.server.settings_changes import apply_settings
from icestream.server.unmanaged_lake import UnmanagedLake
from icestream.settings import Origin, Settings

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection
    from icestream.server.broker_node import BrokerNode

_log = get_logger("server")


class NodeServices:
    def __init__(self, settings: Settings, origins: Mapping[str, Origin] | None = None) -> None:
        self._settings = settings
        self._origins = origins or {}
        self._clock = SystemClock()
        self._tasks = Tasks(self._task_failed)
        self._node: BrokerNode | None = None
        self.instance = new_instance(SystemRandomness())
        self._node_token = SystemRandomness().token(32).hex()  # by which our lake process knows our pipeline
        self.http = HttpListener(
            Endpoints(self.checks, self.exposition if settings.metrics.enable else None, self._log_range),
            self.instance,
        )
        self.online: OnlineSettings | None = None
        self.local: NativeListener | None = None
        self.lake: ChildProcess | None = None
        self.lake_probe: LakeProbe | None = None
        self.pipeline: ChildProcess | None = None

    def _task_failed(self, error: BaseException) -> None:
        store = self._node.store if self._node is not None else None
        if isinstance(store, NodeStore) and error is store.stopped:
            return  # the node stops for it and says so
        _log.error("a task around the broker failed", error=repr(error))

    @property
    def children(self) -> list[ChildProcess]:
        return [one for one in (self.lake, self.pipeline) if one is not None]

    # --- what is said ---

    async def checks(self) -> list[Check]:
        """Waits shortly for the lake process, which is asked whether it serves."""
        if self.lake_probe is not None:
            await self.lake_probe.refresh()
        return node_health.checks(self._node)

    def rooms(self) -> list[RoomState]:
        """The places of all listeners of this node, as far as they are known here."""
        rooms = [self.http.room] + ([self.local.room] if self.local is not None else [])
        if self._node is not None:
            rooms += [self._node.native.room, *self._node.danube.rooms]
            rooms += [self._node.cluster.listener.room] if self._node.cluster is not None else []
        return rooms + [child.room for child in self.children if child.room is not None]

    def ports(self) -> dict[str, object]:
        """Where this node listens, also where the settings leave it open. A port that is not open, or not known yet,
        is 0."""
        node = self._node
        lake = self.lake.port if self.lake is not None else 0
        return {
            "instance": self.instance,
            "node": self._settings.node.name,
            "host": self._settings.node.bind_host,
            "native_port": node.native.port if node is not None else 0,
            "danube_port": node.danube.port if node is not None else 0,
            "danube_admin_port": node.danube.admin_port if node is not None else 0,
            "http_port": self.http.port,
            "lake_port": lake or self._settings.ports.lake,
            "pipeline_port": self.pipeline.port if self.pipeline is not None else 0,
        }

    def places(self) -> dict[str, object]:
        """The ports, and `directory`: what the paths of the settings are relative to."""
        return {**self.ports(), "directory": str(Path.cwd())}

    async def tell_ports(self, connection: NativeConnection, given: dict[str, object]) -> dict[str, object]:
        """The public call `ports`: whoever knows one port finds the others."""
        return self.ports()

    async def exposition(self) -> bytes:
        return gauges.render_exposition(await self._families())

    async def _families(self) -> list[Metric]:
        node = self._node
        if node is None:
            return [metrics.READY.family(0)]
        checks = await self.checks()
        found: list[Metric] = [*await gauges.broker_families(node.broker)]
        found.append(metrics.READY.family(int(failure(checks) is None)))
        found.append(metrics.HEALTH.family({check.name: float(check.ok) for check in checks}))
        rooms = self.rooms()
        found.append(metrics.CONNECTIONS.family({room.listener: float(room.open) for room in rooms}))
        found.append(metrics.CONNECTIONS_EVICTED.family({(room.listener,): float(room.evicted) for room in rooms}))
        found.append(metrics.CONNECTIONS_REFUSED.family({(room.listener,): float(room.refused) for room in rooms}))
        found.append(metrics.CHILD_UP.family({child.name: float(child.is_up) for child in self.children}))
        found.append(metrics.CHILD_RESTARTS.family({(child.name,): child.restarts for child in self.children}))
        if node.log is not None:
            found += await gauges.log_families(node.log, self._clock.wall_us())
        if isinstance(node.store, NodeStore):
            found += gauges.metadata_families(node.store.node.machine)
            ticker = node.cluster.ticker if node.cluster is not None else None
            found += gauges.raft_families(node.store, ticker)
        return found

    async def _log_range(self, request: Request) -> Response:
        return await log_range(self._node.ingest if self._node is not None else None, request)

    # --- life ---

    async def open_http(self) -> None:
        await self.http.listen(self._settings.node.bind_host, self._settings.ports.broker_http)

    async def attach(self, node: BrokerNode) -> None:
        """The broker has started, and nobody is connected yet."""
        self._node = node
        self.online = OnlineSettings(
            self._settings, self._origins, node.store, partial(apply_settings, node.broker, node.log)
        )
        revision = await self.online.load()
        self._tasks.start(self.online.follow(revision), "settings")
        if self._settings.storage.type != "memory" or self._settings.lake.managed:
            await self._listen_locally(node, self.online)

    async def _listen_locally(self, node: BrokerNode, online: OnlineSettings) -> None:
        self._settings.data_dir.mkdir(parents=True, exist_ok=True)
        pipeline = PipelineCalls(node.ingest, online, f"{node.cluster.id:016x}" if node.cluster is not None else "")
        administration = AdminCalls(
            node.broker,
            node.log,
            online,
            self._clock,
            self.checks,
            self.places,
            pipeline,
            ClusterCalls(node.cluster, self._clock),
            FenceCalls(node.fence),
        )
        welcome = handshake.HandshakeServer(self._settings.node.name, self._clock.wall_us, instance=self.instance)
        connections_max = connections_allowed(limits.CONNECTIONS_MAX, limits.OPEN_FILES_OPERATOR_SHARE)
        listener = NativeListener(node.broker, welcome, administration.call_table(), "local", connections_max)
        await listener.listen_locally(self._settings.local_socket)
        self.local = listener  # not before: a socket of somebody else is not ours to remove

    def start_children(self) -> None:
        settings = self._settings
        if settings.lake.managed:
            options = dataclasses.replace(LakeOptions.of(settings), node_token=self._node_token)
            command = options.command(settings.log.level, settings.log.format)
            self.lake = ChildProcess("lake", command, self._clock, options.environment, is_refusal_critical=True)
            self.lake_probe = LakeProbe(self.lake, settings.node.bind_host, self.instance, self._clock)
            self._tasks.start(self.lake.run(), "lake")
        else:
            self.lake_probe = self._unmanaged_lake()
        if settings.pipeline.managed and settings.storage.type != "memory":
            self.pipeline = ChildProcess(
                "pipeline",
                pipeline_command(),
                self._clock,
                lambda: pipeline_environment(
                    settings, self.lake.port if self.lake is not None else 0, self._node_token
                ),
                "messages stay in the log and become no rows: the pipeline cannot run here",
            )
            self._tasks.start(self._run_pipeline(self.pipeline), "pipeline")

    def _unmanaged_lake(self) -> LakeProbe | None:
        """None where no lake process can come: the messages are in memory."""
        node, settings = self._node, self._settings
        scan_requests = node.broker.storage.scan_requests if node is not None else None
        if node is None or scan_requests is None:
            return None
        log = node.log

        def is_needed() -> bool:
            has_rows = log is not None and any(shard.floor for shard in log.state.shards.values())
            return settings.pipeline.managed or has_rows

        lake = UnmanagedLake(scan_requests, settings.ports.lake, is_needed)
        return LakeProbe(lake, settings.node.bind_host, self.instance, self._clock, is_managed=False)

    async def _run_pipeline(self, pipeline: ChildProcess) -> None:
        """Behind the lake process, where only that knows its port."""
        while self.lake is not None and not self._settings.ports.lake and not self.lake.is_up:
            await self._clock.sleep(limits.CHILD_RETRY_SECONDS_MIN)
        await pipeline.run()

    async def close(self) -> None:
        """The pipeline first: it may be in the middle of a commit, which needs the others."""
        try:
            if self.pipeline is not None:
                await self.pipeline.stop()
            async with asyncio.TaskGroup() as leaving:
                for child in self.children:
                    leaving.create_task(child.stop())
                if self.local is not None:
                    leaving.create_task(self.local.close())
        finally:
            if self.local is not None:
                self._settings.local_socket.unlink(missing_ok=True)
            if self.lake_probe is not None:
                await self.lake_probe.close()
            await self._tasks.stop()

    async def close_http(self) -> None:
        """At the very end: until then it says that the broker is shutting down."""
        await self.http.close()
