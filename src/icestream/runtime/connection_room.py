"""The places of a listener: which connection is closed when another one arrives and all places are taken. Pure.

    SILENT       nothing complete was received yet: no head, no greeting           closed first, the oldest
    IDLE         between requests, or without open consumers and producers         closed next, the longest idle
    RECEIVING    a request has begun and is not complete                           closed last, the oldest
    BUSY         a request is being answered, or consumers and producers are open  never closed for another one

So a connection that sends requests always finds a place while any other connection does not. When all are BUSY, a new
one is refused. At such a time `reserve` places beyond the capacity accept new connections that can prove that they
belong to this node: the listener decides that when the first request is complete (`is_reserved`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

Connection = TypeVar("Connection")
CROWDED_SHARE: Final = 0.95


class Standing(Enum):
    """In the order in which connections are closed."""

    SILENT = auto()
    IDLE = auto()
    RECEIVING = auto()
    BUSY = auto()


class Admission(NamedTuple, Generic[Connection]):
    """Whether a connection got a place, and which one must be closed for it."""

    is_admitted: bool
    evicted: Connection | None = None  # must be closed now
    is_reserved: bool = False  # admitted into the reserve


class RoomState(NamedTuple):
    """The places of a listener, for metrics and readiness; `open` and `busy` are now, the rest since the start."""

    listener: str
    capacity: int
    open: int
    busy: int
    evicted: int
    refused: int

    @property
    def is_crowded(self) -> bool:
        """Whether the room is nearly full.

        Not "full": free places are taken at once, so a check rarely sees all of them taken.
        """
        return self.open >= CROWDED_SHARE * self.capacity

    @property
    def is_refusing(self) -> bool:
        """Whether a new connection would be refused."""
        return self.busy >= self.capacity


class ConnectionRoom(Generic[Connection]):
    """The places of one listener."""

    def __init__(self, listener: str, capacity: int, reserve: int = 0) -> None:
        """`listener`: the name in metrics and readiness."""
        self._listener = listener
        self._capacity = capacity
        self._reserve = reserve
        self._by_standing: dict[Standing, dict[Connection, None]] = {standing: {} for standing in Standing}
        self._standings: dict[Connection, Standing] = {}
        self._reserved: set[Connection] = set()
        self.evicted = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._standings)

    @property
    def state(self) -> RoomState:
        busy = len(self._by_standing[Standing.BUSY])
        return RoomState(self._listener, self._capacity, len(self), busy, self.evicted, self.refused)

    def admit(self, connection: Connection) -> Admission[Connection]:
        """Admits a connection as SILENT, or refuses it. The caller closes the evicted one, which has left the room."""
        if len(self) - len(self._reserved) < self._capacity:
            self._put(connection, Standing.SILENT)
            return Admission(True)
        evicted = self._least_useful(is_reserved=False)
        is_reserved = evicted is None and self._reserve > 0
        if is_reserved and len(self._reserved) >= self._reserve:
            evicted = self._least_useful(is_reserved=True)
            is_reserved = evicted is not None
        if evicted is None and not is_reserved:
            self.refused += 1
            return Admission(False)
        if evicted is not None:
            self.leave(evicted)
            self.evicted += 1
        self._put(connection, Standing.SILENT)
        if is_reserved:
            self._reserved.add(connection)
        return Admission(True, evicted, is_reserved)

    def move(self, connection: Connection, standing: Standing) -> None:
        """Changes the standing of a connection; it becomes the last of that standing to be closed."""
        former = self._standings.get(connection)
        if former is not None:
            del self._by_standing[former][connection]
            self._put(connection, standing)

    def leave(self, connection: Connection) -> None:
        """Frees the place of a connection."""
        standing = self._standings.pop(connection, None)
        if standing is not None:
            del self._by_standing[standing][connection]
            self._reserved.discard(connection)

    def _put(self, connection: Connection, standing: Standing) -> None:
        self._standings[connection] = standing
        self._by_standing[standing][connection] = None

    def _least_useful(self, *, is_reserved: bool) -> Connection | None:
        for standing in (Standing.SILENT, Standing.IDLE, Standing.RECEIVING):
            for connection in self._by_standing[standing]:
                if (connection in self._reserved) == is_reserved:
                    return connection
        return None
