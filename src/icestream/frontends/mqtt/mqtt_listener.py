"""Listens for MQTT connections on one port, by TCP or WebSocket, with or without TLS and the PROXY protocol.

Plain MQTT is served by the native wire where it is built; WebSocket and the PROXY protocol by asyncio. While another
node of the cluster serves MQTT, connections are passed on to it (mqtt_relay.py); those that this node had accepted
before are refused by their CONNECT, with the address of that node.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from icestream import errors
from icestream.frontends.mqtt.mqtt_connection import MqttConnection, MqttConnections
from icestream.frontends.mqtt.mqtt_relay import MqttRelay
from icestream.frontends.mqtt.mqtt_wire import MqttWire, has_mqtt_wire
from icestream.observability.log import get_logger
from icestream.runtime.connection_room import RoomState
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.listening import cannot_listen, listening_socket
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
        home: Callable[[], str] = lambda: "",
    ) -> None:
        """`setting`: of its port. `wrap`: None for plain MQTT. `home`: `host:port` of the node that serves MQTT, empty
        if it is this one."""
        self._setting = setting
        self._connections = connections
        self._proxies = proxies
        self._wrap = wrap
        self._home = home
        self._tls: ListenerTls | None = None
        self._socket: socket.socket | None = None  # the servers listen on duplicates of it, one after the other
        self._server: TlsServer | None = None
        self._wires: list[MqttWire] = []  # the last one listens, unless connections are passed on
        self._relay = MqttRelay(
            connections.listener, home, proxies, max(1, connections.budget.room.state.capacity // 2)
        )
        self._is_relaying = False
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
            self._socket = listening_socket(host, port)
        except OSError as error:
            raise cannot_listen(self._setting, host, port, error) from None
        self.port = self._socket.getsockname()[1]
        self._tls = tls
        self._is_relaying = bool(self._home())
        self._serve()

    def _serve(self) -> None:
        assert self._socket is not None, "it listens"
        listening = self._socket.dup()
        if self._is_relaying:
            self._server = TlsServer(listening, self._new_connection, None, self._relay.join)
        elif self._wrap is None and not self._proxies and has_mqtt_wire():
            self._wires.append(MqttWire(self._connections, listening, self._tls))
        else:
            prelude = self._read_prelude if self._proxies else None
            self._server = TlsServer(listening, self._new_connection, self._tls, prelude)

    def update_home(self) -> None:
        """Looks again where MQTT is served."""
        if self._socket is None or bool(self._home()) == self._is_relaying:
            return
        self._stop_accepting()
        self._is_relaying = not self._is_relaying
        self._serve()

    def _stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        elif self._wires:
            self._wires[-1].stop_listening()

    @property
    def room(self) -> RoomState:
        return self._relay.state if self._is_relaying else self._connections.budget.room.state

    async def close(self) -> None:
        """Stops accepting connections, and ends those that are open: what was taken is decided and answered."""
        self._stop_accepting()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        await self._relay.close()
        await self._connections.leave()
        for wire in self._wires:
            wire.close()
