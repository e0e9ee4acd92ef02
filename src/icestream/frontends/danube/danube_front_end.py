"""The listeners for Danube's clients and admin tools. gRPC is imported only if they are enabled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from icestream import limits
from icestream.broker.guarded_broker import BrokerDoor
from icestream.frontends.front_end import FrontEnd, NodeView
from icestream.runtime.advertised_address import advertised_address
from icestream.runtime.clock import SystemClock
from icestream.runtime.connection_room import RoomState
from icestream.runtime.open_files import connections_allowed
from icestream.settings import Settings

if TYPE_CHECKING:
    from icestream.frontends.danube.danube_service import DanubeService
    from icestream.frontends.danube.native_grpc_server import NativeGrpcListener
    from icestream.frontends.danube.python_grpc_server import PythonGrpcListener


class DanubeFrontEnd(FrontEnd):
    """Two gRPC listeners: one for clients, one for admin tools."""

    name = "danube"

    def __init__(self, settings: Settings, node: NodeView) -> None:
        super().__init__(settings, node)
        self._service: DanubeService | None = None
        self._listener: PythonGrpcListener | NativeGrpcListener | None = None
        self._admin: PythonGrpcListener | NativeGrpcListener | None = None
        self.methods: frozenset[str] = frozenset()  # the paths that both listeners serve
        self.url = ""  # the advertised address of the client listener; empty while it is closed

    @classmethod
    def configured_ports(cls, settings: Settings) -> Iterator[tuple[str, int]]:
        if settings.danube.enable:
            yield "ports.danube", settings.ports.danube
            yield "ports.danube_admin", settings.ports.danube_admin

    @property
    def port(self) -> int:
        return self._listener.port if self._listener is not None else 0

    @property
    def admin_port(self) -> int:
        return self._admin.port if self._admin is not None else 0

    @property
    def open_ports(self) -> Mapping[str, int]:
        return {"danube_port": self.port, "danube_admin_port": self.admin_port}

    @property
    def connections(self) -> Sequence[RoomState]:
        """The places of each listener that counts its connections: grpc.aio does not."""
        rooms = [listener.room for listener in (self._listener, self._admin) if listener is not None]
        return [room for room in rooms if room is not None]

    async def listen(self) -> None:
        if not self._settings.danube.enable:
            return
        from icestream.frontends.danube.danube_service import DanubeOptions, DanubeService

        settings, tls = self._settings, self._node.tls(self.name)
        # Bound before it serves: replies contain the advertised address, and port 0 is known only then.
        listener = _listener("ports.danube", limits.OPEN_FILES_MESSAGE_SHARE, self._node.door)
        port = await listener.bind(settings.node.bind_host, settings.ports.danube, tls)
        self.url = f"{'http' if tls is None else 'https'}://{_address(settings, port)}"
        self._service = DanubeService(
            self._node.door, self._node.store, SystemClock(), DanubeOptions(self.url, settings.danube.max_message_bytes)
        )
        table = self._service.table()
        await listener.serve(table)
        self.methods |= {*table.unary, *table.streams}
        self._listener = listener  # after it serves: `open_ports` shows ports that answer
        self._service.start()
        await self._listen_for_admin(self._service, port)

    async def _listen_for_admin(self, service: DanubeService, port: int) -> None:
        """Opens the admin listener. It needs the ports of the others, which it reports to admin tools."""
        from icestream.frontends.danube.admin_handlers import AdminHandlers, BrokerAddresses
        from icestream.frontends.danube.handlers import HandlerTable
        from icestream.frontends.danube.security_handlers import SecurityHandlers

        settings, tls = self._settings, self._node.tls(self.name)
        listener = _listener("ports.danube_admin", limits.OPEN_FILES_OPERATOR_SHARE, self._node.door)
        admin_port = await listener.bind(settings.node.bind_host, settings.ports.danube_admin, tls)
        metrics_port = int(str(self._node.ports()["http_port"]))
        addresses = [_address(settings, number) for number in (port, admin_port, metrics_port)]
        administration = AdminHandlers(BrokerAddresses(settings.node.name, *addresses))
        security = SecurityHandlers(self._node.security, self._node.audit)
        tables = administration.table(), security.table(), service.schemas.table()
        table = HandlerTable({path: handler for part in tables for path, handler in part.unary.items()})
        await listener.serve(service.guarded(table, "danube_admin"))
        self.methods |= table.unary.keys()
        self._admin = listener

    async def close(self) -> None:
        """Ends the streams, waits for calls in flight, and closes the listeners."""
        # Streams first: they never end by themselves, so a listener would wait for them until its timeout.
        if self._service is not None:
            self._service.leave()
        listeners = [listener for listener in (self._listener, self._admin) if listener is not None]
        await asyncio.gather(*(listener.close() for listener in listeners))
        if self._service is not None:
            await self._service.close()

    def greeting_lines(self) -> Iterator[str]:
        if self.port:
            yield f"Danube clients: {self.url}; their admin tools: port {self.admin_port}"

    def addresses(self) -> dict[str, object]:
        return {"danube": self.url or None}


def _listener(setting: str, share: float, door: BrokerDoor) -> PythonGrpcListener | NativeGrpcListener:
    """The native gRPC server; without the native part grpc.aio, which takes ten times as long for a call.

    `share` is that of the file descriptors of this process.
    """
    connections_max = connections_allowed(limits.DANUBE_CONNECTIONS_MAX, share)
    from icestream.frontends.danube.native_grpc_server import NativeGrpcListener, has_native_wire

    if has_native_wire():
        return NativeGrpcListener(setting, connections_max, lambda: door.is_secured)
    _silence_grpc()
    from icestream.frontends.danube.python_grpc_server import PythonGrpcListener

    return PythonGrpcListener(setting, connections_max)


def _silence_grpc() -> None:
    """Disables gRPC's messages on stderr and its fork support, before it is imported: this process does not fork."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def _address(settings: Settings, port: int) -> str:
    """The address under which clients reach a port of this broker."""
    return advertised_address(settings, port, settings.danube.advertised_host)
