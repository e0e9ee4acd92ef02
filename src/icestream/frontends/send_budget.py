"""The connections of one listener, and how many outgoing bytes may wait for their sockets (hazard 35).

The ConnectionRoom decides which connection is closed when all places are taken (runtime/connection_room.py). A
native connection with producers, consumers, watches or calls is busy; without any of them it is idle. One of MQTT is
busy when its CONNECT was accepted.

All connections share SEND_BYTES_TOTAL in equal parts, within bounds for each. The shares are computed anew when the
number of connections has doubled or has fallen to a quarter, so that the first connections do not keep a larger share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from icestream import limits
from icestream.runtime.connection_room import ConnectionRoom


class BudgetedConnection(Protocol):
    def set_share(self, share_bytes: int) -> None:
        """Sets how many bytes may wait for the connection's socket."""


Connection = TypeVar("Connection", bound=BudgetedConnection)


class SendBudget(Generic[Connection]):
    def __init__(self, listener: str, connections_max: int = limits.CONNECTIONS_MAX) -> None:
        """`listener`: its name in metrics and readiness."""
        self.room: ConnectionRoom[Connection] = ConnectionRoom(listener, connections_max)
        self._connections: set[Connection] = set()
        self._parts = 1
        self.share = self._share()

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._connections))

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)
        if not self._divide():
            connection.set_share(self.share)

    def discard(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.room.leave(connection)
        self._divide()

    def _divide(self) -> bool:
        """Recomputes the share; returns whether it changed, in which case every connection has the new one."""
        count = len(self._connections)
        if self._parts // 4 < count <= self._parts:
            return False
        self._parts = 1 << max(count - 1, 0).bit_length()
        share, self.share = self.share, self._share()
        if share == self.share:
            return False
        for connection in self._connections:
            connection.set_share(self.share)
        return True

    def _share(self) -> int:
        equal_share = limits.SEND_BYTES_TOTAL // self._parts
        return max(limits.SOCKET_WRITE_BYTES_MIN, min(equal_share, limits.SOCKET_WRITE_BYTES_MAX))
