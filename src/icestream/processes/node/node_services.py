"""The services around the broker: front ends, local socket, online settings, and child processes.

    early front ends    before everything else: they report what the start waits for (HTTP)
    access control      the records of security are applied before clients connect; then they are watched
    settings            stored changes are applied before clients connect; then they are watched
    local socket        for processes of this node; not for a broker in memory without a lake process
    other front ends    when everything else is ready (broker_process.py)
    child processes     last; the start does not wait for them

They are closed together, before the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.metrics_core import Metric

from icestream import limits
from icestream.broker.guarded_broker import BrokerDoor
from icestream.broker.online_settings import OnlineSettings
from icestream.frontends.front_end import FrontEnd
from icestream.frontends.http import gauges
from icestream.frontends.http.http_front_end import HttpFrontEnd
from icestream.frontends.http.log_range import log_range as read_log_range
from icestream.frontends.native.native_listener import NativeListener
from icestream.internal_api.admin_calls import AdminCalls
from icestream.internal_api.archive_calls import ArchiveCalls
from icestream.internal_api.backup_calls import BackupCalls
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.internal_api.erasure_calls import ErasureCalls
from icestream.internal_api.fence_calls import FenceCalls
from icestream.internal_api.implementation import local_call_table
from icestream.internal_api.metadata_calls import MetadataCalls
from icestream.internal_api.mqtt_calls import MqttCalls
from icestream.internal_api.pipeline_calls import PipelineCalls
from icestream.internal_api.restore_calls import RestoreCalls
from icestream.internal_api.scan_calls import ScanCalls
from icestream.internal_api.security_calls import SecurityCalls
from icestream.internal_api.session_calls import SessionCalls
from icestream.metadata.node_store import NodeStore
from icestream.metadata.store import MetadataStore
from icestream.observability import metrics
from icestream.observability.health import Check, failure
from icestream.observability.http_listener import HttpListener, Response
from icestream.observability.http_request import Request
from icestream.observability.log import get_logger
from icestream.processes.child_settings import child_command, child_line
from icestream.processes.node import node_health
from icestream.processes.node.bind_check import check_beside_accounts
from icestream.processes.node.certificates import NodeCertificates
from icestream.processes.node.child_processes import ChildProcess
from icestream.processes.node.front_ends import FRONT_ENDS
from icestream.processes.node.lake_probe import LakeProbe, UnmanagedLake
from icestream.processes.node.settings_changes import apply_settings
from icestream.rpc import handshake
from icestream.runtime.clock import SystemClock
from icestream.runtime.connection_room import RoomState
from icestream.runtime.instance import new_instance
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.open_files import connections_allowed
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import Tasks
from icestream.security.change_audit import ChangeAudit
from icestream.security.key_ring_changes import KeyRingChanges
from icestream.security.role_secrets import RoleSecrets
from icestream.security.security_store import SecurityStore
from icestream.settings import Origin, Settings

if TYPE_CHECKING:
    from icestream.processes.broker_process import BrokerNode

_log = get_logger("server")
SomeFrontEnd = TypeVar("SomeFrontEnd", bound=FrontEnd)


class NodeServices:
    def __init__(self, settings: Settings, origins: Mapping[str, Origin] | None = None) -> None:
        self._settings = settings
        self._origins = origins or {}
        self._clock = SystemClock()
        self._tasks = Tasks(self._task_failed)
        self._node: BrokerNode | None = None
        self._is_policy_known = False
        self.instance = new_instance(SystemRandomness())
        self._node_token = SystemRandomness().token(32).hex()  # authenticates our pipeline to our lake process
        self.role_secrets = RoleSecrets(SystemRandomness(), settings.data_dir)
        self.certificates = NodeCertificates(settings)
        self.front_ends = [front_end(settings, self) for front_end in FRONT_ENDS]
        self.online: OnlineSettings | None = None
        self._settings_revision = 0
        self.local: NativeListener | None = None
        self.lake: ChildProcess | None = None
        self.lake_probe: LakeProbe | None = None
        self.pipeline: ChildProcess | None = None

    def _task_failed(self, error: BaseException) -> None:
        store = self._node.store if self._node is not None else None
        if isinstance(store, NodeStore) and error is store.stopped:
            return  # the node stops with this error and reports it
        _log.error("a background task of the node failed", error=repr(error))

    def front_end(self, kind: type[SomeFrontEnd]) -> SomeFrontEnd:
        """The front end of this class."""
        return next(front_end for front_end in self.front_ends if isinstance(front_end, kind))

    @property
    def http(self) -> HttpListener:
        return self.front_end(HttpFrontEnd).listener

    @property
    def door(self) -> BrokerDoor:
        assert self._node is not None, "the broker has not started yet"
        return self._node.door

    @property
    def open_door(self) -> BrokerDoor | None:
        return self._node.door if self._node is not None and self._is_policy_known else None

    @property
    def store(self) -> MetadataStore:
        assert self._node is not None, "the broker has not started yet"
        return self._node.store

    @property
    def security(self) -> SecurityStore:
        assert self._node is not None, "the broker has not started yet"
        return self._node.security

    @property
    def audit(self) -> ChangeAudit:
        assert self._node is not None, "the broker has not started yet"
        return self._node.audit

    def tls(self, listener: str) -> ListenerTls | None:
        return self.certificates.listeners.get(listener)

    @property
    def children(self) -> list[ChildProcess]:
        return [child for child in (self.lake, self.pipeline) if child is not None]

    # --- state ---

    async def checks(self) -> list[Check]:
        """The readiness checks; probes the lake process and waits for it shortly."""
        if self.lake_probe is not None:
            await self.lake_probe.refresh()
        # Until the access policy is loaded, only checks that name nothing of a client.
        return node_health.checks(self._node, is_starting=not self._is_policy_known)

    def rooms(self) -> list[RoomState]:
        """The connections of all listeners of this node and of its children."""
        rooms = [room for front_end in self.front_ends for room in front_end.connections]
        if self.local is not None:
            rooms.append(self.local.room)
        if self._node is not None and self._node.cluster is not None:
            rooms.append(self._node.cluster.listener.room)
        return rooms + [child.room for child in self.children if child.room is not None]

    def ports(self) -> dict[str, object]:
        """The ports of this node, also those that the settings leave open; 0 for a port that is not open or known."""
        lake = self.lake.port if self.lake is not None else 0
        open_ports = {name: port for front_end in self.front_ends for name, port in front_end.open_ports.items()}
        return {
            "instance": self.instance,
            "node": self._settings.node.name,
            "host": self._settings.node.bind_host,
            **open_ports,
            "lake_port": lake or self._settings.ports.lake,
            "pipeline_port": self.pipeline.port if self.pipeline is not None else 0,
        }

    def places(self) -> dict[str, object]:
        """The ports, `directory`: the directory to which the paths of the settings are relative, and `certificates`: by
        listener, for commands on this machine, which trust what the local socket tells."""
        chains = {name: tls.pem.chain.decode("latin-1") for name, tls in self.certificates.listeners.items()}
        return {**self.ports(), "directory": str(Path.cwd()), "certificates": chains}

    async def exposition(self) -> bytes:
        return gauges.render_exposition(await self._families())

    async def _families(self) -> list[Metric]:
        node = self._node
        if node is None or not self._is_policy_known:
            return [metrics.READY.family(0)]
        checks = await self.checks()
        families: list[Metric] = [*await gauges.broker_families(node.broker)]
        if node.broker.mqtt.options.is_enabled:
            families += await gauges.mqtt_families(node.broker.mqtt)
        families.append(metrics.SESSIONS.family(node.access_control.sessions))
        families.append(metrics.READY.family(int(failure(checks) is None)))
        families.append(metrics.HEALTH.family({check.name: float(check.ok) for check in checks}))
        rooms = self.rooms()
        families.append(metrics.CONNECTIONS.family({room.listener: float(room.open) for room in rooms}))
        families.append(metrics.CONNECTIONS_EVICTED.family({(room.listener,): float(room.evicted) for room in rooms}))
        families.append(metrics.CONNECTIONS_REFUSED.family({(room.listener,): float(room.refused) for room in rooms}))
        certificates, listeners = self.certificates.certificates(), self.certificates.listeners
        families.append(
            metrics.CERTIFICATE_END.family({entry.setting: entry.end.timestamp() for entry in certificates})
        )
        families.append(
            metrics.CERTIFICATE_STALE.family({name: float(bool(tls.fault)) for name, tls in listeners.items()})
        )
        families.append(metrics.CHILD_UP.family({child.name: float(child.is_up) for child in self.children}))
        families.append(metrics.CHILD_RESTARTS.family({(child.name,): child.restarts for child in self.children}))
        if node.log is not None:
            families += await gauges.log_families(node.log, self._clock.wall_us())
        if isinstance(node.store, NodeStore):
            families += gauges.metadata_families(node.store.node.machine)
            ticker = node.cluster.ticker if node.cluster is not None else None
            families += gauges.raft_families(node.store, ticker)
        return families

    async def log_range(self, request: Request) -> Response:
        return await read_log_range(self._node.ingest if self._node is not None else None, request)

    # --- lifecycle ---

    async def open_early_front_ends(self) -> None:
        if self.certificates.listeners:
            self._tasks.start(self.certificates.follow(self._clock), "certificates")
        for front_end in self.front_ends:
            if front_end.is_early:
                await front_end.listen()

    async def open_front_ends(self) -> None:
        """Opens the front ends for clients, once the broker is ready."""
        for front_end in self.front_ends:
            if not front_end.is_early:
                await front_end.listen()

    async def load_settings(self, node: BrokerNode) -> None:
        """Applies the stored settings, before the broker starts with them."""
        self.online = OnlineSettings(
            self._settings, self._origins, node.store, partial(apply_settings, node.broker, node.log)
        )
        self._settings_revision = await self.online.load()

    async def attach(self, node: BrokerNode) -> None:
        """Called when the broker has started and no client is connected yet."""
        self._node = node
        revision = await node.policy_watch.load()
        self._is_policy_known = True
        self._tasks.start(node.policy_watch.follow(revision), "policy")
        self._tasks.start(node.policy_watch.tick(), "policy-tick")
        assert self.online is not None, "load_settings comes first"
        self._tasks.start(self.online.follow(self._settings_revision), "settings")
        if self._settings.storage.type != "memory" or self._settings.lake.managed:
            await self._listen_locally(node, self.online)

    async def _listen_locally(self, node: BrokerNode, online: OnlineSettings) -> None:
        self._settings.data_dir.mkdir(parents=True, exist_ok=True)
        cluster_calls = ClusterCalls(node.cluster, self._clock, node.audit, SystemRandomness())
        call_table = local_call_table(
            AdminCalls(node.log, online, self._clock, self.checks, self.places, node.audit),
            MqttCalls(node.audit),
            PipelineCalls(node.ingest, online, f"{node.cluster.id:016x}" if node.cluster is not None else ""),
            BackupCalls(
                node.backups,
                online,
                self._settings.node.name,
                f"{node.cluster.id:016x}" if node.cluster is not None else "",
            ),
            ArchiveCalls(node.archive),
            ErasureCalls(node.erasures, node.audit),
            RestoreCalls(node.security, node.audit),
            cluster_calls,
            SecurityCalls(
                node.security,
                node.access_control,
                self._clock,
                self._settings.data_dir,
                node.passwords,
                node.service_tokens,
                KeyRingChanges(self._settings.data_dir, self._clock, SystemRandomness()),
                node.audit,
                self.role_secrets,
                cluster_calls,
                self._settings.security.login_token_ttl_ms // 1_000,
                partial(check_beside_accounts, self._settings),
            ),
            FenceCalls(node.fence),
            SessionCalls(node.door),
            MetadataCalls(node.store),
            ScanCalls(node.broker.scan_requests),
        )
        handshake_server = handshake.HandshakeServer(
            self._settings.node.name, self._clock.wall_us, instance=self.instance
        )
        connections_max = connections_allowed(limits.CONNECTIONS_MAX, limits.OPEN_FILES_OPERATOR_SHARE)
        listener = NativeListener(node.door, handshake_server, call_table, "local", connections_max)
        await listener.listen_locally(self._settings.local_socket)
        # Not before it listens: `close` removes the socket file, which might be that of another broker.
        self.local = listener

    def start_children(self) -> None:
        settings = self._settings
        if settings.lake.managed:
            self.lake = ChildProcess(
                "lake",
                child_command("lake"),
                self._clock,
                lambda: child_line(settings, self._node_token, self.role_secrets.role_secret("lake")),
                is_refusal_critical=True,
                variables=settings.node.child_variables,
            )
            self.lake_probe = LakeProbe(
                self.lake, settings.node.bind_host, self.instance, self._clock, tls=self.tls("lake")
            )
            self._tasks.start(self.lake.run(), "lake")
        else:
            self.lake_probe = self._unmanaged_lake()
        if settings.pipeline.managed and settings.storage.type != "memory":
            self.pipeline = ChildProcess(
                "pipeline",
                child_command("pipeline"),
                self._clock,
                lambda: child_line(settings, self._node_token, self.role_secrets.role_secret("pipeline")),
                "the pipeline cannot run here: messages stay in the log and are not written to tables",
                variables=settings.node.child_variables,
            )
            self._tasks.start(self.pipeline.run(), "pipeline")

    def _unmanaged_lake(self) -> LakeProbe | None:
        """None for a broker in memory, which has no lake process."""
        node, settings = self._node, self._settings
        scan_requests = node.broker.storage.scan_requests if node is not None else None
        if node is None or scan_requests is None:
            return None
        log = node.log

        def is_needed() -> bool:
            has_rows = log is not None and any(shard.floor for shard in log.state.shards.values())
            return settings.pipeline.managed or has_rows

        lake = UnmanagedLake(scan_requests, settings.ports.lake, is_needed)
        return LakeProbe(
            lake, settings.node.bind_host, self.instance, self._clock, is_managed=False, tls=self.tls("lake")
        )

    async def close_front_ends(self) -> None:
        """Closes the front ends for clients, all at the same time. Raises the first error when all are closed."""
        closings = [front_end.close() for front_end in self.front_ends if not front_end.is_early]
        for outcome in await asyncio.gather(*closings, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def close(self) -> None:
        """Stops the children and closes the local socket; pending responses are sent."""
        try:
            # Before the local socket closes: the pipeline may be in the middle of a commit, which goes through it.
            if self.pipeline is not None:
                await self.pipeline.stop()
            async with asyncio.TaskGroup() as closing:
                for child in self.children:
                    closing.create_task(child.stop())
                if self.local is not None:
                    closing.create_task(self.local.close())
        finally:
            if self.local is not None:
                self._settings.local_socket.unlink(missing_ok=True)
            if self.lake_probe is not None:
                await self.lake_probe.close()
            await self._tasks.stop()

    async def close_early_front_ends(self) -> None:
        """At the very end: until then they report that the broker is shutting down."""
        await self._tasks.stop()
        for front_end in self.front_ends:
            if front_end.is_early:
                await front_end.close()
