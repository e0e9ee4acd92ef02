"""Listens for connections of the native protocol, on TCP or on a local socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

from icestream import errors, limits
from icestream.broker.service import Broker
from icestream.frontends.native.native_connection import NativeConnection
from icestream.frontends.native.public_calls import PUBLIC, CallTable
from icestream.frontends.native.send_budget import SendBudget
from icestream.rpc import handshake, local_socket
from icestream.runtime.connection_room import RoomState
from icestream.runtime.listening import cannot_listen


class NativeListener:
    def __init__(
        self,
        broker: Broker,
        welcome: handshake.Server,
        offered: CallTable = PUBLIC,
        name: str = "native",
        connections_max: int = limits.CONNECTIONS_MAX,
    ) -> None:
        """`name`: of the listener in metrics and readiness."""
        self._broker = broker
        self._welcome = welcome
        self._offered = offered
        self._connections = SendBudget(name, connections_max)
        self._server: asyncio.Server | None = None
        self.port = 0

    def _connection(self) -> NativeConnection:
        return NativeConnection(self._broker, self._welcome, self._connections, self._offered)

    async def listen(self, host: str, port: int) -> None:
        try:
            self._server = await asyncio.get_running_loop().create_server(self._connection, host, port, backlog=1024)
        except OSError as error:
            raise cannot_listen("ports.native", host, port, error) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def listen_locally(self, path: Path) -> None:
        """Only for processes of this account. A file that a dead broker left is replaced, a live broker is not."""
        found = local_socket.bind(path)
        self._server = await asyncio.get_running_loop().create_unix_server(self._connection, sock=found)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def room(self) -> RoomState:
        return self._connections.room.state

    async def close(self) -> None:
        """Lets nobody in any more, finishes the answers that are due, and says goodbye. Not for long: whoever does not
        read his answers is cut off."""
        if self._server is not None:
            self._server.close()
        reason = errors.ShuttingDown("the broker is shutting down", hint="connect again in a moment")
        leaving = [asyncio.ensure_future(connection.leave(reason)) for connection in self._connections]
        if leaving:
            await asyncio.wait(leaving, timeout=limits.CLOSE_SECONDS_MAX)
        for connection in self._connections:
            connection.abort()
        for one in leaving:
            one.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
