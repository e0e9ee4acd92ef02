"""Listens for MQTT connections on one port, by TCP or WebSocket, with or without TLS and the PROXY protocol.

Plain MQTT is served by the native wire where it is built; WebSocket and the PROXY protocol by asyncio.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from icestream import errors
from icestream.frontends.mqtt.mqtt_connection import MqttConnection, MqttConnections
from icestream.frontends.mqtt.mqtt_wire import MqttWire, has_mqtt_wire
from icestream.observability.log import get_logger
from icestream.runtime.connection_room import RoomState
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.listening import BACKLOG, cannot_listen, listening_socket
from icestream.runtime.proxy_protocol import ProxyPeers
from icestream.runtime.tls_server import NewProtocol, TlsServer

_log = get_logger("mqtt")

# What reads the socket of a connection: the connection itself, or a WebSocket around it.
WrapConnection: TypeAlias = Callable[[MqttConnection], asyncio.BaseProtocol]


class MqttListener:
    def __init__(
        self,
        setting: str,
        connections: MqttConnections,
        proxies: ProxyPeers,
        wrap: WrapConnection | None = None,
    ) -> None:
        """`setting`: of its port. `wrap`: None for plain MQTT."""
        self._setting = setting
        self._connections = connections
        self._proxies = proxies
        self._wrap = wrap
        self._server: asyncio.Server | TlsServer | None = None
        self._wire: MqttWire | None = None
        self.port = 0

    def _new_connection(self, address: str = "") -> asyncio.BaseProtocol:
        connection = MqttConnection(self._connections, address)
        return connection if self._wrap is None else self._wrap(connection)

    async def _read_prelude(self, accepted: socket.socket) -> NewProtocol:
        try:
            return partial(self._new_connection, await self._proxies.read(accepted))
        except errors.DecodeError as error:
            _log.warning("refused a connection", listener=self._connections.listener, reason=str(error))
            raise

    async def listen(self, host: str, port: int, tls: ListenerTls | None) -> None:
        """Raises ConfigurationError for a port that cannot be used."""
        try:
            if self._wrap is None and not self._proxies and has_mqtt_wire():
                listener = listening_socket(host, port)
                self.port = listener.getsockname()[1]
                self._wire = MqttWire(self._connections, listener, tls)
                return
            if tls is None and not self._proxies:
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(self._new_connection, host, port, backlog=BACKLOG)
            else:
                prelude = self._read_prelude if self._proxies else None
                self._server = TlsServer(listening_socket(host, port), self._new_connection, tls, prelude)
        except OSError as error:
            raise cannot_listen(self._setting, host, port, error) from None
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def room(self) -> RoomState:
        return self._connections.budget.room.state

    async def close(self) -> None:
        """Stops accepting connections, and ends those that are open: what was taken is decided and answered."""
        if self._server is not None:
            self._server.close()
        if self._wire is not None:
            self._wire.stop_listening()
        await self._connections.leave()
        if self._wire is not None:
            self._wire.close()
