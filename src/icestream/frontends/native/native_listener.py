"""Listens for connections of the native protocol, on TCP or on a local socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

from icestream import errors, limits
from icestream.broker.guarded_broker import BrokerDoor
from icestream.frontends.native.frame_wire import FrameWire, has_frame_wire
from icestream.frontends.native.native_connection import NativeConnection
from icestream.frontends.native.public_calls import PUBLIC, CallTable
from icestream.frontends.native.wire_connection import WireConnection
from icestream.frontends.send_budget import SendBudget
from icestream.rpc import handshake, local_socket
from icestream.runtime.connection_room import RoomState
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.listening import cannot_listen, listening_socket
from icestream.runtime.tls_server import TlsServer


class NativeListener:
    def __init__(
        self,
        door: BrokerDoor,
        handshake_server: handshake.HandshakeServer,
        call_table: CallTable = PUBLIC,
        name: str = "native",
        connections_max: int = limits.CONNECTIONS_MAX,
        *,
        uses_wire: bool | None = None,
    ) -> None:
        """`name` identifies the listener in metrics, readiness checks and sessions.

        `uses_wire`: whether TCP connections are served by the native wire; None: if there is a native build.
        """
        self._uses_wire = has_frame_wire() if uses_wire is None else uses_wire
        self._wire: FrameWire | None = None
        self._door = door
        self._handshake = handshake_server
        self._call_table = call_table
        self._connections: SendBudget[NativeConnection] = SendBudget(name, connections_max)
        self._server: asyncio.Server | TlsServer | None = None
        self.port = 0

    def _new_connection(self, wire: WireConnection | None = None) -> NativeConnection:
        return NativeConnection(self._door, self._handshake, self._connections, self._call_table, wire)

    async def listen(self, host: str, port: int, tls: ListenerTls | None = None) -> None:
        try:
            if self._uses_wire:
                listener = listening_socket(host, port)
                self.port = listener.getsockname()[1]
                self._wire = FrameWire(self._door.publishing, listener, self._new_connection, tls)
                return
            if tls is not None:
                listener = listening_socket(host, port)
                self.port = listener.getsockname()[1]
                self._server = TlsServer(listener, self._new_connection, tls)
                return
            self._server = await asyncio.get_running_loop().create_server(
                self._new_connection, host, port, backlog=1024
            )
        except OSError as error:
            raise cannot_listen("ports.native", host, port, error) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def listen_locally(self, path: Path) -> None:
        """Listens on a Unix socket that only processes of this account can open.

        Replaces the socket file of a broker that died. Raises LogLocked if a running broker answers there.
        """
        bound_socket = local_socket.bind(path)
        self._server = await asyncio.get_running_loop().create_unix_server(self._new_connection, sock=bound_socket)

    @property
    def methods(self) -> frozenset[str]:
        """The calls that this listener serves."""
        return frozenset(self._call_table.calls)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def room(self) -> RoomState:
        return self._connections.room.state

    async def close(self) -> None:
        """Stops accepting connections, sends the pending responses, then closes every connection.

        A client that does not read its responses within CLOSE_SECONDS_MAX is disconnected without them.
        """
        if self._server is not None:
            self._server.close()
        if self._wire is not None:
            self._wire.stop_listening()
        reason = errors.ShuttingDown("the broker is shutting down", hint="connect again in a moment")
        departures = [asyncio.ensure_future(connection.leave(reason)) for connection in self._connections]
        if departures:
            await asyncio.wait(departures, timeout=limits.CLOSE_SECONDS_MAX)
        for connection in self._connections:
            connection.abort()
        for departure in departures:
            departure.cancel()
        await asyncio.gather(*departures, return_exceptions=True)
        if self._wire is not None:
            await self._wire.close()
