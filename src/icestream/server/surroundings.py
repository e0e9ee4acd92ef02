"""What stands around the broker: its HTTP, the local socket, settings that change, the lake process.

    HTTP             before everything else: it says what the start waits for
    settings         what was stored counts before anybody connects; then they are watched
    local socket     for processes of this node; not where nothing of the node is on disk and nobody needs it
    lake process     last, and nobody waits for it; nor for the pipeline

They end together, before the broker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from icestream import limits
from icestream.broker.online_settings import OnlineSettings
from icestream.frontends.http import readings
from icestream.frontends.http.endpoints import Endpoints
from icestream.frontends.http.listener import HttpListener, Response
from icestream.frontends.http.log_range import log_range
from icestream.frontends.http.request import Request
from icestream.frontends.native.admin_calls import Administration
from icestream.frontends.native.cluster_calls import ClusterCalls
from icestream.frontends.native.listener import NativeListener
from icestream.frontends.native.pipeline_calls import PipelineCalls
from icestream.lake.options import LakeOptions
from icestream.metadata.node_store import NodeStore
from icestream.observability import metrics
from icestream.observability.health import Check
from icestream.observability.log import get_logger
from icestream.pipeline.driver.child import command as pipeline_command
from icestream.pipeline.driver.child import environment as pipeline_environment
from icestream.protocol import handshake
from icestream.runtime.clock import SystemClock
from icestream.runtime.tasks import Tasks
from icestream.server.children import Child
from icestream.server.health import checks
from icestream.server.online import apply_settings
from icestream.settings import Origin, Settings

if TYPE_CHECKING:
    from icestream.server.node import Node

_log = get_logger("server")


class Surroundings:
    def __init__(self, settings: Settings, origins: Mapping[str, Origin] | None = None) -> None:
        self._settings = settings
        self._origins = origins or {}
        self._clock = SystemClock()
        self._tasks = Tasks(self._task_failed)
        self._node: Node | None = None
        self.http = HttpListener(
            Endpoints(self.checks, self.exposition if settings.metrics.enable else None, self._log_range)
        )
        self.online: OnlineSettings | None = None
        self.local: NativeListener | None = None
        self.lake: Child | None = None
        self.pipeline: Child | None = None

    def _task_failed(self, error: BaseException) -> None:
        store = self._node.store if self._node is not None else None
        if isinstance(store, NodeStore) and error is store.stopped:
            return  # the node stops for it and says so
        _log.error("a task around the broker failed", error=repr(error))

    @property
    def children(self) -> list[Child]:
        return [one for one in (self.lake, self.pipeline) if one is not None]

    # --- what is said ---

    def checks(self) -> list[Check]:
        return checks(self._node, self.children)

    def places(self) -> dict[str, object]:
        """What the settings may leave open. A port that nobody knows yet is 0."""
        lake = self.lake.port if self.lake is not None else 0
        return {
            "directory": str(Path.cwd()),  # what paths of the settings are relative to
            "http_port": self.http.port,
            "lake_port": lake or self._settings.ports.lake,
        }

    async def exposition(self) -> bytes:
        return readings.with_counters(await self._families())

    async def _families(self) -> list[Metric]:
        node = self._node
        if node is None:
            return [metrics.READY.family(0)]
        local = self.local.connections if self.local else 0
        listeners = {"native": node.native.connections, "local": local, **node.danube.connections}
        found: list[Metric] = [*await readings.broker_families(node.broker)]
        found.append(metrics.CONNECTIONS.family({name: float(count) for name, count in listeners.items()}))
        found.append(metrics.CHILD_UP.family({child.name: float(child.is_up) for child in self.children}))
        found.append(metrics.CHILD_RESTARTS.family({(child.name,): child.restarts for child in self.children}))
        if node.log is not None:
            found += await readings.log_families(node.log, self._clock.wall_us())
        if isinstance(node.store, NodeStore):
            found += readings.metadata_families(node.store.node.machine)
            ticker = node.cluster.ticker if node.cluster is not None else None
            found += readings.raft_families(node.store, ticker)
        return found

    async def _log_range(self, request: Request) -> Response:
        return await log_range(self._node.ingest if self._node is not None else None, request)

    # --- life ---

    async def open_http(self) -> None:
        await self.http.listen(self._settings.node.bind_host, self._settings.ports.broker_http)

    async def attach(self, node: Node) -> None:
        """The broker has started, and nobody is connected yet."""
        self._node = node
        self.online = OnlineSettings(
            self._settings, self._origins, node.store, partial(apply_settings, node.broker, node.log)
        )
        revision = await self.online.load()
        self._tasks.start(self.online.follow(revision), "settings")
        if self._settings.storage.type != "memory" or self._settings.lake.managed:
            await self._listen_locally(node, self.online)

    async def _listen_locally(self, node: Node, online: OnlineSettings) -> None:
        self._settings.data_dir.mkdir(parents=True, exist_ok=True)
        pipeline = PipelineCalls(node.ingest, online, f"{node.cluster.id:016x}" if node.cluster is not None else "")
        administration = Administration(
            node.broker,
            node.log,
            online,
            self._clock,
            self.checks,
            self.places,
            pipeline,
            ClusterCalls(node.cluster, self._clock),
        )
        welcome = handshake.Server(self._settings.node.name, self._clock.wall_us)
        listener = NativeListener(node.broker, welcome, administration.offered())
        await listener.listen_locally(self._settings.local_socket)
        self.local = listener  # not before: a socket of somebody else is not ours to remove

    def start_children(self) -> None:
        settings = self._settings
        if settings.lake.managed:
            options = LakeOptions.of(settings)
            command = options.command(settings.log.level, settings.log.format)
            self.lake = Child("lake", command, self._clock, options.environment)
            self._tasks.start(self.lake.run(), "lake")
        if settings.pipeline.managed and settings.storage.type != "memory":
            self.pipeline = Child(
                "pipeline",
                pipeline_command(),
                self._clock,
                lambda: pipeline_environment(settings, self.lake.port if self.lake is not None else 0),
                "messages stay in the log and become no rows: the pipeline cannot run here",
            )
            self._tasks.start(self._run_pipeline(self.pipeline), "pipeline")

    async def _run_pipeline(self, pipeline: Child) -> None:
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
            await self._tasks.stop()

    async def close_http(self) -> None:
        """At the very end: until then it says that the broker is shutting down."""
        await self.http.close()
