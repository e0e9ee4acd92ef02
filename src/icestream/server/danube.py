"""The listeners for clients of Danube. gRPC is loaded when somebody wants them, and not before."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from icestream import limits
from icestream.broker.service import Broker
from icestream.runtime.clock import SystemClock
from icestream.runtime.connection_room import RoomState
from icestream.runtime.open_files import connections_allowed
from icestream.server.advertised import advertised_address
from icestream.settings import Settings

if TYPE_CHECKING:
    from icestream.frontends.danube.danube_service import DanubeService
    from icestream.frontends.danube.danube_tls import TlsFiles
    from icestream.frontends.danube.native_grpc_server import NativeGrpcListener
    from icestream.frontends.danube.python_grpc_server import PythonGrpcListener
    from icestream.frontends.danube.schema_handlers import SchemaHandlers


class DanubeListeners:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._service: DanubeService | None = None
        self._listener: PythonGrpcListener | NativeGrpcListener | None = None
        self._admin: PythonGrpcListener | NativeGrpcListener | None = None
        self.url = ""  # where clients are told to connect; empty while nobody listens

    @property
    def port(self) -> int:
        return self._listener.port if self._listener is not None else 0

    @property
    def admin_port(self) -> int:
        return self._admin.port if self._admin is not None else 0

    @property
    def rooms(self) -> list[RoomState]:
        """Of each listener, as far as the wire tells."""
        rooms = [listener.room for listener in (self._listener, self._admin) if listener is not None]
        return [room for room in rooms if room is not None]

    async def listen(self, broker: Broker, metrics_port: int = 0) -> None:
        if not self._settings.danube.enable:
            return
        from icestream.frontends.danube.danube_service import DanubeOptions, DanubeService

        settings = self._settings
        tls = _tls(settings)
        listener = _listener("ports.danube", limits.OPEN_FILES_MESSAGE_SHARE)
        port = await listener.bind(settings.node.bind_host, settings.ports.danube, tls)
        self.url = f"{'http' if tls is None else 'https'}://{_address(settings, port)}"
        self._service = DanubeService(broker, SystemClock(), DanubeOptions(self.url, settings.danube.max_message_bytes))
        await listener.serve(self._service.table())
        self._listener = listener
        self._service.start()
        await self._listen_for_operators(broker, self._service.schemas, port, metrics_port)

    async def _listen_for_operators(
        self, broker: Broker, schemas: SchemaHandlers, port: int, metrics_port: int
    ) -> None:
        from icestream.frontends.danube.admin_handlers import AdminHandlers, BrokerAddresses
        from icestream.frontends.danube.handlers import HandlerTable

        settings, tls = self._settings, _tls(self._settings)
        listener = _listener("ports.danube_admin", limits.OPEN_FILES_OPERATOR_SHARE)
        admin_port = await listener.bind(settings.node.bind_host, settings.ports.danube_admin, tls)
        addresses = [_address(settings, one) for one in (port, admin_port, metrics_port)]
        administration = AdminHandlers(broker, BrokerAddresses(settings.node.name, *addresses))
        await listener.serve(HandlerTable({**administration.table().unary, **schemas.table().unary}))
        self._admin = listener

    async def close(self) -> None:
        """Streams end, calls under way are answered, nobody is let in any more."""
        if self._service is not None:
            self._service.leave()
        listeners = [one for one in (self._listener, self._admin) if one is not None]
        await asyncio.gather(*(one.close() for one in listeners))
        if self._service is not None:
            await self._service.close()


def _listener(setting: str, share: float) -> PythonGrpcListener | NativeGrpcListener:
    """The native wire; where it was not built, gRPC's own for Python, which takes ten times as long for a call.

    `share`: of the descriptors that this process may have.
    """
    connections_max = connections_allowed(limits.DANUBE_CONNECTIONS_MAX, share)
    from icestream.frontends.danube.native_grpc_server import NativeGrpcListener, has_native_wire

    if has_native_wire():
        return NativeGrpcListener(setting, connections_max)
    _quiet()
    from icestream.frontends.danube.python_grpc_server import PythonGrpcListener

    return PythonGrpcListener(setting, connections_max)


def _quiet() -> None:
    """gRPC writes to stderr what nobody can act on, and looks after forks that never happen here."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def _tls(settings: Settings) -> TlsFiles | None:
    from icestream.frontends.danube.danube_tls import TlsFiles

    found = settings.danube
    if found.tls_certificate is None or found.tls_key is None:
        return None
    return TlsFiles(found.tls_certificate, found.tls_key, found.tls_client_ca)


def _address(settings: Settings, port: int) -> str:
    return advertised_address(settings, port, settings.danube.advertised_host)
